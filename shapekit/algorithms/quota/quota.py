"""Quota: a budget per month, week or day."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, ClassVar, Self

from shapekit.algorithms.base import Algorithm, Book, Decided, Outcome
from shapekit.algorithms.prospects import Prospect
from shapekit.algorithms.quota.counters import PeriodCounter, part_of
from shapekit.algorithms.quota.periods import CADENCES, Periods
from shapekit.algorithms.quota.spread import SpreadCounter
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import COUNT, count_of, seconds_text, whole

__all__ = ["Quota"]

EXACT_WINDOW = 1_000
"""Up to this limit, a rolling window is an exact log; above, a conservative ring."""

_COUNTING = (PeriodCounter, SpreadCounter)
"""The counters by periods of civil time; the others are rolling windows."""

_TEXT = re.compile(rf"\s*({COUNT})\s*/\s*(\S.*?)\s*", re.ASCII)


def rolling_window(limit: int, window: timedelta) -> SlidingWindowLog | SlidingWindow:
    """Never more than `limit` in any window: exact if that is cheap, otherwise conservative."""
    if limit <= EXACT_WINDOW:
        return SlidingWindowLog(limit, window)
    return SlidingWindow(limit, window, conservative=True)


class Quota(Algorithm[Any]):
    """A budget of `limit` units per `per`, spent at any pace, or evenly with `spread=True`.

    `per` is `"month"`, `"week"` or `"day"` (calendar boundaries), `"fixed:30d"` (equal spans from the epoch)
    or `"rolling:30d"` (never exceeded in any 30 days). Boundaries follow UTC, a fixed `offset_minutes`, or a
    `tz` with its daylight saving time. A month begins on `anchor_day`, or on the last day of a month too
    short for it; a week begins on `week_start`.

        >>> quota = Quota("1_000_000/month", tz="Europe/Berlin")
        >>> quota.check(None, 0, 1).decision.reset_at    # 1970-02-01 00:00 in Berlin
        2674800.0

    Worst burst: `limit` at the end of one period and `limit` at the start of the next; a `rolling` quota has
    no such boundary.

    With `spread=True` the units are released one by one: what is left, evenly over the time that is left. A
    call that comes too early waits; only a spent budget is exhausted. A call of a higher cost leaves as any
    other does, and the next one waits longer. Worst burst: one call, then the limit in what is left of the
    period, however short: add a rate to bound that.

        >>> hourly = Quota("24/day", spread=True)
        >>> charged = hourly.check(None, 0, 1)
        >>> hourly.check(charged.state, 0, 1).decision.retry_after
        3600.0
    """

    kind: ClassVar[str] = "quota"

    fields = ("limit", "per", "offset_minutes", "tz", "week_start", "anchor_day", "spread")
    __slots__ = (*fields, "counter")

    limit: int
    """Units per period."""
    per: str
    """The period: `"month"`, `"week"`, `"day"`, `"fixed:30d"`, `"rolling:30d"`."""
    offset_minutes: int
    """The offset of the boundaries from those of UTC, in minutes."""
    tz: str | None
    """The time zone whose midnights are the boundaries; None for UTC and `offset_minutes`."""
    week_start: str
    """The day on which a week begins."""
    anchor_day: int
    """The day on which a month begins."""
    spread: bool
    """Whether the units are released evenly over what is left of the period."""
    counter: Algorithm[Any]

    def __init__(
        self,
        limit: int | str,
        per: str | None = None,
        *,
        offset_minutes: int = 0,
        tz: str | None = None,
        week_start: str = "monday",
        anchor_day: int = 1,
        spread: bool = False,
    ) -> None:
        units, cadence = _budget(limit, per)
        periods = Periods(
            cadence, offset_minutes=offset_minutes, tz=tz, week_start=week_start, anchor_day=anchor_day
        )
        counter: Algorithm[Any]
        if _is_spread(spread, units, periods):
            counter = SpreadCounter(units, periods)
        elif periods.cadence == "rolling":
            counter = rolling_window(units, timedelta(microseconds=periods.span_us))
        else:
            counter = PeriodCounter(units, periods)
        self._fill(
            limit=units,
            per=cadence,
            offset_minutes=offset_minutes,
            tz=tz,
            week_start=week_start,
            anchor_day=anchor_day,
            spread=spread,
            counter=counter,
        )

    def owns(self, receipt: Receipt) -> bool:
        return self.counter.owns(receipt)

    @property
    def civil(self) -> bool:
        return self.counter.civil

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: Any, now: int, cost: int, skew: int = 0) -> Decided[Any]:
        return self.counter.decide(state, now, cost, skew)

    @property
    def booked(self) -> Callable[..., Decided[Book]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.counter.booked

    def charge(self, state: Any, now: int, due: int, cost: int, skew: int = 0) -> Decided[Any]:
        return self.counter.charge(state, now, due, cost, skew)

    def earliest(self, state: Any, at: int, cost: int, skew: int = 0) -> int:
        return self.counter.earliest(state, at, cost, skew)

    def spent(self, state: Any, at: int, cost: int, skew: int = 0) -> bool:
        if isinstance(self.counter, _COUNTING):
            return self.counter.spent(state, at, cost, skew)
        return self.counter.earliest(state, at, cost, skew) > at

    def peek(self, state: Any, now: int, skew: int = 0) -> Decision:
        return self.counter.peek(state, now, skew)

    def usage(self, state: Any, now: int, skew: int = 0) -> tuple[int, int]:
        """Units used in the current period, and the civil instant at which it ends.

        A rolling one ends when all units would be free again without further calls.
        """
        if isinstance(self.counter, _COUNTING):
            return self.counter.usage(state, now, skew)
        seen = self.counter.peek(state, now, skew)
        return seen.current, seen.reset_at_us + skew

    def forecast(self, state: Any, now: int, cost: int, skew: int = 0) -> Forecast:
        return self.counter.forecast(state, now, cost, skew)

    def refund(self, state: Any, now: int, cost: int, charged_at: Receipt, skew: int = 0) -> Outcome[Any]:
        return self.counter.refund(state, now, cost, charged_at, skew)

    def prospect(self, state: Any, at: int, cost: int, skew: int = 0) -> Prospect | None:
        return self.counter.prospect(state, at, cost, skew)

    def together(self, charged_at: int) -> int | None:
        return self.counter.together(charged_at)

    def refund_many(self, state: Any, now: int, charges: Sequence[Sequence[int]], skew: int = 0) -> Any:
        return self.counter.refund_many(state, now, charges, skew)

    def debit(
        self, state: Any, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Any]:
        return self.counter.debit(state, now, cost, charged_at, skew)

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(
            part_of(self.limit, share),
            self.per,
            offset_minutes=self.offset_minutes,
            tz=self.tz,
            week_start=self.week_start,
            anchor_day=self.anchor_day,
            spread=self.spread,
        )

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Any:
        old = writer.counter
        if isinstance(self.counter, _COUNTING) is not isinstance(old, _COUNTING):
            raise ConfigError(
                "per", self.per, f"cannot continue a quota per {writer.per}", "use another name"
            )
        if isinstance(old, SpreadCounter) and not self.spread:
            return self.counter.adopt(state[0], old.counter, now, skew)
        return self.counter.adopt(state, old, now, skew)

    def life(self, state: Any, now: int, skew: int = 0) -> int:
        return self.counter.life(state, now, skew)

    def decision_received(self, sent: Any) -> Decision:
        return self.counter.decision_received(sent)

    def inspect(self, state: Any) -> None:
        self.counter.inspect(state)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        twin = self.counter.twin(instants)
        return twin if isinstance(self.counter, _COUNTING) else ["quota/quota", twin]

    def state_sent(self, state: Any) -> Any:
        return self.counter.state_sent(state)

    def state_received(self, sent: Any) -> Any:
        return self.counter.state_received(sent)

    def receipt_sent(self, receipt: Receipt) -> Any:
        return self.counter.receipt_sent(receipt)

    def receipt_received(self, sent: Any) -> Receipt:
        return self.counter.receipt_received(sent)


def _is_spread(spread: object, limit: int, periods: Periods) -> bool:
    if type(spread) is not bool:
        raise ConfigError("spread", spread, "is neither True nor False", "pass a bool")
    if spread and periods.cadence == "rolling":
        rate = f"{limit} per {seconds_text(periods.span_us)}"
        raise ConfigError(
            "spread", spread, "needs a period that ends, and a rolling one does not", f'use the rate "{rate}"'
        )
    return spread


def _budget(limit: object, per: Any) -> tuple[int, Any]:
    fix = 'write "1_000_000/month", or Quota(1_000_000, "month")'
    if isinstance(limit, str):
        if per is not None:
            raise ConfigError("per", per, "conflicts with the period in the text", fix)
        match = _TEXT.fullmatch(limit) if len(limit) <= 100 else None
        if match is None or (count := count_of(match[1])).denominator != 1:
            raise ConfigError("limit", limit, "is not a budget", fix)
        return whole("limit", int(count)), match[2]
    if per is None:
        raise ConfigError("per", per, "is missing", f"use one of {', '.join(CADENCES)}")
    return whole("limit", limit), per
