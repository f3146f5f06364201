"""Waiting: one sleep until a turn comes, in bounded steps, that can be cut short.

Long waits are slept in chunks: no timer is asked for more than it can hold, a machine that was
suspended notices on waking, and nothing fires early.
"""

from __future__ import annotations

import threading

from shapekit.alarm import AsyncAlarm
from shapekit.clock import Clock
from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US

CHUNK_S = 60.0


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
