"""Periods: divides civil time into months, weeks, days or equal spans.

The boundaries follow a fixed offset from UTC, or a time zone with its daylight saving time. A period begins
at local midnight: at the first one if the clock shows midnight twice, and at the change if it is skipped.

The date arithmetic is that of the proleptic Gregorian calendar, in integers that a double can hold. Days are
counted from 1970-01-01. The conversions use 400-year eras and years that begin in March, so that the leap day
is the last day of its year.

    >>> days_from_civil(2024, 2, 29)
    19782
    >>> civil_from_days(19782)
    (2024, 2, 29)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from shapekit.algorithms.prospects import Following, following_spans
from shapekit.errors import ConfigError
from shapekit.rate import SECOND_US, Value, duration_us, one_of, whole

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ERA_DAYS = 146_097
_EPOCH_SHIFT = 719_468
"""Days from 0000-03-01 to 1970-01-01."""


def is_leap(year: int) -> bool:
    """Whether the year has a 29 February."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year: int, month: int) -> int:
    """The length of a month: 28 to 31."""
    return 29 if month == 2 and is_leap(year) else _MONTH_DAYS[month - 1]


def days_from_civil(year: int, month: int, day: int) -> int:
    """The number of the day; 1970-01-01 is 0."""
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
    """The first day of the month-long period that contains `days`, and that of the next one.

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


WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
CADENCES = ("month", "week", "day", "fixed:DURATION", "rolling:DURATION")
MAX_OFFSET_MINUTES = 840
DAY_US = 86_400 * SECOND_US
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MOST_KNOWN = 64
_MOST_FOLLOWED = 2**14
_LISTED_BEFORE, _LISTED_AFTER = 3, 4
"""How many periods before and after an instant are sent to the twin for a time zone: a period, and a receipt,
is remembered until twice the period's length has passed; slots lie ahead, and clocks may be a day apart.
"""


class Periods(Value):
    """Divides civil time into periods; `bounds` returns the one that contains an instant."""

    fields = ("cadence", "span_us", "offset_minutes", "tz", "week_start", "anchor_day")
    __slots__ = (*fields, "_zone", "_newest", "_by_start")

    cadence: str
    span_us: int
    offset_minutes: int
    tz: str | None
    week_start: int
    anchor_day: int
    _zone: ZoneInfo | None
    _newest: list[tuple[int, int]]
    _by_start: dict[int, tuple[int, int]]

    def __init__(
        self, per: str, *, offset_minutes: int, tz: str | None, week_start: str, anchor_day: int
    ) -> None:
        cadence, span_us = cadence_of(per)
        whole("offset_minutes", offset_minutes, least=-MAX_OFFSET_MINUTES, most=MAX_OFFSET_MINUTES)
        if tz is not None and offset_minutes:
            raise ConfigError("offset_minutes", offset_minutes, "conflicts with tz", "give one of the two")
        if tz is not None and cadence in ("fixed", "rolling"):
            raise ConfigError("tz", tz, "has no effect on equal spans", "leave it out, or use per='day'")
        if offset_minutes and cadence == "rolling":
            raise ConfigError(
                "offset_minutes", offset_minutes, "has no effect on rolling spans", "leave it out"
            )
        first_weekday = WEEKDAYS.index(one_of("week_start", week_start, WEEKDAYS))
        if first_weekday and cadence != "week":
            fix = 'leave it out, or use per="week"'
            raise ConfigError("week_start", week_start, f"has no effect on the period {per!r}", fix)
        if whole("anchor_day", anchor_day, most=31) != 1 and cadence != "month":
            fix = 'leave it out, or use per="month"'
            raise ConfigError("anchor_day", anchor_day, f"has no effect on the period {per!r}", fix)
        self._fill(
            cadence=cadence,
            span_us=span_us,
            offset_minutes=offset_minutes,
            tz=tz,
            week_start=first_weekday,
            anchor_day=anchor_day,
            _zone=None if tz is None else zone_of(tz),
            # The period of the last question: nearly every call asks for it again.
            _newest=[(0, 0)],
            # A cache of periods by their start, by which states refer to them.
            _by_start={},
        )

    def bounds(self, civil_us: int) -> tuple[int, int]:
        """When the period that contains `civil_us` begins and ends."""
        known = self._newest[0]
        if known[0] <= civil_us < known[1]:
            return known
        found = self._by_start.get(civil_us)
        if found is None:
            found = self._newest[0] = self._bounds(civil_us)
            if len(self._by_start) >= _MOST_KNOWN:
                self._by_start.clear()
            self._by_start[found[0]] = found
        return found

    def following(self, start: int, most: int, least: int, unit: int) -> Following:
        """The up to `most` periods after the one that begins at `start`, before the first that is shorter
        than `least` or no multiple of `unit`.
        """
        if self.cadence == "fixed":
            return following_spans(self.span_us)(start, most, least, unit)
        if self._zone is not None:
            return self._followed(start, most, least, unit)
        shortest = {"month": 28, "week": 7, "day": 1}[self.cadence] * DAY_US
        number = most if least <= shortest and DAY_US % unit == 0 else 0
        first = self._days(self._local_day(start))[0]
        if self.cadence == "month":
            year, month, _ = civil_from_days(first)
            return Following(
                number, self._midnight_us(_anchor(*_month_after(year, month, number), self.anchor_day))
            )
        return Following(number, start + number * shortest)

    def _followed(self, start: int, most: int, least: int, unit: int) -> Following:
        """`following` in a time zone, where the length of each period has to be computed."""
        before = begins = start
        looked_at = number = 0
        day = self._days(self._day(start))[1]
        try:
            begins = self._midnight_us(day)
            while number < min(most, _MOST_FOLLOWED):
                looked_at += 1
                day = self._days(day)[1]
                ends = self._midnight_us(day)
                if ends - begins < least or (begins - start) % unit:
                    break
                number, before, begins = number + 1, begins, ends
        except (OverflowError, ValueError):
            pass  # the calendar ends here
        return Following(number, before, looked_at)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is constructed from; for a time zone, the boundaries around these instants."""
        if self._zone is None:
            shape = (self.cadence, self.span_us, self.offset_minutes, self.week_start, self.anchor_day)
            return ["periods", *shape]
        return ["periods", "listed", self._runs(instants)]

    def _runs(self, instants: Sequence[int]) -> list[list[int]]:
        """Boundaries in ascending order; a new list begins where periods are left out."""
        periods = set[tuple[int, int]]()
        for instant in instants:
            start, end = self._bounds(instant)
            periods.add((start, end))
            for _ in range(_LISTED_BEFORE):
                before = self._bounds(start - 1)
                periods.add(before)
                start = before[0]
            for _ in range(_LISTED_AFTER):
                after = self._bounds(end)
                periods.add(after)
                end = after[1]
        runs: list[list[int]] = []
        for start, end in sorted(periods):
            if not runs or runs[-1][-1] != start:
                runs.append([start])
            runs[-1].append(end)
        return runs

    def _bounds(self, civil_us: int) -> tuple[int, int]:
        if self.cadence == "fixed":
            shift = self.offset_minutes * 60 * SECOND_US
            start = civil_us - (civil_us + shift) % self.span_us
            return start, start + self.span_us
        first, after = self._days(self._day(civil_us))
        return self._midnight_us(first), self._midnight_us(after)

    def _days(self, day: int) -> tuple[int, int]:
        if self.cadence == "month":
            return month_span(day, self.anchor_day)
        if self.cadence == "week":
            first = day - (weekday(day) - self.week_start) % 7
            return first, first + 7
        return day, day + 1

    def _day(self, civil_us: int) -> int:
        day = self._local_day(civil_us)
        # If a zone repeats the end of a day after midnight, the repetition belongs to the new day.
        while self._midnight_us(day + 1) <= civil_us:
            day += 1
        return day

    def _local_day(self, civil_us: int) -> int:
        if self._zone is None:
            return (civil_us + self.offset_minutes * 60 * SECOND_US) // DAY_US
        try:
            local = datetime.fromtimestamp(civil_us // SECOND_US, self._zone)
        except OSError as error:
            # The same error as for other instants beyond the calendar.
            raise OverflowError("no calendar has this instant") from error
        return local.toordinal() - _EPOCH_DAY

    def _midnight_us(self, day: int) -> int:
        if self._zone is None:
            return day * DAY_US - self.offset_minutes * 60 * SECOND_US
        midnight = datetime.combine(date.fromordinal(_EPOCH_DAY + day), time(), self._zone)
        return int(midnight.timestamp()) * SECOND_US


def cadence_of(per: object) -> tuple[str, int]:
    """The cadence that `per` names, and the length of its spans; 0 for those of the calendar."""
    if isinstance(per, str):
        if per in ("month", "week", "day"):
            return per, 0
        cadence, colon, span = per.partition(":")
        if colon and cadence in ("fixed", "rolling"):
            return cadence, duration_us("per", span)
    fix = f"use one of {', '.join(CADENCES)}, such as rolling:1h"
    raise ConfigError("per", per, "is not a period of a quota", fix)


def zone_of(tz: object) -> ZoneInfo:
    """The time zone of this name; ConfigError if there is none."""
    fix = 'name a zone such as "Europe/Berlin"; where the system has no zone data, pip install tzdata'
    if not isinstance(tz, str):
        raise ConfigError("tz", tz, "is not the name of a time zone", fix)
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - only quotas in a zone load it

    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError("tz", tz, "is not a known time zone", fix) from None
