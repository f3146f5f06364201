"""Words: numbers, spans, instants and rates as people read them.

>>> span_words(16_599_900_000), span_words(99_500), span_words(0)
('4 h 36 min 39 s', '99.5 ms', '0 s')
>>> ordinal(1), ordinal(22), ordinal(113), ordinal(5_000)
('1st', '22nd', '113th', '5,000th')
>>> counted(1, "call"), counted(5_000, "call")
('1 call', '5,000 calls')
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from shapekit.rate import SECOND_US, Rate

__all__ = [
    "counted",
    "instant_words",
    "ordinal",
    "per_words",
    "rate_words",
    "span_words",
    "window_words",
]

_MINUTE_US = 60 * SECOND_US
_UNITS = (("d", 86_400 * SECOND_US), ("h", 3_600 * SECOND_US), ("min", _MINUTE_US), ("s", SECOND_US))
_SMALL = ((SECOND_US, "s"), (1_000, "ms"), (1, "µs"))
_PERIODS = {unit * SECOND_US: name for unit, name in ((1, "second"), (60, "minute"), (3_600, "hour"))}
_PERIODS |= {86_400 * SECOND_US: "day", 604_800 * SECOND_US: "week"}


def span_words(span_us: int) -> str:
    """A span of time: three digits after the point below a minute, whole seconds from then on."""
    if span_us < _MINUTE_US:
        size, unit = next(((size, unit) for size, unit in _SMALL if span_us >= size), (SECOND_US, "s"))
        return f"{span_us / size:.3f}".rstrip("0").rstrip(".") + f" {unit}"
    left, parts = span_us, []
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number:,} {unit}")
    return " ".join(parts[:3])


def counted(number: int, what: str) -> str:
    """`5,000 calls`, and `1 call`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """`1st`, `5,000th`."""
    teens = number % 100 in (11, 12, 13)
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def instant_words(instant_us: int, zone: tzinfo = UTC) -> str:
    """`Sat 2026-11-21 15:10:26`."""
    return datetime.fromtimestamp(instant_us // SECOND_US, zone).strftime("%a %Y-%m-%d %H:%M:%S")


def per_words(period_us: int) -> str:
    """What a rate is counted by: `minute`, `10 s`."""
    return _PERIODS.get(period_us) or span_words(period_us)


def window_words(window_us: int) -> str:
    """What a sliding window is as long as; a day of it is none of the calendar's."""
    hours, rest = divmod(window_us, 3_600 * SECOND_US)
    return f"{hours} hours" if hours > 1 and not rest else per_words(window_us)


def rate_words(rate: Rate) -> str:
    """`10 per second`."""
    return f"{rate.limit:,} per {per_words(rate.period_us)}"
