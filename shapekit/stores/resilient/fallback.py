"""Outage: what is answered while a store is gone, in each mode.

A mode binds as a store does, and has each operation say what it answers in it. What was taken from the store
can only be moved there, so cancel, settle and refund move nothing meanwhile, and waiters leave as promised.
What a mode has given itself it moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from shapekit.algorithms.adaptive.queue import AdaptiveQueue
from shapekit.algorithms.base import Algorithm, share_of, slowed
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.operation import Moment, Operation
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.clock import Clock
from shapekit.stores.base import Apply, ApplyMany, Key, Program
from shapekit.stores.memory import MemoryStore
from shapekit.stores.resilient.breaker import Breaker

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
        if operation.nothing is not None:
            return lambda *_: operation.nothing
        return self._answering(name, program, operation)

    @abstractmethod
    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        """`bind`, for what is answered in a way of its own."""

    def own(self, name: str, program: Program, operation: Operation) -> Apply | None:
        """The call that applies an operation to what the mode has given; None if it gives nothing."""
        return None

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        """The call that answers it for several keys."""
        apply = self.bind(name, program, operation)

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            return [apply(key, *args) for key in keys]

        return apply_many

    def _moment(self) -> Moment:
        now = self._clock.now_us()
        return Moment(now, self._clock.wall_us() - now, self._breaker.probe_in_us())


class Open(Outage):
    """Every call finds a key that was never used, and leaves it so."""

    mode: ClassVar[str] = "open"

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        return lambda key, *args: operation.opened(program, self._moment(), args)


class Closed(Outage):
    """Every call is refused until the store is asked again."""

    mode: ClassVar[str] = "closed"

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        return lambda key, *args: operation.closed(program, self._moment(), args)


class Raise(Closed):
    """Every call raises; what only gives back is told that nothing was given."""

    mode: ClassVar[str] = "raise"

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        return self.raising if operation.needs_store else super()._answering(name, program, operation)

    def raising(self, *_: Any) -> Any:
        """Answer that nobody answers."""
        raise self._breaker.refusal()


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
        if operation.instead is not None:
            standing = self._local.bind(name, part, operation.instead)
            return lambda key, *_: standing(key)
        refuse = self._closed.bind(name, program, operation)
        return operation.locally(self._local.bind(name, part, operation), program, part, refuse)

    def own(self, name: str, program: Any, operation: Operation) -> Apply:
        part: Any = scaled(program, self._share)
        apply = self._local.bind(name, part, operation)
        return lambda key, *args: operation.given(program, part, apply(key, *args))

    def bind_many(self, name: str, program: Any, operation: Operation) -> ApplyMany:
        part: Any = scaled(program, self._share)
        apply_many = self._local.bind_many(name, part, operation)
        refuse_many = self._closed.bind_many(name, program, operation)

        def answer(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            if (cost := operation.cost(args)) and cost > part.max_cost:
                return refuse_many(keys, args)
            return [operation.given(program, part, one) for one in apply_many(keys, args)]

        return answer


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
