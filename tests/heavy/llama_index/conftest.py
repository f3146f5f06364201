import asyncio
from contextlib import closing
from types import SimpleNamespace

import pytest

from shapekit import LLMBudget
from shapekit.integrations import llama_index
from shapekit.integrations.llama_index import ShapedRateLimiter


@pytest.fixture
def budget(clock):
    with closing(
        LLMBudget(requests="10/s burst 1", tokens="60k/min", tokens_per_day=1_000_000, clock=clock)
    ) as made:
        yield made


@pytest.fixture
def used(budget):
    """How many tokens are charged, once all that was left to threads is done."""

    def count():
        all_done()
        return budget.quotas()[0].used

    return count


@pytest.fixture
def limiter(budget):
    return ShapedRateLimiter(budget)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No run is remembered that is over."""
    yield
    left, llama_index._RUNS._open = llama_index._RUNS._open, {}
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

    def streamed(thing, name, *args):
        if request.param == "sync":
            return list(getattr(thing, name)(*args))

        async def astreamed():
            return [item async for item in await getattr(thing, f"a{name}")(*args)]

        return asyncio.run(astreamed())

    return SimpleNamespace(call=called, stream=streamed)


def all_done():
    """All that was left to threads is done."""
    llama_index._threads().shutdown()
    llama_index._threads.cache_clear()


def refusal(status, **headers):
    """An error as SDKs raise it."""
    error = RuntimeError("refused")
    error.response = SimpleNamespace(status_code=status, headers=headers)
    return error
