"""Reservation: a slot that a shaper has granted, or its refusal; and Outlook, a forecast of slots.

A reservation can be serialized to plain values and continued in another process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shapekit._runtime.drivers import TASKS, run
from shapekit.algorithms.queue.slots import ACCEPTED, WAIT_US, Grant, Granted
from shapekit.decision import Decision
from shapekit.rate import SECOND_US

if TYPE_CHECKING:
    from shapekit._queue.core import Core
    from shapekit.algorithms.queue.queue import LeakyQueue

__all__ = ["Outlook", "Reservation", "received", "sent"]


class Outlook(NamedTuple):
    """When further calls would leave, in seconds from now."""

    first_in: float
    """When the first one leaves."""
    last_in: float
    """When the last one leaves."""


class Reservation:
    """A slot that was taken, or its refusal; true if accepted. Immutable."""

    __slots__ = ("core", "granted", "key")

    core: Final[Core]
    key: Final[str]
    """The key whose limit the slot counts against."""
    granted: Final[Granted]

    def __init__(self, core: Core, key: str, granted: Granted) -> None:
        self.core = core
        self.key = key
        self.granted = granted

    @property
    def accepted(self) -> bool:
        """Whether a slot was taken."""
        return self.granted[ACCEPTED]

    def __bool__(self) -> bool:
        return self.granted[ACCEPTED]

    @property
    def leaves_now(self) -> bool:
        """Whether the call may leave at once."""
        return self.granted[ACCEPTED] and not self.granted[WAIT_US]

    @property
    def grant(self) -> Grant:
        """Every detail of the grant, as plain values that another process can use."""
        return Grant(*self.granted)

    @property
    def queue(self) -> LeakyQueue:
        """Whose numbers the grant is in: the shaper's, or those that an operator has set."""
        return self.grant.queue or self.core.queue

    @property
    def cost(self) -> int:
        """The units reserved."""
        return self.grant.cost

    @property
    def delay(self) -> float:
        """Seconds from the reservation to the departure; for a refusal, the wait that was refused."""
        return self.granted[WAIT_US] / SECOND_US

    @property
    def departs_at(self) -> float:
        """The promised departure, in epoch seconds on the store's clock."""
        return self.grant.departs_at_us / SECOND_US

    def costing(self, actual: int, number: int, *, is_placed: bool = True) -> Reservation:
        """The same slot after a settlement, under its new number.

        `is_placed` is false if an earlier settlement was not heard of: the slot may no longer be in the
        queue.
        """
        end = self.queue.end_of(self.grant, actual) if is_placed else self.grant.start
        return Reservation(self.core, self.key, self.grant._replace(cost=actual, version=number, end=end))

    def after_waiting(self, wait_us: int) -> Reservation:
        """The same slot, with the time that its call waited before it could reserve added to the delay."""
        grant = self.grant
        return Reservation(self.core, self.key, grant._replace(wait_us=grant.wait_us + wait_us))

    @property
    def decision(self) -> Decision:
        """The same answer as a gate's Decision; `delay` is how far ahead the slot is."""
        return self.queue.decision(self.granted)

    @property
    def refusal(self) -> Decision | None:
        """The decision that refused the call; None if it was accepted."""
        return self.grant.refusal

    def cancel(self) -> bool:
        """Give the slot back. False, without effect, if it has passed or was given back already."""
        return run(self.core.cancel, self)

    async def acancel(self) -> bool:
        """`cancel`, awaitable."""
        return await self.core.cancel(TASKS, self)

    def __repr__(self) -> str:
        verdict = "accepted" if self else "refused"
        return f"Reservation({verdict}, key={self.key!r}, cost={self.cost}, delay={self.delay:.6f})"


def sent(reservation: Reservation) -> list[Any]:
    """Serialize an accepted reservation to plain values."""
    *plain, queue = reservation.grant
    if queue is None:
        return [reservation.key, *plain, None]
    from shapekit.algorithms.description import describe  # noqa: PLC0415 - only where something is set

    return [reservation.key, *plain, describe(queue)]


def received(core: Core, told: list[Any]) -> Reservation:
    """Restore what `sent` gave, as a reservation of this shaper or of its like in another process."""
    key, *plain, described = told
    grant = Grant(*map(_frozen, plain))
    if described is not None:
        from shapekit.algorithms.description import revived  # noqa: PLC0415 - only where something is set

        grant = grant._replace(queue=revived(described))
    return Reservation(core, key, grant)


def _frozen(told: Any) -> Any:
    return tuple(map(_frozen, told)) if isinstance(told, list) else told
