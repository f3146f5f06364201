"""One flow, two drivers: what a call does is written once, for threads and for event loops.

A flow is a coroutine function whose first argument is its driver. Whatever takes time (a trip to the store,
a sleep) it asks the driver for. `TASKS` awaits that. `THREADS` does it on the spot: there a flow never
suspends, and `run` takes it from its first line to its last in one step.

Sleepers: one sleep until a slot comes, in bounded steps, that can be cut short. Long waits are slept in
chunks: no timer is asked for more than it can hold, a machine that was suspended notices on waking, and
nothing fires early.

Line: the tasks that sleep on one event loop, in the order in which they go. A loop that comes late to its
timers wakes those that are due in any order. So a task that wakes too early goes on sleeping, and each that
goes wakes the next. Only tasks of that loop touch its line.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

from shapekit._runtime import background, forks
from shapekit._runtime.loops import (
    AsyncAlarm,
    given_back,
    others_first,
    running_loop,
    shielded,
    stop_if_cancelled,
    warn_in_event_loop,
)
from shapekit.clock import VIRTUAL, Clock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US

__all__ = ["CHUNK_S", "TASKS", "THREADS", "Alarm", "Driver", "RealSleepers", "Sleepers", "Twin", "run"]

P = ParamSpec("P")
T = TypeVar("T")
Alarm: TypeAlias = "threading.Event | AsyncAlarm"


class Twin(NamedTuple, Generic[T]):
    """One thing that can be done as a call, and awaited."""

    call: Callable[..., T]
    acall: Callable[..., Awaitable[T]]


class Driver(ABC):
    """What a flow waits by."""

    alarm: Callable[[], Any]
    """Makes what ends a sleep."""

    @abstractmethod
    def ask(self, twin: Twin[T], /, *args: Any, **named: Any) -> Awaitable[T]:
        """What comes of it."""

    @abstractmethod
    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> bool:
        """Until then, or until the alarm `news` rings; tasks of one loop go in the order given, unless this
        says that there was news.
        """

    @abstractmethod
    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        """Let the tasks of this loop go first that are due as well, and have a lower one."""

    @abstractmethod
    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        """Until the alarm rings, or for so long on the clock."""

    @abstractmethod
    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        """Until the alarm rings, or for so long; None for as long as it takes."""

    @abstractmethod
    def loop(self) -> object:
        """The event loop that runs the flow; None in a thread."""

    @abstractmethod
    async def stop_if_cancelled(self) -> None:
        """End here if the task was cancelled already."""

    @abstractmethod
    def shielded(self) -> AbstractContextManager[object]:
        """A context that a cancelled task finishes."""

    @abstractmethod
    def may_be_thrown(self) -> None:
        """Prepare for what the collector does with a coroutine that is thrown away."""

    @abstractmethod
    async def given_back(
        self,
        error: BaseException,
        give_back: Callable[[], Awaitable[object]],
        thrown: Callable[[], object] | None = None,
    ) -> None:
        """Give back what was taken, in an `except BaseException as error` whose block holds something.

        That is awaited in a cancelled task, too. A coroutine that is thrown away awaits nothing: see
        `loops`. Another thread then calls `thrown`, if `may_be_thrown` was called before.
        """


class _Threads(Driver):
    alarm = threading.Event

    async def ask(self, twin: Twin[T], /, *args: Any, **named: Any) -> T:
        return twin.call(*args, **named)

    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> bool:
        if news is None:
            sleepers.sleep(until_us)
        else:
            await sleepers.rest(self, news, until_us)
        return False

    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        """Threads have no order among each other."""

    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        warn_in_event_loop()
        clock.sleep(seconds, alarm)

    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        alarm.wait(seconds)

    def loop(self) -> object:
        return None

    async def stop_if_cancelled(self) -> None:
        """A thread is not cancelled."""

    def shielded(self) -> AbstractContextManager[object]:
        return nullcontext()

    def may_be_thrown(self) -> None:
        """A call in a thread ends by itself."""

    async def given_back(
        self,
        error: BaseException,
        give_back: Callable[[], Awaitable[object]],
        thrown: Callable[[], object] | None = None,
    ) -> None:
        await give_back()


class _Tasks(Driver):
    alarm = AsyncAlarm

    def ask(self, twin: Twin[T], /, *args: Any, **named: Any) -> Awaitable[T]:
        return twin.acall(*args, **named)

    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> bool:
        return await sleepers.asleep(until_us, order, others_too=others_too, news=news)

    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        await sleepers.asleep(due_us, order, others_too=True)

    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        await clock.asleep(seconds, alarm)

    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        await alarm.wait(seconds)

    def loop(self) -> object:
        return running_loop()

    async def stop_if_cancelled(self) -> None:
        await stop_if_cancelled()

    def shielded(self) -> AbstractContextManager[object]:
        return shielded()

    def may_be_thrown(self) -> None:
        background.ready()

    async def given_back(
        self,
        error: BaseException,
        give_back: Callable[[], Awaitable[object]],
        thrown: Callable[[], object] | None = None,
    ) -> None:
        if isinstance(error, GeneratorExit) and thrown is not None:
            background.do(thrown)
        await given_back(error, give_back)


THREADS: Driver = _Threads()
TASKS: Driver = _Tasks()


def run(
    flow: Callable[Concatenate[Driver, P], Coroutine[Any, Any, T]], /, *args: P.args, **named: P.kwargs
) -> T:
    """Take a flow from its first line to its last, in this thread."""
    try:
        # In one line: an interrupt between the two would leave a coroutine that was never awaited.
        flow(THREADS, *args, **named).send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise RuntimeError("a flow waited for something that it did not ask its driver for")


Place: TypeAlias = tuple[int, int, int]
"""When it is due, its slot among those that are due with it, and a number that no other place has."""

_numbers = count()


class Line:
    """Places by their order, each with the alarm that its sleeper waits for."""

    __slots__ = ("_alarms", "_latest_us", "_places")

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._alarms: dict[Place, AsyncAlarm] = {}
        self._latest_us = 0

    def join(self, due_us: int, order: int) -> Place:
        """Stand in line."""
        place = (due_us, order, next(_numbers))
        insort(self._places, place)
        return place

    def begin_wait(self, place: Place, alarm: AsyncAlarm) -> None:
        """Say what wakes the sleeper at this place."""
        self._alarms[place] = alarm

    def is_first(self, place: Place) -> bool:
        """Whether no other goes before."""
        return self._places[0] is place

    def leave(self, place: Place) -> None:
        """Go, or give up."""
        del self._places[bisect_left(self._places, place)]
        self._alarms.pop(place, None)

    def call_first(self, now_us: int) -> None:
        """Wake the sleeper that goes first, if it is due, or was before the clock went back."""
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
    """Everybody who sleeps for one shaper; `close` wakes them all."""

    def __init__(self, clock: Clock, what: str, chunk_s: float = CHUNK_S) -> None:
        self._clock = clock
        self._what = what
        self._chunk_s = chunk_s
        self._alarms: set[Alarm] = set()
        self._lines: dict[object, Line] = {}
        self._lock = forks.lock()
        self._closed = False

    def sleep(self, until_us: int) -> None:
        """Block this thread until then."""
        while (left_us := until_us - self._clock.now_us()) > 0:
            warn_in_event_loop()
            alarm = threading.Event()
            self._enter(alarm)
            try:
                self._clock.sleep(min(left_us / SECOND_US, self._chunk_s), alarm)
            finally:
                self._alarms.discard(alarm)
            self._check_open()

    async def asleep(
        self, until_us: int, order: int = 0, *, others_too: bool = False, news: AsyncAlarm | None = None
    ) -> bool:
        """Suspend this task until then; where there is `news` before, maybe not that long, which is returned.

        Of the tasks on this loop that are due, the first to be due goes first, and of those due together the
        one with the lower `order`; with `others_too`, tasks that are about to come here count.
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
                        await clock.asleep(min(left_us / SECOND_US, self._chunk_s), alarm)
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
        """Sleep until the alarm rings, or until then; None for as long as it takes."""
        while not alarm.is_set() and (step_s := self._step_s(until_us)) > 0:
            self._enter(alarm)
            try:
                await driver.pause(self._clock, step_s, alarm)
            finally:
                self._alarms.discard(alarm)
        self._check_open()

    def _step_s(self, until_us: int | None) -> float:
        if until_us is None:
            return self._chunk_s
        return min((until_us - self._clock.now_us()) / SECOND_US, self._chunk_s)

    @property
    def sleeping(self) -> int:
        """How many sleep now."""
        return len(self._alarms)

    @property
    def is_closed(self) -> bool:
        """Whether waiting here has ended for good."""
        return self._closed

    def close(self) -> None:
        """Wake all sleepers; they raise, and so do all that come to sleep later."""
        with self._lock:
            self._closed = True
            alarms = list(self._alarms)
        for alarm in alarms:
            alarm.set()

    def store_closed(self) -> None:
        """`close`, with all others that wait for what the store has promised."""
        if not self._closed:
            self._what = f"the store of {self._what}"
        self.close()

    def _enter(self, alarm: Alarm) -> None:
        with self._lock:
            self._check_open()
            self._alarms.add(alarm)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(f"{self._what} was closed")


class RealSleepers(Sleepers):
    """Those of a shaper whose store counts by a clock that virtual time does not move."""

    def _enter(self, alarm: Alarm) -> None:
        if VIRTUAL.is_on:
            raise ConfigError(
                "store",
                self._what,
                "would wait in real time: virtual time does not move the clock of its store",
                "give it a MemoryStore in this test, or mark the test shapekit_real_time",
            )
        super()._enter(alarm)
