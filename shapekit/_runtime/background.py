"""Background: what shapekit does beside the calls of its users.

A thread of its own does what a finalizer or a callback of a loop cannot do at once: a finalizer runs in the
midst of anything, where any lock may be held by the very thread it runs on, and a callback must not block its
loop. They leave it to that thread: `ready` and `do`.

ErrorsLogged: what fails after a call was made is logged, and replaces neither its answer nor its error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from shapekit._runtime import forks
from shapekit.errors import StoreUnavailableError

__all__ = ["ErrorsLogged", "do", "ready"]


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


class ErrorsLogged:
    """A context for what shapekit does after a call of the user's: it raises no Exception.

    A store that is gone is logged as a warning, everything else as a mistake, with its traceback. What is no
    Exception, such as an interrupt or a cancellation, goes on to the caller.
    """

    __slots__ = ("_key", "_log", "_what")

    def __init__(self, key: str, what: str, log: str = "shapekit.policy") -> None:
        self._key = key
        self._what = what
        self._log = log

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        import logging  # noqa: PLC0415 - only who has something to say loads it

        log = logging.getLogger(self._log)
        if isinstance(error, StoreUnavailableError):
            log.warning("key %r %s: %s", self._key, self._what, error)
        else:
            log.error("key %r %s: %s", self._key, self._what, error, exc_info=error)
        return True
