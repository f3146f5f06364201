"""An admission that is never entered shapes nothing, and says so where it is dropped."""

from __future__ import annotations

import gc
import warnings
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from shapekit import Admission, Policy, QueueFullError


@pytest.fixture
def told() -> Any:
    """The warnings of a test."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told
        gc.collect()


@pytest.mark.parametrize("admit", ["admit", "aadmit"])
def test_one_that_is_dropped_warns_where_that_happens(admit: str, told: Any) -> None:
    getattr(Policy("10/s"), admit)("acme")
    (warning,) = told
    assert warning.category is RuntimeWarning
    assert "'acme'" in str(warning.message)
    assert "with policy.admit()" in str(warning.message)
    assert warning.filename == __file__


def test_one_that_is_forgotten_warns_once(told: Any) -> None:
    def forgets(policy: Policy) -> None:
        admission = policy.admit()
        assert isinstance(admission, Admission)

    forgets(Policy("10/s"))
    assert len(told) == 1


def test_one_that_was_entered_says_nothing_whatever_became_of_it(told: Any) -> None:
    policy = Policy("1/min", max_wait=0)
    with policy.admit() as admission:
        assert type(admission) is Admission
    with pytest.raises(QueueFullError), policy.admit():
        pass
    with pytest.raises(QueueFullError), ExitStack() as stack:
        stack.enter_context(policy.admit())
    with pytest.raises(KeyError), policy.admit("other"):
        raise KeyError
    del admission
    gc.collect()
    assert not told


@pytest.mark.anyio
async def test_one_that_a_task_entered_says_nothing(told: Any) -> None:
    policy = Policy("10/s")
    async with policy.aadmit() as admission:
        assert type(admission) is Admission
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(policy.admit("other"))
    del admission
    gc.collect()
    assert not told


@pytest.mark.parametrize("options", [{"enforce": False}, {"concurrency": 1}])
def test_one_that_takes_the_longer_way_says_nothing(options: Any, told: Any) -> None:
    with Policy("10/s", **options).admit():
        pass
    assert not told


def test_one_that_is_refused_before_it_is_made_says_nothing(refused: Any, told: Any) -> None:
    refused(lambda: Policy("10/s", key="{user}").admit(), "key")
    assert not told


def test_one_that_is_only_looked_at_says_nothing(told: Any) -> None:
    assert Policy("10/s").admit("acme").unentered().key == "acme"
    assert not told
