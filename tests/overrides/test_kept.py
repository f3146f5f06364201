"""A process keeps nothing of limits that were set before, however often they change."""

import gc
import tracemalloc

import pytest

from shapekit import ManualClock, MemoryStore, Override, Policy, SQLiteStore

from .conftest import put

MOST_KEPT = 40_000
"""Bytes for 200 changes."""


def change_often(store, policy, rates):
    for rate in rates:
        store.clock.advance(2)
        put(store, "api", Override(rate=rate))
        policy.shaper.reserve("key")
        policy.shaper.reserve("key").cancel()
        policy.shaper.forecast(2, key="key")


def kept_of(store, *rounds):
    """How many more bytes are in use after the last round than after the first one."""
    policy = Policy("10/s", name="api", store=store)
    used = []
    tracemalloc.start()
    try:
        for rates in rounds:
            change_often(store, policy, rates)
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return used[-1] - used[0]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_nothing_is_kept_of_limits_that_go_to_and_fro(tmp_path, kind):
    clock = ManualClock(1_000_000_000)
    store = MemoryStore(clock) if kind == "memory" else SQLiteStore(tmp_path / "limits.db", clock=clock)
    assert kept_of(store, ["20/s", "30/s"] * 20, ["20/s", "30/s"] * 100) < MOST_KEPT
    store.close()


def test_nothing_is_kept_of_limits_that_never_come_again():
    store = MemoryStore(ManualClock(1_000_000_000))
    rounds = [[f"{number}/s" for number in numbers] for numbers in (range(20, 60), range(100, 300))]
    assert kept_of(store, *rounds) < MOST_KEPT


def test_the_limits_in_code_keep_their_place_while_overrides_are_set():
    store = MemoryStore(ManualClock(1_000_000_000))
    policy = Policy("10/s", name="api", store=store)
    change_often(store, policy, ["20/s", "30/s", "40/s"])
    put(store, "api")
    assert [policy.shaper.reserve("other").delay for _ in range(3)] == [0, 0.1, 0.2]
    put(store, "api", Override(rate="20/s"))
    assert policy.shaper.reserve("other").delay > 0.2
