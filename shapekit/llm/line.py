"""Line: calls of one budget that wait, first come, first served in each process.

A slot that is taken keeps its place, so a slot far ahead, taken by an estimate, would keep out calls that fit
as soon as others have settled. Therefore a call takes its slots only when they are near. Until then it stands
in line: the first one asks again when something was given back, and now and then, because other processes
give back too. A call that was first for a whole period takes its slots however far they are: no other process
can overtake it for ever.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from shapekit._queue.waiter import refusal
from shapekit._runtime import process
from shapekit._runtime.drivers import Driver
from shapekit.clock import Clock
from shapekit.errors import (
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
    after_waiting,
    gave_up,
)
from shapekit.llm.prices import DIGITS
from shapekit.policy import Policy
from shapekit.rate import SECOND_US, Duration, max_wait_us, timeout_us
from shapekit.shaper import Core, Reservation

__all__ = ["Charge", "Line"]

LOOK_US = SECOND_US
"""How often the first one asks at most; after a twentieth of its wait if that is longer."""


class Charge(NamedTuple):
    """What a call takes from one policy."""

    policy: Policy
    key: str
    cost: int
    unit: str | None = None
    """The currency of what it takes; None for tokens and requests."""

    @property
    def core(self) -> Core:
        """The queue that is asked."""
        return self.policy.shaper.core


class _Place:
    """A call in line."""

    __slots__ = ("alarm", "is_rung")

    def __init__(self) -> None:
        self.alarm: Any = None
        self.is_rung = False

    def ring(self) -> None:
        self.is_rung = True
        if self.alarm is not None:
            self.alarm.set()


class _PendingWait:
    """How long one call waits, for everything it takes together."""

    def __init__(self, clock: Clock, key: str, policy: str, waits: dict[str, Duration]) -> None:
        self._clock = clock
        self._key = key
        self._policy = policy
        self.began_us = clock.now_us()
        self._max_wait_us = max_wait_us(waits.get("max_wait"))
        self._timeout_us = timeout_us(waits.get("timeout"))

    @property
    def is_bounded(self) -> bool:
        return self._max_wait_us is not None or self._timeout_us is not None

    @property
    def waits_for_quotas(self) -> bool:
        return self._max_wait_us is not None

    @property
    def waited_us(self) -> int:
        return self._clock.now_us() - self.began_us

    def left_us(self) -> int | None:
        """How much longer the call may wait; None without a bound."""
        return None if self._max_wait_us is None else max(0, self._max_wait_us - self.waited_us)

    def timeout_left_us(self) -> int | None:
        """How long until it gives up, or None; TimeoutError if that is now."""
        if self._timeout_us is None:
            return None
        waited_us = self.waited_us
        if waited_us >= self._timeout_us:
            raise gave_up(self._key, self._policy, waited_us)
        return self._timeout_us - waited_us

    def sleeps_until_us(self, nap_us: int | None) -> int | None:
        """Until when to rest, at most."""
        naps = [pause for pause in (nap_us, self.left_us(), self.timeout_left_us()) if pause is not None]
        return self._clock.now_us() + min(naps) if naps else None

    def told(self, error: RateLimitedError) -> RateLimitedError:
        """A refusal in terms of the whole wait."""
        if not isinstance(error, QueueFullError) or self._max_wait_us is None:
            return error
        return after_waiting(error, self.waited_us / SECOND_US, self._max_wait_us / SECOND_US)


class Line:
    """The calls of a budget that wait, by key."""

    def __init__(self, clock: Clock, soon_us: int, fence_us: int) -> None:
        self._clock = clock
        self._soon_us = soon_us
        self._fence_us = fence_us
        self._lock = process.lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._places: dict[str, deque[_Place]] = {}
        self._freed = 0

    async def take(
        self, driver: Driver, key: str, charges: Sequence[Charge], waits: dict[str, Duration]
    ) -> tuple[list[Reservation], int]:
        """A slot of each policy, all of which have come; and for how long the call stood in line.

        A call that takes none, for whatever reason, keeps none.
        """
        for charge in charges:
            charge.core.check(charge.key, charge.cost)
        pending = _PendingWait(self._clock, key, charges[0].policy.name, waits)
        await driver.stop_if_cancelled()
        asking = _Asking(driver, key, charges, pending)
        try:
            return await self._take(asking)
        except BaseException as error:
            await driver.given_back(error, asking.give_back)
            raise

    def freed(self, key: str) -> None:
        """Something was given back: the first one asks again."""
        self._freed += 1
        if self._places:
            with self._lock:
                places = self._places.get(key)
                if places:
                    places[0].ring()

    async def _take(self, asking: _Asking) -> tuple[list[Reservation], int]:
        freed = self._freed
        if not self._is_waited_for(asking.key) or asking.pending.left_us() == 0:
            if await asking.ask(self._soon_us):
                return await asking.leave(0)
            await asking.check()
        process.background_ready()
        place = _Place()
        try:
            self._join(asking.key, place)
            # What was given back after it was refused, and before it stood here, has woken no call.
            place.is_rung = self._freed != freed
            await self._wait(asking, place)
            return await asking.leave(asking.pending.waited_us)
        finally:
            if isinstance(sys.exception(), GeneratorExit):
                # The collector ends it in the midst of anything, where this thread may hold the lock.
                process.in_background(self._leave, asking.key, place)
            else:
                self._leave(asking.key, place)

    async def _wait(self, asking: _Asking, place: _Place) -> None:
        """Until the call is first in line, and has its slots."""
        first_since_us: int | None = None
        while True:
            nap_us = asking.nap_us(self._soon_us) if self._is_first(asking.key, place) else None
            await self._rest(asking, place, nap_us)
            is_first = self._is_first(asking.key, place)
            if not is_first and asking.pending.left_us() != 0:
                asking.pending.timeout_left_us()
                continue
            if is_first and first_since_us is None:
                first_since_us = self._clock.now_us()
            is_fence = first_since_us is not None and self._clock.now_us() - first_since_us >= self._fence_us
            asking.pending.timeout_left_us()
            if await asking.ask(None if is_fence else self._soon_us):
                return
            await asking.check()

    async def _rest(self, asking: _Asking, place: _Place, nap_us: int | None) -> None:
        driver, alarm = asking.driver, asking.driver.alarm()
        with self._lock:
            is_rung, place.is_rung = place.is_rung, False
            place.alarm = None if is_rung else alarm
        if not is_rung:
            try:
                until_us = asking.pending.sleeps_until_us(nap_us)
                await asking.charges[0].core.sleepers.rest(driver, alarm, until_us)
            finally:
                # Who rings meanwhile rings for nothing: the call is about to ask.
                place.alarm, place.is_rung = None, False

    # the places

    def _is_waited_for(self, key: str) -> bool:
        if self._pid != os.getpid():
            self._begin()  # those that waited are the parent's
        return key in self._places

    def _join(self, key: str, place: _Place) -> None:
        with self._lock:
            self._places.setdefault(key, deque()).append(place)

    def _is_first(self, key: str, place: _Place) -> bool:
        return self._places[key][0] is place

    def _leave(self, key: str, place: _Place) -> None:
        with self._lock:
            places = self._places.get(key, deque())
            if place not in places:
                return
            was_first = places[0] is place
            places.remove(place)
            if not places:
                del self._places[key]
            elif was_first:
                places[0].ring()


class _Asking:
    """What one call asks for, and what it was answered."""

    def __init__(self, driver: Driver, key: str, charges: Sequence[Charge], pending: _PendingWait) -> None:
        self.driver = driver
        self.key = key
        self.charges = charges
        self.pending = pending
        self._order = [*range(len(charges))]
        self._taken: dict[int, Reservation] = {}
        self._refused: Reservation
        self._is_refused = False
        self._bounds_us: dict[int, int | None] = {}

    async def ask(self, soon_us: int | None) -> bool:
        """Take all, or nothing. The policy that has refused last is asked first."""
        for place in self._order:
            charge, left_us = self.charges[place], self.pending.left_us()
            bounds = [bound for bound in (soon_us, left_us) if bound is not None]
            bound_us = min(bounds, default=None)
            with charge.core.reporter.watching(charge.key):
                taken = await charge.core.reserve_untold(self.driver, charge.key, charge.cost, bound_us)
            if not taken:
                self._refused, self._is_refused = taken, True
                self._order.remove(place)
                self._order.insert(0, place)
                await self.give_back()
                return False
            self._taken[place] = taken
            self._bounds_us[place] = left_us
        return True

    async def check(self) -> None:
        """Raise the error of the last refusal, unless the call may wait for what refused it."""
        refused, pending, place = self._refused, self.pending, self._order[0]
        charge, left_us = self.charges[place], pending.left_us()
        delay_us = round(refused.delay * SECOND_US)
        if left_us is not None and delay_us > left_us:
            error = refusal(refused, left_us)
            # It was asked whether the slot is near; the same call would be admitted earlier than that.
            error.decision = error.decision._replace(retry_after_us=delay_us - left_us)
            error.args = (error.decision, *error.args[1:])
            raise self._told(charge, error)
        if not pending.waits_for_quotas and refused.decision.binding is not None:
            # A quota is spent: asked without a bound, it says until when.
            spent = await charge.core.reserve_untold(self.driver, charge.key, charge.cost, None)
            if not spent:
                raise self._told(charge, refusal(spent, None))
            await charge.core.give_back(self.driver, spent)
            self._is_refused = False  # it was given something back meanwhile
        charge.core.reporter.waits(charge.key, delay_us, is_bounded=pending.is_bounded)

    def nap_us(self, soon_us: int) -> int:
        """How long to rest before asking again; nothing before the first question."""
        if not self._is_refused:
            return 0
        delay_us = round(self._refused.delay * SECOND_US)
        return min(max(0, delay_us - soon_us), max(LOOK_US, delay_us // 20))

    async def leave(self, line_us: int) -> tuple[list[Reservation], int]:
        """Wait until all slots have come, and say so."""
        try:
            for place, charge in enumerate(self.charges):
                taken = self._taken[place]
                charge.core.reporter.reserved(taken.after_waiting(line_us) if line_us else taken)
                await charge.core.budgets.look(self.driver, charge.key)
            for place, charge in enumerate(self.charges):
                left_us, gives_up_us = self._bounds_us[place], self.pending.timeout_left_us()
                await charge.core.waiter.leave(self.driver, self._taken[place], left_us, gives_up_us)
        except RateLimitedError as error:
            told = self.pending.told(error)
            if told is error:
                raise
            raise told.with_traceback(error.__traceback__) from error.__cause__
        return [self._taken[place] for place in range(len(self.charges))], line_us

    async def give_back(self) -> None:
        """Give back what was taken."""
        while self._taken:
            _, reservation = self._taken.popitem()
            with suppress(StoreUnavailableError):
                await reservation.core.give_back(self.driver, reservation)

    def _told(self, charge: Charge, error: RateLimitedError) -> RateLimitedError:
        waited = self.pending.waited_us > 0
        if charge.unit is not None and isinstance(error, QuotaExhaustedError):
            error = QuotaExhaustedError(error.decision, error.key, error.policy, charge.unit, DIGITS)
        charge.core.reporter.refused(charge.key, charge.cost, error, waited=waited)
        return self.pending.told(error)
