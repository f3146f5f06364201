"""Grant: what a queue agreed on with one call, in plain values that another process can carry on."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from shapekit.algorithms.constraints import Receipts
from shapekit.decision import Decision


class Grant(NamedTuple):
    """The answer to a reservation, and what is needed to confirm, cancel or settle it."""

    accepted: bool
    wait_us: int
    """How long until the departure; if refused, how long it would have been."""
    departs_at_us: int
    """The departure, on the store's clock."""
    held: bool
    """Whether the queue was held when this was decided."""
    refusal: Decision | None
    """Why it was refused; `binding` names a budget that is spent, and nothing where it is the wait alone."""
    cost: int
    generation: int
    """Which life of the key this is; a reset starts another. Negative if nothing was taken at all."""
    version: int
    start: int
    """Where on the grid the call stands."""
    end: int
    """Where the next call can stand."""
    due_us: int
    """The departure, on the queue's own time."""
    undo: tuple[int, int]
    """The tail and the newest departure before this call."""
    receipts: Receipts


Granted: TypeAlias = tuple[
    bool, int, int, bool, Decision | None, int, int, int, int, int, int, tuple[int, int], Receipts
]
"""A Grant without its names: what the path of every admitted call returns."""

Asked: TypeAlias = tuple[int, int | None, int]
"""The cost, the longest wait, and a nonce that names the generation if this is the key's first call."""
