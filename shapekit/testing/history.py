"""History: checks a recorded history of calls against a limit.

`check_pace` and `check_window` use only the instants at which calls left, so they check any limiter:
shapekit, another library, or a program together with its proxy. Both raise PaceError, which is an
AssertionError, and both are exact: instants are rounded to the microsecond, the unit of all clocks of
shapekit, and everything else is integers and fractions.

    >>> from shapekit import GCRA, Shaper
    >>> from shapekit.testing import ManualClock
    >>> clock = ManualClock(autojump=True)
    >>> shaper = Shaper(gates=(GCRA("10/s", burst=2),), clock=clock)
    >>> departures = []
    >>> for _ in range(5):
    ...     _ = shaper.schedule()
    ...     departures.append(clock.now())
    >>> departures
    [0.0, 0.0, 0.1, 0.2, 0.3]
    >>> check_pace(departures, "10/s", burst=2)
    >>> check_pace(departures, "10/s")
    Traceback (most recent call last):
    ...
    shapekit.testing.history.PaceError: calls 0 (at 0 s) to 1 (at 0 s) cost 2 in 0 s; at 10/s burst 1 that \
takes 0.1 s: 0.1 s too early
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from shapekit.algorithms.base import paced, windowed
from shapekit.errors import ConfigError
from shapekit.rate import MAX_SPAN_US, SECOND_US, Duration, Rate, RateLike, duration_us, seconds_text, whole

__all__ = ["Departure", "PaceError", "check_pace", "check_window"]

Departure: TypeAlias = "float | tuple[float, int]"
"""When a call left, in seconds; or (when, cost) for a cost other than 1."""


class PaceError(AssertionError):
    """Raised for a history that breaks a limit, as shown by the calls at the positions `first` and `last`.

    `by` is the size of the breach: seconds too early for a pace, units too many for a window.
    """

    def __init__(self, message: str, first: int, last: int, by: float) -> None:
        super().__init__(message, first, last, by)
        self.first = first
        """The position of the first of two calls that show the breach."""
        self.last = last
        """The position of the second one."""
        self.by = by
        """Seconds too early for a pace, units too many for a window."""

    def __str__(self) -> str:
        return str(self.args[0])


def check_pace(
    departures: Iterable[Departure], rate: RateLike, burst: int | None = None, *, tolerance: Duration = 0
) -> None:
    """Raise PaceError unless `t_j - t_i >= (cost(i..j) - burst) * T` for all calls i <= j; T is period/limit.

    This is the promise of `GCRA(rate, burst)`, as well as of TokenBucket and LeakyBucket. Without `burst`,
    the burst in the rate's text counts, or 1. Histories need not be in order. Of several breaches, the one
    that ends first is reported, from the call that shows it best.

    `tolerance` says how far the difference of two recorded instants may be off, by default not at all. Use
    `"1us"` for the slots of a queue, which are rounded if T is not a whole number of microseconds (such as a
    third of a second), and more for a clock that is read some time after the departure.

        >>> check_pace([0, 0, (0.3, 3)], "10/s", burst=2)
        Traceback (most recent call last):
        ...
        shapekit.testing.history.PaceError: calls 2 (at 0.3 s) to 2 (at 0.3 s) cost 3 in 0 s; at 10/s \
burst 2 that takes 0.1 s: 0.1 s too early
        >>> check_pace([0, 0, (0.3, 3)], "10/s burst 3")
        >>> check_pace([0, 1/3, 2/3, 1], "3/s", tolerance="1us")
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    pace, units = _paced(rate, burst)
    forgiven_us = duration_us("tolerance", tolerance, least=0)
    p, q = Fraction(pace.period_us, pace.limit).as_integer_ratio()
    # The condition, arranged by call and in units of 1/q µs, so that one running maximum serves all i:
    # t_j·q - cost(0..j)·p >= max over i <= j of (t_i·q - cost(0..i-1)·p) - burst·p.
    first: _Call | None = None
    strictest = before_first = total = 0
    for call in _in_order(departures):
        start = call.at_us * q - total * p
        if first is None or start > strictest:
            first, strictest, before_first = call, start, total
        total += call.cost
        early = strictest + (total - units) * p - call.at_us * q
        if early > forgiven_us * q:
            cost = total - before_first
            needs = Fraction((cost - units) * p, q)
            hint = '; slots are whole microseconds, so pass tolerance="1us"' if early < q else ""
            raise PaceError(
                f"calls {first} to {call} cost {cost} in {seconds_text(call.at_us - first.at_us)}; "
                f"at {pace} burst {units} that takes {_text(needs)}: {_text(Fraction(early, q))} too early"
                f"{hint}",
                first.position,
                call.position,
                float(Fraction(early, q * SECOND_US)),
            )


def check_window(
    departures: Iterable[Departure], limit: int | str | Rate, window: Duration | None = None
) -> None:
    """Raise PaceError if more than `limit` units have left in any half-open window, wherever it begins.

    This is the promise of `SlidingWindowLog(limit, window)` and of every conservative SlidingWindow. Two
    calls exactly one window apart are not in one window.

        >>> check_window([0, 0.9, 1.0, 1.9], "2/s")
        >>> check_window([0, 0.9, (1.0, 2)], 2, "1s")
        Traceback (most recent call last):
        ...
        shapekit.testing.history.PaceError: calls 1 (at 0.9 s) to 2 (at 1 s) cost 3 in 0.1 s; at most 2 may \
leave in 1 s: 1 too many
    """
    __tracebackhide__ = True
    units, window_us = windowed(limit, window)
    calls = _in_order(departures)
    used = oldest = 0
    for call in calls:
        used += call.cost
        while calls[oldest].at_us <= call.at_us - window_us:
            used -= calls[oldest].cost
            oldest += 1
        if used > units:
            first = calls[oldest]
            raise PaceError(
                f"calls {first} to {call} cost {used} in {seconds_text(call.at_us - first.at_us)}; "
                f"at most {units} may leave in {seconds_text(window_us)}: {used - units} too many",
                first.position,
                call.position,
                used - units,
            )


class _Call(NamedTuple):
    at_us: int
    position: int
    cost: int

    def __str__(self) -> str:
        sign = "-" if self.at_us < 0 else ""
        return f"{self.position} (at {sign}{seconds_text(abs(self.at_us))})"


def _in_order(departures: Iterable[Departure]) -> list[_Call]:
    if not isinstance(departures, Iterable):
        raise ConfigError("departures", departures, "is not a history", "pass a list of seconds")
    return sorted(_call(position, departure) for position, departure in enumerate(departures))


def _call(position: int, departure: Any) -> _Call:
    field = f"departures[{position}]"
    at, cost = departure if isinstance(departure, tuple) and len(departure) == 2 else (departure, 1)
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not abs(at) <= MAX_SPAN_US:
        raise ConfigError(field, departure, "is not an instant", "pass seconds, or (seconds, cost)")
    return _Call(round(Fraction(at) * SECOND_US), position, whole(field, cost))


def _paced(rate: RateLike, burst: int | None) -> tuple[Rate, int]:
    parsed = Rate.parse(rate)
    pace, units = paced(parsed, 1 if burst is None and parsed.burst is None else burst, "burst")
    return Rate.of(pace.limit, pace.period_us), units


def _text(span_us: Fraction) -> str:
    """A span as text: exact for whole microseconds, else rounded to nine digits."""
    if span_us.denominator == 1:
        return seconds_text(int(span_us))
    return f"{float(span_us / SECOND_US):.9g} s"
