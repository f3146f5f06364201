"""MemoryStore forgets idle keys as it goes: a few with each call, none that is live, no thread for it."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    Adaptive,
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Shaper,
    SlidingWindowLog,
    all_of,
)
from shapekit.stores import memory

MANY = 200_000
MOST_A_CALL = 64
"""What one call may look at: far below any number of keys that would be felt."""
PAGE = 64
"""Keys that wait together to be swept, the last one first."""


class Looks(dict):
    """When keys are idle, counting how often sweeping looks at one."""

    count = 0

    def __getitem__(self, key):
        Looks.count += 1
        return super().__getitem__(key)


class CountingShelf(memory._Table):
    __slots__ = ()

    def __init__(self, program):
        super().__init__(program)
        self.ends = Looks()


@pytest.fixture
def looks(monkeypatch):
    """How many keys sweeping has looked at, in stores that are made from now on."""
    monkeypatch.setattr(memory, "_Table", CountingShelf)
    monkeypatch.setattr(Looks, "count", 0)
    return lambda: Looks.count


def in_line(store):
    return sum(len(page.keys) for page in store._line)


@pytest.mark.long
def test_200_000_keys_of_one_second_are_gone_after_it(looks):
    threads = set(threading.enumerate())
    clock = ManualClock()
    store = MemoryStore(clock)
    gate = Gate(GCRA("1/s", burst=1), store=store, name="api")
    most = 0
    for n in range(MANY):
        before = looks()
        assert gate.check(f"key-{n}")
        most = max(most, looks() - before)
    assert len(store) == MANY
    clock.advance(60)
    calls = 0
    while len(store) > 1:
        before = looks()
        gate.check("alive")
        clock.advance(1)
        most = max(most, looks() - before)
        calls += 1
        assert calls <= MANY, "sweeping has stopped"
    assert 1 < most <= MOST_A_CALL
    assert calls <= MANY / 8
    assert in_line(store) == len(store) == 1
    assert gate.check("alive")
    assert list(store.keys()) == ["api:alive"]
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize("strategy", [GCRA("1/s"), FixedWindow("1/s"), SlidingWindowLog("1/s")], ids=repr)
def test_calls_that_change_nothing_sweep_nothing_and_idle_keys_go_later(looks, strategy):
    # Denials and looks are cheap; the calls that are admitted pay for the sweeping.
    clock = ManualClock()
    store = MemoryStore(clock)
    gate = Gate(strategy, store=store, name="api")
    for n in range(100):
        gate.check(f"key-{n}")
    looked_at = looks()
    for _ in range(100):
        assert not gate.check("key-0")
        gate.peek("key-1")
        gate.forecast("nobody")
    assert looks() <= looked_at + MOST_A_CALL
    assert len(store) == 100
    clock.advance(60)
    for _ in range(100):
        gate.check("alive")
        clock.advance(1)
    assert len(store) == 1


def test_live_keys_are_never_evicted():
    clock = ManualClock()
    store = MemoryStore(clock)
    slow = Gate(GCRA("1/day", burst=1), store=store, name="slow")
    fast = Gate(GCRA("1/s", burst=1), store=store, name="fast")
    live = [f"live-{n}" for n in range(5_000)]
    assert all(decision.allowed for decision in slow.check_many(live))
    for n in range(40_000):
        fast.check(f"passing-{n}")
        clock.advance(0.001)
    assert clock.now() == 40
    assert len(store) < 20_000
    assert not any(decision.allowed for decision in slow.check_many(live))
    assert len(list(store.keys("slow:"))) == 5_000


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.booleans()), min_size=20, max_size=150),
    st.integers(1, 3),
)
def test_a_swept_store_decides_as_one_that_keeps_everything(calls, burst):
    # Every key on a store of its own is never swept by the others.
    clock = ManualClock()
    strategy = GCRA("1 per 5 s", burst=burst)
    shared = Gate(strategy, clock=clock)
    alone = {}
    for gap, key, noise in calls:
        clock.advance(gap)
        if noise:
            for n in range(20):
                shared.check(f"noise-{n}")
        one = alone.setdefault(key, Gate(strategy, clock=clock))
        swept, kept = shared.check(f"key-{key}"), one.check(f"key-{key}")
        # The store that keeps everything goes on counting where the other begins anew.
        assert swept._replace(receipt=None) == kept._replace(receipt=None)


def test_a_key_that_was_reset_is_swept_once():
    clock = ManualClock()
    store = MemoryStore(clock)
    gate = Gate(GCRA("1/s", burst=1), store=store, name="api")
    for _ in range(50):
        assert gate.check("key")
        gate.reset("key")
    assert len(store) == in_line(store) == 1
    clock.advance(60)
    gate.check("other")
    gate.check("third")
    assert sorted(store.keys()) == ["api:other", "api:third"]
    assert len(store) == in_line(store) == 2


def test_the_parts_of_a_composite_are_swept_each_by_its_own_life():
    clock = ManualClock()
    store = MemoryStore(clock)
    gate = Gate(all_of(fast=GCRA("1/s", burst=1), slow=GCRA("1/day", burst=2)), store=store, name="api")
    assert gate.check({"fast": "a", "slow": "b"})
    clock.advance(60)
    assert gate.check({"fast": "c", "slow": "d"})
    assert len(store) == 3
    assert sorted(store.keys()) == ["api:fast:c", "api:slow:b", "api:slow:d"]
    assert gate.check({"fast": "a", "slow": "b"})
    assert not gate.check({"fast": "e", "slow": "b"})


@pytest.mark.parametrize("burst", [1, 2])
@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_queue_is_kept_as_long_as_it_differs_from_a_cold_one(calls, burst):
    """Whether its last call left at once or had to wait; other keys' calls sweep as hard as they can."""
    store = MemoryStore(clock := ManualClock(1_000))
    shaper = Shaper("1/min", burst=burst, store=store)
    for _ in range(calls):
        shaper.reserve("kept")
    clock.advance(60 * calls - 1)
    for number in range(100):
        shaper.reserve(f"other {number}")
    slots = [shaper.reserve("kept").delay for _ in range(burst)]
    assert slots == [0.0] * (burst - 1) + [1.0]
    clock.advance(60 * (calls + burst) + 2)
    for number in range(100):
        shaper.reserve(f"later {number}")
    assert len(store) == 100


@settings(max_examples=30)
@given(
    lives=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    gaps=st.lists(st.sampled_from([0, 1, 10, 100, 6_000]), min_size=1, max_size=20),
    names=st.integers(1, 3),
)
def test_an_idle_key_is_gone_after_a_third_as_many_new_keys_as_stood_in_line(lives, gaps, names):
    """So at least half of all keys that are kept were live or lingered at one time."""
    clock = ManualClock()
    store = MemoryStore(clock)
    gates = [
        [Gate(GCRA(f"1 per {life} s", burst=1), store=store, name=f"{name} {life}") for life in lives]
        for name in range(names)
    ]
    # A page takes on keys while it waits: they are swept before keys of other pages that came earlier.
    taken_on = PAGE * names * len(set(lives))
    waiting, most, live = [], 0, []
    for number in range(600):
        clock.advance(gaps[number // 8 % len(gaps)] / 100)
        which = number % len(lives)
        # Idle from before this call on, which sweeps as the first.
        for end in [end for end in live if end <= clock.now()]:
            live.remove(end)
            waiting.append(number + -(-(len(store) + 1 + taken_on) // 3))
        assert gates[number % names][which].check(f"key-{number}")
        live.append(clock.now() + lives[which] + 1)
        most = max(most, len(live))
        waiting = [gone_by for gone_by in waiting if gone_by > number]
        assert len(store) <= len(live) + len(waiting)
        assert len(store) <= 2 * most


def test_two_limits_that_share_a_key_queue_it_once_each():
    clock = ManualClock()
    store = MemoryStore(clock)
    gates = [Gate(GCRA(rate, burst=1_000), store=store, name="api") for rate in ("1/s", "2/s")]
    for number in range(100):
        assert gates[number % 2].check("key")
    assert gates[0].peek("key").current == 75
    assert len(store) == in_line(store) == 2
    assert list(store.keys()) == ["api:key"]


def test_a_key_with_a_found_rate_is_forgotten_an_hour_after_its_last_call():
    clock = ManualClock(1_000.0)
    store = MemoryStore(clock)
    shaper = Shaper(adaptive=Adaptive(min="1/s", max="10/s"), store=store, name="found")
    shaper.reserve("idle")
    shaper.adaptive.throttled(key="idle", age=0)
    for seconds, kept in ((3_500, 2), (200, 1)):
        clock.advance(seconds)
        for _ in range(10):
            shaper.reserve("busy")
            clock.advance(1)
        assert len(store) == kept
