"""Stock: the turns of one key that a process owns before anybody in it has asked for them.

Everything here is decided from what it is told: no clock is read and no store is asked. Whoever tends a
stock asks it what to do `next`, does that, and tells it what came of it.

Instants without a word are those of the clock that callers sleep by. A turn stands on the queue's own
time; how far the one is ahead of the other, every answer of the store tells anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from shapekit.algorithms.grant import Grant, Granted

MOST = 256
"""The most turns that one trip takes: a script that runs longer would keep everybody else waiting."""
_FIRST = 8
"""How many further turns the first busy trip asks for."""
_GROWTH = 4
_STEPS = 10
"""The part of a lease's slots that everybody who is busy gets beside what came."""
_WORTH = 8
"""So many turns have to be used for each that is wasted."""
_FEW, _ENOUGH = 4, 32
"""How many turns tell something: the larger a trip was, the more, for a machine stalls now and then."""
_MOST_STRIKES = 5
"""A stock that was wasteful again and again does not grow for 2 to the power of this leases."""
_PATIENCE = 4
"""The part of a lease after which turns that nobody comes for go back."""
_DRIFT = 1_000
"""Two clocks go apart by less than a µs in so many."""
_HASTE = 100
"""Turns leave sooner by a µs in so many, where answers came later before."""


class Refill(NamedTuple):
    """Fetch a turn for each who waits, and so many further ones within a span of the line."""

    further: int
    span_us: int


class GiveBack(NamedTuple):
    """Give these turns back; they are of one generation, in order."""

    grants: tuple[Grant, ...]


class Wait(NamedTuple):
    """There is nothing to do before this instant, unless somebody comes."""

    until_us: int


class Ask(NamedTuple):
    """Ask how the key stands."""


class Rest(NamedTuple):
    """Nothing is owned and nobody waits: there is nothing to tend."""


Next: TypeAlias = Refill | GiveBack | Wait | Ask | Rest


class Stock:
    """What one process owns on one key."""

    def __init__(
        self,
        lease_us: int,
        leaves_by: Callable[[Granted], int],
        *,
        slots: int,
        clock_decides: bool,
        counted: bool,
    ) -> None:
        self._lease_us = lease_us
        self._step = 1 + min(slots, MOST) // _STEPS
        self._leaves_by = leaves_by
        self._clock_decides = clock_decides
        self._counted = counted
        """Whether a turn that passes unused has to go back, for limits count it that have a memory."""
        self._turns: deque[Granted] = deque()
        self._returning: list[Granted] = []
        self._standing = (-1, 0, 0)
        self.doubts = object()
        """Another one after each doubt, so that it shows whether a question was asked before it."""
        self._sure_by: object = None
        self._heard_us = 0
        self._ahead_us = 0
        self._since_us = 0
        self._least_ahead_us = 0
        self._trip_us = 0
        self._comers: deque[int] = deque(maxlen=MOST)
        self._busy_since_us = 0
        self._came_us = 0
        self._answered_us = -lease_us
        self._last_us = 0
        self._last_taken_us = 0
        self._most = _FIRST
        self._used = 0
        self._wasted = 0
        self._strikes = 0
        self._rests_until_us = 0
        self._is_crowded = False
        self._may_refill = False

    def __len__(self) -> int:
        """The turns that nobody has asked for yet."""
        return len(self._turns)

    # callers

    def come(self, now_us: int) -> None:
        """Somebody asks for a turn."""
        self._forget_comers(now_us)
        if not self._comers:
            self._busy_since_us = now_us
        self._comers.append(now_us)
        self._came_us = now_us

    def take(self, now_us: int, cost: int, bound_us: int | None) -> Granted | None:
        """The earliest turn that is not over, if it is for such a caller; the store has to say otherwise."""
        if cost != 1 or not self._is_sure:
            return None
        self._pass_by(now_us)
        if not self._turns:
            return None
        granted = self._handed(self._turns[0], now_us)
        if not granted[1] and now_us - self._heard_us > self._lease_us:
            # Whoever waits asks whether the key is held before leaving, and who does not wait does not.
            granted = (True, 1, *granted[2:])
        if bound_us is not None and granted[1] > bound_us:
            return None
        self._turns.popleft()
        self._used += 1
        self._last_taken_us = max(self._last_taken_us, granted[10])
        return granted

    def put_back(self, granted: Granted) -> None:
        """A turn that was fetched for somebody who has gone is for the next, or goes back."""
        if granted[5] == 1 and granted[6] == self._standing[0]:
            self._turns = deque(sorted([*self._turns, granted], key=_due_us))
        else:
            self._returning.append(granted)

    # the store's answers

    def hear(
        self, standing: tuple[int, int, int], ahead_us: int, asked_us: int, now_us: int, doubts: object
    ) -> None:
        """How the key stands: its generation, shift, and until when it is held; asked and answered when.

        An answer to a question that was asked before the latest of the `doubts` tells the time alone.
        """
        trip_us = max(0, now_us - asked_us)
        self._trip_us = max(trip_us, self._trip_us * 7 // 8)
        if not self._clock_decides:
            self._set_clock(ahead_us, trip_us, now_us)
        if doubts is not self.doubts:
            return
        if standing[0] != self._standing[0]:
            # Another life of the key: what was promised in this one nobody knows there.
            self._returning += self._turns
            self._turns.clear()
            self._last_us = self._last_taken_us = 0
        self._standing = standing
        self._sure_by = doubts
        self._may_refill = True
        self._heard_us = asked_us

    def _set_clock(self, ahead_us: int, trip_us: int, now_us: int) -> None:
        """How far the clocks are apart, by an answer that was on its way for a part of the trip.

        The quickest answers know it best, but nobody is helped by changing it at once: who leaves by one
        answer and who by the next would come too close. So while turns are owned, it comes down slowly.
        """
        passed_us = max(0, now_us - self._heard_us)
        least_us = max(self._least_ahead_us + passed_us // _DRIFT, ahead_us - trip_us)
        is_new = self._at_us(self._last_us) < now_us
        before_us = self._ahead_at(now_us - ahead_us)
        self._least_ahead_us = ahead_us if is_new else min(ahead_us, least_us)
        kept_us = max(self._least_ahead_us, min(before_us, ahead_us + self._trip_us))
        self._ahead_us = ahead_us if is_new else kept_us
        self._since_us = now_us - ahead_us

    def _ahead_at(self, there_us: int) -> int:
        """How far the clock that callers sleep by is ahead of the queue's, when that shows so much."""
        passed_us = max(0, there_us - self._since_us)
        return max(self._least_ahead_us, self._ahead_us - passed_us // _HASTE)

    def doubt(self) -> None:
        """The key was changed here: how it stands has to be asked before anybody leaves."""
        self.doubts = object()

    def fill(self, asked: Sequence[Granted], further: Sequence[Granted], now_us: int) -> list[Granted]:
        """What a trip has fetched; returns the turns and refusals for those who asked."""
        self._learn(now_us)
        generation = self._standing[0]
        taken = [granted for granted in asked if granted[0] and granted[6] == generation]
        self._returning += [granted for granted in further if granted[6] != generation]
        further = [granted for granted in further if granted[6] == generation]
        # Who asks again as soon as there is an answer is kept waiting by the trips themselves.
        is_hurried = 0 <= self._came_us - self._answered_us < self._trip_us // 2
        self._answered_us = now_us
        is_late = any(granted[1] > 0 for granted in (*taken, *further))
        self._is_crowded = len(asked) > 1 or is_hurried or is_late
        # They may stand in places that others have left, before those that are owned.
        self._turns = deque(sorted([*self._turns, *further], key=_due_us))
        self._last_taken_us = max([self._last_taken_us, *map(_due_us, taken)])
        self._last_us = max([self._last_us, *map(_due_us, (*taken, *further))])
        if not asked and not further:
            self._may_refill = False
        return [self._handed(granted, now_us) if granted[0] else granted for granted in asked]

    def failed(self) -> None:
        """A trip came to nothing: nobody goes on one again before somebody needs it."""
        self._may_refill = False

    def known(self, now_us: int) -> tuple[int, int, int, int] | None:
        """Generation, shift, until and how far ahead, if that was heard within a lease."""
        if self._is_sure and 0 <= now_us - self._heard_us <= self._lease_us:
            generation, shift_us, until_us = self._standing
            return generation, shift_us, until_us, self._ahead_at(now_us - self._ahead_us)
        return None

    # tending

    def next(self, now_us: int, waiting: int) -> Next:
        """What is to be done, while so many wait whom the stock does not serve."""
        self._pass_by(now_us)
        if waiting:
            return Ask() if self._turns and not self._is_sure else self._refill(now_us, waiting)
        idle_us = max(self._came_us, self._at_us(self._last_taken_us)) + self._lease_us // _PATIENCE
        if now_us >= idle_us or len(self._returning) >= MOST:
            return self._give_back(is_over=now_us >= idle_us)
        if self._may_refill and self._most and self._is_crowded:
            ahead_us = self._trip_us * 3 // 2
            low_us = self._at_us(self._last_us) - ahead_us
            # Who leaves by what was heard longer ago than a lease asks again: each of them, and slots pass.
            # An answer that is too old for that when it comes helps nobody.
            is_worth = self._lease_us > 2 * self._trip_us
            old_us = self._heard_us + self._lease_us - ahead_us if is_worth else low_us
            if now_us < min(low_us, old_us):
                return Wait(min(low_us, old_us, idle_us))
            if now_us < low_us:
                return Ask()
            if (refill := self._refill(now_us, 0)).further:
                return refill
        return Wait(idle_us) if self._turns or self._returning else Rest()

    def surrender(self) -> GiveBack | Rest:
        """All that is owned, to be given back; one generation at a time."""
        return self._give_back(is_over=True)

    # inside

    @property
    def _is_sure(self) -> bool:
        return self._sure_by is self.doubts

    def _refill(self, now_us: int, waiting: int) -> Refill:
        """As many further turns as came in a lease, if turns were waited for and none were wasted."""
        is_held = self._is_sure and self._standing[2] + self._ahead_us > now_us
        expected = self._expected(now_us)
        if (not self._is_crowded and waiting < 2) or len(self._comers) < 2 or is_held:
            return Refill(0, 0)
        left_us = self._lease_us
        if self._turns:
            left_us -= self._turns[-1][10] - self._turns[0][10]
        if left_us <= 0:
            return Refill(0, 0)
        # In proportion to what came, those who have most would keep it; so each has a part that is the same.
        fair = expected * 3 // 4 + self._step
        return Refill(max(0, min(self._most, fair, MOST - waiting)), left_us)

    def _give_back(self, *, is_over: bool) -> GiveBack | Rest:
        if is_over and self._turns:
            self._returning += self._turns
            self._turns.clear()
        if not self._returning:
            return Rest()
        generation = self._returning[0][6]
        own = [granted for granted in self._returning if granted[6] == generation]
        self._returning = [granted for granted in self._returning if granted[6] != generation]
        return GiveBack(tuple([Grant(*granted) for granted in sorted(own, key=_due_us)]))

    def _pass_by(self, now_us: int) -> None:
        """A turn whose time is over is nobody's: who left by it now would be too close to the next."""
        while self._turns and self._at_us(self._leaves_by(self._turns[0])) < now_us:
            passed = self._turns.popleft()
            self._wasted += 1
            if self._counted:
                self._returning.append(passed)

    def _learn(self, now_us: int) -> None:
        """From what became of the turns since: whether to ask for more of them, or for fewer."""
        seen = self._used + self._wasted
        is_good = self._wasted * _WORTH <= self._used
        if seen >= max(_FEW, min(_ENOUGH, self._most * _FEW)):
            if not is_good:
                self._most = self._most * self._used // seen
                self._rests_until_us = now_us + (self._lease_us << self._strikes)
            self._strikes = max(0, self._strikes - 1) if is_good else min(_MOST_STRIKES, self._strikes + 1)
            self._used = self._wasted = 0
        if (is_good or seen < _FEW) and self._is_crowded and now_us >= self._rests_until_us:
            # Not from one on: a few turns next to each other are over before anybody hears of them.
            grown = self._most * (2 if self._strikes else _GROWTH)
            self._most = min(MOST, max(1, grown, self._expected(now_us) // _GROWTH))

    def _handed(self, granted: Granted, now_us: int) -> Granted:
        """The turn as it is from now on, with the holds that are known."""
        generation, shift_us, until_us = self._standing
        if granted[6] != generation:
            return granted
        at_us = max(granted[10] + shift_us, until_us)
        wait_us = self._at_us(granted[10]) - now_us
        if wait_us < 0:
            # Late, which with a burst may be as good as in time.
            at_us = max(at_us, min(at_us - wait_us, self._leaves_by(granted) + shift_us))
            wait_us = 0
        return (True, wait_us, at_us, until_us + self._ahead_us > now_us, *granted[4:])

    def _at_us(self, due_us: int) -> int:
        there_us = max(due_us + self._standing[1], self._standing[2])
        return there_us + self._ahead_at(there_us)

    def _expected(self, now_us: int) -> int:
        """How many come in a lease, as they do now."""
        self._forget_comers(now_us)
        span_us = max(1, min(self._lease_us, now_us - self._busy_since_us), self._trip_us)
        return -(-len(self._comers) * self._lease_us // span_us)

    def _forget_comers(self, now_us: int) -> None:
        while self._comers and now_us - self._comers[0] > self._lease_us:
            self._comers.popleft()
        self._busy_since_us = max(self._busy_since_us, now_us - self._lease_us)


def _due_us(granted: Granted) -> int:
    return granted[10]
