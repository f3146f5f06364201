"""What every algorithm is: a value object with pure operations on a state.

An algorithm never reads a clock and never does I/O: it is handed the time and a state, and returns a
new state. `None` is the cold state. A state is made of integers and tuples alone, is never mutated,
and round-trips through JSON. Times are epoch microseconds.

The laws, which the property tests hold against every algorithm:

- a denial consumes and persists nothing;
- a call that was denied and is repeated at `retry_after`, with nothing in between, is admitted; one
  microsecond earlier it is not. `check` at `earliest` admits;
- capacity is never minted: not by time (also where time goes back), refunds, expiry or order;
- a cold key admits exactly its burst.

`cost` is checked by whoever talks to callers (`check_cost`), once, before any state is touched.
`skew` is how far civil time is ahead of `now`; stores measure it for `civil` algorithms alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction
from math import ceil
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from shapekit._runtime.value import Value
from shapekit.algorithms.operation import NOWHERE, Moment, Operation, Side, Undo, side_of, turned
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError, CostExceedsLimitError, span_words
from shapekit.rate import MAX_COUNT, MAX_SPAN_US, Rate, RateLike, duration_us, exactly, whole

__all__ = ["Algorithm", "Outcome"]

S = TypeVar("S")

_new = tuple.__new__

NEVER_US = 2**53
"""Later than any instant: the wait that no waiting ends."""


class Outcome(NamedTuple, Generic[S]):
    """What an operation decided, and what is to be stored.

    `ttl_us` is how long the state differs from a cold one. Where `persist` is false, nothing changed.
    """

    state: S | None
    """The state after the operation."""
    decision: Decision
    """What was decided."""
    ttl_us: int
    """How long the state differs from a cold one, in microseconds."""
    persist: bool
    """Whether the state is to be stored; where false, nothing changed."""


Decided: TypeAlias = tuple[S | None, Decision, int, bool]
"""An Outcome without its names: what the path of every admitted call returns."""


Runs: TypeAlias = tuple[int, ...]
"""`from, to` of each run of units, ascending; no two touch."""
Settled: TypeAlias = tuple[()] | tuple[int, int, Runs, tuple[int, ...]]
"""When the limit has forgotten the units before a mark, that mark, the units that were given back, and
`life, last unit` of each charge that a debit was added to, in the order of the debits."""
Book: TypeAlias = tuple[Any, int, int, Settled]
"""What a Ledger keeps: the limit's state, when its life began, units charged in it, and what is settled."""
MOST_UNITS = 2**53 - 1
"""Above it a new life begins: the twin's doubles count no further."""


class Algorithm(Value, ABC, Generic[S]):
    """A limit, as a pure function of state and time."""

    __slots__ = ()

    kind: ClassVar[str]
    """The name of the algorithm in stored state. One name on a store has one kind."""
    limit_name: ClassVar[str] = "limit"
    """What bounds a cost, in the words of the constructor."""

    def alone(self, state: Any) -> tuple[Algorithm[Any], Any]:
        """The limit itself and its state, without what a Ledger keeps beside it."""
        return self, state

    def owns(self, receipt: Receipt) -> bool:
        """Whether a receipt has the form of its own."""
        return type(receipt) is int

    @property
    def uncharged(self) -> Receipt:
        """The receipt of a call that was charged nowhere."""
        return NOWHERE

    @property
    def civil(self) -> bool:
        """Whether the operations depend on civil time."""
        return False

    @property
    def aligned(self) -> bool:
        """Whether instants mean something by themselves, as the boundaries of windows do."""
        return False

    @property
    @abstractmethod
    def max_cost(self) -> int:
        """The largest cost that can ever be admitted."""

    @abstractmethod
    def decide(self, state: S | None, now: int, cost: int, skew: int = 0) -> Decided[S]:
        """`check`, as a bare tuple."""

    def check(self, state: S | None, now: int, cost: int, skew: int = 0) -> Outcome[S]:
        """Now? Admits and charges, or denies and leaves everything as it was."""
        return Outcome(*self.decide(state, now, cost, skew))

    def booked(self, book: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        """`decide` on a state that a Ledger keeps, with a receipt that names the charge.

        The path of every admitted call of a gate, which the algorithms of one limit write out.
        """
        state, born, charged, settled = book or (None, now, 0, ())
        after, decision, life, admitted = self.decide(state, now, cost, skew)
        if not admitted:
            return book, decision, 0, False
        after_that = counted((after, born, charged, settled), after, now, cost)
        return after_that, receipted(after_that, decision, cost), life, True

    @abstractmethod
    def earliest(self, state: S | None, at: int, cost: int, skew: int = 0) -> int:
        """When? The first instant, not before `at`, at which `cost` is admitted."""

    @abstractmethod
    def peek(self, state: S | None, now: int, skew: int = 0) -> Decision:
        """What a call of cost 1 would be told. Consumes nothing."""

    @abstractmethod
    def forecast(self, state: S | None, now: int, cost: int, skew: int = 0) -> Forecast:
        """When a call of `cost` is admitted, and how many would be now."""

    @abstractmethod
    def refund(self, state: S | None, now: int, cost: int, charged_at: Receipt, skew: int = 0) -> Outcome[S]:
        """Give `cost` back to the charge with this receipt, as far as that mints nothing.

        Afterwards the key is never more permissive than if those units had never been charged.
        `charged_at` is the `receipt` of the decision; the instant of the charge is safe too, but
        may return less. A limit does not know whose units it counts: who asks it says no more than was
        charged, and that once. A gate sees to both.
        """

    def cut(self, state: S | None, now: int, charged_at: Receipt) -> S | None:
        """The state without all that was charged later than this, which was given back before."""
        return state

    def together(self, charged_at: int) -> int | None:
        """What the instants of charges have in common that are given back alike.

        None where the instant is not enough to give a charge back.
        """
        return None

    def refund_many(
        self, state: S | None, now: int, charges: Sequence[Sequence[int]], skew: int = 0
    ) -> S | None:
        """The state after units were given back to each of these instants, which ascend."""
        for charged_at, units in reversed(charges):
            state = self.refund(state, now, units, charged_at, skew).state
        return state

    @abstractmethod
    def debit(
        self, state: S | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[S]:
        """Charge without asking, into debt if need be: time repays it.

        `charged_at`, the receipt of an earlier charge, says which alternatives of a composite pay.
        """

    @abstractmethod
    def scaled(self, share: float | Fraction) -> Algorithm[S]:
        """The same limit at a share of its rate, `0 < share <= 1`."""

    @abstractmethod
    def adopt(self, state: S, writer: Any, now: int, skew: int = 0) -> S | None:
        """A state that `writer`, of the same kind but with other numbers, left: as a state of this one.

        A changed limit continues where the old one stood; it never starts afresh. What cannot be placed
        exactly is placed as late as it can have been.
        """

    def inspect(self, state: Any) -> None:
        """Look at a state that was read: a misfit where no program of this kind can have written it.

        All that could take for ever, or be answered with what is no number, has to be refused here.
        """

    @abstractmethod
    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is made of: the name of its file, and its numbers, as plain lists.

        `instants` are moments of civil time for which it has to hold, where that makes a difference.
        """

    def state_sent(self, state: S) -> Any:
        """A state as the twin has it: numbers below 2^53, in lists."""
        return state

    def state_received(self, sent: Any) -> S:
        """A state that the twin sent."""
        state: S = as_tuple(sent)
        return state

    def receipt_sent(self, receipt: Receipt) -> Any:
        """A receipt as the twin has it."""
        return receipt

    def receipt_received(self, sent: Any) -> Receipt:
        """A receipt that the twin sent."""
        receipt: Receipt = as_tuple(sent)
        return receipt

    def decision_received(self, sent: Any) -> Decision:
        """A decision that the twin sent."""
        return decision_of(sent, self.receipt_received)

    @abstractmethod
    def charge(self, state: S | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[S]:
        """Charge a slot at `due >= now`, an instant that `earliest` gave. The ttl counts from `now`.

        What it keeps of the past is what `now` still needs, so that giving back slots that are still
        to come leaves the key as it was without them.
        """

    def life(self, state: S, now: int, skew: int = 0) -> int:
        """How long from `now` the state differs from a cold one."""
        return max(0, self.forecast(state, now, 1, skew).full_at_us - now)

    def spent(self, state: S | None, at: int, cost: int, skew: int = 0) -> bool:
        """Whether it is a budget that denies at `at`: nobody waits for the next period unasked."""
        return False


class Counting(Algorithm[S]):
    """A limit that counts: so many units in a window, or in a period.

    Each kind says `booked`, `refund_many`, and by `_decision` how a key stands.
    """

    __slots__ = ()

    limit: int

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: S | None, now: int, cost: int, skew: int = 0) -> Decided[S]:
        return bare(self.booked, state, now, cost, skew)

    def peek(self, state: S | None, now: int, skew: int = 0) -> Decision:
        return self._decision(state, now, 1, skew)

    def forecast(self, state: S | None, now: int, cost: int, skew: int = 0) -> Forecast:
        seen = self.peek(state, now, skew)
        fits = seen.remaining // cost if seen.allowed else 0
        return Forecast(self.earliest(state, now, cost, skew), fits, seen.reset_at_us)

    def refund(self, state: S | None, now: int, cost: int, charged_at: Receipt, skew: int = 0) -> Outcome[S]:
        if isinstance(charged_at, int):
            after = self.refund_many(state, now, ((charged_at, cost),), skew)
            if after is not None and after is not state:
                return self._settled(after, now, skew)
        return Outcome(state, self.peek(state, now, skew), 0, False)

    def _settled(self, state: S, now: int, skew: int = 0, receipt: Receipt = None) -> Outcome[S]:
        decision = self._decision(state, now, 1, skew)._replace(receipt=receipt)
        return Outcome(state, decision, self._lasts(state, now, skew), True)

    def _lasts(self, state: S, now: int, skew: int) -> int:
        """How long a state is kept that was settled."""
        return self.life(state, now, skew)

    @abstractmethod
    def _decision(self, state: S | None, now: int, cost: int, skew: int = 0) -> Decision:
        """What a call is told that takes nothing."""


class Window(Counting[S]):
    """A limit that is full again so long after its last charge, whatever came before."""

    __slots__ = ()

    def decision_received(self, sent: Any) -> Decision:
        if len(sent) > 2:
            return decision_of(sent, self.receipt_received)
        # An admission in brief.
        now, used = sent
        return self._admitted(used, now)

    def _admitted(self, used: int, charged_at: int) -> Decision:
        """What a call is told that was charged then, and last."""
        full = self._full_after(charged_at)
        return Decision(True, self.limit, used, self.limit - used, full, 0, None, charged_at)

    @abstractmethod
    def _full_after(self, charged_at: int) -> int:
        """When all is free again, if nothing is charged later than this."""


def bare(booked: Callable[..., Decided[Book]], state: Any, now: int, cost: int, skew: int) -> Decided[Any]:
    """`decide`, by the path that is written out."""
    book = None if state is None else (state, now, 0, ())
    after, decision, life, admitted = booked(book, now, cost, skew)
    if after is None or not admitted:
        return state, decision, life, False
    named: Any = decision.receipt
    return after[0], decision._replace(receipt=named[-1]), life, True


def counted(book: Book | None, after: Any, now: int, cost: int) -> Book:
    """The book with a charge more."""
    _, born, charged, settled = book or (None, now, 0, ())
    charged += cost
    return (after, born, charged, settled) if charged <= MOST_UNITS else (after, *reborn(born, now, cost))


def reborn(born: int, now: int, cost: int) -> tuple[int, int, Settled]:
    """A new life where the units of the last one are too many to be counted on, and its first charge."""
    return max(now, born + 1), cost, ()


def receipted(book: Book, decision: Decision, cost: int) -> Decision:
    """The decision with a receipt that names its charge, the newest in the book."""
    return _new(Decision, (*decision[:7], (book[1], book[2], cost, decision[7]), *decision[8:]))


def as_tuple(sent: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(as_tuple, sent)) if isinstance(sent, list) else sent


def decision_of(sent: Any, receipt_received: Callable[[Any], Receipt] = as_tuple) -> Decision:
    """A decision as a twin sends it, its text as bytes or decoded already."""
    allowed, limit, current, remaining, reset_at, retry_after, binding, receipt = sent
    told = binding.decode() if binding.__class__ is bytes else binding
    charged = None if receipt is None else receipt_received(receipt)
    return _new(
        Decision,
        (allowed == 1, limit, current, remaining, reset_at, retry_after, told, charged, 0),
    )


def check_cost(cost: object, max_cost: int, key: str, what: str, policy: str) -> int:
    """`cost` if some wait can admit it, else ConfigError or CostExceedsLimitError."""
    if type(cost) is not int or cost < 1:
        raise ConfigError("cost", cost, "is not a whole number of at least 1", "pass an int such as 1")
    if cost > max_cost:
        raise CostExceedsLimitError(cost, max_cost, key, what, policy)
    return cost


def share_of(share: object) -> Fraction:
    """A share as a simple fraction: 1 / 3 means one third."""
    exact = exactly(share)
    if exact is None or not 0 < exact <= 1 or not (exact := exact.limit_denominator(1_000_000)):
        raise ConfigError("share", share, "is not above 0 and at most 1", "pass 1 / number of workers")
    return exact


def slowed(rate: Rate, part: Fraction) -> Rate:
    """A part of a rate: exact, or where the numbers grow out of bounds, a hair slower."""
    per_us = Fraction(rate.limit, rate.period_us) * part
    if per_us.numerator <= MAX_COUNT and per_us.denominator <= MAX_SPAN_US:
        return Rate.of(per_us.numerator, per_us.denominator)
    longest_us = min(MAX_SPAN_US, int(MAX_COUNT / per_us))
    if per_us * longest_us < 1:
        raise _too_small(part)
    return Rate.of(int(per_us * longest_us), longest_us)


def scaled_window(limit: int, window_us: int, share: Fraction) -> tuple[int, timedelta]:
    """A share of a window's limit; where that is less than one call, one call in a longer window."""
    if limit * share >= 1:
        return int(limit * share), timedelta(microseconds=window_us)
    longer_us = ceil(window_us / (limit * share))
    if longer_us > MAX_SPAN_US:
        raise _too_small(share)
    return 1, timedelta(microseconds=longer_us)


def _too_small(share: Fraction) -> ConfigError:
    problem = f"leaves less than a call in {span_words(MAX_SPAN_US)}"
    return ConfigError("share", share, problem, "use a larger one")


def windowed(limit: object, window: object, field: str = "window") -> tuple[int, int]:
    """`(limit, window_us)` from `("100/min", None)`, `(Rate, None)` or `(100, "1m")`."""
    if window is None:
        if isinstance(limit, (str, Rate)):
            rate = Rate.parse(limit, "limit")
            if rate.burst is not None:
                raise ConfigError(
                    "limit", limit, "has a burst, and a window has none", "leave the burst away"
                )
            return rate.limit, rate.period_us
        raise ConfigError(
            field, window, "is missing", 'write both, as (100, "1m"), or one text, as "100/min"'
        )
    if isinstance(limit, (str, Rate)):
        raise ConfigError(field, window, "comes on top of a rate that has a period", "give the window once")
    return whole("limit", limit), duration_us(field, window)


def paced(rate: RateLike, burst: object, field: str) -> tuple[Rate, int]:
    """The rate, and the burst it was given in text or as an argument; the limit if neither."""
    parsed = Rate.parse(rate)
    if parsed.burst is not None and burst is not None:
        raise ConfigError(field, burst, "comes on top of the burst in the rate", "give the burst once")
    if burst is None:
        return parsed, parsed.limit if parsed.burst is None else parsed.burst
    return parsed, whole(field, burst)


class _Charging(Operation):
    """What a gate decides about a charge."""

    def sent(self, program: Algorithm[Any], args: tuple[Any, ...]) -> Sequence[Any]:
        cost, *receipt = args
        return (cost, *map(program.receipt_sent, receipt))

    def received(self, program: Algorithm[Any], sent: Any) -> Decision:
        return program.decision_received(sent)

    def given(self, program: Any, part: Any, answer: Decision) -> Decision:
        return answer if answer.receipt is None else answer._replace(receipt=turned(answer.receipt))

    def opened(self, program: Algorithm[Any], at: Moment, args: tuple[Any, ...]) -> Decision:
        return program.peek(None, at.instant, at.skew)


class _Check(_Charging):
    name = "check"
    most_cost = "true"

    def step(self, program: Any) -> Callable[..., Any]:
        decide: Callable[..., Any] = program.decide
        return decide

    def sent(self, program: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        return args

    def undone(self, args: tuple[Any, ...], answer: Decision) -> tuple[Undo, ...]:
        return ((REFUND, (args[0], answer.receipt)),) if answer.allowed else ()

    def cost(self, args: tuple[Any, ...]) -> int:
        cost: int = args[0]
        return cost

    def opened(self, program: Algorithm[Any], at: Moment, args: tuple[Any, ...]) -> Decision:
        decision = program.check(None, at.instant, args[0], at.skew).decision
        return decision._replace(receipt=program.uncharged)


class _Refund(_Charging):
    name = "refund"
    most_cost = str(MAX_COUNT)
    follows = True
    needs_store = False

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        cost, receipt = args
        side = side_of(receipt)
        return side, (cost, turned(receipt) if side is Side.LOCAL else receipt)


class _Debit(_Charging):
    name = "debit"
    most_cost = str(MAX_COUNT)
    follows = True

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        # What a call turns out to cost more is charged where calls are charged now.
        cost, receipt = args
        side = side_of(receipt)
        known = None if side is Side.NOWHERE else turned(receipt) if side is Side.LOCAL else receipt
        return Side.PRIMARY, (cost, known)


class _Peek(Operation):
    name = "peek"
    is_read = True

    def received(self, program: Algorithm[Any], sent: Any) -> Decision:
        return program.decision_received(sent)


class _Forecast(Operation):
    name = "forecast"
    is_read = True
    most_cost = "true"

    def received(self, program: Any, sent: Any) -> Forecast:
        return Forecast(*sent)

    def cost(self, args: tuple[Any, ...]) -> int:
        cost: int = args[0]
        return cost

    def closed(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Forecast:
        later = at.instant + at.wait_us
        return Forecast(later, 0, later)


CHECK, REFUND, DEBIT, PEEK, FORECAST = _Check(), _Refund(), _Debit(), _Peek(), _Forecast()
_Refund.instead = PEEK
