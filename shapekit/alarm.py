"""Alarm: what ends an asynchronous sleep, from any thread.

Threads use `threading.Event`. An event loop's events may only be set on their own loop; this one
knows its loop and can be set from everywhere, also after that loop is gone.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anyio


class AsyncAlarm:
    """Set once, by anybody; awaited on the loop where it was made."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        from anyio import Event  # noqa: PLC0415 - who never awaits need not load an event loop

        self._event: anyio.Event = Event()
        self._loop: Any = running_loop()
        if self._loop is None:
            raise RuntimeError("an AsyncAlarm is made on the event loop where it is awaited")

    def set(self) -> None:
        """End the sleep, at once on the alarm's own loop and soon from anywhere else."""
        try:
            if self.is_here():
                self._event.set()
            elif hasattr(self._loop, "run_sync_soon"):
                self._loop.run_sync_soon(self._event.set)
            else:
                self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            # The loop is closed (trio's RunFinishedError is one too): nobody sleeps there to be told.
            with suppress(RuntimeError):
                self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until set, or for `seconds`."""
        if seconds is None:
            await self._event.wait()
            return
        from anyio import move_on_after  # noqa: PLC0415

        with move_on_after(seconds):
            await self._event.wait()

    def is_here(self) -> bool:
        """Whether its loop is the one that runs on this thread."""
        return running_loop() is self._loop


async def others_first() -> None:
    """Let those run who are ready already."""
    from anyio.lowlevel import checkpoint  # noqa: PLC0415

    await checkpoint()


def shielded() -> AbstractContextManager[object]:
    """What a cancelled task may still finish: giving back its turn."""
    from anyio import CancelScope  # noqa: PLC0415

    return CancelScope(shield=True)


def running_loop() -> Any:
    """The event loop that runs on this thread."""
    if not sys.modules.keys() & {"asyncio", "trio"}:
        return None
    from anyio.lowlevel import current_token  # noqa: PLC0415

    try:
        return current_token().native_token
    except RuntimeError:
        return None
