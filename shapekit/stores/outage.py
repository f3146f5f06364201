"""Outage: what is answered while a store is gone, in each mode.

A mode binds as a store does. What was taken from the store can only be moved there, so cancel, settle
and refund move nothing meanwhile, and waiters leave as promised. What a mode has given itself it moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, TypeAlias

from shapekit.algorithms.adaptive_queue import AdaptiveQueue, Learned
from shapekit.algorithms.base import Algorithm, share_of, slowed
from shapekit.algorithms.concurrency import REFUSED, SEATED, Concurrency
from shapekit.algorithms.grant import Grant, Granted
from shapekit.algorithms.leaky_queue import UNKNOWN, LeakyQueue
from shapekit.clock import Clock
from shapekit.decision import Decision, Forecast
from shapekit.stores.base import Apply, ApplyMany, Key, Operation, Program
from shapekit.stores.breaker import Breaker
from shapekit.stores.memory import MemoryStore
from shapekit.stores.sides import charged_locally, given_locally, given_nowhere, standing_locally, uncharged

_UNHEARD = -1
"""In place of the call that a process came with: it is not the store that says so."""
UNLEARNED = (0, 0, 0)
"""What is learned of a rate where nobody keeps it: nothing."""
Strategy: TypeAlias = "Algorithm[Any] | LeakyQueue | Concurrency"


class Outage(ABC):
    """What is answered instead of the store."""

    mode: ClassVar[str]

    def __init__(self, clock: Clock, breaker: Breaker) -> None:
        self._clock = clock
        self._breaker = breaker
        self.local: MemoryStore | None = None

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        """The call that answers `operation` on a key of `name`."""
        match operation:
            case "cancel" | "settle":
                return lambda *_: False
            case "enter" | "watch" | "leave" | "keep":
                return self._seating(name, program, operation)
            case "cancel_many":
                return lambda *_: 0
            case _:
                return self._answering(name, program, operation)

    @abstractmethod
    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        """`bind`, for what does not follow a departure, and for the standing after a refund."""

    def _seating(self, name: str, program: Any, operation: Operation) -> Apply:
        """`bind`, for what a call in flight asks: here nobody has a seat, and nobody gets one."""
        return lambda *_: (REFUSED, _UNHEARD) if operation == "enter" else (_UNHEARD,)

    def own(self, name: str, program: Program, operation: Operation) -> Apply | None:
        """The call that applies an operation to what the mode has given; None if it gives nothing."""
        return None

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        """The call that answers it for several keys."""
        apply = self.bind(name, program, operation)

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            return [apply(key, *args) for key in keys]

        return apply_many

    def _times(self) -> tuple[int, int]:
        now = self._clock.now_us()
        return now, self._clock.wall_us() - now


class Open(Outage):
    """Every call finds a key that was never used, and leaves it so."""

    mode: ClassVar[str] = "open"

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        step: Callable[..., Any] = getattr(program, operation)

        def apply(key: Key, *args: Any) -> Any:
            now, skew = self._times()
            match operation:
                case "check" | "commit":
                    decision: Decision = step(None, now, *args, skew=skew).decision
                    return decision._replace(receipt=uncharged(program))
                case "reserve":
                    return given_nowhere(step(None, now, *args, skew=skew)[1])
                case "reserve_many":
                    alone = [program.reserve(None, now, asked, skew)[1] for asked in args[0]]
                    return (UNKNOWN, 0, 0, now), tuple(map(given_nowhere, alone))
                case "refund" | "debit":
                    return program.peek(None, now, skew)
                case "confirm":
                    return (UNKNOWN, 0, 0, now)
                case "hold" | "resume":
                    return 0
                case "throttled" | "succeeded" | "stated":
                    return UNLEARNED
                case _:
                    return step(None, now, *args, skew=skew)

        return apply

    def _seating(self, name: str, program: Any, operation: Operation) -> Apply:
        # Whoever stood in line is nobody here, asks again, and goes.
        return lambda *_: (SEATED, _UNHEARD) if operation == "enter" else (_UNHEARD,)


class Closed(Outage):
    """Every call is refused until the store is asked again."""

    mode: ClassVar[str] = "closed"

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        def apply(key: Key, *args: Any) -> Any:
            match operation:
                case "reserve":
                    return self.refused(program, args[0][0])
                case "reserve_many":
                    standing = (UNKNOWN, 0, 0, self._clock.now_us())
                    return standing, tuple(self.refused(program, asked[0]) for asked in args[0])
                case "hold" | "resume":
                    return 0
                case "throttled" | "succeeded" | "stated":
                    return UNLEARNED
                case "confirm":
                    return (UNKNOWN, 0, 0, self._clock.now_us())
                case "earliest":
                    return self._clock.now_us() + self._breaker.probe_in_us()
                case "forecast":
                    later = self._clock.now_us() + self._breaker.probe_in_us()
                    return Forecast(later, 0, later)
                case "look":
                    now, skew = self._times()
                    return program.hold(None, now, self._breaker.probe_in_us(), 0, skew)[0], now, skew
                case _:
                    return self.denied(program)

        return apply

    def denied(self, program: Algorithm[Any]) -> Decision:
        """The denial of a gate."""
        now, skew = self._times()
        limit = program.peek(None, now, skew).limit
        wait = self._breaker.probe_in_us()
        return Decision(False, limit, limit, 0, now + wait, wait)

    def refused(self, program: LeakyQueue, cost: int) -> Granted:
        """The refusal of a queue."""
        now, wait = self._clock.now_us(), self._breaker.probe_in_us()
        told = Decision(False, program.burst, program.burst, 0, now + wait, wait)
        return Grant(False, wait, now + wait, False, told, cost, 0, 0, 0, 0, 0, (0, 0), ())


class Raise(Closed):
    """Every call raises; what only gives back is told that nothing was given."""

    mode: ClassVar[str] = "raise"

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        if operation in ("refund", "confirm"):
            return super()._answering(name, program, operation)

        return self.raising

    def raising(self, *_: Any) -> Any:
        """Answer that nobody answers."""
        raise self._breaker.refusal()

    def _seating(self, name: str, program: Any, operation: Operation) -> Apply:
        return super()._seating(name, program, operation) if operation == "leave" else self.raising


class Local(Outage):
    """Every process goes on by itself, at a share of the limits."""

    mode: ClassVar[str] = "local"

    def __init__(self, clock: Clock, breaker: Breaker, share: Fraction) -> None:
        super().__init__(clock, breaker)
        self.local = self._local = MemoryStore(clock)
        self._share = share
        self._closed = Closed(clock, breaker)

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        part: Any = scaled(program, self._share)
        apply = self._local.bind(name, part, "peek" if operation == "refund" else operation)
        if operation == "refund":
            return lambda key, *_: apply(key)
        if operation == "reserve_many":
            return self._giving_many(program, part, apply)
        refuse = self._closed.bind(name, program, operation)
        given, cost_of = _given(program, part, operation), _COSTS.get(operation)

        def apply_part(key: Key, *args: Any) -> Any:
            # What is more than the share ever admits has to wait for the store.
            if cost_of is not None and cost_of(args) > part.max_cost:
                return refuse(key, *args)
            return given(apply(key, *args))

        return apply_part

    def _giving_many(self, program: LeakyQueue, part: Any, apply: Apply) -> Apply:
        def apply_part(key: Key, asked: Sequence[Any], further: Any) -> Any:
            standing, granted = apply(key, [one for one in asked if one[0] <= part.max_cost], further)
            given = iter([given_locally(one, program, part) for one in granted])
            refused = self._closed.refused
            told = [next(given) if one[0] <= part.max_cost else refused(program, one[0]) for one in asked]
            return standing_locally(standing), (*told, *given)

        return apply_part

    def _seating(self, name: str, program: Any, operation: Operation) -> Apply:
        apply = self._local.bind(name, scaled(program, self._share), operation)
        if operation == "enter":
            return lambda key, *args: _seated_locally(*apply(key, *args))
        return lambda key, *args: _told_locally(*apply(key, *args))

    def own(self, name: str, program: Any, operation: Operation) -> Apply:
        part: Any = scaled(program, self._share)
        apply = self._local.bind(name, part, operation)
        given = _given(program, part, operation)
        return lambda key, *args: given(apply(key, *args))

    def bind_many(self, name: str, program: Any, operation: Operation) -> ApplyMany:
        if operation == "reserve_many":
            return super().bind_many(name, program, operation)
        part: Any = scaled(program, self._share)
        apply_many = self._local.bind_many(name, part, operation)
        refuse_many = self._closed.bind_many(name, program, operation)
        given, cost_of = _given(program, part, operation), _COSTS.get(operation)

        def apply_part_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            if cost_of is not None and cost_of(args) > part.max_cost:
                return refuse_many(keys, args)
            return [given(answer) for answer in apply_many(keys, args)]

        return apply_part_many


def scaled(program: Strategy, share: Fraction) -> Strategy:
    """The same limits at a share of their rates."""
    if isinstance(program, Algorithm | Concurrency | AdaptiveQueue):
        return program.scaled(share)
    part = share_of(share)
    paced = min(program.rates, key=lambda rate: rate.period_us, default=None)
    if program.pace != "smooth":
        paced = None
    return LeakyQueue(
        () if paced is None else (slowed(paced, part),),
        None if paced is None else max(1, int(program.burst * part)),
        program.pace,
        [limit.scaled(part) for limit in program.constraints.algorithms],
        float(program.headroom),
    )


_COSTS: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "check": lambda args: args[0],
    "commit": lambda args: args[0],
    "earliest": lambda args: args[0],
    "forecast": lambda args: args[0],
    "reserve": lambda args: args[0][0],
}
"""What a call costs, where a cost may be too much."""


def _given(program: Any, part: Any, operation: Operation) -> Callable[[Any], Any]:
    """How an answer of the local store is given to the outside."""
    match operation:
        case "check" | "commit" | "refund" | "debit":
            return charged_locally
        case "reserve":
            return lambda granted: given_locally(granted, program, part)
        case "confirm":
            return standing_locally
        case "look":
            return lambda looked: _seen_by(program, part, *looked)
        case "throttled" | "succeeded" | "stated":
            return partial(_learned_by, program, part)
        case _:
            return lambda answer: answer


def _seated_locally(place: int, came_with: int) -> tuple[int, int]:
    return place, _UNHEARD - came_with


def _told_locally(came_with: int, *sitting: int) -> tuple[int, ...]:
    """What a local store says of calls in flight, for the outside."""
    return (_UNHEARD - came_with, *sitting)


def _learned_by(program: AdaptiveQueue, part: AdaptiveQueue, learned: Learned) -> Learned:
    """What was learned locally, as shares of the highest rate of the queue that was asked."""
    before, after, held = learned
    share = part.highest.per_second / program.highest.per_second
    return round(before * share), round(after * share), held


def _seen_by(program: LeakyQueue, part: LeakyQueue, state: Any, now: int, skew: int) -> tuple[Any, int, int]:
    """A local line in the units of the queue that was asked."""
    return None if state is None else program.adopt(state, part, now, skew), now, skew
