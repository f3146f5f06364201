"""Rooms: who of this process sits or waits at the keys of one name on one store.

The truth is the store's; this is what the process knows of its own calls, and how those who wait here hear
of their seats. Each news of a key, whoever asked for it, is told to all who wait for that key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from weakref import WeakSet, finalize

from shapekit import nonce
from shapekit.alarm import AsyncAlarm
from shapekit.algorithms.concurrency import Told
from shapekit.rate import MAX_SPAN_US
from shapekit.stores.base import Store

__all__ = ["Rooms", "Sitter", "Waiter", "rooms_of"]

LOOK_US = 30_000
"""How often whoever waits looks at a store that others share, for all who wait with it."""
STUCK_US = 5_000_000
"""After how long another one looks, where the loop of whoever did may have been stopped for good."""


class Sitter:
    """A call that sits or waits, as the process knows it: its key, its owner, its number."""

    __slots__ = ("is_over", "key", "number", "owner")

    def __init__(self, key: str) -> None:
        self.is_over = True
        """Whether there is nothing to be given back: not yet, or not any more."""
        self.key = key
        self.owner = 0
        self.number = 0


class _Room:
    """One key."""

    __slots__ = ("alive", "came_with", "looked_us", "looker", "seated", "unsure_until_us", "waiting")

    def __init__(self) -> None:
        self.alive: set[int] = set()
        """The calls that may be known to the store."""
        self.seated: set[int] = set()
        self.waiting: dict[int, Waiter] = {}
        self.came_with = 0
        """What was last said of this process: 0 that it has nothing there, less that the store is gone."""
        self.unsure_until_us = 0
        """Until when the store may have a call of ours that is over."""
        self.looker: Waiter | None = None
        self.looked_us = 0


class Waiter:
    """Somebody who stands in line."""

    __slots__ = ("_alarm", "_room", "_rooms", "came_with", "number")

    def __init__(self, rooms: Rooms, room: _Room, number: int, came_with: int) -> None:
        self._rooms = rooms
        self._room = room
        self._alarm: threading.Event | AsyncAlarm | None = None
        self.number = number
        self.came_with = came_with

    @property
    def sits(self) -> bool:
        """Whether it has a seat by now."""
        return self.number in self._room.seated

    @property
    def is_lost(self) -> bool:
        """Whether the store has forgotten, since, that this process stands there."""
        return self.came_with != self._room.came_with

    def lie_down(self, alarm: threading.Event | AsyncAlarm, now_us: int) -> bool:
        """Say what rings when there are news; whether this waiter is the one who looks for all."""
        with self._rooms.lock:
            self._alarm = alarm
            room = self._room
            if self.sits or self.is_lost:
                alarm.set()
            if room.looker is None or not 0 <= now_us - room.looked_us <= STUCK_US:
                room.looker = self
            if room.looker is not self:
                return False
            room.looked_us = now_us
            return True

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


Renew = Callable[[str, int, int, Sequence[int]], Told]


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

    def admit(self, sitter: Sitter) -> bool:
        """A call is about to ask the store; whether somebody renews the leases here."""
        with self.lock:
            self._newest += 1
            sitter.owner, sitter.number = self.owner, self._newest
            sitter.is_over = False
            room = self._rooms.get(sitter.key)
            if room is None:
                room = self._rooms[sitter.key] = _Room()
            room.alive.add(sitter.number)
            return self.is_kept

    def end(self, sitter: Sitter, *, unsure_until_us: int = 0) -> None:
        """A call is over; until when the store may not know it, where it was not told."""
        with self.lock:
            room = self._rooms.get(sitter.key)
            if room is not None and sitter.owner == self.owner:
                room.alive.discard(sitter.number)
                room.seated.discard(sitter.number)
                if (waiter := room.waiting.get(sitter.number)) is not None:
                    waiter.go()
                room.unsure_until_us = max(room.unsure_until_us, unsure_until_us)
                self._tidy(sitter.key, room)
            # Last, so that whoever is interrupted before it is over does it once more.
            sitter.is_over = True

    def join(self, sitter: Sitter, came_with: int) -> Waiter:
        """A call stands in line."""
        with self.lock:
            room = self._rooms[sitter.key]
            waiter = room.waiting[sitter.number] = Waiter(self, room, sitter.number, came_with)
            return waiter

    def hear(self, key: str, told: Told) -> None:
        """What the store says of a key: wake those who wait no longer, or not there."""
        with self.lock:
            room = self._rooms.get(key)
            if room is None:
                return
            room.came_with = told[0]
            room.seated |= room.alive.intersection(told[1:])
            for waiter in list(room.waiting.values()):
                if waiter.sits or waiter.is_lost:
                    waiter.ring()

    # renewing

    def is_unsure(self, key: str) -> bool:
        """Whether the store may have a call of ours at this key that is over."""
        room = self._rooms.get(key)
        return room is not None and room.unsure_until_us > 0

    def places(self) -> list[str]:
        """The keys at which there is anything of ours."""
        with self.lock:
            return list(self._rooms)

    def alive(self, key: str) -> tuple[int, int, tuple[int, ...]]:
        """What there still is at a key: the owner, the newest of its calls, and those that are not over."""
        with self.lock:
            room = self._rooms.get(key)
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

    def _tidy(self, key: str, room: _Room) -> None:
        if not room.alive and not room.waiting and not room.unsure_until_us:
            del self._rooms[key]


_ROOMS: dict[int, dict[str, Rooms]] = {}
"""By the id of the store, while it lives, and by name."""
_ALL: WeakSet[Rooms] = WeakSet()
_lock = threading.Lock()


def rooms_of(store: Store, name: str) -> Rooms:
    """Those of a name on a store: whoever has the same name there in this process shares them."""
    with _lock:
        if id(store) not in _ROOMS:
            _ROOMS[id(store)] = {}
            finalize(store, _ROOMS.pop, id(store), None)
        rooms = _ROOMS[id(store)].get(name)
        if rooms is None:
            rooms = _ROOMS[id(store)][name] = Rooms()
            _ALL.add(rooms)
        return rooms


def _forked() -> None:
    global _lock  # noqa: PLW0603 - it may have been held by a thread that is not here
    _lock = threading.Lock()
    for rooms in list(_ALL):
        rooms.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
