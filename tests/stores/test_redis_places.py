"""The twin's places in the middle of a queue are for what fits, and whole when they are taken again."""

import pytest

from shapekit import FixedWindow, ManualClock, Quota, RedisStore, Shaper, SlidingWindowLog

from ..redis_server import shared_server

LIMITS = {
    "a rate": ("10/s", ()),
    "two rates": ("10/s; 500/min", ()),
    "a quota": ("10/s", (Quota("1000/day"),)),
    "a log": ("10/s", (SlidingWindowLog(500, "1m"),)),
}


@pytest.fixture
def store(request):
    with shared_server().client() as client:
        yield RedisStore(client, clock=ManualClock(1_000), prefix=f"places:{request.node.name}")


@pytest.mark.parametrize("limit", LIMITS)
def test_a_place_is_taken_only_by_a_cost_that_it_can_bear(store, limit):
    rate, gates = LIMITS[limit]
    shaper = Shaper(rate, gates=gates, name="places", store=store)
    shaper.reserve()
    place, _ = shaper.reserve(cost=2), shaper.reserve()
    assert place.cancel()
    assert shaper.reserve(cost=3).delay == 0.4
    assert shaper.reserve(cost=2).delay == 0.1


@pytest.mark.parametrize("cost", [1, 2])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_place_that_was_taken_again_can_be_given_back_and_taken_again(store, limit, cost):
    rate, gates = LIMITS[limit]
    shaper = Shaper(rate, gates=gates, name="places", store=store)
    place, *_ = [shaper.reserve(cost=cost) for _ in range(4)][1:]
    for _ in range(3):
        assert place.cancel()
        again = shaper.reserve(cost=cost)
        assert (again.delay, again.grant.end) == (place.delay, place.grant.end)
        place = again


def test_a_place_has_the_same_receipts_as_in_memory(store):
    """It lies between one that was charged by another time and one that was charged in the same window."""
    receipts = []
    for where in ({"store": store}, {"clock": ManualClock(1_000)}):
        shaper = Shaper("10/s", gates=(FixedWindow(100, 1),), name="places", **where)
        shaper.reserve()
        before = [shaper.reserve() for _ in range(4)][-1]
        shaper.hold(0.75)
        place = shaper.reserve()
        shaper.hold(0.85)
        behind, _ = shaper.reserve(), shaper.reserve()
        assert before.cancel()
        assert behind.cancel()
        assert place.cancel()
        receipts.append([shaper.reserve().grant.receipts for _ in range(4)])
    assert receipts[0] == receipts[1]
