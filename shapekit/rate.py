"""Rates and durations: the one place where human notation becomes exact integers.

>>> Rate.parse("5 per 10 seconds")
Rate(limit=5, period_us=10000000, burst=None)
>>> Rate.parse("0.5/s")
Rate(limit=1, period_us=2000000, burst=None)
>>> Rate.parse("90k/min").limit, Rate.parse("1.5M/day").limit
(90000, 1500000)
>>> str(Rate.parse(10 / 3))
'10 per 3 s'
>>> [str(rate) for rate in parse_rates("10/s; 100/min burst 20")]
['10/s', '100/min burst 20']
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any, ClassVar, Never, TypeAlias

from shapekit.errors import ConfigError, shortened, span_words

__all__ = ["Duration", "Rate", "RateLike"]


Duration: TypeAlias = float | str | timedelta
"""Seconds, a timedelta, or text such as `"250ms"`, `"5m"`, `"1h30m"`."""

MAX_COUNT = 10**12
"""The largest limit, burst or cost."""
MAX_SPAN_US = 2**51
"""The longest duration, about 71 years: an instant plus a span stays exact in a double."""
MAX_PER_SECOND = 10**9
"""The fastest rate: a call per nanosecond."""
SECOND_US = 1_000_000
_SLOWER = Fraction(1, 10_000)
"""By how much a rate of too many digits may be slowed down. Its exact fraction would often be billions of
calls in years, which is no limit as a burst or in a window."""
_FLOAT = Fraction(1, 2**50)
"""The relative rounding error of a float: 10 / 3 means 10 calls in 3 s."""
_SMALL = 1_000_000

_UNITS_US = {
    unit: size
    for size, names in (
        (1, "us µs microsecond microseconds"),
        (1_000, "ms millisecond milliseconds"),
        (SECOND_US, "s sec secs second seconds"),
        (60 * SECOND_US, "m min mins minute minutes"),
        (3_600 * SECOND_US, "h hr hrs hour hours"),
        (86_400 * SECOND_US, "d day days"),
        (604_800 * SECOND_US, "w week weeks"),
    )
    for unit in names.split()
}
_SHORT_UNITS = (("week", 604_800), ("day", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_MONTH_DAYS = 30
_CALENDAR = {
    **dict.fromkeys(("month", "months", "mo"), _MONTH_DAYS),
    "quarter": 90,
    **dict.fromkeys(("year", "years", "y"), 365),
}
"""Periods without a fixed length, and about how many days they have."""

_DIGITS = r"[0-9](?:_?[0-9])*"
_NUMBER = rf"{_DIGITS}(?:\.[0-9]+)?"
COUNT = rf"{_NUMBER}(?-i:[kKM])?"
"""A count as text. A lower-case m is refused: it could be meant as millions."""
_THOUSANDS = {"k": 1_000, "K": 1_000, "M": 1_000_000}
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([a-zµ]+)\s*", re.ASCII | re.IGNORECASE)
_RATE = re.compile(
    rf"\s*({COUNT})\s*(?:/|\bper\b)\s*({_NUMBER})?\s*([a-zµ]+)(?:\s+burst\s+({COUNT}))?\s*",
    re.ASCII | re.IGNORECASE,
)
_COUNTED = re.compile(rf"\s*({COUNT})\s*([a-zµ]*)\s*((?:/|\bper\b).*?)?\s*", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(r"([kKmM]?)i?(?:[Bb]|[Bb]its?|[Bb]ytes?)")
_WRONG_JOINTS = re.compile(r"[,&+|\n]|\band\b")
_LONGEST_TEXT = 200

_DURATION_FIX = 'write seconds such as 0.5, a timedelta, or text such as "250ms", "30s", "1h30m"'
_RATE_FIX = 'write a rate such as 10, "10/s", "90k/min", "5 per 10 seconds" or "10/s burst 20"'


def whole(field: str, value: object, *, least: int = 1, most: int = MAX_COUNT) -> int:
    """`value` if it is a whole number from `least` to `most`, else ConfigError."""
    if type(value) is not int or value < least:
        fix = f"pass an int, such as {least}"
        raise ConfigError(field, value, f"is not a whole number of at least {least}", fix)
    if value > most:
        raise ConfigError(field, value, "is too large", f"pass at most {most:,}")
    return value


def one_of(field: str, value: object, choices: tuple[str, ...]) -> str:
    """`value` if it is one of `choices`, else ConfigError that lists them."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(field, value, "is unknown", f"use one of {', '.join(choices)}")
    return value


def boolean(field: str, value: object) -> bool:
    """`value` if it is True or False itself, else ConfigError."""
    if type(value) is not bool:
        raise ConfigError(field, value, "is neither True nor False", "pass a bool")
    return value


def exactly(value: object) -> Fraction | None:
    """The exact value of a finite number, a float as its shortest decimal; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, Fraction)):
        return Fraction(value)
    if isinstance(value, float) and math.isfinite(value):
        return Fraction(float.__repr__(value))
    return None


def count_of(text: str) -> Fraction:
    """The exact value of a COUNT: `"1_000"`, `"90k"`, `"1.5M"`."""
    if text[-1] in _THOUSANDS:
        return Fraction(text[:-1]) * _THOUSANDS[text[-1]]
    return Fraction(text)


def duration_us(field: str, value: Any, *, least: int = 1, most: int = MAX_SPAN_US) -> int:
    """A duration in whole microseconds, rounded to the nearest."""
    if value.__class__ in (float, int) and abs(value) < MAX_SPAN_US:
        # The fast path, for numbers that each call passes: the exact float to the nearest, ties to even.
        numerator, denominator = value.as_integer_ratio()
        span, rest = divmod(numerator * SECOND_US, denominator)
        span += 2 * rest > denominator or (2 * rest == denominator and span % 2)
    elif isinstance(value, timedelta):
        span = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        span = round(_duration_text_us(field, value))
    elif exactly(value) is not None:
        span = round(Fraction(value) * SECOND_US)
    else:
        raise ConfigError(field, value, "is not a duration", _DURATION_FIX)
    if span < least:
        bound = "is negative" if span < 0 else "is shorter than 1 µs" if least == 1 else "is too short"
        fix = _DURATION_FIX if least <= 1 else f"write at least {span_words(least)}"
        raise ConfigError(field, value, bound, fix)
    if span > most:
        longest = "71 years" if most == MAX_SPAN_US else span_words(most)
        raise ConfigError(field, value, f"is longer than {longest}", _DURATION_FIX)
    return span


class _AsConfigured:
    """The default of `max_wait` in a call: what its shaper or policy was made with."""

    def __repr__(self) -> str:
        return "AS_CONFIGURED"


AS_CONFIGURED: Any = _AsConfigured()


def max_wait_us(max_wait: Duration | None) -> int | None:
    """A bound on waiting in microseconds; None for no bound."""
    return None if max_wait is None else duration_us("max_wait", max_wait, least=0)


class Fits(timedelta):
    """A `max_wait` that was derived, such as the rest of a deadline: it covers no wait for a quota."""


def asked_wait_us(max_wait: Duration | None) -> int | None:
    """The bound to pass to the store: None unless it was chosen, and then a spent quota refuses."""
    is_bounded = max_wait is not None and max_wait.__class__ is not Fits
    return duration_us("max_wait", max_wait, least=0) if is_bounded else None


def timeout_us(timeout: Duration | None) -> int | None:
    """How long to wait before giving up, in microseconds; None for as long as it takes."""
    return None if timeout is None else duration_us("timeout", timeout, least=0)


def seconds_text(span_us: int) -> str:
    """`250000` → `0.25 s`: exact, as a rate is written."""
    number = f"{span_us // SECOND_US}.{span_us % SECOND_US:06d}".rstrip("0").rstrip(".")
    return f"{number} s"


def _duration_text_us(field: str, text: str) -> Fraction:
    total, at = Fraction(0), 0
    while len(text) <= _LONGEST_TEXT and (part := _DURATION_PART.match(text, at)):
        total += Fraction(part[1]) * _unit_us(field, part[2], text, part.start(2))
        at = part.end()
    if at == 0 or at != len(text):
        raise ConfigError(field, text, "is not a duration", _DURATION_FIX)
    return total


def _unit_us(field: str, unit: str, text: str, at: int) -> int:
    name = unit.lower()
    if unit == "M":
        fix = f'write "{text[:at]}min{text[at + 1 :]}"'
        raise ConfigError(field, text, "has the unit M, which stands for millions, not minutes", fix)
    if name in _CALENDAR:
        days = _CALENDAR[name]
        fix = f'name the days: "{"1000/" if _RATE.fullmatch(text) else ""}{days}d"'
        if days == _MONTH_DAYS and _RATE.fullmatch(text):
            fix = f'budget it with a Quota("1000/month"), or {fix}'
        raise ConfigError(field, unit, "has no fixed length", fix)
    if name not in _UNITS_US:
        raise ConfigError(field, unit, "is an unknown unit of time", "use us, ms, s, min, h, d or w")
    return _UNITS_US[name]


class Value:
    """An immutable object that is defined by its fields: the base of rates and strategies.

    Values with equal fields are equal; values hash, show their fields and pickle. Other attributes are
    derived from the fields. Subclasses name their `fields`, list all attributes in `__slots__`, and call
    `_fill` once. (Dataclasses do the same, but making a dozen takes longer than the rest of the import.)
    """

    __slots__ = ()
    fields: ClassVar[tuple[str, ...]] = ()

    def _fill(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.fields)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__ or not isinstance(other, Value):
            return NotImplemented
        return self is other or self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.__class__, self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{self.__class__.__qualname__}({shown})"

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"{self.__class__.__name__} is immutable: make another one")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"{self.__class__.__name__} is immutable: make another one")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self._fill(**state[1])


class Rate(Value):
    """`limit` calls in every `period`: `Rate(10, 1)`, `Rate(100, "1m")`, `Rate(5, timedelta(hours=1))`.

    `burst` is how many calls may leave at once; None leaves that to the shaper or strategy.
    """

    __slots__ = fields = ("limit", "period_us", "burst")

    limit: int
    """Calls in each period."""
    period_us: int
    """The period, in microseconds."""
    burst: int | None
    """How many calls may leave at once; None if the rate does not say."""

    def __init__(self, limit: int, period: Duration = 1, *, burst: int | None = None) -> None:
        self._checked(limit, duration_us("period", period), burst, limit)

    def _checked(self, limit: object, period_us: int, burst: object, given: object) -> None:
        checked = whole("limit", limit)
        if checked * SECOND_US > MAX_PER_SECOND * period_us:
            raise ConfigError("rate", given, f"is faster than {MAX_PER_SECOND} calls a second", _RATE_FIX)
        most = None if burst is None else whole("burst", burst)
        self._fill(limit=checked, period_us=period_us, burst=most)

    @classmethod
    def of(cls, limit: int, period_us: int, burst: int | None = None) -> Rate:
        """The rate of `limit` calls in `period_us` microseconds."""
        self = cls.__new__(cls)
        self._checked(limit, whole("period_us", period_us, most=MAX_SPAN_US), burst, limit)
        return self

    @classmethod
    def parse(cls, value: RateLike, field: str = "rate") -> Rate:
        """One rate from a Rate, a number of calls a second, or text."""
        if isinstance(value, Rate):
            return value
        if isinstance(value, str):
            return _parse_text(field, value)
        count = exactly(value)
        if count is None or count < 0:
            raise ConfigError(field, value, "is not a rate", _RATE_FIX)
        return _exact(field, count, SECOND_US, None, value)

    @property
    def per_second(self) -> float:
        """Calls a second as a float, to show and not to compute with."""
        return self.limit * SECOND_US / self.period_us

    def __str__(self) -> str:
        for unit, seconds in _SHORT_UNITS:
            if self.period_us == seconds * SECOND_US:
                text = f"{self.limit}/{unit}"
                break
        else:
            text = f"{self.limit} per {seconds_text(self.period_us)}"
        return text if self.burst is None else f"{text} burst {self.burst}"


RateLike: TypeAlias = Rate | float | str
"""A Rate, a number of calls a second, or text such as `"100/min burst 20"`."""


def parse_rates(value: RateLike) -> tuple[Rate, ...]:
    """One or several rates: text may join them with semicolons.

    >>> parse_rates("10/s; 100/min")[1].limit
    100
    """
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        if len(parts := _several(value)) > 1:
            raise ConfigError("rate", value, "joins rates by something else than a semicolon", _joined(parts))
        if ";" in value:
            parts = [part.strip() for part in value.split(";")]
            rates = tuple(_parse_text("rate", part) for part in parts if part)
            if not all(parts):
                raise ConfigError("rate", value, "has a semicolon too many", _joined([*filter(None, parts)]))
            return rates
    elif isinstance(value, list | tuple):
        texts = [str(Rate.parse(part)) for part in value]
        raise ConfigError("rate", value, f"is a {type(value).__name__}", _joined(texts))
    return (Rate.parse(value),)


def _joined(rates: Sequence[str]) -> str:
    return f'write "{"; ".join(rates)}"' if rates else _RATE_FIX


def _several(text: str) -> list[str]:
    """The rates in a text that joins them by anything but a semicolon; one or none if it does not."""
    parts = [part.strip() for part in _WRONG_JOINTS.split(text)]
    return parts if all(map(_RATE.fullmatch, parts)) else []


def _parse_text(field: str, text: str) -> Rate:
    if len(text) > _LONGEST_TEXT:
        raise ConfigError(field, text, "is not a rate", _RATE_FIX)
    if not (match := _RATE.fullmatch(text)):
        if ";" in text or len(_several(text)) > 1:
            raise ConfigError(field, text, "holds several rates where one is meant", 'write one: "10/s"')
        raise ConfigError(field, text, *_wrong_rate(text))
    count, times, unit, burst = match.groups()
    period = Fraction(times or 1) * _unit_us(field, unit, text, match.start(3))
    return _exact(field, count_of(count), period, None if burst is None else count_of(burst), text)


def _wrong_rate(text: str) -> tuple[str, str]:
    """What is wrong with a text that is no rate, and what was probably meant."""
    if match := _COUNTED.fullmatch(text):
        count, word, per = match.groups()
        size = _SIZE.fullmatch(word)
        prefix = size[1] if size else ""  # "1 MB/s" is a million a second, not one
        rate_text = f"{count}{prefix}{per}" if per and per[0] == "/" else f"{count}{prefix} {per}"
        if per and (size or len(word) > 1) and _RATE.fullmatch(rate_text):
            return f"has a word too many, {shortened(word)}", f'write "{rate_text}"'
        if not per and not word:
            return "does not say in which time", f'write "{count}/s", or another unit of time'
        if not per and word.lower() in _UNITS_US:
            return "is a time", f'write how many calls in it: "1 per {count} {word}", or "{count}/{word}"'
    return "is not a rate", _RATE_FIX


def _exact(
    field: str, count: Fraction, period_us: Fraction | int, burst: Fraction | None, given: object
) -> Rate:
    if burst is not None and burst.denominator != 1:
        raise ConfigError(field, given, "has a burst that is not whole", _RATE_FIX)
    if not count:
        fix = 'write a higher one; to stop calls, use Shaper.hold() or configure(state="held")'
        raise ConfigError(field, given, "lets no call leave", fix)
    # 2.5 calls in 1 s are 5 calls in 2 s: whole calls in whole microseconds, at the same rate.
    most_times = Fraction(MAX_SPAN_US) / period_us if period_us else 0
    kept = next(
        (few for few in _fewer_digits(count) if few.numerator <= MAX_COUNT and few.denominator <= most_times),
        count,
    )
    limit, period = kept.numerator, Fraction(period_us) * kept.denominator
    # A period with a fraction of a microsecond is rounded up, if it is so long that this hardly matters.
    whole_us = ceil(period)
    if wrong := _why_not(count, Fraction(period_us)):
        raise ConfigError(field, given, wrong, _RATE_FIX)
    if not 1 <= whole_us <= MAX_SPAN_US or whole_us > period * (1 + _SLOWER):
        raise ConfigError(field, given, "is not a whole number of calls in 1 µs to 71 years", _RATE_FIX)
    try:
        return Rate.of(limit, whole_us, None if burst is None else int(burst))
    except ConfigError as error:
        bound = f"is out of bounds ({error.field}={error.value} {error.bound})"
        raise ConfigError(field, given, bound, _RATE_FIX) from None


def _why_not(count: Fraction, period_us: Fraction) -> str:
    """Why a rate is too fast or too slow to be kept; empty if it is neither."""
    if count * SECOND_US > MAX_PER_SECOND * period_us:
        return f"is faster than {MAX_PER_SECOND} calls a second"
    return "is slower than one call in 71 years" if count * MAX_SPAN_US < period_us else ""


def _fewer_digits(count: Fraction) -> Iterator[Fraction]:
    """A number, the simple ratio that its digits were rounded from, and a simple ratio a little below it.

    >>> [str(few) for few in _fewer_digits(Fraction("0.3333333333333333"))][1:]
    ['1/3', '3333/10000']
    """
    yield count
    ratio = count.limit_denominator(_SMALL)
    if abs(ratio - count) <= count * _FLOAT and ratio.numerator * ratio.denominator <= _SMALL**2:
        yield ratio
    times = _simplest(count * (1 - _SLOWER), count).denominator
    yield Fraction(floor(count * times), times)


def _simplest(least: Fraction, most: Fraction) -> Fraction:
    """The simplest fraction within the bounds."""
    if ceil(least) <= most:
        return Fraction(ceil(least))
    below = floor(least)
    return below + 1 / _simplest(1 / (most - below), 1 / (least - below))
