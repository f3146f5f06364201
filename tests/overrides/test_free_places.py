"""Charges for slots that were given back, where the limits change before another call takes them."""

import pytest

from shapekit import Override, Policy, SlidingWindowLog

from .conftest import put

CHANGES = {
    "a deploy": lambda store: None,
    "an override": lambda store: put(store, "api", Override(rate="20/s")),
}


def policy_on(store, rate):
    return Policy(rate, quota="1000/month", name="api", store=store)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("passed_s", [0, 1, 3600])
def test_free_places_are_not_charged_to_the_quota_any_more(store, change, passed_s):
    old = policy_on(store, "10/s")
    slots = [old.shaper.reserve() for _ in range(21)]
    assert all(slot.cancel() for slot in slots[5:15])
    store.clock.advance(passed_s)
    CHANGES[change](store)
    new = policy_on(store, "20/s" if change == "a deploy" else "10/s")
    new.shaper.reserve()
    for _ in range(2):
        store.clock.advance(3600)
        new.shaper.reserve()
    assert new.quotas()[0].used == 11 + 3


def test_free_places_pass_when_their_calls_would_have_left(store):
    """Although a lower burst moves their places behind that: they lay in the burst that was in use."""
    policy = Policy("2/s burst 5", gates=(SlidingWindowLog(3, "10s"),), name="api", store=store)
    slots = [policy.shaper.reserve() for _ in range(7)]
    store.clock.advance(9.5)
    put(store, "api", Override(rate="1/min", burst=1))
    waits = [policy.shaper.remaining(slot) for slot in slots[3:]]
    assert waits[0] == waits[2] < 20 < waits[3]
    assert slots[3].cancel()
    store.clock.advance(40)
    newcomer = policy.shaper.reserve()
    assert newcomer.delay > policy.shaper.remaining(slots[-1])
    assert newcomer.cancel()
