"""Prefetch: slots that a process reserves ahead of its calls, so that few calls wait for a trip to the store.

Each key in use has a buffer of the slots that the process owns but no call has asked for yet. A call takes a
slot from the buffer; if it is empty, the call waits, and the next trip serves all calls that wait for the
key. Each key has a thread (its fetcher) that makes the trips. So a call that gives up does not abort a trip,
and a buffer is refilled and given back even while there are no calls.

The buffer only decides: it reads no clock and asks no store. Its fetcher asks it what to do `next`, does
that, and passes the result back.

Instants are on the clock that callers sleep by, unless stated otherwise. Slots are on the queue's own time;
each answer of the store shows how far apart the two are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from shapekit._queue.waiter import KeyState
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Driver, ThreadAlarm, Twin, own_copy, run
from shapekit.algorithms.queue.queue import LEAST_GRACE_US, LeakyQueue
from shapekit.algorithms.queue.slots import Grant, Request, followed
from shapekit.algorithms.queue.wire import CANCEL_MANY, CONFIRM, FOLLOW, RESERVE, RESERVE_MANY, UNKNOWN
from shapekit.clock import StoreClock
from shapekit.errors import CostExceedsLimitError, StoreUnavailableError
from shapekit.rate import SECOND_US, Duration, duration_us
from shapekit.stores.base import Store

MOST = 256
"""The most slots per trip: a longer script would make all other clients of the store wait."""
_FIRST = 8
"""How many further slots the first busy trip asks for."""
_GROWTH = 4
_STEPS = 10
"""Each busy process gets this part of a span's slots in addition to what its calls need."""
_WORTH = 8
"""How many slots have to be used for each one wasted."""
_FEW, _ENOUGH = 4, 32
"""How many slots it takes to judge: more for larger trips, because a machine stalls now and then."""
_MOST_STRIKES = 5
"""A buffer that keeps wasting slots does not grow for 2, 4, 8 … spans: at most 2 to this power."""
_RETRY_US = SECOND_US
"""How long to wait at least, after a trip that failed, before slots are given back once more."""
_PATIENCE = 4
"""Unused slots are given back after this part of a span without a call."""
_DRIFT = 1_000
"""Two clocks drift apart by less than 1 µs in this many µs."""
_HASTE = 100
"""After late answers, the estimated offset of the clocks falls by at most 1 µs in this many µs."""


class Refill(NamedTuple):
    """Fetch a slot for each waiting call, and up to `further` more within `span_us` of the queue's time."""

    further: int
    span_us: int


class GiveBack(NamedTuple):
    """Give back these slots, which are in order and of one generation."""

    grants: tuple[Grant, ...]


class Wait(NamedTuple):
    """Do nothing before this instant, unless a call comes."""

    until_us: int


class Ask(NamedTuple):
    """Ask the store for the state of the key."""


class Rest(NamedTuple):
    """Nothing is owned and no call waits: the fetcher can end."""


Next: TypeAlias = Refill | GiveBack | Wait | Ask | Rest


class SlotBuffer:
    """The slots that one process owns at one key."""

    def __init__(self, prefetch_us: int, queue: LeakyQueue, *, clock_decides: bool) -> None:
        self._prefetch_us = prefetch_us
        self._step = 1 + min(queue.slots(prefetch_us), MOST) // _STEPS
        self._queue = queue
        self._clock_decides = clock_decides
        self._slots: deque[Grant] = deque()
        self._returning: list[Grant] = []
        self._returns_first = False
        self._returns_at_us = 0
        """When slots may be given back again, after a trip that failed."""
        self._kept_since_us = 0
        """Since when there have been slots to give back."""
        self._standing = KeyState(UNKNOWN, 0, 0, 0)
        """The state of the key, by the store's last answer."""
        self.doubts = object()
        """A new object after each change by this process: shows whether a question was asked before it."""
        self._sure_by: object = None
        self._heard_us = 0
        self._ahead_us = 0
        self._since_us = 0
        self._least_ahead_us = 0
        self._trip_us = 0
        self._comers: deque[int] = deque(maxlen=MOST)
        self._busy_since_us = 0
        self._came_us = 0
        self._answered_us = -prefetch_us
        self._last_us = 0
        self._last_taken_us = 0
        self._most = _FIRST
        self._used = 0
        self._wasted = 0
        self._strikes = 0
        self._rests_until_us = 0
        self._is_crowded = False
        self._may_refill = False

    def __len__(self) -> int:
        """The number of slots that no call has asked for yet."""
        return len(self._slots)

    # callers

    def come(self, now_us: int) -> None:
        """Count a call that asks for a slot."""
        self._forget_comers(now_us)
        if not self._comers:
            self._busy_since_us = now_us
        self._comers.append(now_us)
        self._came_us = now_us

    def take(self, now_us: int, cost: int, bound_us: int | None) -> Grant | None:
        """The earliest slot that has not passed, if it suits the call; None if the store has to be asked."""
        if cost != 1 or not self._is_sure:
            return None
        self._pass_by(now_us)
        if not self._slots:
            return None
        granted = self._handed(self._slots[0], now_us)
        if not granted.wait_us and now_us - self._heard_us > self._prefetch_us:
            # Only a call that waits asks, before it leaves, whether the key is held: so this one waits.
            granted = granted._replace(wait_us=1)
        if bound_us is not None and granted.wait_us > bound_us:
            return None
        self._slots.popleft()
        self._used += 1
        self._last_taken_us = max(self._last_taken_us, granted.due_us)
        return granted

    def put_back(self, granted: Grant) -> None:
        """Return a slot whose caller has gone: to the buffer, or else to the store."""
        if granted.cost == 1 and granted.generation == self._standing.generation:
            self._slots = deque(sorted([*self._slots, granted], key=_due_us))
        else:
            self._returning.append(granted)

    def pass_by(self, granted: Grant) -> None:
        """Note that a slot has passed unused: if a further limit counts it, it is given back."""
        own, other = self._queue, granted.queue
        if own.constraints.algorithms or (other is not None and other.constraints.algorithms):
            self._returning.append(granted)

    def miss(self, granted: Grant) -> None:
        """Note that a call has missed its slot, which is given back before the call gets another one."""
        self.pass_by(granted)
        self._returns_first = bool(self._returning)

    # the store's answers

    def hear(self, key_state: KeyState, asked_us: int, now_us: int, doubts: object) -> None:
        """Apply an answer: the state of the key, and the trip's times.

        If the question was asked before the latest of the `doubts`, or before the one that was answered last,
        only the clock offset is applied.
        """
        trip_us = max(0, now_us - asked_us)
        self._trip_us = max(trip_us, self._trip_us * 7 // 8)
        if not self._clock_decides:
            self._set_clock(key_state.ahead_us, trip_us, now_us)
        if doubts is not self.doubts or (asked_us < self._heard_us <= now_us and self._is_sure):
            return
        if key_state.generation != self._standing.generation:
            # The key was reset or its limits changed: slots of an old generation cannot be used.
            self._returning += self._slots
            self._slots.clear()
            self._last_us = self._last_taken_us = 0
        self._standing = key_state
        self._sure_by = doubts
        self._may_refill = True
        self._heard_us = asked_us

    def _set_clock(self, ahead_us: int, trip_us: int, now_us: int) -> None:
        """Estimate the offset between the clocks, from an answer that took a part of the trip to arrive.

        The quickest answers are the most exact. But if the offset fell at once, a call that leaves by the old
        offset and the next one, by the new, would be too close together. So while slots are owned, it falls
        slowly.
        """
        passed_us = max(0, now_us - self._heard_us)
        if trip_us > self._prefetch_us and self._heard_us:
            # The process or the network was stalled, and this answer would delay all owned slots by as much.
            # The earlier estimate is better, as far as this answer is consistent with it.
            known_us = self._ahead_at(now_us - ahead_us) + passed_us // _DRIFT
            ahead_us = min(ahead_us, max(known_us, ahead_us - trip_us))
        least_us = max(self._least_ahead_us + passed_us // _DRIFT, ahead_us - trip_us)
        is_new = self._at_us(self._last_us) < now_us
        before_us = self._ahead_at(now_us - ahead_us)
        self._least_ahead_us = ahead_us if is_new else min(ahead_us, least_us)
        kept_us = max(self._least_ahead_us, min(before_us, ahead_us + self._trip_us))
        self._ahead_us = ahead_us if is_new else kept_us
        self._since_us = now_us - ahead_us

    def _ahead_at(self, there_us: int) -> int:
        """How far the clock that callers sleep by is ahead when the store's clock shows `there_us`."""
        passed_us = max(0, there_us - self._since_us)
        return max(self._least_ahead_us, self._ahead_us - passed_us // _HASTE)

    def doubt(self) -> None:
        """Note that this process changed the key: its state is asked for before the next call leaves.

        Takes no lock: the finalizer of a dropped coroutine may call this.
        """
        self.doubts = object()

    def fill(self, grants: Sequence[Grant], further: Sequence[Grant], now_us: int) -> list[Grant]:
        """Store the slots that a trip has fetched; returns the answers for the calls that asked."""
        self._learn(now_us)
        generation = self._standing.generation
        taken = [granted for granted in grants if granted.accepted and granted.generation == generation]
        self._returning += [granted for granted in further if granted.generation != generation]
        further = [granted for granted in further if granted.generation == generation]
        # If a call comes right after an answer, it is the trips that slow the calls down.
        is_hurried = 0 <= self._came_us - self._answered_us < self._trip_us // 2
        self._answered_us = now_us
        is_late = any(granted.wait_us > 0 for granted in (*taken, *further))
        self._is_crowded = len(grants) > 1 or is_hurried or is_late
        # A further slot may be one that another call gave back, before the slots that are owned.
        self._slots = deque(sorted([*self._slots, *further], key=_due_us))
        self._last_taken_us = max([self._last_taken_us, *map(_due_us, taken)])
        self._last_us = max([self._last_us, *map(_due_us, (*taken, *further))])
        if not grants and not further:
            self._may_refill = False
        return [self._handed(granted, now_us) if granted.accepted else granted for granted in grants]

    def failed(self) -> None:
        """A trip failed: no refill until a call needs one."""
        self._may_refill = False

    def keep(self, grants: Sequence[Grant], now_us: int) -> None:
        """Keep slots that could not be given back, until the next attempt."""
        for granted in grants:
            if self._has_passed(granted, now_us):
                self.pass_by(granted)
            else:
                self._returning.append(granted)
        self._returns_at_us = now_us + max(_RETRY_US, self._prefetch_us)

    def known(self, now_us: int) -> KeyState | None:
        """The state of the key, if it is at most one span old."""
        if self._is_sure and 0 <= now_us - self._heard_us <= self._prefetch_us:
            return self._standing._replace(ahead_us=self._ahead_at(now_us - self._ahead_us))
        return None

    # tending

    def next(self, now_us: int, waiting: int) -> Next:
        """What the fetcher does next, while `waiting` calls wait that the buffer cannot serve."""
        if not self._returning:
            self._kept_since_us = now_us
        if self._is_sure:  # else the key may have been held before a slot came
            self._pass_by(now_us)
        may_return = now_us >= self._returns_at_us
        # However busy this process is, limits count no slot that no call uses for longer than a span.
        if self._returns_first or (may_return and now_us - self._kept_since_us >= self._prefetch_us):
            self._kept_since_us = now_us
            return self._give_back(is_over=False)
        if waiting:
            return Ask() if self._slots and not self._is_sure else self._refill(now_us, waiting)
        idle_us = max(self._came_us, self._at_us(self._last_taken_us)) + self._prefetch_us // _PATIENCE
        is_over = now_us >= idle_us
        if may_return and (is_over or len(self._returning) >= MOST or self._has_moved):
            return self._give_back(is_over=is_over)
        if is_over:
            return Wait(self._returns_at_us)
        until_us = idle_us
        if self._returning:
            until_us = min(idle_us, max(self._kept_since_us + self._prefetch_us, self._returns_at_us))
        if self._may_refill and self._most and self._is_crowded:
            ahead_us = self._trip_us * 3 // 2
            low_us = self._at_us(self._last_us) - ahead_us
            # Once the known state is older than a span, each call asks for itself, and slots pass meanwhile.
            # Asking ahead prevents that, unless the answer is too old when it arrives.
            is_worth = self._prefetch_us > 2 * self._trip_us
            old_us = self._heard_us + self._prefetch_us - ahead_us if is_worth else low_us
            if now_us < min(low_us, old_us):
                return Wait(min(low_us, old_us, until_us))
            if now_us < low_us:
                return Ask()
            if (refill := self._refill(now_us, 0)).further:
                return refill
        return Wait(until_us) if self._slots or self._returning else Rest()

    def surrender(self) -> GiveBack | Rest:
        """Give back everything, one generation at a time."""
        return self._give_back(is_over=True)

    # inside

    def _leaves_by(self, grant: Grant) -> int:
        """`leaves_by` of the queue that granted the slot, which may be one with an operator's numbers."""
        queue: LeakyQueue = grant.queue or self._queue
        return queue.leaves_by(grant)

    @property
    def _is_sure(self) -> bool:
        return self._sure_by is self.doubts

    @property
    def _has_moved(self) -> bool:
        """Whether there are slots to give back that new limits have moved: others can use them at once."""
        generation = self._standing.generation
        return generation >= 0 and bool(self._returning) and self._returning[0].generation != generation

    def _refill(self, now_us: int, waiting: int) -> Refill:
        """Fetch slots for the waiting calls and, if calls had to wait, for about as many as a span brings."""
        is_held = self._is_sure and self._standing.until_us + self._ahead_us > now_us
        expected = self._expected(now_us)
        if (not self._is_crowded and waiting < 2) or len(self._comers) < 2 or is_held:
            return Refill(0, 0)
        left_us = self._prefetch_us
        if self._slots:
            left_us -= self._slots[-1].due_us - self._slots[0].due_us
        if left_us <= 0:
            return Refill(0, 0)
        # In proportion alone, the process with most slots would keep most: each also gets an equal part.
        fair = expected * 3 // 4 + self._step
        return Refill(max(0, min(self._most, fair, MOST - waiting)), left_us)

    def _give_back(self, *, is_over: bool) -> GiveBack | Rest:
        if is_over and self._slots:
            self._returning += self._slots
            self._slots.clear()
        if not self._returning:
            return Rest()
        generation = self._returning[0].generation
        own = [granted for granted in self._returning if granted.generation == generation]
        self._returning = [granted for granted in self._returning if granted.generation != generation]
        self._returns_first = False
        return GiveBack(tuple(sorted(own, key=_due_us)))

    def _pass_by(self, now_us: int) -> None:
        """Drop slots that have passed: a call that used one now would be too close to the next."""
        while self._slots and self._has_passed(self._slots[0], now_us):
            self._wasted += 1
            self.pass_by(self._slots.popleft())

    def _has_passed(self, granted: Grant, now_us: int) -> bool:
        """Whether a slot can no longer be used. If it had passed before a hold, it does not come after it."""
        there_us = self._leaves_by(granted) + self._standing.shift_us
        return there_us < self._standing.until_us or there_us + self._ahead_at(there_us) < now_us

    def _learn(self, now_us: int) -> None:
        """Judge by how many slots were used or wasted since the last time whether to fetch more or fewer."""
        seen = self._used + self._wasted
        is_good = self._wasted * _WORTH <= self._used
        if seen >= max(_FEW, min(_ENOUGH, self._most * _FEW)):
            if not is_good:
                self._most = self._most * self._used // seen
                self._rests_until_us = now_us + (self._prefetch_us << self._strikes)
            self._strikes = max(0, self._strikes - 1) if is_good else min(_MOST_STRIKES, self._strikes + 1)
            self._used = self._wasted = 0
        if (is_good or seen < _FEW) and self._is_crowded and now_us >= self._rests_until_us:
            # Not from 1 up: a few slots close together may pass before the process gets them.
            grown = self._most * (2 if self._strikes else _GROWTH)
            self._most = min(MOST, max(1, grown, self._expected(now_us) // _GROWTH))

    def _handed(self, granted: Grant, now_us: int) -> Grant:
        """The slot as it is now, moved by the holds that are known."""
        known = self._standing
        if granted.generation != known.generation:
            return granted
        shift_us, until_us = known.shift_us, known.until_us
        at_us = max(granted.due_us + shift_us, until_us)
        wait_us = self._at_us(granted.due_us) - now_us
        if wait_us < 0:
            # Late. With a burst that may still be within the limit; if not, the call asks for another slot.
            there_us = at_us - wait_us
            at_us = max(at_us, min(there_us, self._leaves_by(granted) + shift_us))
            wait_us = int(there_us - at_us > LEAST_GRACE_US)
        held = max(until_us, known.mark_us) + self._ahead_us > now_us
        return granted._replace(wait_us=wait_us, departs_at_us=at_us, held=held)

    def _at_us(self, due_us: int) -> int:
        there_us = max(due_us + self._standing.shift_us, self._standing.until_us)
        return there_us + self._ahead_at(there_us)

    def _expected(self, now_us: int) -> int:
        """How many calls come per span, at the current pace."""
        self._forget_comers(now_us)
        span_us = max(1, min(self._prefetch_us, now_us - self._busy_since_us), self._trip_us)
        return -(-len(self._comers) * self._prefetch_us // span_us)

    def _forget_comers(self, now_us: int) -> None:
        while self._comers and now_us - self._comers[0] > self._prefetch_us:
            self._comers.popleft()
        self._busy_since_us = max(self._busy_since_us, now_us - self._prefetch_us)


_due_us = attrgetter("due_us")


LONGEST_US = 60 * SECOND_US
"""The longest span: if a worker dies, the slots that it owns are lost."""
_TRIPS = 32
"""Trips at the same time, each on a connection."""
_DESKS = 256
"""How many keys there are when entries without a fetcher are first dropped."""
_NAP_S = 60.0


class _Call:
    """A call, until it has its answer."""

    __slots__ = ("alarm", "failure", "granted", "is_gone", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.alarm: Any = None
        self.granted: Grant | None = None
        self.failure: list[Exception] = []
        self.is_gone = False

    def fail(self, error: Exception) -> None:
        """Have `answered` raise this error."""
        self.failure.append(own_copy(error))
        self.alarm.set()

    def answered(self) -> Grant:
        """The answer, once the alarm was set."""
        if self.granted is None:
            raise self.failure.pop()  # its traceback holds this frame
        return self.granted


class _KeyEntry:
    """One key: its buffer, the calls that wait, its fetcher, and the event that wakes the fetcher."""

    __slots__ = ("buffer", "calls", "fetcher", "news")

    def __init__(self, buffer: SlotBuffer) -> None:
        self.buffer = buffer
        self.calls: list[_Call] = []
        self.news = ThreadAlarm()
        self.fetcher: threading.Thread | None = None

    def fail(self, error: Exception) -> None:
        """Raise an error in all calls that wait."""
        calls, self.calls = self.calls, []
        for call in calls:
            call.fail(error)


class Prefetch:
    """The slots that this process owns of one shaper; takes the place of the store's `reserve`."""

    def __init__(
        self, name: str, store: Store, queue: LeakyQueue, prefetch_us: int, store_clock: StoreClock
    ) -> None:
        self._what = f"shaper {name!r}"
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._store_clock = store_clock
        self._queue = queue
        self._prefetch_us = prefetch_us
        self.least_hold_us = least_hold_us(prefetch_us, queue)
        bound = (name, queue)
        self._reserve = store.twin(*bound, RESERVE)
        self._reserve_many = store.bind(*bound, RESERVE_MANY)
        self._cancel_many = store.twin(*bound, CANCEL_MANY)
        self._confirm = store.bind(*bound, CONFIRM)
        self._follow = store.twin(*bound, FOLLOW)
        self._settings = store.settings(name)
        self._is_closed = False
        self.begin()
        store.wakes(self)
        _PREFETCHES.add(self)

    def begin(self) -> None:
        """Start empty: a forked child has neither its parent's slots nor its threads."""
        self._lock = process.rlock()
        self._trips = threading.BoundedSemaphore(_TRIPS)
        self._entries: dict[str, _KeyEntry] = {}
        self._sweeps_at = _DESKS

    # callers

    @property
    def grant(self) -> Twin[Any]:
        """Takes a slot, in place of the store's `reserve`."""
        return Twin(lambda key, request: run(self._ask, key, request), partial(self._ask, TASKS))

    async def _ask(self, driver: Driver, key: str, request: Request) -> Grant:
        """A slot, or a refusal."""
        if process.is_inside(self._lock):
            # A finalizer or a signal handler interrupts this thread while it changes a buffer.
            return await driver.ask(self._reserve, key, request)
        await driver.stop_if_cancelled()  # a slot from the buffer is taken without awaiting
        call = _Call(request)
        try:
            self._take(key, call, driver.alarm)
            if call.alarm is not None:
                await driver.wait(call.alarm)
            return call.answered()
        except BaseException as error:
            await driver.given_back(error, partial(self._leave, key, call))
            raise

    def _take(self, key: str, call: _Call, alarm: Callable[[], Any]) -> None:
        """Give the call a slot from the buffer, or else an alarm to wait for."""
        cost, bound_us, _ = call.request
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError(f"{self._what} was closed")
            now = self._clock.now_us()
            entry = self._entry(key)
            if cost == 1:
                entry.buffer.come(now)
            if not entry.calls:
                call.granted = entry.buffer.take(now, cost, bound_us)
            if call.granted is None:
                call.alarm = alarm()
                entry.calls.append(call)
                self._wake_fetcher(key, entry)

    async def exchange(self, driver: Driver, key: str, missed: Grant) -> Grant:
        """Another slot for a call that has missed this one, or a refusal.

        The line is not moved for it: other processes own slots, too, and would learn of the move too late.
        """
        with self._lock:
            self._entry(key).buffer.miss(missed)
        return Grant(*await self._ask(driver, key, (missed.cost, None, process.fresh_id())))

    async def _leave(self, key: str, call: _Call) -> None:
        """Remove a call that gives up before its answer; its slot goes to the next one."""
        with self._lock:
            call.is_gone = True
            if call.granted is not None and call.granted.accepted:
                entry = self._entry(key)
                entry.buffer.put_back(call.granted)
                self._wake_fetcher(key, entry)

    async def give_back(self, driver: Driver, key: str, grant: Grant) -> bool:
        """Give back the slot of a call that does not leave. If the store fails, the fetcher tries again."""
        try:
            return await self._returned(driver, key, (grant,))
        except StoreUnavailableError:
            with self._lock:
                if not self._is_closed:
                    entry = self._entry(key)
                    entry.buffer.keep((grant,), self._clock.now_us())
                    self._wake_fetcher(key, entry)
            raise

    async def _returned(self, driver: Driver, key: str, grants: tuple[Grant, ...]) -> bool:
        """Give slots back. If new limits have moved them, give back the slots that they have become."""
        if await driver.ask(self._cancel_many, key, grants):
            return True
        if not self._settings.known.stored.version:
            return False
        changes, own = (await driver.ask(self._follow, key))[-2], self._queue.constraints
        moved = tuple([grant for one in grants if (grant := followed(one, changes, own))])
        return bool(moved) and bool(await driver.ask(self._cancel_many, key, moved))

    # the state of a key

    def buffer_of(self, key: str) -> SlotBuffer | None:
        """The buffer of a key, if it is in use."""
        entry = self._entries.get(key)
        return None if entry is None else entry.buffer

    def hear(self, key: str, key_state: KeyState, asked_us: int, doubts: object) -> None:
        """Apply the state of a key that the store has just answered with; `doubts` are those of its buffer
        before the question.
        """
        if process.is_inside(self._lock):
            return
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.buffer.hear(key_state, asked_us, self._clock.now_us(), doubts)
                if entry.fetcher is not None:
                    entry.news.set()

    # the end

    def close(self) -> None:
        """Give back all slots, and serve no further calls."""
        for fetcher in self._end():
            fetcher.join()

    def store_closed(self) -> None:
        """`close` for a store that is closed already: nothing can be given back."""
        self._end()

    def _end(self) -> list[threading.Thread]:
        """Stop all fetchers; returns the threads that give back their slots and end."""
        with self._lock:
            self._is_closed = True
            entries = list(self._entries.values())
            for entry in entries:
                entry.news.set()
            return [entry.fetcher for entry in entries if entry.fetcher is not None]

    # under the lock

    def _entry(self, key: str) -> _KeyEntry:
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._sweeps_at:
                self._entries = {
                    key: entry for key, entry in self._entries.items() if entry.fetcher is not None
                }
                self._sweeps_at = max(_DESKS, 2 * len(self._entries))
            buffer = SlotBuffer(self._prefetch_us, self._queue, clock_decides=self._clock_decides)
            entry = self._entries[key] = _KeyEntry(buffer)
        return entry

    def _wake_fetcher(self, key: str, entry: _KeyEntry) -> None:
        if entry.fetcher is None:
            fetcher = threading.Thread(
                target=self._fetch_on, args=(key, entry), name="shapekit-prefetch", daemon=True
            )
            entry.fetcher = fetcher
            try:
                process.start_thread(fetcher)
            except StoreUnavailableError as error:
                entry.fetcher = None
                entry.fail(error)
        entry.news.set()

    def _serve(self, entry: _KeyEntry, now: int) -> None:
        """Serve the waiting calls in order, as far as the buffer goes. A call that has to go to the store,
        because of its cost or its bound, does not keep the others from their slots.
        """
        waiting = entry.calls = [call for call in entry.calls if not call.is_gone]
        for call in tuple(waiting):
            if not len(entry.buffer):
                return
            cost, bound_us, _ = call.request
            granted = entry.buffer.take(now, cost, bound_us)
            if granted is not None:
                waiting.remove(call)
                call.granted = granted
                call.alarm.set()

    # tending

    def _fetch_on(self, key: str, entry: _KeyEntry) -> None:
        try:
            self._work(key, entry)
        except BaseException:
            with self._lock:
                entry.fetcher = None
                entry.fail(StoreUnavailableError("the thread that asked the store has ended"))
            raise

    def _work(self, key: str, entry: _KeyEntry) -> None:
        """Refill the buffer until nothing is owned and no call waits."""
        while True:
            with self._lock:
                entry.news = ThreadAlarm()
                now = self._clock.now_us()
                self._serve(entry, now)
                todo = self._next(entry, now)
                if isinstance(todo, Rest):
                    entry.fetcher = None
                    return
                calls = entry.calls[:MOST] if isinstance(todo, Refill) else []
                del entry.calls[: len(calls)]
            if isinstance(todo, Wait):
                self._clock.sleep(min(_NAP_S, (todo.until_us - now) / SECOND_US), entry.news)
            else:
                self._go(key, entry, todo, calls)

    def _next(self, entry: _KeyEntry, now: int) -> Next:
        if not self._is_closed:
            return entry.buffer.next(now, len(entry.calls))
        entry.fail(StoreUnavailableError(f"{self._what} was closed"))
        return entry.buffer.surrender()

    def _go(self, key: str, entry: _KeyEntry, todo: Next, calls: Sequence[_Call]) -> None:
        """Make one trip. An error is raised in the calls that wait for the trip; without any, only an
        unexpected one is raised here.
        """
        asked_us, doubts = self._clock.now_us(), entry.buffer.doubts
        try:
            with self._trips:
                if isinstance(todo, Refill):
                    further = (todo.further, todo.span_us, process.fresh_id())
                    confirmed, granted = self._reserve_many(key, [call.request for call in calls], further)
                elif isinstance(todo, GiveBack):
                    run(self._returned, key, todo.grants)
                    return
                else:
                    confirmed, granted = self._confirm(key), ()
        except CostExceedsLimitError as error:
            # An operator's limit admits less than the one in code: the other calls ask again.
            with self._lock:
                entry.calls[:0] = [call for call in calls if call.request[0] <= error.limit]
                for call in calls:
                    if call.request[0] > error.limit:
                        call.fail(error)
            return
        except Exception as error:
            with self._lock:
                entry.buffer.failed()
                if isinstance(todo, Ask):
                    calls, entry.calls = entry.calls, []
                elif isinstance(todo, GiveBack) and not self._is_closed:
                    entry.buffer.keep(todo.grants, self._clock.now_us())
                for call in calls:
                    call.fail(error)
            if not calls and not isinstance(error, StoreUnavailableError):
                raise
            return
        except BaseException:
            # `_fetch_on` fails these calls together with those that still wait.
            with self._lock:
                entry.calls[:0] = calls
            raise
        with self._lock:
            now, (generation, shift_us, until_us, there_us, mark_us) = self._clock.now_us(), confirmed
            if generation >= 0:  # else the answer may be a fallback's, without a trip
                self._store_clock.took(asked_us, now)
            key_state = KeyState(generation, shift_us, until_us, now - there_us, mark_us=mark_us)
            entry.buffer.hear(key_state, asked_us, now, doubts)
            if isinstance(todo, Ask):
                return
            answers = entry.buffer.fill(granted[: len(calls)], granted[len(calls) :], now)
            for call, answer in zip(calls, answers, strict=True):
                if not call.is_gone:
                    call.granted = answer
                    call.alarm.set()
                elif answer.accepted:
                    entry.buffer.put_back(answer)


def least_hold_us(prefetch_us: int, queue: LeakyQueue) -> int:
    """How long a hold lasts at least. For up to a span, other processes leave by the slots that they know:
    after a shorter hold, these calls and those that the hold has moved would be too close together.
    """
    return prefetch_us + min(prefetch_us, queue.burst * queue.slot_us)


def prefetched(
    name: str, store: Store, queue: LeakyQueue, prefetch: Duration, store_clock: StoreClock
) -> Prefetch | None:
    """The prefetched slots of a shaper; None if the store is in this process: there is no trip to save."""
    prefetch_us = duration_us("prefetch", prefetch, most=LONGEST_US)
    return None if store.instant else Prefetch(name, store, queue, prefetch_us, store_clock)


_PREFETCHES = process.begin_anew(Prefetch.begin)
