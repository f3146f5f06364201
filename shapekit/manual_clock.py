"""ManualClock: virtual time, for the clock's readers and for its sleepers.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock.now()
    1.5

Sleepers in threads, asyncio and trio wake when virtual time reaches them, so an hour of waiting
costs milliseconds. Time moves in one of two ways:

- by hand: `advance(seconds)`, `set(seconds)`, and `await aadvance(seconds)` on an event loop. Each
  sleeper on the way is woken at its own instant, and gets to act on it before time moves on.
- by itself: `ManualClock(autojump=True)` jumps to the next sleeper as soon as nobody is awake. A
  test without threads or tasks then simply runs, and its sleeps take no time.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from shapekit.alarm import AsyncAlarm, running_loop
from shapekit.errors import ConfigError
from shapekit.rate import SECOND_US, exactly

__all__ = ["ManualClock"]

_SETTLE_S = 0.1
"""How long, in real time, `advance` waits for a woken thread to sleep again or to end."""
_LATEST_US = 2**52


class _Sleeper:
    __slots__ = ("due_us", "thread", "wake")

    def __init__(self, due_us: int, wake: Callable[[], None], thread: threading.Thread | None) -> None:
        self.due_us = due_us
        self.wake = wake
        self.thread = thread


class ManualClock:
    """A clock that stands still until it is moved. Instants are seconds from the epoch."""

    def __init__(self, start: float = 0.0, *, autojump: bool = False) -> None:
        self._now_us = _instant_us("start", start)
        self._wall_ahead_us = 0
        if type(autojump) is not bool:
            raise ConfigError("autojump", autojump, "is neither True nor False", "pass a bool")
        self._autojump = autojump
        self._changed = threading.Condition(threading.RLock())
        self._sleepers: list[_Sleeper] = []
        self._threads: set[threading.Thread] = set()
        self._driven: set[object] = set()
        self._sleeps = 0

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
        """Move time on, through each sleeper's instant in order. Never negative."""
        target = self._now_us + _instant_us("seconds", seconds)
        while (woken := self._step(target)) is not None:
            for sleeper in woken:
                if sleeper.thread is not None:
                    self._settle(sleeper.thread)

    async def aadvance(self, seconds: float) -> None:
        """`advance` for tests on an event loop: the tasks run at their instants."""
        target = self._now_us + _instant_us("seconds", seconds)
        await _others_blocked()
        while self._step(target) is not None:
            await _others_blocked()

    def set(self, seconds: float) -> None:
        """Put both hands to `seconds`; the past is allowed, on purpose. Wakes whoever is due."""
        target = _instant_us("seconds", seconds)
        if target >= self._now_us:
            self.advance((target - self._now_us) / SECOND_US)
        with self._changed:
            self._now_us = target

    def step_wall(self, seconds: float) -> None:
        """Step civil time alone, as somebody who sets the system's date does."""
        wall_us = self.wall_us() + _micros("seconds", seconds)
        if not 0 <= wall_us <= _LATEST_US:
            raise ConfigError("seconds", seconds, "leads out of the years from 1970 to 2112", "step less far")
        self._wall_ahead_us = wall_us - self._now_us

    def _step(self, target_us: int) -> list[_Sleeper] | None:
        """Go to the next sleeper's instant, at most to `target_us`, and wake those due; None at the end."""
        with self._changed:
            due_us = min((s.due_us for s in self._sleepers), default=target_us + 1)
            if due_us > target_us:
                self._now_us = max(self._now_us, target_us)
                return None
            self._now_us = max(self._now_us, due_us)
            due = [s for s in self._sleepers if s.due_us <= self._now_us]
            self._sleepers = [s for s in self._sleepers if s.due_us > self._now_us]
            for sleeper in due:
                sleeper.wake()
            return due

    def _settle(self, thread: threading.Thread) -> None:
        # A thread has used its instant when it sleeps here again or has ended. One that waits for
        # something else cannot be told from one that is slow: it gets a bounded time.
        def settled() -> bool:
            return not thread.is_alive() or any(s.thread is thread for s in self._sleepers)

        with self._changed:
            for _ in range(round(_SETTLE_S / 0.001)):
                if self._changed.wait_for(settled, timeout=0.001):
                    return

    # sleeping

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        thread = threading.current_thread()
        self._threads.add(thread)
        sleeper = self._lie_down(seconds, alarm.set, thread)
        try:
            if self._autojump:
                self._jump_until(alarm)
            else:
                alarm.wait()
        finally:
            self._get_up(sleeper)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        sleeper = self._lie_down(seconds, alarm.set, None)
        try:
            if self._autojump:
                self._start_driver()
            await alarm.wait()
        finally:
            self._get_up(sleeper)

    def _lie_down(
        self, seconds: float, wake: Callable[[], None], thread: threading.Thread | None
    ) -> _Sleeper:
        with self._changed:
            sleeper = _Sleeper(self._now_us + max(0, round(seconds * SECOND_US)), wake, thread)
            if sleeper.due_us <= self._now_us:
                wake()
            else:
                self._sleepers.append(sleeper)
            self._sleeps += 1
            self._changed.notify_all()
            return sleeper

    def _get_up(self, sleeper: _Sleeper) -> None:
        with self._changed:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    # jumping by itself

    def _jump(self) -> None:
        with self._changed:
            if self._sleepers:
                self._step(min(s.due_us for s in self._sleepers))

    def _jump_until(self, alarm: threading.Event) -> None:
        while not alarm.is_set():
            with self._changed:
                asleep = {s.thread for s in self._sleepers}
                if all(thread in asleep or not thread.is_alive() for thread in self._threads):
                    self._jump()
                    continue
                seen = self._sleeps
            # Somebody is awake. They sleep, they end, or they wait for something else than time.
            if not alarm.wait(0.005) and seen == self._sleeps:
                self._jump()

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
            while self._sleepers:
                await _others_blocked()
                self._jump()
        finally:
            self._driven.discard(loop)

    def __repr__(self) -> str:
        return f"ManualClock({self.now()})"


async def _others_blocked() -> None:
    """Return when every other task of this loop waits for something."""
    from anyio import wait_all_tasks_blocked  # noqa: PLC0415 - who never awaits need not load an event loop
    from anyio.lowlevel import checkpoint  # noqa: PLC0415

    if not _is_asyncio(running_loop()):
        await wait_all_tasks_blocked()
        return
    asyncio = sys.modules["asyncio"]
    this = asyncio.current_task()
    if this is None:
        raise RuntimeError("not called from a task")
    _WATCHERS.add(this)
    try:
        while True:
            await checkpoint()
            for task in asyncio.all_tasks():
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
"""Tasks that wait for all others to wait: they do not wait for each other."""


def _micros(field: str, value: object, *, least: int = -_LATEST_US) -> int:
    seconds = exactly(value)
    if seconds is None or not least <= seconds * SECOND_US <= _LATEST_US:
        raise ConfigError(
            field,
            value,
            "is not a number of seconds that stays before the year 2112",
            "pass a float such as 1.5",
        )
    return round(seconds * SECOND_US)


def _instant_us(field: str, value: object) -> int:
    return _micros(field, value, least=0)
