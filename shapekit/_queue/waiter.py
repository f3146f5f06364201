"""Waiter: takes a call from its reserved slot to its departure.

A waiting call sleeps until its slot, asks the store whether the slot has moved, and leaves or sleeps on.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from shapekit._queue.key_status import AT_ONCE_US, KeyStatus, Lookout, Standing, notice_us
from shapekit._queue.reporter import Reporter
from shapekit._queue.reservation import Reservation
from shapekit._runtime.drivers import Driver
from shapekit._runtime.sleepers import Sleepers
from shapekit._runtime.switch import SWITCH
from shapekit.algorithms.adaptive.aimd import real
from shapekit.clock import Clock
from shapekit.decision import Decision
from shapekit.errors import (
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
    gave_up,
)
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store


class Waiter:
    """The departures of one shaper. A call that does not leave, for whatever reason, gives its slot back."""

    def __init__(self, store: Store, sleepers: Sleepers, status: KeyStatus, reporter: Reporter) -> None:
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._sleepers = sleepers
        self._status = status
        self._reporter = reporter

    async def leave(
        self, driver: Driver, reservation: Reservation, max_wait_us: int | None, timeout_us: int | None
    ) -> None:
        """Sleep until the slot comes, or raise the error of a refusal."""
        if not reservation:
            error = refusal(reservation, max_wait_us)
            self._reporter.stopped(reservation.key, error)
            raise error
        if reservation.leaves_now:
            self._reporter.departed(reservation.key, reservation.cost)
            return
        try:
            patience = await self.stay(driver, reservation, max_wait_us, timeout_us)
        except BaseException as error:
            await driver.given_back(error, partial(self.give_up, driver, reservation, error))
            raise
        if SWITCH.loud:
            self._reporter.departed(reservation.key, reservation.cost, *patience.waited_us())

    async def stay(
        self, driver: Driver, reservation: Reservation, max_wait_us: int | None, timeout_us: int | None
    ) -> Patience:
        """Sleep until the slot comes. If the sleep ends early, the error is raised and the slot is kept."""
        grant = reservation.grant
        ahead_us = 0 if self._clock_decides else self._clock.now_us() - (grant.departs_at_us - grant.wait_us)
        patience = Patience(self._clock, reservation, ahead_us, max_wait_us, timeout_us)
        if not grant.wait_us:
            return patience
        is_bounded = max_wait_us is not None or timeout_us is not None
        self._reporter.waits(reservation.key, grant.wait_us, is_bounded=is_bounded)
        # Answers may reach several tasks at once, and trio then resumes them in any order.
        is_awaited = not self._status.instant
        lookout: Lookout | None = None
        while True:
            if not patience.is_held:
                until_us = patience.nap_until_us()
                await driver.sleep(self._sleepers, until_us, patience.order, others_too=is_awaited)
            else:
                lookout = lookout or Lookout(self._status, (patience.key,), patience.asked_us)
                alarm = driver.alarm()
                lookout.lie_down(alarm)
                try:
                    until_us = min(patience.nap_until_us(), lookout.until_us(patience.due_us))
                    await driver.sleep(self._sleepers, until_us, patience.order, others_too=True, news=alarm)
                finally:
                    lookout.get_up(alarm)
            if patience.is_over():
                patience.hear(await self._status.leaving(driver, reservation.key))
                if patience.is_over():
                    break
            elif lookout is not None and lookout.is_time(self._clock.now_us()):
                patience.hear(*await lookout.look(driver))
        if is_awaited:
            await driver.fall_in(self._sleepers, patience.nap_until_us(), patience.order)
        return patience

    async def give_up(self, driver: Driver, reservation: Reservation, error: BaseException) -> None:
        """Give back the slot of a call that will not leave, and report it."""
        is_returned = False
        # If the store is gone too, the caller still gets the original error.
        with suppress(StoreUnavailableError):
            is_returned = await reservation.core.give_back(driver, reservation)
        self._reporter.ended(reservation.key, reservation.cost, error, had_slot=True, returned=is_returned)

    async def remaining_us(self, driver: Driver, reservation: Reservation) -> int:
        """Time until the slot comes, with the current state of its key; negative once it has passed."""
        with self._reporter.watching(reservation.key):
            standing = await self._status.ask(driver, reservation.key)
        patience = Patience(self._clock, reservation, standing.ahead_us, None, None)
        patience.hear(standing)
        return patience.due_us - self._clock.now_us()

    async def held_us(self, driver: Driver, key: str) -> int:
        """How long a key is still held."""
        with self._reporter.watching(key):
            standing = await self._status.ask(driver, key)
        return max(0, standing.until_us + standing.ahead_us - self._clock.now_us())

    async def notice_us(self, driver: Driver, key: str) -> int:
        """How far ahead the end of a hold has to be set, so that every waiting call hears of it in time."""
        return AT_ONCE_US if self._status.hears_all else notice_us(await self.held_us(driver, key))


class Patience:
    """The wait of one call: the promised slot, how it has moved since, and when to give up.

    All instants are on the clock that the caller sleeps by.
    """

    __slots__ = (
        *("asked_us", "due_us", "is_held", "is_marked", "key", "order"),
        *("_clock", "_generation", "_gives_up_us", "_max_wait_us", "_policy", "_queued_us"),
    )

    def __init__(
        self,
        clock: Clock,
        reservation: Reservation,
        ahead_us: int,
        max_wait_us: int | None,
        timeout_us: int | None,
    ) -> None:
        grant = reservation.grant
        self._clock = clock
        self._policy = reservation.core.name
        self._generation = grant.generation
        self._queued_us = grant.due_us
        self.order = grant.start
        self.is_held = self.is_marked = grant.held
        """Whether a part of the key may be held."""
        self.key = reservation.key
        self._max_wait_us = max_wait_us
        self.due_us = grant.departs_at_us + ahead_us
        self.asked_us = self.due_us - grant.wait_us
        self._gives_up_us = None if timeout_us is None else self.asked_us + timeout_us

    def nap_until_us(self) -> int:
        """Until when to sleep before asking again; in the past once the slot has come. TimeoutError when time
        is up.
        """
        if self._gives_up_us is None or self.due_us <= (now := self._clock.now_us()):
            return self.due_us
        if now >= self._gives_up_us:
            raise gave_up(self.key, self._policy, now - self.asked_us)
        return min(self.due_us, self._gives_up_us)

    def is_over(self) -> bool:
        """Whether the slot has come, as far as is known."""
        return self.due_us <= self._clock.now_us()

    def waited_us(self, asked_us: int | None = None) -> tuple[int, int]:
        """How long ago the call asked, and how long ago its slot came."""
        now = self._clock.now_us()
        if asked_us is None:
            asked_us = self.asked_us
        return max(0, now - asked_us), max(0, now - self.due_us)

    def hear(self, standing: Standing) -> None:
        """Apply the current state of the key. After a reset, the promised slot is kept and holds no longer
        move it.
        """
        generation, shift_us, until_us, ahead_us, clock, mark_us = standing
        now = self._clock.now_us()
        self.is_marked = mark_us + ahead_us > now
        if generation != self._generation:
            self.is_held = False
            return
        self.is_held = until_us + ahead_us > now or bool(clock)
        due_us = self._queued_us + shift_us
        if clock:
            shown_us, share = clock
            due_us = real(until_us, shown_us, share, self._queued_us)
        self.due_us = max(due_us, until_us) + ahead_us
        wait_us = self.due_us - self.asked_us
        if self._max_wait_us is not None and wait_us > self._max_wait_us and self.due_us > now:
            held_back = Decision(False, 1, 1, 0, self.due_us, wait_us - self._max_wait_us)
            delay, bound = wait_us / SECOND_US, self._max_wait_us / SECOND_US
            raise QueueFullError(held_back, self.key, delay, bound, self._policy)


def refusal(reservation: Reservation, max_wait_us: int | None) -> RateLimitedError:
    """The error for a slot that was refused."""
    decision, key, policy = reservation.decision, reservation.key, reservation.core.name
    if decision.binding is not None:
        # A queue sets `binding` only when a spent budget has refused the call.
        return QuotaExhaustedError(decision, key, policy)
    return QueueFullError(decision, key, reservation.delay, (max_wait_us or 0) / SECOND_US, policy)
