"""Day math against `datetime`, over 1,400 years, day by day where it is cheap and at random elsewhere."""

from calendar import isleap, monthrange
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.algorithms.periods import (
    civil_from_days,
    days_from_civil,
    days_in_month,
    is_leap,
    month_span,
    weekday,
)

EPOCH = date(1970, 1, 1)
DATES = st.dates(date(1, 3, 1), date(9998, 12, 31))


def number(day):
    return (day - EPOCH).days


def test_every_day_of_six_centuries_goes_there_and_back():
    # 1599 to 2201 holds the leap years 1600 and 2000 and the common 1700, 1800, 1900, 2100, 2200.
    first, last = date(1599, 1, 1), date(2201, 12, 31)
    assert last.year - first.year >= 550
    for days in range(number(first), number(last) + 1):
        day = date.fromordinal(EPOCH.toordinal() + days)
        assert civil_from_days(days) == (day.year, day.month, day.day)
        assert days_from_civil(day.year, day.month, day.day) == days
        assert weekday(days) == day.weekday()


@given(DATES)
def test_any_day_goes_there_and_back(day):
    assert days_from_civil(day.year, day.month, day.day) == number(day)
    assert civil_from_days(number(day)) == (day.year, day.month, day.day)


@given(st.integers(-4_000_000, 40_000_000))
def test_the_two_conversions_are_inverse_beyond_datetime_too(days):
    year, month, day = civil_from_days(days)
    assert 1 <= month <= 12
    assert 1 <= day <= days_in_month(year, month)
    assert days_from_civil(year, month, day) == days
    assert weekday(days + 1) == (weekday(days) + 1) % 7


@pytest.mark.parametrize("year", range(1599, 2401))
def test_leap_years_and_month_ends(year):
    assert is_leap(year) == isleap(year)
    for month in range(1, 13):
        length = monthrange(year, month)[1]
        assert days_in_month(year, month) == length
        first = days_from_civil(year, month, 1)
        assert civil_from_days(first + length - 1) == (year, month, length)
        assert civil_from_days(first + length)[2] == 1


def test_the_29_of_february():
    assert civil_from_days(days_from_civil(2024, 2, 28) + 1) == (2024, 2, 29)
    assert civil_from_days(days_from_civil(2023, 2, 28) + 1) == (2023, 3, 1)
    assert civil_from_days(days_from_civil(1900, 2, 28) + 1) == (1900, 3, 1)
    assert civil_from_days(days_from_civil(2000, 2, 28) + 1) == (2000, 2, 29)


@pytest.mark.parametrize(
    ("day", "anchor", "start", "end"),
    [
        (date(2023, 2, 15), 31, date(2023, 1, 31), date(2023, 2, 28)),
        (date(2023, 2, 28), 31, date(2023, 2, 28), date(2023, 3, 31)),
        (date(2024, 2, 28), 30, date(2024, 1, 30), date(2024, 2, 29)),
        (date(2024, 2, 29), 30, date(2024, 2, 29), date(2024, 3, 30)),
        (date(2024, 2, 29), 29, date(2024, 2, 29), date(2024, 3, 29)),
        (date(2023, 2, 28), 29, date(2023, 2, 28), date(2023, 3, 29)),
        (date(2023, 4, 30), 31, date(2023, 4, 30), date(2023, 5, 31)),
        (date(2023, 12, 31), 31, date(2023, 12, 31), date(2024, 1, 31)),
        (date(2024, 1, 1), 15, date(2023, 12, 15), date(2024, 1, 15)),
        (date(2023, 12, 31), 1, date(2023, 12, 1), date(2024, 1, 1)),
    ],
)
def test_months_that_begin_late(day, anchor, start, end):
    assert month_span(number(day), anchor) == (number(start), number(end))


def anchored(year, month, anchor):
    return date(year, month, min(anchor, monthrange(year, month)[1]))


@given(DATES.filter(lambda day: day.year > 2), st.integers(1, 31))
def test_month_spans_hold_their_day_begin_on_the_anchor_and_abut(day, anchor):
    days = number(day)
    start, end = month_span(days, anchor)
    assert start <= days < end
    assert 28 <= end - start <= 31
    first = EPOCH + timedelta(days=start)
    assert first == anchored(first.year, first.month, anchor)
    assert month_span(end, anchor)[0] == end
    assert month_span(start, anchor) == month_span(end - 1, anchor) == (start, end)
