"""Breaker: who may ask a store that is lost, and when.

Closed, all callers ask. The first failure opens it: none asks until a back-off has passed, then one
caller does, the prober. If it fails, the next back-off is twice as long, up to a bound; if it gets an
answer, the breaker closes. No thread is needed: probers are callers who come by.

Deadline: calls that are given up after a time, although nothing can interrupt them. Python cannot stop a
thread that hangs in a call. So the call is made on another thread, and the caller stops waiting; what the
call answers later is not used. Threads are kept for a while and used again.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeAlias

from shapekit._runtime import background, forks
from shapekit.clock import Clock
from shapekit.errors import StoreUnavailableError, span_words
from shapekit.events import EVERYWHERE, StoreBack, StoreLost
from shapekit.rate import SECOND_US

FIRST_BACK_OFF_US = 250_000
LONGEST_BACK_OFF_US = 10 * SECOND_US
"""Each back-off is cut by up to half, at random, so that many workers do not probe together."""

_NOT_ASKING = -1


class Breaker:
    """Opens when a store is lost, closes when a probe succeeds, and says once that it did either.

    A probe that never ends holds the others up for twice `patience_us`, then another one may try.
    """

    def __init__(
        self,
        clock: Clock,
        what: Callable[[], str],
        patience_us: int,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._what = what
        self._patience_us = patience_us
        self._jitter = jitter
        self._lock = forks.lock()
        self._term = 0
        self._back_off_us = FIRST_BACK_OFF_US
        self._lost_us = 0
        self._asked_us = 0
        self._due_us = 0
        self._cause = ""
        self.is_open = False

    def attempt(self, *, probes: bool = True) -> Attempt:
        """One call's attempt: what comes of it is told to the breaker when the context ends."""
        term = self._term
        if self.is_open:
            term = self._probe() if probes else _NOT_ASKING
        return Attempt(self, term)

    def probe_in_us(self) -> int:
        """How long until a caller may ask again; at least 1."""
        return max(1, self._due_us - self._clock.now_us())

    def refusal(self) -> StoreUnavailableError:
        """What a caller is told who may not ask."""
        wait = span_words(self.probe_in_us())
        return StoreUnavailableError(f"{self._what()} is lost: {self._cause}; it is asked again in {wait}")

    def _probe(self) -> int:
        """The term in which this caller asks; `_NOT_ASKING` if it may not."""
        with self._lock:
            now = self._clock.now_us()
            # A clock that was put back must not keep all callers waiting until it has caught up.
            if self.is_open and self._asked_us <= now < self._due_us:
                return _NOT_ASKING
            if self.is_open:
                self._wait(now, max(2 * self._patience_us, self._back_off_us))
            return self._term

    def lost(self, term: int, cause: BaseException) -> None:
        """An attempt failed. One that began in an earlier term says nothing about this one."""
        with self._lock:
            if term != self._term:
                return
            now = self._clock.now_us()
            news = not self.is_open
            if news:
                self.is_open = True
                self._lost_us = now
                self._back_off_us = FIRST_BACK_OFF_US
            else:
                self._back_off_us = min(2 * self._back_off_us, LONGEST_BACK_OFF_US)
            self._cause = str(cause)
            self._wait(now, self._back_off_us - int(self._back_off_us / 2 * self._jitter()))
        if news:
            _say("lost %s: %s; it is asked again in %s", self._what(), cause, span_words(self.probe_in_us()))
            if EVERYWHERE:
                EVERYWHERE.tell(StoreLost(self._what(), str(cause)))

    def answered(self, term: int) -> None:
        """An attempt was answered."""
        if not self.is_open:
            return
        with self._lock:
            if not self.is_open or term != self._term:
                return
            self.is_open = False
            away_us = max(0, self._clock.now_us() - self._lost_us)
        _say("%s is back after %s", self._what(), span_words(away_us))
        if EVERYWHERE:
            EVERYWHERE.tell(StoreBack(self._what(), away_us / SECOND_US))

    def replaced(self) -> None:
        """Another one has what was lost: it will not be asked for here any more."""
        self.answered(self._term)

    def undecided(self, term: int) -> None:
        """An attempt ended without telling anything: if it was a probe, the next caller makes another."""
        with self._lock:
            if self.is_open and term == self._term:
                self._due_us = self._asked_us

    def _wait(self, now: int, length_us: int) -> None:
        self._term += 1
        self._asked_us = now
        self._due_us = now + length_us


class Attempt:
    """One call's attempt to ask. It swallows StoreUnavailableError: the caller answers otherwise then."""

    __slots__ = ("_breaker", "_term")

    def __init__(self, breaker: Breaker, term: int) -> None:
        self._breaker = breaker
        self._term = term

    def __enter__(self) -> bool:
        """Whether the caller may ask."""
        return self._term != _NOT_ASKING

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._term == _NOT_ASKING:
            return False
        if error is None:
            self._breaker.answered(self._term)
        elif isinstance(error, StoreUnavailableError):
            self._breaker.lost(self._term, error)
            return True
        elif isinstance(error, GeneratorExit):
            background.do(self._breaker.undecided, self._term)  # thrown away, it takes no lock
        else:
            self._breaker.undecided(self._term)
        return False


def _say(message: str, *args: object) -> None:
    import logging  # noqa: PLC0415 - only who loses a store says something

    logging.getLogger("shapekit.store").warning(message, *args)


_IDLE_S = 10.0
"""How long a thread without work is kept."""
_MOST_OVERDUE = 32
"""Calls that hang on after they were given up; with more, no call asks until some of them end."""


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
        self._closed = False
        self.begin()
        _DEADLINES.add(self)

    def begin(self) -> None:
        """Without threads: at first, and in a forked child, because they are its parent's."""
        self._idle: deque[_Inbox] = deque()
        self._overdue: set[_Job] = set()

    def call(self, call: Callable[..., Any], *args: Any) -> Any:
        """What `call` answers in time, or StoreUnavailableError."""
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
        return StoreUnavailableError(f"no answer within {span_words(self._timeout_us)}")

    def close(self) -> None:
        """Let the threads go; one that hangs in a call goes when the call ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, inbox: _Inbox) -> None:
        while (job := self._next(inbox)) is not None:
            job.run()
            # Idle first: a caller that is answered and asks again at once finds this thread.
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


_DEADLINES = forks.begin_anew(Deadline.begin)
