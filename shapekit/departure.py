"""Departure: from a turn that was taken to the moment at which its call leaves.

Whoever has to wait sleeps until the turn, asks whether it still stands, and leaves or sleeps on.
"""

from __future__ import annotations

from contextlib import suppress

from shapekit.alarm import shielded
from shapekit.algorithms.grant import Granted
from shapekit.algorithms.tempo import real
from shapekit.clock import Clock
from shapekit.confirmations import Confirmations, Standing
from shapekit.decision import Decision
from shapekit.errors import QueueFullError, QuotaExhaustedError, RateLimitedError, StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.reservation import Reservation
from shapekit.stores.base import Store
from shapekit.switch import SWITCH
from shapekit.teller import Teller
from shapekit.waiting import Waiters, warn_in_event_loop

LOOK_US = 100_000
"""How often the sleepers of a held key look whether the hold was lifted."""


class Departures:
    """The way out of one shaper. Whoever does not leave, for whatever reason, gives the turn back."""

    def __init__(self, store: Store, waiters: Waiters, confirmations: Confirmations, teller: Teller) -> None:
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._waiters = waiters
        self._confirmations = confirmations
        self._teller = teller

    def depart(self, turn: Reservation, max_wait_us: int | None, timeout_us: int | None) -> None:
        """Sleep until the turn comes, or raise what it was refused with."""
        if not turn.granted[0]:
            raise self._turned_away(turn, max_wait_us)
        if not turn.granted[1]:
            self._teller.departed(turn.key, turn.cost)
            return
        try:
            patience = self.stay(turn, max_wait_us, timeout_us)
        except BaseException as error:
            self.give_up(turn, error)
            raise
        if not SWITCH.is_plain:
            self._teller.departed(turn.key, turn.cost, *patience.waited_us())

    async def adepart(self, turn: Reservation, max_wait_us: int | None, timeout_us: int | None) -> None:
        """`depart`, awaitable."""
        if not turn.granted[0]:
            raise self._turned_away(turn, max_wait_us)
        if not turn.granted[1]:
            self._teller.departed(turn.key, turn.cost)
            return
        try:
            patience = await self.astay(turn, max_wait_us, timeout_us)
        except GeneratorExit:
            # Thrown away together with its loop, by the collector in the midst of anything: a store's
            # lock, or a listener's, may be held by this very thread. The turn expires unused.
            raise
        except BaseException as error:
            await self.agive_up(turn, error)
            raise
        if not SWITCH.is_plain:
            self._teller.departed(turn.key, turn.cost, *patience.waited_us())

    def stay(self, turn: Reservation, max_wait_us: int | None, timeout_us: int | None) -> Patience:
        """Sleep until the turn comes. What ends that early is raised, and the turn is still taken."""
        patience = self._patience(turn, max_wait_us, timeout_us)
        if not turn.granted[1]:
            return patience
        self._teller.waits(turn.key, turn.granted[1])
        warn_in_event_loop()
        while True:
            self._waiters.sleep(patience.nap_until_us())
            patience.hear(self._confirmations.leaving(turn.key))
            if patience.is_over():
                return patience

    async def astay(self, turn: Reservation, max_wait_us: int | None, timeout_us: int | None) -> Patience:
        """`stay`, awaitable."""
        patience = self._patience(turn, max_wait_us, timeout_us)
        if not turn.granted[1]:
            return patience
        self._teller.waits(turn.key, turn.granted[1])
        instant = self._confirmations.instant
        while True:
            # Several may hear from the store at once: on trio they then come by in any order.
            await self._waiters.asleep(patience.nap_until_us(), patience.turn, others_too=not instant)
            if instant:
                patience.hear(self._confirmations.ask(turn.key))
            else:
                patience.hear(await self._confirmations.aleaving(turn.key))
            if patience.is_over():
                break
        if not instant:
            await self._waiters.asleep(patience.nap_until_us(), patience.turn, others_too=True)
        return patience

    def give_up(self, turn: Reservation, error: BaseException) -> None:
        """Give back the turn of a call that will not leave, and say so."""
        is_returned = False
        # Where the store is gone by now, it is not that of which the caller is to be told.
        with suppress(StoreUnavailableError):
            is_returned = turn.shaper.give_back(turn)
        self._teller.ended(turn.key, turn.cost, error, had_turn=True, returned=is_returned)

    async def agive_up(self, turn: Reservation, error: BaseException) -> None:
        """`give_up`, awaitable; even where the task is cancelled."""
        is_returned = False
        with shielded(), suppress(StoreUnavailableError):
            is_returned = await turn.shaper.agive_back(turn)
        self._teller.ended(turn.key, turn.cost, error, had_turn=True, returned=is_returned)

    def remaining_us(self, turn: Reservation) -> int:
        """How long until the turn comes, as its key stands now; negative once it has passed."""
        with self._teller.watching(turn.key):
            return self._remaining_us(turn, self._confirmations.ask(turn.key))

    async def aremaining_us(self, turn: Reservation) -> int:
        """`remaining_us`, awaitable."""
        with self._teller.watching(turn.key):
            return self._remaining_us(turn, await self._confirmations.aask(turn.key))

    def held_us(self, key: str) -> int:
        """How long a key is held still."""
        with self._teller.watching(key):
            return self._held_us(self._confirmations.ask(key))

    async def aheld_us(self, key: str) -> int:
        """`held_us`, awaitable."""
        with self._teller.watching(key):
            return self._held_us(await self._confirmations.aask(key))

    def _turned_away(self, turn: Reservation, max_wait_us: int | None) -> RateLimitedError:
        error = refusal(turn, max_wait_us)
        self._teller.stopped(turn.key, error)
        return error

    def _remaining_us(self, turn: Reservation, standing: Standing) -> int:
        patience = Patience(self._clock, turn.key, turn.granted, standing.ahead_us, None, None)
        patience.hear(standing)
        return patience.due_us - self._clock.now_us()

    def _held_us(self, standing: Standing) -> int:
        return max(0, standing.until_us + standing.ahead_us - self._clock.now_us())

    def _patience(self, turn: Reservation, max_wait_us: int | None, timeout_us: int | None) -> Patience:
        granted = turn.granted
        ahead_us = 0 if self._clock_decides else self._clock.now_us() - (granted[2] - granted[1])
        return Patience(self._clock, turn.key, granted, ahead_us, max_wait_us, timeout_us)


class Patience:
    """How long one caller goes on waiting: what was promised, what became of it, when to give up.

    All instants are on the clock that the caller sleeps by.
    """

    __slots__ = (
        *("due_us", "turn", "_asked_us", "_clock", "_generation", "_gives_up_us"),
        *("_held", "_key", "_max_wait_us", "_queued_us"),
    )

    def __init__(
        self,
        clock: Clock,
        key: str,
        granted: Granted,
        ahead_us: int,
        max_wait_us: int | None,
        timeout_us: int | None,
    ) -> None:
        (
            _,
            wait_us,
            departs_at_us,
            self._held,
            _,
            _,
            self._generation,
            _,
            self.turn,
            _,
            self._queued_us,
            _,
            _,
        ) = granted
        self._clock = clock
        self._key = key
        self._max_wait_us = max_wait_us
        self.due_us = departs_at_us + ahead_us
        self._asked_us = self.due_us - wait_us
        self._gives_up_us = None if timeout_us is None else self._asked_us + timeout_us

    def nap_until_us(self) -> int:
        """Until when to sleep before asking again; in the past when the turn has come."""
        if self._gives_up_us is None and not self._held:
            return self.due_us
        now = self._clock.now_us()
        until = self.due_us
        if until > now and self._gives_up_us is not None:
            if now >= self._gives_up_us:
                waited = (now - self._asked_us) / SECOND_US
                raise TimeoutError(f"gave up waiting for key {self._key!r} after {waited:.6g} s")
            until = min(until, self._gives_up_us)
        # All who wait look together, so that one question serves them.
        return min(until, (now // LOOK_US + 1) * LOOK_US) if self._held else until

    def is_over(self) -> bool:
        """Whether the turn has come, as far as is known."""
        return self.due_us <= self._clock.now_us()

    def waited_us(self, asked_us: int | None = None) -> tuple[int, int]:
        """How long ago the call asked, and how long ago its turn came."""
        now = self._clock.now_us()
        if asked_us is None:
            asked_us = self._asked_us
        return max(0, now - asked_us), max(0, now - self.due_us)

    def hear(self, standing: Standing) -> None:
        """How the key stands now. Where it was reset, what was promised still stands, and nothing else."""
        generation, shift_us, until_us, ahead_us, clock = standing
        if generation != self._generation:
            self._held = False
            return
        now = self._clock.now_us()
        self._held = until_us + ahead_us > now or bool(clock)
        due_us = self._queued_us + shift_us
        if clock:
            shown_us, share = clock
            due_us = real(until_us, shown_us, share, self._queued_us)
        self.due_us = max(due_us, until_us) + ahead_us
        wait_us = self.due_us - self._asked_us
        if self._max_wait_us is not None and wait_us > self._max_wait_us and self.due_us > now:
            held_back = Decision(False, 1, 1, 0, self.due_us, wait_us - self._max_wait_us)
            raise QueueFullError(held_back, self._key, wait_us / SECOND_US, self._max_wait_us / SECOND_US)


def refusal(turn: Reservation, max_wait_us: int | None) -> RateLimitedError:
    """What a turn that was not given is refused with."""
    decision = turn.decision
    if decision.binding is not None:
        # A queue names what refused only where that is a spent budget, by whatever name it has there.
        return QuotaExhaustedError(decision, turn.key)
    return QueueFullError(decision, turn.key, turn.delay, (max_wait_us or 0) / SECOND_US)
