"""The base of all algorithms: a value object with pure operations on a state.

An algorithm never reads a clock and never does I/O: it takes the time and a state, and returns a new state.
`None` is the cold state. A state consists of integers and tuples only, is never mutated, and round-trips
through JSON. Times are epoch microseconds.

The laws, which property tests check for every algorithm:

- a denial consumes and persists nothing;
- a denied call that is repeated after `retry_after`, with nothing in between, is admitted; one microsecond
  earlier it is not. `check` at `earliest` admits;
- capacity is never created: not by time (even if time goes back), refunds, expiry or order;
- a cold key admits exactly its burst.

`cost` is checked once, where calls come in (`check_cost`), before any state is touched. `skew` is how far
civil time is ahead of `now`; stores measure it only for `civil` algorithms.

Operation: one method of a program, with all that a store has to know about it.

An operation is an object beside the program that owns it: CHECK in base.py, RESERVE in queue/queue.py. A
store runs its `step`, or sends what `sent` returns and reads the answer with `received`. If the caller has
gone, the store runs the operations that `undone` returns. The other methods answer while the store is gone.

Sides: while a store is gone, a fallback may charge calls. The identifiers that it hands out, a grant's
generation or a decision's receipt, are turned negative. So a cancel or refund goes to the side that charged
the call, and has no effect on the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from math import ceil
from operator import attrgetter
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, cast

from shapekit.algorithms.prospects import Prospect
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError, CostExceedsLimitError, span_words
from shapekit.rate import MAX_COUNT, MAX_SPAN_US, Rate, RateLike, Value, duration_us, exactly, whole

__all__ = ["Algorithm", "Operation", "Outcome"]


S = TypeVar("S")
A = TypeVar("A")
T = TypeVar("T", bound=Callable[..., Any])

_new = tuple.__new__

NEVER_US = 2**53
"""Later than any instant: the wait of a call that can never be admitted."""
END_US = 2**52
"""Positions, debts and instants are capped here, so that a double can still hold the sums."""


class Outcome(NamedTuple, Generic[S]):
    """The result of an operation: its decision, and what to store.

    `ttl_us` is how long the state differs from a cold one. If `persist` is false, nothing changed.
    """

    state: S | None
    """The state after the operation."""
    decision: Decision
    """The decision."""
    ttl_us: int
    """How long the state differs from a cold one, in microseconds."""
    persist: bool
    """Whether to store the state; if false, nothing changed."""


Stepped: TypeAlias = tuple[S, A, int, bool]
"""What an operation returns: the new state, its answer, how long the state lives, and whether to store it."""
Decided: TypeAlias = Stepped[S | None, Decision]
"""An Outcome without names, as the hot path returns it."""
Bounds: TypeAlias = Callable[[int], tuple[int, int]]
"""When the period of an instant begins and ends."""


Runs: TypeAlias = tuple[int, ...]
"""`from, to` of each run of units, ascending; no two runs touch."""
Settled: TypeAlias = tuple[()] | tuple[int, int, Runs, tuple[int, ...]]
"""When the limit will have forgotten the units before the mark, the mark, the units given back, and `life,
last unit` of each charge with a debit, in the order of the debits.
"""
Book: TypeAlias = tuple[Any, int, int, Settled]
"""The state of a Ledger: the limit's, when its life began, the units charged in it, what is settled."""
MOST_UNITS = 2**53 - 1
"""Above this a new life begins: the twin counts in doubles, which are exact up to here."""


class Shift(NamedTuple):
    """How a hold, or its end, has moved waiting calls. All instants are those from before the move."""

    present: int
    """The present: calls that were due by then may have left."""
    first: int
    """The first departure that has moved."""
    newest: int
    """The last departure that has moved."""
    by: int
    """How much later the calls leave; negative if they leave sooner."""
    most: Callable[[int], int]
    """How many units at most were due at an instant or later."""
    pauses: Sequence[tuple[int, int]]
    """Pairs of departures between which no call was due, as far as known."""

    def counts(self, counts: Iterable[tuple[int, int]], bounds: Bounds) -> dict[int, int]:
        """The counts of periods after the move, by their start.

        A state does not tell at which instants the calls of a period were due. So a period counts all calls
        that may leave in it, and two periods may count the same call. What a hold takes from a period, the
        end of the hold gives back.
        """
        by = self.by
        after: dict[int, int] = {}

        def add(start: int, units: int) -> None:
            if units:
                after[start] = min(after.get(start, 0) + units, MOST_UNITS)

        for begun, count in counts:
            end = bounds(begun)[1]
            at, last = self._next(max(begun, self.first)), min(end - 1, self.newest)
            has_begun = begun <= self.present
            if at > last or (has_begun and at + by < end):
                add(begun, count)
            elif has_begun:
                add(begun, count - min(count, self.most(at)))
            while at <= last:
                start, over = bounds(at + by)
                if start != begun or not has_begun:
                    add(start, count if by < 0 else min(count, self.most(at)))
                at = self._next(over - by)
        return dict(sorted(after.items()))

    def later(self, ahead: int) -> Shift:
        """The same on a timeline that is ahead."""
        present, first, newest = (at + ahead for at in self[:3])
        pauses = [(left + ahead, following + ahead) for left, following in self.pauses]
        return Shift(present, first, newest, self.by, lambda at: self.most(at - ahead), pauses)

    def _next(self, at: int) -> int:
        """The first instant from this one on at which a call may have been due."""
        return next((following for left, following in self.pauses if left < at < following), at)

    def fits(self, counts: Iterable[tuple[int, int]], bounds: Bounds, limit: int) -> bool:
        """Whether the move makes no period count more than its limit."""
        before = dict(counts)
        after = self.counts(before.items(), bounds)
        return all(units <= max(limit, before.get(start, 0)) for start, units in after.items())


class Algorithm(Value, ABC, Generic[S]):
    """A limit, as a pure function of state and time."""

    __slots__ = ()

    kind: ClassVar[str]
    """The name of the algorithm in stored state. A name on a store has one kind."""
    limit_name: ClassVar[str] = "limit"
    """The constructor argument that bounds a cost."""

    def alone(self, state: Any) -> tuple[Algorithm[Any], Any]:
        """The limit and its state; a Ledger returns those that it wraps."""
        return self, state

    def leaves(self, state: Any, at: int, skew: int, name: str = "") -> Iterator[Leaf]:
        """The single limits that this one consists of, with the names that decisions give them."""
        yield Leaf(name or self.kind, self, state, at, skew)

    def owns(self, receipt: Receipt) -> bool:
        """Whether a receipt has the form of this algorithm's receipts."""
        return type(receipt) is int

    @property
    def uncharged(self) -> Receipt:
        """The receipt of a call that was not charged."""
        return NOWHERE

    @property
    def civil(self) -> bool:
        """Whether the operations depend on civil time."""
        return False

    @property
    def aligned(self) -> bool:
        """Whether decisions depend on absolute instants, such as the boundaries of windows."""
        return False

    @property
    @abstractmethod
    def max_cost(self) -> int:
        """The largest cost that can ever be admitted."""

    @abstractmethod
    def decide(self, state: S | None, now: int, cost: int, skew: int = 0) -> Decided[S]:
        """`check`, returning a plain tuple."""

    def check(self, state: S | None, now: int, cost: int, skew: int = 0) -> Outcome[S]:
        """Decide about a call now: admit and charge it, or deny it and leave everything as it was."""
        return Outcome(*self.decide(state, now, cost, skew))

    def booked(self, book: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        """`decide` on the state of a Ledger, with a receipt that names the charge.

        This is the hot path of a gate, which the single limits implement inline.
        """
        state, born, charged, settled = book or (None, now, 0, ())
        after, decision, life, admitted = self.decide(state, now, cost, skew)
        if not admitted:
            return book, decision, 0, False
        after_that = counted((after, born, charged, settled), after, now, cost)
        return after_that, receipted(after_that, decision, cost), life, True

    @abstractmethod
    def earliest(self, state: S | None, at: int, cost: int, skew: int = 0) -> int:
        """The first instant from `at` on at which `cost` is admitted."""

    @abstractmethod
    def peek(self, state: S | None, now: int, skew: int = 0) -> Decision:
        """The decision that a call of cost 1 would get. Consumes nothing."""

    @abstractmethod
    def forecast(self, state: S | None, now: int, cost: int, skew: int = 0) -> Forecast:
        """When a call of `cost` is admitted, and how many would be admitted now."""

    @abstractmethod
    def refund(self, state: S | None, now: int, cost: int, charged_at: Receipt, skew: int = 0) -> Outcome[S]:
        """Give `cost` back to the charge with this receipt, as far as that creates no capacity.

        Afterwards the key is never more permissive than if those units had never been charged. `charged_at`
        is the `receipt` of the decision; the instant of the charge is also safe, but may return less. A limit
        does not know which call its units belong to. So the caller may give back at most what was charged,
        and only once; a gate ensures both.
        """

    def refund_passed(self, state: S, now: int, cost: int, charged_at: Receipt, skew: int = 0) -> Outcome[S]:
        """`refund` for a limit without future slots: here a charge ahead of now means that time went back."""
        return self.refund(state, now, cost, charged_at, skew)

    def refund_last(
        self,
        state: S | None,
        now: int,
        cost: int,
        charged_at: Receipt,
        skew: int = 0,
        before: int | None = None,
    ) -> S | None:
        """The state after `refund` of the last charge, since all later ones were given back; `before` is the
        departure before it.
        """
        return self.refund(state, now, cost, charged_at, skew).state

    def prospect(self, state: S | None, cost: int, skew: int = 0) -> Prospect | None:
        """What delays further calls of this cost; None if they have to be simulated one by one."""
        return None

    def together(self, charged_at: int) -> int | None:
        """A value that is equal for charges which can be given back together, such as the start of a window.

        None if an instant alone is not enough to give a charge back.
        """
        return None

    def refund_many(
        self, state: S | None, now: int, charges: Sequence[Sequence[int]], skew: int = 0
    ) -> S | None:
        """The state after giving back `(instant, units)` for each of these charges, in ascending order."""
        for charged_at, units in reversed(charges):
            state = self.refund(state, now, units, charged_at, skew).state
        return state

    @abstractmethod
    def debit(
        self, state: S | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[S]:
        """Charge unconditionally; a debt that this makes is repaid by time.

        `charged_at`, the receipt of an earlier charge, decides which alternatives of a composite pay.
        """

    @abstractmethod
    def scaled(self, share: float | Fraction) -> Algorithm[S]:
        """The same limit at a share of its rate, `0 < share <= 1`."""

    @abstractmethod
    def adopt(self, state: S, writer: Any, now: int, skew: int = 0) -> S | None:
        """Convert a state that was left by `writer`, a limit of the same kind with other numbers.

        A changed limit continues from there and never starts afresh. Units that cannot be placed exactly are
        placed as late as they may have been charged, at most at `now`: the present or the latest slot ahead.
        """

    def since(self, state: S, at: int) -> int:
        """At most how many units were charged for this instant or later."""
        return NEVER_US

    def shifted(self, state: S, moved: Shift, skew: int) -> S:
        """The state after a hold, or its end, has moved waiting calls on the real time of this limit."""
        return state

    def crowded(self, state: S, moved: Shift, skew: int) -> Iterator[tuple[Bounds, int]]:
        """The bounds of windows of which one counts more than its limit because of that, and the first
        departure that has moved, on their timeline.
        """
        yield from ()

    def resumed(self, state: S, newest: int) -> S:
        """The state after a hold was ended early: no call of an aligned limit leaves after `newest`."""
        return state

    def rescheduled(self, state: S, newest: int, when: Callable[[int], int]) -> S:
        """The state after calls up to `newest` were moved, each from its instant `at` to `when(at)`.

        Calls are never closer together than before. Calendar periods keep what they were charged.
        """
        return state

    def moved_receipt(self, receipt: Receipt, when: Callable[[int], int] | None) -> Receipt:
        """The receipt of a call that `rescheduled` has moved. `when` is None if it is not known where to."""
        return receipt

    def brought(self, state: S, now: int, skew: int = 0) -> S:
        """The state after all waiting calls may leave at once, and count now."""
        return self.rescheduled(state, now, lambda at: min(at, now))

    def inspect(self, state: Any) -> None:
        """Check a state that was read; raise if no program of this kind can have written it.

        Any state that could make an operation loop without end, or return something that is not a number,
        must be refused here.
        """

    @abstractmethod
    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is constructed from: the name of its file and its numbers, as plain lists.

        `instants` are moments of civil time that a calendar has to cover.
        """

    def state_sent(self, state: S) -> Any:
        """A state in the form of the twin: numbers below 2^53, in lists."""
        return state

    def state_received(self, sent: Any) -> S:
        """A state from the twin."""
        state: S = as_tuple(sent)
        return state

    def before_run(self, sent: Any) -> S | None:
        """The state that a run of checks began with, from the twin's short form."""
        raise NotImplementedError(self.kind)

    def receipt_sent(self, receipt: Receipt) -> Any:
        """A receipt in the form of the twin."""
        return receipt

    def receipt_received(self, sent: Any) -> Receipt:
        """A receipt from the twin."""
        receipt: Receipt = as_tuple(sent)
        return receipt

    def decision_received(self, sent: Any) -> Decision:
        """A decision from the twin."""
        return decision_of(sent, self.receipt_received)

    @abstractmethod
    def charge(self, state: S | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[S]:
        """Charge a slot at `due >= now`, an instant that `earliest` returned. The ttl counts from `now`.

        The state keeps as much of the past as `now` still needs, so that giving back future slots leaves the
        key as it would be without them.
        """

    def life(self, state: S, now: int, skew: int = 0) -> int:
        """How long from `now` on the state differs from a cold one."""
        return max(0, self.forecast(state, now, 1, skew).full_at_us - now)

    def spent(self, state: S | None, at: int, cost: int, skew: int = 0) -> bool:
        """Whether a spent quota denies at `at`: without a `max_wait`, no call waits for the next period."""
        return False


def of_its(part: str, method: T) -> T:
    """Delegate a method to one of the object's attributes; looked up in C, which costs no Python call."""
    return cast("T", property(attrgetter(f"{part}.{method.__name__}"), doc=method.__doc__))


class Leaf(NamedTuple):
    """One limit of a program, with its state, and the time and skew to read it at."""

    name: str
    limit: Algorithm[Any]
    state: Any
    at: int
    skew: int

    def peek(self) -> Decision:
        """The state of the limit now."""
        return self.limit.peek(self.state, self.at, self.skew)


class Counting(Algorithm[S]):
    """A limit that counts units in a window or a period.

    Each kind implements `booked`, `refund_many` and `_decision`.
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
        return Outcome(state, decision, self.life(state, now, skew), True)

    @abstractmethod
    def _decision(self, state: S | None, now: int, cost: int, skew: int = 0) -> Decision:
        """The decision for a call, without charging it."""


class Window(Counting[S]):
    """A limit that is full again a fixed time after its last charge, whatever came before."""

    __slots__ = ()

    def decision_received(self, sent: Any) -> Decision:
        if len(sent) > 2:
            return decision_of(sent, self.receipt_received)
        # An admission arrives in short form.
        now, used = sent
        return self._admitted(used, now)

    def _admitted(self, used: int, charged_at: int) -> Decision:
        """The decision for a call whose charge at this instant is the newest."""
        full = self._full_after(charged_at)
        return Decision(True, self.limit, used, self.limit - used, full, 0, None, charged_at)

    def moved_receipt(self, receipt: Receipt, when: Callable[[int], int] | None) -> Receipt:
        if not isinstance(receipt, int):
            return receipt
        return NOWHERE if when is None else when(receipt)

    @abstractmethod
    def _full_after(self, charged_at: int) -> int:
        """When all units are free again, if this is the latest charge."""


def bare(booked: Callable[..., Decided[Book]], state: Any, now: int, cost: int, skew: int) -> Decided[Any]:
    """`decide`, implemented with `booked`."""
    book = None if state is None else (state, now, 0, ())
    after, decision, life, admitted = booked(book, now, cost, skew)
    if after is None or not admitted:
        return state, decision, life, False
    receipt: Any = decision.receipt
    return after[0], decision._replace(receipt=receipt[-1]), life, True


def counted(book: Book | None, after: Any, now: int, cost: int) -> Book:
    """The book with one more charge."""
    _, born, charged, settled = book or (None, now, 0, ())
    charged += cost
    return (after, born, charged, settled) if charged <= MOST_UNITS else (after, *reborn(born, now, cost))


def reborn(born: int, now: int, cost: int) -> tuple[int, int, Settled]:
    """The start of a new life with its first charge, since the old life has counted too many units."""
    return max(now, born + 1), cost, ()


def receipted(book: Book, decision: Decision, cost: int) -> Decision:
    """The decision with a receipt that names its charge, the newest in the book."""
    return _new(Decision, (*decision[:7], (book[1], book[2], cost, decision[7]), *decision[8:]))


def as_tuple(sent: Any) -> Any:
    """Convert lists to tuples, recursively."""
    return tuple(map(as_tuple, sent)) if isinstance(sent, list) else sent


def decision_of(sent: Any, receipt_received: Callable[[Any], Receipt] = as_tuple) -> Decision:
    """The Decision that a twin has sent, whose text may be bytes."""
    allowed, limit, current, remaining, reset_at, retry_after, binding, receipt = sent
    name = binding.decode() if binding.__class__ is bytes else binding
    charged = None if receipt is None else receipt_received(receipt)
    return _new(Decision, (allowed == 1, limit, current, remaining, reset_at, retry_after, name, charged, 0))


def check_cost(cost: object, max_cost: int, key: str, what: str, policy: str) -> int:
    """Return `cost` if it can ever be admitted, else raise ConfigError or CostExceedsLimitError."""
    if type(cost) is not int or cost < 1:
        raise ConfigError("cost", cost, "is not a whole number of at least 1", "pass an int such as 1")
    if cost > max_cost:
        raise CostExceedsLimitError(cost, max_cost, key, what, policy)
    return cost


def share_of(share: object) -> Fraction:
    """A share as a simple fraction: 1 / 3 is exactly one third."""
    exact = exactly(share)
    if exact is None or not 0 < exact <= 1 or not (exact := exact.limit_denominator(1_000_000)):
        raise ConfigError("share", share, "is not above 0 and at most 1", "pass 1 / number of workers")
    return exact


def slowed(rate: Rate, part: Fraction) -> Rate:
    """A part of a rate: exact, or slightly slower if the numbers get too large."""
    per_us = Fraction(rate.limit, rate.period_us) * part
    if per_us.numerator <= MAX_COUNT and per_us.denominator <= MAX_SPAN_US:
        return Rate.of(per_us.numerator, per_us.denominator)
    longest_us = min(MAX_SPAN_US, int(MAX_COUNT / per_us))
    if per_us * longest_us < 1:
        raise _too_small(part)
    return Rate.of(int(per_us * longest_us), longest_us)


def scaled_window(limit: int, window_us: int, share: Fraction) -> tuple[int, timedelta]:
    """A share of a window's limit; below one call, it is one call in a longer window."""
    if limit * share >= 1:
        return int(limit * share), timedelta(microseconds=window_us)
    longer_us = ceil(window_us / (limit * share))
    if longer_us > MAX_SPAN_US:
        raise _too_small(share)
    return 1, timedelta(microseconds=longer_us)


def _too_small(share: Fraction) -> ConfigError:
    problem = f"leaves less than a call in {span_words(MAX_SPAN_US)}"
    return ConfigError("share", share, problem, "use a larger one")


def windowed(limit: object, window: object) -> tuple[int, int]:
    """`(limit, window_us)` from `("100/min", None)`, `(Rate, None)` or `(100, "1m")`."""
    if window is None:
        if isinstance(limit, (str, Rate)):
            rate = Rate.parse(limit, "limit")
            if rate.burst is not None:
                raise ConfigError("limit", limit, "has a burst, and a window has none", "leave the burst out")
            return rate.limit, rate.period_us
        fix = 'write both, as (100, "1m"), or one text, as "100/min"'
        raise ConfigError("window", window, "is missing", fix)
    if isinstance(limit, (str, Rate)):
        raise ConfigError("window", window, "conflicts with the period in the rate", "give the window once")
    return whole("limit", limit), duration_us("window", window)


def paced(rate: RateLike, burst: object, field: str) -> tuple[Rate, int]:
    """The rate, and its burst from the text or the argument; by default, the burst is the limit."""
    parsed = Rate.parse(rate)
    if parsed.burst is not None and burst is not None:
        raise ConfigError(field, burst, "conflicts with the burst in the rate", "give the burst once")
    if burst is None:
        return parsed, parsed.limit if parsed.burst is None else parsed.burst
    return parsed, whole(field, burst)


NOWHERE = -1
"""The receipt, and the generation, of a call that was not charged."""

Undo: TypeAlias = "tuple[Operation, tuple[Any, ...]]"
"""An operation that gives back, with its arguments."""


class Side(Enum):
    """Where a call was charged: in the store, in its fallback, or nowhere."""

    PRIMARY = "primary"
    LOCAL = "local"
    NOWHERE = "nowhere"


class Moment(NamedTuple):
    """When a call finds its store gone."""

    instant: int
    skew: int
    wait_us: int
    """How long until the store is tried again."""


class Operation:
    """One method of a program, as a store sees it. There is one object per operation."""

    name: str
    """The name of the program's method, in Python and in Lua."""
    is_read: ClassVar[bool] = False
    """Whether it only returns an answer and leaves the state as it is."""
    is_look: ClassVar[bool] = False
    """Whether it returns the state itself, which needs no method of the twin."""
    most_cost: ClassVar[str | None] = None
    """A Lua expression that bounds a cost in the first argument, if the program does not check it itself."""
    probes: ClassVar[bool] = True
    """Whether it may probe if a lost store is back, which takes longer."""
    follows: ClassVar[bool] = False
    """Whether it changes what an earlier operation has taken."""
    on_both_sides: ClassVar[bool] = False
    """Whether it goes to the fallback as well, because either side may have granted its permit."""
    nothing: ClassVar[Any] = None
    """The answer if there is nothing to change, where it is the same for every key."""
    instead: ClassVar[Operation | None] = None
    """The operation that answers if there is nothing to change, where the answer depends on the key."""
    needs_store: ClassVar[bool] = True
    """Whether it raises under on_outage="raise"."""
    run: ClassVar[Run | None] = None
    """The operation that makes several such calls at once, if there is one."""

    def __repr__(self) -> str:
        return self.name

    def step(self, program: Any) -> Callable[..., Any]:
        """The method of the program."""
        step: Callable[..., Any] = getattr(program, self.name)
        return step

    def sent(self, program: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        """The arguments in the form of the twin."""
        return args

    def received(self, program: Any, sent: Any) -> Any:
        """The answer of the twin, in the form of the program's."""
        return tuple(sent) if isinstance(sent, list) else sent

    def asks(self, args: tuple[Any, ...]) -> Any:
        """A value that is equal for calls that ask the same and so can be made as one run."""
        return args

    def undone(self, args: tuple[Any, ...], answer: Any) -> tuple[Undo, ...]:
        """The operations that give back what was taken for a caller that has gone, in order.

        Permits, slots and charges are given back. Debits, settlements and holds are kept, because they record
        what has happened.
        """
        return ()

    def cost(self, args: tuple[Any, ...]) -> int:
        """The cost of the call; 0 if it cannot be too high."""
        return 0

    # while the store is gone

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        """For an operation that `follows`: the side that it belongs to, and its arguments for that side."""
        return Side.PRIMARY, args

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Any:
        """The answer of on_outage="open": the one for a key that was never used."""
        return self.step(program)(None, at.instant, *args, skew=at.skew)

    def closed(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Any:
        """The answer of on_outage="closed": a refusal."""
        limit = program.peek(None, at.instant, at.skew).limit
        return Decision(False, limit, limit, 0, at.instant + at.wait_us, at.wait_us)

    def locally(
        self, apply: Callable[..., Any], program: Any, part: Any, refuse: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The function that answers for on_outage="local": `apply` asks `part`, the program's share."""

        def answer(key: Any, *args: Any) -> Any:
            # A cost that the share can never admit is refused until the store is back.
            if (cost := self.cost(args)) and cost > part.max_cost:
                return refuse(key, *args)
            return self.given(program, part, apply(key, *args))

        return answer

    def given(self, program: Any, part: Any, answer: Any) -> Any:
        """Convert a local answer for the caller."""
        return answer


class Run(Operation):
    """Several equal calls of one operation, one right after the other, made as one step of a store.

    Its arguments are a tuple for each call. If the state is short and treats the calls alike, the twin
    applies all of them at once and answers with the time and the state before; from these the program
    computes each answer in Python, with the same steps as in process. Otherwise the twin makes the calls one
    by one, and returns their answers.
    """

    one: ClassVar[Operation]
    """The operation of each call."""

    def sent(self, program: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        return (*self.one.sent(program, args[0]), len(args))

    def received_each(self, program: Any, args: tuple[Any, ...], sent: Any) -> list[Any]:
        """The answer to each call."""
        if sent[0].__class__ is list:
            return [self.one.received(program, each) for each in sent]
        now, *before = sent
        state, step, answers = program.before_run(before), self.one.step(program), []
        for own in args:
            after, answer, _, persist = step(state, now, *own)
            if persist:
                state = after
            answers.append(answer)
        return answers


def side_of(taken: Receipt) -> Side:
    """The side on which the charge with this receipt, or the grant of this generation, was made."""
    while isinstance(taken, tuple):
        taken = next((part for part in taken if part is not None), NOWHERE)
    if taken is None or taken >= 0:
        return Side.PRIMARY
    return Side.NOWHERE if taken == NOWHERE else Side.LOCAL


def turned(receipt: Receipt) -> Receipt:
    """Turn a local receipt into one for the caller, or back: applied twice, it changes nothing."""
    if receipt is None:
        return None
    if isinstance(receipt, tuple):
        return tuple(turned(part) for part in receipt)
    return -2 - receipt


class _Charging(Operation):
    """An operation of a gate that returns a decision."""

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

    def undone(self, args: tuple[Any, ...], answer: Decision) -> tuple[Undo, ...]:
        return ((REFUND, (args[0], answer.receipt)),) if answer.allowed else ()

    def cost(self, args: tuple[Any, ...]) -> int:
        cost: int = args[0]
        return cost

    def opened(self, program: Algorithm[Any], at: Moment, args: tuple[Any, ...]) -> Decision:
        # A cost beyond the limit in the code is one that an operator's limit has allowed.
        decision = program.check(None, at.instant, min(args[0], program.max_cost), at.skew).decision
        return decision._replace(receipt=program.uncharged)


class _CheckRun(Run):
    name = "check_run"
    most_cost = "true"


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
        # The extra cost is charged on the side that charges calls now, wherever the call was charged.
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
_CheckRun.one, _Check.run = CHECK, _CheckRun()
