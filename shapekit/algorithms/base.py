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

from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError, CostExceedsLimitError
from shapekit.rate import MAX_COUNT, MAX_SPAN_US, Rate, RateLike, duration_us, exactly, seconds_text, whole
from shapekit.value import Value

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
    decision: Decision
    ttl_us: int
    persist: bool


Decided: TypeAlias = tuple[S | None, Decision, int, bool]
"""An Outcome without its names: what the path of every admitted call returns."""


class Algorithm(Value, ABC, Generic[S]):
    """A limit, as a pure function of state and time."""

    __slots__ = ()

    kind: ClassVar[str]
    """The name of the algorithm in stored state. One name on a store has one kind."""
    limit_name: ClassVar[str] = "limit"
    """What bounds a cost, in the words of the constructor."""

    @property
    def receipt_lengths(self) -> Sequence[int]:
        """How many entries its receipts may have; 0 is a number."""
        return (0,)

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
        may return less.
        """

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
        """Charge a turn at `due >= now`, an instant that `earliest` gave. The ttl counts from `now`.

        What it keeps of the past is what `now` still needs, so that giving back turns that are still
        to come leaves the key as it was without them.
        """

    def life(self, state: S, now: int, skew: int = 0) -> int:
        """How long from `now` the state differs from a cold one."""
        return max(0, self.forecast(state, now, 1, skew).full_at_us - now)

    def spent(self, state: S | None, at: int, cost: int, skew: int = 0) -> bool:
        """Whether it is a budget that denies at `at`: nobody waits for the next period unasked."""
        return False

    def commit(self, state: S | None, now: int, cost: int, max_wait: int | None, skew: int = 0) -> Outcome[S]:
        """Charge at the earliest instant if it is at most `max_wait` away, else deny.

        Without a `max_wait` a spent budget denies. An admitted decision says in `delay_us` how long the
        caller has to wait for its turn.
        """
        due = self.earliest(state, now, cost, skew)
        wait = due - now
        if wait and (self.spent(state, now, cost, skew) if max_wait is None else wait > max_wait):
            denied = self.check(state, now, cost, skew).decision
            return Outcome(state, denied._replace(retry_after_us=wait), 0, False)
        after, decision, ttl, persist = self.charge(state, now, due, cost, skew)
        return Outcome(after, decision._replace(delay_us=wait), ttl, persist)


def as_tuple(sent: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(as_tuple, sent)) if isinstance(sent, list) else sent


def decision_of(sent: Any, receipt_received: Callable[[Any], Receipt] = as_tuple) -> Decision:
    """A decision as a twin sends it, its text as bytes or decoded already."""
    allowed, limit, current, remaining, reset_at, retry_after, binding, receipt, delay = sent
    told = binding.decode() if binding.__class__ is bytes else binding
    charged = None if receipt is None else receipt_received(receipt)
    return _new(
        Decision,
        (allowed == 1, limit, current, remaining, reset_at, retry_after, told, charged, delay),
    )


def check_cost(cost: object, max_cost: int, key: str, what: str = "burst") -> int:
    """`cost` if some wait can admit it, else ConfigError or CostExceedsLimitError."""
    if type(cost) is not int or cost < 1:
        raise ConfigError(
            "cost", cost, f"is not a whole number from 1 to {max_cost}", "pass an int such as 1"
        )
    if cost > max_cost:
        raise CostExceedsLimitError(cost, max_cost, key, what)
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
        raise ConfigError(
            "share", part, f"leaves less than a call in {seconds_text(MAX_SPAN_US)}", "use a larger one"
        )
    return Rate.of(int(per_us * longest_us), longest_us)


def scaled_window(limit: int, window_us: int, share: Fraction) -> tuple[int, timedelta]:
    """A share of a window's limit; where that is less than one call, one call in a longer window."""
    if limit * share >= 1:
        return int(limit * share), timedelta(microseconds=window_us)
    longer_us = ceil(window_us / (limit * share))
    if longer_us > MAX_SPAN_US:
        raise ConfigError(
            "share", share, f"leaves less than a call in {seconds_text(MAX_SPAN_US)}", "use a larger one"
        )
    return 1, timedelta(microseconds=longer_us)


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
