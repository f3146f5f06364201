"""Waiting: one sleep until a slot comes, in bounded steps, that can be cut short.

Long waits are slept in chunks: no timer is asked for more than it can hold, a machine that was
suspended notices on waking, and nothing fires early.

Line: the tasks that sleep on one event loop, in the order in which they go.

A loop that comes late to its timers wakes those that are due in any order. So a task that wakes too
early goes on sleeping, and each that goes wakes the next. Only tasks of that loop touch its line.

A thread that sleeps while an event loop runs on it is warned, at the user's own line.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import count
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from shapekit._runtime import forks
from shapekit._runtime.loops import AsyncAlarm, others_first, running_loop
from shapekit.clock import VIRTUAL, Clock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import MAX_SPAN_US, SECOND_US, Duration, duration_us

if TYPE_CHECKING:
    from shapekit._runtime.drivers import Driver

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
        self._alarms: set[threading.Event | AsyncAlarm] = set()
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
    ) -> None:
        """Suspend this task until then; where there is `news` before, maybe not that long.

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
                        break
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

    def _enter(self, alarm: threading.Event | AsyncAlarm) -> None:
        with self._lock:
            self._check_open()
            self._alarms.add(alarm)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(f"{self._what} was closed")


class RealSleepers(Sleepers):
    """Those of a shaper whose store counts by a clock that virtual time does not move."""

    def _enter(self, alarm: threading.Event | AsyncAlarm) -> None:
        if VIRTUAL.is_on:
            raise ConfigError(
                "store",
                self._what,
                "would wait in real time: virtual time does not move the clock of its store",
                "give it a MemoryStore in this test, or mark the test shapekit_real_time",
            )
        super()._enter(alarm)


_BETWEEN = ("shapekit", "httpx", "httpx2", "requests", "tenacity", "openai", "anthropic", "contextlib")
"""Packages whose frames stand between a user's line and a wait."""

_AWAITED = {
    "Admission.__enter__": "async with policy.aadmit()",
    "Shaper.__enter__": "async with shaper",
    "Shaper.schedule": "await shaper.aschedule()",
    "_plain.<locals>.call": "async def for the @shaped function",
    "_plain.<locals>.call_at_once": "async def for the @shaped function",
    "_generator.<locals>.call": "async def for the @shaped generator",
    "wrapped.<locals>.call": "the asynchronous client",
    "LLMCall.__enter__": "async with budget.aadmit()",
    "Transport.handle_request": "{library}.AsyncClient",
    "ShapedAdapter.send": "httpx.AsyncClient or aiohttp",
    "_ShapedRetrying.iter": "ashaped_retrying",
    "wait_slot.__call__": "AsyncRetrying and await_slot",
}
"""What to write instead, by the outermost function of shapekit."""


def warn_in_event_loop() -> None:
    """Say that a synchronous wait stops everything else on an event loop's thread: once for each line."""
    if running_loop() is None:
        return
    frames = _between(inspect.currentframe())
    # By default `warnings` shows one text once for each line that it is about.
    warnings.warn(
        f"a synchronous wait blocks the event loop that runs on this thread; use {_awaited(frames)} instead",
        RuntimeWarning,
        stacklevel=len(frames) + 1,
    )


def callers_level() -> int:
    """The `stacklevel` by which a warning of the caller names the user's line that led to it."""
    here = inspect.currentframe()
    return len(_between(here and here.f_back)) + 1


def _awaited(frames: Sequence[FrameType]) -> str:
    for frame in reversed(frames):
        if (name := frame.f_code.co_qualname) in _AWAITED:
            library = getattr(frame.f_locals.get("self"), "library", None)
            return _AWAITED[name].format(library=getattr(library, "__name__", ""))
    return "its awaitable twin"


def _between(frame: FrameType | None) -> list[FrameType]:
    """A frame and those around it, from the inside to the outside, up to the first that is the user's."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frames.append(frame)
        frame = frame.f_back
    return frames


class _AsConfigured:
    """The default of `max_wait` where a call may say its own: what its shaper or policy was made with."""

    def __repr__(self) -> str:
        return "AS_CONFIGURED"


AS_CONFIGURED: Any = _AsConfigured()


def max_wait_us(max_wait: Duration | None) -> int | None:
    """A bound on waiting in microseconds; None for no bound."""
    return None if max_wait is None else duration_us("max_wait", max_wait, least=0, most=MAX_SPAN_US)


def timeout_us(timeout: Duration | None) -> int | None:
    """How long to wait before giving up, in microseconds; None for as long as it takes."""
    return None if timeout is None else duration_us("timeout", timeout, least=0, most=MAX_SPAN_US)
