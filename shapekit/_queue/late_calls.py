"""Late calls: calls of this process that came too late to their slots, and ask the store for others.

Those of a key that are late together, as after a stop of the whole process, share a trip and get their new
slots in the order of the old ones. A call that comes while a trip is under way goes with the next, and a call
that is in time lets those go first that were before it. A call that is late again takes the slot of the first
call behind it that has got another one, too, and that one takes the next: so they keep their order.
"""

from __future__ import annotations

from bisect import insort
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from shapekit._queue.key_status import STUCK_S
from shapekit._runtime import forks
from shapekit._runtime.drivers import Alarm, Driver, Twin
from shapekit.algorithms.queue.queue import UNKNOWN, Late, Moved

if TYPE_CHECKING:
    from shapekit._queue.waiter import PendingWait

__all__ = ["LateCalls"]

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
    """The late calls of one shaper, by key."""

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
        """A call has got another slot: calls behind it that still have earlier ones move on by one."""
        if not call.has_new_slot:
            return
        with self._lock:
            behind = [
                other
                for other in list(self._moved)
                if (other.key, other.cost) == (call.key, call.cost)
                and other.order > call.order
                and other.due_us < call.due_us
                and other.has_new_slot
                and not other.is_late(allowed_us)
            ]
            self._moved[call] = None
            together = sorted([call, *behind], key=attrgetter("order"))
            for one, slot_us in zip(together, sorted(one.due_us for one in together), strict=True):
                one.take_slot(slot_us)

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


_ALL: forks.WeakRegistry[LateCalls] = forks.WeakRegistry()


def _forked() -> None:
    for late_calls in _ALL:
        late_calls.begin()


forks.in_child(_forked)
