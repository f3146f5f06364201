"""Quotas and civil time: where periods begin, and what a date that is set means."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import Gate, ManualClock, Quota
from shapekit.algorithms.quota import _MAX_PERIODS

from ..limits import DAY_US, SECOND_US, WEEKDAYS, ZONES, beginning

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_US = 60 * SECOND_US
# Zones whose clocks have been changed at, or over, midnight; in one a whole day is missing.
AT_MIDNIGHT = ("America/St_Johns", "America/Havana", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Apia")


def moment_us(*civil, tz="UTC"):
    return (datetime(*civil, tzinfo=ZoneInfo(tz)) - EPOCH) // timedelta(microseconds=1)


def local(at_us, tz):
    return (EPOCH + timedelta(microseconds=at_us)).astimezone(ZoneInfo(tz))


@lru_cache
def first_shows(day, tz):
    """The first instant, to the minute, at which the clocks of a zone show a day or a later one."""
    at = (datetime(day.year, day.month, day.day, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    return next(
        minute
        for minute in range(at - 27 * 60 * MINUTE_US, at + 27 * 60 * MINUTE_US, MINUTE_US)
        if local(minute, tz).date() >= day
    )


instants = st.integers(moment_us(1990, 1, 1), moment_us(2037, 1, 1))
around_changes = st.builds(
    lambda change, off_us: change + off_us,
    st.sampled_from(
        [
            moment_us(2010, 11, 7, 2, 31),  # St John's, 00:01 back to 23:01 of the day before
            moment_us(2010, 3, 14, 3, 31),  # St John's, 00:01 forward
            moment_us(2023, 11, 5, 5),  # Havana, 01:00 back to 00:00
            moment_us(2018, 11, 4, 3),  # Sao Paulo, 00:00 forward to 01:00
            moment_us(2018, 2, 18, 2),  # Sao Paulo, 00:00 back to 23:00 of the day before
            moment_us(2024, 10, 26, 21),  # Beirut, 00:00 back to 23:00 of the day before
            moment_us(2011, 12, 30, 10),  # Apia, from the 29th to the 31st
            moment_us(2024, 3, 31, 1),
            moment_us(2024, 10, 27, 1),
        ]
    ),
    st.integers(-2 * DAY_US, 2 * DAY_US),
)


@given(st.sampled_from(ZONES + AT_MIDNIGHT), st.one_of(instants, around_changes))
@example("America/St_Johns", moment_us(2010, 11, 7, 2, 32))
def test_a_day_lasts_until_the_clocks_first_show_the_next(tz, at):
    """The first midnight where there are two, the change where there is none, and never a past one."""
    ends = Quota(1, "day", tz=tz).check(None, at, 1).decision.reset_at_us
    day = local(at, tz).date()
    shown = [first_shows(day + timedelta(days=ahead), tz) for ahead in range(4)]
    assert ends == next(midnight for midnight in shown if midnight > at)


@given(st.sampled_from(ZONES + AT_MIDNIGHT), st.one_of(instants, around_changes), st.integers(0, DAY_US))
@example("America/St_Johns", moment_us(2010, 11, 7, 2, 30), 2 * MINUTE_US)
def test_earlier_questions_to_a_quota_do_not_matter(tz, at, later_us):
    used, fresh = Quota(1, "day", tz=tz), Quota(1, "day", tz=tz)
    used.peek(None, at)
    assert used.check(None, at + later_us, 1) == fresh.check(None, at + later_us, 1)


@given(
    st.sampled_from(["day", "week", "month"]),
    st.sampled_from([*ZONES, None]),
    instants,
    st.sampled_from(WEEKDAYS),
    st.integers(1, 31),
)
def test_periods_follow_each_other_without_gap_or_overlap(per, tz, at, week_start, anchor):
    quota = Quota(1, per, tz=tz, **beginning(per, week_start, anchor))
    first = quota.check(None, at, 1)
    ends = first.decision.reset_at_us
    assert at < ends <= at + 32 * DAY_US
    assert not quota.check(first.state, ends - 1, 1).decision.allowed
    second = quota.check(first.state, ends, 1)
    assert second.decision.allowed
    begins = local(ends, tz or "UTC")
    assert begins.hour * 60 + begins.minute < 120
    if per == "week":
        assert WEEKDAYS[begins.weekday()] == week_start
    if per == "month":
        assert begins.day == anchor or (begins + timedelta(days=1)).month != begins.month


@pytest.mark.parametrize(
    ("tz", "day", "hours"),
    [
        ("Europe/Berlin", (2024, 3, 31), 23),
        ("Europe/Berlin", (2024, 10, 27), 25),
        ("America/New_York", (2024, 3, 10), 23),
        ("America/New_York", (2024, 11, 3), 25),
        ("Australia/Lord_Howe", (2024, 4, 7), 24.5),
        ("Australia/Lord_Howe", (2024, 10, 6), 23.5),
    ],
)
def test_a_day_on_which_clocks_change_is_shorter_or_longer(tz, day, hours):
    begins = moment_us(*day, tz=tz)
    quota = Quota(1, "day", tz=tz)
    assert quota.check(None, begins, 1).decision.reset_at_us - begins == hours * 3_600 * SECOND_US
    assert quota.check(None, begins - 1, 1).decision.reset_at_us == begins


set_dates = st.lists(
    st.tuples(st.integers(0, DAY_US), st.sampled_from([-2, -1, 0, 0, 0, 1, 2]), st.integers(1, 8)),
    max_size=12,
)


@given(st.integers(1, 6), set_dates, st.booleans())
@example(4, [(0, 2, 4), (1, 0, 4), (1, 1, 4), (1, 2, 4), (1, 0, 4)], False)
@example(6, [(0, 0, 6), (0, 1, 1), (0, 2, 1), (0, 0, 6), (0, 1, 6), (0, 2, 6), (0, 0, 6)], False)
def test_a_date_that_is_set_to_and_fro_grants_each_day_its_limit_once(limit, dates, spread):
    """The timeline of rates runs on; only the wall clock is set, by whole days.

    A day that was left is remembered at least for a day: when the date comes back to it later, it is new,
    or a date set back by years would lock all calls out for years.
    """
    clock = ManualClock(30 * DAY_US / SECOND_US)
    with closing(Gate(Quota(limit, "day", spread=spread), clock=clock)) as gate:
        admitted, days, ahead, begun_us = 0, set(), 0, clock.now_us()
        for later_us, day, calls in dates:
            clock.advance(later_us / SECOND_US)
            clock.step_wall((day - ahead) * DAY_US / SECOND_US)
            ahead = day
            days.add(clock.wall_us() // DAY_US)
            admitted += sum(gate.check().allowed for _ in range(calls))
    assert admitted <= limit * (len(days) + (clock.now_us() - begun_us) // DAY_US)


@given(st.integers(1, 6), set_dates, st.integers(1, 6), st.booleans())
@example(6, [(0, 2, 6), (5, 1, 1)], 1, False)
def test_after_a_date_was_set_retry_after_still_holds(limit, dates, cost, spread):
    clock = ManualClock(30 * DAY_US / SECOND_US)
    with closing(Gate(Quota(limit, "day", spread=spread), clock=clock)) as gate:
        ahead = 0
        for later_us, day, calls in dates:
            clock.advance(later_us / SECOND_US)
            clock.step_wall((day - ahead) * DAY_US / SECOND_US)
            ahead = day
            for _ in range(calls):
                gate.check()
        denied = gate.check(cost=min(cost, limit))
        if not denied.allowed:
            clock.advance((denied.retry_after_us - 1) / SECOND_US)
            assert not gate.check(cost=min(cost, limit))
            clock.advance(1 / SECOND_US)
            assert gate.check(cost=min(cost, limit))


@given(st.integers(1, 6), set_dates, st.booleans())
@example(6, [(0, 2, 6), (0, -2, 0)], False)
def test_a_date_that_is_set_locks_no_call_out(limit, dates, spread):
    """Whatever the date was before: after two days on the timeline of rates, a call is admitted."""
    clock = ManualClock(30 * DAY_US / SECOND_US)
    with closing(Gate(Quota(limit, "day", spread=spread), clock=clock)) as gate:
        ahead = 0
        for later_us, day, calls in dates:
            clock.advance(later_us / SECOND_US)
            clock.step_wall((day - ahead) * DAY_US / SECOND_US)
            ahead = day
            for _ in range(calls):
                gate.check()
        clock.advance(2 * DAY_US / SECOND_US)
        assert gate.check()


def test_a_period_that_is_forgotten_goes_also_where_the_date_has_gone_back():
    """The call comes in the newest period that is known; the one before it has had its time twice."""
    counter = Quota("5/day").counter
    state = counter.check(None, 0, 1).state
    state = counter.check(state, DAY_US * 19 // 10, 1).state
    outcome = counter.check(state, DAY_US * 5 // 2, 1, -DAY_US)
    assert outcome.state == (DAY_US, 2, DAY_US)
    assert outcome.ttl_us == DAY_US // 2


def test_a_state_lives_as_long_as_any_of_its_periods():
    """The date went forward by four weeks: of two months opened soon after each other, the longer."""
    counter = Quota("5/month").counter
    state = counter.check(None, 400 * DAY_US, 1, -390 * DAY_US).state
    outcome = counter.check(state, 401 * DAY_US, 1, -363 * DAY_US)
    assert outcome.state == (0, 1, 390 * DAY_US, 31 * DAY_US, 1, 394 * DAY_US)
    assert outcome.ttl_us == (390 + 2 * 31 - 401) * DAY_US


def test_as_many_periods_as_are_ever_kept_are_believed_and_one_more_is_not():
    counter = Quota("5/day").counter
    days = range(_MAX_PERIODS + 1)
    book = tuple(number for day in days for number in (day * DAY_US, 1, day * DAY_US))
    counter.inspect(book[3:])
    with pytest.raises(ValueError, match="malformed periods"):
        counter.inspect(book)
    with pytest.raises(ValueError, match="malformed periods"):
        counter.inspect((*book[3:6], *book[:3]))


def test_no_more_periods_are_kept_than_are_believed():
    counter, state = Quota("2/day").counter, None
    for day in range(_MAX_PERIODS + 3):
        state, _, _, _ = counter.charge(state, 0, day * DAY_US, 1)
        counter.inspect(state)
    assert len(state) == 3 * _MAX_PERIODS


def test_waiting_calls_that_are_let_go_count_today():
    quota = Quota("10/day")
    now = 5 * DAY_US
    today = quota.charge(None, now, now, 3)[0]
    assert quota.brought(today, now) == today
    waiting = quota.charge(today, now, now + DAY_US, 2)[0]
    let_go = quota.brought(waiting, now)
    assert quota.check(let_go, now, 1).decision.current == 6
    assert quota.check(let_go, now + DAY_US, 10).decision.allowed
    assert not quota.check(waiting, now + DAY_US, 10).decision.allowed


def test_a_forecast_goes_by_whole_periods_unless_the_date_was_set_back_by_more_than_one():
    counter = Quota("5/day").counter
    state = counter.check(None, DAY_US, 1).state
    assert counter.prospect(state, 1) is not None
    assert counter.prospect(state, 1, -DAY_US) is not None
    assert counter.prospect(state, 1, -DAY_US - 1) is None
