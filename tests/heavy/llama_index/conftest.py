import pytest

from shapekit.integrations import llama_index
from shapekit.integrations.llama_index import ShapedRateLimiter

from ...llm.frameworks import budget, do

__all__ = ["budget", "do"]


@pytest.fixture
def used(budget):
    """The number of tokens that are charged, once all threads have finished their work."""

    def count():
        all_done()
        return budget.quotas()[0].used

    return count


@pytest.fixture
def limiter(budget):
    return ShapedRateLimiter(budget)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """Asserts that no finished run is remembered."""
    yield
    left, llama_index._RUNS._open = llama_index._RUNS._open, {}
    assert left == {}


def all_done():
    """Waits until all work that was left to threads is done."""
    llama_index._threads().shutdown()
    llama_index._threads.cache_clear()
