"""Reservation: what a shaper gives, a slot or the refusal to give one, and an outlook on slots.

One may travel, in values that every serializer takes, to the process that makes the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shapekit._runtime.drivers import TASKS, run
from shapekit.algorithms.queue.slots import ACCEPTED, WAIT_US, Grant, Granted
from shapekit.decision import Decision
from shapekit.rate import SECOND_US

if TYPE_CHECKING:
    from shapekit._queue.core import Core

__all__ = ["Outlook", "Reservation", "received", "sent"]


class Outlook(NamedTuple):
    """When more calls will have left, in seconds from now."""

    first_in: float
    """When the first of them leaves."""
    last_in: float
    """When the last of them leaves."""


class Reservation:
    """A slot that was taken, or the refusal to give one; true if accepted. It never changes."""

    __slots__ = ("core", "granted", "key")

    core: Final[Core]
    key: Final[str]
    """The key whose limit the slot is of."""
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
        """Whether its call may leave at once."""
        return self.granted[ACCEPTED] and not self.granted[WAIT_US]

    @property
    def grant(self) -> Grant:
        """Everything that was agreed on; plain values, which another process can carry on."""
        return Grant(*self.granted)

    @property
    def cost(self) -> int:
        """The units that were reserved."""
        return self.grant.cost

    @property
    def delay(self) -> float:
        """Seconds from the reservation to the departure; if refused, what they would have been."""
        return self.granted[WAIT_US] / SECOND_US

    @property
    def departs_at(self) -> float:
        """The departure in epoch seconds on the store's clock, as it was promised."""
        return self.grant.departs_at_us / SECOND_US

    def costing(self, actual: int, number: int, *, is_placed: bool = True) -> Reservation:
        """The same slot after it was settled, which goes on with this number.

        `is_placed`: false where something was said before that was not heard: it may stand nowhere any more.
        """
        end = self.core.queue.end_of(self.grant, actual) if is_placed else self.grant.start
        return Reservation(self.core, self.key, self.grant._replace(cost=actual, version=number, end=end))

    def after_waiting(self, wait_us: int) -> Reservation:
        """The same slot, of a call that had waited so long before it could ask for one."""
        grant = self.grant
        return Reservation(self.core, self.key, grant._replace(wait_us=grant.wait_us + wait_us))

    @property
    def decision(self) -> Decision:
        """The answer in the words of a gate; `delay` is how far ahead the slot lies."""
        return self.core.queue.decision(self.granted)

    @property
    def refusal(self) -> Decision | None:
        """Why it was refused."""
        return self.grant.refusal

    def cancel(self) -> bool:
        """Give the slot back. False, and nothing happens, if it has passed or was given back already."""
        return run(self.core.cancel, self)

    async def acancel(self) -> bool:
        """`cancel`, awaitable."""
        return await self.core.cancel(TASKS, self)

    def __repr__(self) -> str:
        verdict = "accepted" if self else "refused"
        return f"Reservation({verdict}, key={self.key!r}, cost={self.cost}, delay={self.delay:.6f})"


def sent(reservation: Reservation) -> list[Any]:
    """An accepted reservation, to be carried away."""
    return [reservation.key, *reservation.granted]


def received(core: Core, told: list[Any]) -> Reservation:
    """What was `sent`, as a reservation of this shaper: the one it is from, or one like it elsewhere."""
    key, *granted = told
    return Reservation(core, key, Grant(*map(_frozen, granted)))


def _frozen(told: Any) -> Any:
    return tuple(map(_frozen, told)) if isinstance(told, list) else told
