"""Quota: a budget per month, week or day, and how much of it is used.

A quota counts with a PeriodCounter; with a SpreadCounter if it is to be spent evenly; with a rolling window
if it has no periods.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

from shapekit.algorithms.base import (
    MOST_UNITS,
    NEVER_US,
    Algorithm,
    Book,
    Bounds,
    Counting,
    Decided,
    Outcome,
    Shift,
    counted,
    of_its,
    reborn,
    receipted,
    share_of,
)
from shapekit.algorithms.periods import CADENCES, Periods
from shapekit.algorithms.prospects import Periodic
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import COUNT, MAX_COUNT, SECOND_US, boolean, count_of, seconds_text, whole

if TYPE_CHECKING:
    from shapekit.algorithms.queue.queue import LeakyQueue

__all__ = ["Quota", "QuotaUsage"]

_MAX_PERIODS = 2**9
"""With more periods than this, the two before the newest are merged: refunds to the older one are lost."""
_UNKNOWN = (0, 0)
_PRICE, _PRICE_IN_A_ZONE = 6, 30
"""The effort for a forecast to enter a period; see prospects.py."""
_new = tuple.__new__

Used: TypeAlias = tuple[int, ...]
"""`start, used, opened` of each known period, by start. `opened` is the instant, on the timeline of rates, at
which the period began or, if it holds future slots, will begin.
"""


class PeriodCounter(Counting[Used]):
    """At most `limit` units in each period of civil time, even if the date goes back to it.

    Time can go back in two ways. If `now` is before the instant at which a period was opened, either the
    timeline went back or the period holds a future slot: calls wait for it. If `now` is past that instant but
    civil time is not, the date was set back: the counter follows the date.
    """

    kind: ClassVar[str] = "quota"

    __slots__ = fields = ("limit", "periods")

    limit: int
    periods: Periods

    def __init__(self, limit: int, periods: Periods) -> None:
        self._fill(limit=limit, periods=periods)

    @property
    def civil(self) -> bool:
        return True

    def booked(self, book: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        state, born, charged, settled = book or (None, now, 0, ())
        civil = now + skew
        start, end = self.periods.bounds(civil)
        limit = self.limit
        if state and state[-3] == start and state[-1] <= now and (life := self._life_of_all(state, now)):
            # Written out here: this is the hot path of nearly every admitted call.
            used = state[-2] + cost
            if used > limit:
                return book, self._decision(state, now, cost, skew), 0, False
            charged += cost
            if charged > MOST_UNITS:
                born, charged, settled = reborn(born, now, cost)
            receipt = (born, charged, cost, civil)
            decision = _new(Decision, (True, limit, used, limit - used, end - skew, 0, None, receipt, 0))
            return ((*state[:-2], used, state[-1]), born, charged, settled), decision, life, True
        if self.earliest(state, now, cost, skew) > now:
            return book, self._decision(state, now, cost, skew), 0, False
        after, decision, life, _ = self.charge(state, now, now, cost, skew)
        again = counted(book, after, now, cost)
        return again, receipted(again, decision, cost), life, True

    def charge(self, state: Used | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Used]:
        start, end = self.periods.bounds(due + skew)
        used, opened = self.known(state or (), start, now) or (0, start - skew)
        used += cost
        after = self._with(state, now, start, used, min(opened, start - skew))
        decision = Decision(True, self.limit, used, self.limit - used, end - skew, 0, None, due + skew)
        return after, decision, self.life(after, now), True

    def earliest(self, state: Used | None, at: int, cost: int, skew: int = 0) -> int:
        if not state:
            return at
        at = max(at, self._waits_until(state, at, skew))
        while True:
            start, end = self.periods.bounds(at + skew)
            used, opened = self.known(state, start, at) or _UNKNOWN
            if used + cost <= self.limit:
                return at
            at = min(end - skew, opened + 2 * (end - start))

    def spent(self, state: Used | None, at: int, cost: int, skew: int = 0) -> bool:
        if not state or self._waits_until(state, at, skew) > at:
            return False
        used, _ = self.known(state, self.periods.bounds(at + skew)[0], at) or _UNKNOWN
        return used + cost > self.limit

    def usage(self, state: Used | None, now: int, skew: int) -> tuple[int, int]:
        """Units used in the current period, and the civil instant at which it ends."""
        start, end = self.periods.bounds(now + skew)
        return (self.known(state or (), start, now) or _UNKNOWN)[0], end

    def forecast(self, state: Used | None, now: int, cost: int, skew: int = 0) -> Forecast:
        return super().forecast(state, now, cost, skew)._replace(full_at_us=self._full_at(state, now))

    def refund_many(
        self, state: Used | None, now: int, charges: Sequence[Sequence[int]], skew: int = 0
    ) -> Used | None:
        before = state or ()
        parts: list[Used] = []
        done = 0
        for charged_at, units in charges:
            start = self.periods.bounds(charged_at)[0]
            at = place_of(before, start)
            known = self.known(before, start, now)
            if known and at >= done:
                used, opened = known
                parts += (before[done:at], (start, used - units, opened) if used > units else ())
                done = at + 3
        return self._trimmed((*chain.from_iterable(parts), *before[done:]), now) if done else state

    def refund_passed(
        self, state: Used, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Used]:
        outcome = self.refund(state, now, cost, charged_at, skew)
        if not outcome.persist or state[-1] <= now or (outcome.state or ())[-3:-2] == state[-3:-2]:
            return outcome
        return self._settled(self._with(outcome.state, now, state[-3], 0, state[-1]), now, skew)

    def prospect(self, state: Used | None, cost: int, skew: int = 0) -> Periodic | None:
        known = [*triples(state or ())]
        if any(opened + self._length(start) < start - skew for start, _, opened in known):
            return None  # The date was set back by more than a period.
        span = self.periods.span_us if self.periods.cadence == "fixed" else 0
        periods = self.periods
        price = _PRICE if periods.tz is None else _PRICE_IN_A_ZONE
        return Periodic(self.limit, periods.bounds, span, skew, known, periods.following, price)

    def together(self, charged_at: int) -> int:
        return self.periods.bounds(charged_at)[0]

    def debit(
        self, state: Used | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Used]:
        at = max(now, self._waits_until(state, now, skew))
        start = self.periods.bounds(at + skew)[0]
        used, opened = self.known(state or (), start, now) or (0, start - skew)
        # A debt is capped at the largest number that a double holds exactly.
        after = self._with(state, now, start, min(used + cost, NEVER_US - 1), opened)
        return self._settled(after, now, skew, at + skew)

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(part_of(self.limit, share), self.periods)

    def adopt(self, state: Used, writer: Any, now: int, skew: int = 0) -> Used:
        if self.periods == writer.periods:
            return state
        civil = now + skew
        book: dict[int, tuple[int, int]] = {}
        for begun, used, opened in triples(state):
            ended = writer.periods.bounds(begun)[1]
            # Units of the present period may all have been used within the new one.
            last = civil if begun <= civil < ended else ended - 1
            start = self.periods.bounds(last)[0]
            before, first_opened = book.get(start, (0, opened - begun + start))
            book[start] = (before + used, min(first_opened, opened - begun + start))
        return tuple(number for start in sorted(book) for number in (start, *book[start]))

    def shifted(self, state: Used, moved: Shift, skew: int) -> Used:
        counts = moved.counts(zip(state[::3], state[1::3], strict=True), self.periods.bounds)
        opened = dict(zip(state[::3], state[2::3], strict=True))
        after: list[int] = []
        for start, used in [*counts.items()][-_MAX_PERIODS:]:
            opens = start - skew
            before = opened.get(start, opens)
            if moved.by < 0:
                opens = max(before, opens)
            elif start <= moved.present or before < opens:
                opens = before
            after += (start, used, opens)
        return tuple(after)

    def crowded(self, state: Used, moved: Shift, skew: int) -> Iterator[tuple[Bounds, int]]:
        if not moved.fits(zip(state[::3], state[1::3], strict=True), self.periods.bounds, self.limit):
            yield self.periods.bounds, moved.first

    def brought(self, state: Used, now: int, skew: int = 0) -> Used:
        civil = now + skew
        ahead = [begun > civil and opened > now for begun, _, opened in triples(state)]
        if not any(ahead):
            return state
        kept = tuple(
            [n for period, waits in zip(triples(state), ahead, strict=True) if not waits for n in period]
        )
        start = self.periods.bounds(civil)[0]
        used, opened = self.known(kept, start, now) or (0, start - skew)
        used += sum(compress(state[1::3], ahead))
        return self._with(kept, now, start, min(used, NEVER_US - 1), opened)

    def inspect(self, state: Any) -> None:
        # With an arbitrary number of periods, the search for a free one might never end.
        starts = [*state[::3]]
        if len(starts) > _MAX_PERIODS or len(state) % 3 or starts != sorted(set(starts)):
            raise ValueError("malformed periods")
        sum(state)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["period_counter", self.limit, self.periods.twin(instants)]

    def _waits_until(self, state: Used | None, at: int, skew: int) -> int:
        """When the latest future period opens, if it has future slots or the clock went back; else 0."""
        after = place_of(state or (), at + skew + 1)
        latest = max((state or ())[after + 2 :: 3], default=0)
        return latest if latest > at else 0

    def known(self, state: Used, start: int, at: int) -> tuple[int, int] | None:
        """Units used in the period that begins at `start`, and when it was opened; None if forgotten.

        A period is remembered until twice its own length has passed, whatever the date shows.
        """
        place = place_of(state, start)
        if state[place : place + 1] != (start,) or not self._is_remembered(state, place, at):
            return None
        return state[place + 1], state[place + 2]

    def _is_remembered(self, state: Used, place: int, now: int) -> bool:
        return state[place + 2] + 2 * self._length(state[place]) > now

    def _trimmed(self, state: Used, now: int) -> Used:
        """The state without forgotten periods at its ends."""
        first, last = 0, len(state)
        while first < last and not self._is_remembered(state, first, now):
            first += 3
        while first < last and not self._is_remembered(state, last - 3, now):
            last -= 3
        return state[first:last]

    def _with(self, state: Used | None, now: int, start: int, used: int, opened: int) -> Used:
        """The state with one period set."""
        before = self._trimmed(state or (), now)
        place = place_of(before, start)
        behind = place + 3 if before[place : place + 1] == (start,) else place
        after = (*before[:place], start, used, opened, *before[behind:])
        if len(after) > 3 * _MAX_PERIODS:
            (_, one, begun), (start, other, opened), newest = triples(after[-9:])
            after = (*after[:-9], start, min(one + other, NEVER_US - 1), max(begun, opened), *newest)
        return after

    def _life_of_all(self, state: Used, now: int) -> int:
        """How long the state lives, if all of its periods are remembered; else 0."""
        longest = 0
        for index in range(0, len(state), 3):
            life = state[index + 2] + 2 * self._length(state[index]) - now
            if life <= 0:
                return 0
            if life > longest:
                longest = life
        return longest

    def _length(self, start: int) -> int:
        return self.periods.bounds(start)[1] - start

    def life(self, state: Used, now: int, skew: int = 0) -> int:
        return max([0, *(opened + 2 * self._length(start) - now for start, opened in self._newest(state))])

    def _newest(self, state: Used) -> Iterator[tuple[int, int]]:
        """Start and opening of the periods that may end last: none is more than twice as long as another."""
        if state:
            opened = state[2::3]
            newest = max(opened)
            since = newest - 2 * self._length(state[3 * opened.index(newest)])
            yield from (pair for pair in zip(state[::3], opened, strict=True) if pair[1] >= since)

    def _full_at(self, state: Used | None, now: int) -> int:
        return max([now, *(opened + self._length(start) for start, opened in self._newest(state or ()))])

    def _decision(self, state: Used | None, now: int, cost: int, skew: int = 0) -> Decision:
        wait = self.earliest(state, now, cost, skew) - now
        at = max(now, self._waits_until(state, now, skew))
        start, end = self.periods.bounds(at + skew)
        used, _ = self.known(state or (), start, at) or _UNKNOWN
        full = end - skew if used else now + wait
        remaining = 0 if at > now else max(0, self.limit - used)
        return Decision(wait == 0, self.limit, used, remaining, full, wait)


Pace: TypeAlias = tuple[int, int]
"""The instant and the cost of the last charge in a period; a cost of 0 means none."""
Spread: TypeAlias = tuple[Used, tuple[int, ...]]
"""The state of the counter, and `start, due, cost` of each of its periods with a pace, by start."""

_COLD: Spread = ((), ())
_NONE: Pace = (0, 0)
_RECEIPT = 4
"""The length of a receipt: the civil instant of the charge, its departure, and the `Pace` before it."""


class SpreadCounter(Counting[Spread]):
    """A period counter that releases the remaining units one by one, evenly over the remaining time.

    A charge of `cost` at `due`, before which `left` units were left, takes its part of the time until the
    period's `end`: the next may leave at `due + cost * (end - due) / left`, rounded up to a microsecond. So
    from any instant on, the charges are at most one ahead of the straight line to the end of the period, a
    caller that was idle catches up by the end, and the last unit lasts until then.

    That instant is not stored but follows from the last charge and the count. So units that are given back,
    by any call, are spread over the rest as if they had never been charged. A receipt contains the charge
    before its own, so that the newest charge can be given back as well.
    """

    kind: ClassVar[str] = "quota"

    fields = ("limit", "periods")
    __slots__ = (*fields, "counter")

    limit: int
    periods: Periods
    counter: PeriodCounter

    def __init__(self, limit: int, periods: Periods) -> None:
        self._fill(limit=limit, periods=periods, counter=PeriodCounter(limit, periods))

    def owns(self, receipt: Receipt) -> bool:
        numbers = receipt if isinstance(receipt, tuple) else (receipt,)
        return len(numbers) in (1, _RECEIPT) and all(type(number) is int for number in numbers)

    @property
    def civil(self) -> bool:
        return True

    def decide(self, state: Spread | None, now: int, cost: int, skew: int = 0) -> Decided[Spread]:
        if self.earliest(state, now, cost, skew) > now:
            return state, self._decision(state, now, cost, skew), 0, False
        return self.charge(state, now, now, cost, skew)

    def charge(self, state: Spread | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Spread]:
        book, _ = state or _COLD
        start, _ = self.periods.bounds(due + skew)
        receipt = (due + skew, due, *self._pace(state, start, now))
        counted, decision, life, _ = self.counter.charge(book, now, due, cost, skew)
        after = _paced(state, counted or (), start, (due, cost))
        return after, decision._replace(remaining=0, receipt=receipt), life, True

    def earliest(self, state: Spread | None, at: int, cost: int, skew: int = 0) -> int:
        if state is None:
            return at
        while True:
            at = self.counter.earliest(state[0], at, cost, skew)
            start, end = self.periods.bounds(at + skew)
            used, opened = self.counter.known(state[0], start, at) or (0, 0)
            ready = self._ready(used, self._pace(state, start, at), end - skew)
            if ready <= at:
                return at
            # A new period starts its own pace, as does a period that is no longer remembered.
            at = min(ready, end - skew, opened + 2 * (end - start))

    def spent(self, state: Spread | None, at: int, cost: int, skew: int = 0) -> bool:
        # Only the counter can be spent: a paced call waits for units that are still left.
        return state is not None and self.counter.spent(state[0], at, cost, skew)

    def usage(self, state: Spread | None, now: int, skew: int) -> tuple[int, int]:
        """Units used in the current period, and the civil instant at which it ends."""
        return self.counter.usage((state or _COLD)[0], now, skew)

    def forecast(self, state: Spread | None, now: int, cost: int, skew: int = 0) -> Forecast:
        counted = self.counter.forecast((state or _COLD)[0], now, cost, skew)
        admits_at = self.earliest(state, now, cost, skew)
        return Forecast(admits_at, int(admits_at == now), counted.full_at_us)

    def refund(
        self, state: Spread | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Spread]:
        return self._given_back(state, now, cost, charged_at, skew, has_passed=False)

    def refund_passed(
        self, state: Spread, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Spread]:
        return self._given_back(state, now, cost, charged_at, skew, has_passed=True)

    def _given_back(
        self, state: Spread | None, now: int, cost: int, charged_at: Receipt, skew: int, *, has_passed: bool
    ) -> Outcome[Spread]:
        book, _ = state or _COLD
        receipt: Any = charged_at if isinstance(charged_at, tuple) else (charged_at,)
        civil, *charge = receipt
        refund = self.counter.refund_passed if has_passed else self.counter.refund
        counted = refund(book, now, cost, civil, skew)
        if not counted.persist or not isinstance(civil, int):
            return Outcome(state, self.peek(state, now, skew), 0, False)
        start, _ = self.periods.bounds(civil)
        due, units = self._pace(state, start, now)
        if charge and due == charge[0]:
            # This is the newest charge: keep the rest of it, or else the one before. A part of that may have
            # been given back meanwhile, but it cannot be more than is used.
            used, _ = self.counter.known(counted.state or (), start, now) or _UNKNOWN
            due, units = (due, units - cost) if units > cost else (charge[1], min(charge[2], used))
        return self._settled(_paced(state, counted.state or (), start, (due, units)), now, skew)

    def debit(
        self, state: Spread | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Spread]:
        book, _ = state or _COLD
        counted = self.counter.debit(book, now, cost, None, skew)
        civil: Any = counted.decision.receipt
        start, end = self.periods.bounds(civil)
        before = self._pace(state, start, now)
        used, _ = self.counter.known(book, start, now) or (0, 0)
        # A debt takes its part of the time after the other charges, as a waiting call would.
        due = max(civil - skew, self._ready(used, before, end - skew))
        after = _paced(state, counted.state or (), start, (due, cost))
        return self._settled(after, now, skew, (civil, due, *before))

    def scaled(self, share: float | Fraction) -> Self:
        part = self.counter.scaled(share)
        return type(self)(part.limit, part.periods)

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Spread:
        if isinstance(writer, PeriodCounter):
            # Used units stay used; the rest is spread from the next call on.
            return self.counter.adopt(state, writer, now, skew), ()
        book, paces = state
        kept = self.counter.adopt(book, writer.counter, now, skew)
        if self.periods == writer.periods:
            return kept, paces
        newest = max(triples(paces), key=lambda pace: pace[1], default=(0, *_NONE))
        return kept, tuple(number for start in kept[::3] if newest[2] for number in (start, *newest[1:]))

    def shifted(self, state: Spread, moved: Shift, skew: int) -> Spread:
        book, paces = self.counter.shifted(state[0], moved, skew), triples(state[1])
        _, *last = max(paces, key=lambda pace: pace[1], default=(0, *_NONE))
        return _paced(state, book, self.periods.bounds(moved.newest + moved.by)[0], (last[0], last[1]))

    def crowded(self, state: Spread, moved: Shift, skew: int) -> Iterator[tuple[Bounds, int]]:
        return self.counter.crowded(state[0], moved, skew)

    def brought(self, state: Spread, now: int, skew: int = 0) -> Spread:
        return self.counter.brought(state[0], now, skew), ()

    def life(self, state: Spread, now: int, skew: int = 0) -> int:
        return self.counter.life(state[0], now, skew)

    def inspect(self, state: Any) -> None:
        book, paces = state
        self.counter.inspect(book)
        self.counter.inspect(paces)
        if not all(0 < cost <= MAX_COUNT for cost in paces[2::3]):
            raise ValueError("malformed costs")

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["spread_counter", *self.counter.twin(instants)[1:]]

    def _ready(self, used: int, pace: Pace, end: int) -> int:
        """When the next call may leave after the last charge; the end of the period if nothing is left."""
        due, cost = pace
        if not cost:
            return 0
        left = self.limit - used + cost
        if left <= cost:
            return end
        return due - (-cost * max(0, end - due) // left)

    def _pace(self, state: Spread | None, start: int, now: int) -> Pace:
        """The last charge in a period, if it is remembered."""
        if state is None or not self.counter.known(state[0], start, now):
            return _NONE
        place = place_of(state[1], start)
        found = state[1][place : place + 3]
        return (found[1], found[2]) if found[:1] == (start,) else _NONE

    def _decision(self, state: Spread | None, now: int, cost: int, skew: int = 0) -> Decision:
        counted = self.counter.peek((state or _COLD)[0], now, skew)
        wait = self.earliest(state, now, cost, skew) - now
        one_more = int(self.earliest(state, now, 1, skew) == now)
        return counted._replace(allowed=wait == 0, remaining=one_more, retry_after_us=wait)


EXACT_WINDOW = 1_000
"""Up to this limit, a rolling window is an exact log; above, a conservative ring."""

_COUNTING = (PeriodCounter, SpreadCounter)
"""The counters with periods of civil time; the others are rolling windows."""

_TEXT = re.compile(rf"\s*({COUNT})\s*/\s*(\S.*?)\s*", re.ASCII)


def rolling_window(limit: int, window: timedelta) -> SlidingWindowLog | SlidingWindow:
    """A window with never more than `limit` units: exact if that is cheap, otherwise conservative."""
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

    With `spread=True` the remaining units are released one by one, evenly over the remaining time. A call
    that comes too early waits; the quota is exhausted only when no units are left. A call of a higher cost
    leaves as any other does, and the next one waits longer. Worst burst: one call, then the limit in the rest
    of the period, however short: add a rate to bound that.

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
    """Whether the units are released evenly over the rest of the period."""
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

    @property
    def civil(self) -> bool:
        return self.counter.civil

    @property
    def max_cost(self) -> int:
        return self.limit

    owns = of_its("counter", Algorithm.owns)
    decide = of_its("counter", Algorithm.decide)
    booked = of_its("counter", Algorithm.booked)
    charge = of_its("counter", Algorithm.charge)
    earliest = of_its("counter", Algorithm.earliest)
    peek = of_its("counter", Algorithm.peek)
    forecast = of_its("counter", Algorithm.forecast)
    refund = of_its("counter", Algorithm.refund)
    refund_passed = of_its("counter", Algorithm.refund_passed)
    refund_many = of_its("counter", Algorithm.refund_many)
    debit = of_its("counter", Algorithm.debit)
    prospect = of_its("counter", Algorithm.prospect)
    together = of_its("counter", Algorithm.together)
    since = of_its("counter", Algorithm.since)
    shifted = of_its("counter", Algorithm.shifted)
    crowded = of_its("counter", Algorithm.crowded)
    rescheduled = of_its("counter", Algorithm.rescheduled)
    moved_receipt = of_its("counter", Algorithm.moved_receipt)
    brought = of_its("counter", Algorithm.brought)
    life = of_its("counter", Algorithm.life)
    inspect = of_its("counter", Algorithm.inspect)
    state_sent = of_its("counter", Algorithm.state_sent)
    state_received = of_its("counter", Algorithm.state_received)
    receipt_sent = of_its("counter", Algorithm.receipt_sent)
    receipt_received = of_its("counter", Algorithm.receipt_received)
    decision_received = of_its("counter", Algorithm.decision_received)

    def spent(self, state: Any, at: int, cost: int, skew: int = 0) -> bool:
        if isinstance(self.counter, _COUNTING):
            return self.counter.spent(state, at, cost, skew)
        return self.counter.earliest(state, at, cost, skew) > at

    def usage(self, state: Any, now: int, skew: int = 0) -> tuple[int, int]:
        """Units used in the current period, and the civil instant at which it ends.

        A rolling quota ends when all units would be free again without further calls.
        """
        if isinstance(self.counter, _COUNTING):
            return self.counter.usage(state, now, skew)
        seen = self.counter.peek(state, now, skew)
        return seen.current, seen.reset_at_us + skew

    def scaled(self, share: float | Fraction) -> Self:
        own: dict[str, Any] = dict(zip(self.fields, self._values(), strict=True))
        own["limit"] = part_of(self.limit, share)
        return type(self)(**own)

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Any:
        old = writer.counter
        if isinstance(self.counter, _COUNTING) is not isinstance(old, _COUNTING):
            fix = "use another name"
            raise ConfigError("per", self.per, f"cannot continue a quota per {writer.per}", fix)
        if isinstance(old, SpreadCounter) and not self.spread:
            return self.counter.adopt(state[0], old.counter, now, skew)
        return self.counter.adopt(state, old, now, skew)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        twin = self.counter.twin(instants)
        return twin if isinstance(self.counter, _COUNTING) else ["quota", twin]


class QuotaUsage(NamedTuple):
    """How much of a quota is used, and how much is left."""

    name: str
    """The name in the `decision` of a refusal: "quota", or in a composite the part's name (`outer.inner`)."""
    per: str
    """The period as given to `Quota`: `"month"`, `"fixed:30d"`, `"rolling:30d"`."""
    limit: int
    """Units per period."""
    used: int
    """Units charged in this period, including future slots; above `limit` if a call was settled for more."""
    remaining: int
    """Units left. Once a slot of a later period was granted, calls line up behind it and cannot use them."""
    resets_at: float
    """When the period ends, in epoch seconds; for a rolling quota, when all units are free again."""
    resets_in: float
    """Seconds until `resets_at`."""


def quotas_of(program: Algorithm[Any] | LeakyQueue, state: Any, now: int, skew: int) -> list[QuotaUsage]:
    """The usage of each quota of a program, including those in composites."""
    found = []
    for leaf in program.leaves(state, now, skew):
        if isinstance(leaf.limit, Quota):
            limit = leaf.limit.limit
            used, ends_us = leaf.limit.usage(leaf.state, leaf.at, leaf.skew)
            times = ends_us / SECOND_US, (ends_us - now - skew) / SECOND_US
            found.append(QuotaUsage(leaf.name, leaf.limit.per, limit, used, max(0, limit - used), *times))
    return found


def part_of(limit: int, share: object) -> int:
    """A share of a period's limit, but at least one unit."""
    part = int(limit * share_of(share))
    if part < 1:
        raise ConfigError("share", share, f"leaves nothing of a quota of {limit}", "use a larger share")
    return part


def place_of(state: Used, start: int) -> int:
    """The index of the first period that begins at `start` or later."""
    return 3 * bisect_left(range(0, len(state), 3), start, key=state.__getitem__)


def triples(state: Used) -> Iterator[tuple[int, int, int]]:
    """The three numbers of each period."""
    return zip(state[::3], state[1::3], state[2::3], strict=True)


def _paced(state: Spread | None, book: Used, start: int, pace: Pace) -> Spread:
    """The state with the paces of the periods in a book, and this one set."""
    paces = (state or _COLD)[1]
    place = place_of(paces, start)
    behind = place + 3 if paces[place : place + 1] == (start,) else place
    own = (start, *pace) if pace[1] and book[(at := place_of(book, start)) : at + 1] == (start,) else ()
    after = (*paces[:place], *own, *paces[behind:])
    if len(after) > len(book):
        known = set(book[::3])
        after = tuple(number for one in triples(after) if one[0] in known for number in one)
    return book, after


def _is_spread(spread: bool, limit: int, periods: Periods) -> bool:
    if boolean("spread", spread) and periods.cadence == "rolling":
        rate = f"{limit} per {seconds_text(periods.span_us)}"
        fix = f'use the rate "{rate}"'
        raise ConfigError("spread", spread, "needs a period that ends, and a rolling one does not", fix)
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
