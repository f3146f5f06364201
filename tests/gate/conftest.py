"""One test for both forms of a method."""

import pytest


@pytest.fixture(params=["sync", "async"])
def ask(request):
    """Calls a method of a gate, or its awaitable twin: one test for both."""

    async def call(gate, method, *args, **kwargs):
        if request.param == "sync":
            return getattr(gate, method)(*args, **kwargs)
        return await getattr(gate, f"a{method}")(*args, **kwargs)

    return call
