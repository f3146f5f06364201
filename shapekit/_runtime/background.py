"""Background: work on threads of shapekit's own.

One thread of the process does what a finalizer or a callback of a loop cannot do at once: a finalizer runs in
the midst of anything, where any lock may be held by the very thread it runs on, and a callback must not block
its loop. They leave it to that thread: `ready` and `do`.

ThreadCall: a blocking call that runs on a worker thread while a task awaits it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shapekit._runtime import forks
from shapekit._runtime.loops import AsyncAlarm, stop_if_cancelled
from shapekit.errors import StoreUnavailableError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["ThreadCall", "Workers", "do", "ready"]

T = TypeVar("T")


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


MOST_THREADS = 32
"""The most worker threads of one store: further calls wait for one of them, and for nothing else."""
GIVING_BACK = "shapekit-giving-back"
"""What the threads are called that give back what a task took that has gone."""


class Workers:
    """The worker threads of one store, made as they are needed.

    They are not those of anyio, which a program's other blocking calls share: however many tasks wait for a
    store, they take no thread away from other code, and another store that hangs takes none from this one.
    """

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def start(self, work: Callable[..., object], *args: Any) -> None:
        """Run this on a thread, as soon as one is free."""
        process = os.getpid()
        pool = self._pools.get(process)
        if pool is None:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - it loads logging

            # In the child of a fork there are none of its parent's threads.
            pool = self._pools.setdefault(process, ThreadPoolExecutor(MOST_THREADS, "shapekit-store"))
        pool.submit(work, *args)

    def close(self) -> None:
        """Let the threads go as soon as they have nothing to do."""
        self._pools.clear()


class ThreadCall(Generic[T]):
    """Runs `call` once. If the task goes away meanwhile, what the call took is handed to `give_back`.

    A cancelled task does not wait for the thread: whichever of the two comes last sees to it that what was
    taken is given back, and the task lets another thread do it. A store that hangs by now holds up no task.
    No lock is taken: the collector may end the task on the very thread that runs the call.
    """

    __slots__ = ("_abandoned", "_alarm", "_call", "_done", "_failure", "_give_back")

    def __init__(self, call: Callable[[], T], give_back: Callable[[T], object]) -> None:
        self._call = call
        self._give_back = give_back
        self._done: list[T] = []
        """The result, until it is taken to be given back."""
        self._failure: list[BaseException] = []
        self._abandoned = False

    async def run(self, workers: Workers) -> T:
        """The result of the call, from any event loop."""
        from contextvars import copy_context  # noqa: PLC0415 - only stores with I/O need it

        await stop_if_cancelled()
        ready()
        self._alarm = AsyncAlarm()
        try:
            workers.start(copy_context().run, self.work)
            await self._alarm.wait()
        except BaseException as error:
            self._abandoned = True
            if self._done:
                if isinstance(error, GeneratorExit):
                    do(self._send_back)  # a thread that is being started takes locks
                else:
                    self._send_back()
            raise
        if not self._done:
            raise self._failure.pop()  # its traceback holds this frame
        return self._done[0]

    def work(self) -> None:
        is_wanted = not self._abandoned
        if not is_wanted:
            return  # nothing was taken yet, so nothing is
        try:
            self._done.append(self._call())
        except BaseException as error:
            self._failure.append(error)
        if self._abandoned:
            self._take_back()
        self._alarm.set()

    def _send_back(self) -> None:
        # Without more threads, as where the interpreter ends, the store keeps one charge too many.
        with suppress(RuntimeError):
            threading.Thread(target=self._take_back, name=GIVING_BACK, daemon=True).start()

    def _take_back(self) -> None:
        try:
            result = self._done.pop()
        except IndexError:
            return  # of the task and its thread, each of which may come last, the other one has it
        # A store that is gone by now keeps one charge too many, and no caller is left to hear of it.
        with suppress(StoreUnavailableError):
            self._give_back(result)
