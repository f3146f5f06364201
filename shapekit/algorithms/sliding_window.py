"""SlidingWindow: a rolling window counted in buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import (
    Algorithm,
    Decided,
    Outcome,
    decision_of,
    scaled_window,
    share_of,
    windowed,
)
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, Duration, Rate, whole

__all__ = ["SlidingWindow"]

Ring: TypeAlias = tuple[int, ...]

MAX_BUCKETS = 1_000
_MAX_AHEAD = 1_000
"""Ticks of turns still to come that are kept apart."""
_MOST_OWED = 1_000 * MAX_COUNT
_new = tuple.__new__


class SlidingWindow(Algorithm[Ring]):
    """`limit` units in any window, up to an error of one bucket, in bounded memory.

    The window is cut into `buckets` ticks. What is counted are the newest `buckets` ticks, and the
    one before them weighted by how much of it the window still covers, as if its calls had been
    spread evenly. They need not have been, so up to the content of that one tick may be admitted
    too much or too little. `buckets=1` is the two-counter estimator,
    `current + previous * (window - elapsed) / window`.

    `conservative=True` counts the oldest tick whole: never more than `limit` in any window, and a
    unit is held for at most `1/buckets` of a window too long.

        >>> window = SlidingWindow(50, "1m", buckets=1)
        >>> state = window.debit(None, 0, 42).state
        >>> state = window.debit(state, 75_000_000, 18).state
        >>> window.peek(state, 75_000_000).current    # 18 + 42 * 45/60 = 49.5
        50

    A tick is a whole number of microseconds, rounded up. The state is the newest tick's number and
    the counts of the ticks, newest first, as far back as the window reaches from now. Calls of a tick
    before the newest (time went back, or that tick holds turns still to come) wait for it.
    """

    kind: ClassVar[str] = "sliding_window"

    fields = ("limit", "window_us", "buckets", "conservative")
    __slots__ = (*fields, "_width")

    limit: int
    window_us: int
    buckets: int
    conservative: bool
    _width: int

    def __init__(
        self,
        limit: int | str | Rate,
        window: Duration | None = None,
        *,
        buckets: int = 10,
        conservative: bool = False,
    ) -> None:
        units, window_us = windowed(limit, window)
        whole("buckets", buckets, most=MAX_BUCKETS)
        if buckets > window_us:
            raise ConfigError(
                "buckets", buckets, f"cut a window of {window_us} µs too fine", "use fewer buckets"
            )
        if type(conservative) is not bool:
            raise ConfigError("conservative", conservative, "is neither True nor False", "pass a bool")
        self._fill(
            limit=units,
            window_us=window_us,
            buckets=buckets,
            conservative=conservative,
            _width=-(-window_us // buckets),
        )

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: Ring | None, now: int, cost: int, skew: int = 0) -> Decided[Ring]:
        width = self._width
        tick = now // width
        if not state:
            ring: Ring = (tick, 0)
        elif state[0] == tick:
            ring = state
        else:
            ring = self._turned(state, tick, self.buckets + 1)
            if ring[0] > tick:
                return state, self._decision(ring, now, cost), 0, False
        used = self._used(ring, now - tick * width) + cost
        limit = self.limit
        if used > limit:
            return state, self._decision(ring, now, cost), 0, False
        after = (tick, ring[1] + cost, *ring[2:])
        full = (tick + self.buckets + 1) * width
        decision = _new(Decision, (True, limit, used, limit - used, full, 0, None, now, 0))
        return after, decision, full - now, True

    def charge(self, state: Ring | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Ring]:
        width = self._width
        tick = due // width
        ahead = min(tick - now // width, _MAX_AHEAD)
        ring = self._turned(state or (tick, 0), tick, self.buckets + 1 + ahead)
        used = self._used(ring, due - tick * width) + cost
        after = (tick, ring[1] + cost, *ring[2:])
        full = (tick + self.buckets + 1) * width
        decision = Decision(True, self.limit, used, self.limit - used, full, 0, None, due)
        return after, decision, full - now, True

    def earliest(self, state: Ring | None, at: int, cost: int, skew: int = 0) -> int:
        if not state:
            return at
        width, buckets = self._width, self.buckets
        ring = self._turned(state, at // width, buckets + 1)
        room = self.limit - cost - sum(ring[1 : buckets + 1])
        for age in range(buckets, -1, -1):
            # The tick of this age is the oldest that counts.
            start = (ring[0] + buckets - age) * width
            oldest = ring[1 + age] if len(ring) > 1 + age else 0
            if room >= oldest:
                return max(at, start)
            if room > 0 and not self.conservative:
                # The oldest weighs oldest * (width - elapsed) / width, and that must fit into room.
                elapsed = width - room * width // oldest
                if elapsed < width:
                    return max(at, start + elapsed)
            if age and len(ring) > age:
                room += ring[age]
        return max(at, (ring[0] + buckets + 1) * width)

    def peek(self, state: Ring | None, now: int, skew: int = 0) -> Decision:
        return self._decision(state, now, 1)

    def forecast(self, state: Ring | None, now: int, cost: int, skew: int = 0) -> Forecast:
        seen = self.peek(state, now)
        fits = seen.remaining // cost if seen.allowed else 0
        return Forecast(self.earliest(state, now, cost), fits, seen.reset_at_us)

    def refund(
        self, state: Ring | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Ring]:
        if state and isinstance(charged_at, int):
            at = 1 + state[0] - charged_at // self._width
            if 1 <= at < len(state) and state[at]:
                ring = (*state[:at], max(0, state[at] - cost), *state[at + 1 :])
                # A tick that held nothing but turns that were given back is not the newest any more.
                while len(ring) > 1 and not ring[1] and ring[0] * self._width > now:
                    ring = (ring[0] - 1, *ring[2:])
                return self._settled(ring if len(ring) > 1 else (), now)
        return Outcome(state, self.peek(state, now), 0, False)

    def debit(
        self,
        state: Ring | None,
        now: int,
        cost: int,
        charged_at: Receipt = None,
        skew: int = 0,
    ) -> Outcome[Ring]:
        tick = now // self._width
        ring = self._turned(state or (tick, 0), tick, self.buckets + 1)
        # A debt that no waiting repays is counted no further: the twin's sums stay exact in a double.
        owed = cost if sum(ring[1:]) < _MOST_OWED else 0
        return self._settled((ring[0], ring[1] + owed, *ring[2:]), now, max(now, ring[0] * self._width))

    def scaled(self, share: float | Fraction) -> Self:
        limit, window = scaled_window(self.limit, self.window_us, share_of(share))
        return type(self)(limit, window, buckets=self.buckets, conservative=self.conservative)

    def adopt(self, state: Ring, writer: Any, now: int, skew: int = 0) -> Ring:
        counts: dict[int, int] = {}
        for at, count in writer.entries(state, now):
            counts[at // self._width] = counts.get(at // self._width, 0) + count
        if not counts:
            return ()
        newest = max(counts)
        return (newest, *(counts.get(tick, 0) for tick in range(newest, min(counts) - 1, -1)))

    def entries(self, state: Ring, now: int) -> Iterator[tuple[int, int]]:
        """When units were admitted at the latest, oldest first: for a window of another form."""
        for age in range(len(state) - 2, -1, -1):
            begun = (state[0] - age) * self._width
            last = begun + self._width - 1
            yield now if begun <= now < last else last, state[age + 1]

    def decision_received(self, sent: Any) -> Decision:
        if len(sent) > 2:
            return decision_of(sent, self.receipt_received)
        now, used = sent
        full = (now // self._width + self.buckets + 1) * self._width
        return Decision(True, self.limit, used, self.limit - used, full, 0, None, now)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["sliding_window", self.limit, self._width, self.buckets, self.conservative]

    def _turned(self, ring: Ring, tick: int, size: int) -> Ring:
        """The ring with `tick` as its newest, if that is not in its past, and at most `size` ticks."""
        ahead = tick - ring[0]
        if ahead <= 0:
            return ring
        if ahead >= size:
            return (tick, 0)
        return (tick, *(0,) * ahead, *ring[1 : size + 1 - ahead])

    def _used(self, ring: Ring, elapsed: int) -> int:
        """The estimate at `elapsed` into the newest tick, rounded up to whole units."""
        size = self.buckets + 1
        oldest = ring[size] if len(ring) > size else 0
        if self.conservative or not oldest:
            return sum(ring[1:size]) + oldest
        return sum(ring[1:size]) - (-oldest * (self._width - elapsed)) // self._width

    def _settled(self, state: Ring, now: int, receipt: int | None = None) -> Outcome[Ring]:
        ttl = (state[0] + self.buckets + 1) * self._width - now if state else 0
        decision = self._decision(state, now, 1)._replace(receipt=receipt)
        return Outcome(state, decision, max(0, ttl), True)

    def _decision(self, state: Ring | None, now: int, cost: int) -> Decision:
        if not state:
            return Decision(True, self.limit, 0, self.limit, now, 0)
        width = self._width
        ring = self._turned(state, now // width, self.buckets + 1)
        used = self._used(ring, max(0, now - ring[0] * width))
        wait = self.earliest(state, now, cost) - now
        ages = [age for age, count in enumerate(ring[1 : self.buckets + 2]) if count]
        full = max(now + wait, (ring[0] - ages[0] + self.buckets + 1) * width if ages else now)
        remaining = 0 if ring[0] * width > now else max(0, self.limit - used)
        return Decision(wait == 0, self.limit, used, remaining, full, wait)
