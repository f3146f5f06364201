"""SlidingWindow: a rolling window that counts in buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import (
    MOST_UNITS,
    Book,
    Decided,
    Outcome,
    Window,
    reborn,
    scaled_window,
    share_of,
    windowed,
)
from shapekit.algorithms.prospects import Rolling
from shapekit.decision import Decision, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, Duration, Rate, boolean, whole

__all__ = ["SlidingWindow"]

Ring: TypeAlias = tuple[int, ...]

MAX_BUCKETS = 1_000
_MAX_AHEAD = 2**10
"""How many older ticks are kept in case future slots are given back. Beyond that, the newest of them are
merged into one: refunds to the others are lost.
"""
_MOST_OWED = 1_000 * MAX_COUNT
_new = tuple.__new__


class SlidingWindow(Window[Ring]):
    """At most `limit` units in any window, within an error of one bucket, in bounded memory.

    The window is divided into `buckets` ticks. The estimate is the sum of the newest `buckets` ticks, plus
    the one before them weighted by how much of it the window still covers, as if its calls had been spread
    evenly. They may not have been, so the error is at most the content of that one tick, in either direction.
    `buckets=1` is the two-counter estimator, `current + previous * (window - elapsed) / window`.

    `conservative=True` counts the oldest tick in full: never more than `limit` in any window, but a unit
    counts for up to `1/buckets` of a window too long.

        >>> window = SlidingWindow(50, "1m", buckets=1)
        >>> state = window.debit(None, 0, 42).state
        >>> state = window.debit(state, 75_000_000, 18).state
        >>> window.peek(state, 75_000_000).current    # 18 + 42 * 45/60 = 49.5
        50

    A tick is a whole number of microseconds, rounded up. The state is the newest tick's number and the counts
    of the ticks, newest first, as far back as the window reaches; then the number and the count of each older
    tick that still counts now, in case future slots are given back. Calls in a tick before the newest (time
    went back, or the newest holds future slots) wait for it.
    """

    kind: ClassVar[str] = "sliding_window"

    fields = ("limit", "window_us", "buckets", "conservative")
    __slots__ = (*fields, "_width")

    limit: int
    """Units per window."""
    window_us: int
    """The length of a window, in microseconds."""
    buckets: int
    """The number of parts in which the window is counted."""
    conservative: bool
    """Whether the oldest part counts in full."""
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
            fix = "use fewer buckets"
            raise ConfigError("buckets", buckets, f"cut a window of {window_us} µs too fine", fix)
        self._fill(
            limit=units,
            window_us=window_us,
            buckets=buckets,
            conservative=boolean("conservative", conservative),
            _width=-(-window_us // buckets),
        )

    def booked(self, book: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        state, born, charged, settled = book or (None, now, 0, ())
        width = self._width
        tick = now // width
        if not state:
            ring: Ring = (tick, 0)
        elif state[0] == tick:
            ring = state
        else:
            ring = self._turned(state, tick, self.buckets + 1)
            if ring[0] > tick:
                return book, self._decision(ring, now, cost), 0, False
        used = self._used(ring, now - tick * width) + cost
        limit = self.limit
        if used > limit:
            return book, self._decision(ring, now, cost), 0, False
        charged += cost
        if charged > MOST_UNITS:
            born, charged, settled = reborn(born, now, cost)
        after = (tick, ring[1] + cost, *ring[2:])
        full = (tick + self.buckets + 1) * width
        receipt = (born, charged, cost, now)
        decision = _new(Decision, (True, limit, used, limit - used, full, 0, None, receipt, 0))
        return (after, born, charged, settled), decision, full - now, True

    def charge(self, state: Ring | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Ring]:
        width = self._width
        tick = due // width
        tick_now = now // width
        if tick > tick_now and state:
            ring = self._with_older(state, tick, tick_now)
        else:
            ring = self._turned(state or (tick, 0), tick, self.buckets + 1)
        used = self._used(ring, due - tick * width) + cost
        after = (tick, ring[1] + cost, *ring[2:])
        return after, self._admitted(used, due), self._full_after(due) - now, True

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
                # The oldest tick counts oldest * (width - elapsed) / width, which must fit into room.
                elapsed = width - room * width // oldest
                if elapsed < width:
                    return max(at, start + elapsed)
            if age and len(ring) > age:
                room += ring[age]
        return max(at, (ring[0] + buckets + 1) * width)

    def refund_many(
        self, state: Ring | None, now: int, charges: Sequence[Sequence[int]], skew: int = 0
    ) -> Ring | None:
        if not state:
            return state
        ring, first = [*state], self.buckets + 2
        older = range(first, len(state), 2)
        is_found = is_thinner = False
        for charged_at, units in charges:
            tick = charged_at // self._width
            at = 1 + state[0] - tick
            if at >= first:
                at = first + 1 + 2 * bisect_left(older, -tick, key=lambda place: -state[place])
                if state[at - 1 : at] != (tick,):
                    continue
            if 1 <= at < len(ring) and ring[at]:
                ring[at] = max(0, ring[at] - units)
                is_found, is_thinner = True, is_thinner or (at > first and not ring[at])
        if is_thinner:
            behind = zip(ring[first::2], ring[first + 1 :: 2], strict=True)
            ring[first:] = [number for pair in behind if pair[1] for number in pair]
        # A future tick whose slots were all given back is no longer the newest.
        if is_found and not ring[1] and ring[0] * self._width > now:
            return self._retracted(tuple(ring), now // self._width)
        return tuple(ring) if is_found else state

    def refund_passed(
        self, state: Ring, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Ring]:
        outcome = self.refund(state, now, cost, charged_at, skew)
        if not outcome.persist or (outcome.state and outcome.state[0] >= state[0]):
            return outcome
        return self._settled(self._turned(outcome.state or (state[0], 0), state[0], self.buckets + 1), now)

    def prospect(self, state: Ring | None, cost: int, skew: int = 0) -> Rolling | None:
        if not self.conservative:
            return None
        width, reach = self._width, (self.buckets + 1) * self._width
        newest, *counts = (state or (0,))[: self.buckets + 2]
        starts = range(newest - len(counts) + 1, newest + 1)
        leaves = [start * width + reach for start in starts]
        return Rolling(self.limit, width, reach, newest * width, [*accumulate(reversed(counts))], leaves)

    def together(self, charged_at: int) -> int:
        return charged_at // self._width

    def debit(
        self, state: Ring | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Ring]:
        tick = now // self._width
        ring = self._turned(state or (tick, 0), tick, self.buckets + 1)
        # A debt so large that no wait repays it does not grow: the twin's sums stay exact in a double.
        owed = cost if sum(ring[1 : self.buckets + 2]) < _MOST_OWED else 0
        after = (ring[0], ring[1] + owed, *ring[2:])
        return self._settled(after, now, receipt=max(now, ring[0] * self._width))

    def scaled(self, share: float | Fraction) -> Self:
        limit, window = scaled_window(self.limit, self.window_us, share_of(share))
        return type(self)(limit, window, buckets=self.buckets, conservative=self.conservative)

    def adopt(self, state: Ring, writer: Any, now: int, skew: int = 0) -> Ring:
        return self._placed(writer.entries(state, now))

    def since(self, state: Ring, at: int) -> int:
        return sum(count for last, count in self.entries(state, at) if last >= at)

    def rescheduled(self, state: Ring, newest: int, when: Callable[[int], int]) -> Ring:
        return self._placed((when(at), count) for at, count in self.entries(state, newest))

    def entries(self, state: Ring, now: int) -> Iterator[tuple[int, int]]:
        """The latest instants at which units may have been admitted, with their number, oldest first.

        Units of the present tick were admitted by `now`.
        """
        first = self.buckets + 2
        ticks = [*zip(state[first::2], state[first + 1 :: 2], strict=True)][::-1]
        ticks += [(state[0] - age, state[age + 1]) for age in range(len(state[1:first]) - 1, -1, -1)]
        for tick, count in ticks:
            if not count:
                continue
            begun = tick * self._width
            last = begun + self._width - 1
            yield now if begun <= now < last else last, count

    def life(self, state: Ring, now: int, skew: int = 0) -> int:
        return max(0, (state[0] + self.buckets + 1) * self._width - now) if state else 0

    def inspect(self, state: Any) -> None:
        sum(state)
        first = self.buckets + 2
        older = [*state[first::2]]
        if len(state) > first and (
            len(state) % 2 != first % 2
            or len(older) > _MAX_AHEAD
            or older != sorted(set(older), reverse=True)
            or older[0] > state[0] - first + 1
        ):
            raise ValueError("malformed ticks")

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["sliding_window", self.limit, self._width, self.buckets, self.conservative]

    def _placed(self, entries: Iterable[tuple[int, int]]) -> Ring:
        ring: Ring = ()
        for at, count in entries:
            tick = at // self._width
            # All older ticks are kept, in case the newest slot is given back.
            ring = self._with_older(ring, tick, 0) if ring else (tick, 0)
            ring = (ring[0], ring[1] + count, *ring[2:])
        return ring

    def _full_after(self, charged_at: int) -> int:
        return (charged_at // self._width + self.buckets + 1) * self._width

    def _turned(self, ring: Ring, tick: int, size: int) -> Ring:
        """The ring moved on to `tick`, unless its newest is later, with at most `size` ticks."""
        ahead = tick - ring[0]
        if ahead <= 0:
            return ring
        if ahead >= size:
            return (tick, 0)
        return (tick, *(0,) * ahead, *ring[1 : size + 1 - ahead])

    def _with_older(self, ring: Ring, tick: int, now: int) -> Ring:
        """The ring with `tick` as its newest, then the older ticks that still count in the tick of `now`."""
        size, newest, oldest = self.buckets + 1, ring[0], now - self.buckets
        ahead = tick - newest
        turned = self._turned(ring, tick, size)[: size + 1]
        older = ring[size + 1 :]
        fallen: list[int] = []
        for at in range(max(1, size + 1 - ahead), min(len(ring), size + 1)):
            if ring[at] and newest - at + 1 >= oldest:
                fallen += (newest - at + 1, ring[at])
        kept = len(older)
        while kept and older[kept - 2] < oldest:
            kept -= 2
        older = (*fallen, *older[:kept])
        if not older:
            return turned
        most = 2 * _MAX_AHEAD
        if len(older) > most:
            beyond = len(older) - most + 2
            older = (older[0], sum(older[1:beyond:2]), *older[beyond:])
        return (*turned, *(0,) * (size + 1 - len(turned)), *older)

    def _retracted(self, ring: Ring, now: int) -> Ring:
        """The ring with its newest non-empty tick as the newest, or the tick of `now` if that is newer."""
        first = self.buckets + 2
        size = len(ring[1:first])
        off = next((age for age in range(size) if ring[age + 1]), size)
        newest = ring[0] - off
        if off == size:
            if len(ring) <= first:
                return ()
            newest = ring[first]
        newest = max(newest, now)
        counts = [*ring[1 + ring[0] - newest : first]]
        if len(ring) > first:
            counts += [0] * (self.buckets + 1 - len(counts))
        while first < len(ring) and newest - ring[first] <= self.buckets:
            counts[newest - ring[first]] = ring[first + 1]
            first += 2
        return (newest, *counts, *ring[first:])

    def _used(self, ring: Ring, elapsed: int) -> int:
        """The estimate at `elapsed` into the newest tick, rounded up to whole units."""
        size = self.buckets + 1
        oldest = ring[size] if len(ring) > size else 0
        if self.conservative or not oldest:
            return sum(ring[1:size]) + oldest
        return sum(ring[1:size]) - (-oldest * (self._width - elapsed)) // self._width

    def _decision(self, state: Ring | None, now: int, cost: int, skew: int = 0) -> Decision:
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
