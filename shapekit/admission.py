"""Admission: one call's leave to go, from a policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shapekit.algorithms.base import NEVER_US
from shapekit.algorithms.grant import Grant
from shapekit.decision import Decision
from shapekit.errors import ConfigError, CostExceedsLimitError
from shapekit.learning import Lesson
from shapekit.rate import SECOND_US, whole
from shapekit.reservation import Reservation
from shapekit.scoped_turns import ScopedTurns
from shapekit.shaper import Shaper
from shapekit.waiting import max_wait_us, timeout_us

if TYPE_CHECKING:
    from shapekit.feedback import Feedback, ServerHint
    from shapekit.target import Target

__all__ = ["Admission"]

_REFUSED, _FAILED, _ILL = 429, 400, 500


class Admission:
    """One call's leave: entered, by `with` or `async with`, when its turn has come."""

    __slots__ = (
        "_enforce",
        "_feedback",
        "_never_counted",
        "_scoped",
        "_sent_at",
        "_shaper",
        "_turn",
        "_waits",
        "cost",
        "key",
        "target",
    )

    def __init__(
        self,
        shaper: Shaper,
        key: str,
        cost: int,
        waits: dict[str, Any],
        *,
        enforce: bool,
        never_counted: Callable[[BaseException], bool] | None,
        feedback: Feedback | None,
        scoped: ScopedTurns,
    ) -> None:
        self.key = key
        self.cost = cost
        self._shaper = shaper
        self._waits = waits
        self._enforce = enforce
        self._never_counted = never_counted
        self._feedback = feedback
        self._scoped = scoped
        self.target: Target | None = None
        """Where the call goes, if that is known: then a hold may be for the part of the server there."""
        self._sent_at = 0.0
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

    def taken(self, turn: Reservation, late: float | None = None) -> Self:
        """Entered by a turn that was taken elsewhere, and has come.

        `late`: by how many seconds ago, where nobody was told yet that the call leaves.
        """
        self._turn = turn
        self._sent_at = self._shaper.wall()
        if late is not None:
            # Holds that came between are known by the clocks alone.
            delay = max(turn.delay, self._sent_at - (turn.departs_at - turn.delay))
            self._shaper._teller.departed(
                turn.key, turn.cost, round(delay * SECOND_US), round(late * SECOND_US)
            )
        return self

    def settle(self, actual: int) -> bool:
        """Say what the call turned out to cost: the difference is charged, or given back.

        What comes back helps those who have no turn yet: whoever waits keeps the turn that was promised. May
        be said again, as more becomes known: the last word counts.
        """
        turn = self.turn
        settle = self._shaper._turns.settle
        if not self._differs(actual) or not settle(turn, actual, is_told=self._enforce):
            return False
        self._turn = turn.costing(actual)
        return True

    async def asettle(self, actual: int) -> bool:
        """`settle`, awaitable."""
        turn = self.turn
        settle = self._shaper._turns.asettle
        if not self._differs(actual) or not await settle(turn, actual, is_told=self._enforce):
            return False
        self._turn = turn.costing(actual)
        return True

    @property
    def holds_seat(self) -> bool:
        """Whether the call is counted as in flight, by a policy with `concurrency`."""
        return False

    def leave(self) -> None:
        """The call is not in flight any more: give its seat back, if it has one. Leaving the context does so.

        For whoever entered without a `with`, and knows better when the call is over.
        """

    async def aleave(self) -> None:
        """`leave`, awaitable."""

    def leave_soon(self) -> None:
        """`leave`, for whoever runs on an event loop and cannot await."""

    def observe(self, response: Any) -> ServerHint | None:
        """Hear what an answer says about the server's limits: if it asks for it, nobody leaves for a while.

        Where the answer names a scope and the call's `target` is known, that is nobody of the scope.

        Takes a response of httpx, requests or aiohttp, or whatever has a status and headers. Returns what
        was heard; None if nothing was said, or the policy has no feedback.
        """
        hint = self._heard(response)
        if self._enforce and self._shaper.adapts:
            lesson = self._lesson(response, hint)
            self._shaper.learn(self.key, lesson)
            if lesson.is_refusal:
                return hint
        if hint is None or not self._enforce:
            return hint
        scope = self._learned(hint)
        if hint.hold_s > 0:
            if scope is None:
                self._shaper.hold(hint.hold_s, key=self.key)
            else:
                self._scoped.hold(hint.hold_s, self.key, scope)
        return hint

    async def aobserve(self, response: Any) -> ServerHint | None:
        """`observe`, awaitable."""
        hint = self._heard(response)
        if self._enforce and self._shaper.adapts:
            lesson = self._lesson(response, hint)
            await self._shaper.alearn(self.key, lesson)
            if lesson.is_refusal:
                return hint
        if hint is None or not self._enforce:
            return hint
        scope = self._learned(hint)
        if hint.hold_s > 0:
            if scope is None:
                await self._shaper.ahold(hint.hold_s, key=self.key)
            else:
                await self._scoped.ahold(hint.hold_s, self.key, scope)
        return hint

    def _learned(self, hint: ServerHint) -> str | None:
        """The scope that the answer was about, of which its target is from now on; None if it named none."""
        if hint.scope is not None and self.target is not None:
            self._scoped.scopes.learn(self.key, self.target, hint.scope)
            return hint.scope
        return None

    def _lesson(self, response: Any, hint: ServerHint | None) -> Lesson:
        """What the answer says of the rate: a refusal that is about a part of the server says nothing."""
        status = _status_of(response)
        age_us = max(0, round((self._shaper.wall() - self._sent_at) * SECOND_US))
        waited = self.turn.granted[1] > 0
        if hint is None:
            return Lesson(age_us, is_refusal=False, is_success=status < _ILL, waited=waited)
        is_about_all = hint.scope is None or self.target is None
        refused = status == _REFUSED or (status >= _FAILED and hint.hold_s > 0)
        stated = None
        if hint.limit and hint.window_s and getattr(self._feedback, "dialect", "auto") != "auto":
            stated = hint.limit, round(hint.window_s * SECOND_US)
        return Lesson(
            age_us,
            is_refusal=refused and is_about_all,
            is_success=not refused and status < _ILL,
            waited=waited,
            hold_us=round(hint.hold_s * SECOND_US),
            stated=stated,
        )

    def _heard(self, response: Any) -> ServerHint | None:
        if self._feedback is None:
            return None
        headers = getattr(response, "raw_headers", None)
        if headers is None:
            headers = getattr(response.headers, "raw", response.headers)
        return self._feedback.read(
            _status_of(response),
            headers,
            sent_at=self._sent_at,
            received_at=self._shaper.wall(),
            key=self.key,
        )

    def __enter__(self) -> Self:
        if self._enforce:
            if self.target is None or not self._scoped.scopes.any_known:
                self._turn = self._shaper.schedule(self.key, cost=self.cost, **self._waits)
            else:
                self._turn = self._scoped.schedule(self.key, self.target, self.cost, **self._waits)
        else:
            try:
                bound_us = self._measurable()
            except CostExceedsLimitError as error:
                self._turn = self._impossible(error)
            else:
                self._turn = self._shaper._turns.measure(self.key, self.cost, bound_us)
        self._sent_at = self._shaper.wall()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._never_counted is not None and self._never_counted(error):
            self.settle(0)

    async def __aenter__(self) -> Self:
        if self._enforce:
            if self.target is None or not self._scoped.scopes.any_known:
                self._turn = await self._shaper.aschedule(self.key, cost=self.cost, **self._waits)
            else:
                self._turn = await self._scoped.aschedule(self.key, self.target, self.cost, **self._waits)
        else:
            try:
                bound_us = self._measurable()
            except CostExceedsLimitError as error:
                self._turn = self._impossible(error)
            else:
                self._turn = await self._shaper._turns.ameasure(self.key, self.cost, bound_us)
        self._sent_at = self._shaper.wall()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._never_counted is not None and self._never_counted(error):
            await self.asettle(0)

    def _differs(self, actual: int) -> bool:
        return whole("actual", actual, least=0) != self.turn.cost and self.turn.accepted

    def _measurable(self) -> int | None:
        """The longest wait that is asked with; CostExceedsLimitError where there is nothing to ask."""
        timeout_us(self._waits.get("timeout"))
        self._shaper._admissible(self.key, self.cost)
        max_wait = self._waits.get("max_wait")
        return self._shaper._max_wait_us if max_wait is None else max_wait_us(max_wait)

    def _impossible(self, error: CostExceedsLimitError) -> Reservation:
        never = Decision(False, error.limit, 0, 0, 0, NEVER_US)
        refused = Grant(False, NEVER_US, NEVER_US, False, never, self.cost, 0, 0, 0, 0, 0, (0, 0), ())
        self._shaper._teller.measured(self.key, self.cost, math.inf, error.code)
        return Reservation(self._shaper, self.key, refused)


def _status_of(response: Any) -> int:
    status: int | None = getattr(response, "status_code", None)
    return response.status if status is None else status
