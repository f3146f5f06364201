"""Helpers of the budget tests: virtual time that moves by itself, and what is charged to a budget."""

import functools

import pytest

from shapekit import LLMBudget

from ..redis_server import free_port as a_free_port


@pytest.fixture
def budget(clock):
    """Makes a budget on the test's clock. Its day shows the charged tokens exactly."""
    return functools.partial(LLMBudget, tokens_per_day=1_000_000, clock=clock)


@pytest.fixture(scope="session")
def used():
    """The tokens that are charged today."""

    def charged(budget, key="default"):
        (day,) = budget.quotas(key)
        return day.used

    return charged


@pytest.fixture
def free_port():
    """A port without a listener."""
    return a_free_port()
