"""What becomes of a rate that is found while its store is gone."""

import pytest

from shapekit import Adaptive, ManualClock, MemoryStore, ResilientStore, Shaper
from shapekit.errors import StoreUnavailableError
from shapekit.testing import FaultyStore

BETWEEN = Adaptive(min="2/s", max="50/s")


def lost(mode, **rest):
    """A shaper that had found 10/s, and has just lost its store."""
    clock = ManualClock(1_000.0)
    faulty = FaultyStore(MemoryStore(clock))
    store = ResilientStore(faulty, on_outage=mode, timeout=20, **rest)
    shaper = Shaper(adaptive=BETWEEN, store=store, name="api")
    shaper.adaptive.stated(10, 1, age=0)
    faulty.down = True
    return shaper, clock


def teach(shaper, clock):
    for _ in range(20):
        clock.advance(0.2)
        shaper.adaptive.succeeded(age=0.1)


def test_raise_raises():
    shaper, clock = lost("raise")
    with pytest.raises(StoreUnavailableError):
        teach(shaper, clock)
    with pytest.raises(StoreUnavailableError):
        shaper.adaptive.throttled(age=0)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_open_and_closed_learn_nothing(mode):
    shaper, clock = lost(mode)
    events = []
    with shaper.listen(events.append):
        teach(shaper, clock)
        assert shaper.adaptive.throttled(age=0, hold=5) == 0.0
    assert events == []
    assert bool(shaper.reserve()) is (mode == "open")


def test_local_learns_by_itself_at_a_share_of_the_bounds():
    shaper, clock = lost("local", share=0.5)
    reservations = [shaper.reserve() for _ in range(3)]
    assert [reservation.delay for reservation in reservations] == pytest.approx([0, 1, 2], abs=1e-5)
    assert shaper.remaining(reservations[-1]) == pytest.approx(2, abs=1e-5)
    assert reservations[-1].decision.allowed
    events = []
    with shaper.listen(events.append):
        teach(shaper, clock)
    assert events[-1].rate == pytest.approx(shaper.adaptive.rate(), rel=1e-3)
    assert 1 < shaper.adaptive.rate() < 5, "it is half of what was stated, at most"
    assert reservations[0].cancel() is False
