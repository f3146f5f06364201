"""Blocking: the warning of a synchronous wait on the thread of an event loop, at the user's own line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from types import FrameType

from shapekit._runtime.event import running_loop

__all__ = ["callers_level", "warn_in_event_loop"]

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
