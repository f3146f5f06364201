"""Heartbeat: renews the leases of what this process has in flight on one store, while it has any.

One thread for each store and process, started with the first call and gone when, at the time of the next
renewal, nothing is in flight. Where a store can only be awaited, it is a task on the loop that began.

Registry: who of this process holds a permit or waits at the keys of one name on one store.

The truth is the store's; this is what the process knows of its own calls, and how those who wait here hear
of their permits. Each news of a key, whoever asked for it, is told to all who wait for that key.
"""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from shapekit._runtime import forks
from shapekit._runtime import ids as nonce
from shapekit._runtime.drivers import TASKS, Alarm, Driver, Twin, run
from shapekit._runtime.event import has_ended, running_loop
from shapekit._runtime.sleepers import CHUNK_S
from shapekit.algorithms.inflight import Told
from shapekit.errors import ShapekitError
from shapekit.rate import MAX_SPAN_US, SECOND_US
from shapekit.stores.base import Store

if TYPE_CHECKING:
    from asyncio import Task

__all__ = ["Call", "Heartbeat", "PermitWaiter", "Registry", "heartbeat_of", "registry_of"]

LOOK_US = 30_000
"""How soon whoever waits looks at a store that others share, for all who wait with it."""
SEEN_PART, SEEN_US = 8, 250_000
"""How long at most it lets it alone in the seconds after news, and as what part of the time since."""
LATER_PART, LATER_US = 64, 1_000_000
"""The same for later."""
JITTER = 8
"""Up to what part of that longer, at random, so that processes do not look in step."""
STUCK_US = 5_000_000
"""After how long another one looks, where the loop of whoever did may have been stopped for good."""


def look_after_us(quiet_us: int) -> int:
    """After how long to look where there was no news for so long: soon at a lively key, else seldom."""
    length_us = max(LOOK_US, min(SEEN_US, quiet_us // SEEN_PART), min(LATER_US, quiet_us // LATER_PART))
    return length_us + random.randrange(length_us // JITTER)  # noqa: S311 - no secret


class Call:
    """A call that holds a permit or waits, as the process knows it: its key, its owner, its number."""

    __slots__ = ("is_over", "key", "number", "owner")

    def __init__(self, key: str) -> None:
        self.is_over = True
        """Whether there is nothing to be given back: not yet, or not any more."""
        self.key = key
        self.owner = 0
        self.number = 0


class _AtKey:
    """One key."""

    __slots__ = (
        *("alive", "came_with", "coming", "has_news", "looked_us", "looker", "news_us", "permitted"),
        *("unsure_until_us", "waiting"),
    )

    def __init__(self) -> None:
        self.alive: set[int] = set()
        """The calls that may be known to the store."""
        self.coming: dict[Any, set[int]] = {}
        """Those that are not back with their permits, by the event loop that they run on."""
        self.permitted: set[int] = set()
        self.waiting: dict[int, PermitWaiter] = {}
        self.came_with = 0
        """What was last said of this process: 0 that it has nothing there, less that the store is gone."""
        self.unsure_until_us = 0
        """Until when the store may have a call of ours that is over."""
        self.looker: PermitWaiter | None = None
        self.looked_us = 0
        self.has_news = False
        """Whether a call of ours was permitted, or began to wait alone, since the looker looked."""
        self.news_us = 0


class PermitWaiter:
    """Somebody who stands in line."""

    __slots__ = ("_alarm", "_at_key", "_registry", "came_with", "number")

    def __init__(self, registry: Registry, at_key: _AtKey, number: int, came_with: int) -> None:
        self._registry = registry
        self._at_key = at_key
        self._alarm: Alarm | None = None
        self.number = number
        self.came_with = came_with

    @property
    def has_permit(self) -> bool:
        """Whether it has a permit by now."""
        return self.number in self._at_key.permitted

    @property
    def is_lost(self) -> bool:
        """Whether the store has forgotten, since, that this process stands there."""
        return self.came_with != self._at_key.came_with

    def lie_down(self, alarm: Alarm, now_us: int) -> bool:
        """Say what rings when there are news; whether this waiter is the one who looks for all."""
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
        """After how long to look, as the one who looks for all."""
        return look_after_us(now_us - self._at_key.news_us)

    def ring(self) -> None:
        """There are news."""
        if self._alarm is not None:
            self._alarm.set()

    def go(self) -> None:
        """Wait no longer; if it was the one who looked, another one does from now on."""
        with self._registry.lock:
            at_key = self._at_key
            at_key.waiting.pop(self.number, None)
            if at_key.looker is self:
                at_key.looker = None
                for waiter in list(at_key.waiting.values())[:1]:
                    waiter.ring()


class Registry:
    """The keys of one name on one store, and under which owner the store knows this process there."""

    def __init__(self) -> None:
        self.lease_us = MAX_SPAN_US
        """The shortest that anybody here has."""
        self.begin()

    def begin(self) -> None:
        """As a process that has nothing: when it starts, and where it was forked."""
        self.lock = threading.RLock()
        self.owner = nonce.fresh()
        self.is_kept = False
        self.due_us = 0
        """When the leases are to be renewed next."""
        self._newest = 0
        self._keys: dict[str, _AtKey] = {}

    def admit(self, call: Call, loop: Any = None) -> bool:
        """A call is about to ask the store, on this event loop; whether somebody renews the leases here."""
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
        """A call has its permit, and will give it back itself."""
        with self.lock:
            at_key = self._keys.get(call.key)
            if at_key is not None:
                _arrived(at_key, call.number)

    def end(self, call: Call, *, unsure_until_us: int = 0) -> None:
        """A call is over; until when the store may not know it, where it was not told."""
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
            # Last, so that whoever is interrupted before it is over does it once more.
            call.is_over = True

    def join(self, call: Call, came_with: int) -> PermitWaiter:
        """A call stands in line."""
        with self.lock:
            at_key = self._keys[call.key]
            at_key.has_news |= not at_key.waiting
            waiter = at_key.waiting[call.number] = PermitWaiter(self, at_key, call.number, came_with)
            return waiter

    def hear(self, key: str, told: Told) -> None:
        """What the store says of a key: wake those who wait no longer, or not there."""
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
        """Whether the store may have a call of ours at this key that is over."""
        at_key = self._keys.get(key)
        return at_key is not None and (at_key.unsure_until_us > 0 or self.has_lost(key))

    def has_lost(self, key: str) -> bool:
        """Whether calls are on their way to a permit whose event loop was closed under them."""
        at_key = self._keys.get(key)
        return at_key is not None and any(map(has_ended, list(at_key.coming)))

    def places(self) -> list[str]:
        """The keys at which there is anything of ours."""
        with self.lock:
            return list(self._keys)

    def alive(self, key: str, now_us: int) -> tuple[int, int, tuple[int, ...]]:
        """What there still is at a key: the owner, the newest of its calls, and those that are not over."""
        with self.lock:
            at_key = self._keys.get(key)
            if at_key is not None:
                self._forget_lost(at_key, now_us)
            return self.owner, self._newest, tuple(sorted(at_key.alive)) if at_key is not None else ()

    def renewed(self, key: str, told: Told | None, since_us: int, now_us: int) -> None:
        """The store was told at `since_us` what there still is, and answered; None if it did not."""
        if told is not None and told[0] < 0:
            told = None  # somebody else answered: the store has not heard of it
        with self.lock:
            at_key = self._keys.get(key)
            if at_key is None:
                return
            # Who became unsure after it was asked, may be so still.
            if now_us >= at_key.unsure_until_us or (
                told is not None and at_key.unsure_until_us <= since_us + self.lease_us
            ):
                at_key.unsure_until_us = 0
            self._tidy(key, at_key)
        if told is not None:
            self.hear(key, told)

    def rest(self) -> bool:
        """Whether there is nothing to renew; from now on nobody does."""
        with self.lock:
            if not self._keys:
                self.is_kept = False
            return not self._keys

    def _forget_lost(self, at_key: _AtKey, now_us: int) -> None:
        """A call whose event loop was closed is over, and the store does not know it yet."""
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


_REGISTRIES: dict[int, dict[str, Registry]] = {}
"""By the id of the store, while it lives, and by name."""
_ALL: WeakSet[Registry] = WeakSet()
_lock = threading.Lock()


def registry_of(store: Store, name: str) -> Registry:
    """Those of a name on a store: whoever has the same name there in this process shares them."""
    with _lock:
        if id(store) not in _REGISTRIES:
            _REGISTRIES[id(store)] = {}
            finalize(store, _REGISTRIES.pop, id(store), None)
        registry = _REGISTRIES[id(store)].get(name)
        if registry is None:
            registry = _REGISTRIES[id(store)][name] = Registry()
            _ALL.add(registry)
        return registry


def _registries_begin() -> None:
    global _lock  # noqa: PLW0603 - it may have been held by a thread that is not here
    _lock = threading.Lock()
    for registry in list(_ALL):
        registry.begin()


forks.in_child(_registries_begin)


RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""
HURRY = 4
"""How much sooner it is tried again where the store did not answer."""


class Heartbeat:
    """Renews the leases of what is in flight on one store."""

    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._is_awaited = store.awaited_only
        self._task: Task[None] | None = None
        self.begin()

    def begin(self) -> None:
        """With nothing to keep: when the process starts, and where it was forked."""
        self._lock = threading.Lock()
        self._kept: dict[Registry, Twin[Any]] = {}
        self._alarm: Alarm | None = None
        self._runs = False

    def keep(self, registry: Registry, renew: Twin[Any]) -> None:
        """Renew what is in flight there, from now on until nothing is."""
        begins = False
        try:
            with self._lock:
                registry.due_us = self._clock.now_us() + registry.lease_us // RENEWALS
                self._kept[registry] = renew
                registry.is_kept = True
                if self._alarm is not None:
                    # Whoever sleeps may sleep too long for this one.
                    self._alarm.set()
                if self._runs:
                    return
                # Without a call no handler of a signal comes in between.
                self._runs = begins = True
            if not self._is_awaited:
                threading.Thread(target=partial(run, self._run), name="shapekit leases", daemon=True).start()
            elif running_loop() is not None:
                import asyncio  # noqa: PLC0415 - there is a loop of it

                self._task = asyncio.get_running_loop().create_task(self._run(TASKS))
            else:
                # Nobody can ask this store here; whoever tries is told so.
                self._runs = registry.is_kept = False
        except BaseException:
            if begins:
                self._runs = registry.is_kept = False
            raise

    def store_closed(self) -> None:
        """Renew nothing any more: the store would not answer."""
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
        """Where the task's loop has ended, another one may begin."""
        with self._lock:
            self._runs = False
            for registry in self._kept:
                registry.is_kept = False

    def _sleep_s(self, alarm: Alarm) -> float | None:
        """How long to sleep until something is due; None if nothing will be."""
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
        # From when it asked: the store may count the lease from then on, however late its answer came.
        pause_us = registry.lease_us // RENEWALS
        registry.due_us = asked_us + (pause_us if is_renewed else pause_us // HURRY)

    async def _renewed(self, driver: Driver, registry: Registry, key: str, renew: Twin[Any]) -> bool:
        since_us = self._clock.now_us()
        told: Told | None = None
        try:
            told = await driver.ask(renew, key, *registry.alive(key, since_us))
        except ShapekitError as error:
            _failed(key, error)
        registry.renewed(key, told, since_us, self._clock.now_us())
        return told is not None and told[0] >= 0


def _failed(key: str, error: ShapekitError) -> None:
    import logging  # noqa: PLC0415 - only who has something to say loads it

    logging.getLogger("shapekit.store").warning(
        "the leases of key %r could not be renewed and are tried again: %s", key, error
    )


_HEARTBEATS: dict[int, Heartbeat] = {}
"""By the id of the store, while it lives."""
_heartbeats_lock = threading.Lock()


def heartbeat_of(store: Store) -> Heartbeat:
    """That of a store."""
    with _heartbeats_lock:
        if id(store) not in _HEARTBEATS:
            _HEARTBEATS[id(store)] = heartbeat = Heartbeat(store)
            store.wakes(heartbeat)
            finalize(store, _HEARTBEATS.pop, id(store), None)
        return _HEARTBEATS[id(store)]


def _heartbeats_begin() -> None:
    global _heartbeats_lock  # noqa: PLW0603 - it may have been held by a thread that is not here
    _heartbeats_lock = threading.Lock()
    for heartbeat in list(_HEARTBEATS.values()):
        heartbeat.begin()


forks.in_child(_heartbeats_begin)
