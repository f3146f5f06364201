"""The process: what has to happen where it forks, a thread of its own, ids, and the off-switch.

Forks: what has to happen where the process forks, for all parts of it, in one place and one order.

Before a fork, what must not be in the midst of something comes to rest, and is held there until the fork is
over, in both processes. Then, in the child alone, each part begins anew, before any thread of the child can
use it. The order is that of subscribing: modules subscribe when they are imported, so what a module builds
on comes before it.

Ids: numbers that no other process, and no forked child, is likely to give out too.

Background: what shapekit does beside the calls of its users.

A thread of its own does what a finalizer or a callback of a loop cannot do at once: a finalizer runs in the
midst of anything, where any lock may be held by the very thread it runs on, and a callback must not block its
loop. They leave it to that thread: `background_ready` and `in_background`. A process that ends waits for it,
and for the threads that give something back (`UNDER_WAY`), but for no longer than `LAST_S`.

ErrorsLogged: what fails after a call was made is logged, and replaces neither its answer nor its error.
What a signal handler raises, such as the time limit of a task, is no failure of what it interrupts, and
passes: `from_signal`.

The switch: tests of code that is shaped run unshaped.

    >>> from shapekit import Shaper, off
    >>> shaper = Shaper("1/h")
    >>> with off():
    ...     [shaper.reserve().delay for _ in range(3)]
    [0.0, 0.0, 0.0]

`SHAPEKIT_OFF=1` in the environment does the same for a whole process.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any, Generic, TypeVar
from weakref import ref

from shapekit.errors import StoreUnavailableError

__all__ = ["off"]

T = TypeVar("T")
_Rest = Iterator[None]
_Left = tuple[Callable[..., object], tuple[Any, ...]]


class WeakRegistry(Generic[T]):
    """A registry of all of a kind that live. It takes no lock: they come and go at any line of any thread."""

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        self._refs: dict[ref[T], None] = {}

    def add(self, one: T) -> None:
        # What is called when it goes is C alone, so that no signal comes in between.
        self._refs[ref(one, self._refs.pop)] = None

    def __iter__(self) -> Iterator[T]:
        return iter([one for known in list(self._refs) if (one := known()) is not None])


_LOCKS: WeakRegistry[threading.RLock] = WeakRegistry()
_RESTING: list[Callable[[], Iterable[_Rest]]] = []
_IN_CHILD: list[Callable[[], object]] = []
_FORKING = threading.Lock()
_HELD: list[_Rest] = []
"""Generators, each suspended in a `with` of its own: to clear this list is to end them all, and that is one
call in C, which no signal handler can come into."""


def lock() -> threading.RLock:
    """A lock that is free in a forked child: the thread of the parent that may have held it is not there.

    A thread that holds it may take it once more: a finalizer and a signal handler run in the midst of
    anything, and may call shapekit. So under such a lock, what was found is not relied on after a call: it is
    looked at again, or found and changed in one call of C.
    """
    made = threading.RLock()
    _LOCKS.add(made)
    return made


def is_inside(lock: threading.RLock) -> bool:
    """Whether this thread holds a lock: then it is a finalizer or a signal handler that asks."""
    return lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001 - there is no other way


def switches_at_calls() -> bool:
    """Whether another thread comes in only where a signal handler does: where a function begins, after a
    call, and at a jump back. So it is in CPython with its lock, where all between such places is one step.
    """
    has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return sys.implementation.name == "cpython" and has_lock()


def forget_oldest(known: dict[Any, Any]) -> None:
    """Remove the entry that was made first, whatever comes in between."""
    for oldest in known:
        del known[oldest]
        return


def resting(rests: Callable[[], Iterable[_Rest]]) -> None:
    """Before each fork, `rests()` is asked for generators; each yields once at rest, and ends afterwards."""
    _RESTING.append(rests)


def in_child(begin: Callable[[], object]) -> None:
    """In each forked child, `begin()` is called, while no other thread of ours can run."""
    _IN_CHILD.append(begin)


def begin_anew(begin: Callable[[T], object]) -> WeakRegistry[T]:
    """A registry of what begins anew in each forked child: there, `begin` is called with each that lives."""
    registry: WeakRegistry[T] = WeakRegistry()

    def begin_each() -> None:
        for one in registry:
            begin(one)

    in_child(begin_each)
    return registry


def _one_at_a_time() -> _Rest:
    with _FORKING:
        yield


def _before() -> None:
    held = [_one_at_a_time(), *(rest for rests in _RESTING for rest in rests())]
    _HELD.extend(held)
    _each([rest.__next__ for rest in held])
    # A fork of another thread, which has ended while this one waited, has cleared the list.
    _HELD[:] = held


def _begin_child() -> None:
    global _begun_in  # noqa: PLW0603 - a child of this one is another process again
    _begun_in = os.getpid()
    for known in _LOCKS:
        if known.acquire(blocking=False):
            known.release()
        else:
            known._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way
    _each(_IN_CHILD)


def _each(calls: list[Callable[[], object]]) -> None:
    """Call all of them, whatever one of them raises."""
    raised: BaseException | None = None
    for call in calls:
        try:
            call()
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_HELD.clear, after_in_child=_HELD.clear)
    os.register_at_fork(after_in_child=_begin_child)

_begun_in = os.getpid()


def _hook_into_uwsgi() -> None:
    """Go by uWSGI's own hook: its forks call none of the above, unless it is told to call them, too."""
    uwsgi: Any = sys.modules.get("uwsgi")  # inside uWSGI it is there from the start
    if uwsgi is None:
        return
    # The decorators may not be installed, and need a master. Loaded later, they would replace the hook.
    if uwsgi.masterpid():
        set_by_program = dict(vars(uwsgi))
        with suppress(ImportError):
            import uwsgidecorators  # noqa: F401, PLC0415 - as above
        vars(uwsgi).update(set_by_program)
    others = getattr(uwsgi, "post_fork_hook", None)

    def begin() -> None:
        if os.getpid() != _begun_in:
            _begin_child()
        if others is not None:
            others()

    uwsgi.post_fork_hook = begin


_hook_into_uwsgi()


fresh_id: Callable[[], int]
"""The next one; it stays exact in a double. Call it through the module: a fork replaces it."""


def _renew_ids() -> None:
    global fresh_id  # noqa: PLW0603 - a forked child must not repeat its parent's
    fresh_id = count(int.from_bytes(os.urandom(7)) >> 5).__next__


_renew_ids()
in_child(_renew_ids)


NO_THREAD = (
    "no thread is left to ask the store on: the machine has no more, or the main thread has ended and not "
    "waited for this one"
)


def start_thread(thread: threading.Thread) -> None:
    """Start it; StoreUnavailableError if the process gets no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailableError(NO_THREAD) from error


LAST_S = 5.0
"""How much longer work may take whose task is cancelled, or whose loop or process ends: nothing else may ever
end it."""


class _Afterwards:
    """The thread, and what is left for it to do."""

    def __init__(self) -> None:
        self.left: queue.SimpleQueue[_Left] = queue.SimpleQueue()
        self.is_ready = False
        self._lock = threading.RLock()

    def start(self) -> None:
        with self._lock:
            if not self.is_ready:
                if type(before := self.left) is not queue.SimpleQueue:
                    # gevent has patched the standard library since: the thread is a greenlet, and to wait
                    # on a queue from before would stop all others.
                    self.left = queue.SimpleQueue()
                    while not before.empty():
                        self.left.put(before.get())
                start_thread(threading.Thread(target=_work, args=(self.left,), name="shapekit", daemon=True))
                self.is_ready = True
                # Once for each process: a forked child has inherited its parent's. Here rather than on
                # import: functions that a program has registered before, such as one that closes its store,
                # are called afterwards.
                atexit.unregister(_finish)
                atexit.register(_finish)


_here = _Afterwards()


def background_ready() -> None:
    """Start the thread, unless it runs: before anything may be left to it, for a finalizer cannot."""
    if not _here.is_ready:
        _here.start()


def in_background(call: Callable[..., object], *args: Any) -> None:
    """Leave a call to the thread. May be said anywhere: in a finalizer, under any lock."""
    _here.left.put((call, args))


def _work(left: queue.SimpleQueue[_Left]) -> None:
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


UNDER_WAY: WeakRegistry[threading.Thread] = WeakRegistry()
"""Other threads whose work may not be lost: a process that ends waits for them, too."""


def _finish() -> None:
    until = time.monotonic() + LAST_S
    if _here.is_ready:
        reached = threading.Event()
        in_background(reached.set)
        reached.wait(LAST_S)
    for thread in UNDER_WAY:
        thread.join(max(0.0, until - time.monotonic()))


def _forked() -> None:
    global _here  # noqa: PLW0603 - the thread is not there any more, and what it had to do is the parent's
    _here = _Afterwards()


in_child(_forked)


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this. A handler is given a frame, as is nothing else but tracers.

    It is not looked up which handlers are set: many restore the former one before they raise.
    """
    from inspect import getargvalues  # noqa: PLC0415 - only who has an error loads it

    trace = error.__traceback__
    while trace is not None:
        names, variadic, _, values = getargvalues(trace.tb_frame)
        given = [*map(values.get, names)]
        if isinstance(others := values.get(variadic or ""), tuple):
            given += others
        # `isinstance` would run code of what is given.
        if any(type(one) is FrameType for one in given):
            return True
        trace = trace.tb_next
    return False


class ErrorsLogged:
    """A context for what shapekit does after a call of the user's: it raises no Exception.

    A store that is gone is logged as a warning, everything else as a mistake, with its traceback. What is no
    Exception, such as an interrupt or a cancellation, goes on to the caller, and so does what a signal
    handler raises.
    """

    __slots__ = ("_key", "_log", "_what")

    def __init__(self, key: str, what: str, log: str = "shapekit.policy") -> None:
        self._key = key
        self._what = what
        self._log = log

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or from_signal(error):
            return False
        import logging  # noqa: PLC0415 - only who has something to say loads it

        log = logging.getLogger(self._log)
        if isinstance(error, StoreUnavailableError):
            log.warning("key %r %s: %s", self._key, self._what, error)
        else:
            log.error("key %r %s: %s", self._key, self._what, error, exc_info=error)
        return True


class Switch:
    """Whether calls are shaped in this process, and whether there are listeners.

    It takes no lock and counts nothing: each `off` is an entry of `offs` and of `loud`, each shaper that has
    listeners one of `loud`, and where that is empty all is plain. So a shaper that is collected, at whatever
    line of whatever thread, is gone from it by one call of C.
    """

    __slots__ = ("loud", "offs")

    def __init__(self, *, is_off: bool) -> None:
        self.offs: dict[object, None] = {}
        self.loud: dict[object, None] = {}
        if is_off:
            self.loud[self] = self.offs[self] = None


def _from_environment() -> Switch:
    told = os.environ.get("SHAPEKIT_OFF", "")
    word = told.strip().lower()
    is_off = word in ("1", "true", "yes", "on")
    if word not in ("", "0", "false", "no", "off"):
        import logging  # noqa: PLC0415 - only who has something to say loads it

        meant = "is set: calls are not shaped" if is_off else "is neither yes nor no, so calls are shaped"
        logging.getLogger("shapekit").warning("SHAPEKIT_OFF=%.80r %s in this process", told, meant)
    return Switch(is_off=is_off)


SWITCH = _from_environment()


@contextmanager
def off() -> Iterator[None]:
    """Inside, every shaper, policy and shaped function of this process lets calls leave at once.

    In all threads and tasks. Gates still answer, since their callers act on the answer. There are no events.
    """
    this = object()
    try:
        SWITCH.loud[this] = SWITCH.offs[this] = None
        yield
    finally:
        try:
            SWITCH.offs.pop(this, None)
        finally:
            SWITCH.loud.pop(this, None)
