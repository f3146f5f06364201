"""What was charged for slots that were given back, where the limits change before somebody takes them."""

import pytest

from shapekit import Override, Policy

from .conftest import put

CHANGES = {
    "a deploy": lambda store: None,
    "an override": lambda store: put(store, "api", Override(rate="20/s")),
}


def policy_on(store, rate):
    return Policy(rate, quota="1000/month", name="api", store=store)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("passed_s", [0, 1, 3600])
def test_they_are_no_charge_of_the_quota_any_more(store, change, passed_s):
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
