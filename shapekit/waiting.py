"""Waiting: one sleep until a turn comes, in bounded steps, that can be cut short.

Long waits are slept in chunks: no timer is asked for more than it can hold, a machine that was
suspended notices on waking, and nothing fires early.
"""

from __future__ import annotations

import threading
import warnings
from heapq import heappop, heappush
from itertools import count

from shapekit.alarm import AsyncAlarm, others_first, running_loop
from shapekit.clock import Clock
from shapekit.decision import Decision
from shapekit.errors import QueueFullError, StoreUnavailableError
from shapekit.rate import MAX_SPAN_US, SECOND_US, Duration, duration_us

CHUNK_S = 60.0
LOOK_US = 100_000
"""How often the sleepers of a held key look whether the hold was lifted."""


class Waiters:
    """Everybody who sleeps for one gate or shaper; `close` wakes them all."""

    def __init__(self, clock: Clock, what: str, chunk_s: float = CHUNK_S) -> None:
        self._clock = clock
        self._what = what
        self._chunk_s = chunk_s
        self._alarms: set[threading.Event | AsyncAlarm] = set()
        self._lock = threading.Lock()
        self._line: list[tuple[int, int, AsyncAlarm]] = []
        self._places = count()
        self._closed = False

    def sleep(self, until_us: int) -> None:
        """Block this thread until then."""
        while (left_us := until_us - self._clock.now_us()) > 0:
            alarm = threading.Event()
            self._enter(alarm)
            try:
                self._clock.sleep(min(left_us / SECOND_US, self._chunk_s), alarm)
            finally:
                self._alarms.discard(alarm)
            self._check_open()

    async def asleep(self, until_us: int) -> None:
        """Suspend this task until then; of those who are due, whoever is due first goes first."""
        while (left_us := until_us - self._clock.now_us()) > 0:
            alarm = AsyncAlarm()
            self._enter(alarm)
            with self._lock:
                heappush(self._line, (until_us, next(self._places), alarm))
            try:
                await self._clock.asleep(min(left_us / SECOND_US, self._chunk_s), alarm)
            finally:
                self._alarms.discard(alarm)
            self._check_open()
        while (first := self._first_of_line()) is not None and first[0] < until_us and first[2].is_here():
            # A loop that comes late to its timers may wake us before somebody who was due earlier.
            first[2].set()
            await others_first()

    def _first_of_line(self) -> tuple[int, int, AsyncAlarm] | None:
        with self._lock:
            while self._line and self._line[0][2] not in self._alarms:
                heappop(self._line)
            return self._line[0] if self._line else None

    def close(self) -> None:
        """Wake all sleepers; they raise, and so does whoever comes to sleep later."""
        with self._lock:
            self._closed = True
            alarms = list(self._alarms)
        for alarm in alarms:
            alarm.set()

    def _enter(self, alarm: threading.Event | AsyncAlarm) -> None:
        with self._lock:
            self._check_open()
            self._alarms.add(alarm)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(f"{self._what} was closed")


class Patience:
    """How long one caller goes on waiting: what was promised, what became of it, when to give up.

    All instants are on the clock that the caller sleeps by.
    """

    __slots__ = ("_asked_us", "_clock", "_due_us", "_gives_up_us", "_held", "_key", "_max_wait_us")

    def __init__(
        self,
        clock: Clock,
        key: str,
        due_us: int,
        wait_us: int,
        *,
        held: bool,
        max_wait_us: int | None,
        timeout_us: int | None,
    ) -> None:
        self._clock = clock
        self._key = key
        self._held = held
        self._max_wait_us = max_wait_us
        self._asked_us = due_us - wait_us
        self._due_us = due_us
        self._gives_up_us = None if timeout_us is None else self._asked_us + timeout_us

    def nap_until_us(self) -> int:
        """Until when to sleep before asking again; in the past when the turn has come."""
        now = self._clock.now_us()
        until = self._due_us
        if until > now and self._gives_up_us is not None:
            if now >= self._gives_up_us:
                waited = (now - self._asked_us) / SECOND_US
                raise TimeoutError(f"gave up waiting for key {self._key!r} after {waited:.6g} s")
            until = min(until, self._gives_up_us)
        return min(until, now + LOOK_US) if self._held else until

    def is_over(self) -> bool:
        """Whether the turn has come, as far as is known."""
        return self._due_us <= self._clock.now_us()

    def hear(self, due_us: int, held: bool) -> None:
        """When the turn is now."""
        self._held = held
        self._due_us = due_us
        wait_us = due_us - self._asked_us
        if self._max_wait_us is not None and wait_us > self._max_wait_us and not self.is_over():
            held_back = Decision(False, 1, 1, 0, due_us, wait_us - self._max_wait_us)
            raise QueueFullError(held_back, self._key, wait_us / SECOND_US, self._max_wait_us / SECOND_US)


def max_wait_us(max_wait: Duration | None) -> int | None:
    """A bound on waiting in microseconds; None for no bound."""
    return None if max_wait is None else duration_us("max_wait", max_wait, least=0, most=MAX_SPAN_US)


def timeout_us(timeout: Duration | None) -> int | None:
    """How long to wait before giving up, in microseconds; None for as long as it takes."""
    return None if timeout is None else duration_us("timeout", timeout, least=0, most=MAX_SPAN_US)


_warned = threading.Event()


def warn_in_event_loop() -> None:
    """Say once that a synchronous wait stops everything else on an event loop's thread."""
    if _warned.is_set() or running_loop() is None:
        return
    _warned.set()
    warnings.warn(
        "a synchronous wait blocks the event loop that runs on this thread; await aschedule() instead",
        RuntimeWarning,
        stacklevel=4,
    )
