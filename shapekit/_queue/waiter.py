"""Waiter: takes a call from its reserved slot to its departure.

A waiting call sleeps until its slot, asks the store whether the slot has moved, and leaves or sleeps on. If
something kept it until the next slot (a blocked event loop, the garbage collector, a stopped process, a slow
answer), it reports that to the store, which gives it the next slot and moves the line behind it. A prefetched
slot is exchanged for another one instead.

Key status: the state of a key, which each call asks for right before it leaves, so that a hold placed while
it waited still moves it.

If such a question is a trip to the store, all calls that leave one key within 10 ms share one: the first call
sends it, calls that come while it is under way wait for its answer, and later ones reuse the answer. When
this process changes a key, it drops the question, so that no call leaves by an answer from before the change.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from shapekit._queue.moving import STUCK_S, KeyPoller, LateCalls, Limits, Watch
from shapekit._queue.reporter import DEBUG, LOGS, LONG_US, SHAPER_LOG
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, THREADS, Alarm, Driver, Twin, own_copy, run
from shapekit._runtime.process import SWITCH
from shapekit.algorithms.base import END_US, NOWHERE
from shapekit.algorithms.queue.adaptive import FULL
from shapekit.algorithms.queue.queue import MOST_LATE_US, SOON_US, LeakyQueue
from shapekit.algorithms.queue.slots import (
    ACCEPTED,
    DEPARTS_AT_US,
    GENERATION,
    QUEUE,
    WAIT_US,
    Grant,
    Granted,
    Moves,
    followed,
)
from shapekit.algorithms.queue.wire import CONFIRM, CONFIRM_LOCAL, FOLLOW, LATE, UNKNOWN
from shapekit.clock import Clock, StoreClock
from shapekit.decision import Decision
from shapekit.errors import (
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
    gave_up,
)
from shapekit.rate import SECOND_US
from shapekit.stores.base import Settings, Store, companion

if TYPE_CHECKING:
    from shapekit._queue.prefetch import Prefetch
    from shapekit.shaper import Core, Reservation

MOST_MOVES = 8
"""How often a call gets another slot: if answers take longer than a slot, it would never leave."""

FAR = 4
"""A store is far away if fewer trips than this fit into the grace."""
FINEST = 2**26
"""No queue has positions finer than this part of a microsecond."""


class Waiter:
    """Waits for the slots of one shaper. A call that does not leave, for any reason, gives its slot back."""

    def __init__(self, core: Core) -> None:
        self._clock = core.clock
        self._sleepers = core.sleepers
        self._status = core.status
        self._reporter = core.reporter
        self._prefetch = core.prefetch
        self._queue = core.queue
        self._grace_us = core.queue.grace_us
        late = core.store.twin(core.name, core.queue, LATE)
        self._late_calls = LateCalls(core.status.changing(late, is_news=False))

    async def wait(
        self,
        driver: Driver,
        reservation: Reservation,
        max_wait_us: int | None,
        timeout_us: int | None,
        *,
        is_slow: bool = False,
        tells: bool = False,
    ) -> tuple[int, int]:
        """Sleep until the slot comes, or raise the error of a refusal. `is_slow`: the answer took long, so
        that even a slot for now may have passed.

        Returns how long ago the call asked, and how long ago its slot came. With `tells` the departure is
        reported here, else by the caller.
        """
        granted, waited_us = reservation.granted, (0, 0)
        if not granted[ACCEPTED]:
            raise self._refused(reservation, max_wait_us)
        if granted[WAIT_US] or is_slow or not self.is_prompt(granted):
            waiting = self._sleepers.waiting
            waiting[reservation] = driver
            try:
                pending = await self.stay(driver, reservation, max_wait_us, timeout_us, is_slow=is_slow)
            except BaseException as error:
                await driver.given_back(error, partial(self.give_up, driver, reservation, error))
                raise
            finally:
                del waiting[reservation]
            waited_us = pending.waited_us()
        if tells and SWITCH.loud:
            self._reporter.departed(reservation.key, reservation.cost, *waited_us)
        return waited_us

    def _refused(self, reservation: Reservation, max_wait_us: int | None) -> RateLimitedError:
        error = refusal(reservation, max_wait_us)
        self._reporter.stopped(reservation.key, error)
        return error

    def is_prompt(self, granted: Granted, asked_us: int | None = None) -> bool:
        """Whether a call with a slot for now may leave without asking again: the answer did not take long."""
        if self._status.instant or granted[GENERATION] < 0 or self._grace_us == END_US:
            return True
        if self._prefetch is not None:
            return True  # a prefetched slot that has passed is handed out as one to wait for
        there_us, grace_us = granted[DEPARTS_AT_US] - granted[WAIT_US], self._grace_of(granted[QUEUE])
        now_us = self._clock.now_us()
        if asked_us is not None and now_us - asked_us <= grace_us:
            self._status.store_clock.hear(asked_us, there_us, now_us)
            return True
        ahead_us = self._status.store_clock.ahead_us(there_us, now_us)
        if ahead_us is None:
            return asked_us is None
        return now_us - there_us - ahead_us <= grace_us

    async def stay(
        self,
        driver: Driver,
        reservation: Reservation,
        max_wait_us: int | None,
        timeout_us: int | None,
        *,
        is_slow: bool = False,
    ) -> PendingWait:
        """Sleep until the slot comes. An error that ends the sleep early is raised, and the slot is kept."""
        granted = reservation.granted
        wait_us = granted[WAIT_US]
        ahead_us, store_clock = 0, self._status.store_clock
        if not store_clock.decides and granted[GENERATION] >= 0:
            there_us, now_us = granted[DEPARTS_AT_US] - wait_us, self._clock.now_us()
            known_us = store_clock.ahead_us(there_us, now_us)
            ahead_us = now_us - there_us if known_us is None else known_us
        pending = PendingWait(reservation, ahead_us, max_wait_us, timeout_us)
        if wait_us:
            # Inline, because most calls log nothing.
            log = LOGS.get(SHAPER_LOG)
            if wait_us > LONG_US or ("logging" in sys.modules if log is None else log.isEnabledFor(DEBUG)):
                is_bounded = max_wait_us is not None or timeout_us is not None
                self._reporter.waits(reservation.key, wait_us, is_bounded=is_bounded)
        elif not is_slow and self.is_prompt(granted):
            return pending
        try:
            return await self._outlast(driver, pending)
        finally:
            if self._late_calls.trips:
                self._late_calls.forget(pending)
            if self._status.limits.dues:
                self._status.limits.hand_over(pending.asked_us)

    async def _outlast(self, driver: Driver, pending: PendingWait) -> PendingWait:
        # An answer may reach several tasks at once, and trio resumes them in any order.
        is_awaited = is_apart = not self._status.instant
        poller: KeyPoller | None = None
        limits = self._status.limits
        now_us = pending.asked_us
        while True:
            asks_at_us = pending.asks_at_us(self._allowed_us(pending))
            polls_at_us = END_US
            if not pending.is_held and asks_at_us - now_us <= SOON_US:
                until_us = pending.sleeps_until_us(asks_at_us)
                await driver.sleep(self._sleepers, until_us, pending.order, others_too=is_awaited)
            else:
                keys = (pending.key,) if pending.is_held else ()
                if poller is None or poller.keys != keys:
                    poller = KeyPoller(self._status, keys, pending.asked_us, limits)
                alarm = driver.alarm()
                poller.begin_wait(alarm)
                try:
                    # A hold may be an operator's, which ends with the override.
                    polls_at_us = (
                        limits.ends_at_us()
                        if pending.is_held
                        else limits.until_us(alarm, now_us, pending.due_us)
                    )
                    until_us = min(
                        pending.sleeps_until_us(asks_at_us), poller.until_us(pending.due_us), polls_at_us
                    )
                    # News, such as the end of a hold, wakes waiting calls in any order.
                    is_apart |= await driver.sleep(
                        self._sleepers, until_us, pending.order, others_too=True, news=alarm
                    )
                finally:
                    poller.end_wait(alarm)
            now_us = self._clock.now_us()
            if asks_at_us <= now_us:
                if not pending.moves or pending.stands_until_us:
                    pending.heard_after = self._late_calls.trips
                    is_local = pending.grant.generation < NOWHERE
                    ask = self._status.locally if is_local else self._status.leaving
                    now_us, key_state = await ask(driver, pending.key)
                    pending.hear(key_state, now_us)
                allowed_us = self._allowed_us(pending)
                due_us, turn_us = pending.due_us, pending.asks_at_us(allowed_us)
                # A call whose slot has moved stood in line by the old one.
                is_out_of_line = is_apart or turn_us != asks_at_us
                if is_out_of_line and turn_us <= now_us:
                    await driver.let_earlier_go(self._sleepers, turn_us, pending.order)
                    now_us = self._clock.now_us()
                if pending.due_us == due_us and await self._may_leave(driver, pending, allowed_us, now_us):
                    return pending
            elif poller is not None and (polls_at_us <= now_us or poller.is_time(now_us)):
                key_states = await poller.look(driver)
                for key_state in key_states or (await self._status.ask(driver, pending.key),):
                    pending.hear(key_state, self._clock.now_us())

    def _allowed_us(self, pending: PendingWait) -> int:
        """How late a call may be before it asks for another slot: by the grace and two trips, since a slot
        that comes sooner than that is missed without a stall. Without bound if the store is far away, where a
        new slot would come too late as well; a prefetched one would not.
        """
        grace_us, trip_us = self._grace_of(pending.queue), self._status.store_clock.trip_us
        is_far = trip_us * FAR > grace_us if self._prefetch is None else not trip_us
        if grace_us == END_US or is_far:
            return END_US
        return grace_us + 2 * trip_us

    def _grace_of(self, queue: LeakyQueue | None) -> int:
        """How late a call may leave, by the limits in force."""
        if queue is None or queue is self._queue or self._grace_us == END_US:
            return self._grace_us
        return queue.grace_us

    async def _may_leave(self, driver: Driver, pending: PendingWait, allowed_us: int, now_us: int) -> bool:
        """Whether the slot of a call has come and may be used. A call that is late gets another one."""
        if pending.needs_new_slot(allowed_us, now_us):
            await self._move(driver, pending)
            return False
        if pending.due_us > now_us:
            return False
        if pending.moves:
            return self._late_calls.leaves(pending)
        late_calls = self._late_calls
        is_any = late_calls.under_way or late_calls.waiting
        if is_any and await late_calls.let_go(driver, pending.key, pending.order):
            return False
        return pending.heard_after == late_calls.trips

    async def _move(self, driver: Driver, pending: PendingWait) -> None:
        """Get another slot for a call that is late. If that one has passed as well, ask again at once, before
        the calls behind it do.
        """
        if self._prefetch is not None:
            pending.exchange(await self._prefetch.exchange(driver, pending.key, pending.grant))
            return
        while True:
            late = pending.late_call()
            pending.move(*await self._late_calls.ask(driver, pending.key, pending.order, late))
            allowed_us, now_us = self._allowed_us(pending), self._clock.now_us()
            self._late_calls.moved(pending, allowed_us, now_us)
            if not pending.has_new_slot or not pending.needs_new_slot(allowed_us, now_us):
                return

    async def coming(
        self, driver: Driver, reservation: Reservation, grace_us: int, *, is_unused: bool
    ) -> Coming | None:
        """When a slot comes, or the next one if it was missed; None if there is none soon.

        Further limits go on counting a missed slot. Under these, the next one is given only if the slot is
        unused and passed less than a second ago.
        """
        # If other calls are late as well, a shared answer from before could give one slot to two calls.
        is_shared = reservation.queue.slot_us <= FRESH_US
        now_us, key_state, pending = await self._status.of_slot(driver, reservation, is_shared=is_shared)
        if not pending.was_missed(grace_us, now_us):
            departs_at_us = pending.departs_at_us(key_state.until_us, now_us)
            if departs_at_us != reservation.granted[DEPARTS_AT_US]:
                reservation = _departing(reservation, departs_at_us)
            return Coming(reservation, (pending.due_us - now_us) / SECOND_US, has_moved=False)
        is_told = self._prefetch is None and self._allowed_us(pending) != END_US
        if not is_told or not pending.has_near_slot(key_state.generation, now_us, is_unused=is_unused):
            return None
        late = pending.late_call()
        leaves_at_us, stands_until_us = await self._late_calls.ask(driver, pending.key, pending.order, late)
        if stands_until_us == UNKNOWN:
            return None
        remaining_us = leaves_at_us + key_state.ahead_us - self._clock.now_us()
        return Coming(_departing(reservation, leaves_at_us), remaining_us / SECOND_US, has_moved=True)

    async def give_up(self, driver: Driver, reservation: Reservation, error: BaseException) -> None:
        """Give back the slot of a call that will not leave, and report it."""
        is_returned = False
        try:
            # If the store is gone as well, the caller still gets the original error.
            with suppress(StoreUnavailableError):
                is_returned = await reservation.core.give_back(driver, reservation)
        except BaseException as again:
            if driver is THREADS and not isinstance(again, Exception):
                # Interrupted once more. To give back a second time what the store has already does nothing.
                process.background_ready()
                process.in_background(run, self.give_up, reservation, error)
            raise
        self._reporter.ended(reservation.key, reservation.cost, error, had_slot=True, returned=is_returned)


class Coming(NamedTuple):
    """When a slot comes."""

    reservation: Reservation
    """The slot with its current instant; once that has passed, with the one known before."""
    remaining_s: float
    """Seconds from now, negative if the slot has come."""
    has_moved: bool
    """Whether the slot was missed and this is the next one: a later question would not find it again."""


def _departing(reservation: Reservation, departs_at_us: int) -> Reservation:
    """The same slot, at another instant."""
    grant = reservation.grant
    wait_us = grant.wait_us + departs_at_us - grant.departs_at_us
    moved = grant._replace(wait_us=wait_us, departs_at_us=departs_at_us)
    return type(reservation)(reservation.core, reservation.key, moved)


class PendingWait:
    """The wait of one call: the promised slot, how it has moved since, and when to give up.

    All instants are on the clock that the caller sleeps by.
    """

    __slots__ = (
        *("asked_us", "due_us", "heard_after", "is_held", "is_marked", "key", "moves", "order"),
        "stands_until_us",
        *("_ahead_us", "_clock", "_gives_up_us", "_leaves_by_us", "_max_wait_us"),
        *("_core", "_queued_us", "_slot_us", "grant", "queue"),
        *("_promised_ahead_us", "_reservation", "exchanges"),
    )

    def __init__(
        self, reservation: Reservation, ahead_us: int, max_wait_us: int | None, timeout_us: int | None
    ) -> None:
        grant, core = reservation.grant, reservation.core
        self._core = core
        self._clock = core.clock
        self._reservation = reservation
        self._ahead_us = self._promised_ahead_us = ahead_us
        self._take(grant, grant.queue or core.queue)
        self.exchanges = 0
        """How often the call missed a prefetched slot and got another one."""
        self.heard_after = 0
        """How many trips for late calls had been made when the key was last asked about."""
        self.moves = 0
        """How often the call missed its slot and got another one, which only a longer hold moves."""
        self.stands_until_us = 0
        """Until when, on the store's clock, time stands still for its new slot: if it stands still for
        longer, the key is held. 0 if that is not known, or so soon that a hold does not matter.
        """
        self.is_held = self.is_marked = grant.held
        """Whether the key may be held, and whether a part of it may be."""
        self.key = reservation.key
        self._max_wait_us = max_wait_us
        self.due_us = self._slot_us = grant.departs_at_us + ahead_us
        self.asked_us = self.due_us - grant.wait_us
        if max_wait_us is not None and grant.wait_us > max_wait_us:
            # The store was asked for a slot without this bound.
            raise self._refusal(max_wait_us, held=grant.held)
        self._gives_up_us = None if timeout_us is None else self.asked_us + timeout_us

    def _take(self, grant: Grant, queue: LeakyQueue) -> None:
        """Adopt this grant of a queue, which is the shaper's own or has limits that an operator has set."""
        self.grant = grant
        self.queue = queue
        self._queued_us = grant.due_us
        self._leaves_by_us: int | None = None
        self.order = grant.start * FINEST // queue.q
        """The position in the line, in a unit that all queues have in common."""

    def asks_at_us(self, allowed_us: int) -> int:
        """When to ask about the slot: when it comes. A late call asks before a hold ends, to get in line
        behind other late calls.
        """
        if self.due_us > self._slot_us and self.is_late(allowed_us, self._clock.now_us()):
            return self.due_us - SOON_US
        return self.due_us

    def sleeps_until_us(self, until_us: int) -> int:
        """`until_us`, or the end of `timeout` if that is earlier; TimeoutError if it has passed."""
        if self._gives_up_us is None or until_us <= (now := self._clock.now_us()):
            return until_us
        if now >= self._gives_up_us:
            raise gave_up(self.key, self._core.name, now - self.asked_us)
        return min(until_us, self._gives_up_us)

    def is_over(self) -> bool:
        """Whether the slot has come, by the last answer of the store."""
        return self.due_us <= self._clock.now_us()

    def is_late(self, allowed_us: int, now_us: int) -> bool:
        """Whether the call has missed its slot: it could last be used longer ago than `allowed_us`.

        A call whose slot had passed before a hold is late, too: it may not leave when the hold ends.
        """
        if self.due_us <= self._slot_us and now_us - self._slot_us <= allowed_us:
            return False  # as nearly always; only else is `_leaves_by` needed
        usable_us = self._slot_us + self._leaves_by() - self._queued_us
        if self.due_us > usable_us and allowed_us != END_US:
            return True
        return now_us - usable_us > allowed_us

    def needs_new_slot(self, allowed_us: int, now_us: int) -> bool:
        """Whether the call is late, and may ask for another slot."""
        is_soon = self.due_us - SOON_US <= now_us
        return is_soon and self.moves + self.exchanges < MOST_MOVES and self.is_late(allowed_us, now_us)

    def _leaves_by(self) -> int:
        """Until when, on the queue's own time, the slot can be used."""
        if self._leaves_by_us is None:
            # A slot from a fallback is on the grid of its share of the limits, not on this one.
            is_own = self.grant.generation >= 0
            self._leaves_by_us = self.queue.leaves_by(self.grant) if is_own else self.grant.due_us
        return self._leaves_by_us

    def departs_at_us(self, until_us: int, now_us: int) -> int:
        """The instant of the slot, on the store's clock. A slot that had passed before time last stood still,
        until `until_us`, keeps the instant that was known.
        """
        known_us, slot_us = self.grant.departs_at_us, self._slot_us - self._ahead_us
        if now_us < self.due_us:
            return slot_us if self.due_us == self._slot_us else known_us
        return slot_us if known_us >= until_us - (slot_us - known_us) else known_us

    def was_missed(self, grace_us: int, now_us: int) -> bool:
        """Whether the slot could last be used longer ago than the grace.

        While time stands still for late calls there is no grace: it ends soon, and then other calls leave.
        """
        usable_us = self._slot_us + self._leaves_by() - self._queued_us
        late_us = max(now_us, self.due_us) - usable_us
        return late_us > (0 if now_us < self.due_us <= now_us + SOON_US else grace_us)

    def has_near_slot(self, generation: int, now_us: int, *, is_unused: bool) -> bool:
        """Whether a call that missed its slot may have the next one, and soon."""
        queue = self.queue
        if generation != self.grant.generation or queue.adapts:
            return False
        if queue.constraints.algorithms:
            return is_unused and now_us - self._slot_us < MOST_LATE_US
        return queue.slot_us <= SOON_US

    def late_call(self) -> tuple[int, int, int, int]:
        """What a late call sends to the store."""
        return self.grant.generation, self._leaves_by(), self.grant.cost, process.fresh_id()

    def move(self, leaves_at_us: int, stands_until_us: int) -> None:
        """Apply the store's answer to a late call."""
        self.due_us = leaves_at_us + self._ahead_us
        if stands_until_us != UNKNOWN or self.is_over():
            self._slot_us = self.due_us
            self.moves, self.is_held = self.moves + 1, False
            self.stands_until_us = stands_until_us if stands_until_us - leaves_at_us > SOON_US else 0
            # From here on, lateness is judged by the clock alone: the queue's time stands still for others.
            self._queued_us = self._leaves_by_us = 0
        else:
            # Time stands still for longer than for this call: the key is held, and the hold may be ended.
            self.is_held = True

    def exchange(self, grant: Grant) -> None:
        """Take another slot in place of a prefetched one that was missed, also in the reservation."""
        reservation = self._reservation
        if not grant.accepted:
            # Another call has taken what was left of a quota.
            raise refusal(type(reservation)(self._core, self.key, grant), None)
        self.exchanges += 1
        if (grant.generation < 0) is not (self.grant.generation < 0):
            self._ahead_us = 0 if grant.generation < 0 else self._core.status.store_clock.lead_us
        self._promised_ahead_us = self._ahead_us
        self._take(grant, grant.queue or self._core.queue)
        self.is_held = self.is_marked = grant.held
        self.due_us = self._slot_us = grant.departs_at_us + self._ahead_us
        wait_us = self.due_us - self.asked_us
        if self._max_wait_us is not None:
            # A call that has waited for its slot is not refused for the time that it was late.
            self._max_wait_us = max(self._max_wait_us, wait_us)
        reservation.granted = grant._replace(wait_us=wait_us)

    @property
    def has_new_slot(self) -> bool:
        """Whether a late call has got another slot; if many calls are late, it may have to ask once more."""
        return self.moves > 0 and self.due_us == self._slot_us

    @property
    def place(self) -> tuple[int, ...]:
        """When the call leaves or asks again, with the values that this follows from."""
        slot = self.due_us, self._slot_us, self.moves, self.stands_until_us
        return *slot, self._queued_us, self._leaves_by()

    def take_place(self, place: tuple[int, ...]) -> None:
        """Take over the `place` of a call for which `is_like` is true."""
        self.due_us, self._slot_us, self.moves, self.stands_until_us = place[:4]
        self._queued_us, self._leaves_by_us = place[4:]

    def is_like(self, other: PendingWait) -> bool:
        """Whether each of the two can take the other's place."""
        own, their = self.grant, other.grant
        return (self.key, own.cost, own.generation) == (other.key, their.cost, their.generation)

    def waited_us(self, asked_us: int | None = None) -> tuple[int, int]:
        """How long ago the call asked, and how long ago its slot came."""
        now = self._clock.now_us()
        if asked_us is None:
            asked_us = self.asked_us
        return max(0, now - asked_us), max(0, now - self.due_us)

    def hear(self, key_state: KeyState, now_us: int) -> None:
        """Apply the current state of the key. After a reset, the promised slot is kept, and holds no longer
        move it. A late call that has got another slot keeps it unless a hold lasts longer.
        """
        generation, shift_us, until_us, ahead_us, clock, mark_us, *_ = key_state
        own, before_us = self.grant.generation, self._ahead_us
        if min(generation, own) >= 0:
            self._ahead_us = ahead_us  # else this is a fallback's answer or slot, on another clock
        self.is_marked = mark_us + ahead_us > now_us
        if generation != own:
            moved = followed(self.grant, key_state.changes, self._core.queue.constraints)
            if moved is None or moved.generation != generation or key_state.queue is None or self.moves:
                self.is_held = False
                # However far the store's clock was set back, the slot is the one that was promised.
                back_us = max(0, before_us - self._promised_ahead_us)
                self.due_us, self._slot_us = self.due_us - back_us, self._slot_us - back_us
                self._promised_ahead_us = self._ahead_us
                return
            self._take(moved, key_state.queue)
        # The store's clock may be set right again, so the call watches the key as in a hold.
        is_set_back = ahead_us - self._promised_ahead_us > SOON_US
        # A hold that ends soon cannot be ended sooner, and need not be watched.
        self.is_held = until_us + ahead_us > now_us + SOON_US or bool(clock) or is_set_back
        if self.moves:
            is_over = not self.stands_until_us or until_us <= self.stands_until_us
            self.is_held = self.is_held and not is_over
            self.due_us = self._slot_us if is_over else max(self._slot_us, until_us + ahead_us)
        else:
            slot_us = self._queued_us + shift_us
            if clock:
                shown_us, share = clock
                slot_us = until_us - (shown_us - self._queued_us) * FULL // share
            self._slot_us = slot_us + ahead_us
            self.due_us = max(slot_us, until_us) + ahead_us
        wait_us = self.due_us - self.asked_us
        if self._max_wait_us is None or wait_us <= self._max_wait_us or self.due_us <= now_us:
            return
        # Other calls that leave late move the line a little: a call that has waited is not refused for that.
        is_little = wait_us - self._max_wait_us <= min(self._max_wait_us, SECOND_US)
        is_held = until_us + ahead_us > now_us + SOON_US
        if is_held or not is_little:
            raise self._refusal(self._max_wait_us, held=is_held)

    def _refusal(self, max_wait_us: int, *, held: bool) -> RateLimitedError:
        wait_us = self.due_us - self.asked_us
        decision = Decision(False, 1, 1, 0, self.due_us, wait_us - max_wait_us)
        delay, bound = wait_us / SECOND_US, max_wait_us / SECOND_US
        error = QueueFullError(decision, self.key, delay, bound, self._core.name, held)
        return self._core.accounts.named(error)


def refusal(reservation: Reservation, max_wait_us: int | None) -> RateLimitedError:
    """The error for a slot that was refused."""
    decision, key, policy = reservation.decision, reservation.key, reservation.core.name
    if decision.binding is not None:
        # A queue sets `binding` only when a spent quota has refused the call.
        return QuotaExhaustedError(decision, key, policy)
    delay, bound = reservation.delay, (max_wait_us or 0) / SECOND_US
    error = QueueFullError(decision, key, delay, bound, policy, reservation.grant.held)
    return reservation.core.accounts.named(error)


FRESH_US = 10_000
"""The answer to a question is reused for calls that ask within this time after the question."""


class KeyState(NamedTuple):
    """The state of a key."""

    generation: int
    """The generation of the key, new after each reset; UNKNOWN if the key is not in use."""
    shift_us: int
    """How far all departures are shifted from the queue's own time."""
    until_us: int
    """Until when the key is held, on the store's clock."""
    ahead_us: int
    """How far the clock that callers sleep by is ahead of the store's."""
    clock: tuple[int, ...] = ()
    """For an adaptive rate: what the queue's clock showed at `until_us`, and the share of the full rate it
    runs at.
    """
    mark_us: int = 0
    """Until when a part of the key is held, on the store's clock."""

    changes: Moves = ()
    """How operators' changes of the limits have moved waiting calls."""
    queue: LeakyQueue | None = None
    """The queue whose numbers are in force, if operators have ever set any."""

    def is_like(self, other: KeyState) -> bool:
        """Whether both states mean the same for the calls that wait at the key."""
        is_set = abs(self.ahead_us - other.ahead_us) > SOON_US  # the store's clock
        return (self[:3], self.clock) == (other[:3], other.clock) and not is_set


class _Question:
    """A question to the store, and the alarms of the calls that wait for its answer."""

    __slots__ = ("_alarms", "answer", "asked_us", "error", "is_open", "queue")

    def __init__(self, queue: LeakyQueue, asked_us: int) -> None:
        self.queue = queue
        self.asked_us = asked_us
        self.is_open = True
        self.answer: KeyState | None = None
        self.error: Exception | None = None
        self._alarms: list[Alarm] = []

    def serves(self, now_us: int) -> bool:
        """Whether a call that asks now may use the answer to this question."""
        return 0 <= now_us - self.asked_us <= FRESH_US and (self.is_open or self.answer is not None)

    async def wait(self, driver: Driver) -> None:
        """Wait for the answer, but not longer than STUCK_S."""
        alarm = driver.alarm()
        self._alarms.append(alarm)
        if self.is_open:
            await driver.wait(alarm, STUCK_S)

    def close(self) -> bool:
        """Wake all calls that wait for the answer; returns whether there are any."""
        self.is_open = False
        alarms, self._alarms = self._alarms, []
        for alarm in alarms:
            alarm.set()
        return bool(alarms)

    def key_state(self) -> KeyState | None:
        """The answer; None if the call that asked has gone without one."""
        if self.error is not None:
            raise own_copy(self.error)
        return self.answer


class _Questions:
    """The questions that this process has asked a store under one name, by key; old ones are dropped."""

    def __init__(self, settings: Settings, clock: Clock, *, hears_all: bool) -> None:
        self._clock = clock
        self.limits = Limits(settings, clock, hears_all=hears_all)
        """Shared by all calls that wait under the name."""
        self.begin()
        settings.listen(self.overrides_changed)
        _QUESTIONS.add(self)

    def begin(self) -> None:
        """Start empty: at first, and in a forked child, because the answers go to its parent."""
        self._lock = process.lock()
        self._by_key: dict[str, _Question] = {}
        self._watches: WeakValueDictionary[str, Watch] = WeakValueDictionary()
        self._swept_us = 0
        self.limits.begin()

    def shared(self, key: str, queue: LeakyQueue) -> tuple[_Question, bool]:
        """A question whose answer can be shared; or a new one and True, for the caller to ask."""
        now_us = self._clock.now_us()
        with self._lock:
            question = self._by_key.get(key)
            # A queue of other numbers reads the same state but gives its generation another number.
            if question is not None and question.serves(now_us) and question.queue == queue:
                return question, False
            return self._put(key, queue, now_us), True

    def anew(self, key: str, queue: LeakyQueue) -> _Question:
        """A new question, whatever was asked before."""
        with self._lock:
            return self._put(key, queue, self._clock.now_us())

    def overrides_changed(self, *_: object) -> None:
        """Forget the answers from before the limits were changed, and wake all calls that wait.

        Takes no lock: a store may call this while it holds its own.
        """
        self._by_key.clear()
        for watch in list(self._watches.values()):
            watch.forget(watch.changed_us, is_news=True)
        self.limits.ring()

    def forget(self, key: str, *, is_news: bool) -> None:
        """Forget what is known about a key that this process has changed; if `is_news`, wake the calls that
        wait there.

        Takes no lock, as `_Question.close` does not.
        """
        self._by_key.pop(key, None)
        if (watch := self._watches.get(key)) is not None:
            watch.forget(self._clock.now_us(), is_news=is_news)

    def under_way(self, key: str) -> _Question | None:
        """The latest question about a key, if calls wait for its answer."""
        question = self._by_key.get(key)
        return question if question is not None and question.is_open else None

    def drop(self, key: str, question: _Question) -> None:
        """Drop a question that failed. Takes no lock either."""
        if self._by_key.get(key) is question:
            self._by_key.pop(key, None)

    def watch(self, key: str) -> Watch:
        """The watch that all calls waiting at the key share; it lives as long as one of them waits."""
        with self._lock:
            watch = self._watches.get(key)
            if watch is None:
                watch = self._watches[key] = Watch(self._clock.now_us())
            return watch

    def hear(self, key: str, question: _Question) -> None:
        """Pass the answer to a question on to the calls that wait at the key."""
        # The answer to a forgotten question may be from before the change.
        if question.answer is not None and self._by_key.get(key) is question:
            watch = self._watches.get(key)
            if watch is not None:
                watch.hear(question.queue, question.answer, question.asked_us)

    def _put(self, key: str, queue: LeakyQueue, now_us: int) -> _Question:
        if not 0 <= now_us - self._swept_us <= FRESH_US:
            for other, question in self._by_key.copy().items():
                if not question.serves(now_us):
                    self._by_key.pop(other, None)
            self._swept_us = now_us
        question = self._by_key[key] = _Question(queue, now_us)
        return question


_QUESTIONS = process.begin_anew(_Questions.begin)


class KeyStatus:
    """Asks the store for the states of keys; shapers of the same name in one process share the answers."""

    def __init__(self, store: Store, name: str, queue: LeakyQueue) -> None:
        self.instant = store.instant
        self.hears_all = store.instant and not store.shared
        """Whether only this process can change a key, so that polling finds nothing."""
        self._clock = store.clock
        self._confirm = store.twin(name, queue, CONFIRM)
        self._follow = store.twin(name, queue, FOLLOW)
        self._bind_local = partial(store.twin, name, queue, CONFIRM_LOCAL)
        self._confirm_local: Twin[Any] | None = None  # bound if it is needed
        self._queue = queue
        self._settings = store.settings(name)
        self.store_clock = companion(store, "clock", partial(StoreClock, decides=store.clock_decides))
        make = partial(_Questions, self._settings, store.clock, hears_all=self.hears_all)
        self._questions = companion(store, f"questions of {name}", make)
        self.limits = self._questions.limits
        self.prefetch: Prefetch | None = None
        """The prefetched slots; None if each slot comes from the store when its call asks."""

    async def ask(self, driver: Driver, key: str) -> KeyState:
        """The state of a key, at most 10 ms old."""
        return (await self._afresh(driver, key))[1]

    async def heard(self, driver: Driver, key: str, *, is_shared: bool = True) -> tuple[int, KeyState]:
        """The time at the answer, and the state as from `ask`; unless `is_shared`, by a separate question."""
        if self.instant:
            if self._settings.known.stored.version:
                return self._followed(self._follow.call(key))
            return self._standing(self._confirm.call(key))
        if not is_shared:
            return await self._answered(driver, key, self._clock.now_us())
        while True:
            question, is_mine = self._questions.shared(key, self._queue)
            if is_mine:
                break
            if question.is_open:
                await question.wait(driver)
                if question.is_open:
                    question = self._questions.anew(key, self._queue)
                    break
            if (key_state := question.key_state()) is not None:
                return self._clock.now_us(), key_state
        try:
            now_us, question.answer = await self._answered(driver, key, question.asked_us)
        except BaseException as error:
            await driver.given_back(error, partial(self._failed, key, question, error), question.close)
            raise
        # Waking hundreds of calls takes time: read the clock again.
        is_later = question.close()
        self._questions.hear(key, question)
        return self._clock.now_us() if is_later else now_us, question.answer

    async def _answered(self, driver: Driver, key: str, asked_us: int) -> tuple[int, KeyState]:
        """When the store has answered, and its answer. Once operators have set limits, FOLLOW also stores
        what they have made of the key: else each look would date the change anew.
        """
        driver.may_be_thrown()
        if not self._settings.known.stored.version:
            confirmed = await driver.ask(self._confirm, key)
            if not self._settings.known.stored.version:
                return self._standing(confirmed, asked_us)
        return self._followed(await driver.ask(self._follow, key), asked_us)

    async def leaving(self, driver: Driver, key: str) -> tuple[int, KeyState]:
        """`heard`, for a call that is about to leave; with prefetched slots, the state may be a span old."""
        prefetch = self.prefetch
        if prefetch is None or (buffer := prefetch.buffer_of(key)) is None:
            return await self.heard(driver, key)
        doubts = buffer.doubts
        if (question := self._questions.under_way(key)) is not None:
            # Calls with earlier slots wait for its answer.
            await question.wait(driver)
            if question.answer is not None:
                prefetch.hear(key, question.answer, question.asked_us, doubts)
            elif question.is_open:
                self._questions.drop(key, question)
        asked_us = self._clock.now_us()
        if (known := buffer.known(asked_us)) is not None:
            return asked_us, known
        return await self._afresh(driver, key)

    async def _afresh(self, driver: Driver, key: str) -> tuple[int, KeyState]:
        """`heard`. If there are prefetched slots, they learn from the answer, and all calls leave by their
        estimate of the store's clock.
        """
        prefetch = self.prefetch
        if prefetch is None or (buffer := prefetch.buffer_of(key)) is None:
            return await self.heard(driver, key)
        asked_us, doubts = self._clock.now_us(), buffer.doubts
        heard_us, key_state = await self.heard(driver, key)
        prefetch.hear(key, key_state, asked_us, doubts)
        if (known := buffer.known(heard_us)) is not None:
            key_state = key_state._replace(ahead_us=known.ahead_us)
        return heard_us, key_state

    async def locally(self, driver: Driver, key: str) -> tuple[int, KeyState]:
        """`leaving`, for a slot of the fallback, which moves its slots also after the return of the store."""
        if self._confirm_local is None:
            self._confirm_local = self._bind_local()
        return self._standing(await driver.ask(self._confirm_local, key))

    async def of_slot(
        self, driver: Driver, reservation: Reservation, *, is_shared: bool = True
    ) -> tuple[int, KeyState, PendingWait]:
        """The time, the state of a slot's key on the side that granted it, and the slot as it has moved."""
        key, generation = reservation.key, reservation.granted[GENERATION]
        if generation < NOWHERE:
            now_us, key_state = await self.locally(driver, key)
        else:
            now_us, key_state = await self.heard(driver, key, is_shared=is_shared)
        # A fallback of a store that is gone uses the callers' clock, and its answers do not show the lead.
        if generation < 0:
            key_state = key_state._replace(ahead_us=0)
        elif key_state.generation < 0:
            key_state = key_state._replace(ahead_us=self.store_clock.lead_us)
        pending = PendingWait(reservation, key_state.ahead_us, None, None)
        pending.hear(key_state, now_us)
        return now_us, key_state, pending

    def watch(self, key: str) -> Watch:
        """The watch of a key at which calls wait."""
        return self._questions.watch(key)

    async def looking(self, driver: Driver, key: str, than_us: int) -> tuple[int, KeyState]:
        """When the state of a key was asked for, and the state: an answer since `than_us` is reused."""
        asked_us = self._clock.now_us()
        if self.prefetch is not None:
            return asked_us, (await self.leaving(driver, key))[1]
        known = self.watch(key).since(self._queue, than_us)
        return known or (asked_us, await self.ask(driver, key))

    def changing(self, change: Twin[Any], *, is_news: bool = True) -> Twin[Any]:
        """Wrap an operation that changes a key, so that what is known of the key is forgotten. Waiting calls
        are woken, unless the change can only make them wait longer (`is_news=False`).
        """

        async def changed(driver: Driver, key: str, *args: Any) -> Any:
            try:
                return await driver.ask(change, key, *args)
            finally:
                self._questions.forget(key, is_news=is_news)
                self._doubt(key)

        return Twin(lambda key, *args: run(changed, key, *args), partial(changed, TASKS))

    async def _failed(self, key: str, question: _Question, error: BaseException) -> None:
        if isinstance(error, Exception):
            question.error = own_copy(error)
            # The traceback of its error refers to the store and would keep it alive.
            self._questions.drop(key, question)
            self._doubt(key)
        question.close()

    def _doubt(self, key: str) -> None:
        """What this process knows of a key by itself is not sure any more."""
        if self.prefetch is not None and (buffer := self.prefetch.buffer_of(key)) is not None:
            buffer.doubt()

    def _standing(self, confirmed: tuple[int, ...], asked_us: int = 0) -> tuple[int, KeyState]:
        generation, shift, until, there, mark, *clock = confirmed
        now_us = self._clock.now_us()
        # An answer without a generation may be a fallback's, by the callers' clock and without a trip.
        is_from_store = generation >= 0 and not self.instant
        ahead = self.store_clock.hear(asked_us, there, now_us) if is_from_store else 0
        return now_us, KeyState(generation, shift, until, ahead, tuple(clock), mark)

    def _followed(self, answer: tuple[Any, ...], asked_us: int = 0) -> tuple[int, KeyState]:
        *confirmed, changes, queue = answer
        now_us, key_state = self._standing(tuple(confirmed), asked_us)
        return now_us, key_state._replace(changes=changes, queue=queue)
