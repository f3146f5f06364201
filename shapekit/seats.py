"""Seats: how a policy takes a seat for a call, waits for one in line, and gives it back.

Nobody who waits asks the store by itself: a process looks once for all of its calls that wait at a key, and
only where others share the store; otherwise whoever leaves wakes whoever is next.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Sequence

from shapekit import afterwards
from shapekit.alarm import AsyncAlarm, shielded
from shapekit.algorithms.concurrency import REFUSED, SEATED, Concurrency, Told
from shapekit.decision import Decision
from shapekit.errors import QueueFullError, StoreUnavailableError
from shapekit.lease_keeper import keeper_of
from shapekit.rate import SECOND_US
from shapekit.rooms import LOOK_US, STUCK_US, Sitter, Waiter, rooms_of
from shapekit.stores.base import Store
from shapekit.waiting import Waiters, warn_in_event_loop

__all__ = ["Seat", "Seats"]

RETRY_US = SECOND_US
"""When to ask again after a refusal: when a call ends, nobody can know."""


class Seat(Sitter):
    """A call's seat, or its way to one. Whoever drops it without a word gives it back, too."""

    __slots__ = ("_seats", "waited_us")

    def __init__(self, seats: Seats, key: str) -> None:
        super().__init__(key)
        self._seats = seats
        self.waited_us = 0

    def __del__(self) -> None:
        # Whoever was interrupted before it could ask has nothing to be told apart by.
        if not getattr(self, "is_over", True):
            afterwards.do(self._seats.give_back, self.key, self.owner, self.number)


class Seats:
    """The seats of one policy. Whoever gives up, for whatever reason, has none."""

    def __init__(self, name: str, store: Store, limit: Concurrency, waiters: Waiters) -> None:
        self.limit = limit
        self.instant = store.instant
        self._clock = store.clock
        self._waiters = waiters
        self._rooms = rooms_of(store, name)
        # Where nobody else can sit, and nothing gets lost, nobody need look.
        self._looks = store.shared or not store.instant
        self._keeper = keeper_of(store) if store.shared else None
        self._is_awaited = store.awaited_only
        program = limit if store.shared else limit.unending()
        self._rooms.lease_us = min(self._rooms.lease_us, program.lease_us)
        bound = (name, program)
        self._enter, self._aenter = store.bind(*bound, "enter"), store.abind(*bound, "enter")
        self._watch, self._awatch = store.bind(*bound, "watch"), store.abind(*bound, "watch")
        self._leave, self._aleave = store.bind(*bound, "leave"), store.abind(*bound, "leave")
        self._keep, self._akeep = store.bind(*bound, "keep"), store.abind(*bound, "keep")

    # taking

    def take(self, key: str, max_wait_us: int | None = None, timeout_us: int | None = None) -> Seat:
        """A seat, as soon as there is one: first come, first served.

        QueueFullError once it was waited for as long as `max_wait`, TimeoutError after `timeout`.
        """
        if self._rooms.is_unsure(key):
            self._heal(key)
        patience = _Patience(self, key, max_wait_us, timeout_us)
        seat = self._begun(key)
        try:
            place, came_with = self._enter(key, seat.owner, seat.number, int(max_wait_us != 0))
            if self._is_seated(seat, place, came_with, patience):
                return seat
            warn_in_event_loop()
            waiter = self._rooms.join(seat, came_with)
            try:
                while not waiter.sits:
                    if waiter.is_lost:
                        place, came_with = self._enter(key, seat.owner, seat.number, 1)
                        waiter.came_with = came_with
                        self._is_seated(seat, place, came_with, patience)
                        continue
                    alarm = threading.Event()
                    is_looker = waiter.lie_down(alarm, self._clock.now_us())
                    self._waiters.rest(alarm, patience.nap_until_us(self._pause_us(is_looker)))
                    if patience.is_over(waiter):
                        raise patience.refusal()
                    if is_looker and self._looks and not waiter.sits:
                        self._rooms.hear(key, self._watch(key, seat.owner))
            finally:
                waiter.go()
        except BaseException:
            self.leave(seat)
            raise
        seat.waited_us = patience.waited_us()
        return seat

    async def atake(self, key: str, max_wait_us: int | None = None, timeout_us: int | None = None) -> Seat:
        """`take`, awaitable; a cancelled task has no seat, or gives it back."""
        if self._rooms.is_unsure(key):
            await self._aheal(key)
        patience = _Patience(self, key, max_wait_us, timeout_us)
        seat = self._begun(key)
        try:
            place, came_with = await self._asked(key, seat, int(max_wait_us != 0))
            if self._is_seated(seat, place, came_with, patience):
                return seat
            waiter = self._rooms.join(seat, came_with)
            try:
                while not waiter.sits:
                    if waiter.is_lost:
                        place, came_with = await self._asked(key, seat, 1)
                        waiter.came_with = came_with
                        self._is_seated(seat, place, came_with, patience)
                        continue
                    alarm = AsyncAlarm()
                    is_looker = waiter.lie_down(alarm, self._clock.now_us())
                    await self._waiters.arest(alarm, patience.nap_until_us(self._pause_us(is_looker)))
                    if patience.is_over(waiter):
                        raise patience.refusal()
                    if is_looker and self._looks and not waiter.sits:
                        self._rooms.hear(key, await self._awatch(key, seat.owner))
            finally:
                waiter.go()
        except GeneratorExit:
            # Thrown away by the collector in the midst of anything: when it is gone, its seat is given back.
            raise
        except BaseException:
            await self.aleave(seat)
            raise
        seat.waited_us = patience.waited_us()
        return seat

    # giving back

    def leave(self, seat: Sitter) -> None:
        """Give a seat back; again, this does nothing. Where the store is gone, it hears of it later."""
        if self._is_over(seat):
            return
        try:
            told = self._leave(seat.key, seat.owner, seat.number)
        except StoreUnavailableError:
            self._end(seat, is_sure=False)
        else:
            self._end(seat, is_sure=told[0] >= 0)
            self._rooms.hear(seat.key, told)

    async def aleave(self, seat: Seat) -> None:
        """`leave`, awaitable; even where the task is cancelled."""
        if self.instant:
            self.leave(seat)
            return
        if self._is_over(seat):
            return
        try:
            with shielded():
                told = await self._aleave(seat.key, seat.owner, seat.number)
        except StoreUnavailableError:
            self._end(seat, is_sure=False)
        else:
            self._end(seat, is_sure=told[0] >= 0)
            self._rooms.hear(seat.key, told)

    def leave_soon(self, seat: Seat) -> None:
        """`leave`, for whoever runs on an event loop and cannot await."""
        if self.instant:
            self.leave(seat)
        elif not seat.is_over:
            afterwards.do(self.give_back, seat.key, seat.owner, seat.number)
            seat.is_over = True

    def give_back(self, key: str, owner: int, number: int) -> None:
        """`leave`, of a seat that nobody has any more."""
        seat = Sitter(key)
        seat.owner, seat.number = owner, number
        if self._is_awaited:
            # There is nobody here who could ask the store: the next renewal tells it.
            self._end(seat, is_sure=False)
        else:
            seat.is_over = False
            self.leave(seat)

    # for the keeper

    def renew(self, key: str, owner: int, upto: int, numbers: Sequence[int]) -> Told:
        """Say to the store which calls there still are."""
        told: Told = self._keep(key, owner, upto, numbers)
        return told

    def arenew(self, key: str, owner: int, upto: int, numbers: Sequence[int]) -> Awaitable[Told]:
        """`renew`, awaitable."""
        return self._akeep(key, owner, upto, numbers)

    # inside

    def _begun(self, key: str) -> Seat:
        """A call that is about to ask, known here from now on."""
        afterwards.ready()
        seat = Seat(self, key)
        is_kept = self._rooms.admit(seat)
        if self._keeper is not None and not is_kept:
            self._keeper.keep(self._rooms, self)
        return seat

    def _is_seated(self, seat: Seat, place: int, came_with: int, patience: _Patience) -> bool:
        """What the store answered; QueueFullError if there is no place."""
        if place == REFUSED:
            self._end(seat, is_sure=True)
            raise patience.refusal()
        self._rooms.hear(seat.key, (came_with, seat.number) if place == SEATED else (came_with,))
        return place == SEATED

    async def _asked(self, key: str, seat: Seat, may_wait: int) -> tuple[int, int]:
        answer: tuple[int, int]
        if self.instant:
            answer = self._enter(key, seat.owner, seat.number, may_wait)
        else:
            answer = await self._aenter(key, seat.owner, seat.number, may_wait)
        return answer

    def _is_over(self, seat: Sitter) -> bool:
        # What a process had in flight when it was forked is its own, and not the child's.
        return seat.is_over or seat.owner != self._rooms.owner

    def _end(self, seat: Sitter, *, is_sure: bool) -> None:
        unsure_until_us = 0 if is_sure else self._clock.now_us() + self._rooms.lease_us
        self._rooms.end(seat, unsure_until_us=unsure_until_us)

    def _heal(self, key: str) -> None:
        since_us, asked = self._clock.now_us(), self._rooms.alive(key)
        self._rooms.renewed(key, self.renew(key, *asked), since_us, self._clock.now_us())

    async def _aheal(self, key: str) -> None:
        since_us, asked = self._clock.now_us(), self._rooms.alive(key)
        self._rooms.renewed(key, await self.arenew(key, *asked), since_us, self._clock.now_us())

    def _pause_us(self, is_looker: bool) -> int | None:
        """After how long to see how things stand, beside what is heard; None for never."""
        if not self._looks:
            return None
        return LOOK_US if is_looker else STUCK_US


class _Patience:
    """How long a call waits for a seat."""

    __slots__ = ("_asked_us", "_clock", "_gives_up_us", "_key", "_limit", "_max_wait_us", "_refused_us")

    def __init__(self, seats: Seats, key: str, max_wait_us: int | None, timeout_us: int | None) -> None:
        self._clock = seats._clock
        self._key = key
        self._limit = seats.limit.limit
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

    def is_over(self, waiter: Waiter) -> bool:
        """Whether it was long enough. TimeoutError if it was too long for the caller."""
        if waiter.sits or waiter.is_lost:
            return False
        now = self._clock.now_us()
        if self._gives_up_us is not None and now >= self._gives_up_us:
            waited = (now - self._asked_us) / SECOND_US
            raise TimeoutError(f"gave up waiting for key {self._key!r} after {waited:.6g} s")
        return self._refused_us is not None and now >= self._refused_us

    def refusal(self) -> QueueFullError:
        """That there was no seat in time."""
        now = self._clock.now_us()
        full = Decision(False, self._limit, self._limit, 0, now + RETRY_US, RETRY_US, "concurrency")
        waited_us = now - self._asked_us
        bound_us = waited_us if self._max_wait_us is None else self._max_wait_us
        return QueueFullError(full, self._key, waited_us / SECOND_US, bound_us / SECOND_US)

    def waited_us(self) -> int:
        """How long it was."""
        return self._clock.now_us() - self._asked_us
