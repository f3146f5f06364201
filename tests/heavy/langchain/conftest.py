import pytest

from shapekit.integrations import langchain

from ...llm.frameworks import budget, do

__all__ = ["budget", "do"]


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
