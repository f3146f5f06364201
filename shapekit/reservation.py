"""What a shaper gives back: a turn, and an outlook on turns."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from shapekit.algorithms.grant import Grant, Granted
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.decision import Decision
from shapekit.rate import SECOND_US

__all__ = ["Outlook", "Reservation"]


class Owner(Protocol):
    """Whoever gives turns and takes them back: the shaper."""

    queue: LeakyQueue

    def give_back(self, turn: Reservation) -> bool: ...

    async def agive_back(self, turn: Reservation) -> bool: ...

    def cancel(self, turn: Reservation) -> bool: ...

    async def acancel(self, turn: Reservation) -> bool: ...


class Outlook(NamedTuple):
    """When more calls will have left, in seconds from now."""

    first_in: float
    last_in: float


class Reservation(NamedTuple):
    """A turn that was taken, or the refusal to give one; true if accepted."""

    shaper: Owner
    key: str
    granted: Granted

    @property
    def accepted(self) -> bool:
        """Whether a turn was taken."""
        return self.granted[0]

    def __bool__(self) -> bool:
        return self.granted[0]

    @property
    def grant(self) -> Grant:
        """Everything that was agreed on; plain values, which another process can carry on."""
        return Grant(*self.granted)

    @property
    def cost(self) -> int:
        """The units that were reserved."""
        return self.granted[5]

    @property
    def delay(self) -> float:
        """Seconds from the reservation to the departure; if refused, what they would have been."""
        return self.granted[1] / SECOND_US

    @property
    def departs_at(self) -> float:
        """The departure in epoch seconds on the store's clock, as it was promised."""
        return self.granted[2] / SECOND_US

    def costing(self, actual: int) -> Reservation:
        """The same turn after it was settled."""
        end = self.shaper.queue.end_of(self.grant, actual)
        return self._replace(granted=self.grant._replace(cost=actual, end=end))

    @property
    def decision(self) -> Decision:
        """The answer in the words of a gate; `delay` is how far ahead the turn lies."""
        return self.shaper.queue.decision(self.granted)

    @property
    def refusal(self) -> Decision | None:
        """Why it was refused."""
        return self.granted[4]

    def cancel(self) -> bool:
        """Give the turn back. False, and nothing happens, if it has passed or was given back already."""
        return self.accepted and self.shaper.cancel(self)

    async def acancel(self) -> bool:
        """`cancel`, awaitable."""
        return self.accepted and await self.shaper.acancel(self)

    def __repr__(self) -> str:
        verdict = "accepted" if self else "refused"
        return f"Reservation({verdict}, key={self.key!r}, cost={self.cost}, delay={self.delay:.6f})"
