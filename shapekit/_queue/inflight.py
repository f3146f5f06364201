"""Permits: how a policy takes a permit for a call, waits for one, and gives it back.

Waiting calls do not ask the store one by one: a process checks once for all its calls that wait at a key, and
only if the store is shared. Otherwise a call that ends wakes the next one.

A nested call waits for calls that it is itself a part of, and so may wait forever. To detect that, each
context (of a thread or task) knows the calls in flight that were begun in it, or in the context it was copied
from: a task knows those that were in flight when it was started.
"""

from __future__ import annotations

import sys
import threading
import warnings
from contextvars import ContextVar
from functools import partial
from weakref import ref

from shapekit._queue.heartbeat import STUCK_US, Call, PermitWaiter, heartbeat_of, registry_of
from shapekit._runtime import background
from shapekit._runtime.drivers import Driver, Sleepers, callers_level, run, running_loop
from shapekit.algorithms.inflight import (
    ENTER,
    KEEP,
    LEAVE,
    PERMITTED,
    REFUSED,
    WATCH,
    Concurrency,
    PermitAnswer,
)
from shapekit.decision import Decision
from shapekit.errors import ConfigError, QueueFullError, StoreUnavailableError, gave_up, whose
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store
from shapekit.stores.settings import PERMITS

__all__ = ["Permit", "Permits"]

_TIDIED_AT = 64


_BEGUN: ContextVar[tuple[ref[Permit], ...]] = ContextVar("shapekit_begun", default=())
"""The calls in flight that were begun in this context, or in the one it was copied from."""


def _lives(known: ref[Permit]) -> bool:
    permit = known()
    return permit is not None and not permit.is_over


def _task() -> object:
    """The current task, or else the current thread."""
    loop = running_loop()
    if loop is None:
        return threading.get_ident()
    if hasattr(loop, "run_sync_soon"):
        return sys.modules["trio"].lowlevel.current_task()
    return sys.modules["asyncio"].current_task()


RETRY_US = SECOND_US
"""The `retry_after` of a refusal: when a call in flight will end cannot be known."""


class Permit(Call):
    """The permit of a call, or its wait for one. If the object is garbage-collected, the permit is given
    back.
    """

    __slots__ = ("__weakref__", "enclosing", "permits", "waited_us")

    def __init__(self, permits: Permits, key: str) -> None:
        super().__init__(key)
        self.permits = permits
        self.waited_us = 0
        self.enclosing: object = None
        """The task that cannot end the call before what it starts meanwhile has ended; None if not known."""

    def __del__(self) -> None:
        # A call interrupted before it could ask has no number.
        if not getattr(self, "is_over", True):
            background.do(self.permits.give_back, self.key, self.owner, self.number)


class Permits:
    """The permits of one policy. A call that gives up, for whatever reason, keeps no permit."""

    def __init__(self, policy: str, store: Store, limit: Concurrency, sleepers: Sleepers) -> None:
        name = policy + PERMITS
        self.policy = policy
        self.limit = limit
        self.instant = store.instant
        self.clock = store.clock
        self._sleepers = sleepers
        self.registry = registry_of(store, name)
        # In an unshared, instant store no other process holds a permit and nothing is lost: no checks are
        # needed.
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
        """Tells the store which calls of this process are not over."""

    # taking

    async def take(
        self, driver: Driver, key: str, max_wait_us: int | None = None, timeout_us: int | None = None
    ) -> Permit:
        """Take a permit as soon as one is free, in order of arrival.

        QueueFullError after a wait of `max_wait`, TimeoutError after `timeout`. A task that is cancelled
        keeps no permit.
        """
        await driver.stop_if_cancelled()
        if self.registry.is_unsure(key):
            await self._heal(driver, key)
        pending = _PendingWait(self, key, max_wait_us, timeout_us)
        permit = self._begun(key, driver.loop())
        # A coroutine that is thrown away runs no cleanup here: its permit is given back by `Permit.__del__`.
        try:
            place, came_with = await self._asked(driver, permit, int(max_wait_us != 0))
            if not self._is_permitted(permit, place, came_with, pending):
                if max_wait_us is None and timeout_us is None:
                    self._check_nested(key)
                await self._wait(driver, permit, self.registry.join(permit, came_with), pending)
                permit.waited_us = pending.waited_us()
            self.registry.arrive(permit)
        except BaseException as error:
            await driver.given_back(error, partial(self.leave, driver, permit))
            raise
        return permit

    async def _wait(
        self, driver: Driver, permit: Permit, waiter: PermitWaiter, pending: _PendingWait
    ) -> None:
        key = permit.key
        while not waiter.has_permit:
            if waiter.is_lost:
                place, came_with = await self._asked(driver, permit, 1)
                waiter.came_with = came_with
                self._is_permitted(permit, place, came_with, pending)
                continue
            alarm = driver.alarm()
            is_looker = waiter.begin_wait(alarm, self.clock.now_us())
            until_us = pending.sleeps_until_us(self._pause_us(waiter, is_looker))
            await self._sleepers.rest(driver, alarm, until_us)
            if pending.is_over(waiter):
                raise pending.refusal()
            if not is_looker or waiter.has_permit:
                continue
            if self.registry.has_lost(key):
                await self._heal(driver, key)
            elif self._looks:
                self.registry.hear(key, await driver.ask(self._watch, key, permit.owner))
        waiter.go()

    def has_begun(self, permit: Permit, *, is_enclosing: bool) -> None:
        """Record that the call of this permit is in flight, so that nested calls are detected."""
        if is_enclosing:
            permit.enclosing = _task()
        calls = _BEGUN.get()
        while calls and not _lives(calls[-1]):
            calls = calls[:-1]
        if len(calls) % _TIDIED_AT == _TIDIED_AT - 1:
            calls = tuple(filter(_lives, calls))
        _BEGUN.set((*calls, ref(permit)))

    # giving back

    async def leave(self, driver: Driver, permit: Call) -> None:
        """Give a permit back; a second time does nothing. If the store is down, a later renewal tells it."""
        # Permits from before a fork belong to the parent, not to the child.
        if permit.is_over or permit.owner != self.registry.owner:
            return
        place = (permit.key, permit.owner, permit.number)
        try:
            if self.instant:
                told: PermitAnswer = self._leave.call(*place)
            else:
                with driver.shielded():
                    told = await driver.ask(self._leave, *place)
        except StoreUnavailableError:
            self._end(permit, is_sure=False)
            return
        self._end(permit, is_sure=told[0] >= 0)
        self.registry.hear(permit.key, told)
        if self.registry.has_lost(permit.key) and not self._is_awaited:
            # The store may have given the permit to a call whose event loop is closed: the next in line gets
            # it.
            background.do(run, self._heal, permit.key)

    def leave_soon(self, permit: Permit) -> None:
        """`leave` for a caller that runs on an event loop and cannot await."""
        if self.instant:
            run(self.leave, permit)
        elif not permit.is_over:
            background.do(self.give_back, permit.key, permit.owner, permit.number)
            permit.is_over = True

    def give_back(self, key: str, owner: int, number: int) -> None:
        """`leave` for a permit whose object is gone."""
        permit = Call(key)
        permit.owner, permit.number = owner, number
        if self._is_awaited:
            # No event loop to ask the store on: the next renewal tells it.
            self._end(permit, is_sure=False)
        else:
            permit.is_over = False
            run(self.leave, permit)

    # inside

    def _begun(self, key: str, loop: object = None) -> Permit:
        """Register a call that is about to ask the store."""
        background.ready()
        permit = Permit(self, key)
        is_kept = self.registry.admit(permit, loop)
        if self._heartbeat is not None and not is_kept:
            self._heartbeat.keep(self.registry, self.keep)
        return permit

    def _check_nested(self, key: str) -> None:
        """Check a call that is about to wait, without a bound, until fewer calls are in flight.

        If the call is a part of all of them: ConfigError if they cannot end before it, RuntimeWarning if
        another thread or task may end them.
        """
        limit = self.limit.limit
        around = [call for known in _BEGUN.get() if (call := known()) is not None and not call.is_over]
        around = [call for call in around if call.key == key and call.permits.registry is self.registry]
        if len(around) < limit:
            return
        task, named = _task(), whose(key, self.policy)
        if all(call.enclosing == task for call in around):
            raise ConfigError(
                "concurrency",
                limit,
                f"is used up for {named} by calls that this one is made in: it would wait for ever",
                "raise it, or give the inner call a policy or a key of its own",
            )
        warnings.warn(
            f"concurrency={limit} is used up for {named} by calls that this thread or task, or "
            "the one that started it, has in flight: this call waits for ever, unless others end them; end "
            "them first (close the response), raise concurrency, or give this call a policy or a key of its "
            "own",
            RuntimeWarning,
            stacklevel=callers_level(),
        )

    def _is_permitted(self, permit: Permit, place: int, came_with: int, pending: _PendingWait) -> bool:
        """Whether the store gave a permit; QueueFullError if it refused."""
        if place == REFUSED:
            self._end(permit, is_sure=True)
            raise pending.refusal()
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
        """How long until the next check; None for no checks."""
        if not self._looks:
            # Only for closed event loops of other waiters: nothing announces those.
            return STUCK_US if is_looker else None
        return waiter.look_after_us(self.clock.now_us()) if is_looker else STUCK_US


class _PendingWait:
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

    def sleeps_until_us(self, pause_us: int | None) -> int | None:
        """Until when to sleep if nothing happens before; None for no bound."""
        ends = [self._refused_us, self._gives_up_us]
        if pause_us is not None:
            ends.append(self._clock.now_us() + pause_us)
        return min([end for end in ends if end is not None], default=None)

    def is_over(self, waiter: PermitWaiter) -> bool:
        """Whether `max_wait` is over. TimeoutError if `timeout` is."""
        if waiter.has_permit or waiter.is_lost:
            return False
        now = self._clock.now_us()
        if self._gives_up_us is not None and now >= self._gives_up_us:
            raise gave_up(self._key, self._policy, now - self._asked_us)
        return self._refused_us is not None and now >= self._refused_us

    def refusal(self) -> QueueFullError:
        """The error for a call that got no permit in time."""
        now = self._clock.now_us()
        full = Decision(False, self._limit, self._limit, 0, now + RETRY_US, RETRY_US, "concurrency")
        waited_us = now - self._asked_us
        bound_us = waited_us if self._max_wait_us is None else self._max_wait_us
        return QueueFullError(full, self._key, waited_us / SECOND_US, bound_us / SECOND_US, self._policy)

    def waited_us(self) -> int:
        """How long the call waited."""
        return self._clock.now_us() - self._asked_us
