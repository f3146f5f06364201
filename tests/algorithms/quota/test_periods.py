"""Periods: against a reference that searches local time minute by minute, and by laws for every zone."""

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import Quota
from shapekit.algorithms.periods import MAX_OFFSET_MINUTES, WEEKDAYS, Periods

from ..limits import beginning

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour of daylight saving
    "America/Sao_Paulo",  # until 2018 midnight was skipped in spring
    "Asia/Beirut",  # likewise
    "America/St_Johns",  # until 2011 clocks changed at 00:01, so midnight came twice in autumn
    "America/Havana",  # midnight comes twice, and the day does not
    "Pacific/Apia",  # 2011-12-30 never was
    "Asia/Kathmandu",
]
INSTANTS = st.integers(0, 4_000_000_000).map(lambda seconds: seconds * SECOND_US)


def periods(per="day", *, offset=0, tz=None, week_start="monday", anchor_day=1):
    days = {"week_start": "monday", "anchor_day": 1} | beginning(per, week_start, anchor_day)
    return Periods(per, offset_minutes=offset, tz=tz, **days)


def instant_us(text, tz="UTC"):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()) * SECOND_US


def change_instants(tz):
    """Instants within two hours of where the zone's offset changes, and with it perhaps its midnight."""
    zone = ZoneInfo(tz)
    hours = [datetime(1985, 1, 1, tzinfo=UTC) + timedelta(hours=12 * n) for n in range(2 * 366 * 30)]
    offsets = [hour.astimezone(zone).utcoffset() for hour in hours]
    changes = [
        hour for hour, before, after in zip(hours, offsets, offsets[1:], strict=False) if before != after
    ]
    return [int((hour + timedelta(hours=12)).timestamp()) * SECOND_US for hour in changes]


CHANGES = {tz: change_instants(tz) for tz in ZONES}
NEAR_CHANGES = st.sampled_from(ZONES).flatmap(
    lambda tz: st.tuples(
        st.just(tz),
        st.one_of(
            INSTANTS,
            st.builds(
                lambda change, minutes: change + minutes * 60 * SECOND_US,
                st.sampled_from(CHANGES[tz] or [0]),
                st.integers(-26 * 60, 26 * 60),
            ),
        ),
    )
)


def first_instant_of(day, zone):
    """The first minute whose local date is `day` or later: the definition, searched for."""
    at = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=15)
    while at.astimezone(zone).date() < day:
        at += timedelta(minutes=1)
    return int(at.timestamp()) * SECOND_US


@given(NEAR_CHANGES)
@example(("America/St_Johns", instant_us("2010-11-07T03:00:00")))
@example(("America/Sao_Paulo", instant_us("2018-11-04T03:00:00")))
@example(("Pacific/Apia", instant_us("2011-12-30T10:00:00")))
def test_a_day_begins_the_first_time_the_zone_shows_it(case):
    tz, at_us = case
    zone = ZoneInfo(tz)
    start, end = periods(tz=tz).bounds(at_us)
    shown = datetime.fromtimestamp(at_us // SECOND_US, zone).date()
    begun = [
        first
        for day in (shown - timedelta(days=1), shown, shown + timedelta(days=1), shown + timedelta(days=2))
        if day != date(2011, 12, 30) or tz != "Pacific/Apia"
        for first in (first_instant_of(day, zone),)
    ]
    assert start == max(first for first in begun if first <= at_us)
    assert end == min(first for first in begun if first > at_us)


def check_laws(make, at_us):
    start, end = make().bounds(at_us)
    assert start <= at_us < end
    assert make().bounds(start) == (start, end)
    assert make().bounds(end - 1) == (start, end)
    assert make().bounds(end)[0] == end
    assert make().bounds(start - 1)[1] == start
    return start, end


@given(NEAR_CHANGES, st.sampled_from(["day", "week", "month"]), st.sampled_from(WEEKDAYS), st.integers(1, 31))
@example(("America/St_Johns", instant_us("2010-11-07T03:00:00")), "day", "monday", 1)
@example(("America/St_Johns", instant_us("1988-10-30T03:00:00")), "week", "sunday", 1)
@example(("America/St_Johns", instant_us("2009-11-01T03:00:00")), "month", "monday", 1)
def test_periods_of_a_zone_hold_their_instants_and_abut(case, per, week_start, anchor_day):
    tz, at_us = case
    start, end = check_laws(lambda: periods(per, tz=tz, week_start=week_start, anchor_day=anchor_day), at_us)
    longest = {"day": 1, "week": 7, "month": 31}[per]
    assert end - start <= longest * DAY_US + 2 * HOUR_US


@given(NEAR_CHANGES, st.sampled_from(["day", "week", "month"]))
def test_the_twin_of_a_zone_lists_the_periods_before_and_after_an_instant(case, per):
    tz, at_us = case
    start, end = periods(per, tz=tz).bounds(at_us)
    ((*before, begins, ends, _, _, _, _),) = periods(per, tz=tz).twin([at_us])[2]
    assert (begins, ends) == (start, end)
    earlier = [periods(per, tz=tz).bounds(begin) for begin in before]
    assert [begin for begin, _ in earlier] == before
    assert [end for _, end in earlier] == [*before[1:], start]
    assert len(before) == 3


@given(
    INSTANTS,
    st.sampled_from(["day", "week", "month", "fixed:30d", "fixed:7s"]),
    st.integers(-MAX_OFFSET_MINUTES, MAX_OFFSET_MINUTES),
    st.sampled_from(WEEKDAYS),
    st.integers(1, 31),
)
def test_periods_of_an_offset_hold_their_instants_and_abut(at_us, per, offset, week_start, anchor_day):
    check_laws(lambda: periods(per, offset=offset, week_start=week_start, anchor_day=anchor_day), at_us)


@given(INSTANTS, st.integers(-MAX_OFFSET_MINUTES, MAX_OFFSET_MINUTES), st.sampled_from(WEEKDAYS))
def test_days_and_weeks_of_an_offset_begin_at_its_midnight(at_us, offset, week_start):
    local = timezone(timedelta(minutes=offset))
    start, end = periods("week", offset=offset, week_start=week_start).bounds(at_us)
    first = datetime.fromtimestamp(start // SECOND_US, local)
    assert (first.hour, first.minute, first.second) == (0, 0, 0)
    assert first.weekday() == WEEKDAYS.index(week_start)
    assert end - start == 7 * DAY_US
    day = periods("day", offset=offset).bounds(at_us)
    assert datetime.fromtimestamp(day[0] // SECOND_US, local).hour == 0
    assert day[1] - day[0] == DAY_US


@pytest.mark.parametrize(
    ("tz", "day", "begins", "hours"),
    [
        ("Europe/Berlin", "2024-03-31", "2024-03-30T23:00", 23),
        ("Europe/Berlin", "2024-10-27", "2024-10-26T22:00", 25),
        ("America/New_York", "2024-03-10", "2024-03-10T05:00", 23),
        ("America/New_York", "2024-11-03", "2024-11-03T04:00", 25),
        ("Australia/Lord_Howe", "2024-04-07", "2024-04-06T13:00", 24.5),
        ("Australia/Lord_Howe", "2024-10-06", "2024-10-05T13:30", 23.5),
        ("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00", 23),
        ("Asia/Beirut", "2024-03-31", "2024-03-30T22:00", 23),
        ("America/St_Johns", "2010-11-07", "2010-11-07T02:30", 25),
        ("America/Havana", "2024-11-03", "2024-11-03T04:00", 25),
        ("Pacific/Apia", "2011-12-31", "2011-12-30T10:00", 24),
    ],
)
def test_days_on_which_clocks_change(tz, day, begins, hours):
    noon = instant_us(f"{day}T12:00", tz)
    start, end = periods(tz=tz).bounds(noon)
    assert start == instant_us(begins)
    assert end - start == hours * HOUR_US


def test_the_ends_of_the_offsets():
    noon = instant_us("2024-02-29T12:00")
    assert periods(offset=840).bounds(noon)[0] == instant_us("2024-02-29T10:00")
    assert periods(offset=-840).bounds(noon)[0] == instant_us("2024-02-28T14:00")


def test_the_month_of_a_leap_day():
    noon = instant_us("2024-02-29T12:00")
    assert periods("month").bounds(noon) == (instant_us("2024-02-01T00:00"), instant_us("2024-03-01T00:00"))
    late = periods("month", anchor_day=30).bounds(noon)
    assert late == (instant_us("2024-02-29T00:00"), instant_us("2024-03-30T00:00"))


def test_months_of_a_zone_with_daylight_saving():
    march = periods("month", tz="Europe/Berlin").bounds(instant_us("2024-03-15T12:00"))
    assert march == (instant_us("2024-02-29T23:00"), instant_us("2024-03-31T22:00"))


@given(st.lists(st.integers(0, 26 * 60), min_size=2, max_size=8), st.sampled_from(ZONES))
@example([0, 30], "America/St_Johns")
def test_an_answer_does_not_depend_on_earlier_questions(minutes, tz):
    change = instant_us("2010-11-07T02:30")
    used = periods(tz=tz)
    for minute in minutes:
        at_us = change + minute * 60 * SECOND_US
        assert used.bounds(at_us) == periods(tz=tz).bounds(at_us)


DAY = Quota("3/day").counter


def counted(*charges, counter=DAY, skew=0):
    state = None
    for at in charges:
        state = counter.charge(state, at, at, 1, skew)[0]
    return state


def test_a_day_is_forgotten_when_two_have_passed_since_it_was_opened():
    assert counted(0, DAY_US, 2 * DAY_US - 1) == (0, 1, 0, DAY_US, 2, DAY_US)
    days = (DAY_US, 1, DAY_US, 2 * DAY_US, 1, 2 * DAY_US)
    assert counted(0, DAY_US, 2 * DAY_US) == days
    book, *_ = DAY.booked(((0, 1, 0, *days), 0, 3, ()), 2 * DAY_US, 1)
    assert book[0] == (*days[:4], 2, 2 * DAY_US)


def test_without_a_zone_a_day_begins_at_midnight():
    assert DAY.forecast(counted(0, 1, 2), DAY_US, 1).admits_at_us == DAY_US
    assert DAY.forecast(counted(0, 1, 2), DAY_US - 1, 1).admits_at_us == DAY_US


@pytest.mark.parametrize("offset", [-90, 0, 90])
def test_other_periods_open_as_much_before_their_beginning_as_the_old_ones(offset):
    """By the clock of the zone an hour and a half from here, each opens that much earlier or later."""
    day, week = (Quota(f"9/{per}", offset_minutes=offset).counter for per in ("day", "week"))
    skew = offset * 60 * SECOND_US
    now = 10 * DAY_US + DAY_US // 2
    state = counted(now, counter=day, skew=skew)
    (start, _), used = week.periods.bounds(now + skew), 1
    assert week.adopt(state, day, now, skew) == (start, used, start - skew)


@pytest.mark.parametrize(
    ("start", "least_h", "ends"),
    [
        ("2026-03-26", 23, "2026-04-05"),
        ("2026-03-26", 24, "2026-03-28"),  # the clocks go forward on the 29th, which has 23 hours
        ("2026-10-22", 24, "2026-11-01"),
        ("2026-10-22", 25, "2026-10-22"),  # the one with 25 hours is not the next
        ("2026-10-24", 25, "2026-10-25"),
    ],
)
def test_days_that_follow_end_before_the_first_that_is_too_short(start, least_h, ends):
    days = periods(tz="Europe/Berlin")
    following = days.following(instant_us(start, "Europe/Berlin"), 10, least_h * HOUR_US, 1)
    assert following.start == instant_us(ends, "Europe/Berlin")
    elapsed = datetime.fromisoformat(ends) - datetime.fromisoformat(start)
    assert following.number == elapsed.days


def test_days_that_follow_are_multiples_of_the_unit():
    days = periods(tz="Europe/Berlin")
    start = instant_us("2026-03-26", "Europe/Berlin")
    assert days.following(start, 10, 1, 24 * HOUR_US).start == instant_us("2026-03-29", "Europe/Berlin")
