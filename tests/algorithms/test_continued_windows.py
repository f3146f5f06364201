"""A rate that grows over what an exact log holds goes on as a ring, and back: nothing is forgotten."""

import pytest

from shapekit import (
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Quota,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
)
from shapekit.rate import SECOND_US


@pytest.mark.parametrize(("before", "after"), [(1_000, 1_001), (1_001, 1_000)])
def test_a_rolling_quota_continues_in_its_other_form(before, after):
    clock = ManualClock(1_000.0)
    store = MemoryStore(clock)
    old = Gate(Quota(before, "rolling:1h"), store=store, name="calls")
    assert all(old.check().allowed for _ in range(900))
    new = Gate(Quota(after, "rolling:1h"), store=store, name="calls")
    clock.advance(60)
    assert new.peek().current == 900
    admitted = sum(new.check().allowed for _ in range(200))
    assert admitted == after - 900


@pytest.mark.parametrize(("before", "after"), [("1000/h", "1001/h"), ("1001/h", "1000/h")])
def test_a_further_rate_of_a_shaper_continues_in_its_other_form(before, after):
    clock = ManualClock(1_000.0)
    store = MemoryStore(clock)
    old = Shaper(f"1000/s; {before}", burst=1_000, store=store, name="calls")
    assert all(old.reserve(max_wait=0) for _ in range(900))
    clock.advance(60)
    new = Shaper(f"1000/s; {after}", burst=1_000, store=store, name="calls")
    admitted = sum(bool(new.reserve(max_wait=0)) for _ in range(200))
    assert admitted == int(after[:4]) - 900


def test_a_remembered_day_stays_in_the_books_when_the_date_is_set_back():
    day_us, hour_us = 86_400 * 10**6, 3_600 * 10**6
    quota = Quota("1/day")
    today = 20_000 * day_us + 10 * hour_us
    state = quota.check(None, today, 1).state
    # Two days later the date is set back by two: the period of then is not remembered any more.
    again = quota.check(state, today + 40 * hour_us, 1, -48 * hour_us)
    assert again.decision.allowed
    assert again.persist
    assert not quota.check(again.state, today + 40 * hour_us, 1, -48 * hour_us).decision.allowed


@pytest.mark.parametrize(
    "other", [SlidingWindowLog("5/8s"), SlidingWindow("5/8s", buckets=8, conservative=True)]
)
def test_the_count_of_a_window_is_taken_over_at_the_end_of_its_tick(other):
    """The latest instant at which it may have been admitted, and not the one of the change."""
    before = SlidingWindow("5/10s", buckets=10)
    start = 1_000 * SECOND_US
    state = before.check(None, start, 5).state
    for now in (start + SECOND_US - 1, start + SECOND_US, start + 5 * SECOND_US):
        taken = other.adopt(state, before, now)
        ends = other.earliest(taken, now, 1)
        assert start + 9 * SECOND_US - 1 <= ends <= start + 10 * SECOND_US


@pytest.mark.parametrize(("changed_s", "last_s"), [(2, 2), (15, 10), (-4, 10)])
def test_the_count_of_a_fixed_window_was_admitted_by_now_or_may_come_until_its_end(changed_s, last_s):
    """In the present window, in one that is past, and in one that waiting calls have to themselves."""
    before, rolling = FixedWindow("5/10s"), SlidingWindowLog("5/8s")
    start = 1_000 * SECOND_US
    state = before.check(None, start, 5).state
    now = start + changed_s * SECOND_US
    free_at = rolling.earliest(rolling.adopt(state, before, now), now, 1)
    assert free_at in (start + (last_s + 8) * SECOND_US, start + (last_s + 8) * SECOND_US - 1)
