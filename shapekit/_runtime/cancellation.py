"""Cancellation: what a task that is cancelled, or a coroutine that is thrown away, may still do.

A cancelled task gives back what it took. A coroutine that is thrown away gives back nothing: its loop was
closed under it, and the collector ends it by GeneratorExit in the midst of anything, where this very thread
may hold any lock. What it took expires unused; what has no end of its own it leaves to `background`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any

from shapekit._runtime import background

__all__ = ["given_back", "giving_back", "running_trio", "shielded", "stop_if_cancelled", "within"]


class giving_back:  # noqa: N801 - reads as what it does: `async with giving_back(…):`
    """A context whose body may end by anything; unless it ends well, `give_back` is awaited with the error.

    Every await that would leave something taken goes through here: also a cancelled task gives back, and a
    coroutine that is thrown away does not. `thrown` is then called by another thread.
    """

    __slots__ = ("_give_back", "_thrown")

    def __init__(
        self,
        give_back: Callable[[BaseException], Awaitable[object]],
        thrown: Callable[[], object] | None = None,
    ) -> None:
        self._give_back = give_back
        self._thrown = thrown
        if thrown is not None:
            background.ready()

    async def __aenter__(self) -> None:
        """Nothing has failed yet."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit and self._thrown is not None:
            background.do(self._thrown)
        if error is not None:
            await given_back(error, partial(self._give_back, error))


async def given_back(error: BaseException, give_back: Callable[[], Awaitable[object]]) -> None:
    """What `giving_back` does with an error: for an `except BaseException`, which costs nothing before."""
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
