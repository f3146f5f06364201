"""SeatedAdmission: a call's leave to go from a policy that also bounds how many are in flight.

First the seat, then the turn: a turn that had to wait for a seat would pass unused. Whoever gets no turn, or
does not stay for it, gives the seat back.
"""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from shapekit.admission import Admission
from shapekit.errors import CostExceedsLimitError, QueueFullError
from shapekit.rate import SECOND_US
from shapekit.seats import Seat, Seats
from shapekit.switch import SWITCH
from shapekit.waiting import max_wait_us, timeout_us

__all__ = ["SeatedAdmission"]


class SeatedAdmission(Admission):
    """An admission with a seat, which is given back when its context ends, or by `leave`."""

    __slots__ = ("_seat", "_seats")

    def __init__(self, seats: Seats, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._seats = seats
        self._seat: Seat | None = None

    @property
    def holds_seat(self) -> bool:
        return self._seat is not None

    def leave(self) -> None:
        seat = self._seat
        if seat is not None:
            self._seats.leave(seat)
            self._seat = None

    async def aleave(self) -> None:
        seat = self._seat
        if seat is not None:
            await self._seats.aleave(seat)
            self._seat = None

    def leave_soon(self) -> None:
        seat = self._seat
        if seat is not None:
            self._seats.leave_soon(seat)
            self._seat = None

    def __enter__(self) -> Self:
        if SWITCH.is_off:
            return super().__enter__()
        if not self._enforce:
            return self._measured()
        bounds = self._bounds_us()
        try:
            self._seat = seat = self._seats.take(self.key, *bounds)
        except BaseException as error:
            self._turned_away(error)
            raise
        try:
            self._bound_rest(seat, *bounds)
            super().__enter__()
        except BaseException as error:
            self.leave()
            told = _told(error, seat, bounds[0])
            if told is error:
                raise
            raise told.with_traceback(error.__traceback__) from error.__cause__
        return self._late(seat)

    async def __aenter__(self) -> Self:
        if SWITCH.is_off:
            return await super().__aenter__()
        if not self._enforce:
            return await self._ameasured()
        bounds = self._bounds_us()
        try:
            self._seat = seat = await self._seats.atake(self.key, *bounds)
        except BaseException as error:
            self._turned_away(error)
            raise
        try:
            self._bound_rest(seat, *bounds)
            await super().__aenter__()
        except GeneratorExit:
            # Thrown away by the collector in the midst of anything; with it goes the seat.
            raise
        except BaseException as error:
            await self.aleave()
            told = _told(error, seat, bounds[0])
            if told is error:
                raise
            raise told.with_traceback(error.__traceback__) from error.__cause__
        return self._late(seat)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            if kind is GeneratorExit:
                self._drop()
            else:
                self.leave()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            if kind is GeneratorExit:
                self._drop()
            else:
                await self.aleave()

    def _drop(self) -> None:
        """Have no seat any more. A generator may be ended by the collector, in the midst of anything: the
        seat is given back by somebody else.
        """
        self._seat = None

    def _bounds_us(self) -> tuple[int | None, int | None]:
        """How long to wait for the seat and the turn together."""
        self._shaper._admissible(self.key, self.cost)
        max_wait = self._waits.get("max_wait")
        bound_us = self._shaper._max_wait_us if max_wait is None else max_wait_us(max_wait)
        return bound_us, timeout_us(self._waits.get("timeout"))

    def _bound_rest(self, seat: Seat, bound_us: int | None, gives_up_us: int | None) -> None:
        """How long to wait for the turn is what the wait for the seat has left."""
        if not seat.waited_us:
            return
        if bound_us is not None:
            self._waits["max_wait"] = timedelta(microseconds=max(0, bound_us - seat.waited_us))
        if gives_up_us is not None:
            self._waits["timeout"] = timedelta(microseconds=max(0, gives_up_us - seat.waited_us))

    def _late(self, seat: Seat) -> Self:
        """The turn, delayed by the wait for the seat, too."""
        turn = self.turn
        if seat.waited_us:
            grant = turn.grant
            self._turn = turn._replace(granted=grant._replace(wait_us=grant.wait_us + seat.waited_us))
        return self

    def _turned_away(self, error: BaseException) -> None:
        """Those who listen are told of a call that got no seat."""
        self._shaper._teller.ended(self.key, self.cost, error, had_turn=False, returned=False)

    def _measured(self) -> Self:
        """The call passes at once; it sits if there is a seat, and if not, that is what is told."""
        try:
            bound_us = self._measurable()
        except CostExceedsLimitError:
            return super().__enter__()
        self._seat, code = self._free_seat(), None
        if self._seat is None:
            code = QueueFullError.code
        self._turn = self._shaper._turns.measure(self.key, self.cost, bound_us, code=code)
        self._sent_at = self._shaper.wall()
        return self

    async def _ameasured(self) -> Self:
        try:
            bound_us = self._measurable()
        except CostExceedsLimitError:
            return await super().__aenter__()
        self._seat, code = await self._afree_seat(), None
        if self._seat is None:
            code = QueueFullError.code
        self._turn = await self._shaper._turns.ameasure(self.key, self.cost, bound_us, code=code)
        self._sent_at = self._shaper.wall()
        return self

    def _free_seat(self) -> Seat | None:
        try:
            with self._shaper._teller.watching(self.key):
                return self._seats.take(self.key, 0)
        except QueueFullError:
            return None

    async def _afree_seat(self) -> Seat | None:
        try:
            with self._shaper._teller.watching(self.key):
                return await self._seats.atake(self.key, 0)
        except QueueFullError:
            return None


def _told(error: BaseException, seat: Seat, bound_us: int | None) -> BaseException:
    """A refusal of a turn, in terms of the whole wait."""
    if not isinstance(error, QueueFullError) or not seat.waited_us or bound_us is None:
        return error
    delay = error.delay + seat.waited_us / SECOND_US
    return QueueFullError(error.decision, error.key, delay, bound_us / SECOND_US)
