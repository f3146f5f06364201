"""Queues whose numbers an operator has set, in place of those in the code.

They decide as any queue of these numbers does. But their answers name the queue, because the caller's own
has other units; and calls that wait move when such numbers come or go (moves.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from shapekit.algorithms.adaptive.queue import AdaptiveQueue
from shapekit.algorithms.queue.queue import HELD_US, UNKNOWN, LeakyQueue
from shapekit.algorithms.queue.slots import Asked, Grant, Granted


class _Overridden(LeakyQueue):
    """What such queues have in common."""

    __slots__ = ()
    is_set: ClassVar[bool] = True
    origin: ClassVar[type[LeakyQueue]]
    """The kind of queue that has these numbers in code."""

    def reserve(self, state: Any, now: int, asked: Asked, skew: int = 0) -> tuple[Any, Granted, int, bool]:
        """`reserve` of any queue; its answer names this one."""
        before = self._held(state, now, asked[2]) if self.is_held else state
        after, granted, life, is_taken = super().reserve(before, now, asked, skew)
        return after if is_taken else state, Grant(*granted)._replace(queue=self), life, is_taken

    def follow(self, state: Any, now: int, skew: int = 0) -> tuple[Any, tuple[Any, ...], int, bool]:
        """`follow` of any queue."""
        is_held = self.is_held and self.confirm(state, now)[0] != UNKNOWN
        return super().follow(self._held(state, now, 0) if is_held else state, now, skew)

    def granted_received(self, sent: Any) -> Grant:
        """The answer to a reservation, from the twin."""
        return super().granted_received(sent)._replace(queue=self)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is constructed from."""
        spec = super().twin(instants)
        return ["queue/held", spec] if self.is_held else spec

    def _held(self, state: Any, now: int, nonce: int) -> Any:
        if self.confirm(state, now)[2] >= now + HELD_US // 2:
            return state
        return self.hold(state, now, HELD_US, nonce)[0]


class SetQueue(_Overridden):
    """A LeakyQueue of numbers that an operator has set."""

    __slots__ = ()
    origin: ClassVar[type[LeakyQueue]] = LeakyQueue


class HeldQueue(SetQueue):
    """A LeakyQueue that an operator holds without end."""

    __slots__ = ()
    is_held: ClassVar[bool] = True


class SetAdaptiveQueue(_Overridden, AdaptiveQueue):
    """An AdaptiveQueue of bounds that an operator has set."""

    __slots__ = ()
    origin: ClassVar[type[LeakyQueue]] = AdaptiveQueue


class HeldAdaptiveQueue(SetAdaptiveQueue):
    """An AdaptiveQueue that an operator holds without end."""

    __slots__ = ()
    is_held: ClassVar[bool] = True


_KINDS: dict[tuple[type[LeakyQueue], bool], type[_Overridden]] = {
    (kind.origin, kind.is_held): kind for kind in (SetQueue, HeldQueue, SetAdaptiveQueue, HeldAdaptiveQueue)
}


def overridden(queue: LeakyQueue, *, is_held: bool = False, **numbers: Any) -> LeakyQueue:
    """The queue with other numbers, as an operator's; by default with the same."""
    origin = queue.origin if isinstance(queue, _Overridden) else type(queue)
    make: Any = _KINDS[origin, is_held]
    own = {field: getattr(queue, field) for field in queue.fields} | numbers
    if isinstance(queue, AdaptiveQueue):
        return cast("LeakyQueue", make(**own))
    paced = min(own["rates"], key=lambda rate: rate.period_us, default=None)
    if own["pace"] != "smooth" or paced is None or paced.burst is not None:
        # Without a pace there is no burst; else it is part of the rate already.
        own["burst"] = numbers.get("burst")
    return cast("LeakyQueue", make(**own))
