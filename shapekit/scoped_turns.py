"""Scoped turns: how a request gets its turn where a scope of its key may be held.

It first waits until its scope is free, then takes its turn on the key as anybody does, and before it leaves
asks once more: if the scope was held meanwhile, it gives the turn back and starts again. So while a scope
is held nothing of it leaves, and nothing of it stands in anybody's way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shapekit.alarm import AsyncAlarm, running_loop, shielded
from shapekit.confirmations import FRESH_US, STUCK_S, Standing
from shapekit.departure import Patience, refusal
from shapekit.errors import QueueFullError, StoreUnavailableError
from shapekit.rate import SECOND_US, Duration
from shapekit.reservation import Reservation
from shapekit.scoped_caller import Caller, Lines
from shapekit.scopes import Scopes, scoped
from shapekit.shaper import Shaper
from shapekit.switch import SWITCH
from shapekit.waiting import max_wait_us, timeout_us, warn_in_event_loop

if TYPE_CHECKING:
    from shapekit.target import Target

__all__ = ["ScopedTurns"]


class ScopedTurns:
    """The turns that the requests of one process take on one shaper; of one scope in the order of asking.

    Those of other processes may be first when a hold ends: whoever waits for a scope has no turn yet.
    """

    def __init__(self, shaper: Shaper) -> None:
        self.scopes = Scopes()
        self._shaper = shaper
        self._clock = shaper._store.clock
        self._confirmations = shaper._confirmations
        self._departures = shaper._departures
        self._teller = shaper._teller
        self._turns = shaper._turns
        self._look = shaper._look
        self._alook = shaper._alook
        self._waiters = shaper._waiters
        self._lines = Lines()

    # holding

    def hold(self, length_s: float, key: str, scope: str) -> None:
        """Hold a scope of a key, as `Shaper.hold` does a key."""
        held_s = self._shaper.hold(length_s, key=scoped(key, scope))
        self._heard(key, scope, held_s)

    async def ahold(self, length_s: float, key: str, scope: str) -> None:
        """`hold`, awaitable."""
        held_s = await self._shaper.ahold(length_s, key=scoped(key, scope))
        self._heard(key, scope, held_s)

    # taking a turn

    def schedule(
        self,
        key: str,
        target: Target,
        cost: int,
        *,
        max_wait: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Reservation:
        """`Shaper.schedule`, with what the target's scope is held for."""
        if SWITCH.is_off:
            return self._shaper.reserve(key, cost=cost)
        caller = self._caller(key, target, cost, max_wait, timeout)
        try:
            while True:
                turn = self._taken(caller)
                self._stand(caller, turn)
                self._turns.budgets.look(caller.key)
                patience = self._departures.stay(turn, caller.left_us, caller.time_left_us)
                if self._is_free(caller, self._asked(caller)):
                    break
                self._give_back(caller)
                caller.has_waited = True
        except BaseException as error:
            with suppress(StoreUnavailableError):
                self._give_back(caller)
            told = self._ended(caller, error)
            if told is error:
                raise
            raise told.with_traceback(error.__traceback__) from error.__cause__
        return self._left(caller, turn, patience)

    async def aschedule(
        self,
        key: str,
        target: Target,
        cost: int,
        *,
        max_wait: Duration | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - as for the shaper's
    ) -> Reservation:
        """`schedule`, awaitable; a cancelled task has no turn, or gives it back."""
        if SWITCH.is_off:
            return self._shaper.reserve(key, cost=cost)
        caller = self._caller(key, target, cost, max_wait, timeout, running_loop())
        try:
            while True:
                turn = await self._ataken(caller)
                self._stand(caller, turn)
                await self._turns.budgets.alook(caller.key)
                patience = await self._departures.astay(turn, caller.left_us, caller.time_left_us)
                if await self._ais_free_to_leave(caller, turn):
                    break
                with shielded():
                    await self._agive_back(caller)
                caller.has_waited = True
        except GeneratorExit:
            # Thrown away together with its loop; see Departures.
            raise
        except BaseException as error:
            with shielded(), suppress(StoreUnavailableError):
                await self._agive_back(caller)
            told = self._ended(caller, error)
            if told is error:
                raise
            raise told.with_traceback(error.__traceback__) from error.__cause__
        return self._left(caller, turn, patience)

    def _taken(self, caller: Caller) -> Reservation:
        """A turn, once the scope is free and all who asked before have theirs."""
        turns, lines = self._turns, self._lines
        try:
            while True:
                if not self._is_free(caller, self._asked(caller)):
                    lines.join(caller)
                    nap_until_us = caller.nap_until_us()
                    if not caller.has_waited:
                        warn_in_event_loop()
                        if caller.max_wait_us is not None:
                            self._foresee(caller, self._look(caller.key))
                        caller.has_waited = True
                    self._waiters.sleep(nap_until_us)
                elif lines.is_turn_of(caller, alarm := threading.Event()):
                    return turns.reserve_untold(caller.key, caller.cost, caller.look_at_clock())
                else:
                    alarm.wait(STUCK_S)
        finally:
            lines.leave(caller)

    async def _ataken(self, caller: Caller) -> Reservation:
        """`_taken`, awaitable."""
        turns, lines, instant = self._turns, self._lines, self._confirmations.instant
        try:
            while True:
                if not instant:
                    lines.join(caller)  # before it asks: answers may come in any order
                if not self._is_free(caller, await self._aasked(caller)):
                    lines.join(caller)
                    nap_until_us = caller.nap_until_us()
                    if not caller.has_waited:
                        if caller.max_wait_us is not None:
                            self._foresee(caller, await self._alook(caller.key))
                        caller.has_waited = True
                    await self._waiters.asleep(nap_until_us, caller.number)
                elif lines.is_turn_of(caller, alarm := AsyncAlarm()):
                    if instant:
                        return turns.reserve_untold(caller.key, caller.cost, caller.look_at_clock())
                    if not caller.has_waited and not caller.is_behind:
                        # Nobody was held: as ever, those who come together share their trip to the store.
                        lines.leave(caller)
                    return await turns.areserve_untold(caller.key, caller.cost, caller.look_at_clock())
                else:
                    await alarm.wait(STUCK_S)
        finally:
            lines.leave(caller)

    async def _ais_free_to_leave(self, caller: Caller, turn: Reservation) -> bool:
        due_us = self._clock.now_us()
        is_free = self._is_free(caller, await self._aasked(caller))
        if is_free and turn.granted[1] and not self._confirmations.instant:
            # Several may hear at once, in any order: they leave in that of their turns.
            await self._waiters.asleep(due_us, turn.granted[8], others_too=True)
        return is_free

    def _asked(self, caller: Caller) -> list[Standing]:
        caller.look_up()
        return [self._confirmations.ask(key) for key in caller.scoped_keys()]

    async def _aasked(self, caller: Caller) -> list[Standing]:
        caller.look_up()
        if self._confirmations.instant:
            return [self._confirmations.ask(key) for key in caller.scoped_keys()]
        return [await self._confirmations.aask(key) for key in caller.scoped_keys()]

    def _is_free(self, caller: Caller, standings: Iterable[Standing]) -> bool:
        until_us = max([standing.until_us + standing.ahead_us for standing in standings], default=0)
        now = self._clock.now_us()
        if not self._confirmations.instant:
            # What was answered may be older than a hold that was placed here.
            for scope in caller.scopes:
                until_us = max(until_us, self.scopes.heard_until_us(caller.key, scope, now - FRESH_US))
        caller.held_until_us = until_us
        return until_us <= now

    def _stand(self, caller: Caller, turn: Reservation) -> None:
        """A turn was taken, or refused. Of those that follow each other, only the first is told."""
        if not turn:
            raise refusal(turn, caller.left_us)
        caller.turn, caller.is_returned = turn, False
        if not caller.had_turn:
            caller.had_turn = True
            self._teller.reserved(turn)

    def _left(self, caller: Caller, turn: Reservation, patience: Patience) -> Reservation:
        self._teller.departed(caller.key, caller.cost, *patience.waited_us(caller.asked_us))
        return caller.late(turn)

    def _ended(self, caller: Caller, error: BaseException) -> BaseException:
        """The error as the caller is to be told of it; those who listen are told now."""
        told = caller.told(error) if isinstance(error, QueueFullError) else error
        self._teller.ended(
            caller.key, caller.cost, told, had_turn=caller.had_turn, returned=caller.is_returned
        )
        return told

    def _give_back(self, caller: Caller) -> None:
        turn, caller.turn = caller.turn, None
        if turn is not None:
            caller.is_returned = self._turns.give_back(turn)

    async def _agive_back(self, caller: Caller) -> None:
        turn, caller.turn = caller.turn, None
        if turn is not None:
            caller.is_returned = await self._turns.agive_back(turn)

    def _foresee(self, caller: Caller, looked: Any) -> None:
        caller.foresee(self._shaper._outlook(looked, 1, caller.cost).first_in)

    def _heard(self, key: str, scope: str, held_s: float) -> None:
        now = self._clock.now_us()
        self.scopes.hear(key, scope, now + round(held_s * SECOND_US), now)

    def _caller(
        self,
        key: str,
        target: Target,
        cost: int,
        max_wait: Duration | None,
        timeout: Duration | None,
        loop: object = None,
    ) -> Caller:
        self._shaper._admissible(key, cost)
        bound_us = self._shaper._max_wait_us if max_wait is None else max_wait_us(max_wait)
        return Caller(self._clock, self.scopes, key, target, cost, bound_us, timeout_us(timeout), loop)
