"""Prefetch: slots that a process takes ahead of its callers, so that few of them wait for a trip.

In front of a store that is far away stands a desk for each key. A caller takes a slot from its stock; one
who finds none waits there, and all who have gathered are served by the next trip. Trips are made by a
thread of their own, a tender for each key that is in use: so nobody who goes away takes a trip along, and
a stock is refilled, and given back, while nobody asks for anything.

Stock: the slots of one key that a process owns before anybody in it has asked for them.

Everything here is decided from what it is told: no clock is read and no store is asked. Whoever tends a
stock asks it what to do `next`, does that, and tells it what came of it.

Instants without a word are those of the clock that callers sleep by. A slot stands on the queue's own
time; how far the one is ahead of the other, every answer of the store tells anew.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

from shapekit._queue.key_status import KeyStatus, Standing
from shapekit._runtime import forks
from shapekit._runtime import ids as nonce
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit._runtime.threads import Errand, Workers
from shapekit.algorithms.queue.queue import CANCEL_MANY, CONFIRM, RESERVE_MANY, LeakyQueue
from shapekit.algorithms.queue.slots import Asked, Grant
from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US, Duration, duration_us
from shapekit.stores.base import Store

MOST = 256
"""The most slots that one trip takes: a script that runs longer would keep everybody else waiting."""
_FIRST = 8
"""How many further slots the first busy trip asks for."""
_GROWTH = 4
_STEPS = 10
"""The part of a span's slots that everybody who is busy gets beside what came."""
_WORTH = 8
"""So many slots have to be used for each that is wasted."""
_FEW, _ENOUGH = 4, 32
"""How many slots tell something: the larger a trip was, the more, for a machine stalls now and then."""
_MOST_STRIKES = 5
"""A stock that was wasteful again and again does not grow for 2 to the power of this spans."""
_PATIENCE = 4
"""The part of a span after which slots that nobody comes for go back."""
_DRIFT = 1_000
"""Two clocks go apart by less than a µs in so many."""
_HASTE = 100
"""Slots are handed out sooner by a µs in so many, where answers came later before."""


class Refill(NamedTuple):
    """Fetch a slot for each who waits, and so many further ones within a span of the line."""

    further: int
    span_us: int


class GiveBack(NamedTuple):
    """Give these slots back; they are of one generation, in order."""

    grants: tuple[Grant, ...]


class Wait(NamedTuple):
    """There is nothing to do before this instant, unless somebody comes."""

    until_us: int


class Ask(NamedTuple):
    """Ask how the key stands."""


class Rest(NamedTuple):
    """Nothing is owned and nobody waits: there is nothing to tend."""


Next: TypeAlias = Refill | GiveBack | Wait | Ask | Rest


class Stock:
    """What one process owns on one key."""

    def __init__(
        self,
        prefetch_us: int,
        leaves_by: Callable[[Grant], int],
        *,
        slots: int,
        clock_decides: bool,
        counted: bool,
    ) -> None:
        self._prefetch_us = prefetch_us
        self._step = 1 + min(slots, MOST) // _STEPS
        self._leaves_by = leaves_by
        self._clock_decides = clock_decides
        self._counted = counted
        """Whether a slot that passes unused has to go back, for limits count it that have a memory."""
        self._slots: deque[Grant] = deque()
        self._returning: list[Grant] = []
        self._standing = (-1, 0, 0, 0)
        self.doubts = object()
        """Another one after each doubt, so that it shows whether a question was asked before it."""
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
        """The slots that nobody has asked for yet."""
        return len(self._slots)

    # callers

    def come(self, now_us: int) -> None:
        """Somebody asks for a slot."""
        self._forget_comers(now_us)
        if not self._comers:
            self._busy_since_us = now_us
        self._comers.append(now_us)
        self._came_us = now_us

    def take(self, now_us: int, cost: int, bound_us: int | None) -> Grant | None:
        """The earliest slot that is not over, if it is for such a caller; the store has to say otherwise."""
        if cost != 1 or not self._is_sure:
            return None
        self._pass_by(now_us)
        if not self._slots:
            return None
        granted = self._handed(self._slots[0], now_us)
        if not granted.wait_us and now_us - self._heard_us > self._prefetch_us:
            # Whoever waits asks whether the key is held before leaving, and who does not wait does not.
            granted = granted._replace(wait_us=1)
        if bound_us is not None and granted.wait_us > bound_us:
            return None
        self._slots.popleft()
        self._used += 1
        self._last_taken_us = max(self._last_taken_us, granted.due_us)
        return granted

    def put_back(self, granted: Grant) -> None:
        """A slot that was fetched for somebody who has gone is for the next, or goes back."""
        if granted.cost == 1 and granted.generation == self._standing[0]:
            self._slots = deque(sorted([*self._slots, granted], key=_due_us))
        else:
            self._returning.append(granted)

    # the store's answers

    def hear(
        self, standing: tuple[int, int, int, int], ahead_us: int, asked_us: int, now_us: int, doubts: object
    ) -> None:
        """How the key stands: generation, shift, until when it is held, its mark; asked and answered when.

        An answer to a question that was asked before the latest of the `doubts` tells the time alone.
        """
        trip_us = max(0, now_us - asked_us)
        self._trip_us = max(trip_us, self._trip_us * 7 // 8)
        if not self._clock_decides:
            self._set_clock(ahead_us, trip_us, now_us)
        if doubts is not self.doubts:
            return
        if standing[0] != self._standing[0]:
            # Another life of the key: what was promised in this one nobody knows there.
            self._returning += self._slots
            self._slots.clear()
            self._last_us = self._last_taken_us = 0
        self._standing = standing
        self._sure_by = doubts
        self._may_refill = True
        self._heard_us = asked_us

    def _set_clock(self, ahead_us: int, trip_us: int, now_us: int) -> None:
        """How far the clocks are apart, by an answer that was on its way for a part of the trip.

        The quickest answers know it best, but nobody is helped by changing it at once: who leaves by one
        answer and who by the next would come too close. So while slots are owned, it comes down slowly.
        """
        passed_us = max(0, now_us - self._heard_us)
        if trip_us > self._prefetch_us and self._heard_us:
            # The process was stopped, or the way was. All that is owned would leave late by as much: what was
            # known before is better, as far as this answer allows it.
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
        """How far the clock that callers sleep by is ahead of the queue's, when that shows so much."""
        passed_us = max(0, there_us - self._since_us)
        return max(self._least_ahead_us, self._ahead_us - passed_us // _HASTE)

    def doubt(self) -> None:
        """The key was changed here: how it stands has to be asked before anybody leaves."""
        self.doubts = object()

    def fill(self, asked: Sequence[Grant], further: Sequence[Grant], now_us: int) -> list[Grant]:
        """What a trip has fetched; returns the slots and refusals for those who asked."""
        self._learn(now_us)
        generation = self._standing[0]
        taken = [granted for granted in asked if granted.accepted and granted.generation == generation]
        self._returning += [granted for granted in further if granted.generation != generation]
        further = [granted for granted in further if granted.generation == generation]
        # Who asks again as soon as there is an answer is kept waiting by the trips themselves.
        is_hurried = 0 <= self._came_us - self._answered_us < self._trip_us // 2
        self._answered_us = now_us
        is_late = any(granted.wait_us > 0 for granted in (*taken, *further))
        self._is_crowded = len(asked) > 1 or is_hurried or is_late
        # They may stand in places that others have left, before those that are owned.
        self._slots = deque(sorted([*self._slots, *further], key=_due_us))
        self._last_taken_us = max([self._last_taken_us, *map(_due_us, taken)])
        self._last_us = max([self._last_us, *map(_due_us, (*taken, *further))])
        if not asked and not further:
            self._may_refill = False
        return [self._handed(granted, now_us) if granted.accepted else granted for granted in asked]

    def failed(self) -> None:
        """A trip came to nothing: nobody goes on one again before somebody needs it."""
        self._may_refill = False

    def known(self, now_us: int) -> Standing | None:
        """How the key stands, if that was heard within a span."""
        if self._is_sure and 0 <= now_us - self._heard_us <= self._prefetch_us:
            generation, shift_us, until_us, mark_us = self._standing
            ahead_us = self._ahead_at(now_us - self._ahead_us)
            return Standing(generation, shift_us, until_us, ahead_us, mark_us=mark_us)
        return None

    # tending

    def next(self, now_us: int, waiting: int) -> Next:
        """What is to be done, while so many wait whom the stock does not serve."""
        self._pass_by(now_us)
        if waiting:
            return Ask() if self._slots and not self._is_sure else self._refill(now_us, waiting)
        idle_us = max(self._came_us, self._at_us(self._last_taken_us)) + self._prefetch_us // _PATIENCE
        if now_us >= idle_us or len(self._returning) >= MOST:
            return self._give_back(is_over=now_us >= idle_us)
        if self._may_refill and self._most and self._is_crowded:
            ahead_us = self._trip_us * 3 // 2
            low_us = self._at_us(self._last_us) - ahead_us
            # Who leaves by what was heard longer ago than a span asks again: each of them, and slots pass.
            # An answer that is too old for that when it comes helps nobody.
            is_worth = self._prefetch_us > 2 * self._trip_us
            old_us = self._heard_us + self._prefetch_us - ahead_us if is_worth else low_us
            if now_us < min(low_us, old_us):
                return Wait(min(low_us, old_us, idle_us))
            if now_us < low_us:
                return Ask()
            if (refill := self._refill(now_us, 0)).further:
                return refill
        return Wait(idle_us) if self._slots or self._returning else Rest()

    def surrender(self) -> GiveBack | Rest:
        """All that is owned, to be given back; one generation at a time."""
        return self._give_back(is_over=True)

    # inside

    @property
    def _is_sure(self) -> bool:
        return self._sure_by is self.doubts

    def _refill(self, now_us: int, waiting: int) -> Refill:
        """As many further slots as came in a span, if slots were waited for and none were wasted."""
        is_held = self._is_sure and self._standing[2] + self._ahead_us > now_us
        expected = self._expected(now_us)
        if (not self._is_crowded and waiting < 2) or len(self._comers) < 2 or is_held:
            return Refill(0, 0)
        left_us = self._prefetch_us
        if self._slots:
            left_us -= self._slots[-1][10] - self._slots[0][10]
        if left_us <= 0:
            return Refill(0, 0)
        # In proportion to what came, those who have most would keep it; so each has a part that is the same.
        fair = expected * 3 // 4 + self._step
        return Refill(max(0, min(self._most, fair, MOST - waiting)), left_us)

    def _give_back(self, *, is_over: bool) -> GiveBack | Rest:
        if is_over and self._slots:
            self._returning += self._slots
            self._slots.clear()
        if not self._returning:
            return Rest()
        generation = self._returning[0][6]
        own = [granted for granted in self._returning if granted.generation == generation]
        self._returning = [granted for granted in self._returning if granted.generation != generation]
        return GiveBack(tuple(sorted(own, key=_due_us)))

    def _pass_by(self, now_us: int) -> None:
        """A slot whose time is over is nobody's: who left by it now would be too close to the next."""
        while self._slots and self._at_us(self._leaves_by(self._slots[0])) < now_us:
            passed = self._slots.popleft()
            self._wasted += 1
            if self._counted:
                self._returning.append(passed)

    def _learn(self, now_us: int) -> None:
        """From what became of the slots since: whether to ask for more of them, or for fewer."""
        seen = self._used + self._wasted
        is_good = self._wasted * _WORTH <= self._used
        if seen >= max(_FEW, min(_ENOUGH, self._most * _FEW)):
            if not is_good:
                self._most = self._most * self._used // seen
                self._rests_until_us = now_us + (self._prefetch_us << self._strikes)
            self._strikes = max(0, self._strikes - 1) if is_good else min(_MOST_STRIKES, self._strikes + 1)
            self._used = self._wasted = 0
        if (is_good or seen < _FEW) and self._is_crowded and now_us >= self._rests_until_us:
            # Not from one on: a few slots next to each other are over before anybody hears of them.
            grown = self._most * (2 if self._strikes else _GROWTH)
            self._most = min(MOST, max(1, grown, self._expected(now_us) // _GROWTH))

    def _handed(self, granted: Grant, now_us: int) -> Grant:
        """The slot as it is from now on, with the holds that are known."""
        generation, shift_us, until_us, mark_us = self._standing
        if granted.generation != generation:
            return granted
        at_us = max(granted.due_us + shift_us, until_us)
        wait_us = self._at_us(granted.due_us) - now_us
        if wait_us < 0:
            # Late, which with a burst may be as good as in time.
            at_us = max(at_us, min(at_us - wait_us, self._leaves_by(granted) + shift_us))
            wait_us = 0
        held = max(until_us, mark_us) + self._ahead_us > now_us
        return granted._replace(wait_us=wait_us, departs_at_us=at_us, held=held)

    def _at_us(self, due_us: int) -> int:
        there_us = max(due_us + self._standing[1], self._standing[2])
        return there_us + self._ahead_at(there_us)

    def _expected(self, now_us: int) -> int:
        """How many come in a span, as they do now."""
        self._forget_comers(now_us)
        span_us = max(1, min(self._prefetch_us, now_us - self._busy_since_us), self._trip_us)
        return -(-len(self._comers) * self._prefetch_us // span_us)

    def _forget_comers(self, now_us: int) -> None:
        while self._comers and now_us - self._comers[0] > self._prefetch_us:
            self._comers.popleft()
        self._busy_since_us = max(self._busy_since_us, now_us - self._prefetch_us)


def _due_us(granted: Grant) -> int:
    return granted.due_us


LONGEST_US = 60 * SECOND_US
"""The longest span: what a worker that dies has owned, nobody can use."""
_TRIPS = 32
"""Trips at one time, on as many connections."""
_DESKS = 256
"""Keys after which those out of use are forgotten for the first time."""
_NAP_S = 60.0


class _Call:
    """One caller, who waits for the answer."""

    __slots__ = ("alarm", "asked", "error", "granted", "is_gone")

    def __init__(self, asked: Asked, alarm: Any) -> None:
        self.asked = asked
        self.alarm = alarm
        self.granted: Grant | None = None
        self.error: Exception | None = None
        self.is_gone = False

    def answered(self) -> Grant:
        if self.granted is not None:
            return self.granted
        error, self.error = self.error, None
        try:
            raise error or StoreUnavailableError("nobody has answered")
        finally:
            # Its traceback holds this frame.
            error = None


class _Desk:
    """One key: its stock, who waits there, and what wakes its tender."""

    __slots__ = ("calls", "news", "stock", "tender")

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.calls: list[_Call] = []
        self.news = threading.Event()
        self.tender: threading.Thread | None = None


class Prefetch:
    """The slots that this process owns of one shaper; in place of the store's `reserve`."""

    def __init__(self, name: str, store: Store, queue: LeakyQueue, prefetch_us: int) -> None:
        self._what = f"shaper {name!r}"
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._queue = queue
        self._prefetch_us = prefetch_us
        bound = (name, queue)
        self._reserve_many = store.bind(*bound, RESERVE_MANY)
        self._cancel_many = store.bind(*bound, CANCEL_MANY)
        self._confirm = store.bind(*bound, CONFIRM)
        self.anew()
        store.wakes(self)
        _PREFETCHES.add(self)

    def anew(self) -> None:
        """Own nothing: a forked child has what it takes itself, and none of its parent's threads."""
        self._lock = threading.Lock()
        self._trips = threading.BoundedSemaphore(_TRIPS)
        self._desks: dict[str, _Desk] = {}
        self._sweeps_at = _DESKS
        self._is_closed = False

    # callers

    @property
    def grant(self) -> Twin[Any]:
        """What takes a slot, in place of the store's `reserve`."""
        return Twin(lambda key, asked: run(self._ask, key, asked), partial(self._ask, TASKS))

    async def _ask(self, driver: Driver, key: str, asked: Asked) -> Grant:
        """A slot, or a refusal."""
        call = self._taken(key, asked, driver.alarm)
        if not isinstance(call, _Call):
            return call
        try:
            await driver.wait(call.alarm)
        except BaseException as error:
            await driver.given_back(error, partial(self._leave, key, call))
            raise
        return call.answered()

    def _taken(self, key: str, asked: Asked, alarm: Callable[[], Any]) -> Grant | _Call:
        """A slot of the stock; or what to wait for."""
        cost, bound_us, _ = asked
        with self._lock:
            self._check_open()
            now = self._clock.now_us()
            desk = self._desk(key)
            if cost == 1:
                desk.stock.come(now)
            if not desk.calls and (granted := desk.stock.take(now, cost, bound_us)) is not None:
                return granted
            call = _Call(asked, alarm())
            desk.calls.append(call)
            self._attend(key, desk)
            return call

    async def _leave(self, key: str, call: _Call) -> None:
        """Whoever goes away before the answer has no slot: the next one has it."""
        with self._lock:
            call.is_gone = True
            if call.granted is not None and call.granted.accepted:
                desk = self._desk(key)
                desk.stock.put_back(call.granted)
                self._attend(key, desk)

    # how a key stands

    def known(self, key: str) -> Standing | None:
        """How a key stands, if that was heard within a span."""
        desk = self._desks.get(key)
        return None if desk is None else desk.stock.known(self._clock.now_us())

    def doubts(self, key: str) -> object:
        """What to take along with a question, and to hand back with its answer."""
        desk = self._desks.get(key)
        return None if desk is None else desk.stock.doubts

    def hear(self, key: str, standing: Standing, asked_us: int, doubts: object) -> None:
        """How a key stands, as the store has just said."""
        with self._lock:
            desk = self._desks.get(key)
            if desk is not None:
                now = self._clock.now_us()
                known = (*standing[:3], standing.mark_us)
                desk.stock.hear(known, standing.ahead_us, asked_us, now, doubts)
                if desk.tender is not None:
                    desk.news.set()

    def doubt(self, key: str) -> None:
        """The key was changed here. Takes no lock: a coroutine that is thrown away comes by here."""
        desk = self._desks.get(key)
        if desk is not None:
            desk.stock.doubt()

    # the end

    def close(self) -> None:
        """Give back all that is owned, and serve nobody any more."""
        for tender in self._end():
            tender.join()

    def store_closed(self) -> None:
        """`close`, where nothing can be given back any more."""
        self._end()

    def _end(self) -> list[threading.Thread]:
        """The threads that give back what is owned, and end."""
        with self._lock:
            self._is_closed = True
            desks = list(self._desks.values())
            for desk in desks:
                desk.news.set()
            return [desk.tender for desk in desks if desk.tender is not None]

    async def aclose(self) -> None:
        """`close`, awaitable."""
        await Errand(self.close, lambda _: None).run(Workers())

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(f"{self._what} was closed")

    # under the lock

    def _desk(self, key: str) -> _Desk:
        desk = self._desks.get(key)
        if desk is None:
            if len(self._desks) >= self._sweeps_at:
                self._desks = {key: desk for key, desk in self._desks.items() if desk.tender is not None}
                self._sweeps_at = max(_DESKS, 2 * len(self._desks))
            stock = Stock(
                self._prefetch_us,
                self._queue.leaves_by,
                slots=self._queue.slots(self._prefetch_us),
                clock_decides=self._clock_decides,
                counted=bool(self._queue.constraints),
            )
            desk = self._desks[key] = _Desk(stock)
        return desk

    def _attend(self, key: str, desk: _Desk) -> None:
        if desk.tender is None:
            tender = threading.Thread(
                target=self._tend, args=(key, desk), name="shapekit-prefetch", daemon=True
            )
            desk.tender = tender
            try:
                tender.start()
            except RuntimeError:
                # No more threads: the interpreter ends, or the machine is full.
                desk.tender = None
                calls, desk.calls = desk.calls, []
                _fail(calls, StoreUnavailableError("there is no thread left to ask the store on"))
        desk.news.set()

    def _serve(self, desk: _Desk, now: int) -> None:
        """Those who have gathered, in order, as far as the stock goes."""
        while desk.calls:
            call = desk.calls[0]
            if not call.is_gone:
                cost, bound_us, _ = call.asked
                granted = desk.stock.take(now, cost, bound_us)
                if granted is None:
                    return
                call.granted = granted
                call.alarm.set()
            del desk.calls[0]

    # tending

    def _tend(self, key: str, desk: _Desk) -> None:
        try:
            self._work(key, desk)
        except BaseException:
            with self._lock:
                desk.tender = None
                calls, desk.calls = desk.calls, []
                _fail(calls, StoreUnavailableError("whoever asked the store has gone"))
            raise

    def _work(self, key: str, desk: _Desk) -> None:
        """Until nobody waits and nothing is owned."""
        while True:
            with self._lock:
                desk.news = threading.Event()
                now = self._clock.now_us()
                self._serve(desk, now)
                todo = self._next(desk, now)
                if isinstance(todo, Rest):
                    desk.tender = None
                    return
                calls = desk.calls[:MOST] if isinstance(todo, Refill) else []
                del desk.calls[: len(calls)]
            if isinstance(todo, Wait):
                self._clock.sleep(min(_NAP_S, (todo.until_us - now) / SECOND_US), desk.news)
            else:
                self._go(key, desk, todo, calls)

    def _next(self, desk: _Desk, now: int) -> Next:
        if not self._is_closed:
            return desk.stock.next(now, len(desk.calls))
        _fail(desk.calls, StoreUnavailableError(f"{self._what} was closed"))
        desk.calls = []
        return desk.stock.surrender()

    def _go(self, key: str, desk: _Desk, todo: Next, calls: Sequence[_Call]) -> None:
        """One trip. What goes wrong is told those who wait for it, and where nobody does, nobody."""
        asked_us, doubts = self._clock.now_us(), desk.stock.doubts
        try:
            with self._trips:
                if isinstance(todo, Refill):
                    further = (todo.further, todo.span_us, nonce.fresh())
                    standing, granted = self._reserve_many(key, [call.asked for call in calls], further)
                elif isinstance(todo, GiveBack):
                    self._cancel_many(key, todo.grants)
                    return
                else:
                    standing, granted = self._confirm(key), ()
        except Exception as error:
            with self._lock:
                desk.stock.failed()
                if isinstance(todo, Ask):
                    calls, desk.calls = desk.calls, []
                _fail(calls, error)
            if not calls and not isinstance(error, StoreUnavailableError):
                raise
            return
        except BaseException:
            # Its callers are told with those who wait at the desk.
            with self._lock:
                desk.calls[:0] = calls
            raise
        with self._lock:
            now = self._clock.now_us()
            known = (*standing[:3], standing[4])
            desk.stock.hear(known, now - standing[3], asked_us, now, doubts)
            if isinstance(todo, Ask):
                return
            answers = desk.stock.fill(granted[: len(calls)], granted[len(calls) :], now)
            for call, answer in zip(calls, answers, strict=True):
                if not call.is_gone:
                    call.granted = answer
                    call.alarm.set()
                elif answer[0]:
                    desk.stock.put_back(answer)


class PrefetchedStatus(KeyStatus):
    """A call that leaves by a prefetched slot asks nothing while its key was heard of within a span."""

    def __init__(self, store: Store, name: str, queue: LeakyQueue, prefetch: Prefetch) -> None:
        super().__init__(store, name, queue)
        self._prefetch = prefetch

    async def leaving(self, driver: Driver, key: str) -> Standing:
        known = self._prefetch.known(key)
        if known is not None:
            return known
        asked_us, doubts = self._clock.now_us(), self._prefetch.doubts(key)
        standing = await self.ask(driver, key)
        self._prefetch.hear(key, standing, asked_us, doubts)
        return standing

    async def looking(self, driver: Driver, key: str, than_us: int) -> tuple[int, Standing]:
        return self._clock.now_us(), await self.leaving(driver, key)

    def _dropped(self, key: str, question: Any) -> None:
        super()._dropped(key, question)
        self._prefetch.doubt(key)

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._prefetch.doubt(key)


def prefetched(
    name: str, store: Store, queue: LeakyQueue, prefetch: Duration
) -> tuple[Prefetch | None, KeyStatus]:
    """The slots that a shaper takes ahead, and what asks whether its slots still stand.

    None where a slot costs no trip that could be saved.
    """
    prefetch_us = duration_us("prefetch", prefetch, most=LONGEST_US)
    if store.instant:
        return None, KeyStatus(store, name, queue)
    made = Prefetch(name, store, queue, prefetch_us)
    return made, PrefetchedStatus(store, name, queue, made)


def _fail(calls: Sequence[_Call], error: Exception) -> None:
    for call in calls:
        # An exception for each: a shared one would collect all their tracebacks.
        call.error = copy(error)
        call.error.__cause__ = error.__cause__
        call.alarm.set()


_PREFETCHES: WeakSet[Prefetch] = WeakSet()


def _forked() -> None:
    for prefetch in list(_PREFETCHES):
        prefetch.anew()


forks.in_child(_forked)
