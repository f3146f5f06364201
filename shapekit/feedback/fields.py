"""The values of header fields: numbers, durations, dates. Whatever is malformed is None.

Every expression is anchored and bounded, so that a value of any length costs the same. Dates are parsed
here because the standard library's parser takes the year 0 for 2000 and two digits for a fixed century,
reads much that is no HTTP-date, and raises OverflowError beside ValueError. Ours is as fast.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = ["duration", "http_date", "label", "number", "retry_after", "rfc3339", "until", "whole"]

# The first of several values, without its parameters: proxies repeat headers, and an older draft
# writes `100, 100;w=60`. More digits than these are no number of anything.
_NUMBER = re.compile(r"[ \t]*([0-9]{1,18}(?:\.[0-9]{1,18})?)[ \t]*(?:[,;]|\Z)")
_COUNT = re.compile(r"[ \t]*([0-9]{1,18})(?:\.0{1,6})?[ \t]*(?:[,;]|\Z)")

_LABEL = re.compile(r"[ \t]*([!-+\--~]{1,100})[ \t]*(?:,|\Z)")

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|ms|s|m|h|d)")
_DURATION = re.compile(rf"[ \t]*((?:{_PART.pattern}){{1,7}})[ \t]*(?:[,;]|\Z)")

_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_TIME = r"([0-9]{2}):([0-9]{2}):([0-9]{2})"
_IMF_OR_850 = re.compile(
    r"[ \t]*[a-z]{3,9},[ ]([0-9]{2})([ -])([a-z]{3})\2([0-9]{4}|[0-9]{2})[ ]"
    rf"{_TIME}[ ](?:GMT|UTC)[ \t]*(?:,|\Z)",
    re.ASCII | re.IGNORECASE,
)
_ASCTIME = re.compile(
    rf"[ \t]*[a-z]{{3}}[ ]([a-z]{{3}})[ ]([ 0-9][0-9])[ ]{_TIME}[ ]([0-9]{{4}})[ \t]*(?:,|\Z)",
    re.ASCII | re.IGNORECASE,
)
_RFC3339 = re.compile(
    rf"[ \t]*([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})[Tt ]{_TIME}(\.[0-9]{{1,12}})?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))[ \t]*(?:[,;]|\Z)"
)

_EPOCH_S = 1e9
"""From here on, 2001, a number is an instant in seconds: no window lasts thirty years."""
_EPOCH_MS = 1e11
"""From here on it is an instant in milliseconds."""
_BEYOND = 1e14
"""From here on it is nothing."""
_HALF_CENTURY = 50


def number(text: str | None) -> float | None:
    """`"1.5"` → 1.5; finite and not negative."""
    match = text and _NUMBER.match(text)
    return float(match[1]) if match else None


def whole(text: str | None) -> int | None:
    """`"100"` → 100; never negative."""
    match = text and _COUNT.match(text)
    return int(match[1]) if match else None


def label(text: str | None) -> str | None:
    """A word of printable ASCII, at most 100 characters."""
    match = text and _LABEL.match(text)
    return match[1] if match else None


def duration(text: str | None) -> float | None:
    """`"6m0s"` → 360.0, `"12ms"` → 0.012; a bare number is seconds."""
    match = text and _DURATION.match(text)
    if not match:
        return number(text)
    return sum(float(part[1]) * _UNITS_S[part[2]] for part in _PART.finditer(match[1]))


def retry_after(text: str | None, now: float) -> float | None:
    """Seconds to wait: the number of them, or a date compared with the server's own time."""
    told = number(text)
    if told is None and (date := http_date(text, now)) is not None:
        told = date - now
    return told


def until(text: str | None, now: float) -> float | None:
    """Seconds until a reset of which nobody has said how it is written: guessed, by magnitude and form.

    A number below a billion is seconds from now, a larger one an instant.
    """
    told = number(text)
    if told is None:
        told = duration(text)
        if told is None:
            instant = rfc3339(text)
            if instant is None:
                instant = http_date(text, now)
            told = None if instant is None else instant - now
    elif told >= _EPOCH_MS:
        told = told / 1_000 - now if told < _BEYOND else None
    elif told >= _EPOCH_S:
        told -= now
    return None if told is None else max(0.0, told)


def http_date(text: str | None, now: float) -> float | None:
    """Epoch seconds of any of the three forms of an HTTP-date; `now` tells the century of two digits."""
    if not text:
        return None
    if match := _IMF_OR_850.match(text):
        day, _, month, year, *time = match.groups()
    elif match := _ASCTIME.match(text):
        month, day, *time, year = match.groups()
    else:
        return None
    full = int(year)
    if len(year) == 2:
        this = 1970 + int(now // 31_556_952)
        full += this - this % 100
        if full > this + _HALF_CENTURY:
            full -= 100
    place, rest = divmod(_MONTHS.find(month.lower()), 3)
    return None if rest else _instant(full, place + 1, int(day), time)


def rfc3339(text: str | None) -> float | None:
    """Epoch seconds of `2026-03-01T12:00:00Z`, with fractions and offsets."""
    match = text and _RFC3339.match(text)
    if not match:
        return None
    year, month, day, *time, fraction, sign, hours, minutes = match.groups()
    instant = _instant(int(year), int(month), int(day), time)
    if instant is None:
        return None
    offset = 0
    if sign:
        if hours > "23" or minutes > "59":
            return None
        offset = int(f"{sign}1") * (int(hours) * 3_600 + int(minutes) * 60)
    return instant - offset + float(f"0{fraction or '.0'}")


def _instant(year: int, month: int, day: int, time: list[str]) -> float | None:
    hour, minute, second = map(int, time)
    leap = second == 60  # a leap second is the one after 59, and datetime has none
    try:
        return datetime(year, month, day, hour, minute, second - leap, tzinfo=UTC).timestamp() + leap
    except ValueError:
        return None
