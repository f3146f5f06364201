"""Undo: how to give back what an operation took for a caller who did not stay for the answer."""

from __future__ import annotations

from typing import Any, TypeAlias

from shapekit.algorithms.concurrency import REFUSED
from shapekit.algorithms.grant import Grant
from shapekit.stores.base import Operation

Undo: TypeAlias = tuple[Operation, tuple[Any, ...]]


def undos_of(operation: Operation, args: tuple[Any, ...], result: Any) -> tuple[Undo, ...]:
    """What gives back what `operation` took on the same key, one after the other.

    Seats, turns and charges are given back. A turn whose instant has passed, as that of a turn for now has
    by the time anybody hears of it, cannot be cancelled; but its call never leaves, so it has cost nothing,
    which changes nothing where it was cancelled. A debit or a settlement tells of calls that were made, a
    hold of what a server said: they stand, whoever has heard of them.
    """
    if operation in ("check", "commit") and result.allowed:
        return (("refund", (args[0], result.receipt)),)
    if operation == "enter" and result[0] != REFUSED:
        owner, number, _ = args
        return (("leave", (owner, number)),)
    if operation == "reserve" and result[0]:
        grant = Grant(*result)
        _, _, nonce = args[0]
        return ("cancel", (grant,)), ("settle", ((grant, 0, nonce),))
    if operation == "reserve_many":
        taken = tuple(Grant(*granted) for granted in result[1] if granted[0])
        return (("cancel_many", (taken,)),) if taken else ()
    return ()
