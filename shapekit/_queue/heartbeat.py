"""LeaseKeeper: renews the leases of what this process has in flight on one store, while it has any.

One thread for each store and process, started with the first call and gone when, at the time of the next
renewal, nothing is in flight. Where a store can only be awaited, it is a task on the loop that began.

Rooms: who of this process holds a permit or waits at the keys of one name on one store.

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

__all__ = ["Call", "LeaseKeeper", "Rooms", "Waiter", "keeper_of", "rooms_of"]

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
    """After how long to look where there was no news for so long: soon in a lively room, else seldom."""
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


class _Room:
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
        self.waiting: dict[int, Waiter] = {}
        self.came_with = 0
        """What was last said of this process: 0 that it has nothing there, less that the store is gone."""
        self.unsure_until_us = 0
        """Until when the store may have a call of ours that is over."""
        self.looker: Waiter | None = None
        self.looked_us = 0
        self.has_news = False
        """Whether a call of ours was permitted, or began to wait alone, since the looker looked."""
        self.news_us = 0


class Waiter:
    """Somebody who stands in line."""

    __slots__ = ("_alarm", "_room", "_rooms", "came_with", "number")

    def __init__(self, rooms: Rooms, room: _Room, number: int, came_with: int) -> None:
        self._rooms = rooms
        self._room = room
        self._alarm: Alarm | None = None
        self.number = number
        self.came_with = came_with

    @property
    def has_permit(self) -> bool:
        """Whether it has a permit by now."""
        return self.number in self._room.permitted

    @property
    def is_lost(self) -> bool:
        """Whether the store has forgotten, since, that this process stands there."""
        return self.came_with != self._room.came_with

    def lie_down(self, alarm: Alarm, now_us: int) -> bool:
        """Say what rings when there are news; whether this waiter is the one who looks for all."""
        with self._rooms.lock:
            self._alarm = alarm
            room = self._room
            if self.has_permit or self.is_lost:
                alarm.set()
            if room.looker is None or not 0 <= now_us - room.looked_us <= STUCK_US:
                room.looker = self
            if room.looker is not self:
                return False
            room.looked_us = now_us
            if room.has_news or room.news_us > now_us:
                room.has_news, room.news_us = False, now_us
            return True

    def look_after_us(self, now_us: int) -> int:
        """After how long to look, as the one who looks for all."""
        return look_after_us(now_us - self._room.news_us)

    def ring(self) -> None:
        """There are news."""
        if self._alarm is not None:
            self._alarm.set()

    def go(self) -> None:
        """Wait no longer; if it was the one who looked, another one does from now on."""
        with self._rooms.lock:
            room = self._room
            room.waiting.pop(self.number, None)
            if room.looker is self:
                room.looker = None
                for waiter in list(room.waiting.values())[:1]:
                    waiter.ring()


class Rooms:
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
        self._rooms: dict[str, _Room] = {}

    def admit(self, call: Call, loop: Any = None) -> bool:
        """A call is about to ask the store, on this event loop; whether somebody renews the leases here."""
        with self.lock:
            self._newest += 1
            call.owner, call.number = self.owner, self._newest
            call.is_over = False
            room = self._rooms.get(call.key)
            if room is None:
                room = self._rooms[call.key] = _Room()
            room.alive.add(call.number)
            if loop is not None:
                room.coming.setdefault(loop, set()).add(call.number)
            return self.is_kept

    def arrive(self, call: Call) -> None:
        """A call has its permit, and will give it back itself."""
        with self.lock:
            room = self._rooms.get(call.key)
            if room is not None:
                _arrived(room, call.number)

    def end(self, call: Call, *, unsure_until_us: int = 0) -> None:
        """A call is over; until when the store may not know it, where it was not told."""
        with self.lock:
            room = self._rooms.get(call.key)
            if room is not None and call.owner == self.owner:
                room.alive.discard(call.number)
                room.permitted.discard(call.number)
                _arrived(room, call.number)
                if (waiter := room.waiting.get(call.number)) is not None:
                    waiter.go()
                room.unsure_until_us = max(room.unsure_until_us, unsure_until_us)
                self._tidy(call.key, room)
            # Last, so that whoever is interrupted before it is over does it once more.
            call.is_over = True

    def join(self, call: Call, came_with: int) -> Waiter:
        """A call stands in line."""
        with self.lock:
            room = self._rooms[call.key]
            room.has_news |= not room.waiting
            waiter = room.waiting[call.number] = Waiter(self, room, call.number, came_with)
            return waiter

    def hear(self, key: str, told: Told) -> None:
        """What the store says of a key: wake those who wait no longer, or not there."""
        with self.lock:
            room = self._rooms.get(key)
            if room is None:
                return
            room.came_with = told[0]
            permitted = room.alive.intersection(told[1:])
            room.has_news |= not permitted <= room.permitted
            room.permitted |= permitted
            for waiter in list(room.waiting.values()):
                if waiter.has_permit or waiter.is_lost:
                    waiter.ring()

    # renewing

    def is_unsure(self, key: str) -> bool:
        """Whether the store may have a call of ours at this key that is over."""
        room = self._rooms.get(key)
        return room is not None and (room.unsure_until_us > 0 or self.has_lost(key))

    def has_lost(self, key: str) -> bool:
        """Whether calls are on their way to a permit whose event loop was closed under them."""
        room = self._rooms.get(key)
        return room is not None and any(map(has_ended, list(room.coming)))

    def places(self) -> list[str]:
        """The keys at which there is anything of ours."""
        with self.lock:
            return list(self._rooms)

    def alive(self, key: str, now_us: int) -> tuple[int, int, tuple[int, ...]]:
        """What there still is at a key: the owner, the newest of its calls, and those that are not over."""
        with self.lock:
            room = self._rooms.get(key)
            if room is not None:
                self._forget_lost(room, now_us)
            return self.owner, self._newest, tuple(sorted(room.alive)) if room is not None else ()

    def renewed(self, key: str, told: Told | None, since_us: int, now_us: int) -> None:
        """The store was told at `since_us` what there still is, and answered; None if it did not."""
        if told is not None and told[0] < 0:
            told = None  # somebody else answered: the store has not heard of it
        with self.lock:
            room = self._rooms.get(key)
            if room is None:
                return
            # Who became unsure after it was asked, may be so still.
            if now_us >= room.unsure_until_us or (
                told is not None and room.unsure_until_us <= since_us + self.lease_us
            ):
                room.unsure_until_us = 0
            self._tidy(key, room)
        if told is not None:
            self.hear(key, told)

    def rest(self) -> bool:
        """Whether there is nothing to renew; from now on nobody does."""
        with self.lock:
            if not self._rooms:
                self.is_kept = False
            return not self._rooms

    def _forget_lost(self, room: _Room, now_us: int) -> None:
        """A call whose event loop was closed is over, and the store does not know it yet."""
        for loop in [loop for loop in room.coming if has_ended(loop)]:
            lost = room.coming.pop(loop)
            room.alive -= lost
            room.permitted -= lost
            room.unsure_until_us = max(room.unsure_until_us, now_us + self.lease_us)
            for number in lost & room.waiting.keys():
                room.waiting[number].go()

    def _tidy(self, key: str, room: _Room) -> None:
        if not room.alive and not room.waiting and not room.unsure_until_us:
            del self._rooms[key]


def _arrived(room: _Room, number: int) -> None:
    for loop, numbers in list(room.coming.items()):
        numbers.discard(number)
        if not numbers:
            del room.coming[loop]


_ROOMS: dict[int, dict[str, Rooms]] = {}
"""By the id of the store, while it lives, and by name."""
_ALL: WeakSet[Rooms] = WeakSet()
_rooms_lock = threading.Lock()


def rooms_of(store: Store, name: str) -> Rooms:
    """Those of a name on a store: whoever has the same name there in this process shares them."""
    with _rooms_lock:
        if id(store) not in _ROOMS:
            _ROOMS[id(store)] = {}
            finalize(store, _ROOMS.pop, id(store), None)
        rooms = _ROOMS[id(store)].get(name)
        if rooms is None:
            rooms = _ROOMS[id(store)][name] = Rooms()
            _ALL.add(rooms)
        return rooms


def _rooms_begin() -> None:
    global _rooms_lock  # noqa: PLW0603 - it may have been held by a thread that is not here
    _rooms_lock = threading.Lock()
    for rooms in list(_ALL):
        rooms.begin()


forks.in_child(_rooms_begin)


RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""
HURRY = 4
"""How much sooner it is tried again where the store did not answer."""


class LeaseKeeper:
    """The keeper of one store's leases."""

    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._is_awaited = store.awaited_only
        self._task: Task[None] | None = None
        self.begin()

    def begin(self) -> None:
        """With nothing to keep: when the process starts, and where it was forked."""
        self._lock = threading.Lock()
        self._kept: dict[Rooms, Twin[Any]] = {}
        self._alarm: Alarm | None = None
        self._runs = False

    def keep(self, rooms: Rooms, renew: Twin[Any]) -> None:
        """Renew what is in flight there, from now on until nothing is."""
        begins = False
        try:
            with self._lock:
                rooms.due_us = self._clock.now_us() + rooms.lease_us // RENEWALS
                self._kept[rooms] = renew
                rooms.is_kept = True
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
                self._runs = rooms.is_kept = False
        except BaseException:
            if begins:
                self._runs = rooms.is_kept = False
            raise

    def store_closed(self) -> None:
        """Renew nothing any more: the store would not answer."""
        with self._lock:
            for rooms in self._kept:
                rooms.is_kept = False
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
                for rooms, renew in self._due():
                    asked_us, is_renewed = self._clock.now_us(), True
                    for key in rooms.places():
                        is_renewed &= await self._renewed(driver, rooms, key, renew)
                    self._done(rooms, asked_us, is_renewed=is_renewed)
                alarm = driver.alarm()
        except BaseException as error:
            await driver.given_back(error, ended, self._ended)
            raise

    def _ended(self) -> None:
        """Where the task's loop has ended, another one may begin."""
        with self._lock:
            self._runs = False
            for rooms in self._kept:
                rooms.is_kept = False

    def _sleep_s(self, alarm: Alarm) -> float | None:
        """How long to sleep until something is due; None if nothing will be."""
        with self._lock:
            for rooms in [rooms for rooms in self._kept if rooms.rest()]:
                del self._kept[rooms]
            if not self._kept:
                self._alarm = None
                self._runs = False
                return None
            self._alarm = alarm
            due_us = min(rooms.due_us for rooms in self._kept)
            return min((due_us - self._clock.now_us()) / SECOND_US, CHUNK_S)

    def _due(self) -> list[tuple[Rooms, Twin[Any]]]:
        now = self._clock.now_us()
        with self._lock:
            return [(rooms, renew) for rooms, renew in self._kept.items() if rooms.due_us <= now]

    def _done(self, rooms: Rooms, asked_us: int, *, is_renewed: bool) -> None:
        # From when it asked: the store may count the lease from then on, however late its answer came.
        pause_us = rooms.lease_us // RENEWALS
        rooms.due_us = asked_us + (pause_us if is_renewed else pause_us // HURRY)

    async def _renewed(self, driver: Driver, rooms: Rooms, key: str, renew: Twin[Any]) -> bool:
        since_us = self._clock.now_us()
        told: Told | None = None
        try:
            told = await driver.ask(renew, key, *rooms.alive(key, since_us))
        except ShapekitError as error:
            _failed(key, error)
        rooms.renewed(key, told, since_us, self._clock.now_us())
        return told is not None and told[0] >= 0


def _failed(key: str, error: ShapekitError) -> None:
    import logging  # noqa: PLC0415 - only who has something to say loads it

    logging.getLogger("shapekit.store").warning(
        "the leases of key %r could not be renewed and are tried again: %s", key, error
    )


_KEEPERS: dict[int, LeaseKeeper] = {}
"""By the id of the store, while it lives."""
_keepers_lock = threading.Lock()


def keeper_of(store: Store) -> LeaseKeeper:
    """The keeper of a store's leases."""
    with _keepers_lock:
        if id(store) not in _KEEPERS:
            _KEEPERS[id(store)] = keeper = LeaseKeeper(store)
            store.wakes(keeper)
            finalize(store, _KEEPERS.pop, id(store), None)
        return _KEEPERS[id(store)]


def _keepers_begin() -> None:
    global _keepers_lock  # noqa: PLW0603 - it may have been held by a thread that is not here
    _keepers_lock = threading.Lock()
    for keeper in list(_KEEPERS.values()):
        keeper.begin()


forks.in_child(_keepers_begin)
