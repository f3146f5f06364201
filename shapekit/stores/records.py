"""Records: what is stored for a key, and how a program is asked about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapekit.algorithms.composite import Composite
from shapekit.stores.base import Key, Operation, Program


def records_of(program: Program, key: Key) -> tuple[tuple[str, str, Any], ...]:
    """`(part, key, its program)` of each record: one, or one for each part of a composite with own keys."""
    if isinstance(key, str):
        return (("", key, program),)
    parts = zip(program.names, program.parts, strict=True) if isinstance(program, Composite) else ()
    return tuple((name, text, part) for (name, part), text in zip(parts, key, strict=True))


def step_of(program: Program, operation: Operation) -> Callable[..., Any]:
    """The method of the program behind an operation."""
    step: Callable[..., Any] = getattr(program, "decide" if operation == "check" else operation)
    return step
