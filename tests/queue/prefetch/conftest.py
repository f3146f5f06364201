"""What the tests of prefetch share: a clock that jumps, a store far away, tenders that are waited for."""

import threading

import pytest

from shapekit import Shaper

from ..slow_store import FarStore

PATIENCE_S = 20.0


def tenders():
    """The threads that look after stocks."""
    return [thread for thread in threading.enumerate() if thread.name == "shapekit-prefetch"]


@pytest.fixture
def store(clock):
    """A trip of 50 ms, and a clock of its own."""
    return FarStore(clock, 0.05)


@pytest.fixture
def shaper_on():
    """Makes shapers that prefetch; they are closed in the end, and their threads end."""
    made = []

    def make(store, rate="100/s", **options):
        shaper = Shaper(rate, name="far", store=store, **{"prefetch": "1s", **options})
        made.append(shaper)
        return shaper

    yield make
    for shaper in made:
        shaper.close()
    for thread in tenders():
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
