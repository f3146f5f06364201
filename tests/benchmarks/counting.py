"""Counting: what a call executes, in numbers that no other program on the machine can change."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import shapekit

_OURS = (str(Path(shapekit.__file__).parent), str(Path(shapekit.__file__).parents[1] / "integrations"))


_known: dict[CodeType, bool] = {}
_TOOL = 4
"""A number that neither a debugger nor a profiler nor coverage takes."""


class Work(NamedTuple):
    """Bytecodes of ours that were executed, and calls that left our code: of C, and of Python elsewhere."""

    bytecodes: int
    calls: int


def is_ours(code: CodeType) -> bool:
    """Whether the code belongs to shapekit."""
    known = _known.get(code)
    if known is None:
        known = _known[code] = code.co_filename.startswith(_OURS)
    return known


class Traced:
    """Counts while it is entered, on this thread.

    Only bytecodes of shapekit: those of anyio or httpx change with their versions. Calls into them are
    counted as calls.
    """

    def __init__(self) -> None:
        self._bytecodes = self._calls = 0
        self._before: Any = None

    @property
    def work(self) -> Work:
        """The counts."""
        return Work(self._bytecodes, self._calls)

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "call":
            return None
        if is_ours(frame.f_code):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._step
        caller = frame.f_back
        if caller is not None and is_ours(caller.f_code):
            self._calls += 1
        return None

    def _step(self, _: FrameType, event: str, __: Any) -> Any:
        if event == "opcode":
            self._bytecodes += 1
        return self._step

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "c_call" and is_ours(frame.f_code):
            self._calls += 1


class Monitored(Traced):
    """The same where Python can be monitored, from 3.12 on."""

    def __enter__(self) -> Self:
        watch = sys.monitoring
        watch.use_tool_id(_TOOL, "shapekit gate")
        watch.register_callback(_TOOL, watch.events.INSTRUCTION, self._instruction)
        watch.register_callback(_TOOL, watch.events.CALL, self._call)
        watch.set_events(_TOOL, watch.events.INSTRUCTION | watch.events.CALL)
        watch.restart_events()
        return self

    def __exit__(self, *_: object) -> None:
        sys.monitoring.set_events(_TOOL, 0)
        sys.monitoring.free_tool_id(_TOOL)

    def _instruction(self, code: CodeType, _: int) -> Any:
        if not is_ours(code):
            return sys.monitoring.DISABLE
        self._bytecodes += 1
        return None

    def _call(self, code: CodeType, _: int, called: Any, __: Any) -> Any:
        if not is_ours(code):
            return sys.monitoring.DISABLE
        inside = getattr(called, "__code__", None)
        if inside is None or not is_ours(inside):
            self._calls += 1
        return None


Counter = Monitored if hasattr(sys, "monitoring") else Traced


def work_of(call: Callable[[], Any], attempts: int = 25) -> Work:
    """The least that the call executes, of some attempts after the first few.

    A store sweeps idle keys now and then, by the clock; the least is the path without.
    """
    for _ in range(5):
        call()
    found = []
    for _ in range(attempts):
        with Counter() as counter:
            call()
        found.append(counter.work)
    return min(found)


def awaited(tasks: asyncio.Runner, step: Callable[[], Awaitable[object]]) -> Callable[[], None]:
    """Awaits what `step` makes in a task, as users do, and keeps no result: asyncio would show it."""

    async def task() -> None:
        await step()

    return lambda: tasks.run(task())
