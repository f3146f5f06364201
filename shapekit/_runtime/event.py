"""Alarm: what ends an asynchronous sleep, from any thread.

Threads use `threading.Event`. An event loop's events may only be set on their own loop; this one
knows its loop and can be set from everywhere, also after that loop is gone.
"""

from __future__ import annotations

import sys
from typing import Any

from shapekit._runtime.cancellation import running_trio, within

__all__ = ["AsyncAlarm", "has_ended", "others_first", "running_loop"]


class AsyncAlarm:
    """What ends the sleep of a task: set once, from any thread; awaited on the loop where it was made."""

    __slots__ = ("_is_set", "_loop", "_sleepers")

    def __init__(self) -> None:
        self._loop: Any = running_loop()
        if self._loop is None:
            raise RuntimeError("an AsyncAlarm is made on the event loop where it is awaited")
        self._is_set = False
        self._sleepers: list[Any] = []

    def set(self) -> None:
        """End the sleep, at once on the alarm's own loop and soon from anywhere else."""
        self._is_set = True
        try:
            if running_loop() is self._loop:
                self._wake()
            elif hasattr(self._loop, "run_sync_soon"):
                self._loop.run_sync_soon(self._wake)
            else:
                self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop is closed (trio's RunFinishedError is one too): no task sleeps there any more.
            pass

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    async def wait(self, seconds: float | None = None) -> None:
        """Until set, or for `seconds`."""
        if self._is_set:
            await others_first()
        elif hasattr(self._loop, "run_sync_soon"):
            await self._wait_on_trio(seconds)
        else:
            # A bare timer and a bare future: hundreds who fall asleep at once must not keep the loop busy.
            sleeper = self._loop.create_future()
            timer = None if seconds is None else self._loop.call_later(seconds, _wake, sleeper)
            self._sleepers.append(sleeper)
            try:
                await sleeper
            finally:
                self._sleepers.remove(sleeper)
                if timer is not None:
                    timer.cancel()

    async def _wait_on_trio(self, seconds: float | None) -> None:
        sleeper = sys.modules["trio"].Event()
        self._sleepers.append(sleeper)
        try:
            with within(seconds):
                await sleeper.wait()
        finally:
            self._sleepers.remove(sleeper)

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            _wake(sleeper)


def _wake(sleeper: Any) -> None:
    if hasattr(sleeper, "set"):
        sleeper.set()
    elif not sleeper.done():
        sleeper.set_result(None)


async def others_first() -> None:
    """Let those run who are ready already."""
    if (trio := running_trio()) is not None:
        await trio.lowlevel.checkpoint()
    else:
        await sys.modules["asyncio"].sleep(0)


def running_loop() -> Any:
    """The event loop that runs on this thread."""
    # First trio's, since it may be the guest of an asyncio loop.
    if (trio := _loaded("trio.lowlevel", "current_trio_token")) is not None:
        try:
            trio.current_task()
            return trio.current_trio_token()
        except RuntimeError:
            pass
    if (asyncio := _loaded("asyncio", "get_running_loop")) is None:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def has_ended(loop: Any) -> bool:
    """Whether an event loop was closed, so that no task of it ever goes on."""
    if not hasattr(loop, "run_sync_soon"):
        return bool(loop.is_closed())
    if running_loop() is loop:
        return False
    try:
        loop.run_sync_soon(_nothing, idempotent=True)
    except RuntimeError:
        return True
    return False


def _nothing() -> None:
    """What a loop is asked to do, to see whether it does anything."""


def _loaded(module: str, function: str) -> Any:
    """The module, if it is there with this function.

    It is never imported from here: where it is not there, none of its loops runs. Another thread may be in
    the middle of importing it, and to import a part of it meanwhile breaks both.
    """
    found = sys.modules.get(module)
    return found if hasattr(found, function) else None
