import pytest

from shapekit.integrations import langchain

from ...llm.frameworks import budget, do

__all__ = ["budget", "do"]


@pytest.fixture
def used(budget):
    """The number of tokens that are charged so far."""
    return lambda: budget.quotas()[0].used


@pytest.fixture
def limiter(budget):
    return langchain.ShapedRateLimiter(budget)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """Asserts that no finished run is remembered."""
    yield
    left, langchain._RUNS._open = langchain._RUNS._open, {}
    assert left == {}
