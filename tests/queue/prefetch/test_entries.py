"""Desks: what a process keeps of each key, and what those hear who wait at one that nobody tends any more."""

import threading

import pytest

from shapekit import StoreUnavailableError
from shapekit._queue.prefetch import _DESKS

from ...crew import in_threads
from .conftest import PATIENCE_S, tenders


def test_keys_that_nobody_uses_any_more_are_forgotten(store, shaper_on):
    shaper = shaper_on(store)
    for number in range(3 * _DESKS):
        shaper.reserve(f"key {number}")
        for thread in tenders():
            thread.join(PATIENCE_S)
        assert len(shaper.core.prefetch._entries) <= _DESKS


def test_where_no_thread_is_left_those_who_wait_are_told_so(store, shaper_on, monkeypatch):
    shaper = shaper_on(store)

    def full(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(StoreUnavailableError, match="no thread left"):
            shaper.reserve()
    assert shaper.reserve()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whoever_waits_for_a_trip_that_is_torn_away_is_told_so(store, shaper_on):
    shaper, errors = shaper_on(store), []

    def work():
        with pytest.raises(StoreUnavailableError, match="has ended") as caught:
            shaper.reserve()
        errors.append(caught.value)

    store.broken = GeneratorExit()
    in_threads([work] * 3)
    assert len(errors) == 3
    store.broken = None
    assert shaper.reserve()
