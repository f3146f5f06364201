"""Waiting: one sleep until a turn comes, in bounded steps, that can be cut short.

Long waits are slept in chunks: no timer is asked for more than it can hold, a machine that was
suspended notices on waking, and nothing fires early.
"""

from __future__ import annotations

import threading

from shapekit.alarm import AsyncAlarm
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
        self._closed = False

    def sleep(self, delay_us: int) -> None:
        """Block this thread for `delay_us`."""
        until_us = self._clock.now_us() + delay_us
        while (left_us := until_us - self._clock.now_us()) > 0:
            alarm = threading.Event()
            self._enter(alarm)
            try:
                self._clock.sleep(min(left_us / SECOND_US, self._chunk_s), alarm)
            finally:
                self._alarms.discard(alarm)
            self._check_open()

    async def asleep(self, delay_us: int) -> None:
        """Suspend this task for `delay_us`."""
        until_us = self._clock.now_us() + delay_us
        while (left_us := until_us - self._clock.now_us()) > 0:
            alarm = AsyncAlarm()
            self._enter(alarm)
            try:
                await self._clock.asleep(min(left_us / SECOND_US, self._chunk_s), alarm)
            finally:
                self._alarms.discard(alarm)
            self._check_open()

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
    """How long one caller goes on waiting: what was promised, what became of it, when to give up."""

    __slots__ = ("_asked_us", "_clock", "_due_us", "_gives_up_us", "_held", "_key", "_max_wait_us")

    def __init__(
        self,
        clock: Clock,
        key: str,
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
        self._asked_us = clock.now_us()
        self._due_us = self._asked_us + wait_us
        self._gives_up_us = None if timeout_us is None else self._asked_us + timeout_us

    def nap_us(self) -> int:
        """How long to sleep before asking again; 0 when the turn has come."""
        now = self._clock.now_us()
        nap = self._due_us - now
        if nap > 0 and self._gives_up_us is not None:
            if now >= self._gives_up_us:
                waited = (now - self._asked_us) / SECOND_US
                raise TimeoutError(f"gave up waiting for key {self._key!r} after {waited:.6g} s")
            nap = min(nap, self._gives_up_us - now)
        return min(nap, LOOK_US) if self._held else nap

    def hear(self, wait_us: int, held: bool) -> None:
        """What the store says of the turn now; negative if it has forgotten it, and the promise stands."""
        self._held = held
        if wait_us < 0:
            return
        now = self._clock.now_us()
        self._due_us = now + wait_us
        in_all = self._due_us - self._asked_us
        if self._max_wait_us is not None and wait_us > 0 and in_all > self._max_wait_us:
            held_back = Decision(False, 1, 1, 0, self._due_us, in_all - self._max_wait_us)
            raise QueueFullError(held_back, self._key, in_all / SECOND_US, self._max_wait_us / SECOND_US)


def max_wait_us(max_wait: Duration | None) -> int | None:
    """A bound on waiting in microseconds; None for no bound."""
    return None if max_wait is None else duration_us("max_wait", max_wait, least=0, most=MAX_SPAN_US)


def timeout_us(timeout: Duration | None) -> int | None:
    """How long to wait before giving up, in microseconds; None for as long as it takes."""
    return None if timeout is None else duration_us("timeout", timeout, least=0, most=MAX_SPAN_US)
