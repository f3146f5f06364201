"""Heartbeat: renews the leases of the calls that this process has in flight on one store.

Each store has one thread per process. It starts with the first call and ends when a renewal is due and no
call is in flight. For an async-only store it is a task on the event loop of that call.

Registry: the calls of this process that hold a permit, or wait for one, under one name on one store.

The store holds the truth. A registry knows only the calls of its process, and wakes them when they get their
permits: every answer of the store about a key, whichever call asked, reaches all calls that wait at that key.
"""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from shapekit._runtime import forks
from shapekit._runtime.drivers import CHUNK_S, TASKS, Alarm, Driver, Twin, has_ended, run, running_loop
from shapekit.algorithms.inflight import PermitAnswer
from shapekit.errors import ShapekitError
from shapekit.rate import MAX_SPAN_US, SECOND_US
from shapekit.stores.base import Store, companion

if TYPE_CHECKING:
    from asyncio import Task

__all__ = ["Call", "Heartbeat", "PermitWaiter", "Registry", "heartbeat_of", "registry_of"]

LOOK_US = 30_000
"""The shortest interval at which a process checks a shared store, for all its calls that wait at a key."""
SEEN_PART, SEEN_US = 8, 250_000
"""The longest interval in the first seconds after a change, and the part of the time since that it may be."""
LATER_PART, LATER_US = 64, 1_000_000
"""The same for later."""
JITTER = 8
"""The interval is longer by up to this part, at random, so that processes do not check in step."""
STUCK_US = 5_000_000
"""How long until another call takes over the checks, in case the event loop of the last one was stopped."""


def look_after_us(quiet_us: int) -> int:
    """How long until the next check of a key unchanged for `quiet_us`: short for a busy key, else long."""
    length_us = max(LOOK_US, min(SEEN_US, quiet_us // SEEN_PART), min(LATER_US, quiet_us // LATER_PART))
    return length_us + random.randrange(length_us // JITTER)  # noqa: S311 - no secret


class Call:
    """A call that holds a permit or waits for one, as its process knows it: key, owner, number."""

    __slots__ = ("is_over", "key", "number", "owner")

    def __init__(self, key: str) -> None:
        self.is_over = True
        """Whether there is nothing to give back, because the call has not asked yet or has ended."""
        self.key = key
        self.owner = 0
        self.number = 0


class _AtKey:
    """The state of one key."""

    __slots__ = (
        *("alive", "came_with", "coming", "has_news", "looked_us", "looker", "news_us", "permitted"),
        *("unsure_until_us", "waiting"),
    )

    def __init__(self) -> None:
        self.alive: set[int] = set()
        """The calls that the store may know."""
        self.coming: dict[Any, set[int]] = {}
        """The calls that have no permit yet, by the event loop that they run on."""
        self.permitted: set[int] = set()
        self.waiting: dict[int, PermitWaiter] = {}
        self.came_with = 0
        """The store's last answer about this process: 0 if it has no call there, negative if the store is
        gone.
        """
        self.unsure_until_us = 0
        """Until when the store may still count a call of this process that is over."""
        self.looker: PermitWaiter | None = None
        self.looked_us = 0
        self.has_news = False
        """Whether a call got its permit, or began to wait alone, since the last check."""
        self.news_us = 0


class PermitWaiter:
    """A call that waits for a permit."""

    __slots__ = ("_alarm", "_at_key", "_registry", "came_with", "number")

    def __init__(self, registry: Registry, at_key: _AtKey, number: int, came_with: int) -> None:
        self._registry = registry
        self._at_key = at_key
        self._alarm: Alarm | None = None
        self.number = number
        self.came_with = came_with

    @property
    def has_permit(self) -> bool:
        """Whether the call has its permit."""
        return self.number in self._at_key.permitted

    @property
    def is_lost(self) -> bool:
        """Whether the store has meanwhile forgotten the calls of this process at the key."""
        return self.came_with != self._at_key.came_with

    def begin_wait(self, alarm: Alarm, now_us: int) -> bool:
        """Set what rings on a change; returns whether this waiter checks the store for all."""
        with self._registry.lock:
            self._alarm = alarm
            at_key = self._at_key
            if self.has_permit or self.is_lost:
                alarm.set()
            if at_key.looker is None or not 0 <= now_us - at_key.looked_us <= STUCK_US:
                at_key.looker = self
            if at_key.looker is not self:
                return False
            at_key.looked_us = now_us
            if at_key.has_news or at_key.news_us > now_us:
                at_key.has_news, at_key.news_us = False, now_us
            return True

    def look_after_us(self, now_us: int) -> int:
        """How long until the next check, for the waiter that checks for all."""
        return look_after_us(now_us - self._at_key.news_us)

    def ring(self) -> None:
        """Wake the waiter."""
        if self._alarm is not None:
            self._alarm.set()

    def go(self) -> None:
        """Stop waiting; if this waiter checked for all, another one takes over."""
        with self._registry.lock:
            at_key = self._at_key
            at_key.waiting.pop(self.number, None)
            if at_key.looker is self:
                at_key.looker = None
                for waiter in list(at_key.waiting.values())[:1]:
                    waiter.ring()


class Registry:
    """The calls of this process under one name on one store, and the owner by which the store knows them."""

    def __init__(self) -> None:
        self.lease_us = MAX_SPAN_US
        """The shortest lease of any policy that shares this registry."""
        self.begin()
        _REGISTRIES.add(self)

    def begin(self) -> None:
        """Start empty: in a new process, and in a forked child."""
        self.lock = threading.RLock()
        self.owner = forks.fresh_id()
        self.is_kept = False
        self.due_us = 0
        """When the leases are due for renewal."""
        self._newest = 0
        self._keys: dict[str, _AtKey] = {}

    def admit(self, call: Call, loop: Any = None) -> bool:
        """Register a call about to ask the store; returns whether a heartbeat renews this registry."""
        with self.lock:
            self._newest += 1
            call.owner, call.number = self.owner, self._newest
            call.is_over = False
            at_key = self._keys.get(call.key)
            if at_key is None:
                at_key = self._keys[call.key] = _AtKey()
            at_key.alive.add(call.number)
            if loop is not None:
                at_key.coming.setdefault(loop, set()).add(call.number)
            return self.is_kept

    def arrive(self, call: Call) -> None:
        """A call has its permit, and gives it back itself."""
        with self.lock:
            at_key = self._keys.get(call.key)
            if at_key is not None:
                _arrived(at_key, call.number)

    def end(self, call: Call, *, unsure_until_us: int = 0) -> None:
        """Remove a call that is over; `unsure_until_us` is until when the store may count it, if it missed
        the end.
        """
        with self.lock:
            at_key = self._keys.get(call.key)
            if at_key is not None and call.owner == self.owner:
                at_key.alive.discard(call.number)
                at_key.permitted.discard(call.number)
                _arrived(at_key, call.number)
                if (waiter := at_key.waiting.get(call.number)) is not None:
                    waiter.go()
                at_key.unsure_until_us = max(at_key.unsure_until_us, unsure_until_us)
                self._tidy(call.key, at_key)
            # Last, so that a call interrupted before this line ends once more.
            call.is_over = True

    def join(self, call: Call, came_with: int) -> PermitWaiter:
        """Add a call that waits."""
        with self.lock:
            at_key = self._keys[call.key]
            at_key.has_news |= not at_key.waiting
            waiter = at_key.waiting[call.number] = PermitWaiter(self, at_key, call.number, came_with)
            return waiter

    def hear(self, key: str, told: PermitAnswer) -> None:
        """Take in an answer of the store: wake calls that got their permit or that the store forgot."""
        with self.lock:
            at_key = self._keys.get(key)
            if at_key is None:
                return
            at_key.came_with = told[0]
            permitted = at_key.alive.intersection(told[1:])
            at_key.has_news |= not permitted <= at_key.permitted
            at_key.permitted |= permitted
            for waiter in list(at_key.waiting.values()):
                if waiter.has_permit or waiter.is_lost:
                    waiter.ring()

    # renewing

    def is_unsure(self, key: str) -> bool:
        """Whether the store may still count a call of this process that is over."""
        at_key = self._keys.get(key)
        return at_key is not None and (at_key.unsure_until_us > 0 or self.has_lost(key))

    def has_lost(self, key: str) -> bool:
        """Whether the event loop of a waiting call was closed."""
        at_key = self._keys.get(key)
        return at_key is not None and any(map(has_ended, list(at_key.coming)))

    def places(self) -> list[str]:
        """The keys at which this process has calls."""
        with self.lock:
            return list(self._keys)

    def alive(self, key: str, now_us: int) -> tuple[int, int, tuple[int, ...]]:
        """The calls at a key that are not over, for a renewal: owner, its newest number, their numbers."""
        with self.lock:
            at_key = self._keys.get(key)
            if at_key is not None:
                self._forget_lost(at_key, now_us)
            return self.owner, self._newest, tuple(sorted(at_key.alive)) if at_key is not None else ()

    def renewed(self, key: str, told: PermitAnswer | None, since_us: int, now_us: int) -> None:
        """Take in the answer to a renewal sent at `since_us`; None if the store did not answer."""
        if told is not None and told[0] < 0:
            told = None  # a fallback answered: the store itself was not reached
        with self.lock:
            at_key = self._keys.get(key)
            if at_key is None:
                return
            # A call that became unsure after the renewal was sent may be so still.
            if now_us >= at_key.unsure_until_us or (
                told is not None and at_key.unsure_until_us <= since_us + self.lease_us
            ):
                at_key.unsure_until_us = 0
            self._tidy(key, at_key)
        if told is not None:
            self.hear(key, told)

    def rest(self) -> bool:
        """Whether there is nothing to renew; if so, the heartbeat drops this registry."""
        with self.lock:
            if not self._keys:
                self.is_kept = False
            return not self._keys

    def _forget_lost(self, at_key: _AtKey, now_us: int) -> None:
        """End the calls whose event loop was closed; the store does not know of that yet."""
        for loop in [loop for loop in at_key.coming if has_ended(loop)]:
            lost = at_key.coming.pop(loop)
            at_key.alive -= lost
            at_key.permitted -= lost
            at_key.unsure_until_us = max(at_key.unsure_until_us, now_us + self.lease_us)
            for number in lost & at_key.waiting.keys():
                at_key.waiting[number].go()

    def _tidy(self, key: str, at_key: _AtKey) -> None:
        if not at_key.alive and not at_key.waiting and not at_key.unsure_until_us:
            del self._keys[key]


def _arrived(at_key: _AtKey, number: int) -> None:
    for loop, numbers in list(at_key.coming.items()):
        numbers.discard(number)
        if not numbers:
            del at_key.coming[loop]


_REGISTRIES = forks.begin_anew(Registry.begin)


def registry_of(store: Store, name: str) -> Registry:
    """The registry of a name on a store; policies of the same name in one process share it."""
    return companion(store, f"registry of {name}", Registry)


RENEWALS = 3
"""How many times a lease is renewed within its length."""
HURRY = 4
"""How many times sooner a renewal is retried after the store did not answer."""


class Heartbeat:
    """Renews the leases of the calls in flight on one store."""

    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._is_awaited = store.awaited_only
        self._task: Task[None] | None = None
        self.begin()
        _HEARTBEATS.add(self)
        store.wakes(self)

    def begin(self) -> None:
        """Start empty: in a new process, and in a forked child."""
        self._lock = threading.Lock()
        self._kept: dict[Registry, Twin[Any]] = {}
        self._alarm: Alarm | None = None
        self._runs = False

    def keep(self, registry: Registry, renew: Twin[Any]) -> None:
        """Renew the leases of a registry from now on, as long as it has calls."""
        begins = False
        try:
            with self._lock:
                registry.due_us = self._clock.now_us() + registry.lease_us // RENEWALS
                self._kept[registry] = renew
                registry.is_kept = True
                if self._alarm is not None:
                    # The thread may be in a sleep too long for this registry.
                    self._alarm.set()
                if self._runs:
                    return
                # No call in between, so no signal handler can run here.
                self._runs = begins = True
            if not self._is_awaited:
                threading.Thread(target=partial(run, self._run), name="shapekit leases", daemon=True).start()
            elif running_loop() is not None:
                import asyncio  # noqa: PLC0415 - an asyncio loop is running

                self._task = asyncio.get_running_loop().create_task(self._run(TASKS))
            else:
                # Without an event loop this store cannot be asked; the caller gets its error.
                self._runs = registry.is_kept = False
        except BaseException:
            if begins:
                self._runs = registry.is_kept = False
            raise

    def store_closed(self) -> None:
        """Stop all renewals: a closed store does not answer."""
        with self._lock:
            for registry in self._kept:
                registry.is_kept = False
            self._kept.clear()
            if self._alarm is not None:
                self._alarm.set()

    async def _run(self, driver: Driver) -> None:
        async def ended() -> None:
            self._ended()

        driver.may_be_thrown()
        sleep = Twin(self._clock.sleep, self._clock.asleep)
        try:
            alarm = driver.alarm()
            while (sleep_s := self._sleep_s(alarm)) is not None:
                if sleep_s > 0:
                    await driver.ask(sleep, sleep_s, alarm)
                for registry, renew in self._due():
                    asked_us, is_renewed = self._clock.now_us(), True
                    for key in registry.places():
                        is_renewed &= await self._renewed(driver, registry, key, renew)
                    self._done(registry, asked_us, is_renewed=is_renewed)
                alarm = driver.alarm()
        except BaseException as error:
            await driver.given_back(error, ended, self._ended)
            raise

    def _ended(self) -> None:
        """The task's event loop has ended; another heartbeat may start."""
        with self._lock:
            self._runs = False
            for registry in self._kept:
                registry.is_kept = False

    def _sleep_s(self, alarm: Alarm) -> float | None:
        """How long to sleep until a renewal is due; None if there is nothing to renew."""
        with self._lock:
            for registry in [registry for registry in self._kept if registry.rest()]:
                del self._kept[registry]
            if not self._kept:
                self._alarm = None
                self._runs = False
                return None
            self._alarm = alarm
            due_us = min(registry.due_us for registry in self._kept)
            return min((due_us - self._clock.now_us()) / SECOND_US, CHUNK_S)

    def _due(self) -> list[tuple[Registry, Twin[Any]]]:
        now = self._clock.now_us()
        with self._lock:
            return [(registry, renew) for registry, renew in self._kept.items() if registry.due_us <= now]

    def _done(self, registry: Registry, asked_us: int, *, is_renewed: bool) -> None:
        # Counted from when the question was sent: the store may have started the lease then, however late it
        # answered.
        pause_us = registry.lease_us // RENEWALS
        registry.due_us = asked_us + (pause_us if is_renewed else pause_us // HURRY)

    async def _renewed(self, driver: Driver, registry: Registry, key: str, renew: Twin[Any]) -> bool:
        since_us = self._clock.now_us()
        told: PermitAnswer | None = None
        try:
            told = await driver.ask(renew, key, *registry.alive(key, since_us))
        except Exception as error:
            # Also what a store should not raise: the leases of all other keys end without this thread.
            _failed(key, error)
        registry.renewed(key, told, since_us, self._clock.now_us())
        return told is not None and told[0] >= 0


def _failed(key: str, error: Exception) -> None:
    import logging  # noqa: PLC0415 - loaded only to log

    logging.getLogger("shapekit.store").warning(
        "the leases of key %r could not be renewed and are tried again: %s",
        key,
        error,
        exc_info=None if isinstance(error, ShapekitError) else error,
    )


_HEARTBEATS = forks.begin_anew(Heartbeat.begin)


def heartbeat_of(store: Store) -> Heartbeat:
    """The heartbeat of a store."""
    return companion(store, "heartbeat", partial(Heartbeat, store))
