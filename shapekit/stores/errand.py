"""Errand: a blocking call that runs on a worker thread while a task awaits it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from shapekit.errors import StoreUnavailableError

T = TypeVar("T")

GIVING_BACK = "shapekit-giving-back"
"""What the threads are called that give back what a task took that has gone."""


class Errand(Generic[T]):
    """Runs `call` once. If the task goes away meanwhile, what the call took is handed to `give_back`.

    A cancelled task does not wait for the thread: whichever of the two comes last sees to it that what was
    taken is given back, and the task lets another thread do it. A store that hangs by now holds up nobody.
    """

    __slots__ = ("_abandoned", "_call", "_done", "_give_back", "_lock")

    def __init__(self, call: Callable[[], T], give_back: Callable[[T], object]) -> None:
        self._call = call
        self._give_back = give_back
        self._lock = threading.Lock()
        self._done: list[T] = []
        self._abandoned = False

    async def run(self) -> T:
        """The result of the call, from any event loop."""
        from anyio.to_thread import run_sync  # noqa: PLC0415 - who never awaits need not load an event loop

        try:
            await run_sync(self._work, abandon_on_cancel=True)
            return self._done[0]
        except BaseException:
            with self._lock:
                self._abandoned = True
                done = bool(self._done)
            if done:
                # Without more threads, as where the interpreter ends, the store keeps one charge too many.
                with suppress(RuntimeError):
                    threading.Thread(target=self._take_back, name=GIVING_BACK, daemon=True).start()
            raise

    def _work(self) -> None:
        is_wanted = not self._abandoned
        if not is_wanted:
            return  # nothing was taken yet, so nothing is
        result = self._call()
        with self._lock:
            self._done.append(result)
            abandoned = self._abandoned
        if abandoned:
            self._take_back()

    def _take_back(self) -> None:
        # A store that is gone by now keeps one charge too many; nobody is left to be told.
        with suppress(StoreUnavailableError):
            self._give_back(self._done[0])
