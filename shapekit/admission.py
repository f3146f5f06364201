"""Admission: one call's leave to go, from a policy."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from shapekit.algorithms.base import NEVER_US
from shapekit.algorithms.grant import Grant
from shapekit.decision import Decision
from shapekit.errors import ConfigError, CostExceedsLimitError
from shapekit.rate import whole
from shapekit.reservation import Reservation
from shapekit.shaper import Shaper
from shapekit.waiting import timeout_us

__all__ = ["Admission"]


class Admission:
    """One call's leave: entered, by `with` or `async with`, when its turn has come."""

    __slots__ = ("_enforce", "_never_counted", "_shaper", "_turn", "_waits", "cost", "key")

    def __init__(
        self,
        shaper: Shaper,
        key: str,
        cost: int,
        waits: dict[str, Any],
        *,
        enforce: bool,
        never_counted: Callable[[BaseException], bool] | None,
    ) -> None:
        self.key = key
        self.cost = cost
        self._shaper = shaper
        self._waits = waits
        self._enforce = enforce
        self._never_counted = never_counted
        self._turn: Reservation | None = None

    @property
    def delay(self) -> float:
        """Seconds the call was delayed; where nothing is enforced, those it would have been."""
        return self.turn.delay

    @property
    def decision(self) -> Decision:
        """What was decided, in the words of a gate. Only where nothing is enforced can it be a denial."""
        return self.turn.decision

    @property
    def turn(self) -> Reservation:
        """The reservation behind it."""
        if self._turn is None:
            raise ConfigError("admission", None, "was not entered", "write: with policy.admit() as admission")
        return self._turn

    def settle(self, actual: int) -> bool:
        """Say what the call turned out to cost: the difference is charged, or given back.

        May be said again, as more becomes known: the last word counts.
        """
        turn = self.turn
        if not self._differs(actual) or not self._shaper.settle(turn, actual):
            return False
        self._turn = turn.costing(actual)
        return True

    async def asettle(self, actual: int) -> bool:
        """`settle`, awaitable."""
        turn = self.turn
        if not self._differs(actual) or not await self._shaper.asettle(turn, actual):
            return False
        self._turn = turn.costing(actual)
        return True

    def __enter__(self) -> Self:
        if self._enforce:
            self._turn = self._shaper.schedule(self.key, cost=self.cost, **self._waits)
        else:
            try:
                turn = self._shaper.reserve(self.key, cost=self.cost, **self._measurable())
            except CostExceedsLimitError as error:
                turn = self._impossible(error)
            self._turn = self._measured(turn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._never_counted is not None and self._never_counted(error):
            self.settle(0)

    async def __aenter__(self) -> Self:
        if self._enforce:
            self._turn = await self._shaper.aschedule(self.key, cost=self.cost, **self._waits)
        else:
            try:
                turn = await self._shaper.areserve(self.key, cost=self.cost, **self._measurable())
            except CostExceedsLimitError as error:
                turn = self._impossible(error)
            self._turn = self._measured(turn)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._never_counted is not None and self._never_counted(error):
            await self.asettle(0)

    def _differs(self, actual: int) -> bool:
        return whole("actual", actual, least=0) != self.turn.cost and self.turn.accepted

    def _measurable(self) -> dict[str, Any]:
        timeout_us(self._waits.get("timeout"))
        return {name: value for name, value in self._waits.items() if name != "timeout"}

    def _impossible(self, error: CostExceedsLimitError) -> Reservation:
        never = Decision(False, error.limit, 0, 0, 0, NEVER_US)
        refused = Grant(False, NEVER_US, NEVER_US, False, never, self.cost, 0, 0, 0, 0, 0, (0, 0), ())
        return Reservation(self._shaper, self.key, refused)

    def _measured(self, turn: Reservation) -> Reservation:
        import logging  # noqa: PLC0415 - only who measures says something

        log = logging.getLogger("shapekit.policy")
        if not turn.accepted:
            log.info("%s: key %r would have been refused", self._shaper.name, self.key)
        elif turn.delay > 0:
            log.info("%s: key %r would have waited %.6g s", self._shaper.name, self.key, turn.delay)
        return turn
