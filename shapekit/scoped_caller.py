"""Scoped caller: a request that may have to wait for a scope, and the lines in which such requests stand."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from shapekit.alarm import AsyncAlarm
from shapekit.clock import Clock
from shapekit.decision import Decision
from shapekit.departure import LOOK_US
from shapekit.errors import QueueFullError
from shapekit.rate import SECOND_US
from shapekit.reservation import Reservation
from shapekit.scopes import Scopes, scoped

if TYPE_CHECKING:
    from shapekit.target import Target

__all__ = ["Caller", "Lines"]

Place: TypeAlias = tuple[str, tuple[str, ...], object]
"""A key, the scopes that are waited for, and the event loop that waits; None for threads."""

_numbers = count()


class Caller:
    """One request: what it asks, since when it waits, and when it gives up."""

    def __init__(
        self,
        clock: Clock,
        known: Scopes,
        key: str,
        target: Target,
        cost: int,
        max_wait_us: int | None,
        timeout_us: int | None,
        loop: object,
    ) -> None:
        self.key = key
        self.cost = cost
        self.max_wait_us = max_wait_us
        self.number = next(_numbers)
        """Its place among all who ask, which it keeps however often it starts again."""
        self.scopes: tuple[str, ...] = ()
        self.held_until_us = 0
        self.has_waited = False
        self.is_behind = False
        """Whether it came while others, who had to wait, were taking their turns."""
        self.alarm: threading.Event | AsyncAlarm | None = None
        self.left_us = max_wait_us
        """How long it may still wait, when it last asked for a turn."""
        self.time_left_us = timeout_us
        self.stands_at: Place | None = None
        """The line that it has joined."""
        self._clock = clock
        self._known = known
        self._target = target
        self._loop = loop
        self.asked_us = clock.now_us()
        self.turn: Reservation | None = None
        """The turn that it has now; several follow each other, and are told as one."""
        self.had_turn = False
        self.is_returned = False
        """Whether somebody else may have the last one."""
        self._gives_up_us = None if timeout_us is None else self.asked_us + timeout_us
        self._before_us = 0

    def look_up(self) -> None:
        """For which scopes to wait, as far as is known by now."""
        self.scopes = self._known.find(self.key, self._target, self._clock.now_us())

    def scoped_keys(self) -> list[str]:
        return [scoped(self.key, scope) for scope in self.scopes]

    @property
    def place(self) -> Place:
        """Where it would stand in line."""
        return self.key, self.scopes, self._loop

    def nap_until_us(self) -> int:
        """Until when to sleep before asking again, where a scope is held; or what it gives up with."""
        now = self._clock.now_us()
        self._check_wait(self.held_until_us - self.asked_us, " ".join(self.scoped_keys()))
        until = min(self.held_until_us, now + LOOK_US)
        if self._gives_up_us is None:
            return until
        if now >= self._gives_up_us:
            waited = (now - self.asked_us) / SECOND_US
            raise TimeoutError(f"gave up waiting for key {self.key!r} after {waited:.6g} s")
        return min(until, self._gives_up_us)

    def foresee(self, first_in_s: float) -> None:
        """Whoever would be refused a turn now need not wait for the scope first."""
        self._check_wait(round(first_in_s * SECOND_US), self.key)

    def look_at_clock(self) -> int | None:
        """The longest wait for a turn that is asked for now, in microseconds."""
        now = self._clock.now_us()
        self._before_us = now - self.asked_us if self.has_waited else 0
        if self._gives_up_us is not None:
            self.time_left_us = max(0, self._gives_up_us - now)
        if self.max_wait_us is None:
            return None
        self.left_us = max(0, self.max_wait_us - self._before_us)
        return self.left_us

    def late(self, turn: Reservation) -> Reservation:
        """The turn, delayed by what was waited before it was taken, too."""
        grant = turn.grant
        return turn._replace(granted=grant._replace(wait_us=grant.wait_us + self._before_us))

    def told(self, error: QueueFullError) -> QueueFullError:
        """A refusal of a turn, in terms of the whole wait."""
        bound_s = error.max_wait if self.max_wait_us is None else self.max_wait_us / SECOND_US
        return QueueFullError(error.decision, error.key, error.delay + self._before_us / SECOND_US, bound_s)

    def _check_wait(self, wait_us: int, key: str) -> None:
        if self.max_wait_us is not None and wait_us > self.max_wait_us:
            self._before_us = 0
            over_us = wait_us - self.max_wait_us
            refusal = Decision(False, 1, 1, 0, self.asked_us + wait_us, over_us)
            raise QueueFullError(refusal, key, wait_us / SECOND_US, self.max_wait_us / SECOND_US)


class Lines:
    """Those who wait for the same scopes on one loop, or in threads: whoever has asked first goes first."""

    def __init__(self) -> None:
        self._lines: dict[Place, dict[int, Caller]] = {}
        # A coroutine that is thrown away may come by in the midst of anything that this thread does.
        self._lock = threading.RLock()

    def join(self, caller: Caller) -> None:
        """Stand where one's place is by now."""
        place = caller.place
        if caller.stands_at == place:
            return
        self.leave(caller)
        with self._lock:
            line = self._lines.get(place, {})
            line[caller.number] = caller
            self._lines[place] = line
        caller.stands_at = place

    def is_turn_of(self, caller: Caller, alarm: threading.Event | AsyncAlarm) -> bool:
        """Whether nobody goes before; otherwise the alarm rings when that has changed."""
        place = caller.place
        if place not in self._lines:
            return True
        self.join(caller)
        with self._lock:
            caller.alarm = alarm
            line = self._lines[place]
            first = line[min(line)]
            if first.has_waited or first.is_behind:
                caller.is_behind = True
            return first is caller

    def leave(self, caller: Caller) -> None:
        """Go, or give up; whoever is first now hears of it."""
        place = caller.stands_at
        if place is None:
            return
        caller.stands_at = None
        with self._lock:
            line = self._lines[place]
            del line[caller.number]
            if not line:
                del self._lines[place]
            elif (alarm := line[min(line)].alarm) is not None:
                alarm.set()
