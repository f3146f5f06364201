"""Slots that a process owns when an operator changes the limits move as calls do, and are given back."""

import pytest

from shapekit import ManualClock, Override, Policy, Shaper, SQLiteStore
from shapekit._runtime.drivers import run

from ..crew import in_threads
from .conftest import fresh_redis, put

CALLS, THREADS = 20, 4


@pytest.fixture(params=["sqlite", "redis"])
def store(request, tmp_path):
    """One that other processes share: in memory nothing is fetched ahead."""
    clock = ManualClock(1_000_000_000)
    sqlite, redis = lambda: SQLiteStore(tmp_path / "limits.db", clock=clock), lambda: fresh_redis(clock)
    made = sqlite() if request.param == "sqlite" else redis()
    yield made
    made.close()


def rush(shaper):
    in_threads([lambda: [shaper.reserve() for _ in range(CALLS)]] * THREADS)


@pytest.mark.parametrize("rates", [("50/s",), ("400/s",), ("50/s", "400/s", "30/s")])
def test_a_quota_counts_no_slots_that_no_call_has_taken(store, rates):
    with_quota = {"quota": "100000/month", "name": "api", "store": store}
    policy = Policy("100/s", **with_quota, prefetch="1s")
    rush(policy.shaper)
    for rate in rates:
        put(store, "api", Override(rate=rate))
        rush(policy.shaper)
    policy.close()
    store.clock.advance(3600)
    there = Policy("100/s", **with_quota)
    there.shaper.reserve()
    assert there.quotas()[0].used == (1 + len(rates)) * CALLS * THREADS + 1


@pytest.mark.parametrize("changes", [1, 3])
def test_prefetched_slots_given_back_after_changes_are_free_for_others(store, changes):
    shaper = Shaper("100/s", name="api", store=store, prefetch="1s")
    prefetch = shaper.core.prefetch
    owned = prefetch._reserve_many("default", [], (50, 10**6, 1))[1]
    for change in range(changes):
        put(store, "api", Override(rate=f"{50 + change}/s"))
        prefetch._follow.call("default")
    assert shaper.forecast().first_in > 0.6
    for _ in range(2):
        run(prefetch._returned, "default", owned)
        assert shaper.forecast().first_in == 0
    shaper.close()
