"""HostClock: one timeline for all processes of a host."""

from __future__ import annotations

import threading
import time
from functools import cache, partial
from pathlib import Path

from shapekit._runtime.event import AsyncAlarm
from shapekit.stores.sqlite.file import Execute

_TICKING = (
    getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) if hasattr(time, "clock_gettime_ns") else None
)
_ticks_ns = time.monotonic_ns if _TICKING is None else partial(time.clock_gettime_ns, _TICKING)
_HIGHEST = "SELECT max(highest_us, coalesce((SELECT max(written_us) FROM records), 0)) FROM host"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostClock:
    """The time since the host started, counted from an epoch time that all processes agree on.

    It does not step, whatever somebody does to the system's date, and where the system has a clock that
    goes on while the machine sleeps, it is that one. Civil time is the system's.
    """

    __slots__ = ("offset_us",)

    offset_us: int
    """The epoch time at which the host started, as its processes agreed."""

    def __init__(self) -> None:
        self.offset_us = self.wall_us() - self.ticks_us()

    def now_us(self) -> int:
        return self.ticks_us() + self.offset_us

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    def ticks_us(self) -> int:
        """The time since the host started: the same in all its processes."""
        return _ticks_ns() // 1_000

    def boot(self) -> str:
        """Which start of the host this is, where the system can tell; else an empty text."""
        return _boot()

    def agree(self, execute: Execute) -> bool:
        """Take over the offset on which a file's processes have agreed; whether a new one is to be written.

        Time never goes back before the highest that they have seen: where the date was set back while the
        host was down, the timeline goes on from there. Where the system cannot tell one start from another,
        the old offset is kept as long as it leads to no earlier time.
        """
        boot, agreed_us = execute("SELECT boot, offset_us FROM host").fetchone()
        here, ticks_us, offset_us = self.boot(), self.ticks_us(), agreed_us
        if boot != here or not here:
            highest_us = int(execute(_HIGHEST).fetchone()[0])
            if boot != here or ticks_us + agreed_us < highest_us:
                offset_us = max(self.wall_us(), highest_us) - ticks_us
        self.offset_us = offset_us
        return (boot, agreed_us) != (here, offset_us)

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        alarm.wait(seconds)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        await alarm.wait(seconds)

    def __repr__(self) -> str:
        return "HostClock()"


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
