"""Alarm: what ends an asynchronous sleep, from any thread.

Threads use `threading.Event`. An event loop's events may only be set on their own loop; this one
knows its loop and can be set from everywhere, also after that loop is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
from anyio.lowlevel import current_token


class AsyncAlarm:
    """Set once, by anybody; awaited on the loop where it was made."""

    __slots__ = ("_event", "_loop", "_thread")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._loop: Any = current_token().native_token
        self._thread = threading.get_ident()

    def set(self) -> None:
        """End the sleep, at once on the alarm's own loop and soon from anywhere else."""
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        hand_over: Callable[[Callable[[], None]], object] = (
            self._loop.run_sync_soon
            if hasattr(self._loop, "run_sync_soon")
            else self._loop.call_soon_threadsafe
        )
        try:
            hand_over(self._event.set)
        except RuntimeError:
            # The loop is closed, and with it whoever slept there (trio's RunFinishedError is one too).
            pass

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until set, or for `seconds`."""
        if seconds is None:
            await self._event.wait()
        else:
            with anyio.move_on_after(seconds):
                await self._event.wait()
