"""Day math of the proleptic Gregorian calendar, in integers that a double could hold.

Days are counted from 1970-01-01. The conversions go by 400-year eras and by years that begin in
March, so that the leap day is the last day of its year.

    >>> days_from_civil(2024, 2, 29)
    19782
    >>> civil_from_days(19782)
    (2024, 2, 29)
"""

from __future__ import annotations

_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ERA_DAYS = 146_097
_EPOCH_SHIFT = 719_468
"""Days from 0000-03-01 to 1970-01-01."""


def is_leap(year: int) -> bool:
    """Whether the year has a 29 February."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year: int, month: int) -> int:
    """28 to 31."""
    return 29 if month == 2 and is_leap(year) else _MONTH_DAYS[month - 1]


def days_from_civil(year: int, month: int, day: int) -> int:
    """The number of the day, 1970-01-01 being 0."""
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    year_of_era = shifted - era * 400
    month_from_march = (month + 9) % 12
    day_of_year = (153 * month_from_march + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * _ERA_DAYS + day_of_era - _EPOCH_SHIFT


def civil_from_days(days: int) -> tuple[int, int, int]:
    """`(year, month, day)` of the day with this number."""
    shifted = days + _EPOCH_SHIFT
    era = shifted // _ERA_DAYS
    day_of_era = shifted - era * _ERA_DAYS
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = (month_from_march + 2) % 12 + 1
    return (year_of_era + era * 400 + (month <= 2), month, day)


def weekday(days: int) -> int:
    """0 for Monday to 6 for Sunday."""
    return (days + 3) % 7


def month_span(days: int, anchor_day: int) -> tuple[int, int]:
    """The first day of the month-long period that holds `days`, and of the next one.

    Periods begin on `anchor_day`, or on the last day of a month that is too short for it.
    """
    year, month, _ = civil_from_days(days)
    start = _anchor(year, month, anchor_day)
    if start > days:
        return _anchor(*_month_after(year, month, -1), anchor_day), start
    return start, _anchor(*_month_after(year, month, 1), anchor_day)


def _anchor(year: int, month: int, anchor_day: int) -> int:
    return days_from_civil(year, month, min(anchor_day, days_in_month(year, month)))


def _month_after(year: int, month: int, months: int) -> tuple[int, int]:
    index = year * 12 + month - 1 + months
    return index // 12, index % 12 + 1
