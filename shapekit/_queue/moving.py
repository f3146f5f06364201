"""Moving: how the waiting calls of one process learn that their slots have moved, and get new ones when late.

A watch holds what the process knows about a key whose waiting calls may have to move: a key that is held
(the hold may be ended or prolonged), or one with an adaptive rate. A change that the process makes itself
wakes its calls at once. Changes by other processes are found by polling: the first call to poll asks the
store, the other calls at the key reuse its answer, and an answer with news wakes them all, so that they leave
in order.

Late calls of a key, of which there are many after the whole process was stopped, share a trip to the store
and get their new slots in the order of the old ones. A call that is late during a trip joins the next one,
and a call that is on time waits for the late calls before it. A call that is late once more takes the new
slot of the first call behind it, that one takes the slot of the next, and so on: they keep their order.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from shapekit._runtime import process
from shapekit._runtime.drivers import Alarm, Driver, Twin
from shapekit.algorithms.queue.slots import NOTICE_US
from shapekit.algorithms.queue.wire import UNKNOWN, Late, Moved
from shapekit.clock import Clock
from shapekit.rate import SECOND_US
from shapekit.stores.base import Settings

if TYPE_CHECKING:
    from shapekit._queue.waiter import KeyState, KeyStatus, PendingWait

QUICK_US = SECOND_US // 4
"""The shortest interval between polls right after a change."""
SLOW_US = SECOND_US
"""The shortest interval once nothing has changed for two seconds."""
PART = 20
"""If that is longer, the interval is the wait that is left divided by this."""
LONGEST_US = 60 * SECOND_US
"""The longest interval, so that a hold of a day can be ended within a minute or two."""
JITTER = 4
"""Each interval is lengthened at random by up to this part, so that processes do not poll in step."""
AT_ONCE_US = SECOND_US // 4
"""How far ahead a hold is ended in a store whose changes wake every waiting call at once."""
LAST_LOOK_US = SECOND_US // 10
"""How long before its slot a call stops polling for changed limits: if the slot came while an answer is under
way, other calls would leave first.
"""
NOTICE_PART = 12
LEAST_NOTICE_US, MOST_NOTICE_US = 1_500_000, 90 * SECOND_US
STUCK_S = 5.0
"""How long a call waits for the answer to another call's question: that call's loop may have been stopped."""
_END_US = 2**53


def pause_us(left_us: int, age_us: int) -> int:
    """How long until the next poll, for a call with `left_us` to wait at a key that changed `age_us` ago."""
    least_us = max(QUICK_US, min(SLOW_US, age_us // 2))
    length_us = max(least_us, min(LONGEST_US, left_us // PART))
    from random import randrange  # noqa: PLC0415 - only a process that polls loads it

    return length_us + randrange(length_us // JITTER)  # noqa: S311 - no secret


def notice_us(left_us: int) -> int:
    """How far ahead to end a hold with `left_us` to go: by then, every process has polled and has its answer.

    A call that learned of the end too late would leave late, right next to the calls behind it.
    """
    return max(LEAST_NOTICE_US, min(MOST_NOTICE_US, left_us // NOTICE_PART))


class Watch:
    """What a process knows about a key: the store's last answer, when it changed, and the alarms to set."""

    __slots__ = ("__weakref__", "_alarms", "_answers", "changed_us", "version")

    def __init__(self, now_us: int) -> None:
        self._alarms: dict[Alarm, None] = {}
        self._answers: dict[object, tuple[int, KeyState]] = {}
        self.changed_us = now_us
        self.version = object()
        """A new object after each change."""

    def hear(self, queue: object, key_state: KeyState, asked_us: int) -> None:
        """Record the store's answer to a question asked at `asked_us`."""
        known = self._answers.get(queue)
        if known is not None and known[0] > asked_us:
            return
        self._answers[queue] = asked_us, key_state
        if known is None or not key_state.is_like(known[1]):
            self.changed_us = asked_us
            self.ring()

    def since(self, queue: object, than_us: int) -> tuple[int, KeyState] | None:
        """When the last answer was asked for, and the answer; None if that was not after `than_us`."""
        known = self._answers.get(queue)
        return known if known is not None and known[0] > than_us else None

    def forget(self, now_us: int, *, is_news: bool) -> None:
        """Forget the answers: this process has changed the key.

        Takes no lock: the finalizer of a dropped coroutine may call this.
        """
        self._answers = {}
        if is_news:
            self.changed_us = now_us
            self.ring()

    def ring(self) -> None:
        """Wake all calls that wait at the key."""
        self.version = object()
        for alarm in list(self._alarms):
            alarm.set()

    def add(self, alarm: Alarm) -> None:
        """Set the alarm at the next change."""
        self._alarms[alarm] = None

    def discard(self, alarm: Alarm) -> None:
        """Remove the alarm of a sleeper that is awake."""
        self._alarms.pop(alarm, None)


class Limits(Watch):
    """Wakes the calls that wait under one name when operators change its limits. One call polls for all.

    Every answer of the store shows such a change, so the polling call asks about its own key.
    """

    __slots__ = ("_clock", "_hears_all", "_poller", "_served_us", "dues", "settings")

    def __init__(self, settings: Settings, clock: Clock, *, hears_all: bool) -> None:
        super().__init__(clock.now_us())
        self.settings = settings
        self._clock = clock
        self._hears_all = hears_all
        self._served_us = 0
        """The slot that sets when the poller asks next."""
        self.begin()

    def begin(self) -> None:
        """Start without waiting calls: at first, and in a forked child."""
        self._alarms = {}
        self._poller: Alarm | None = None
        self.dues: dict[Alarm, int] = {}

    def until_us(self, alarm: Alarm, now_us: int, due_us: int) -> int:
        """When a call that sleeps until its slot has to poll, if nothing wakes it before."""
        self.dues[alarm] = due_us
        if self._poller is not None and self.dues.get(self._poller, now_us) <= now_us:
            self._poller = None  # its thread was interrupted as it woke, or wakes late
        if self._poller is None and self._is_far(due_us, now_us):
            self._poller = alarm
        poller = self._poller
        if poller is not alarm:
            if poller is None:
                self.hand_over(now_us)
            elif due_us < self._served_us and self._served_us - now_us > PART * QUICK_US:
                # A call that leaves sooner needs a sooner poll.
                poller.set()
            return _END_US
        if self._hears_all:
            return self.ends_at_us()
        # Until the next line, any call that comes wakes the poller.
        self._served_us = _END_US
        # The next call to leave asks in any case, and its answer wakes the others.
        for other, past_us in list(self.dues.items()):
            if past_us <= now_us:
                self.dues.pop(other, None)
        self._served_us = min(list(self.dues.values()), default=due_us)
        pause = pause_us(max(0, self._served_us - now_us), 0)
        return now_us + min(pause, due_us - now_us - LAST_LOOK_US)

    def ends_at_us(self) -> int:
        """When the first override ends by itself: a civil time, converted to the clock that sleepers use."""
        ends_us = self.settings.known.ends_us
        if ends_us is None:
            return _END_US
        # A store whose clock is behind sees that end later: it is not asked again and again meanwhile.
        least_us = 1 if self._hears_all else QUICK_US
        return self._clock.now_us() + max(least_us, ends_us - self._clock.wall_us())

    def discard(self, alarm: Alarm) -> None:
        super().discard(alarm)
        self.dues.pop(alarm, None)
        if self._poller is alarm:
            self._poller = None

    def hand_over(self, now_us: int) -> None:
        """If no call polls, wake the one with the latest slot to do so. Takes no lock, as `Watch.forget`."""
        if self._poller is None and self.dues:
            dues = self.dues.copy()
            alarm = max(dues, key=dues.__getitem__)
            if self._is_far(dues[alarm], now_us):
                alarm.set()

    def _is_far(self, due_us: int, now_us: int) -> bool:
        """Whether a change from now on may still move this slot."""
        return self._hears_all or due_us - now_us >= NOTICE_US


class KeyPoller:
    """Tells one waiting call when to poll its keys, and whether they have changed."""

    __slots__ = ("_heard_us", "_look_us", "_seen", "_status", "_watched", "_watches", "keys")

    def __init__(self, status: KeyStatus, keys: Iterable[str], heard_us: int, *beside: Watch) -> None:
        self._status = status
        self.keys = tuple(keys)
        self._watched = {key: status.watch(key) for key in self.keys}
        self._watches = (*self._watched.values(), *beside)
        self._heard_us = heard_us
        self._look_us: int | None = None
        # Where changes are only announced, one that came before this poller was made counts as news.
        self._seen = [None if status.hears_all else watch.version for watch in self._watched.values()]
        self._seen += [watch.version for watch in beside]

    def until_us(self, due_us: int) -> int:
        """Until when to sleep, unless something changes, before polling for a slot due at `due_us`."""
        if self._look_us is None:
            if self._status.hears_all or not self.keys:
                self._look_us = _END_US
            else:
                age_us = self._heard_us - max(
                    [watch.changed_us for watch in self._watched.values()], default=0
                )
                self._look_us = self._heard_us + pause_us(max(0, due_us - self._heard_us), age_us)
                if due_us - self._look_us < QUICK_US:
                    # If the slot came while an answer is under way, other calls would leave first; and a call
                    # asks before it leaves anyway. No hold ends sooner: see `notice_us`.
                    self._look_us = due_us
        return min(due_us, self._look_us)

    def begin_wait(self, alarm: Alarm) -> None:
        """Set the alarm when something changes."""
        for watch in self._watches:
            watch.add(alarm)
        if self._has_news():
            alarm.set()

    def end_wait(self, alarm: Alarm) -> None:
        """Remove the alarm after the sleep."""
        for watch in self._watches:
            watch.discard(alarm)

    def is_time(self, now_us: int) -> bool:
        """Whether something has changed, or the next poll is due."""
        return (self._look_us is not None and now_us >= self._look_us) or self._has_news()

    async def look(self, driver: Driver) -> list[KeyState]:
        """The states of the keys, from answers to this process since the last poll, else from the store."""
        self._seen = [watch.version for watch in self._watches]
        than_us = self._heard_us
        answers = [await self._status.looking(driver, key, than_us) for key in self._watched]
        self._heard_us = min([asked_us for asked_us, _ in answers], default=than_us)
        self._look_us = None
        return [key_state for _, key_state in answers]

    def _has_news(self) -> bool:
        return any(watch.version is not seen for watch, seen in zip(self._watches, self._seen, strict=True))


_numbers = count()


class _LateCall:
    """A late call, from its question until its answer."""

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
        """Whether its slot is from the fallback of a store that is gone."""
        self.together: list[_LateCall] = []
        """The calls whose questions it takes along, if it makes a trip."""

    def __lt__(self, other: _LateCall) -> bool:
        return (self.order, self._number) < (other.order, other._number)


class LateCalls:
    """The calls of one shaper that missed their slots and ask for new ones, by key."""

    def __init__(self, late: Twin[Any]) -> None:
        self._late = late
        self.trips = 0
        """How many trips were made. What was known of a key before the last one is out of date."""
        self.begin()
        _LATE.add(self)

    def begin(self) -> None:
        """Start empty: at first, and in a forked child."""
        self._lock = process.lock()
        self.waiting: dict[str, list[_LateCall]] = {}
        self.under_way: dict[str, _LateCall] = {}
        self._behind: dict[str, list[Alarm]] = {}
        self._moved: dict[PendingWait, None] = {}

    async def ask(self, driver: Driver, key: str, order: int, call: Late) -> Moved:
        """Ask the store when a late call may leave, and until when time stands still for it."""
        own = _LateCall(order, call, driver.alarm())
        try:
            while own.answer is None:
                self._join(key, own)
                if own.together:
                    await self._go(driver, key, own)
                    continue
                traveller = self.under_way.get(key)
                await driver.wait(own.alarm, STUCK_S)
                if not own.alarm.is_set() and traveller is not None:
                    # The loop of the call that made that trip was stopped.
                    self._ended(key, traveller)
                own.alarm = driver.alarm()
        except BaseException as error:
            own.is_gone = True
            self._ended(key, own)
            if not isinstance(error, GeneratorExit):  # a finalizer takes no lock
                self._drop_gone(key)
            raise
        return own.answer

    async def let_go(self, driver: Driver, key: str, order: int) -> bool:
        """Wait for the trip of late calls with earlier slots than this one; returns whether there are any."""
        if key not in self.under_way and key not in self.waiting:
            return False
        alarm = driver.alarm()
        with self._lock:
            traveller = self.under_way.get(key)
            late = (*(traveller.together if traveller else ()), *self.waiting.get(key, ()))
            if not any(one.order < order and not one.is_gone for one in late):
                return False
            self._behind.setdefault(key, []).append(alarm)
        await driver.wait(alarm, STUCK_S)
        return True

    def moved(self, call: PendingWait, allowed_us: int, now_us: int) -> None:
        """Restore the order after a call got a new slot: calls behind it with earlier new slots move back by
        one.
        """
        with self._lock:
            behind = [
                other
                for other in list(self._moved)
                if other.is_like(call)
                and other.order > call.order
                and other.due_us < call.due_us
                and other.has_new_slot
                and not other.is_late(allowed_us, now_us)
            ]
            self._moved[call] = None
            together = sorted([call, *behind], key=attrgetter("order"))
            for one, place in zip(together, sorted(one.place for one in together), strict=True):
                one.take_place(place)

    def leaves(self, call: PendingWait) -> bool:
        """Whether a call with a new slot may leave: not if another call has just moved it back."""
        with self._lock:
            if not call.is_over():
                return False
            self.forget(call)
        return True

    def forget(self, call: PendingWait) -> None:
        """Forget a call that no longer waits. Takes no lock, as `_ended` does not."""
        self._moved.pop(call, None)

    async def _go(self, driver: Driver, key: str, own: _LateCall) -> None:
        together = own.together
        answers = await driver.ask(self._late, key, tuple([one.call for one in together]))
        # A fallback of a store that is gone answers nothing: then the calls leave.
        for one, answer in zip(together, answers or [(0, UNKNOWN)] * len(together), strict=True):
            one.answer = answer
        self.trips += 1
        self._ended(key, own)

    def _join(self, key: str, own: _LateCall) -> None:
        """Join the calls that wait for the next trip; if none is under way, prepare to make it for all."""
        with self._lock:
            if own.is_on_trip:
                return
            waiting = self.waiting.setdefault(key, [])
            if own not in waiting:
                insort(waiting, own)
            if key not in self.under_way:
                self.under_way[key] = own
                side = waiting[0].is_local
                own.together = [one for one in waiting if one.is_local is side and not one.is_gone]
                for one in own.together:
                    one.is_on_trip = True
                self.waiting.pop(key, None)
                if apart := [one for one in waiting if one.is_local is not side]:
                    self.waiting[key] = apart

    def _drop_gone(self, key: str) -> None:
        with self._lock:
            if waiting := [one for one in self.waiting.get(key, ()) if not one.is_gone]:
                self.waiting[key] = waiting
            else:
                self.waiting.pop(key, None)

    def _ended(self, key: str, traveller: _LateCall) -> None:
        """Wake all calls after a trip: those still without an answer begin the next one.

        Takes no lock: the finalizer of a dropped coroutine may call this.
        """
        if self.under_way.get(key) is traveller:
            self.under_way.pop(key, None)
        together, traveller.together = traveller.together, []
        for one in (*together, *self.waiting.get(key, ())):
            one.is_on_trip = False
            one.alarm.set()
        for alarm in self._behind.pop(key, ()):
            alarm.set()


_LATE = process.begin_anew(LateCalls.begin)
