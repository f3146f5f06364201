"""The measured subjects: the floor, and every strategy of ours behind `Gate.check`.

Every limit is far away, so that every call is admitted, and the measurement fails if one was not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    LeakyBucket,
    MemoryStore,
    Quota,
    SlidingWindow,
    SlidingWindowLog,
    SystemClock,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.base import Algorithm

FAR = 1_000_000_000
LOG_LIMIT = 1_000
LOG_STEP_US = 100
OURS = frozenset({"shapekit", "floor"})


@dataclass(frozen=True)
class Subject:
    """One row: `call` is the code of one call, `opened` makes anew the names it uses."""

    group: str
    name: str
    call: str
    opened: Callable[[], AbstractContextManager[dict[str, Any]]]
    admitted: Callable[[Any], bool] = bool
    warm_up: int = 2_000

    @property
    def is_ours(self) -> bool:
        """Whether it is no other library: its measurement must not fail."""
        return self.group in OURS


class Floor:
    """The least that a limiter of one process does, in bare Python.

    `check(key="default", *, cost=1)` takes a lock, reads the monotonic clock in microseconds, reads the
    key's state from a dict, stores a new state tuple, and returns an answer. It decides nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, tuple[int, int]] = {}

    def check(self, key: str = "default", *, cost: int = 1) -> bool:
        with self._lock:
            now = time.monotonic_ns() // 1_000
            state = self._states.get(key)
            used = cost if state is None else state[1] + cost
            self._states[key] = (now, used)
            return True


class SteppingClock(SystemClock):
    """Virtual time that moves by one step at each reading, and is no cheaper than the system's clock.

    A log is at its limit, and still admits every call, only if calls come exactly at its rate: real
    time does not oblige. The system's clock is read as well and thrown away, so a row on this clock is
    some tens of ns slower than it would be on the system's, never faster.
    """

    __slots__ = ("_step_us", "_virtual_us")

    def __init__(self, step_us: int) -> None:
        super().__init__()
        self._step_us = step_us
        self._virtual_us = 0

    def now_us(self) -> int:
        super().now_us()
        self._virtual_us += self._step_us
        return self._virtual_us


def floor() -> Subject:
    """The row that all others are measured by."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"check": Floor().check}

    return Subject("floor", "lock + clock + dict", 'check("key")', opened)


def gates() -> list[Subject]:
    """`Gate(GCRA).check` first, then every other strategy, then composites of two parts."""
    gcra, other = GCRA("10/s", burst=FAR), GCRA("100/min", burst=FAR)
    month = Quota(FAR, "month")
    full_log = SlidingWindowLog(LOG_LIMIT, LOG_LIMIT * LOG_STEP_US / 1e6)
    composites = {
        "all_of(GCRA, GCRA)": all_of(a=gcra, b=other),
        "all_of(GCRA, Quota)": all_of(a=gcra, b=month),
        "any_of(GCRA, GCRA)": any_of(a=gcra, b=other),
        "first_of(GCRA, GCRA)": first_of(a=gcra, b=other),
    }
    return [
        gate("GCRA", gcra),
        gate("GCRA, T not in whole µs", GCRA("7/s", burst=FAR // 7)),
        gate("TokenBucket", TokenBucket("10/s", capacity=FAR)),
        gate("LeakyBucket", LeakyBucket("10/s", capacity=FAR)),
        gate("FixedWindow", FixedWindow(FAR, "1m")),
        gate("SlidingWindow", SlidingWindow(FAR, "1m")),
        gate("SlidingWindow, 1 bucket", SlidingWindow(FAR, "1m", buckets=1)),
        gate("SlidingWindow, conservative", SlidingWindow(FAR, "1m", conservative=True)),
        gate("Quota, month", month),
        gate("Quota, month, tz", Quota(FAR, "month", tz="Europe/Berlin")),
        gate(f"SlidingWindowLog, full at {LOG_LIMIT:,}", full_log, SteppingClock(LOG_STEP_US)),
        *(gate(name, composite) for name, composite in composites.items()),
    ]


def gate(name: str, strategy: Algorithm[Any], clock: SystemClock | None = None) -> Subject:
    """`Gate(strategy).check` on a memory store of its own."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        with closing(MemoryStore(clock)) as store:
            yield {"check": Gate(strategy, store=store).check}

    return Subject("shapekit", name, 'check("key")', opened, warm_up=3 * LOG_LIMIT)
