"""Permits: how a policy takes a permit for a call, waits for one in line, and gives it back.

Nobody who waits asks the store by itself: a process looks once for all of its calls that wait at a key, and
only where others share the store; otherwise whoever leaves wakes whoever is next.

Nested: a call that waits for calls which it is a part of itself, and so may wait for ever.

Each context (a thread's, or a task's) knows the calls in flight that were begun in it, or before it was
copied from another: so a task knows those that were in flight where it was started.
"""

from __future__ import annotations

import sys
import threading
import warnings
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol
from weakref import ref

from shapekit._queue.heartbeat import STUCK_US, Call, PermitWaiter, heartbeat_of, registry_of
from shapekit._runtime import background as afterwards
from shapekit._runtime.blocking import callers_level
from shapekit._runtime.drivers import Driver, run
from shapekit._runtime.event import running_loop
from shapekit._runtime.sleepers import Sleepers
from shapekit.algorithms.inflight import ENTER, KEEP, LEAVE, PERMITTED, REFUSED, WATCH, Concurrency, Told
from shapekit.decision import Decision
from shapekit.errors import ConfigError, QueueFullError, StoreUnavailableError, gave_up, whose
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store

__all__ = ["InFlight", "Permit", "Permits", "begun", "check"]

_TIDIED_AT = 64


class InFlight(Protocol):
    """A call in flight."""

    is_over: bool
    key: str
    enclosing: object
    """The task that ends the call only when what it begins meanwhile has ended; None if that is not known."""

    @property
    def limit_of(self) -> object:
        """Of what the call is counted in flight."""
        ...


_BEGUN: ContextVar[tuple[ref[Any], ...]] = ContextVar("shapekit_begun", default=())


def begun(call: InFlight, *, is_enclosing: bool) -> None:
    """A call is in flight from now on."""
    if is_enclosing:
        call.enclosing = _task()
    calls = _BEGUN.get()
    while calls and not _lives(calls[-1]):
        calls = calls[:-1]
    if len(calls) % _TIDIED_AT == _TIDIED_AT - 1:
        calls = tuple(filter(_lives, calls))
    _BEGUN.set((*calls, ref(call)))


def check(key: str, policy: str, limit_of: object, limit: int) -> None:
    """A call is about to wait, without a bound, until fewer than `limit` are in flight.

    If it is a part of all these: ConfigError where they cannot end before, a RuntimeWarning where others may
    end them.
    """
    around = [call for known in _BEGUN.get() if (call := known()) is not None and not call.is_over]
    around = [call for call in around if call.key == key and call.limit_of is limit_of]
    if len(around) < limit:
        return
    task = _task()
    if all(call.enclosing == task for call in around):
        raise ConfigError(
            "concurrency",
            limit,
            f"is used up for {whose(key, policy)} by calls that this one is made in: it would wait for ever",
            "raise it, or give the inner call a policy or a key of its own",
        )
    warnings.warn(
        f"concurrency={limit} is used up for {whose(key, policy)} by calls that this thread or task, or "
        "the one that started it, has in flight: this call waits for ever, unless others end them; end them "
        "first (close the response), raise concurrency, or give this call a policy or a key of its own",
        RuntimeWarning,
        stacklevel=callers_level(),
    )


def _lives(known: ref[Any]) -> bool:
    call = known()
    return call is not None and not call.is_over


def _task() -> object:
    """What runs here: a task, or else a thread."""
    loop = running_loop()
    if loop is None:
        return threading.get_ident()
    if hasattr(loop, "run_sync_soon"):
        return sys.modules["trio"].lowlevel.current_task()
    return sys.modules["asyncio"].current_task()


RETRY_US = SECOND_US
"""When to ask again after a refusal: when a call ends, nobody can know."""


class Permit(Call):
    """A call's permit, or its way to one. Whoever drops it without a word gives it back, too."""

    __slots__ = ("__weakref__", "_permits", "enclosing", "waited_us")

    def __init__(self, permits: Permits, key: str) -> None:
        super().__init__(key)
        self._permits = permits
        self.waited_us = 0
        self.enclosing: object = None

    @property
    def limit_of(self) -> object:
        return self._permits.registry

    def __del__(self) -> None:
        # Whoever was interrupted before it could ask has nothing to be told apart by.
        if not getattr(self, "is_over", True):
            afterwards.do(self._permits.give_back, self.key, self.owner, self.number)


class Permits:
    """The permits of one policy. Whoever gives up, for whatever reason, has none."""

    def __init__(self, policy: str, store: Store, limit: Concurrency, sleepers: Sleepers) -> None:
        name = f"{policy}.permits"
        self.policy = policy
        self.limit = limit
        self.instant = store.instant
        self.clock = store.clock
        self._sleepers = sleepers
        self.registry = registry_of(store, name)
        # Where nobody else can hold a permit, and nothing gets lost, nobody need look.
        self._looks = store.shared or not store.instant
        self._heartbeat = heartbeat_of(store) if store.shared else None
        self._is_awaited = store.awaited_only
        program = limit if store.shared else limit.unending()
        self.registry.lease_us = min(self.registry.lease_us, program.lease_us)
        bound = (name, program)
        self._enter = store.twin(*bound, ENTER)
        self._watch = store.twin(*bound, WATCH)
        self._leave = store.twin(*bound, LEAVE)
        self.keep = store.twin(*bound, KEEP)
        """Says to the store which calls there still are."""

    # taking

    async def take(
        self, driver: Driver, key: str, max_wait_us: int | None = None, timeout_us: int | None = None
    ) -> Permit:
        """A permit, as soon as there is one: first come, first served.

        QueueFullError once it was waited for as long as `max_wait`, TimeoutError after `timeout`. A cancelled
        task has no permit, or gives it back.
        """
        await driver.stop_if_cancelled()
        if self.registry.is_unsure(key):
            await self._heal(driver, key)
        patience = _Patience(self, key, max_wait_us, timeout_us)
        permit = self._begun(key, driver.loop())
        # Thrown away, it does nothing here: when it is gone, its permit is given back.
        try:
            place, came_with = await self._asked(driver, permit, int(max_wait_us != 0))
            if not self._is_permitted(permit, place, came_with, patience):
                if max_wait_us is None and timeout_us is None:
                    check(key, self.policy, self.registry, self.limit.limit)
                await self._wait(driver, permit, self.registry.join(permit, came_with), patience)
                permit.waited_us = patience.waited_us()
            self.registry.arrive(permit)
        except BaseException as error:
            await driver.given_back(error, partial(self.leave, driver, permit))
            raise
        return permit

    async def _wait(self, driver: Driver, permit: Permit, waiter: PermitWaiter, patience: _Patience) -> None:
        key = permit.key
        while not waiter.has_permit:
            if waiter.is_lost:
                place, came_with = await self._asked(driver, permit, 1)
                waiter.came_with = came_with
                self._is_permitted(permit, place, came_with, patience)
                continue
            alarm = driver.alarm()
            is_looker = waiter.lie_down(alarm, self.clock.now_us())
            until_us = patience.nap_until_us(self._pause_us(waiter, is_looker))
            await driver.rest(self._sleepers, alarm, until_us)
            if patience.is_over(waiter):
                raise patience.refusal()
            if not is_looker or waiter.has_permit:
                continue
            if self.registry.has_lost(key):
                await self._heal(driver, key)
            elif self._looks:
                self.registry.hear(key, await driver.ask(self._watch, key, permit.owner))
        waiter.go()

    def has_begun(self, permit: Permit, *, is_enclosing: bool) -> None:
        """The call of this permit is on its way: calls that are made in it can tell."""
        begun(permit, is_enclosing=is_enclosing)

    # giving back

    async def leave(self, driver: Driver, permit: Call) -> None:
        """Give a permit back; again, this does nothing. Where the store is gone, it hears of it later."""
        # What a process had in flight when it was forked is its own, and not the child's.
        if permit.is_over or permit.owner != self.registry.owner:
            return
        place = (permit.key, permit.owner, permit.number)
        try:
            if self.instant:
                told: Told = self._leave.call(*place)
            else:
                with driver.shielded():
                    told = await driver.ask(self._leave, *place)
        except StoreUnavailableError:
            self._end(permit, is_sure=False)
            return
        self._end(permit, is_sure=told[0] >= 0)
        self.registry.hear(permit.key, told)
        if self.registry.has_lost(permit.key) and not self._is_awaited:
            # The permit may be given to a call that never comes for it: the next one in line has it.
            afterwards.do(run, self._heal, permit.key)

    def leave_soon(self, permit: Permit) -> None:
        """`leave`, for whoever runs on an event loop and cannot await."""
        if self.instant:
            run(self.leave, permit)
        elif not permit.is_over:
            afterwards.do(self.give_back, permit.key, permit.owner, permit.number)
            permit.is_over = True

    def give_back(self, key: str, owner: int, number: int) -> None:
        """`leave`, of a permit that nobody has any more."""
        permit = Call(key)
        permit.owner, permit.number = owner, number
        if self._is_awaited:
            # There is nobody here who could ask the store: the next renewal tells it.
            self._end(permit, is_sure=False)
        else:
            permit.is_over = False
            run(self.leave, permit)

    # inside

    def _begun(self, key: str, loop: object = None) -> Permit:
        """A call that is about to ask, known here from now on."""
        afterwards.ready()
        permit = Permit(self, key)
        is_kept = self.registry.admit(permit, loop)
        if self._heartbeat is not None and not is_kept:
            self._heartbeat.keep(self.registry, self.keep)
        return permit

    def _is_permitted(self, permit: Permit, place: int, came_with: int, patience: _Patience) -> bool:
        """What the store answered; QueueFullError if there is no place."""
        if place == REFUSED:
            self._end(permit, is_sure=True)
            raise patience.refusal()
        self.registry.hear(permit.key, (came_with, permit.number) if place == PERMITTED else (came_with,))
        return place == PERMITTED

    async def _asked(self, driver: Driver, permit: Permit, may_wait: int) -> tuple[int, int]:
        asked = (permit.key, permit.owner, permit.number, may_wait)
        answer: tuple[int, int] = (
            self._enter.call(*asked) if self.instant else await driver.ask(self._enter, *asked)
        )
        return answer

    def _end(self, permit: Call, *, is_sure: bool) -> None:
        unsure_until_us = 0 if is_sure else self.clock.now_us() + self.registry.lease_us
        self.registry.end(permit, unsure_until_us=unsure_until_us)

    async def _heal(self, driver: Driver, key: str) -> None:
        since_us = self.clock.now_us()
        told = await driver.ask(self.keep, key, *self.registry.alive(key, since_us))
        self.registry.renewed(key, told, since_us, self.clock.now_us())

    def _pause_us(self, waiter: PermitWaiter, is_looker: bool) -> int | None:
        """After how long to see how things stand, beside what is heard; None for never."""
        if not self._looks:
            # Only whether the loops of others were closed, which tells nobody of it.
            return STUCK_US if is_looker else None
        return waiter.look_after_us(self.clock.now_us()) if is_looker else STUCK_US


class _Patience:
    """How long a call waits for a permit."""

    __slots__ = (
        "_asked_us",
        "_clock",
        "_gives_up_us",
        "_key",
        "_limit",
        "_max_wait_us",
        "_policy",
        "_refused_us",
    )

    def __init__(self, permits: Permits, key: str, max_wait_us: int | None, timeout_us: int | None) -> None:
        self._clock = permits.clock
        self._key = key
        self._policy = permits.policy
        self._limit = permits.limit.limit
        self._asked_us = now = self._clock.now_us()
        self._max_wait_us = max_wait_us
        self._refused_us = None if max_wait_us is None else now + max_wait_us
        self._gives_up_us = None if timeout_us is None else now + timeout_us

    def nap_until_us(self, pause_us: int | None) -> int | None:
        """Until when to sleep, unless there are news before; None for as long as it takes."""
        ends = [self._refused_us, self._gives_up_us]
        if pause_us is not None:
            ends.append(self._clock.now_us() + pause_us)
        return min([end for end in ends if end is not None], default=None)

    def is_over(self, waiter: PermitWaiter) -> bool:
        """Whether it was long enough. TimeoutError if it was too long for the caller."""
        if waiter.has_permit or waiter.is_lost:
            return False
        now = self._clock.now_us()
        if self._gives_up_us is not None and now >= self._gives_up_us:
            raise gave_up(self._key, self._policy, now - self._asked_us)
        return self._refused_us is not None and now >= self._refused_us

    def refusal(self) -> QueueFullError:
        """That there was no permit in time."""
        now = self._clock.now_us()
        full = Decision(False, self._limit, self._limit, 0, now + RETRY_US, RETRY_US, "concurrency")
        waited_us = now - self._asked_us
        bound_us = waited_us if self._max_wait_us is None else self._max_wait_us
        return QueueFullError(full, self._key, waited_us / SECOND_US, bound_us / SECOND_US, self._policy)

    def waited_us(self) -> int:
        """How long it was."""
        return self._clock.now_us() - self._asked_us
