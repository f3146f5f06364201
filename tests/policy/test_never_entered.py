"""An admission that is never entered shapes nothing, and warns where it is dropped."""

from __future__ import annotations

import gc
import warnings
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from shapekit import Admission, Policy, QueueFullError


@pytest.fixture
def warned() -> Any:
    """The warnings of a test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
        gc.collect()


@pytest.mark.parametrize("admit", ["admit", "aadmit"])
def test_a_dropped_admission_warns_at_that_line(admit: str, warned: Any) -> None:
    getattr(Policy("10/s"), admit)("acme")
    (warning,) = warned
    assert warning.category is RuntimeWarning
    assert "'acme'" in str(warning.message)
    assert "with policy.admit()" in str(warning.message)
    assert warning.filename == __file__


def test_a_forgotten_admission_warns_once(warned: Any) -> None:
    def forgets(policy: Policy) -> None:
        admission = policy.admit()
        assert isinstance(admission, Admission)

    forgets(Policy("10/s"))
    assert len(warned) == 1


def test_an_entered_admission_does_not_warn_whatever_its_outcome(warned: Any) -> None:
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
    assert not warned


@pytest.mark.anyio
async def test_an_admission_that_a_task_entered_does_not_warn(warned: Any) -> None:
    policy = Policy("10/s")
    async with policy.aadmit() as admission:
        assert type(admission) is Admission
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(policy.admit("other"))
    del admission
    gc.collect()
    assert not warned


@pytest.mark.parametrize("options", [{"enforce": False}, {"concurrency": 1}])
def test_an_admission_with_further_options_does_not_warn(options: Any, warned: Any) -> None:
    with Policy("10/s", **options).admit():
        pass
    assert not warned


def test_an_admission_that_is_refused_before_it_is_made_does_not_warn(refused: Any, warned: Any) -> None:
    refused(lambda: Policy("10/s", key="{user}").admit(), "key")
    assert not warned


def test_an_admission_that_is_only_inspected_does_not_warn(warned: Any) -> None:
    assert Policy("10/s").admit("acme").unentered().key == "acme"
    assert not warned
