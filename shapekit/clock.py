"""Clocks: what time it is, and how to wait for a later one.

A clock has two hands. `now_us` is the timeline of rates: it starts at the epoch time of its making
and never steps, whatever somebody does to the system's date. `wall_us` is civil time, which may step;
only calendar quotas ask for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from shapekit.alarm import AsyncAlarm

__all__ = ["Clock", "SystemClock"]


@runtime_checkable
class Clock(Protocol):
    """What a store needs of time. Both hands count epoch microseconds."""

    def now_us(self) -> int:
        """The time that rates run on: it does not step."""
        ...

    def wall_us(self) -> int:
        """Civil time: it may step, in either direction."""
        ...

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        """Block this thread for `seconds`, or until `alarm` is set."""
        ...

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        """Suspend this task for `seconds`, or until `alarm` is set."""
        ...


class SystemClock:
    """The machine's monotonic clock, counted from the epoch time at which this object was made."""

    __slots__ = ("_offset_us",)

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1_000 - time.monotonic_ns() // 1_000

    def now_us(self) -> int:
        return time.monotonic_ns() // 1_000 + self._offset_us

    def ticks(self) -> tuple[Callable[[], int], int]:
        """`now_us` taken apart, for whoever reads it too often for a call: ns, and µs to add to them."""
        return time.monotonic_ns, self._offset_us

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        alarm.wait(seconds)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        await alarm.wait(seconds)

    def __repr__(self) -> str:
        return "SystemClock()"
