"""Undo: how to give back what an operation took for a caller who did not stay for the answer."""

from __future__ import annotations

from typing import Any

from shapekit.algorithms.grant import Grant
from shapekit.stores.base import Operation


def undo_of(
    operation: Operation, args: tuple[Any, ...], result: Any
) -> tuple[Operation, tuple[Any, ...]] | None:
    """The operation that gives back what `operation` took on the same key; None if it took nothing.

    Turns and charges are given back. A debit or a settlement tells of calls that were made, a hold of
    what a server said: they stand, whoever has heard of them.
    """
    if operation in ("check", "commit") and result.allowed:
        return "refund", (args[0], result.receipt)
    if operation == "reserve" and result[0]:
        return "cancel", (Grant(*result),)
    return None
