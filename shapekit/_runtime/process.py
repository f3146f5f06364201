"""The process: forks, ids, the background thread, and the off-switch.

Forks: what all parts of shapekit do when the process forks, in one place and one order.

Before a fork, parts that must not be copied halfway through a step come to rest, and stay so until the fork
is over, in both processes. Then, in the child alone, each part begins anew, before any thread of the child
can use it. Parts run in the order in which their modules were imported, so a module comes after those that
it builds on.

Ids: numbers that no other process, and no forked child, is likely to generate too.

Background: a thread for work beside the users' calls.

It does what a finalizer or a callback of an event loop cannot do at once: a finalizer may run at any point,
where its own thread may hold any lock, and a callback must not block its loop. They leave their work to that
thread: `background_ready` starts it, `in_background` passes it a call. At its exit, the process waits for it
and for the threads that give something back (`UNDER_WAY`), but for no longer than `LAST_S`.

ErrorsLogged: errors after a call was made are logged, so that they replace neither its result nor its error.
What a signal handler raises, such as the time limit of a task, is not an error of the code that it
interrupts, and passes through: `from_signal`.

The switch: tests of shaped code can run unshaped.

    >>> from shapekit import Shaper, off
    >>> shaper = Shaper("1/h")
    >>> with off():
    ...     [shaper.reserve().delay for _ in range(3)]
    [0.0, 0.0, 0.0]

`SHAPEKIT_OFF=1` in the environment does the same for a whole process.
"""

from __future__ import annotations

import _thread
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
    """A set of weak references. It takes no lock: objects come and go at any line of any thread."""

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        self._refs: dict[ref[T], None] = {}

    def add(self, one: T) -> None:
        # The callback is a C function, which no signal handler can interrupt.
        self._refs[ref(one, self._refs.pop)] = None

    def __iter__(self) -> Iterator[T]:
        return iter([one for known in list(self._refs) if (one := known()) is not None])


_LOCKS: WeakRegistry[threading.RLock] = WeakRegistry()
_RESTING: list[Callable[[], Iterable[_Rest]]] = []
_IN_CHILD: list[Callable[[], object]] = []
_FORKING = threading.Lock()
_HELD: list[_Rest] = []
"""Generators, each suspended inside a `with`. Clearing this list ends them all in one C call, which no signal
handler can interrupt."""


class WholeLock(_thread.RLock):  # type: ignore[misc]  # it can be a base
    """A reentrant lock that stays free if its `with` is interrupted before the first line.

    On Python 3.14 alone, what a signal handler raises right after a lock was taken leaves it taken for ever
    (python/cpython#148874). Python runs no handler on the return from a function of its own.
    """

    def __enter__(self) -> bool:  # type: ignore[override]  # called without arguments
        try:
            return self.acquire()
        except BaseException:
            try:
                self.release()
            except RuntimeError:
                """It was not taken yet."""
            raise


def rlock() -> threading.RLock:
    """A reentrant lock, to be taken by `with`."""
    made = threading.RLock()
    # Patched by gevent, it is of another type.
    return WholeLock() if sys.version_info[:2] == (3, 14) and type(made) is _thread.RLock else made


def lock() -> threading.RLock:
    """A reentrant lock that is free in a forked child, which lacks the parent's thread that may have held it.

    It is reentrant because finalizers and signal handlers run at any point, and may call shapekit. So code
    under the lock does not rely on what it read before a call: it reads again, or reads and changes in one
    C call.
    """
    made = rlock()
    _LOCKS.add(made)
    return made


def is_inside(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock: then the caller is a finalizer or a signal handler."""
    return lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001 - there is no other way


def switches_at_calls() -> bool:
    """Whether threads switch only where signal handlers run: when a function begins, after a call, and at a
    jump back. CPython with its GIL does so; what lies between such places is one step.
    """
    has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return sys.implementation.name == "cpython" and has_lock()


def make_room(known: dict[Any, Any], most: int) -> None:
    """Of so many entries, or more, remove the one that was made first, whatever comes in between."""
    for oldest in known if len(known) >= most else ():
        del known[oldest]
        return


def resting(rests: Callable[[], Iterable[_Rest]]) -> None:
    """Before each fork, `rests()` returns generators: each yields once it is at rest, and ends afterwards."""
    _RESTING.append(rests)


def in_child(begin: Callable[[], object]) -> None:
    """In each forked child, `begin()` is called before any other thread of shapekit can run."""
    _IN_CHILD.append(begin)


def begin_anew(begin: Callable[[T], object]) -> WeakRegistry[T]:
    """A registry of objects that begin anew in a forked child: there, `begin` is called with each of them."""
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
    # Another thread's fork, which ended while this one waited, has cleared the list.
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
    """Call all of them, even if one raises; the last error is raised at the end."""
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
    """Use uWSGI's own hook: by default, its forks call none of the functions registered above."""
    uwsgi: Any = sys.modules.get("uwsgi")  # inside uWSGI it is there from the start
    if uwsgi is None:
        return
    # The decorators may be missing, and need a master process. Loaded later, they would replace the hook.
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
"""Returns the next id, which is exact in a double. Call it through the module: a fork replaces it."""


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
    """Start a thread; StoreUnavailableError if the process can have no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailableError(NO_THREAD) from error


LAST_S = 5.0
"""How much longer work may take once its task is cancelled, or its loop or process ends: nothing else may
ever end it."""


class _Afterwards:
    """The background thread, and the calls that are left to it."""

    def __init__(self) -> None:
        self.left: queue.SimpleQueue[_Left] = queue.SimpleQueue()
        self.is_ready = False
        self._lock = rlock()

    def start(self) -> None:
        with self._lock:
            if not self.is_ready:
                if type(before := self.left) is not queue.SimpleQueue:
                    # gevent has patched the standard library since: the thread is a greenlet, which would
                    # block all others by waiting on a queue from before.
                    self.left = queue.SimpleQueue()
                    while not before.empty():
                        self.left.put(before.get())
                start_thread(threading.Thread(target=_work, args=(self.left,), name="shapekit", daemon=True))
                self.is_ready = True
                # Once for each process, as a forked child inherits its parent's. Registered here and not on
                # import, so that functions that the program has registered before, such as one that closes
                # its store, are called after this one.
                atexit.unregister(_finish)
                atexit.register(_finish)


_here = _Afterwards()


def background_ready() -> None:
    """Start the thread unless it runs. Called before work may be left to it: a finalizer cannot start it."""
    if not _here.is_ready:
        _here.start()


def in_background(call: Callable[..., object], *args: Any) -> None:
    """Leave a call to the background thread. Safe anywhere: in a finalizer, under any lock."""
    _here.left.put((call, args))


def _work(left: queue.SimpleQueue[_Left]) -> None:
    while True:
        call, args = left.get()
        try:
            call(*args)
        except BaseException:
            import logging  # noqa: PLC0415 - loaded only to log

            # Nothing ends this thread, not even a listener's SystemExit: it has other calls to make.
            logging.getLogger("shapekit").exception("a call on the background thread failed")
        # While the thread waits, it keeps nothing alive.
        del call, args


UNDER_WAY: WeakRegistry[threading.Thread] = WeakRegistry()
"""Other threads whose work must not be lost: at its exit, the process waits for them, too."""


def _finish() -> None:
    until = time.monotonic() + LAST_S
    if _here.is_ready:
        reached = threading.Event()
        in_background(reached.set)
        reached.wait(LAST_S)
    for thread in UNDER_WAY:
        thread.join(max(0.0, until - time.monotonic()))


def _forked() -> None:
    global _here  # noqa: PLW0603 - the child lacks the thread, and what it had to do is the parent's
    _here = _Afterwards()


in_child(_forked)


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this: only handlers, and tracers, get a frame as an argument.

    It does not look up which handlers are set: many restore the previous one before they raise.
    """
    from inspect import getargvalues  # noqa: PLC0415 - only for errors

    trace = error.__traceback__
    while trace is not None:
        names, variadic, _, values = getargvalues(trace.tb_frame)
        given = [*map(values.get, names)]
        if isinstance(others := values.get(variadic or ""), tuple):
            given += others
        # `isinstance` would run the argument's own code.
        if any(type(one) is FrameType for one in given):
            return True
        trace = trace.tb_next
    return False


class ErrorsLogged:
    """A context for what shapekit does after a user's call: it logs every Exception, and raises none.

    An unavailable store is logged as a warning, everything else as an error, with its traceback. Interrupts,
    cancellations, and what a signal handler raises are passed on to the caller.
    """

    __slots__ = ("_key", "_log", "_what")

    def __init__(self, key: str, outcome: str, log: str = "shapekit.policy") -> None:
        self._key = key
        self._what = outcome
        self._log = log

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or from_signal(error):
            return False
        import logging  # noqa: PLC0415 - loaded only to log

        log = logging.getLogger(self._log)
        if isinstance(error, StoreUnavailableError):
            log.warning("key %r %s: %s", self._key, self._what, error)
        else:
            log.error("key %r %s: %s", self._key, self._what, error, exc_info=error)
        return True


class Switch:
    """Whether calls are shaped in this process, and whether there are listeners.

    Each open `off` block is an entry of `offs` and `loud`, each shaper with listeners one of `loud`; while
    `loud` is empty, calls take the fast path. Entries need no lock and no counter: a shaper may be collected
    at any line of any thread, and one C call removes its entry.
    """

    __slots__ = ("loud", "offs")

    def __init__(self, *, is_off: bool) -> None:
        self.offs: dict[object, None] = {}
        self.loud: dict[object, None] = {}
        if is_off:
            self.loud[self] = self.offs[self] = None


def _from_environment() -> Switch:
    value = os.environ.get("SHAPEKIT_OFF", "")
    word = value.strip().lower()
    is_off = word in ("1", "true", "yes", "on")
    if word not in ("", "0", "false", "no", "off"):
        import logging  # noqa: PLC0415 - loaded only to log

        meaning = "is set: calls are not shaped" if is_off else "is neither yes nor no, so calls are shaped"
        logging.getLogger("shapekit").warning("SHAPEKIT_OFF=%.80r %s in this process", value, meaning)
    return Switch(is_off=is_off)


SWITCH = _from_environment()


@contextmanager
def off() -> Iterator[None]:
    """Inside, every shaper, policy and shaped function of this process lets calls leave at once.

    This applies to all threads and tasks. Gates still decide, since their callers act on the decision. There
    are no events.
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
