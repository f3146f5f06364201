"""Background: work for another thread, from code that cannot do it at once: a finalizer, a loop's callback.

A finalizer runs in the midst of anything, where any lock may be held by the very thread it runs on, and a
callback must not block its loop. Here they leave what is to be done to one thread of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from shapekit._runtime import forks

__all__ = ["do", "ready"]


class _Afterwards:
    """The thread, and what is left for it to do."""

    def __init__(self) -> None:
        self.left: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self.is_ready = False
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if not self.is_ready:
                threading.Thread(target=_work, args=(self.left,), name="shapekit", daemon=True).start()
                self.is_ready = True


_here = _Afterwards()


def ready() -> None:
    """Start the thread, unless it runs: before anything may be left to it, for a finalizer cannot."""
    if not _here.is_ready:
        _here.start()


def do(call: Callable[..., object], *args: Any) -> None:
    """Leave a call to the thread. May be said anywhere: in a finalizer, under any lock."""
    _here.left.put((call, args))


def _work(left: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]]) -> None:
    while True:
        call, args = left.get()
        try:
            call(*args)
        except BaseException:
            import logging  # noqa: PLC0415 - only who has something to say loads it

            # Whatever it was, also an exit that a listener asks for: what others leave has to be done.
            logging.getLogger("shapekit").exception("what was left to be done afterwards failed")
        # While nothing is to be done, nothing is kept alive.
        del call, args


def _forked() -> None:
    global _here  # noqa: PLW0603 - the thread is not there any more, and what it had to do is the parent's
    _here = _Afterwards()


forks.in_child(_forked)
