"""Ledger: a limit that identifies its charges, so that each one is given back at most once.

A limit knows how many units are in use but not by which call, so it would apply a repeated refund twice. A
ledger numbers the units charged in one life of the state, from 0 on, and a receipt names the units of its
charge: `(when the life began, the last unit, how many, the limit's own receipt)`. The ledger also keeps the
units that were given back, as runs that merge. So no unit is given back twice, whatever receipt is presented,
and never more than was charged.

A life begins with the first charge of a cold key and is named by that microsecond: a receipt from before a
reset names no charge after it. If there are too many runs to remember, the charges between the oldest two
count as given back, and so do charges that the limit has forgotten meanwhile: this may refuse a late refund,
but never grants one twice. A debit that was forgotten, in contrast, would be charged again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from shapekit.algorithms.base import (
    MOST_UNITS,
    NOWHERE,
    Algorithm,
    Book,
    Decided,
    Leaf,
    Outcome,
    Settled,
    as_tuple,
    counted,
    decision_of,
    receipted,
)
from shapekit.algorithms.compose import Composite, adopted
from shapekit.decision import Decision, Forecast, Receipt

MOST_RUNS = 64
MOST_DEBITS = 64
NAMED = 4
"""The length of a receipt."""
_FAR = 2**128


class Ledger(Algorithm[Book]):
    """A limit that identifies its charges.

    >>> from shapekit import FixedWindow
    >>> ledger = Ledger(FixedWindow("5/s"))
    >>> state, charged, _, _ = ledger.check(None, 0, 3)
    >>> once = ledger.refund(state, 0, 9, charged.receipt)
    >>> once.decision.remaining, ledger.refund(once.state, 0, 9, charged.receipt).persist
    (5, False)
    """

    fields = ("limit",)
    __slots__ = (*fields, "_decide")

    limit: Algorithm[Any]
    _decide: Callable[..., Decided[Book]]

    def __init__(self, limit: Algorithm[Any]) -> None:
        self._fill(limit=limit, _decide=limit.booked)

    @property
    def uncharged(self) -> Receipt:
        return (NOWHERE,) * NAMED

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.limit.kind

    @property
    def limit_name(self) -> str:  # type: ignore[override]
        return self.limit.limit_name

    @property
    def civil(self) -> bool:
        return self.limit.civil

    @property
    def aligned(self) -> bool:
        return self.limit.aligned

    @property
    def max_cost(self) -> int:
        return self.limit.max_cost

    def alone(self, state: Any) -> tuple[Algorithm[Any], Any]:
        return self.limit, None if state is None else state[0]

    def leaves(self, state: Any, at: int, skew: int, name: str = "") -> Iterator[Leaf]:
        return self.limit.leaves(_limits(state), at, skew, name)

    def owns(self, receipt: Receipt) -> bool:
        if not isinstance(receipt, tuple) or len(receipt) != NAMED:
            return False
        *name, own = receipt
        numbers = [number for number in name if type(number) is int and abs(number) <= MOST_UNITS]
        return len(numbers) == len(name) and (
            (-_FAR < own < _FAR) if type(own) is int else self.limit.owns(own)
        )

    @property
    def decide(self) -> Callable[..., Decided[Book]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._decide

    def charge(self, state: Book | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Book]:
        after, decision, life, _ = self.limit.charge(_limits(state), now, due, cost, skew)
        book = counted(state, after, now, cost)
        return book, receipted(book, decision, cost), life, True

    def earliest(self, state: Book | None, at: int, cost: int, skew: int = 0) -> int:
        return self.limit.earliest(_limits(state), at, cost, skew)

    def peek(self, state: Book | None, now: int, skew: int = 0) -> Decision:
        return self.limit.peek(_limits(state), now, skew)

    def forecast(self, state: Book | None, now: int, cost: int, skew: int = 0) -> Forecast:
        return self.limit.forecast(_limits(state), now, cost, skew)

    def life(self, state: Book, now: int, skew: int = 0) -> int:
        return self.limit.life(state[0], now, skew)

    def refund(
        self, state: Book | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Book]:
        """Give back at most what was charged, once: a second refund of the same receipt does nothing."""
        if state is not None and self.owns(charged_at):
            own_receipt: Any = charged_at
            life, last, units, receipt = own_receipt
            before, born, charged, settled = state
            if life == born and 0 < units <= last <= charged:
                ends = now + self.limit.life(before, now, skew)
                after = _given_back(settled, last - units, last, now, ends, charged)
                back = self.limit.refund_passed(before, now, min(cost, units), receipt, skew)
                if after is not None and back.persist:
                    return back._replace(state=(back.state, born, charged, after))
        return Outcome(state, self.peek(state, now, skew), 0, False)

    def debit(
        self, state: Book | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Book]:
        """Charge unconditionally: once per receipt; without a receipt, each time."""
        name: tuple[int, ...] = ()
        if self.owns(charged_at):
            own_receipt: Any = charged_at
            name = own_receipt[:2]
            settled = state[3] if state else ()
            if settled and name in {*zip(settled[3][::2], settled[3][1::2], strict=True)}:
                return Outcome(state, self.peek(state, now, skew), 0, False)
        after, decision, life, _ = self.limit.debit(_limits(state), now, cost, None, skew)
        book = counted(state, after, now, cost)
        answer = receipted(book, decision, cost)
        if name:
            until, mark, runs, debits = book[3] or (now + life, book[2], (), ())
            book = (*book[:3], (until, mark, runs, (*debits, *name)[-2 * MOST_DEBITS :]))
        return Outcome(book, answer, life, True)

    def scaled(self, share: float | Fraction) -> Ledger:
        return Ledger(self.limit.scaled(share))

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Book:
        limit, before = writer.alone(state)
        after = adopted(self.limit, before, limit, now, skew)
        if limit is writer:
            return after, now, 0, ()
        _, born, charged, settled = state
        if after == before:
            return after, born, charged, settled
        # The changed limit may have moved the charges, so older receipts must not match: a new life.
        return after, max(now, born + 1), 0, ()

    def inspect(self, state: Any) -> None:
        before, born, charged, settled = state
        if not (0 <= born <= MOST_UNITS and 0 <= charged <= MOST_UNITS):
            raise ValueError("malformed charges")
        if settled:
            until, mark, runs, debits = settled
            sum((until, *debits))
            if not 0 < mark <= MOST_UNITS:
                raise ValueError("malformed mark")
            if len(runs) > 2 * MOST_RUNS or len(debits) > 2 * MOST_DEBITS or len(runs) % 2 or len(debits) % 2:
                raise ValueError("malformed settlements")
            if not all(first < last for first, last in pairwise(runs)):
                raise ValueError("malformed runs")
        self.limit.inspect(before)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["ledger", self.limit.twin(instants)]

    def state_sent(self, state: Book) -> Any:
        before, *rest = state
        return [self.limit.state_sent(before), *rest]

    def state_received(self, sent: Any) -> Book:
        before, *rest = sent
        return self.limit.state_received(before), *as_tuple(rest)

    def before_run(self, sent: Any) -> Book | None:
        if not sent:
            return None
        born, charged, *limit = sent
        return self.limit.before_run(limit), born, charged, ()

    def receipt_sent(self, receipt: Receipt) -> Any:
        if not isinstance(receipt, tuple):
            return None
        *name, own = receipt
        return [*name, self.limit.receipt_sent(own)]

    def receipt_received(self, sent: Any) -> Receipt:
        born, last, units, own = sent
        return born, last, units, self.limit.receipt_received(own)

    def decision_received(self, sent: Any) -> Decision:
        *fields, born, charged, cost = sent
        if cost.__class__ is not int:  # the full form, which ends with a receipt or None
            return decision_of(sent, self.receipt_received)
        return receipted((None, born, charged, ()), self.limit.decision_received(fields), cost)


def ledgered(limit: Algorithm[Any]) -> Algorithm[Any]:
    """The limit with a ledger; of a composite, each part with its own."""
    if not isinstance(limit, Composite):
        return Ledger(limit)
    return type(limit)({name: ledgered(part) for name, part in zip(limit.names, limit.parts, strict=True)})


def _limits(state: Book | None) -> Any:
    return None if state is None else state[0]


def _given_back(settled: Settled, first: int, last: int, now: int, ends: int, charged: int) -> Settled | None:
    """The settled units with `first` to `last` added; None if one was given back. Charges end at `ends`."""
    until, mark, runs, debits = settled or (ends, charged, (), ())
    if now >= until:
        # The limit has forgotten the charges before the mark.
        at = bisect_right(runs, mark)
        runs = (0, *(runs[at:] if at % 2 else (mark, *runs[at:])))
        until, mark = ends, charged
    at = bisect_right(runs, first)
    if at % 2 or (at < len(runs) and runs[at] < last):
        return None
    before, after = runs[:at], runs[at:]
    before = before[:-1] if before and before[-1] == first else (*before, first)
    after = after[1:] if after and after[0] == last else (last, *after)
    runs = before + after
    if len(runs) > 2 * MOST_RUNS:
        runs = (runs[0], *runs[3:])
    return until, mark, runs, debits
