"""Limits that are changed again before the last change has reached all waiting calls."""

from itertools import pairwise

import pytest

from shapekit import Override, Shaper

from .conftest import put


@pytest.mark.parametrize("again", [[Override(rate="100/s")], [Override(rate="3/s")], []])
def test_calls_that_have_not_moved_yet_come_no_closer_together(store, again):
    """Where a hold keeps the queue's time from reaching the instant from which calls move."""
    shaper = Shaper("50/s", name="api", store=store)
    shaper.hold("1s")
    slots = [shaper.reserve() for _ in range(20)]
    store.clock.advance(0.75)
    put(store, "api", Override(rate="1/s"))
    shaper.held()
    shaper.hold("3s")
    put(store, "api", *again)
    left = [shaper.remaining(slot) for slot in slots]
    fastest = max([50, *(int(one.rate.removesuffix("/s")) for one in again)])
    assert left[0] == pytest.approx(3)
    assert min(later - before for before, later in pairwise(left)) >= 1 / fastest - 2e-6
