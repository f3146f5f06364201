"""Quota: a budget for each month, week or day."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import Algorithm, Decided, Outcome, share_of
from shapekit.algorithms.periods import CADENCES, Periods
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import whole

__all__ = ["Quota"]

EXACT_WINDOW = 1_000
"""Up to this limit a rolling window is kept as an exact log; above, as a conservative ring."""

_TEXT = re.compile(r"\s*([0-9](?:_?[0-9])*)\s*/\s*(\S.*?)\s*", re.ASCII)
_new = tuple.__new__


def rolling_window(limit: int, window: timedelta) -> SlidingWindowLog | SlidingWindow:
    """Never more than `limit` in any window: exact where that is cheap, conservative elsewhere."""
    if limit <= EXACT_WINDOW:
        return SlidingWindowLog(limit, window)
    return SlidingWindow(limit, window, conservative=True)


Book: TypeAlias = tuple[int, int, int, int, int]
"""`start` and `used` of the newest period, `opened` (the instant, on the rates' timeline, at which it
began), then `start` and `used` of the period before it."""


@dataclass(frozen=True, slots=True)
class PeriodCounter(Algorithm[Book]):
    """At most `limit` units in each period of civil time.

    Two kinds of going back are told apart. Where `now` lies before the newest period was opened, the
    timeline went back, or that period holds a turn still to come: calls wait for it. Where `now` is
    past that instant and civil time is not, somebody has set the date back: the counter follows the
    date, and carries over all that it knows to be used.
    """

    kind: ClassVar[str] = "quota"

    limit: int
    periods: Periods

    @property
    def civil(self) -> bool:
        return True

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        civil = now + skew
        start, end = self.periods.bounds(civil)
        if state is not None and state[0] == start:
            book = state
            end -= skew
        else:
            book, end = self._open(state, now, skew)
        used = book[1] + cost
        limit = self.limit
        if used > limit or now < book[2]:
            return state, self._decision(state, now, cost, skew), 0, False
        decision = _new(Decision, (True, limit, used, limit - used, end, 0, None, civil, 0))
        return (book[0], used, *book[2:]), decision, end - now, True

    def earliest(self, state: Book | None, at: int, cost: int, skew: int = 0) -> int:
        book, end = self._open(state, at, skew)
        return max(at, book[2]) if book[1] + cost <= self.limit else end

    def peek(self, state: Book | None, now: int, skew: int = 0) -> Decision:
        return self._decision(state, now, 1, skew)

    def forecast(self, state: Book | None, now: int, cost: int, skew: int = 0) -> Forecast:
        seen = self.peek(state, now, skew)
        fits = seen.remaining // cost if seen.allowed else 0
        return Forecast(self.earliest(state, now, cost, skew), fits, seen.reset_at_us)

    def refund(
        self, state: Book | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Book]:
        # The receipt is civil time: the date may have been set since.
        if state is not None and isinstance(charged_at, int):
            start, used, opened, old_start, old_used = state
            charged = self.periods.bounds(charged_at)[0]
            if charged == start:
                used = max(0, used - cost)
                if used == 0 and now < opened:
                    # It held nothing but turns that were given back: the older period counts again.
                    reopened = opened - (start - old_start)
                    return self._settled((old_start, old_used, reopened, old_start, 0), now, skew)
                return self._settled((start, used, opened, old_start, old_used), now, skew)
            if charged == old_start:
                return self._settled((start, used, opened, old_start, max(0, old_used - cost)), now, skew)
        return Outcome(state, self.peek(state, now, skew), 0, False)

    def debit(
        self, state: Book | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Book]:
        book, _ = self._open(state, now, skew)
        return self._settled((book[0], book[1] + cost, *book[2:]), now, skew)

    def scaled(self, share: float | Fraction) -> Self:
        part = int(self.limit * share_of(share))
        if part < 1:
            raise ConfigError(
                "share", share, f"leaves nothing of a quota of {self.limit}", "use a larger share"
            )
        return type(self)(part, self.periods)

    def adopt(self, state: Book, writer: Any) -> Book:
        if self.periods == writer.periods:
            return state
        # The newest use may be anywhere in the old period: it counts in the new period of its start.
        start = self.periods.bounds(state[0])[0]
        return (start, state[1], state[2] - state[0] + start, start, 0)

    def _open(self, state: Book | None, now: int, skew: int) -> tuple[Book, int]:
        """The book as it stands at `now`, and when its newest period ends, on the rates' timeline."""
        start, end = self.periods.bounds(now + skew)
        if state is None:
            return (start, 0, start - skew, start, 0), end - skew
        if state[0] == start:
            return state, end - skew
        if now < state[2]:
            length = self.periods.bounds(state[0])[1] - state[0]
            return state, state[2] + length
        used = 0
        if start < state[0]:
            used = state[1] + (state[4] if start == state[3] else 0)
            return (start, used, start - skew, start, 0), end - skew
        return (start, 0, start - skew, state[0], state[1]), end - skew

    def _settled(self, state: Book, now: int, skew: int) -> Outcome[Book]:
        decision = self._decision(state, now, 1, skew)
        return Outcome(state, decision, max(0, decision.reset_at_us - now), True)

    def _decision(self, state: Book | None, now: int, cost: int, skew: int) -> Decision:
        book, end = self._open(state, now, skew)
        used = book[1]
        wait = self.earliest(state, now, cost, skew) - now
        full = end if used else now + wait
        return Decision(wait == 0, self.limit, used, max(0, self.limit - used), full, wait)


@dataclass(frozen=True, slots=True, init=False)
class Quota(Algorithm[Any]):
    """A budget of `limit` units for each `per`, spent as fast as the caller likes.

    `per` is `"month"`, `"week"`, `"day"` (real calendar boundaries), `"fixed:30d"` (equal spans from
    the epoch) or `"rolling:30d"` (any 30 days, never over). Boundaries follow UTC, a fixed
    `offset_minutes`, or a `tz` with its daylight saving. A month begins on `anchor_day`, or on the
    last day of a month too short for it; a week on `week_start`.

        >>> quota = Quota("1_000_000/month", tz="Europe/Berlin")
        >>> quota.check(None, 0, 1).decision.reset_at    # 1970-02-01 00:00 in Berlin
        2674800.0

    Worst burst: `limit` at the end of one period and `limit` at the start of the next; `rolling` has
    no such seam.
    """

    kind: ClassVar[str] = "quota"

    limit: int
    per: str
    offset_minutes: int
    tz: str | None
    week_start: str
    anchor_day: int
    counter: Algorithm[Any] = field(repr=False, compare=False)

    def __init__(
        self,
        limit: int | str,
        per: str | None = None,
        *,
        offset_minutes: int = 0,
        tz: str | None = None,
        week_start: str = "monday",
        anchor_day: int = 1,
    ) -> None:
        units, cadence = _budget(limit, per)
        periods = Periods(
            cadence, offset_minutes=offset_minutes, tz=tz, week_start=week_start, anchor_day=anchor_day
        )
        counter: Algorithm[Any] = PeriodCounter(units, periods)
        if periods.cadence == "rolling":
            counter = rolling_window(units, timedelta(microseconds=periods.span_us))
        for name, value in (
            ("limit", units),
            ("per", cadence),
            ("offset_minutes", offset_minutes),
            ("tz", tz),
            ("week_start", week_start),
            ("anchor_day", anchor_day),
            ("counter", counter),
        ):
            object.__setattr__(self, name, value)

    @property
    def civil(self) -> bool:
        return self.counter.civil

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: Any, now: int, cost: int, skew: int = 0) -> Decided[Any]:
        return self.counter.decide(state, now, cost, skew)

    def earliest(self, state: Any, at: int, cost: int, skew: int = 0) -> int:
        return self.counter.earliest(state, at, cost, skew)

    def peek(self, state: Any, now: int, skew: int = 0) -> Decision:
        return self.counter.peek(state, now, skew)

    def forecast(self, state: Any, now: int, cost: int, skew: int = 0) -> Forecast:
        return self.counter.forecast(state, now, cost, skew)

    def refund(self, state: Any, now: int, cost: int, charged_at: Receipt, skew: int = 0) -> Outcome[Any]:
        return self.counter.refund(state, now, cost, charged_at, skew)

    def debit(
        self, state: Any, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Any]:
        return self.counter.debit(state, now, cost, charged_at, skew)

    def scaled(self, share: float | Fraction) -> Self:
        part = int(self.limit * share_of(share))
        if part < 1:
            raise ConfigError(
                "share", share, f"leaves nothing of a quota of {self.limit}", "use a larger share"
            )
        return type(self)(
            part,
            self.per,
            offset_minutes=self.offset_minutes,
            tz=self.tz,
            week_start=self.week_start,
            anchor_day=self.anchor_day,
        )

    def adopt(self, state: Any, writer: Any) -> Any:
        if type(self.counter) is not type(writer.counter):
            raise ConfigError(
                "per", self.per, f"cannot continue a quota per {writer.per}", "use another name"
            )
        return self.counter.adopt(state, writer.counter)


def _budget(limit: object, per: object) -> tuple[int, str]:
    fix = 'write "1_000_000/month", or Quota(1_000_000, "month")'
    if isinstance(limit, str):
        if per is not None:
            raise ConfigError("per", per, "comes on top of a text that names the period", fix)
        match = _TEXT.fullmatch(limit) if len(limit) <= 100 else None
        if match is None:
            raise ConfigError("limit", limit, "is not a budget", fix)
        return whole("limit", int(match[1])), match[2]
    if per is None:
        raise ConfigError("per", per, "is missing", f"use one of {', '.join(CADENCES)}")
    return whole("limit", limit), str(per)
