"""Waiter: takes a call from its reserved slot to its departure.

A waiting call sleeps until its slot, asks the store whether the slot has moved, and leaves or sleeps on.
Where something has kept it until the next slot (a blocked event loop, the collector, a stopped process, a
slow answer), it tells the store, which gives it the next slot and moves the line behind it.

Late calls of a key, as there are many after a stop of the whole process, share a trip and get their new slots
in the order of the old ones. A call that comes while a trip is under way goes with the next, and a call that
is in time lets those go first that were before it. A call that is late again takes the slot of the first call
behind it that has got another one, too, and that one takes the next: so they keep their order.
"""

from __future__ import annotations

from bisect import insort
from contextlib import suppress
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from shapekit._queue.key_status import STUCK_S, KeyPoller, KeyState, KeyStatus
from shapekit._queue.reporter import Reporter
from shapekit._runtime import forks
from shapekit._runtime.drivers import Alarm, Driver, Sleepers, Twin
from shapekit._runtime.switch import SWITCH
from shapekit.algorithms.adaptive.aimd import FULL
from shapekit.algorithms.base import END_US
from shapekit.algorithms.queue.moves import followed
from shapekit.algorithms.queue.queue import LATE, SOON_US, UNKNOWN, Late, LeakyQueue, Moved
from shapekit.algorithms.queue.slots import DEPARTS_AT_US, GENERATION, QUEUE, WAIT_US, Grant, Granted
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

if TYPE_CHECKING:
    from shapekit.shaper import Reservation

MOST_MOVES = 8
"""How often a call gets another slot: where the answers themselves take longer than a slot, it would be for
ever.
"""

FAR = 4
"""How many trips have to fit into the grace, or a store is far away."""
FINEST = 2**26
"""No queue has positions finer than this part of a microsecond."""


class Waiter:
    """The departures of one shaper. A call that does not leave, for whatever reason, gives its slot back."""

    def __init__(
        self,
        name: str,
        queue: LeakyQueue,
        store: Store,
        sleepers: Sleepers,
        status: KeyStatus,
        reporter: Reporter,
    ) -> None:
        self._clock = store.clock
        self._sleepers = sleepers
        self._status = status
        self._reporter = reporter
        # Who has taken slots ahead does not hear of others that are late, nor they of this.
        self._grace_us = queue.grace_us if status.is_direct else END_US
        self._late_calls = LateCalls(status.changing(store.twin(name, queue, LATE), is_news=False))

    async def leave(
        self,
        driver: Driver,
        reservation: Reservation,
        max_wait_us: int | None,
        timeout_us: int | None,
        *,
        is_slow: bool = False,
    ) -> None:
        """Sleep until the slot comes, or raise the error of a refusal. If the answer was slow to come, a slot
        for now may have passed.
        """
        if not reservation:
            error = refusal(reservation, max_wait_us)
            self._reporter.stopped(reservation.key, error)
            raise error
        if reservation.leaves_now and not is_slow and self.is_prompt(reservation.granted):
            self._reporter.departed(reservation.key, reservation.cost)
            return
        try:
            pending = await self.stay(driver, reservation, max_wait_us, timeout_us, is_slow=is_slow)
        except BaseException as error:
            await driver.given_back(error, partial(self.give_up, driver, reservation, error))
            raise
        if SWITCH.loud:
            self._reporter.departed(reservation.key, reservation.cost, *pending.waited_us())

    def is_prompt(self, granted: Granted, asked_us: int | None = None) -> bool:
        """Whether a call that leaves at once may follow its answer, because that was not long on its way."""
        if self._status.instant or granted[GENERATION] < 0 or self._grace_us == END_US:
            return True
        there_us, now_us = granted[DEPARTS_AT_US] - granted[WAIT_US], self._clock.now_us()
        grace_us = self._grace_of(granted[QUEUE])
        if asked_us is not None and now_us - asked_us <= grace_us:
            self._status.hear(asked_us, there_us)
            return True
        ahead_us = self._status.ahead_us(there_us)
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
        """Sleep until the slot comes. If the sleep ends early, the error is raised and the slot is kept."""
        grant = reservation.grant
        there_us = grant.departs_at_us - grant.wait_us
        ahead_us = self._status.ahead_us(there_us)
        if ahead_us is None:
            ahead_us = self._clock.now_us() - there_us
        pending = PendingWait(self._clock, reservation, ahead_us, max_wait_us, timeout_us)
        if grant.wait_us:
            is_bounded = max_wait_us is not None or timeout_us is not None
            self._reporter.waits(reservation.key, grant.wait_us, is_bounded=is_bounded)
        elif not is_slow and self.is_prompt(reservation.granted):
            return pending
        try:
            return await self._outlast(driver, pending)
        finally:
            self._late_calls.forget(pending)
            self._status.limits.hand_over(pending.asked_us)

    async def _outlast(self, driver: Driver, pending: PendingWait) -> PendingWait:
        # Answers may reach several tasks at once, and trio then resumes them in any order.
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
                    if not pending.is_held:
                        polls_at_us = limits.until_us(alarm, now_us, pending.due_us)
                    until_us = min(
                        pending.sleeps_until_us(asks_at_us), poller.until_us(pending.due_us), polls_at_us
                    )
                    # News, such as the end of a hold, wakes those who wait in any order.
                    is_apart |= await driver.sleep(
                        self._sleepers, until_us, pending.order, others_too=True, news=alarm
                    )
                finally:
                    poller.end_wait(alarm)
            now_us = self._clock.now_us()
            if asks_at_us <= now_us:
                if not pending.moves or pending.stands_until_us:
                    pending.heard_after = self._late_calls.trips
                    pending.hear(await self._status.leaving(driver, pending.key))
                due_us, turn_us = pending.due_us, pending.asks_at_us(self._allowed_us(pending))
                # One that has moved stood in line by its old slot.
                if (is_apart or turn_us != asks_at_us) and turn_us <= self._clock.now_us():
                    await driver.let_earlier_go(self._sleepers, turn_us, pending.order)
                if pending.due_us == due_us and await self._may_leave(driver, pending.key, pending):
                    return pending
            elif poller is not None and (polls_at_us <= now_us or poller.is_time(now_us)):
                told = await poller.look(driver)
                for key_state in told or (await self._status.ask(driver, pending.key),):
                    pending.hear(key_state)

    def _allowed_us(self, pending: PendingWait) -> int:
        """How late a call may be. A slot that comes sooner than two trips is missed by as much, and that is
        no stall; from a store that is far away, no new slot would come in time.
        """
        trip_us, grace_us = self._status.trip_us, self._grace_of(pending.queue)
        return grace_us + 2 * trip_us if trip_us * FAR <= grace_us else END_US

    def _grace_of(self, queue: LeakyQueue | None) -> int:
        """How late a call may leave, by the numbers that are in force."""
        return self._grace_us if queue is None or self._grace_us == END_US else queue.grace_us

    async def _may_leave(self, driver: Driver, key: str, pending: PendingWait) -> bool:
        """Whether the slot of a call has come, and may be used. A call that is late asks for another one."""
        if self._missed(pending):
            await self._move(driver, key, pending)
            return False
        if not pending.is_over():
            return False
        if pending.moves:
            return self._late_calls.leaves(pending)
        late_calls = self._late_calls
        is_behind = await late_calls.let_go(driver, key, pending.order)
        return not is_behind and pending.heard_after == late_calls.trips

    def _missed(self, pending: PendingWait) -> bool:
        """Whether a call is late, and may ask for another slot."""
        is_late = pending.is_late(self._allowed_us(pending))
        return is_late and pending.moves < MOST_MOVES and pending.is_over(SOON_US)

    async def _move(self, driver: Driver, key: str, pending: PendingWait) -> None:
        """Get another slot for a call that is late; where that has passed, too, the next one, before calls
        behind it ask.
        """
        while True:
            late = pending.late_call()
            pending.move(*await self._late_calls.ask(driver, key, pending.order, late))
            self._late_calls.moved(pending, self._allowed_us(pending))
            if not pending.has_new_slot or not self._missed(pending):
                return

    async def give_up(self, driver: Driver, reservation: Reservation, error: BaseException) -> None:
        """Give back the slot of a call that will not leave, and report it."""
        is_returned = False
        # If the store is gone too, the caller still gets the original error.
        with suppress(StoreUnavailableError):
            is_returned = await reservation.core.give_back(driver, reservation)
        self._reporter.ended(reservation.key, reservation.cost, error, had_slot=True, returned=is_returned)


class PendingWait:
    """The wait of one call: the promised slot, how it has moved since, and when to give up.

    All instants are on the clock that the caller sleeps by.
    """

    __slots__ = (
        *("asked_us", "due_us", "heard_after", "is_held", "is_marked", "key", "moves", "order"),
        "stands_until_us",
        *("_ahead_us", "_clock", "_generation", "_gives_up_us", "_leaves_by_us", "_max_wait_us", "cost"),
        *("_accounts", "_grant", "_policy", "_queued_us", "_slot_us", "queue"),
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
        self._accounts = reservation.core.accounts
        self._policy = reservation.core.name
        self._ahead_us = ahead_us
        self.cost = grant.cost
        self.queue: LeakyQueue | None = grant.queue
        """The queue that an operator has set the numbers of, if it is one."""
        self._take(grant, reservation.queue)
        self.heard_after = 0
        """How many trips for late calls had been made when the key was last asked about."""
        self.moves = 0
        """How often the call came too late to its slot and got another one, which nothing else moves."""
        self.stands_until_us = 0
        """Until when, on the store's clock, time stands still for its new slot; what lasts longer is a hold.
        0 where no slot is so long that a hold would matter, or that is not known.
        """
        self.is_held = self.is_marked = grant.held
        """Whether a part of the key may be held."""
        self.key = reservation.key
        self._max_wait_us = max_wait_us
        self.due_us = self._slot_us = grant.departs_at_us + ahead_us
        self.asked_us = self.due_us - grant.wait_us
        self._gives_up_us = None if timeout_us is None else self.asked_us + timeout_us

    def _take(self, grant: Grant, queue: LeakyQueue) -> None:
        """Go by this grant of a queue."""
        self._grant = grant
        self._generation = grant.generation
        self._queued_us = grant.due_us
        # A slot of a share of the limits is on the grid of that share.
        self._leaves_by_us = queue.leaves_by(grant) if grant.generation >= 0 else grant.due_us
        self.order = grant.start * FINEST // queue.q
        """The place in the line, in an unit that all numbers of the line have in common."""

    def asks_at_us(self, allowed_us: int) -> int:
        """When to ask about the slot: when it comes. A call that is late asks before a hold ends, to stand
        behind others that are.
        """
        return (
            self.due_us - SOON_US if self.due_us > self._slot_us and self.is_late(allowed_us) else self.due_us
        )

    def sleeps_until_us(self, until_us: int) -> int:
        """Until then, or until time is up; TimeoutError if it is."""
        if self._gives_up_us is None or until_us <= (now := self._clock.now_us()):
            return until_us
        if now >= self._gives_up_us:
            raise gave_up(self.key, self._policy, now - self.asked_us)
        return min(until_us, self._gives_up_us)

    def is_over(self, early_us: int = 0) -> bool:
        """Whether the slot has come, or comes so soon, as far as is known."""
        return self.due_us - early_us <= self._clock.now_us()

    def is_late(self, allowed_us: int) -> bool:
        """Whether the slot could last be used longer ago than is allowed, or than time stands still.

        The end of a hold is no slot for a call whose slot had passed before.
        """
        usable_us = self._slot_us + self._leaves_by_us - self._queued_us
        if self.due_us > usable_us and allowed_us != END_US:
            return True
        return self._clock.now_us() - usable_us > allowed_us

    def late_call(self) -> tuple[int, int, int, int]:
        """What the store is told of a call that is late."""
        return self._generation, self._leaves_by_us, self.cost, forks.fresh_id()

    def move(self, leaves_at_us: int, stands_until_us: int) -> None:
        """Apply the answer to that."""
        self.due_us = leaves_at_us + self._ahead_us
        if stands_until_us != UNKNOWN or self.is_over():
            self._slot_us = self.due_us
            self.moves, self.is_held = self.moves + 1, False
            self.stands_until_us = stands_until_us if stands_until_us - leaves_at_us > SOON_US else 0
            # If it is late again, that is known by the clock: the queue's time has stood still for others.
            self._queued_us = self._leaves_by_us = 0
        else:
            # Time stands still longer than for it: a hold, which may be ended.
            self.is_held = True

    @property
    def has_new_slot(self) -> bool:
        """Whether it has got another slot. Where many are late, it may have to ask once more."""
        return self.moves > 0 and self.due_us == self._slot_us

    @property
    def place(self) -> tuple[int, ...]:
        """When the call leaves or asks again, and what that follows from."""
        slot = self.due_us, self._slot_us, self.moves, self.stands_until_us
        return *slot, self._queued_us, self._leaves_by_us

    def take_place(self, place: tuple[int, ...]) -> None:
        """Go by that of another call, which was granted the same."""
        self.due_us, self._slot_us, self.moves, self.stands_until_us = place[:4]
        self._queued_us, self._leaves_by_us = place[4:]

    def is_like(self, other: PendingWait) -> bool:
        """Whether each of the two can take the other's place."""
        return (self.key, self.cost, self._generation) == (other.key, other.cost, other._generation)

    def waited_us(self, asked_us: int | None = None) -> tuple[int, int]:
        """How long ago the call asked, and how long ago its slot came."""
        now = self._clock.now_us()
        if asked_us is None:
            asked_us = self.asked_us
        return max(0, now - asked_us), max(0, now - self.due_us)

    def hear(self, key_state: KeyState) -> None:
        """Apply the current state of the key. After a reset, the promised slot is kept and holds no longer
        move it. A late call that has got another slot keeps it, unless a hold lasts longer.
        """
        generation, shift_us, until_us, ahead_us, clock, mark_us, *_ = key_state
        self._ahead_us = ahead_us
        now = self._clock.now_us()
        self.is_marked = mark_us + ahead_us > now
        if generation != self._generation:
            moved = followed(self._grant, key_state.changes)
            if moved is None or moved.generation != generation or key_state.queue is None or self.moves:
                self.is_held = False
                return
            self.queue = key_state.queue
            self._take(moved, key_state.queue)
        # A hold that ends soon cannot be ended sooner, and need not be watched.
        self.is_held = until_us + ahead_us > now + SOON_US or bool(clock)
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
        if self._max_wait_us is None or wait_us <= self._max_wait_us or self.due_us <= now:
            return
        # Late calls of others move the line a little: no call is refused for that after it has waited.
        is_little = wait_us - self._max_wait_us <= min(self._max_wait_us, SECOND_US)
        if not is_little or until_us + ahead_us > now + SOON_US:
            held_back = Decision(False, 1, 1, 0, self.due_us, wait_us - self._max_wait_us)
            delay, bound = wait_us / SECOND_US, self._max_wait_us / SECOND_US
            raise self._accounts.named(QueueFullError(held_back, self.key, delay, bound, self._policy))


_numbers = count()


class _LateCall:
    """A call, from when it asks until it has an answer."""

    __slots__ = (
        *("_number", "alarm", "answer", "call", "is_gone", "is_local", "is_on_trip", "order", "together"),
    )

    def __init__(self, order: int, call: Late, alarm: Alarm) -> None:
        self.order = order
        self._number = next(_numbers)
        self.call = call
        self.alarm = alarm
        self.answer: Moved | None = None
        self.is_gone = self.is_on_trip = False
        self.is_local = call[0] < 0
        """Whether its slot is one that replaces a lost store's."""
        self.together: list[_LateCall] = []
        """For whom it makes a trip."""

    def __lt__(self, other: _LateCall) -> bool:
        return (self.order, self._number) < (other.order, other._number)


class LateCalls:
    """The calls of one shaper that came too late to their slots and ask for others, by key."""

    def __init__(self, late: Twin[Any]) -> None:
        self._late = late
        self.trips = 0
        """How many were made. What was known of a key before the last one is out of date."""
        self.begin()
        _ALL.add(self)

    def begin(self) -> None:
        """Empty: at first, and in a forked child."""
        self._lock = forks.lock()
        self._waiting: dict[str, list[_LateCall]] = {}
        self._under_way: dict[str, _LateCall] = {}
        self._behind: dict[str, list[Alarm]] = {}
        self._moved: dict[PendingWait, None] = {}

    async def ask(self, driver: Driver, key: str, order: int, call: Late) -> Moved:
        """When the call may leave, and its new slot."""
        own = _LateCall(order, call, driver.alarm())
        try:
            while own.answer is None:
                self._join(key, own)
                if own.together:
                    await self._go(driver, key, own)
                    continue
                traveller = self._under_way.get(key)
                await driver.wait(own.alarm, STUCK_S)
                if not own.alarm.is_set() and traveller is not None:
                    # The loop of the call that made that trip was stopped.
                    self._ended(key, traveller)
                own.alarm = driver.alarm()
        except BaseException:
            own.is_gone = True
            self._ended(key, own)
            raise
        return own.answer

    async def let_go(self, driver: Driver, key: str, order: int) -> bool:
        """Wait until a trip is over, if calls that make one were before; whether there were any."""
        if key not in self._under_way and key not in self._waiting:
            return False
        alarm = driver.alarm()
        with self._lock:
            traveller = self._under_way.get(key)
            late = (*(traveller.together if traveller else ()), *self._waiting.get(key, ()))
            if not any(one.order < order and not one.is_gone for one in late):
                return False
            self._behind.setdefault(key, []).append(alarm)
        await driver.wait(alarm, STUCK_S)
        return True

    def moved(self, call: PendingWait, allowed_us: int) -> None:
        """A call has got another slot, or has to ask again for one: calls behind it that still have earlier
        ones move on by one.
        """
        with self._lock:
            behind = [
                other
                for other in list(self._moved)
                if other.is_like(call)
                and other.order > call.order
                and other.due_us < call.due_us
                and other.has_new_slot
                and not other.is_late(allowed_us)
            ]
            self._moved[call] = None
            together = sorted([call, *behind], key=attrgetter("order"))
            for one, place in zip(together, sorted(one.place for one in together), strict=True):
                one.take_place(place)

    def leaves(self, call: PendingWait) -> bool:
        """Whether a call may leave that has got another slot: not if it has just moved on."""
        with self._lock:
            if not call.is_over():
                return False
            self.forget(call)
        return True

    def forget(self, call: PendingWait) -> None:
        """The call does not wait any more. Takes no lock, as `_ended` does not."""
        self._moved.pop(call, None)

    async def _go(self, driver: Driver, key: str, own: _LateCall) -> None:
        together = own.together
        answers = await driver.ask(self._late, key, tuple([one.call for one in together]))
        # A store that is gone answers nothing: then they leave.
        for one, answer in zip(together, answers or [(0, UNKNOWN)] * len(together), strict=True):
            one.answer = answer
        self.trips += 1
        self._ended(key, own)

    def _join(self, key: str, own: _LateCall) -> None:
        """Wait for the next trip; or make it, with all who wait, where none is under way."""
        with self._lock:
            if own.is_on_trip:
                return
            waiting = self._waiting.setdefault(key, [])
            if own not in waiting:
                insort(waiting, own)
            if key not in self._under_way:
                self._under_way[key] = own
                side = waiting[0].is_local
                own.together = [one for one in waiting if one.is_local is side and not one.is_gone]
                for one in own.together:
                    one.is_on_trip = True
                del self._waiting[key]
                if apart := [one for one in waiting if one.is_local is not side]:
                    self._waiting[key] = apart

    def _ended(self, key: str, traveller: _LateCall) -> None:
        """Wake all after a trip: those that wait begin the next one.

        Takes no lock, because a coroutine that is thrown away may get here.
        """
        if self._under_way.get(key) is traveller:
            self._under_way.pop(key, None)
        together, traveller.together = traveller.together, []
        for one in (*together, *self._waiting.get(key, ())):
            one.is_on_trip = False
            one.alarm.set()
        for alarm in self._behind.pop(key, ()):
            alarm.set()


_ALL = forks.begin_anew(LateCalls.begin)


def refusal(reservation: Reservation, max_wait_us: int | None) -> RateLimitedError:
    """The error for a slot that was refused."""
    decision, key, policy = reservation.decision, reservation.key, reservation.core.name
    if decision.binding is not None:
        # A queue sets `binding` only when a spent budget has refused the call.
        return QuotaExhaustedError(decision, key, policy)
    error = QueueFullError(decision, key, reservation.delay, (max_wait_us or 0) / SECOND_US, policy)
    return reservation.core.accounts.named(error)
