"""Sides: where a call was charged, told from what it was given.

While a store is lost its callers may be charged in another place. What they are given there, a grant's
generation and a decision's receipt, is turned below zero: so it finds back to where it was taken, and in
any other place, also in another process, it is of no generation and of no charge, and moves nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.composite import Composite
from shapekit.algorithms.grant import Grant, Granted
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.decision import Decision, Receipt

_NOWHERE = -1

FOLLOWING = frozenset(("cancel", "cancel_many", "settle", "refund", "debit"))
"""Operations on what an earlier one has taken."""


class Side(Enum):
    """Where something was charged."""

    PRIMARY = "primary"
    LOCAL = "local"
    NOWHERE = "nowhere"


def side_of(taken: Receipt) -> Side:
    """Where the charge of a receipt, or the grant of a generation, was made."""
    while isinstance(taken, tuple):
        taken = next((part for part in taken if part is not None), _NOWHERE)
    if taken is None or taken >= 0:
        return Side.PRIMARY
    return Side.NOWHERE if taken == _NOWHERE else Side.LOCAL


def routed(operation: str, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
    """Where a following operation belongs, and its arguments as that side knows them."""
    match operation:
        case "cancel":
            (grant,) = args
            side = side_of(grant.generation)
            return side, ((_taken_back(grant),) if side is Side.LOCAL else args)
        case "cancel_many":
            (grants,) = args
            # They were taken together, or they would not be given back together.
            side = side_of(grants[0].generation) if grants else Side.PRIMARY
            return side, ((tuple(map(_taken_back, grants)),) if side is Side.LOCAL else args)
        case "settle":
            ((grant, actual, nonce),) = args
            side = side_of(grant.generation)
            return side, (((_taken_back(grant), actual, nonce),) if side is Side.LOCAL else args)
    cost, receipt = args
    side = side_of(receipt)
    if side is Side.LOCAL:
        receipt = _turned(receipt)
    if operation == "debit":
        # What a call turns out to cost more is charged where calls are charged now.
        return Side.PRIMARY, (cost, None if side is Side.NOWHERE else receipt)
    return side, (cost, receipt)


def _turned(receipt: Receipt) -> Receipt:
    """A local receipt for the outside, or back: doing it twice changes nothing."""
    if receipt is None:
        return None
    if isinstance(receipt, tuple):
        return tuple(_turned(part) for part in receipt)
    return -2 - receipt


def uncharged(program: Algorithm[Any]) -> Receipt:
    """The receipt of a call that was charged nowhere."""
    return (None,) * len(program.parts) if isinstance(program, Composite) else _NOWHERE


def given_nowhere(granted: Granted) -> Granted:
    """A grant that nobody took."""
    return (*granted[:6], _NOWHERE, *granted[7:])


def given_locally(granted: Granted, asked: LeakyQueue, local: LeakyQueue) -> Granted:
    """A local grant for the outside, where its end is read in the units of the queue that was asked."""
    if not granted[0]:
        return granted
    end, receipts = granted[9], granted[12]
    shown = -(-end * asked._q // local._q)
    return (*granted[:6], -2 - granted[6], *granted[7:9], shown, *granted[10:12], (end, *receipts))


def _taken_back(grant: Grant) -> Grant:
    """`given_locally`, undone."""
    kept: tuple[Any, ...] = grant.receipts
    return grant._replace(generation=-2 - grant.generation, end=kept[0], receipts=kept[1:])


def standing_locally(confirmed: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """How a key stands locally, for the outside: it concerns those alone who were given turns there."""
    # UNKNOWN stays what it is.
    return (-2 - confirmed[0], *confirmed[1:])


def charged_locally(decision: Decision) -> Decision:
    """A local decision for the outside."""
    return decision if decision.receipt is None else decision._replace(receipt=_turned(decision.receipt))
