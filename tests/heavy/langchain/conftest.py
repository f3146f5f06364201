import asyncio
from types import SimpleNamespace

import pytest

from shapekit import LLMBudget
from shapekit.integrations import langchain

PER_DAY = 1_000_000


@pytest.fixture
def budget(clock):
    made = LLMBudget(requests="10/s burst 1", tokens="60k/min", tokens_per_day=PER_DAY, clock=clock)
    yield made
    made.close()


@pytest.fixture
def used(budget):
    """How many tokens are charged by now."""
    return lambda: budget.quotas()[0].used


@pytest.fixture
def limiter(budget):
    return langchain.ShapedRateLimiter(budget)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No run is remembered that is over."""
    yield
    left, langchain._RUNS._open = langchain._RUNS._open, {}
    assert left == {}


@pytest.fixture(params=["sync", "asyncio"])
def do(request):
    """Does what a model can do, in one of its two forms."""

    def called(thing, name, *args, **kwargs):
        if request.param == "sync":
            return getattr(thing, name)(*args, **kwargs)

        async def acalled():
            return await getattr(thing, f"a{name}")(*args, **kwargs)

        return asyncio.run(acalled())

    def streamed(thing, *args):
        if request.param == "sync":
            return list(thing.stream(*args))

        async def astreamed():
            return [item async for item in thing.astream(*args)]

        return asyncio.run(astreamed())

    return SimpleNamespace(call=called, stream=streamed)


def refusal(status, **headers):
    """An error as SDKs raise it."""
    error = RuntimeError("refused")
    error.response = SimpleNamespace(status_code=status, headers=headers)
    return error
