"""ResilientStore: keeps answering calls while a store is gone.

Outage: the answers in each mode. A mode binds operations as a store does, and each operation knows its answer
in that mode. A slot or charge of the primary can only be changed there, so cancel, settle and refund of it do
nothing meanwhile, and waiting calls leave as promised. Slots and charges of the mode itself can be changed.

Guard: asks one part of a store that can be lost separately, and has the mode answer while it is lost.

Breaker: a circuit breaker, which decides which calls ask a store that is lost, and when.

While it is closed, all calls ask. The first failure opens it: no call asks until a back-off has passed, then
one call does, the probe. If it fails, the next back-off is twice as long, up to a bound; if it gets an
answer, the breaker closes. No thread is needed: a probe is an ordinary call.

Deadline: gives up calls after a time, although they cannot be interrupted. Python cannot stop a thread that
hangs in a call. So the call is made on another thread, and the caller stops waiting; a later answer is not
used. Threads are kept for a while and reused.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from fractions import Fraction
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from shapekit._runtime import process
from shapekit._runtime.drivers import (
    TASKS,
    THREADS,
    DiscardableScope,
    Driver,
    PatientTimeout,
    Twin,
    run,
    running_trio,
)
from shapekit.algorithms.base import Moment, Operation, Side, of_its, share_of
from shapekit.algorithms.compose import adopted
from shapekit.clock import Clock
from shapekit.errors import ConfigError, StoreUnavailableError, span_words
from shapekit.events import EVERYWHERE, StoreBack, StoreLost
from shapekit.rate import SECOND_US, Duration, duration_us, one_of
from shapekit.stores.base import Apply, ApplyMany, DamagedStateError, Key, Program, Store, Stored
from shapekit.stores.memory import MemoryStore

__all__ = ["ResilientStore"]


T = TypeVar("T")
Flow: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""The work of a call; its first argument is the driver."""


OnOutage: TypeAlias = Literal["raise", "open", "closed", "local"]
LOCAL = "local"


class Outage:
    """Answers in place of a store that is gone.

    - `raise`: every call raises; operations that only give back answer that nothing was given back.
    - `open`: every call finds a key that was never used, and leaves it so.
    - `closed`: every call is refused until the store is asked again.
    """

    def __init__(self, mode: str, primary: Store, breaker: Breaker) -> None:
        self._mode = mode
        self._clock = primary.clock
        self._settings = primary.settings
        self._breaker = breaker
        self.local: MemoryStore | None = None

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        """The function that answers `operation` on a key of `name`."""
        if operation.nothing is not None:
            return lambda *_: operation.nothing
        answer = self._answering(name, program, operation)
        if operation.is_look:
            return lambda key: self._in_force(name, program, key, answer(key))
        return answer

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        """`bind` for an operation whose answer is not always the same."""
        if self._mode == "raise" and operation.needs_store:
            return self._breaker.refuse
        answer = operation.opened if self._mode == "open" else operation.closed
        return lambda key, *args: answer(program, self._moment(), args)

    def own(self, name: str, program: Program, operation: Operation) -> Apply | None:
        """The function that applies an operation to slots that the mode granted; None if it grants none."""
        return None

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        """The function that answers `operation` for several keys."""
        apply = self.bind(name, program, operation)

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            return [apply(key, *args) for key in keys]

        return apply_many

    def _in_force(self, name: str, program: Any, key: Key, looked: Any) -> Any:
        """The answer of LOOK, in the units of an operator's limits, with which callers compute."""
        state, now, skew = looked
        queue = self._settings(name).program(program, key)
        return adopted(queue, state, program, now, skew), now, skew

    def _moment(self) -> Moment:
        now = self._clock.now_us()
        return Moment(now, self._clock.wall_us() - now, self._breaker.probe_in_us())


class Local(Outage):
    """`local`: every process limits its own calls, at a share of the limits."""

    def __init__(self, primary: Store, breaker: Breaker, share: Fraction) -> None:
        super().__init__(LOCAL, primary, breaker)
        self.local = self._local = MemoryStore(primary.clock)
        self._share = share
        self._closed = Outage("closed", primary, breaker)

    def _answering(self, name: str, program: Any, operation: Operation) -> Apply:
        part = program.scaled(self._share)
        if operation.instead is not None:
            standing = self._local.bind(name, part, operation.instead)
            return lambda key, *_: standing(key)
        refuse = self._closed.bind(name, program, operation)
        return operation.locally(self._local.bind(name, part, operation), program, part, refuse)

    def own(self, name: str, program: Any, operation: Operation) -> Apply:
        part = program.scaled(self._share)
        apply = self._local.bind(name, part, operation)
        return lambda key, *args: operation.given(program, part, apply(key, *args))

    def bind_many(self, name: str, program: Any, operation: Operation) -> ApplyMany:
        if operation.is_look:
            return super().bind_many(name, program, operation)
        part = program.scaled(self._share)
        apply_many = self._local.bind_many(name, part, operation)
        refuse_many = self._closed.bind_many(name, program, operation)

        def answer(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            if (cost := operation.cost(args)) and cost > part.max_cost:
                return refuse_many(keys, args)
            return [operation.given(program, part, one) for one in apply_many(keys, args)]

        return answer


class Guard:
    """Asks the primary while it is there, and answers in the outage mode while it is not."""

    def __init__(
        self, primary: Store, deadline: Deadline, timeout_us: int, on_outage: str, part: Fraction | None
    ) -> None:
        self.primary = primary
        self.breaker = Breaker(primary.clock, lambda: repr(primary), timeout_us)
        self._deadline = deadline
        self.outage = (
            Outage(on_outage, primary, self.breaker) if part is None else Local(primary, self.breaker, part)
        )
        self._said_us: int | None = None
        """When a damaged state was last logged."""
        self.asked_last: tuple[str, Program, Key] | None = None
        """The name, the program and the key of the last call for this part."""

    def bound(
        self, driver: Driver, name: str, program: Program, operation: Operation, *, many: bool = False
    ) -> Flow:
        """The function that applies an operation to a key; with `many`, to each of several keys."""
        if not many:
            return self._routed(driver, name, program, operation)
        if operation.follows:
            return _each(self._routed(driver, name, program, operation))
        ask = self._prepared(driver, name, program, operation, many=True)
        return self.guarded(ask, self.outage.bind_many(name, program, operation))

    def _routed(self, driver: Driver, name: str, program: Program, operation: Operation) -> Flow:
        def flow_of(chosen: Operation) -> Flow:
            # A waiting call that is about to leave must not be late because it probes.
            ask = self._prepared(driver, name, program, chosen)
            return self.guarded(ask, unmoved, probes=chosen.probes)

        unmoved = self.outage.bind(name, program, operation)
        primary = flow_of(operation)
        if operation.on_both_sides and self.outage.local is not None:

            async def both(driver: Driver, *args: Any) -> Any:
                # A permit does not tell which side granted it; giving it back on the other does nothing.
                unmoved(*args)
                return await primary(driver, *args)

            return both
        if not operation.follows:
            return primary
        own = self.outage.own(name, program, operation)
        standing = None if operation.instead is None else flow_of(operation.instead)

        async def routed(driver: Driver, key: Key, *args: Any) -> Any:
            side, args = operation.routed(args)
            if side is Side.PRIMARY:
                return await primary(driver, key, *args)
            if side is Side.LOCAL and own is not None:
                return own(key, *args)
            return unmoved(key, *args) if standing is None else await standing(driver, key)

        return routed

    def guarded(
        self, ask: Twin[Any], outage: Apply, *, probes: bool = True, at_leisure: bool = False
    ) -> Flow:
        """The function that asks the primary, within the timeout unless `at_leisure`, or else the mode.

        DamagedStateError is an answer of the primary.
        """
        breaker = self.breaker
        if not (at_leisure or self.primary.instant):
            ask = Twin(partial(self._deadline.call, ask.call), partial(self._deadline.acall, ask.acall))

        async def flow(driver: Driver, *args: Any) -> Any:
            if self._deadline.is_closed:
                raise StoreUnavailableError("this ResilientStore is closed; make a new one")
            term = breaker.term(probes=probes)
            if term is None:
                return outage(*args)
            try:
                answer = await driver.ask(ask, *args)
            except DamagedStateError as error:
                breaker.answered(term)
                return self._instead(error, outage, args)
            except StoreUnavailableError as error:
                breaker.lost(term, error)
            except GeneratorExit:
                process.in_background(breaker.undecided, term)  # a dropped coroutine takes no lock
                raise
            except BaseException:
                breaker.undecided(term)
                raise
            else:
                breaker.answered(term)
                return answer
            return outage(*args)

        return flow

    def _instead(self, damage: DamagedStateError, outage: Apply, args: tuple[Any, ...]) -> Any:
        """The mode's answer for a key whose state is damaged; if the mode raises, it raises this error."""
        try:
            answer = outage(*args)
        except StoreUnavailableError:
            raise damage from damage.__cause__
        now = self.primary.clock.now_us()
        if self._said_us is None or not self._said_us <= now < self._said_us + LONGEST_BACK_OFF_US:
            self._said_us = now
            _say("%r cannot read one key, which is answered as in an outage: %s", self.primary, damage)
        return answer

    def _prepared(self, driver: Driver, *binding: Any, many: bool = False) -> Twin[Any]:
        """The primary's call, bound now, or at its first use if the primary is gone now."""
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
                bound = bind(*binding)
            return bound(*args)

        if not self.breaker.is_open:
            with suppress(StoreUnavailableError):
                bound = bind(*binding)
        return Twin(ask, ask)  # both forms: only one driver uses it


def _each(flow: Flow) -> Flow:
    """A flow that runs one call for each of several keys."""

    async def each(driver: Driver, keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
        return [await flow(driver, key, *args) for key in keys]

    return each


class ResilientStore(Store):
    """Wraps a store, and answers in the mode `on_outage` while that store is gone.

        >>> from shapekit import MemoryStore, Shaper
        >>> store = ResilientStore(MemoryStore(), on_outage="local", share=1 / 4)
        >>> Shaper("10/s", name="stripe", store=store).reserve().delay
        0.0

    An outage begins when a call raises StoreUnavailableError or gets no answer within `timeout`. From then on
    no call asks the primary until a probe succeeds. A probe is the first call after a back-off of at most 10
    seconds, and may itself take up to `timeout`; calls that are about to leave do not probe. The logger
    `shapekit.store` logs once that the store is lost, and once that it is back.

    Let an outage last D seconds, from a worker's first call that fails to its first that is answered. For a
    limit of `burst` and `rate`, each mode then admits as follows. (For a window or quota, the burst is its
    limit, and the rate is its limit divided by its period; if its periods follow the calendar or the epoch,
    one limit more is possible.)

    - `"raise"`: nothing. Calls raise StoreUnavailableError.
    - `"closed"`: nothing. Gates deny and shapers refuse, with the time to the next probe as `retry_after`.
    - `"open"`: everything, without a delay. Holds are not obeyed.
    - `"local"`: each worker limits its own calls, at `share` of the limits, in its own memory. W workers
      admit at most `W * (max(1, floor(share * burst)) + share * rate * D)`: with `share = 1/W`, the rate
      and one burst more. If only some workers are busy, they admit less than the rate. A cost above the
      share's burst is refused until the next probe. Holds from before the outage are not known. A hold of
      the outage goes on moving the calls that wait for local slots, but not those that come after it.

    In every mode:

    - The primary does not count the calls that were admitted in an outage, so after its return it may admit
      its burst once more. Calls that it admitted before still count.
    - Waiting calls keep their slots. So calls that wait when an outage begins or ends leave in addition to
      those that the other side admits.
    - Each shard of a Redis Cluster is lost and found separately. A shard whose keys another one has taken
      over counts as found.
    - A call whose answer is lost may cost a slot that no call uses; the primary never charges it twice.
    - A damaged state, or a value of another program, at one key is no outage. Until the key is reset, its
      calls are answered in the mode; `"raise"` raises an error about the state. It is logged every 10 seconds
      at most. Other keys are limited as always.
    - A charge is given back on the side that charged it, or not at all: in an outage, `cancel`, `settle` and
      `refund` of the primary's charges do not raise, and give nothing back.
    - Calls in flight (`concurrency=`) go on. For new calls, `"raise"` raises, `"closed"` refuses, `"open"`
      lets all leave uncounted, and `"local"` gives each worker `max(1, floor(share * limit))` permits of its
      own. After its return, the primary learns within a third of a lease which calls have ended, but never of
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
        one_of("on_outage", on_outage, get_args(OnOutage))
        part = _checked_share(on_outage, share)
        timeout_us = duration_us("timeout", timeout)
        self.primary = primary
        """The store that is asked while it answers."""
        self.on_outage = on_outage
        """The mode while it does not answer: "raise", "open", "closed" or "local"."""
        self.clock = primary.clock
        self.shared = primary.shared
        self.instant = primary.instant
        self.clock_decides = primary.clock_decides
        self.awaited_only = primary.awaited_only
        self._sharded = primary.sharded
        self._deadline = Deadline(timeout_us)
        self._new_guard = partial(Guard, primary, self._deadline, timeout_us, on_outage, part)
        self._whole = self._new_guard()
        self._guards: dict[Hashable, Guard] = {}

    @property
    def is_lost(self) -> bool:
        """Whether the primary, or a shard of it, is known to be gone, so that only probes ask it."""
        self._forgive_the_replaced()
        return any(guard.breaker.is_open for guard in self._all())

    # binding

    @property
    def server(self) -> object:
        return self.primary.server

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
        # Prepare the call now, whichever shard is asked first.
        bound = {self._whole: self._whole.bound(driver, name, program, operation)}

        async def apply(driver: Driver, key: Key, *args: Any) -> Any:
            guard = self._guard(name, program, key)
            if guard not in bound:
                bound[guard] = guard.bound(driver, name, program, operation)
            return await bound[guard](driver, key, *args)

        return _each(apply) if many else apply

    # beside the operations

    settings = of_its("primary", Store.settings)
    all_overrides = of_its("primary", Store.all_overrides)
    write_overrides = of_its("primary", Store.write_overrides)
    awrite_overrides = of_its("primary", Store.awrite_overrides)

    def read_overrides(self, name: str) -> Stored:
        return self._through_whole(self.primary.read_overrides, name)

    async def aread_overrides(self, name: str) -> Stored:
        ask = Twin(self.primary.read_overrides, self.primary.aread_overrides)
        stored: Stored = await self._of_whole(ask)(TASKS, name)
        return stored

    def reset(self, name: str, program: Program, key: Key) -> None:
        run(self._reset, name, program, key)

    async def areset(self, name: str, program: Program, key: Key) -> None:
        await self._reset(TASKS, name, program, key)

    async def _reset(self, driver: Driver, name: str, program: Program, key: Key) -> None:
        guard = self._guard(name, program, key)
        ask = Twin(self.primary.reset, self.primary.areset)
        await guard.guarded(ask, guard.breaker.refuse)(driver, name, program, key)
        if guard.outage.local is not None:
            guard.outage.local.reset(name, program, key)

    def reset_all(self, prefix: str = "") -> int:
        count = self._through_whole(self.primary.reset_all, prefix)
        for guard in self._all():
            if guard.outage.local is not None:
                guard.outage.local.reset_all(prefix)
        return count

    def keys(self, prefix: str = "") -> Iterator[str]:
        return self._through_whole(self.primary.keys, prefix)

    def _through_whole(self, call: Callable[[str], T], text: str) -> T:
        ask: Any = call
        answer: T = run(self._of_whole(Twin(ask, ask)), text)
        return answer

    def _of_whole(self, ask: Twin[Any]) -> Flow:
        return self._whole.guarded(ask, self._whole.breaker.refuse, at_leisure=True)

    def close(self) -> None:
        run(self._close)

    async def aclose(self) -> None:
        await self._close(TASKS)

    async def _close(self, driver: Driver) -> None:
        if self._deadline.is_closed:
            return
        self._deadline.close()
        for guard in self._all():
            if guard.outage.local is not None:
                guard.outage.local.close()
        self.wake()
        await driver.ask(Twin(self.primary.close, self.primary.aclose))

    def __repr__(self) -> str:
        return f"ResilientStore({self.primary!r}, on_outage={self.on_outage!r})"

    # inside

    def _guard(self, name: str, program: Program, key: Key) -> Guard:
        """The guard of the shard that holds the key."""
        shard = self.primary.shard(name, program, key) if self._sharded else None
        if shard is None:
            return self._whole
        self._forgive_the_replaced()
        # Two threads that meet a shard for the first time agree on one guard.
        guard = self._guards.get(shard) or self._guards.setdefault(shard, self._new_guard())
        guard.asked_last = (name, program, key)
        return guard

    def _forgive_the_replaced(self) -> None:
        """Close the breaker of a lost shard whose keys another one has: it is not asked any more, so no probe
        would close it.
        """
        for shard, guard in list(self._guards.items()):
            if guard.breaker.is_open and guard.asked_last is not None:
                owner = self.primary.shard(*guard.asked_last)
                if owner is not None and owner != shard:
                    guard.breaker.replaced()

    def _all(self) -> list[Guard]:
        return [self._whole, *list(self._guards.values())]


def _checked_share(on_outage: str, share: Any) -> Fraction | None:
    if on_outage == LOCAL:
        if share is None:
            fix = "pass 1 / number of workers"
            raise ConfigError("share", share, 'is missing, and on_outage="local" needs it', fix)
        return share_of(share)
    if share is not None:
        raise ConfigError("share", share, f"has no effect with on_outage={on_outage!r}", "leave it out")
    return None


FIRST_BACK_OFF_US = 250_000
LONGEST_BACK_OFF_US = 10 * SECOND_US
"""The longest back-off. Each is cut by up to half, at random, so that workers do not probe together."""


class Breaker:
    """Opens when a store is lost, closes when a probe succeeds, and logs each of these once.

    Each call asks for the `term` first, and then reports its outcome: `answered`, `lost` or `undecided`. A
    probe that never ends delays the next one by twice `patience_us`.
    """

    def __init__(self, clock: Clock, what: Callable[[], str], patience_us: int) -> None:
        self._clock = clock
        self._what = what
        self._patience_us = patience_us
        self._jitter = random.random
        self._lock = process.lock()
        self._term = 0
        self._back_off_us = FIRST_BACK_OFF_US
        self._lost_us = 0
        self._asked_us = 0
        self._due_us = 0
        self._cause = ""
        self.is_open = False

    def term(self, *, probes: bool = True) -> int | None:
        """The term in which a call asks; None if it may not ask."""
        term = self._term
        if not self.is_open:
            return term
        if not probes:
            return None
        with self._lock:
            now = self._clock.now_us()
            # A clock that was put back must not keep all calls from asking until it has caught up.
            if self.is_open and self._asked_us <= now < self._due_us:
                return None
            if self.is_open:
                self._wait(now, max(2 * self._patience_us, self._back_off_us))
            return self._term

    def probe_in_us(self) -> int:
        """How long until a call may ask again, at least 1. If the breaker is closed, a single key got no
        answer: the first back-off.
        """
        return max(1, self._due_us - self._clock.now_us()) if self.is_open else FIRST_BACK_OFF_US

    def refuse(self, *_: Any) -> Any:
        """Raise the error for a call that may not ask."""
        wait = span_words(self.probe_in_us())
        raise StoreUnavailableError(f"{self._what()} is lost: {self._cause}; it is asked again in {wait}")

    def lost(self, term: int, cause: BaseException) -> None:
        """An attempt failed. If it began in an earlier term, it means nothing for this one."""
        with self._lock:
            if term != self._term:
                return
            now = self._clock.now_us()
            news = not self.is_open
            if news:
                self.is_open = True
                self._lost_us = now
                self._back_off_us = FIRST_BACK_OFF_US
            else:
                self._back_off_us = min(2 * self._back_off_us, LONGEST_BACK_OFF_US)
            self._cause = str(cause)
            self._wait(now, self._back_off_us - int(self._back_off_us / 2 * self._jitter()))
        if news:
            _say("lost %s: %s; it is asked again in %s", self._what(), cause, span_words(self.probe_in_us()))
            if EVERYWHERE:
                EVERYWHERE.tell(StoreLost(self._what(), str(cause)))

    def answered(self, term: int) -> None:
        """An attempt was answered."""
        if not self.is_open:
            return
        with self._lock:
            if not self.is_open or term != self._term:
                return
            self.is_open = False
            away_us = max(0, self._clock.now_us() - self._lost_us)
        _say("%s is back after %s", self._what(), span_words(away_us))
        if EVERYWHERE:
            EVERYWHERE.tell(StoreBack(self._what(), away_us / SECOND_US))

    def replaced(self) -> None:
        """Another shard has the keys of the lost one, which is not asked any more."""
        self.answered(self._term)

    def undecided(self, term: int) -> None:
        """An attempt ended without a result: if it was a probe, the next call makes another one."""
        with self._lock:
            if self.is_open and term == self._term:
                self._due_us = self._asked_us

    def _wait(self, now: int, length_us: int) -> None:
        self._term += 1
        self._asked_us = now
        self._due_us = now + length_us


def _say(message: str, *args: object) -> None:
    import logging  # noqa: PLC0415 - only a lost store logs

    logging.getLogger("shapekit.store").warning(message, *args)


_IDLE_S = 10.0
"""How long an idle thread is kept."""
_MOST_OVERDUE = 32
"""How many calls may still hang after they were given up; beyond that, no call asks until some end."""


_Outbox: TypeAlias = "SimpleQueue[tuple[Any, BaseException | None]]"
"""The queue for the answer of a call, or its error."""
_Job: TypeAlias = "tuple[Callable[[], Any], _Outbox]"
_Inbox: TypeAlias = "SimpleQueue[_Job | None]"


class Deadline:
    """Waits at most `timeout_us` for each call; synchronous calls are made on its own threads."""

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self.is_closed = False
        """Whether the store was closed: then no guard makes further calls."""
        self.begin()
        _DEADLINES.add(self)

    def begin(self) -> None:
        """Start without threads: at first, and in a forked child, since they are its parent's."""
        self._idle: deque[_Inbox] = deque()
        self._overdue: set[_Outbox] = set()

    def call(self, call: Callable[..., Any], *args: Any) -> Any:
        """The answer of `call`, or StoreUnavailableError if it takes too long."""
        if len(self._overdue) >= _MOST_OVERDUE:
            raise StoreUnavailableError(f"{len(self._overdue)} calls to the store still hang")
        outbox: _Outbox = SimpleQueue()
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            worker = threading.Thread(target=self._work, args=(inbox,), name="shapekit-store", daemon=True)
            try:
                process.start_thread(worker)
            except StoreUnavailableError:
                return call(*args)  # without a thread, the call cannot be given up
        inbox.put((partial(copy_context().run, call, *args), outbox))
        try:
            answer, error = outbox.get(timeout=self._timeout_us / SECOND_US)
        except Empty:
            self._overdue.add(outbox)
            if outbox.empty():
                raise self._missed() from None
            self._overdue.discard(outbox)
            answer, error = outbox.get()
        if error is None:
            return answer
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    async def acall(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """`call`, awaited: no thread is needed."""
        timeout_s = self._timeout_us / SECOND_US
        if (trio := running_trio()) is not None:
            with DiscardableScope(trio.move_on_after(timeout_s)):
                return await call(*args)
            raise self._missed()
        patience = PatientTimeout(timeout_s)
        try:
            async with patience:
                return await call(*args)
        except TimeoutError:
            if patience.has_expired():
                raise self._missed() from None
            raise

    def _missed(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"no answer within {span_words(self._timeout_us)}")

    def close(self) -> None:
        """End the threads; a thread that hangs in a call ends when the call does."""
        self.is_closed = True
        while self._idle:
            with suppress(IndexError):  # a call may just have taken it
                self._idle.pop().put(None)

    def _work(self, inbox: _Inbox) -> None:
        while (job := self._next(inbox)) is not None:
            work, outbox = job
            answer, error = None, None
            try:
                answer = work()
            except BaseException as raised:
                error = raised
            # Idle first, so that a caller that asks again right after its answer finds this thread.
            if not self.is_closed:
                self._idle.append(inbox)
            outbox.put((answer, error))
            self._overdue.discard(outbox)
            # An idle thread must not keep objects alive.
            del job, work, outbox, answer, error
            if self.is_closed:
                return

    def _next(self, inbox: _Inbox) -> _Job | None:
        try:
            return inbox.get(timeout=_IDLE_S)
        except Empty:
            try:
                self._idle.remove(inbox)
            except ValueError:
                # Another call has just taken this thread.
                return inbox.get()
            return None


_DEADLINES = process.begin_anew(Deadline.begin)
