"""SpreadCounter: a budget per period, spent evenly over what is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import Counting, Decided, Outcome
from shapekit.algorithms.quota.counters import PeriodCounter, Used, place_of, triples
from shapekit.algorithms.quota.periods import Periods
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.rate import MAX_COUNT

Pace: TypeAlias = tuple[int, int]
"""The instant and the cost of the last charge in a period; a cost of 0 means none."""
Spread: TypeAlias = tuple[Used, tuple[int, ...]]
"""The state of the counter, and `start, due, cost` of each of its periods with a pace, by start."""

_COLD: Spread = ((), ())
_NONE: Pace = (0, 0)
_RECEIPT = 4
"""The length of a receipt: the civil instant of the charge, its departure, and the pace before it."""


class SpreadCounter(Counting[Spread]):
    """A period counter that releases units one by one: what is left, evenly over the time that is left.

    A charge of `cost` at `due`, before which `left` units were left, takes its part of the time until the
    period's `end`: the next may leave at `due + cost * (end - due) / left`, rounded up to a microsecond. So
    from any instant on, the charges are at most one ahead of the straight line to the end of the period, a
    caller that idled catches up by the end, and the last unit lasts until then.

    That instant is not stored but follows from the last charge and the count. So units that come back, from
    whichever call, are spread over the rest as if they had never been charged. A receipt contains the last
    charge before its own: so the newest charge can be given back too.
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
        told = receipt if isinstance(receipt, tuple) else (receipt,)
        return len(told) in (1, _RECEIPT) and all(type(number) is int for number in told)

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
            # A new period has a pace of its own, and so does one that is no longer remembered.
            at = min(ready, end - skew, opened + 2 * (end - start))

    def spent(self, state: Spread | None, at: int, cost: int, skew: int = 0) -> bool:
        # A paced call waits for budget that is still there.
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
        book, _ = state or _COLD
        told: Any = charged_at if isinstance(charged_at, tuple) else (charged_at,)
        civil, *charge = told
        counted = self.counter.refund(book, now, cost, civil, skew)
        if not counted.persist or not isinstance(civil, int):
            return Outcome(state, self.peek(state, now, skew), 0, False)
        start, _ = self.periods.bounds(civil)
        due, units = self._pace(state, start, now)
        if charge and due == charge[0]:
            # No later charge depends on it: keep what is left of it, or the one before.
            due, units = (due, units - cost) if units > cost else (charge[1], charge[2])
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
        # A debt takes its part of the time after what is charged, as a waiting call would.
        due = max(civil - skew, self._ready(used, before, end - skew))
        after = _paced(state, counted.state or (), start, (due, cost))
        return self._settled(after, now, skew, (civil, due, *before))

    def scaled(self, share: float | Fraction) -> Self:
        part = self.counter.scaled(share)
        return type(self)(part.limit, part.periods)

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Spread:
        if isinstance(writer, PeriodCounter):
            # Used units stay used; what is left is spread from the next call on.
            return self.counter.adopt(state, writer, now, skew), ()
        book, paces = state
        kept = self.counter.adopt(book, writer.counter, now, skew)
        if self.periods == writer.periods:
            return kept, paces
        newest = max(triples(paces), key=lambda pace: pace[1], default=(0, *_NONE))
        return kept, tuple(number for start in kept[::3] if newest[2] for number in (start, *newest[1:]))

    def life(self, state: Spread, now: int, skew: int = 0) -> int:
        return self.counter.life(state[0], now, skew)

    def inspect(self, state: Any) -> None:
        book, paces = state
        self.counter.inspect(book)
        self.counter.inspect(paces)
        if not all(0 < cost <= MAX_COUNT for cost in paces[2::3]):
            raise ValueError("these are no costs")

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["quota/spread", *self.counter.twin(instants)[1:]]

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


def _paced(state: Spread | None, book: Used, start: int, pace: Pace) -> Spread:
    """The paces of the periods in a book, with this one set."""
    paces = (state or _COLD)[1]
    place = place_of(paces, start)
    behind = place + 3 if paces[place : place + 1] == (start,) else place
    own = (start, *pace) if pace[1] and book[(at := place_of(book, start)) : at + 1] == (start,) else ()
    after = (*paces[:place], *own, *paces[behind:])
    if len(after) > len(book):
        known = set(book[::3])
        after = tuple(number for one in triples(after) if one[0] in known for number in one)
    return book, after
