"""Clocks: what time it is, and how to wait for a later one.

A clock has two readings. `now_us` is the timeline of rates: it starts at the epoch time at which the
clock was made, and never steps, even if the system's date is set. `wall_us` is civil time, which may
step; only calendar quotas use it.

ManualClock: virtual time, for the clock's readers and for its sleepers.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock.now()
    1.5

Sleepers in threads, asyncio and trio wake when virtual time reaches them, so an hour of waiting
costs milliseconds. Time moves in one of two ways:

- by hand: `advance(seconds)`, `set(seconds)`, and `await aadvance(seconds)` on an event loop. Each
  sleeper on the way wakes at its own instant, and acts before time moves on.
- by itself: `ManualClock(autojump=True)` jumps to the next sleeper as soon as no task is awake. A
  test without threads or tasks then simply runs, and its sleeps take no time.

Inside `virtual_time`, every SystemClock of the process shows the time of one ManualClock, so that a policy
made at import time needs no `clock=`. The process forgets what it has counted and learned when virtual time
begins and when it ends, so that each test starts with fresh limits.

Sleepers: the calls of one shaper that sleep until their slots. A long wait is slept in chunks, so that no
timer is set beyond its range, and a machine that was suspended notices it soon after waking. A synchronous
sleep on a thread that runs an event loop emits a warning at the user's line.

Line: the tasks that sleep on one event loop, in the order in which they leave. A loop that is late for its
timers wakes the tasks that are due in any order, so a task that wakes out of order sleeps on, and each task
that leaves wakes the next. Only tasks of that loop touch its line.

StoreClock: an estimate of how far the callers' clock is ahead of the store's.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from shapekit._runtime import process
from shapekit._runtime.drivers import (
    TASKS,
    Alarm,
    AsyncAlarm,
    Driver,
    hidden_tasks,
    others_first,
    running_loop,
)
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US, boolean, exactly

__all__ = ["Clock", "ManualClock", "SystemClock"]

T = TypeVar("T")


@runtime_checkable
class Clock(Protocol):
    """The time of a store: two readings, both in epoch microseconds, and two ways to sleep.

    A clock of your own needs these four methods; it need not be a subclass. Its sleeps may end early: the
    sleeper reads `now_us` again and sleeps on. They must end when the alarm is set, for instance because a
    shaper or store was closed.
    """

    @abstractmethod
    def now_us(self) -> int:
        """The time that rates run on: it does not step."""
        ...

    @abstractmethod
    def wall_us(self) -> int:
        """Civil time: it may step, in either direction."""
        ...

    @abstractmethod
    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        """Block this thread for `seconds`, or until `alarm` is set: `alarm.wait(seconds)` does that."""
        ...

    @abstractmethod
    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        """Suspend this task for `seconds`, or until `alarm` is set: `await alarm.wait(seconds)` does that."""
        ...


class SystemClock:
    """The machine's monotonic clock, counted from the epoch time at which this object was made."""

    __slots__ = ("_offset_us",)

    # Kept where freezegun does not patch it: ticks that freeze and jump could put this clock decades ahead.
    _ticks_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1_000 - self._ticks_ns() // 1_000

    def now_us(self) -> int:
        return self._ticks_ns() // 1_000 + self._offset_us

    def ticks(self) -> tuple[Callable[[], int], int, int]:
        """The parts of `now_us`, for callers that inline it: a tick reader, ticks per µs, offset in µs."""
        return self._ticks_ns, 1_000, self._offset_us

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        alarm.wait(seconds)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        await alarm.wait(seconds)

    def __repr__(self) -> str:
        return "SystemClock()"


class RealClock(SystemClock):
    """A SystemClock that `virtual_time` leaves alone, for stores whose clock is outside this process."""

    __slots__ = ()

    now_us, wall_us = SystemClock.now_us, SystemClock.wall_us
    sleep, asleep = SystemClock.sleep, SystemClock.asleep


_SETTLE_S = 0.1
"""How long, in real time, `advance` waits for a woken thread to sleep again or to end."""
_LOOK_S = 0.005
"""How often, in real time, a clock with `autojump=True` looks whether all others sleep."""
_LOOKS_FOR_WOKEN = 100
"""After so many looks, a sleeper that was woken is no longer waited for: its loop may have been stopped."""
_LATEST_US = 2**52


class _Sleeper:
    __slots__ = ("__weakref__", "alarm", "due_us", "loop", "thread")

    def __init__(
        self, alarm: threading.Event | AsyncAlarm, thread: threading.Thread | None, loop: object = None
    ) -> None:
        self.due_us = 0
        self.alarm = alarm
        self.thread = thread
        self.loop = loop


class ManualClock:
    """A clock of virtual time, for tests. Instants are epoch seconds.

    It stands still until `advance` or `set` moves it; with `autojump=True` it jumps to the next sleeper once
    all threads and tasks that sleep by it are asleep.
    """

    def __init__(self, start: float = 0.0, *, autojump: bool = False) -> None:
        self._now_us = _micros("start", start)
        self._wall_ahead_us = 0
        self._autojump = boolean("autojump", autojump)
        self._lock = process.rlock()
        # Only for wait and notify: its `with` is Python code, where a signal handler could leak the lock.
        self._changed = threading.Condition(self._lock)
        # Weak, as an interrupted sleep may not come to remove its own.
        self._sleepers = weakref.WeakKeyDictionary[_Sleeper, None]()
        """Until they continue: a sleeper whose alarm is set is awake."""
        self._threads: set[threading.Thread] = set()
        self._roused: set[threading.Thread] = set()
        """Threads whose sleep was ended early, until they sleep again."""
        self._driven: set[object] = set()
        """The loops whose tasks sleep here."""
        self._changes = 0
        """How many sleeps have begun or ended."""

    # reading

    def now(self) -> float:
        """Virtual time in seconds."""
        return self._now_us / SECOND_US

    def now_us(self) -> int:
        return self._now_us

    def wall_us(self) -> int:
        return self._now_us + self._wall_ahead_us

    # moving

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds` (not negative), waking each sleeper at its own instant, in order."""
        target = self._now_us + _micros("seconds", seconds)
        self._settle_early()
        while (woken := self._step(target)) is not None:
            for sleeper in woken:
                if sleeper.thread is not None:
                    self._settle(sleeper.thread)
            # The woken threads may have ended the sleep of others.
            self._settle_early()

    async def aadvance(self, seconds: float) -> None:
        """`advance` for tests on an event loop: each task runs at its own instant."""
        target = self._now_us + _micros("seconds", seconds)
        await _others_blocked()
        while self._step(target) is not None:
            await _others_blocked()

    def set(self, seconds: float) -> None:
        """Set the time to `seconds`, which may be in the past. Wakes the sleepers that are due."""
        target = _micros("seconds", seconds)
        if target >= self._now_us:
            self.advance((target - self._now_us) / SECOND_US)
        with self._lock:
            self._now_us = target

    def step_wall(self, seconds: float) -> None:
        """Step civil time alone, as setting the system's date does."""
        wall_us = self.wall_us() + _micros("seconds", seconds, least=-_LATEST_US)
        if not 0 <= wall_us <= _LATEST_US:
            raise ConfigError("seconds", seconds, "leads out of the years from 1970 to 2112", "step less far")
        self._wall_ahead_us = wall_us - self._now_us

    def _step(self, target_us: int) -> list[_Sleeper] | None:
        """Go to the next sleeper's instant, at most to `target_us`, and wake those due; None at the end."""
        with self._lock:
            asleep = [s for s in self._present() if not s.alarm.is_set()]
            due_us = min((s.due_us for s in asleep), default=target_us + 1)
            if due_us > target_us:
                self._now_us = max(self._now_us, target_us)
                return None
            self._now_us = max(self._now_us, due_us)
            due = [s for s in asleep if s.due_us <= self._now_us]
            for sleeper in due:
                sleeper.alarm.set()
            return due

    def _settle_early(self) -> None:
        """Let the threads act whose sleep was ended early and that have not slept since."""
        stuck = {threading.current_thread()}
        while True:
            with self._lock:
                called = [s.thread for s in self._present() if s.thread is not None and s.alarm.is_set()]
                early = self._roused.union(called) - stuck
            if not early:
                return
            stuck.update([thread for thread in early if not self._settle(thread)])

    def _settle(self, thread: threading.Thread) -> bool:
        # A thread is done with its instant when it sleeps here again or has ended. One that waits for
        # something else looks the same as a slow one, so it gets a bounded time.
        def settled() -> bool:
            asleep = any(s.thread is thread and not s.alarm.is_set() for s in self._present())
            return asleep or not thread.is_alive()

        with self._lock:
            self._roused.discard(thread)
            for _ in range(round(_SETTLE_S / 0.001)):
                if self._changed.wait_for(settled, timeout=0.001):
                    return True
            return False

    # sleeping

    def _present(self) -> list[_Sleeper]:
        """The sleepers at this moment; other threads may add and remove some while the list is used."""
        return [s for ref in self._sleepers.keyrefs() if (s := ref()) is not None]

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        sleeper = _Sleeper(alarm, threading.current_thread())
        try:
            self._begin_wait(seconds, sleeper)
            if self._autojump:
                self._jump_until(alarm)
            else:
                alarm.wait()
        finally:
            self._end_wait(sleeper)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        sleeper = _Sleeper(alarm, None, running_loop())
        try:
            self._begin_wait(seconds, sleeper)
            if self._autojump:
                self._start_driver()
            await alarm.wait()
        finally:
            self._end_wait(sleeper)

    def _begin_wait(self, seconds: float, sleeper: _Sleeper) -> None:
        with self._lock:
            sleeper.due_us = self._now_us + max(0, round(seconds * SECOND_US))
            if sleeper.thread is not None:
                self._roused.discard(sleeper.thread)
                if self._autojump:
                    self._threads.add(sleeper.thread)
            if sleeper.due_us <= self._now_us:
                sleeper.alarm.set()
            else:
                self._sleepers[sleeper] = None
            self._changes += 1
            self._changed.notify_all()

    def _end_wait(self, sleeper: _Sleeper) -> None:
        if sleeper.thread is not None and sleeper in self._sleepers and sleeper.due_us > self._now_us:
            # Added before it is removed below, so that it is always found in one of the two.
            self._roused.add(sleeper.thread)
        self._sleepers.pop(sleeper, None)
        self._changes += 1

    # jumping by itself

    def _jump_until(self, alarm: threading.Event) -> None:
        jumps = self._jumps()
        while not alarm.is_set():
            if wait_s := next(jumps):
                alarm.wait(wait_s)

    def _jumps(self) -> Iterator[float]:
        """Jump from sleeper to sleeper; yields after how many seconds of real time to look again."""
        here = threading.current_thread(), running_loop()
        looks, seen = 0, -1
        while True:
            with self._lock:
                looks, seen = looks + 1 if seen == self._changes else 0, self._changes
                sleepers = self._present()
                woken = [s for s in sleepers if s.alarm.is_set()]
                is_busy = any((s.thread or s.loop) not in here for s in woken)
                has_waited = looks >= (_LOOKS_FOR_WOKEN if is_busy else self._looks_for_awake(sleepers))
                if has_waited:
                    seen = -1
                    for sleeper in woken:
                        self._sleepers.pop(sleeper, None)
                    if not is_busy and (rest := self._present()):
                        self._step(min(s.due_us for s in rest))
            yield 0.0 if has_waited else _LOOK_S

    def _looks_for_awake(self, sleepers: list[_Sleeper]) -> int:
        """How many looks awake threads and loops get: they may be waiting for something else."""
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        awake = self._threads - {s.thread for s in sleepers} - {threading.current_thread()}
        return 1 if awake or self._driven - {running_loop()} else 0

    def _start_driver(self) -> None:
        loop = running_loop()
        if loop in self._driven:
            return
        self._driven.add(loop)
        if _is_asyncio(loop):
            task = loop.create_task(self._drive(loop))
            task.add_done_callback(lambda _: self._driven.discard(loop))
        else:
            import trio  # noqa: PLC0415 - only where trio runs already

            trio.lowlevel.spawn_system_task(self._drive, loop)

    async def _drive(self, loop: object) -> None:
        try:
            jumps = self._jumps()
            while self._sleepers:
                await _others_blocked()
                if wait_s := next(jumps):
                    await _real_sleep(wait_s)
        finally:
            self._driven.discard(loop)

    def __repr__(self) -> str:
        return f"ManualClock({self.now()})"


async def _real_sleep(seconds: float) -> None:
    await AsyncAlarm().wait(seconds)


class _Turn:
    """Lets the other tasks of an asyncio loop run once. A test may have replaced `asyncio.sleep`."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def _others_blocked() -> None:
    """Return when every other task of this loop is waiting for something."""
    if not _is_asyncio(running_loop()):
        from trio.testing import wait_all_tasks_blocked  # noqa: PLC0415 - only where trio runs already

        await wait_all_tasks_blocked()
        return
    asyncio = sys.modules["asyncio"]
    this = asyncio.current_task()
    if this is None:
        raise RuntimeError("not called from a task")
    _WATCHERS.add(this)
    try:
        while True:
            await _Turn()
            for task in (*asyncio.all_tasks(), *hidden_tasks()):
                waits_for = getattr(task, "_fut_waiter", None)
                if task not in _WATCHERS and (waits_for is None or waits_for.done()):
                    break
            else:
                return
    finally:
        _WATCHERS.discard(this)


def _is_asyncio(loop: object) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(loop, asyncio.AbstractEventLoop)


_WATCHERS: weakref.WeakSet[Any] = weakref.WeakSet()
"""Tasks inside `_others_blocked`, which do not wait for each other."""


def _micros(field: str, value: object, *, least: int = 0) -> int:
    seconds = exactly(value)
    if seconds is None or not least <= seconds * SECOND_US <= _LATEST_US:
        bound = f"is not a number of seconds from {-(-least // SECOND_US)} to {_LATEST_US // SECOND_US}"
        raise ConfigError(field, value, bound, "pass a float such as 1.5")
    return round(seconds * SECOND_US)


_ALL: dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]] = {}
"""By `id()`, since a store need not be hashable."""


def forgets(one: T, forget: Callable[[T], None]) -> None:
    """Call `forget(one)` whenever virtual time begins or ends, as long as `one` is alive."""
    _ALL[id(one)] = weakref.ref(one, partial(_ALL.pop, id(one))), forget


_VIRTUAL: dict[ManualClock, None] = {}
"""The clocks of the `virtual_time` blocks that are open."""


@contextmanager
def virtual_time() -> Iterator[ManualClock]:
    """Inside, every SystemClock shows virtual time, which jumps from 0 on when all threads and tasks sleep.

    The methods of the class are replaced, so that reading the time costs no more than before. Calls that
    still sleep at the end are woken, and continue by the system's time.
    """
    clock = ManualClock(autojump=True)
    hands = {name: getattr(clock, name) for name in ("now_us", "wall_us", "sleep", "asleep")}
    hands["ticks"] = lambda _: (clock.now_us, 1, 0)
    before = {name: vars(SystemClock)[name] for name in hands}
    try:
        _VIRTUAL[clock] = None
        for name, hand in hands.items():
            setattr(SystemClock, name, hand)
        _forget_all()
        yield clock
    finally:
        for name, hand in before.items():
            setattr(SystemClock, name, hand)
        for sleeper in clock._present():  # noqa: SLF001 - of this module
            sleeper.alarm.set()
        _VIRTUAL.pop(clock, None)
        _forget_all()


def _forget_all() -> None:
    for known, forget in list(_ALL.values()):
        if (one := known()) is not None:
            forget(one)


Place: TypeAlias = tuple[int, int, int]
"""When the sleeper is due, its order among sleepers due at the same time, and a unique number."""

_numbers = count()


class Line:
    """The places of one loop's sleepers, in order, each with the alarm that wakes its sleeper."""

    __slots__ = ("_alarms", "_latest_us", "_places")

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._alarms: dict[Place, AsyncAlarm] = {}
        self._latest_us = 0

    def join(self, due_us: int, order: int) -> Place:
        """Take a place in line; `order` decides between sleepers due at the same time."""
        place = (due_us, order, next(_numbers))
        insort(self._places, place)
        return place

    def begin_wait(self, place: Place, alarm: AsyncAlarm) -> None:
        """Set the alarm that wakes the sleeper at this place."""
        self._alarms[place] = alarm

    def is_first(self, place: Place) -> bool:
        """Whether this place is at the head of the line."""
        return self._places[0] is place

    def leave(self, place: Place) -> None:
        """Remove a place: its sleeper leaves, or gives up."""
        del self._places[bisect_left(self._places, place)]
        self._alarms.pop(place, None)

    def call_first(self, now_us: int) -> None:
        """Wake the sleeper at the head of the line if it is due, or was due before the clock went back."""
        if now_us > self._latest_us:
            self._latest_us = now_us
        if self._places and self._places[0][0] <= self._latest_us:
            alarm = self._alarms.get(self._places[0])
            if alarm is not None:
                alarm.set()

    def __len__(self) -> int:
        return len(self._places)


CHUNK_S = 60.0


class Sleepers:
    """The calls that sleep for one shaper; `close` wakes them all."""

    def __init__(self, clock: Clock, what: str, chunk_s: float = CHUNK_S) -> None:
        self._clock = clock
        self._what = what
        self._chunk_s = chunk_s
        self.is_closed = False
        """Whether `close` was called: from then on every sleep raises."""
        self.begin()
        _SLEEPERS.add(self)

    def begin(self) -> None:
        """Start without sleepers: when made, and in a forked child, which lacks its parent's threads."""
        self._alarms: set[Alarm] = set()
        self._lines: dict[object, Line] = {}
        self.waiting: dict[object, Driver] = {}
        """The slots that waiting calls have taken, until they are given back or used; and the permits, by
        `id()`, since a finalizer gives back one that an interrupted call has dropped.
        """

    async def asleep(
        self, until_us: int, order: int = 0, *, others_too: bool = False, news: AsyncAlarm | None = None
    ) -> bool:
        """Suspend this task until `until_us`; returns True if the alarm `news` ended the sleep earlier.

        Tasks of this loop leave in the order of `until_us`, then of `order`. With `others_too`, tasks that
        are about to sleep here take their places first.
        """
        clock, loop = self._clock, running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = Line()
        place = line.join(until_us, order)
        try:
            if others_too:
                await others_first()
            while (left_us := until_us - clock.now_us()) > 0 or not line.is_first(place):
                alarm = AsyncAlarm()
                if news is not None and left_us > 0:
                    if news.is_set():
                        return True
                    alarm = news
                line.begin_wait(place, alarm)
                self._enter(alarm)
                try:
                    if left_us > 0:
                        await clock.asleep(self._step_s(until_us), alarm)
                    else:
                        line.call_first(until_us)
                        await alarm.wait()
                finally:
                    self._alarms.discard(alarm)
                self._check_open()
            return False
        finally:
            line.leave(place)
            line.call_first(clock.now_us())
            if not line:
                self._lines.pop(loop, None)

    async def rest(self, driver: Driver, alarm: Any, until_us: int | None) -> None:
        """Sleep until the alarm is set, at most until `until_us`; None for no bound."""
        while not alarm.is_set() and (step_s := self._step_s(until_us)) > 0:
            self._enter(alarm)
            try:
                await driver.pause(self._clock, step_s, alarm)
            finally:
                self._alarms.discard(alarm)
        self._check_open()

    def _step_s(self, until_us: int | None) -> float:
        # Computed right before the sleep, since time has passed since the clock was last read.
        if until_us is None:
            return self._chunk_s
        return min(max(0, until_us - self._clock.now_us()) / SECOND_US, self._chunk_s)

    @property
    def sleeping(self) -> int:
        """How many calls sleep now."""
        return len(self._alarms)

    def close(self) -> None:
        """Wake all sleepers, which raise StoreUnavailableError, as every later sleep does."""
        self.is_closed = True
        for alarm in list(self._alarms):
            alarm.set()

    async def given_back(self, driver: Driver) -> None:
        """Wait until the calls that `close` has woken have given back what they took.

        Tasks can do so only while this task awaits, so a thread waits for other threads alone.
        """
        for _ in range(_GIVEN_BACK_MS):
            if not any(driver is TASKS or waiter is driver for waiter in list(self.waiting.values())):
                return
            await driver.wait(driver.alarm(), 0.001)

    def store_closed(self) -> None:
        """`close`, because the store was closed: the errors then name the store."""
        if not self.is_closed:
            self._what = f"the store of {self._what}"
        self.close()

    def _enter(self, alarm: Alarm) -> None:
        if _VIRTUAL and isinstance(self._clock, RealClock):
            bound = "would wait in real time: virtual time does not move the clock of its store"
            fix = "give it a MemoryStore in this test, or mark the test shapekit_real_time"
            raise ConfigError("store", self._what, bound, fix)
        self._check_open()
        self._alarms.add(alarm)
        if self.is_closed:
            # Closed meanwhile by another thread or a finalizer, which may not have seen this alarm.
            alarm.set()

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreUnavailableError(f"{self._what} was closed")


_SLEEPERS = process.begin_anew(Sleepers.begin)

_GIVEN_BACK_MS = 1_000
"""How long `close` waits at most for calls to give back what they took: a lost store has longer timeouts, and
a call that was thrown away gives back nothing.
"""

_ENOUGH = 2
"""How many trips are needed to know how long a quick one takes: the first ones connect and load scripts."""
_SLOWLY = 16
"""A slow answer raises the estimated length of a trip by one part in this many."""
_DRIFT = 5_000
"""Two clocks drift apart by less than 1 µs in this many µs."""


class StoreClock:
    """Estimates from a store's answers how far the callers' clock is ahead of the store's, and how long a
    trip takes.

    An answer carries the store's time, but takes a while to arrive. So each one overestimates the lead, the
    smallest estimate is the best, and the time at which the question left gives a lower bound. Where the
    callers' clock `decides`, the store uses it too, and the lead is 0.
    """

    __slots__ = ("__weakref__", "_answers", "_counted_us", "_known", "_trip_us", "decides", "trip_us")

    def __init__(self, *, decides: bool) -> None:
        self.decides = decides
        self.begin()
        _STORE_CLOCKS.add(self)

    def begin(self) -> None:
        """Start without answers: when made, and in a forked child."""
        self._answers = 0
        self._counted_us = 0
        self._known: tuple[int, int] | None = None
        self._trip_us = 0
        self.trip_us = 0
        """How long a quick trip takes; 0 until enough trips were made to tell."""

    @property
    def lead_us(self) -> int:
        """How far ahead the callers' clock is, by the last answer; 0 if none was recorded."""
        return 0 if self.decides or self._known is None else self._known[0]

    def hear(self, asked_us: int, there_us: int, now_us: int) -> int:
        """Record an answer that arrived at `now_us`; returns how far ahead the callers' clock is."""
        ahead_us = self.ahead_us(there_us, now_us)
        if ahead_us is None or (ahead_us < asked_us - there_us and not self.decides):
            ahead_us = now_us - there_us
        self._known = ahead_us, now_us
        self.took(asked_us, now_us)
        return ahead_us

    def took(self, asked_us: int, now_us: int) -> None:
        """Record a trip that began at `asked_us`, and whose answer has arrived at `now_us`."""
        trip_us, known_us = max(0, now_us - asked_us), self._trip_us
        # A stall of this process, or a crowd that asks at once, does not mean that the store is far away: the
        # answers that it delays count as one.
        is_apart = not asked_us < self._counted_us <= now_us
        if trip_us < known_us or not self._answers:
            self._trip_us = trip_us
        elif is_apart:
            self._trip_us = min(trip_us, known_us + known_us // _SLOWLY + 1)
        if is_apart:
            self._answers += 1
            self._counted_us = now_us
        if self._answers >= _ENOUGH:
            self.trip_us = self._trip_us

    def ahead_us(self, there_us: int, now_us: int) -> int | None:
        """How far ahead the callers' clock is, if it shows `now_us` and the store has just answered
        `there_us`; None if no answer was recorded before.
        """
        if self.decides:
            return 0
        if self._known is None:
            return None
        ahead_us, since_us = self._known
        return min(now_us - there_us, ahead_us + max(0, now_us - since_us) // _DRIFT)


_STORE_CLOCKS = process.begin_anew(StoreClock.begin)
