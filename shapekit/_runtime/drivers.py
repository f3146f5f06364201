"""Drivers: what a call does is written once, as a flow, for threads and for event loops.

A flow is a coroutine function whose first argument is its driver. It asks the driver for whatever takes time:
a trip to the store, a sleep. `TASKS` awaits that. `THREADS` does it on the spot: there a flow never suspends,
and `run` takes it from its first line to its last in one step.

Alarm: an event that ends sleeps, and stays set. Any thread or signal handler may set it. A `ThreadAlarm` does
without the lock of `threading.Event`. An event loop's own events may only be set on that loop; an
`AsyncAlarm` knows its loop and can be set from anywhere, even after that loop has ended.

Cancellation: a cancelled task gives back what it took. A discarded coroutine gives nothing back: its loop was
closed before it ended, and the garbage collector ends it by GeneratorExit at any point, where this very
thread may hold any lock. What it took expires unused; what never expires is left to the background thread
(`process`).

ThreadCall: a blocking call that runs on a worker thread while a task awaits it.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from functools import partial
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
)
from weakref import WeakKeyDictionary, WeakSet

from shapekit._runtime import process
from shapekit.errors import StoreUnavailableError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from shapekit.clock import Clock, Sleepers

__all__ = ["AsyncAlarm"]


P = ParamSpec("P")
T = TypeVar("T")
Alarm: TypeAlias = "threading.Event | AsyncAlarm"
GiveBack: TypeAlias = Callable[[], Awaitable[object]]


class ThreadAlarm(threading.Event):
    """An event that ends the sleep of threads, and stays set.

    `threading.Event` holds a lock inside `wait`, for which a signal handler of that thread would wait
    forever. Only its type is inherited: if gevent has patched the standard library, the base class is
    gevent's, which keeps its flag elsewhere.
    """

    def __init__(self) -> None:  # the base class would make that lock
        self._flag = False
        self._shut = threading.Lock()
        self._shut.acquire()

    def set(self) -> None:
        self._flag = True
        try:
            self._shut.release()
        except RuntimeError:
            pass  # open already

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the alarm is set, at most for `timeout` seconds; returns whether it was set."""
        if self._flag:
            return True
        if not self._shut.acquire(timeout=-1 if timeout is None else max(0, timeout)):
            return False
        self.set()  # for other waiting threads
        return True


class AsyncAlarm:
    """An event that ends the sleep of a task. Any thread may set it; its own event loop awaits it."""

    __slots__ = ("_is_set", "_loop", "_sleepers")

    def __init__(self) -> None:
        self._loop: Any = running_loop()
        if self._loop is None:
            raise RuntimeError("an AsyncAlarm is made on the event loop where it is awaited")
        self._is_set = False
        self._sleepers: list[Any] = []

    def set(self) -> None:
        """End the sleep: at once in a task of the alarm's own loop, and soon from anywhere else."""
        self._is_set = True
        is_trio = hasattr(self._loop, "run_sync_soon")
        try:
            # Outside of tasks, this may be a signal handler that has interrupted the loop's own sleep.
            if running_loop() is self._loop and (is_trio or sys.modules["asyncio"].current_task()):
                self._wake()
            elif is_trio:
                self._loop.run_sync_soon(self._wake)
            else:
                self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop is closed (trio's RunFinishedError is one too): no task sleeps there any more.
            pass

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the alarm is set, at most for `seconds`."""
        if self._is_set:
            await others_first()
        elif hasattr(self._loop, "run_sync_soon"):
            await self._wait_on_trio(seconds)
        else:
            # A bare timer and a bare future: hundreds of tasks that fall asleep at once must not keep the
            # loop busy.
            sleeper = self._loop.create_future()
            timer = None if seconds is None else self._loop.call_later(seconds, _wake, sleeper)
            self._sleepers.append(sleeper)
            try:
                await sleeper
            finally:
                self._sleepers.remove(sleeper)
                if timer is not None:
                    timer.cancel()

    async def _wait_on_trio(self, seconds: float | None) -> None:
        trio: Any = sys.modules["trio"]
        sleeper = trio.Event()
        self._sleepers.append(sleeper)
        try:
            with DiscardableScope(trio.move_on_after(math.inf if seconds is None else seconds)):
                await sleeper.wait()
        finally:
            self._sleepers.remove(sleeper)

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            _wake(sleeper)


def _wake(sleeper: Any) -> None:
    if hasattr(sleeper, "set"):
        sleeper.set()
    elif not sleeper.done():
        sleeper.set_result(None)


async def others_first() -> None:
    """Let tasks run that are ready already."""
    if (trio := running_trio()) is not None:
        # Trio resumes ready tasks in any order, but all of them before it goes round a second time.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
    else:
        await sys.modules["asyncio"].sleep(0)


def running_loop() -> Any:
    """The event loop that runs on this thread; None without one."""
    # trio first, since it may be the guest of an asyncio loop.
    if (trio := running_trio()) is not None:
        return trio.lowlevel.current_trio_token()
    # It is never imported here: if it is not loaded, none of its loops runs. Another thread may be in the
    # middle of importing it, and importing a part of it meanwhile would break both.
    asyncio: Any = sys.modules.get("asyncio")
    try:
        return asyncio.get_running_loop()
    except (AttributeError, RuntimeError):  # not loaded, half loaded, or not running here
        return None


def has_ended(loop: Any) -> bool:
    """Whether an event loop was closed, so that none of its tasks ever continues."""
    if not hasattr(loop, "run_sync_soon"):
        return bool(loop.is_closed())
    if running_loop() is loop:
        return False
    try:
        loop.run_sync_soon(_nothing, idempotent=True)
    except RuntimeError:
        return True
    return False


def _nothing() -> None:
    """Passed to a loop to find out whether it still accepts callbacks."""


def own_copy(error: Exception) -> Exception:
    """A copy of the exception for each caller: a shared one would collect all their tracebacks."""
    try:
        own = copy(error)
    except Exception:
        return error  # a user's own store may raise what cannot be copied
    own.__cause__ = error.__cause__
    return own


class DiscardableScope(AbstractContextManager[object]):
    """A cancel scope in which a coroutine may be discarded."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def __enter__(self) -> object:
        return self._scope.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool | None:
        if kind is GeneratorExit:
            # The task is gone, so that none can leave the scope.
            with suppress(RuntimeError):
                self._scope.__exit__(kind, error, trace)
            return None
        left: bool | None = self._scope.__exit__(kind, error, trace)
        return left


async def shielded(work: Callable[[], Awaitable[T]]) -> T:
    """Finish work in a task that may be cancelled, such as giving back its slot; returns the work's result.

    A cancellation meanwhile takes effect afterwards. After a `Task.cancel`, the work is cancelled too if it
    takes longer than `LAST_S`; in scopes of trio and anyio, only the store's own timeouts end it.
    """
    if (trio := running_trio()) is not None:
        with DiscardableScope(trio.CancelScope(shield=True)):
            return await work()
    if (loop := running_loop()) is None:
        return await work()
    if _anyio() is None:
        return await _finished(loop, work)
    from anyio import CancelScope  # noqa: PLC0415 - loaded already

    with DiscardableScope(CancelScope(shield=True)):
        return await _finished(loop, work)


async def _finished(loop: Any, work: Callable[[], Awaitable[T]]) -> T:
    asyncio: Any = sys.modules["asyncio"]
    sleeper, is_done, struck = loop.create_future(), False, list[BaseException]()

    async def do() -> T:
        nonlocal is_done
        try:
            return await work()
        finally:
            is_done = True
            if not loop.is_closed():  # else it is discarded, as is the task that waits
                _wake(sleeper)

    task = hidden_task(loop, do)
    while not is_done:
        try:
            await sleeper
        except asyncio.CancelledError as error:
            if not struck:
                loop.call_later(process.LAST_S, task.cancel)
            sleeper, struck = loop.create_future(), [error]
    try:
        answer: T = task.result()
    finally:
        del task  # the traceback of its error holds this frame
        if struck:
            raise struck.pop()  # its traceback holds this frame
    return answer


_HIDDEN: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
"""The tasks of `hidden_task`, by event loop."""


def hidden_task(loop: Any, work: Callable[[], Coroutine[Any, Any, object]]) -> Any:
    """A task that `asyncio.run` does not find when it cancels the tasks that are left at its end.

    Another task has to wait for it, or the loop ends without it.
    """
    task = loop.create_task(work())
    sys.modules["asyncio"]._unregister_task(task)  # noqa: SLF001 - documented, on "Extending" asyncio
    if (hidden := _HIDDEN.get(loop)) is None:
        hidden = _HIDDEN[loop] = WeakSet()
    hidden.add(task)
    return task


def hidden_tasks() -> list[Any]:
    """The tasks of the running loop that `asyncio.all_tasks` does not list."""
    return [task for task in _HIDDEN.get(running_loop(), ()) if not task.done()]


LAST_CALL_S = 0.005
"""How long a loop that finds the time is up may still read what has arrived."""


class PatientTimeout:
    """Like `asyncio.timeout`, but data that arrived while the loop was blocked is read before time is up.

    With `sign`, the time counts from the instant that `sign()` returns.
    """

    __slots__ = ("_handle", "_loop", "_seconds", "_sign", "_timer")

    def __init__(self, seconds: float, sign: Callable[[], float] | None = None) -> None:
        self._seconds = seconds
        self._sign = sign

    def has_expired(self) -> bool:
        """Whether the time is up, so that a TimeoutError is its own."""
        is_expired: bool = self._timer.expired()
        return is_expired

    async def __aenter__(self) -> None:
        asyncio: Any = sys.modules["asyncio"]
        self._loop = asyncio.get_running_loop()
        self._timer = asyncio.timeout(None)
        await self._timer.__aenter__()
        self._handle = self._loop.call_later(self._seconds, self._expire)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._handle.cancel()
        await self._timer.__aexit__(kind, error, trace)

    def _expire(self, *, was_called: bool = False) -> None:
        left_s = 0.0 if self._sign is None else self._sign() + self._seconds - time.monotonic()
        if left_s > 0:
            self._handle = self._loop.call_later(left_s, self._expire)
        elif not was_called:
            self._handle = self._loop.call_later(LAST_CALL_S, partial(self._expire, was_called=True))
        else:
            self._timer.reschedule(self._loop.time())


async def stop_if_cancelled() -> None:
    """Raise here if this task is cancelled already, before it takes what it could not use.

    Does not wait, and lets no other task run, so that a slot that has come is not delayed.
    """
    modules: Any = sys.modules
    try:
        # `Task.cancel` raises at the next await: anyio knows only its own scopes.
        task = modules["asyncio"].current_task()
        is_struck = task._must_cancel  # noqa: SLF001 - there is no public name
    except (KeyError, AttributeError, RuntimeError):  # no task of asyncio
        if (trio := running_trio()) is not None:  # else the coroutine is driven by hand, without a loop
            await trio.lowlevel.checkpoint_if_cancelled()
        return
    if is_struck:
        await modules["asyncio"].sleep(0)
    if _is_scope_cancelled(task):
        await _anyio().checkpoint_if_cancelled()


def may_be_cancelled() -> bool:
    """Whether `stop_if_cancelled` may raise: a quick check, for the path of every call."""
    modules: Any = sys.modules
    try:
        task = modules["asyncio"].current_task()
        is_struck: bool = task._must_cancel  # noqa: SLF001 - as above
    except (KeyError, AttributeError, RuntimeError):
        return True
    return is_struck or (_ANYIO in modules and _is_scope_cancelled(task))


def _is_scope_cancelled(task: object) -> bool:
    """Whether this task, the current one, is in a cancelled scope of anyio, which raises at every await.

    anyio's own check takes longer than a reservation, so it is made only for tasks with a scope.
    """
    if task not in getattr(sys.modules.get(_ANYIO), "_task_states", (task,)):
        return False
    return (anyio := _anyio()) is not None and anyio.current_effective_deadline() == -math.inf


def running_trio() -> Any:
    """The module trio if one of its tasks runs here, else None."""
    trio: Any = sys.modules.get("trio")
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # not loaded, half loaded, or not running here
        return None
    return trio


def _anyio() -> Any:
    """The asyncio backend of anyio; None if it is not loaded, so that no task is in its scopes.

    Loading it would take longer than a slot. `backend_class` is the last name of its module: once it is
    there, the module is complete.
    """
    return getattr(sys.modules.get(_ANYIO), "backend_class", None)


_ANYIO = "anyio._backends._asyncio"


_BETWEEN = ("shapekit", "httpx", "httpx2", "requests", "tenacity", "openai", "anthropic", "contextlib")
"""Packages whose frames may lie between a user's line and a wait."""

_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`: the flag in the code of an `async def`."""

_AWAITED = {
    "Admission.__enter__": "async with policy.aadmit()",
    "Shaper.__enter__": "async with shaper",
    "Shaper.schedule": "await shaper.aschedule()",
    "_plain.<locals>.call": "async def for the @shaped function",
    "_plain.<locals>.call_at_once": "async def for the @shaped function",
    "_generator.<locals>.call": "async def for the @shaped generator",
    "wrapped.<locals>.call": "the asynchronous client",
    "LLMCall.__enter__": "async with budget.aadmit()",
    "Transport.handle_request": "{library}.AsyncClient",
    "ShapedAdapter.send": "httpx.AsyncClient or aiohttp",
    "_ShapedRetrying.iter": "ashaped_retrying",
    "wait_slot.__call__": "AsyncRetrying and await_slot",
}
"""What to write instead, by the outermost function of shapekit."""


def warn_in_event_loop() -> None:
    """Warn that a synchronous wait blocks the event loop on this thread: once for each line."""
    if running_loop() is None:
        return
    frames = _between(sys._getframe())  # noqa: SLF001 - loading inspect takes a tenth of shapekit's import
    if _is_notebook_cell(frames[-1].f_back):
        return
    # By default, `warnings` shows a text once for each line that it points at.
    warnings.warn(
        f"a synchronous wait blocks the event loop that runs on this thread; use {_awaited(frames)} instead",
        RuntimeWarning,
        stacklevel=len(frames) + 1,
    )


def _is_notebook_cell(frame: FrameType | None) -> bool:
    """Whether the innermost coroutine is the one in which IPython runs a cell.

    All that a cell does without `await` blocks its kernel's loop, so a wait is no mistake there.
    """
    while frame is not None and not frame.f_code.co_flags & _COROUTINE:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("IPython.")


def callers_level() -> int:
    """The `stacklevel` with which a warning of the caller points at the user's line."""
    return len(_between(sys._getframe(1))) + 1  # noqa: SLF001 - as above


def _awaited(frames: Sequence[FrameType]) -> str:
    for frame in reversed(frames):
        if (name := frame.f_code.co_qualname) in _AWAITED:
            library = getattr(frame.f_locals.get("self"), "library", None)
            return _AWAITED[name].format(library=getattr(library, "__name__", ""))
    return "its awaitable twin"


def _between(frame: FrameType | None) -> list[FrameType]:
    """A frame and its callers, from the inside out, up to the first frame of the user's."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frames.append(frame)
        frame = frame.f_back
    return frames


class Twin(NamedTuple, Generic[T]):
    """One operation in two forms: a call for threads, and an awaitable one for tasks."""

    call: Callable[..., T]
    acall: Callable[..., Awaitable[T]]


class Driver:
    """Does what a flow waits for; this one does it for tasks."""

    alarm: Callable[[], Any] = AsyncAlarm
    """Makes an alarm, which ends a sleep."""

    def ask(self, twin: Twin[T], /, *args: Any, **kwargs: Any) -> Awaitable[T]:
        """Do the operation, and return its result."""
        return twin.acall(*args, **kwargs)

    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> bool:
        """Sleep until `until_us`, or until the alarm `news` is set. Tasks of one loop leave in the given
        order, unless this returns True: then there was news.
        """
        return await sleepers.asleep(until_us, order, others_too=others_too, news=news)

    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        """Let tasks of this loop that are due earlier, or as early with a lower `order`, leave first."""
        await sleepers.asleep(due_us, order, others_too=True)

    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        """Sleep until the alarm is set, at most for `seconds` on the clock."""
        await clock.asleep(seconds, alarm)

    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        """Wait until the alarm is set, at most for `seconds`; None for no bound."""
        await alarm.wait(seconds)

    def loop(self) -> object:
        """The event loop that runs the flow; None in a thread."""
        return running_loop()

    async def stop_if_cancelled(self) -> None:
        """Raise here if the task is cancelled already."""
        await stop_if_cancelled()

    async def shielded(self, work: Callable[[], Awaitable[T]]) -> T:
        """Finish work in a task that may be cancelled; returns the work's result."""
        return await shielded(work)

    def may_be_thrown(self) -> None:
        """Start the background thread, to which a discarded coroutine leaves its work."""
        process.background_ready()

    async def given_back(
        self, error: BaseException, give_back: GiveBack, thrown: Callable[[], object] | None = None
    ) -> None:
        """Give back what was taken, in an `except BaseException as error` block. Every await that could leave
        something taken is in such a block.

        A cancelled task awaits that, too. A discarded coroutine awaits nothing: the background thread calls
        `thrown` instead, if `may_be_thrown` was called before.
        """
        if not isinstance(error, GeneratorExit):
            await shielded(give_back)
        elif thrown is not None:
            process.in_background(thrown)


class _Threads(Driver):
    """The same for threads, on the spot: nothing here suspends."""

    alarm = ThreadAlarm

    async def ask(self, twin: Twin[T], /, *args: Any, **kwargs: Any) -> T:
        return twin.call(*args, **kwargs)

    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> bool:
        await sleepers.rest(self, self.alarm() if news is None else news, until_us)
        return False

    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        """Threads have no order among each other."""

    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        warn_in_event_loop()
        clock.sleep(seconds, alarm)

    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        alarm.wait(seconds)

    def loop(self) -> object:
        return None

    async def stop_if_cancelled(self) -> None:
        """A thread is not cancelled."""

    async def shielded(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()

    def may_be_thrown(self) -> None:
        """A call in a thread ends by itself."""

    async def given_back(
        self, error: BaseException, give_back: GiveBack, thrown: Callable[[], object] | None = None
    ) -> None:
        await give_back()


THREADS: Driver = _Threads()
TASKS = Driver()


def run(
    flow: Callable[Concatenate[Driver, P], Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a flow to its end in this thread, and return its result."""
    try:
        # In one line: an interrupt between the two would leave a coroutine that was never awaited.
        flow(THREADS, *args, **kwargs).send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise RuntimeError("a flow waited for something that it did not ask its driver for")


MOST_THREADS = 32
"""The most worker threads of one store: further calls wait until one of them is free."""
GIVING_BACK = "shapekit-giving-back"
"""The name of the threads that give back what an ended task took."""


class Workers:
    """The worker threads of one store, made as they are needed.

    They are not anyio's, which all blocking calls of a program share: however many tasks wait for a store,
    they take no thread away from other code, and a store that hangs takes none away from other stores.
    """

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def start(self, work: Callable[..., object], *args: Any) -> None:
        """Run `work` on a thread, as soon as one is free."""
        own = os.getpid()
        pool = self._pools.get(own)
        try:
            if pool is None:
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - it loads logging

                # By process, since a forked child has none of its parent's threads.
                pool = self._pools.setdefault(own, ThreadPoolExecutor(MOST_THREADS, "shapekit-store"))
            pool.submit(work, *args)
        except RuntimeError as error:
            raise StoreUnavailableError(process.NO_THREAD) from error

    def close(self) -> None:
        """Let the threads end as soon as they have nothing to do."""
        self._pools.clear()


def on_thread(call: Callable[[], T]) -> Twin[T]:
    """A call that takes long and has nothing to give back, as a twin: a task awaits it on another thread."""
    return Twin(call, lambda: ThreadCall(call, lambda _: None).run(Workers()))


class ThreadCall(Generic[T]):
    """Runs `call` once, on a worker thread. If the task ends meanwhile, the result is passed to `give_back`.

    A cancelled task does not wait for the thread: whichever of the two ends last gives the result back, the
    task by another thread, so that a store that hangs holds up no task. No lock is taken: the garbage
    collector may end the task on the very thread that runs the call.
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
        self._alarm = AsyncAlarm()
        try:
            process.background_ready()
            workers.start(copy_context().run, self.work)
            await self._alarm.wait()
        except BaseException as error:
            self._abandoned = True
            if self._done:
                if isinstance(error, GeneratorExit):
                    process.in_background(self._send_back)  # starting a thread takes locks
                else:
                    self._send_back()
            raise
        if not self._done:
            raise self._failure.pop()  # its traceback holds this frame
        return self._done[0]

    def work(self) -> None:
        is_wanted = not self._abandoned
        if not is_wanted:
            return  # nothing was taken, and nothing will be
        try:
            self._done.append(self._call())
        except BaseException as error:
            self._failure.append(error)
        if self._abandoned:
            self._take_back()
        self._alarm.set()

    def _send_back(self) -> None:
        thread = threading.Thread(target=self._take_back, name=GIVING_BACK, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No more threads: the machine has none left, or the interpreter is ending.
            process.in_background(self._take_back)
        else:
            process.UNDER_WAY.add(thread)

    def _take_back(self) -> None:
        try:
            result = self._done.pop()
        except IndexError:
            return  # the task or its thread, whichever came first, has it
        # If the store is gone, one charge too many stays in it, and no caller is left for the error.
        with suppress(StoreUnavailableError):
            self._give_back(result)
