"""Turns: how the turns of one shaper are taken, given back and settled on its store, and told of.

While shaping is on and nobody listens, a shaper takes turns by itself, and nothing here stands in the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shapekit import nonce
from shapekit.algorithms.grant import Granted
from shapekit.budgets import Budgets
from shapekit.departure import Departures, refusal
from shapekit.errors import StoreUnavailableError
from shapekit.rate import whole
from shapekit.reservation import Owner, Reservation
from shapekit.stores.base import Store
from shapekit.switch import SWITCH
from shapekit.teller import Teller

if TYPE_CHECKING:
    from shapekit.leases import Leases

__all__ = ["Turns"]


class Turns:
    """The turns of one shaper. `…_untold` are for those who tell of a whole call themselves."""

    def __init__(
        self,
        owner: Owner,
        name: str,
        store: Store,
        teller: Teller,
        departures: Departures,
        leases: Leases | None = None,
    ) -> None:
        self._owner = owner
        self._teller = teller
        self._departures = departures
        self.budgets = Budgets(name, owner.queue, store, teller.ears)
        bound = (name, owner.queue)
        self.ask = store.bind(*bound, "reserve") if leases is None else leases.ask
        self.aask = store.abind(*bound, "reserve") if leases is None else leases.aask
        self._cancel = store.bind(*bound, "cancel")
        self._acancel = store.abind(*bound, "cancel")
        self._settle = store.bind(*bound, "settle")
        self._asettle = store.abind(*bound, "settle")

    # taking

    def reserve(self, key: str, cost: int, bound_us: int | None) -> Reservation:
        """A turn, or a refusal, while somebody listens somewhere or shaping is off."""
        try:
            turn = self.reserve_untold(key, cost, bound_us)
        except StoreUnavailableError as error:
            self._teller.failed(key, error)
            raise
        try:
            self._tell(turn, bound_us)
            self.budgets.look(key)
        except BaseException as error:
            if turn.accepted:
                self._departures.give_up(turn, error)
            raise
        return turn

    async def areserve(self, key: str, cost: int, bound_us: int | None) -> Reservation:
        """`reserve`, awaitable."""
        try:
            turn = await self.areserve_untold(key, cost, bound_us)
        except StoreUnavailableError as error:
            self._teller.failed(key, error)
            raise
        try:
            self._tell(turn, bound_us)
            await self.budgets.alook(key)
        except BaseException as error:
            if turn.accepted:
                await self._departures.agive_up(turn, error)
            raise
        return turn

    def take(self, key: str, cost: int, bound_us: int | None) -> Granted:
        """`reserve`, for a call that leaves as soon as it may."""
        turn = self.reserve(key, cost, bound_us)
        if turn.granted[0] and not turn.granted[1]:
            self._departures.depart(turn, None, None)
        return turn.granted

    def reserve_untold(self, key: str, cost: int, bound_us: int | None) -> Reservation:
        """A turn, or a refusal."""
        if SWITCH.is_off:
            return Reservation(self._owner, key, _unshaped(cost))
        return Reservation(self._owner, key, self.ask(key, (cost, bound_us, nonce.fresh())))

    async def areserve_untold(self, key: str, cost: int, bound_us: int | None) -> Reservation:
        """`reserve_untold`, awaitable."""
        if SWITCH.is_off:
            return Reservation(self._owner, key, _unshaped(cost))
        return Reservation(self._owner, key, await self.aask(key, (cost, bound_us, nonce.fresh())))

    def measure(self, key: str, cost: int, bound_us: int | None, *, code: str | None = None) -> Reservation:
        """A turn, or a refusal, of a call that passes at once whatever the answer.

        `code`: of an error with which it would have been refused already.
        """
        with self._teller.watching(key):
            turn = self.reserve_untold(key, cost, bound_us)
        self._measured(turn, bound_us, code)
        self.budgets.look(key)
        return turn

    async def ameasure(
        self, key: str, cost: int, bound_us: int | None, *, code: str | None = None
    ) -> Reservation:
        """`measure`, awaitable."""
        with self._teller.watching(key):
            turn = await self.areserve_untold(key, cost, bound_us)
        self._measured(turn, bound_us, code)
        await self.budgets.alook(key)
        return turn

    # giving back

    def cancel(self, turn: Reservation) -> bool:
        """Give a turn back."""
        with self._teller.watching(turn.key):
            is_returned = self.cancel_untold(turn)
        if is_returned:
            self._teller.cancelled(turn)
        return is_returned

    async def acancel(self, turn: Reservation) -> bool:
        """`cancel`, awaitable."""
        with self._teller.watching(turn.key):
            is_returned = await self.acancel_untold(turn)
        if is_returned:
            self._teller.cancelled(turn)
        return is_returned

    def cancel_untold(self, turn: Reservation) -> bool:
        """Give a turn back."""
        return bool(self._cancel(turn.key, turn.grant))

    async def acancel_untold(self, turn: Reservation) -> bool:
        """`cancel_untold`, awaitable."""
        return bool(await self._acancel(turn.key, turn.grant))

    def give_back(self, turn: Reservation) -> bool:
        """Give back the turn of a call that never leaves; where it is too late for that, it cost nothing."""
        return self.cancel_untold(turn) or self.settle_untold(turn, 0)

    async def agive_back(self, turn: Reservation) -> bool:
        """`give_back`, awaitable."""
        return await self.acancel_untold(turn) or await self.asettle_untold(turn, 0)

    # settling

    def settle(self, turn: Reservation, actual: int, *, is_told: bool = True) -> bool:
        """Make a call cost what it turned out to cost."""
        with self._teller.watching(turn.key):
            is_settled = self.settle_untold(turn, actual)
        if is_settled and is_told and actual != turn.cost:
            self._teller.settled(turn, actual)
        return is_settled

    async def asettle(self, turn: Reservation, actual: int, *, is_told: bool = True) -> bool:
        """`settle`, awaitable."""
        with self._teller.watching(turn.key):
            is_settled = await self.asettle_untold(turn, actual)
        if is_settled and is_told and actual != turn.cost:
            self._teller.settled(turn, actual)
        return is_settled

    def settle_untold(self, turn: Reservation, actual: int) -> bool:
        """Make a call cost what it turned out to cost."""
        return bool(self._settle(turn.key, (turn.grant, whole("actual", actual, least=0), nonce.fresh())))

    async def asettle_untold(self, turn: Reservation, actual: int) -> bool:
        """`settle_untold`, awaitable."""
        asked = (turn.grant, whole("actual", actual, least=0), nonce.fresh())
        return bool(await self._asettle(turn.key, asked))

    def _measured(self, turn: Reservation, bound_us: int | None, code: str | None) -> None:
        if not turn and code is None:
            code = refusal(turn, bound_us).code
        self._teller.measured(turn.key, turn.cost, turn.delay, code)

    def _tell(self, turn: Reservation, bound_us: int | None) -> None:
        if turn.accepted:
            self._teller.reserved(turn)
        elif self._teller.ears:
            self._teller.refused(turn.key, turn.cost, refusal(turn, bound_us))


def _unshaped(cost: int) -> Granted:
    """What is granted while shaping is switched off: to leave at once, in no generation."""
    return (True, 0, 0, False, None, cost, -1, 0, 0, 0, 0, (0, 0), ())
