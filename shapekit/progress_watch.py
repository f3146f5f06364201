"""Progress watch: what is known of a loop whose calls are shaped: how far it is, and when it will be through.

Both kinds of loop come by between two items. On a terminal a thread comes by too, while an item takes long:
it counts down, and sees a hold that was placed meanwhile.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, NamedTuple

from shapekit.errors import ShapekitError, StoreUnavailableError
from shapekit.levers import MAX_PLAYED
from shapekit.progress_line import Told, opened
from shapekit.rate import SECOND_US
from shapekit.shaper import Shaper
from shapekit.switch import SWITCH

__all__ = ["Loop", "Watch"]

TRIP_US = SECOND_US
"""How long an answer is good for that takes a trip; meanwhile it is counted down."""
OUTAGE_US = 10 * SECOND_US
"""How long a store is left alone that could not be asked."""
PLAY_US = 500
"""How long a forecast is good for, for each call that had to be played: some fifty times what that took."""
PLAYED_AT_ONCE = 500
"""The most calls that are played between two items, in some 5 ms; more than that on a thread."""
TICK_S = 0.5
"""How often, in real time, the terminal's thread comes by."""
SMOOTH = 4
"""The newest item counts for one part in so many of what is taken to be the work for an item."""


class Loop(NamedTuple):
    """What is watched: items, each of which makes a call on `key` that costs `cost`."""

    shaper: Shaper
    name: str
    key: str
    cost: int
    total: int | None
    enforced: bool


class Watch:
    """One loop, from its beginning to its end; all instants are on the clock that its calls sleep by."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._clock = loop.shaper._store.clock
        self.now_us = self._clock.now_us
        self.done = 0
        """How many items are through."""
        self.due_us = 0
        """When to come by again."""
        self._began_us = self._told_us = self._next_us = self.now_us()
        self._ask_us = self._play_us = self._next_us
        self._end_us: int | None = None
        """When the last item will be through, but for `_shift_us`."""
        self._shift_us = 0
        """By how much holds have moved everybody on the key."""
        self._shifted_us: int | None = None
        """By how much they had before the loop began."""
        self._held_until_us = self._continues_us = 0
        self._in_hand: tuple[int, int] | None = None
        """When an item was handed out, and how long its call had to wait then."""
        self._timed: tuple[int, int] | None = None
        """When that was, and how long the item took beyond it, which is work, unless it was held."""
        self._work_us: float | None = None
        """How long the work for an item takes."""
        self._player: threading.Thread | None = None
        self._sees_holds = True
        self._over = threading.Event()
        # Reentrant: the collector may end an abandoned loop in the midst of anything, on any thread.
        self._lock = threading.RLock()
        self._output = opened(loop.name)
        if self._output.is_live:
            _start(threading.Thread(target=self._tick_on, name="shapekit-progress"))

    def step(self) -> None:
        """Between two items."""
        if self._is_time():
            if self._is_to_ask():
                with suppress(StoreUnavailableError):
                    self._hear(self._loop.shaper._look(self._loop.key))
            self._tell()

    async def astep(self) -> None:
        """`step`, awaitable."""
        if self._is_time():
            if self._is_to_ask():
                with suppress(StoreUnavailableError):
                    self._hear(await self._loop.shaper._alook(self._loop.key))
            self._tell()

    def tick(self) -> None:
        """In the midst of an item that takes long."""
        if self.now_us() - self._told_us < SECOND_US:
            return
        if self._sees_holds and self._is_shaped():
            try:
                _, shift, until, ahead, _ = self._loop.shaper._confirmations.ask(self._loop.key)
            except ShapekitError:
                self._sees_holds = False  # the store is gone, or cannot be asked by threads
            else:
                self._shift_us, self._held_until_us = shift, until + ahead
        self._tell()

    def end(self, handed: int, *, is_through: bool) -> None:
        """The loop is over, after so many items were handed out."""
        ending = "stopped" if handed == self.done else f"stopped in item {handed:,}"
        with self._lock:
            self._tell("" if is_through else ending)
            self._over.set()
        self._output.close()

    # when

    def _is_time(self) -> bool:
        """Whether there is something to tell."""
        now = self.now_us()
        if self._in_hand is not None:
            (since_us, wait_us), self._in_hand = self._in_hand, None
            self._timed = (since_us, max(0, now - since_us - wait_us))
        self.due_us = self._next_us
        if now < self._next_us:
            return False
        if not self._output.is_heard:
            self._next_us = self.due_us = now + self._output.pause_us(now - self._began_us)
            return False
        return True

    def _is_to_ask(self) -> bool:
        now = self.now_us()
        if not self._is_shaped():
            self._worked(0)
            self._in_hand = (now, 0)
            return False
        if now < self._ask_us:
            return False
        self._ask_us = now + OUTAGE_US
        return True

    def _is_shaped(self) -> bool:
        return self._loop.enforced and not SWITCH.is_off

    # what

    def _hear(self, looked: tuple[Any, int, int]) -> None:
        """How the key stands, and what follows for the rest."""
        shaper, _, _, cost, total, _ = self._loop
        state, at, skew = looked
        now, queue = self.now_us(), shaper.queue
        self._ask_us = now if shaper.instant else now + TRIP_US
        _, self._shift_us, until, *_ = queue.confirm(state, at)
        self._held_until_us = now + until - at
        if self._shifted_us is None:
            self._shifted_us = self._shift_us - max(0, until - at)
        self._worked(self._held_until_us)
        # Asked without a bound, a spent quota refuses, and says for how long. The turn itself is not kept.
        accepted, wait = queue.reserve(state, at, (cost, None, 0), skew)[1][:2]
        self._continues_us = 0 if accepted else now + wait
        self._in_hand = (now, wait)
        self._sees_holds = True
        rest = 0 if total is None else total - self.done
        if rest <= 0:
            self._end_us = now - self._shift_us
        elif not queue.constraints:
            self._play(looked, rest, now, self._shift_us)
        elif now >= self._play_us and (self._player is None or not self._player.is_alive()):
            self._play_us = now + rest * PLAY_US
            self._foresee(looked, rest, now)

    def _foresee(self, looked: tuple[Any, int, int], rest: int, now: int) -> None:
        args = (looked, rest, now, self._shift_us)
        if rest <= PLAYED_AT_ONCE:
            self._play(*args)
        elif rest > MAX_PLAYED:
            self._end_us = None
        else:
            self._player = threading.Thread(target=self._play, args=args, daemon=True)
            _start(self._player)

    def _play(self, looked: tuple[Any, int, int], rest: int, now: int, shift_us: int) -> None:
        """When the rest will have left, as `forecast` says it."""
        state, at, skew = looked
        last = self._loop.shaper.queue.outlook(state, at, rest, self._loop.cost, skew)[1]
        self._end_us = now + last - shift_us

    def _worked(self, held_until_us: int) -> None:
        """Count what was timed, if that was no hold."""
        if self._timed is None:
            return
        (since_us, work_us), self._timed = self._timed, None
        if since_us < held_until_us:
            return
        before = work_us if self._work_us is None else self._work_us
        self._work_us = before + (work_us - before) / SMOOTH

    # telling

    def _tell(self, ending: str | None = None) -> None:
        with self._lock:
            if self._over.is_set():
                return
            now = self.now_us()
            self._output.tell(self._told(now, ending))
            self._told_us = now
            self._next_us = now + self._output.pause_us(now - self._began_us)
            self.due_us = self._next_us if self._in_hand is None else 0

    def _told(self, now: int, ending: str | None) -> Told:
        return Told(
            self.done,
            self._loop.total,
            max(0, now - self._began_us) / SECOND_US,
            self._eta(now),
            max(0, self._held_until_us - now) / SECOND_US,
            max(0, self._continues_us - now) / SECOND_US,
            self._clock.wall_us() / SECOND_US,
            ending,
        )

    def _eta(self, now: int) -> float | None:
        """As long as the limits make it take, or the work, whichever is longer."""
        if self._loop.total is None:
            return None
        work_us = None
        if self._work_us is not None:
            # A few items tell of the rest only roughly; it is no more than all of them took, holds aside.
            spent_us = now - self._began_us - (self._shift_us - (self._shifted_us or 0))
            rest = max(0, self._loop.total - self.done)
            work_us = rest * min(self._work_us, max(0, spent_us) / max(1, self.done))
        if not self._is_shaped():
            return None if work_us is None else work_us / SECOND_US
        if self._end_us is None:
            return None
        return max(0, self._end_us + self._shift_us - now, work_us or 0) / SECOND_US

    def _tick_on(self) -> None:
        # No daemon, which could be caught in the midst of writing when the interpreter ends.
        while threading.main_thread().is_alive() and not self._over.wait(TICK_S):
            self.tick()


def _start(thread: threading.Thread) -> None:
    # Where no thread can be started, the loop goes on without.
    with suppress(RuntimeError):
        thread.start()
