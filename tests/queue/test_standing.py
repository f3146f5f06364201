"""How a slot and a key stand, for calls that wait elsewhere: in another process or a queue of messages."""

import json

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import FixedWindow, ManualClock, MemoryStore, Policy, Quota, Shaper
from shapekit._runtime.drivers import run
from shapekit.shaper import received, sent

from .slow_store import FarStore

RATES = st.sampled_from(["3/s", "10/s", "7/min"])


def aremaining(shaper, reservation):
    return anyio.run(shaper.aremaining, reservation)


@given(RATES, st.lists(st.sampled_from(["reserve", "hold", "resume", "wait"]), max_size=12))
def test_a_slot_remains_for_as_long_as_a_waiting_call_would_wait(rate, story):
    clock = ManualClock(autojump=True)
    shaper = Shaper(rate, clock=clock)
    for step in story:
        match step:
            case "reserve":
                shaper.reserve()
            case "hold":
                shaper.hold(5)
            case "resume":
                shaper.resume()
            case "wait":
                clock.advance(0.7)
    reservation = shaper.reserve()
    remaining = shaper.remaining(reservation)
    assert remaining == aremaining(shaper, reservation)
    before = clock.now()
    run(shaper.core.leave, reservation)
    assert clock.now() - before == pytest.approx(max(0.0, remaining), abs=2e-6)
    clock.advance(1.5)
    assert shaper.remaining(reservation) == pytest.approx(-1.5, abs=2e-6)


def test_a_hold_moves_a_slot_and_its_end_moves_it_back(clock):
    shaper = Shaper("1/s", clock=clock)
    shaper.reserve()
    reservation = shaper.reserve()
    assert (shaper.remaining(reservation), shaper.held()) == (1.0, 0.0)
    shaper.hold(10)
    assert (shaper.remaining(reservation), shaper.held()) == (11.0, 10.0)
    shaper.resume()
    assert (shaper.remaining(reservation), shaper.held()) == (1.25, 0.25)
    clock.advance(1)
    assert (shaper.remaining(reservation), shaper.held()) == (0.25, 0.0)
    assert anyio.run(shaper.aheld) == 0.0
    assert shaper.held(key="other") == 0.0


def test_a_store_with_a_clock_of_its_own_is_read_by_its_clock():
    clock = ManualClock(autojump=True)
    store = FarStore(clock, 0.001)
    shaper = Shaper("1/s", store=store, name="api")
    shaper.reserve()
    reservation = shaper.reserve()
    shaper.hold(10)
    assert shaper.remaining(reservation) == pytest.approx(11.0, abs=0.02)
    assert shaper.held() == pytest.approx(10.0, abs=0.02)


GATES = st.lists(
    st.sampled_from([FixedWindow("100/h"), Quota("1000/month", tz="Europe/Berlin")]), unique=True
)


@given(GATES, st.integers(1, 3), st.integers(1, 3))
def test_a_reservation_that_was_sent_as_json_is_the_same(gates, cost, before):
    store = MemoryStore(ManualClock())
    here, there = (Policy("10/s", gates=gates, name="api", store=store).shaper for _ in range(2))
    for _ in range(before):
        here.reserve("k", cost=cost)
    reservation = here.reserve("k", cost=cost)
    arrived = received(there.core, json.loads(json.dumps(sent(reservation))))
    assert (arrived.key, arrived.grant) == (reservation.key, reservation.grant)
    assert there.remaining(arrived) == here.remaining(reservation)
    assert arrived.cancel()
    assert not reservation.cancel()
