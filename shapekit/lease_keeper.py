"""LeaseKeeper: renews the leases of what this process has in flight on one store, while it has any.

One thread for each store and process, started with the first call and gone when, at the time of the next
renewal, nothing is in flight. Where a store can only be awaited, it is a task on the loop that began.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import finalize

from shapekit.alarm import AsyncAlarm, running_loop
from shapekit.algorithms.concurrency import Told
from shapekit.errors import ShapekitError
from shapekit.rate import SECOND_US
from shapekit.rooms import Rooms
from shapekit.stores.base import Store
from shapekit.waiting import CHUNK_S

if TYPE_CHECKING:
    from asyncio import Task

__all__ = ["LeaseKeeper", "Renewer", "keeper_of"]

RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""
HURRY = 4
"""How much sooner it is tried again where the store did not answer."""


class Renewer(Protocol):
    """What says to the store which calls there still are."""

    def renew(self, key: str, owner: int, upto: int, numbers: Sequence[int], /) -> Told: ...

    def arenew(self, key: str, owner: int, upto: int, numbers: Sequence[int], /) -> Awaitable[Told]: ...


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
        self._kept: dict[Rooms, Renewer] = {}
        self._alarm: threading.Event | AsyncAlarm | None = None
        self._runs = False

    def keep(self, rooms: Rooms, renewer: Renewer) -> None:
        """Renew what is in flight there, from now on until nothing is."""
        with self._lock:
            rooms.is_kept = True
            rooms.due_us = self._clock.now_us() + rooms.lease_us // RENEWALS
            self._kept[rooms] = renewer
            if self._alarm is not None:
                # Whoever sleeps may sleep too long for this one.
                self._alarm.set()
            if self._runs:
                return
            self._runs = True
        try:
            if not self._is_awaited:
                threading.Thread(target=self._run, name="shapekit leases", daemon=True).start()
            elif running_loop() is not None:
                import asyncio  # noqa: PLC0415 - there is a loop of it

                self._task = asyncio.get_running_loop().create_task(self._arun())
            else:
                # Nobody can ask this store here; whoever tries is told so.
                self._runs = rooms.is_kept = False
        except BaseException:
            self._runs = rooms.is_kept = False
            raise

    def _run(self) -> None:
        alarm = threading.Event()
        while (sleep_s := self._sleep_s(alarm)) is not None:
            if sleep_s > 0:
                self._clock.sleep(sleep_s, alarm)
            for rooms, renewer in self._due():
                asked_us, is_renewed = self._clock.now_us(), True
                for key in rooms.places():
                    is_renewed &= self._renewed(rooms, key, renewer.renew)
                self._done(rooms, asked_us, is_renewed=is_renewed)
            alarm = threading.Event()

    async def _arun(self) -> None:
        try:
            alarm = AsyncAlarm()
            while (sleep_s := self._sleep_s(alarm)) is not None:
                if sleep_s > 0:
                    await self._clock.asleep(sleep_s, alarm)
                for rooms, renewer in self._due():
                    asked_us, is_renewed = self._clock.now_us(), True
                    for key in rooms.places():
                        is_renewed &= await self._arenewed(rooms, key, renewer.arenew)
                    self._done(rooms, asked_us, is_renewed=is_renewed)
                alarm = AsyncAlarm()
        finally:
            # Where its loop ends, another one may begin.
            with self._lock:
                self._runs = False
                for rooms in self._kept:
                    rooms.is_kept = False

    def _sleep_s(self, alarm: threading.Event | AsyncAlarm) -> float | None:
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

    def _due(self) -> list[tuple[Rooms, Renewer]]:
        now = self._clock.now_us()
        with self._lock:
            return [(rooms, renewer) for rooms, renewer in self._kept.items() if rooms.due_us <= now]

    def _done(self, rooms: Rooms, asked_us: int, *, is_renewed: bool) -> None:
        # From when it asked: the store may count the lease from then on, however late its answer came.
        pause_us = rooms.lease_us // RENEWALS
        rooms.due_us = asked_us + (pause_us if is_renewed else pause_us // HURRY)

    def _renewed(self, rooms: Rooms, key: str, renew: Callable[..., Any]) -> bool:
        since_us, asked = self._clock.now_us(), rooms.alive(key)
        told: Told | None = None
        try:
            told = renew(key, *asked)
        except ShapekitError as error:
            _failed(key, error)
        rooms.renewed(key, told, since_us, self._clock.now_us())
        return told is not None and told[0] >= 0

    async def _arenewed(self, rooms: Rooms, key: str, renew: Callable[..., Awaitable[Any]]) -> bool:
        since_us, asked = self._clock.now_us(), rooms.alive(key)
        told: Told | None = None
        try:
            told = await renew(key, *asked)
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
_lock = threading.Lock()


def keeper_of(store: Store) -> LeaseKeeper:
    """The keeper of a store's leases."""
    with _lock:
        if id(store) not in _KEEPERS:
            _KEEPERS[id(store)] = LeaseKeeper(store)
            finalize(store, _KEEPERS.pop, id(store), None)
        return _KEEPERS[id(store)]


def _forked() -> None:
    global _lock  # noqa: PLW0603 - it may have been held by a thread that is not here
    _lock = threading.Lock()
    for keeper in list(_KEEPERS.values()):
        keeper.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
