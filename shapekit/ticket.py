"""Ticket: a turn that travels, in values that every serializer takes, to whoever makes the call elsewhere."""

from __future__ import annotations

from typing import Any

from shapekit.algorithms.grant import Grant
from shapekit.reservation import Reservation
from shapekit.shaper import Shaper

__all__ = ["received", "sent"]


def sent(turn: Reservation) -> list[Any]:
    """An accepted turn, to be carried away."""
    return [turn.key, *turn.granted]


def received(shaper: Shaper, ticket: list[Any]) -> Reservation:
    """The turn behind a ticket, at the shaper it was taken from or at one like it in another process."""
    key, *granted = ticket
    return Reservation(shaper, key, Grant(*map(_frozen, granted)))


def _frozen(told: Any) -> Any:
    return tuple(map(_frozen, told)) if isinstance(told, list) else told
