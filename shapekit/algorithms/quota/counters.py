"""PeriodCounter: units used per period of civil time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import (
    MOST_UNITS,
    NEVER_US,
    Book,
    Counting,
    Decided,
    Outcome,
    counted,
    reborn,
    receipted,
    share_of,
)
from shapekit.algorithms.prospects import Periodic
from shapekit.algorithms.quota.periods import Periods
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError

_MAX_PERIODS = 2**9
"""Above this, the two periods before the newest are merged: refunds to the older one are then lost."""
_UNKNOWN = (0, 0)
_PRICE, _PRICE_IN_A_ZONE = 6, 30
"""What it costs a forecast to enter a period; see `prospects`."""
_new = tuple.__new__

Used: TypeAlias = tuple[int, ...]
"""`start, used, opened` of each known period, by start. `opened` is the instant, on the timeline of rates, at
which the period began or, if it holds future slots, will begin.
"""


class PeriodCounter(Counting[Used]):
    """At most `limit` units in each period of civil time, however often the date goes back to it.

    There are two ways to go back. If `now` is before the instant at which a period was opened, either the
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
            # Inline: this is the hot path of nearly every admitted call.
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

    def prospect(self, state: Used | None, at: int, cost: int, skew: int = 0) -> Periodic | None:
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
        # A debt beyond all counting is cut to the largest number that a double holds exactly.
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
            # What was used in the present period may all have been used in the new one.
            last = civil if begun <= civil < ended else ended - 1
            start = self.periods.bounds(last)[0]
            before, first_opened = book.get(start, (0, opened - begun + start))
            book[start] = (before + used, min(first_opened, opened - begun + start))
        return tuple(number for start in sorted(book) for number in (start, *book[start]))

    def inspect(self, state: Any) -> None:
        # With an arbitrary number of periods, the search for a free one might never end.
        starts = [*state[::3]]
        if len(starts) > _MAX_PERIODS or len(state) % 3 or starts != sorted(set(starts)):
            raise ValueError("these are no periods")
        sum(state)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["quota/counters", self.limit, self.periods.twin(instants)]

    def _waits_until(self, state: Used | None, at: int, skew: int) -> int:
        """When the latest future period opens: it holds future slots, or the clock went back. 0 if there is
        none.
        """
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
        """The start and opening of periods that may end last: no period is more than twice as long as
        another.
        """
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


def part_of(limit: int, share: object) -> int:
    """A share of a period's limit; at least one unit."""
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
