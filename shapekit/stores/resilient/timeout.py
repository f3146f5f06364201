"""Deadline: calls that are given up after a time, although nothing can interrupt them.

Python cannot stop a thread that hangs in a call. So the call is made on another thread, and the caller
stops waiting; what the call answers later is nobody's. Threads are kept for a while and used again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US, seconds_text

_IDLE_S = 10.0
"""How long a thread without work is kept."""
_MOST_OVERDUE = 32
"""Calls that hang on after they were given up; with more, nobody asks until some of them end."""


class _Job:
    """One call, with its answer once there is one."""

    __slots__ = ("_answer", "_args", "_call", "_context", "_ended", "_error")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._call = call
        self._args = args
        self._context = copy_context()
        self._ended = threading.Lock()
        self._ended.acquire()
        self._answer: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._answer = self._context.run(self._call, *self._args)
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self._ended.release()

    def ends_within(self, seconds: float) -> bool:
        return self._ended.acquire(timeout=seconds)

    def answer(self) -> Any:
        if self._error is None:
            return self._answer
        try:
            raise self._error
        finally:
            # The traceback holds this frame: without this, error and job would keep each other alive.
            self._error = None


_Inbox: TypeAlias = "SimpleQueue[_Job | None]"


class Deadline:
    """Makes calls on threads of its own, and waits for each at most `timeout_us`."""

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._idle: deque[_Inbox] = deque()
        self._overdue: set[_Job] = set()
        self._process = os.getpid()
        self._closed = False

    def call(self, call: Callable[..., Any], *args: Any) -> Any:
        """What `call` answers in time, or StoreUnavailableError."""
        if self._process != os.getpid():
            self._forked()
        if len(self._overdue) >= _MOST_OVERDUE:
            raise StoreUnavailableError(f"{len(self._overdue)} calls to it hang")
        job = _Job(call, args)
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            try:
                threading.Thread(target=self._work, args=(inbox,), name="shapekit-store", daemon=True).start()
            except RuntimeError:
                # No more threads: the interpreter ends, or the machine is full. Then it may take its time.
                return call(*args)
        inbox.put(job)
        if not job.ends_within(self._timeout_us / SECOND_US):
            self._overdue.add(job)
            if not job.ends_within(0):
                raise self.missed()
            self._overdue.discard(job)
        return job.answer()

    def missed(self) -> StoreUnavailableError:
        """What is raised after the timeout."""
        return StoreUnavailableError(f"no answer within {seconds_text(self._timeout_us)}")

    def close(self) -> None:
        """Let the threads go; one that hangs in a call goes when the call ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, inbox: _Inbox) -> None:
        while (job := self._next(inbox)) is not None:
            job.run()
            # Idle first: whoever is answered and asks again at once finds this thread.
            if not self._closed:
                self._idle.append(inbox)
            job.end()
            self._overdue.discard(job)
            if self._closed:
                return

    def _next(self, inbox: _Inbox) -> _Job | None:
        try:
            return inbox.get(timeout=_IDLE_S)
        except Empty:
            try:
                self._idle.remove(inbox)
            except ValueError:
                # Somebody has just taken this thread.
                return inbox.get()
            return None

    def _forked(self) -> None:
        # The threads are the parent's.
        self._idle = deque()
        self._overdue = set()
        self._process = os.getpid()
