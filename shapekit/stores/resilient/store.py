"""ResilientStore: what happens when the store is gone.

Outage: what is answered meanwhile, in each mode. A mode binds as a store does, and has each operation say
what it answers in it. What was taken from the store can only be moved there, so cancel, settle and refund
move nothing meanwhile, and waiters leave as promised. What a mode has given itself it moves.

Guard: one part of a store's truth that can be lost by itself, and what is answered while it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

from shapekit._runtime.drivers import TASKS, THREADS, Driver, Twin, run, within
from shapekit.algorithms.adaptive.queue import AdaptiveQueue
from shapekit.algorithms.base import Algorithm, share_of, slowed
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.operation import Moment, Operation, Side
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.clock import Clock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US, Duration, duration_us, one_of
from shapekit.stores.base import Apply, ApplyMany, Key, Program, Store
from shapekit.stores.memory import MemoryStore
from shapekit.stores.resilient.breaker import Attempt, Breaker, Deadline
from shapekit.stores.settings import Settings, Stored

__all__ = ["ResilientStore"]

Flow: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""What is done for a call; its first argument is its driver."""
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
        """Answer that the store is gone."""
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


MODES = {mode.mode: mode for mode in (Raise, Open, Closed)}


class Guard:
    """Asks the primary while it is there, and answers in the outage's mode while it is not."""

    def __init__(
        self, primary: Store, deadline: Deadline, timeout_us: int, on_outage: str, part: Fraction | None
    ) -> None:
        self.primary = primary
        self.breaker = Breaker(primary.clock, lambda: repr(primary), timeout_us)
        self._timeout_s = timeout_us / SECOND_US
        self._deadline = deadline
        self.outage: Outage = (
            MODES[on_outage](primary.clock, self.breaker)
            if part is None
            else Local(primary.clock, self.breaker, part)
        )
        self._closed = False
        self.asked_last: tuple[str, Program, Key] | None = None
        """The last key that lay here, of which program under which name."""

    def bound(
        self, driver: Driver, name: str, program: Program, operation: Operation, *, many: bool = False
    ) -> Flow:
        """The call that applies an operation to a key, or with the arguments in one, to each of many."""
        if not many:
            return self._routed(driver, name, program, operation)
        if operation.follows:
            return _each(self._routed(driver, name, program, operation))
        ask = self._prepared(driver, name, program, operation, many=True)
        return self.guarded(ask, self.outage.bind_many(name, program, operation), self.breaker.attempt)

    def _routed(self, driver: Driver, name: str, program: Program, operation: Operation) -> Flow:
        def asked(what: Operation) -> Flow:
            # Waiters who are about to leave must not be late because they probe.
            attempt = self.breaker.attempt if what.probes else partial(self.breaker.attempt, probes=False)
            return self.guarded(self._prepared(driver, name, program, what), unmoved, attempt)

        unmoved = self.outage.bind(name, program, operation)
        primary = asked(operation)
        if operation.on_both_sides and self.outage.local is not None:

            async def both(driver: Driver, *args: Any) -> Any:
                # A permit does not say where it was taken; where it was not, giving it back does nothing.
                unmoved(*args)
                return await primary(driver, *args)

            return both
        if not operation.follows:
            return primary
        own = self.outage.own(name, program, operation)
        standing = None if operation.instead is None else asked(operation.instead)

        async def routed(driver: Driver, key: Key, *args: Any) -> Any:
            side, args = operation.routed(args)
            if side is Side.PRIMARY:
                return await primary(driver, key, *args)
            if side is Side.LOCAL and own is not None:
                return own(key, *args)
            return unmoved(key, *args) if standing is None else await standing(driver, key)

        return routed

    def guarded(
        self, ask: Twin[Any], outage: Apply, attempt: Callable[[], Attempt], *, at_leisure: bool = False
    ) -> Flow:
        """The call that asks the primary, in time unless `at_leisure`; if it is gone, the outage's mode."""
        in_time = not (at_leisure or self.primary.instant)

        async def flow(driver: Driver, *args: Any) -> Any:
            if self._closed:
                raise StoreUnavailableError("this ResilientStore is closed; make a new one")
            with attempt() as may_ask:
                if may_ask:
                    return await (
                        driver.ask(Twin(self._call_in_time, self._acall_in_time), ask, *args)
                        if in_time
                        else driver.ask(ask, *args)
                    )
            return outage(*args)

        return flow

    def _call_in_time(self, ask: Twin[Any], *args: Any) -> Any:
        return self._deadline.call(ask.call, *args)

    async def _acall_in_time(self, ask: Twin[Any], *args: Any) -> Any:
        with within(self._timeout_s):
            return await ask.acall(*args)
        raise self._deadline.missed()

    def _prepared(self, driver: Driver, *what: Any, many: bool = False) -> Twin[Any]:
        """The primary's own call, bound now, or at its first use if the primary is gone now."""
        primary = self.primary
        bind: Callable[..., Callable[..., Any]]
        if driver is THREADS:
            bind = primary.bind_many if many else primary.bind
        else:
            bind = primary.abind_many if many else primary.abind
        bound: Callable[..., Any] | None = None

        def ask(*args: Any) -> Any:
            nonlocal bound
            if bound is None:
                bound = bind(*what)
            return bound(*args)

        if not self.breaker.is_open:
            with self.breaker.attempt():
                bound = bind(*what)
        return Twin(ask, ask)  # of its driver, which is the only one to ask it

    def refuse(self, *_: Any) -> Any:
        raise self.breaker.refusal()

    def close(self) -> None:
        """Answer no call any more."""
        self._closed = True
        if self.outage.local is not None:
            self.outage.local.close()


def _each(flow: Flow) -> Flow:
    """One call for each of several keys."""

    async def each(driver: Driver, keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
        return [await flow(driver, key, *args) for key in keys]

    return each


OnOutage: TypeAlias = Literal["raise", "open", "closed", "local"]


class ResilientStore(Store):
    """Wraps a store, and answers in the mode `on_outage` while that store is gone.

        >>> from shapekit import MemoryStore, Shaper
        >>> store = ResilientStore(MemoryStore(), on_outage="local", share=1 / 4)
        >>> Shaper("10/s", name="stripe", store=store).reserve().delay
        0.0

    An outage begins with a StoreUnavailableError, or when the store gives no answer within `timeout`. From
    then on no call asks the primary, until a probe succeeds. A probe is the first call after a back-off of at
    most 10 seconds, and may take `timeout` itself; calls that are about to leave do not probe. The logger
    `shapekit.store` says once that the store is lost, and once that it is back.

    Let an outage last D seconds, from a worker's first call that fails to its first that is answered. For a
    limit of `burst` and `rate` each mode then admits as follows. (Of a window or quota, its limit is the
    burst, and its limit divided by its period the rate; if its periods follow the calendar or the epoch, one
    limit more is possible.)

    - `"raise"`: nothing. Calls raise StoreUnavailableError.
    - `"closed"`: nothing. Gates deny and shapers refuse, with the time to the next probe as `retry_after`.
    - `"open"`: everything, without a delay. Holds are not kept.
    - `"local"`: each worker limits by itself, at `share` of the limits, in its own memory. W workers
      admit at most `W * (max(1, floor(share * burst)) + share * rate * D)`: with `share = 1/W`, the rate
      and one burst more. If only some workers are busy, they admit less than the rate. A cost above the
      share's burst is refused until the next probe. Holds placed before are not known.

    In every mode:

    - The primary does not count the calls that were admitted in an outage, so after its return it may admit
      its burst once more. What it had admitted before still counts.
    - Waiting calls keep their slots. Calls that wait when the side changes, in either direction, therefore
      leave in addition to those that the other side admits.
    - Each shard of a Redis Cluster is lost and found separately. A shard whose keys another one has taken
      over counts as found.
    - A call whose answer is lost may cost a slot that no call uses; it is never charged twice there.
    - A charge is given back on the side that charged it, or not at all: in an outage `cancel`, `settle` and
      `refund` do not raise, and give nothing back.
    - Calls in flight (`concurrency=`) go on. For new calls, `"raise"` raises, `"closed"` refuses, `"open"`
      lets all leave uncounted, and `"local"` gives each worker `max(1, floor(share * limit))` permits of its
      own. After its return the primary learns within a third of a lease which calls have ended, but never of
      calls that began without it: these are in flight in addition to its limit until they end.

    A synchronous call runs on a thread of this store, so that the caller can give up a call that hangs; the
    thread ends when the timeouts of the primary end the call. A store that is `instant` is asked directly.
    """

    def __init__(
        self,
        primary: Store,
        *,
        on_outage: OnOutage = "raise",
        share: float | Fraction | None = None,
        timeout: Duration = 0.5,
    ) -> None:
        if not isinstance(primary, Store):
            raise ConfigError("primary", primary, "is not a store", "pass one, such as a RedisStore")
        one_of("on_outage", on_outage, (*MODES, Local.mode))
        part = _checked_share(on_outage, share)
        timeout_us = duration_us("timeout", timeout)
        self.primary = primary
        """The store that is asked as long as it answers."""
        self.on_outage = on_outage
        """What happens while it does not: "raise", "open", "closed" or "local"."""
        self.clock = primary.clock
        self.shared = primary.shared
        self.instant = primary.instant
        self.clock_decides = primary.clock_decides
        self.awaited_only = primary.awaited_only
        self._sharded = primary.sharded
        self._timeout_us = timeout_us
        self._part = part
        self._deadline = Deadline(timeout_us)
        self._whole = self._new_guard()
        self._guards: dict[Hashable, Guard] = {}
        self._closed = False

    @property
    def is_lost(self) -> bool:
        """Whether the primary, or a shard of it, is known to be gone, and not asked but by probes."""
        self._forgive_the_replaced()
        return any(guard.breaker.is_open for guard in self._all())

    # binding

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        return partial(run, self._bound(THREADS, name, program, operation))

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        return partial(run, self._bound(THREADS, name, program, operation, many=True))

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        return partial(self._bound(TASKS, name, program, operation), TASKS)

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        return partial(self._bound(TASKS, name, program, operation, many=True), TASKS)

    def _bound(
        self, driver: Driver, name: str, program: Program, operation: Operation, *, many: bool = False
    ) -> Flow:
        if not self._sharded:
            return self._whole.bound(driver, name, program, operation, many=many)
        # What is to be prepared is prepared now, whichever shard is asked first.
        bound = {self._whole: self._whole.bound(driver, name, program, operation)}

        async def apply(driver: Driver, key: Key, *args: Any) -> Any:
            guard = self._guard(name, program, key)
            if guard not in bound:
                bound[guard] = guard.bound(driver, name, program, operation)
            return await bound[guard](driver, key, *args)

        return _each(apply) if many else apply

    # beside the operations

    def settings(self, name: str) -> Settings:
        return self.primary.settings(name)

    def read_overrides(self, name: str) -> Stored:
        return self.primary.read_overrides(name)

    def all_overrides(self) -> dict[str, Stored]:
        return self.primary.all_overrides()

    def write_overrides(self, name: str, text: str, known: Stored) -> bool:
        return self.primary.write_overrides(name, text, known)

    def reset(self, name: str, program: Program, key: Key) -> None:
        run(self._reset, name, program, key)

    async def areset(self, name: str, program: Program, key: Key) -> None:
        await self._reset(TASKS, name, program, key)

    async def _reset(self, driver: Driver, name: str, program: Program, key: Key) -> None:
        guard = self._guard(name, program, key)
        ask = Twin(self.primary.reset, self.primary.areset)
        await guard.guarded(ask, guard.refuse, guard.breaker.attempt)(driver, name, program, key)
        if guard.outage.local is not None:
            guard.outage.local.reset(name, program, key)

    def reset_all(self, prefix: str = "") -> int:
        count: int = self._asked_whole(self.primary.reset_all, prefix)
        for guard in self._all():
            if guard.outage.local is not None:
                guard.outage.local.reset_all(prefix)
        return count

    def keys(self, prefix: str = "") -> Iterator[str]:
        found: Iterator[str] = self._asked_whole(self.primary.keys, prefix)
        return found

    def _asked_whole(self, call: Callable[[str], Any], prefix: str) -> Any:
        whole = self._whole
        flow = whole.guarded(Twin(call, call), whole.refuse, whole.breaker.attempt, at_leisure=True)
        return run(flow, prefix)

    def close(self) -> None:
        run(self._close)

    async def aclose(self) -> None:
        await self._close(TASKS)

    async def _close(self, driver: Driver) -> None:
        if self._closed:
            return
        self._closed = True
        self._deadline.close()
        for guard in self._all():
            guard.close()
        self.wake()
        await driver.ask(Twin(self.primary.close, self.primary.aclose))

    def __repr__(self) -> str:
        return f"ResilientStore({self.primary!r}, on_outage={self.on_outage!r})"

    # inside

    def _guard(self, name: str, program: Program, key: Key) -> Guard:
        """That of the shard where the key lies."""
        shard = self.primary.shard(name, program, key) if self._sharded else None
        if shard is None:
            return self._whole
        self._forgive_the_replaced()
        # Two threads that meet a shard for the first time agree on one guard.
        guard = self._guards.get(shard) or self._guards.setdefault(shard, self._new_guard())
        guard.asked_last = (name, program, key)
        return guard

    def _forgive_the_replaced(self) -> None:
        """A lost shard whose keys are another's by now is asked no more, so no probe would find it again."""
        for shard, guard in list(self._guards.items()):
            if guard.breaker.is_open and guard.asked_last is not None:
                owner = self.primary.shard(*guard.asked_last)
                if owner is not None and owner != shard:
                    guard.breaker.replaced()

    def _new_guard(self) -> Guard:
        return Guard(self.primary, self._deadline, self._timeout_us, self.on_outage, self._part)

    def _all(self) -> list[Guard]:
        return [self._whole, *list(self._guards.values())]


def _checked_share(on_outage: str, share: Any) -> Fraction | None:
    if on_outage == Local.mode:
        if share is None:
            raise ConfigError(
                "share", share, 'is missing, and on_outage="local" needs it', "pass 1 / number of workers"
            )
        return share_of(share)
    if share is not None:
        raise ConfigError("share", share, f"has no effect with on_outage={on_outage!r}", "leave it out")
    return None
