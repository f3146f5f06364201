"""What a sliding window remembers of each tick, beside a mapping that remembers everything."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import SlidingWindow
from shapekit.algorithms import sliding_window

WIDTH_US = 1_000
START = 5_000_000
"""The beginning of a tick."""

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["charge", "charge", "charge", "refund", "refund many", "refund last", "debit", "adopt"]
        ),
        st.integers(0, 900),  # how much later it is
        st.integers(-4_000, 5_000),  # how far ahead of the newest charge the next one is, if it is
        st.integers(1, 9),
        st.randoms(use_true_random=False),
    ),
    min_size=8,
    max_size=30,
)


def units_by_tick(limit, ring):
    """The units of each tick of a state."""
    first = limit.buckets + 2
    ticks = Counter({ring[0] - age: units for age, units in enumerate(ring[1:first])})
    ticks.update(dict(zip(ring[first::2], ring[first + 1 :: 2], strict=True)))
    return ticks


def still(ticks, oldest):
    """The ticks that count: those of the last window, and those to come."""
    return {tick: units for tick, units in ticks.items() if units and tick >= oldest}


@settings(max_examples=500)
@given(st.integers(1, 4), st.booleans(), steps)
def test_no_tick_that_still_counts_is_forgotten_or_counted_twice(buckets, conservative, steps):
    limit = SlidingWindow(10, f"{buckets}ms", buckets=buckets, conservative=conservative)
    state, now, newest = None, START, START
    ticks, charges = Counter(), []
    for what, later_us, ahead_us, units, dice in steps:
        now += later_us
        newest = max(newest, now)
        if what == "charge":
            newest += max(0, ahead_us)
            state = limit.charge(state, now, newest, units)[0]
            ticks[newest // WIDTH_US] += units
            charges.append((newest, units))
        elif what == "debit":
            # A debit for a call that has left counts in the newest tick.
            tick = max(now // WIDTH_US, state[0] if state else 0)
            state = limit.debit(state, now, units).state
            ticks[tick] += units
        elif what == "adopt":
            state = limit.adopt(state, limit, now) if state else None
        elif charges:
            last = len(charges) - 1
            gone = [charges.pop(last if what == "refund last" else dice.randint(0, last))]
            if what == "refund many":
                gone += [charges.pop(dice.randrange(len(charges))) for _ in range(min(len(charges), 3))]
            if any(at // WIDTH_US <= now // WIDTH_US - buckets - 1 for at, _ in gone):
                continue  # time has given these back
            state = limit.refund_many(state, now, sorted(gone))
            for at, back in gone:
                ticks[at // WIDTH_US] -= back
            # No later call waits for a tick in which none is left.
            assert not state or state[1] or state[0] <= now // WIDTH_US
            newest = max([now, *(at for at, _ in charges), (state or (0,))[0] * WIDTH_US])
        if state:
            limit.inspect(state)
        oldest = now // WIDTH_US - buckets
        remembered = units_by_tick(limit, state) if state else Counter()
        assert still(remembered, oldest) == still(ticks, oldest)


@pytest.mark.parametrize(("buckets", "ticks"), [(1, range(10, 80, 10)), (4, [1, 2, 3, 4, 6, 7, 20])])
def test_the_newest_of_too_many_older_ticks_become_one(monkeypatch, buckets, ticks):
    monkeypatch.setattr(sliding_window, "_MAX_AHEAD", 3)
    limit = SlidingWindow(100, buckets * WIDTH_US / 1_000_000, buckets=buckets)
    state = limit._placed((WIDTH_US * tick, tick) for tick in ticks)
    limit.inspect(state)
    oldest, (*merged, before), newest = ticks[:2], ticks[2:-1], ticks[-1]
    kept = [(at // WIDTH_US, units) for at, units in limit.entries(state, 0)]
    assert kept == [*((tick, tick) for tick in oldest), (before, sum(merged, before)), (newest, newest)]
