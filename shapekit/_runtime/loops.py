"""Event loops: which one runs here, what a task of it waits for, and how it is cancelled.

Alarm: what ends an asynchronous sleep, from any thread.

Threads use `threading.Event`. An event loop's events may only be set on their own loop; this one
knows its loop and can be set from everywhere, also after that loop is gone.

Cancellation: what a task that is cancelled, or a coroutine that is thrown away, may still do. A cancelled
task gives back what it took. A coroutine that is thrown away gives back nothing: its loop was closed under
it, and the collector ends it by GeneratorExit in the midst of anything, where this very thread may hold any
lock. What it took expires unused; what has no end of its own it leaves to `background`.

A thread that sleeps while an event loop runs on it is warned, at the user's own line.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FrameType, TracebackType
from typing import Any

__all__ = [
    "AsyncAlarm",
    "callers_level",
    "given_back",
    "has_ended",
    "others_first",
    "running_loop",
    "running_trio",
    "shielded",
    "stop_if_cancelled",
    "warn_in_event_loop",
    "within",
]


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
        """End the sleep, at once on the alarm's own loop and soon from anywhere else."""
        self._is_set = True
        try:
            if running_loop() is self._loop:
                self._wake()
            elif hasattr(self._loop, "run_sync_soon"):
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
        """Wait until the alarm is set, or for `seconds`."""
        if self._is_set:
            await others_first()
        elif hasattr(self._loop, "run_sync_soon"):
            await self._wait_on_trio(seconds)
        else:
            # A bare timer and a bare future: hundreds who fall asleep at once must not keep the loop busy.
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
        sleeper = sys.modules["trio"].Event()
        self._sleepers.append(sleeper)
        try:
            with within(seconds):
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
    """Let those run who are ready already."""
    if (trio := running_trio()) is not None:
        # Trio resumes those in any order, but all of them before it goes round a second time.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
    else:
        await sys.modules["asyncio"].sleep(0)


def running_loop() -> Any:
    """The event loop that runs on this thread."""
    # First trio's, since it may be the guest of an asyncio loop.
    if (trio := _loaded("trio.lowlevel", "current_trio_token")) is not None:
        try:
            trio.current_task()
            return trio.current_trio_token()
        except RuntimeError:
            pass
    if (asyncio := _loaded("asyncio", "get_running_loop")) is None:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def has_ended(loop: Any) -> bool:
    """Whether an event loop was closed, so that no task of it ever goes on."""
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
    """What a loop is asked to do, to see whether it does anything."""


def _loaded(module: str, function: str) -> Any:
    """The module, if it is there with this function.

    It is never imported from here: where it is not there, none of its loops runs. Another thread may be in
    the middle of importing it, and to import a part of it meanwhile breaks both.
    """
    found = sys.modules.get(module)
    return found if hasattr(found, function) else None


async def given_back(error: BaseException, give_back: Callable[[], Awaitable[object]]) -> None:
    """Give back what was taken, in an `except BaseException as error`: also a cancelled task does.

    Every await that would leave something taken stands in such a block. A coroutine that is thrown away gives
    nothing back.
    """
    if not isinstance(error, GeneratorExit):
        with shielded():
            await give_back()


class _Scope(AbstractContextManager[object]):
    """A cancel scope that a coroutine may be thrown away in."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def __enter__(self) -> object:
        return self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is GeneratorExit:
            # Where the task is gone, there is nothing that could leave the scope.
            with suppress(RuntimeError):
                self._scope.__exit__(kind, error, trace)
            return None
        left: bool | None = self._scope.__exit__(kind, error, trace)
        return left


def shielded() -> AbstractContextManager[object]:
    """What a cancelled task may still finish: giving back its slot."""
    if (trio := running_trio()) is not None:
        return _Scope(trio.CancelScope(shield=True))
    if _anyio() is None:
        # What cancels once, as asyncio does, cancels nothing that is awaited afterwards.
        return nullcontext()
    from anyio import CancelScope  # noqa: PLC0415 - loaded already

    return _Scope(CancelScope(shield=True))


def within(seconds: float | None) -> AbstractContextManager[object]:
    """A context whose body is cancelled after so long; None for never."""
    if (trio := running_trio()) is not None:
        return _Scope(trio.move_on_after(math.inf if seconds is None else seconds))
    from anyio import move_on_after  # noqa: PLC0415 - who never awaits need not load it

    return _Scope(move_on_after(seconds))


async def stop_if_cancelled() -> None:
    """End here if this task was cancelled already: what it is about to take would be used for nothing.

    Does not wait, and lets no other task run: so a slot that has come is no slower for it.
    """
    modules: Any = sys.modules
    try:
        # What strikes at the next wait: anyio knows only of its scopes.
        is_struck = modules["asyncio"].current_task()._must_cancel  # noqa: SLF001 - nothing else says it
    except (KeyError, AttributeError, RuntimeError):  # no task of asyncio
        try:
            modules["trio"].lowlevel.current_task()
        except (KeyError, AttributeError, RuntimeError):
            return  # a coroutine that is driven by hand, without a loop
        await modules["trio"].lowlevel.checkpoint_if_cancelled()
        return
    if is_struck:
        await modules["asyncio"].sleep(0)
    if _ANYIO in modules and (anyio := _anyio()) is not None:
        await anyio.checkpoint_if_cancelled()


def running_trio() -> Any:
    """trio, if a task of its runs here; None if not."""
    trio: Any = sys.modules.get("trio")
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # not loaded, or by half; or not at work here
        return None
    return trio


def _anyio() -> Any:
    """How anyio does things on asyncio; None if that is not loaded, so that no task there is in its scopes.

    To load it takes longer than a slot. This name is the last in its module: where it is, all else is.
    """
    return getattr(sys.modules.get(_ANYIO), "backend_class", None)


_ANYIO = "anyio._backends._asyncio"


_BETWEEN = ("shapekit", "httpx", "httpx2", "requests", "tenacity", "openai", "anthropic", "contextlib")
"""Packages whose frames stand between a user's line and a wait."""

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
    """Say that a synchronous wait stops everything else on an event loop's thread: once for each line."""
    if running_loop() is None:
        return
    frames = _between(inspect.currentframe())
    # By default `warnings` shows one text once for each line that it is about.
    warnings.warn(
        f"a synchronous wait blocks the event loop that runs on this thread; use {_awaited(frames)} instead",
        RuntimeWarning,
        stacklevel=len(frames) + 1,
    )


def callers_level() -> int:
    """The `stacklevel` by which a warning of the caller names the user's line that led to it."""
    here = inspect.currentframe()
    return len(_between(here and here.f_back)) + 1


def _awaited(frames: Sequence[FrameType]) -> str:
    for frame in reversed(frames):
        if (name := frame.f_code.co_qualname) in _AWAITED:
            library = getattr(frame.f_locals.get("self"), "library", None)
            return _AWAITED[name].format(library=getattr(library, "__name__", ""))
    return "its awaitable twin"


def _between(frame: FrameType | None) -> list[FrameType]:
    """A frame and those around it, from the inside to the outside, up to the first that is the user's."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frames.append(frame)
        frame = frame.f_back
    return frames
