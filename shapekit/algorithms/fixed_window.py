"""FixedWindow: a counter per epoch-aligned window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import (
    MOST_UNITS,
    Book,
    Bounds,
    Decided,
    Outcome,
    Shift,
    Window,
    reborn,
    scaled_window,
    share_of,
    windowed,
)
from shapekit.algorithms.prospects import Periodic, following_spans
from shapekit.decision import Decision, Receipt
from shapekit.rate import Duration, Rate

__all__ = ["FixedWindow"]

Counts: TypeAlias = tuple[int, ...]

_MAX_WINDOWS = 2**10
"""With more windows than this, the newest two are merged: refunds to the older one are then lost."""

_new = tuple.__new__


class FixedWindow(Window[Counts]):
    """At most `limit` units in each epoch-aligned window; up to 2 x limit around a boundary.

    The whole limit may be spent at the end of one window and again at the start of the next. Use it if the
    server counts this way, or if such a burst does no harm; otherwise use GCRA or SlidingWindow.

        >>> window = FixedWindow("2/s")
        >>> state = window.check(None, 900_000, 2).state
        >>> window.check(state, 999_999, 1).decision.retry_after_us
        1
        >>> window.check(state, 1_000_000, 2).decision.allowed
        True

    The state is the start and the count of each window that still counts, ascending: the present one, and
    those with future slots. An older window is never reopened: if time goes back, or there are future slots,
    calls wait for the newest window.
    """

    kind: ClassVar[str] = "fixed_window"

    __slots__ = fields = ("limit", "window_us")

    limit: int
    """Units per window."""
    window_us: int
    """The length of a window, in microseconds."""

    def __init__(self, limit: int | str | Rate, window: Duration | None = None) -> None:
        units, window_us = windowed(limit, window)
        self._fill(limit=units, window_us=window_us)

    @property
    def aligned(self) -> bool:
        return True

    def booked(self, book: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        state, born, charged, settled = book or (None, now, 0, ())
        start = now - now % self.window_us
        count = cost
        before: Counts = ()
        if state:
            newest = state[-2]
            if newest == start:
                count += state[-1]
                before = state[:-2]
            if newest > start or count > self.limit:
                return book, self._decision(state, now, cost), 0, False
        charged += cost
        if charged > MOST_UNITS:
            born, charged, settled = reborn(born, now, cost)
        limit = self.limit
        end = start + self.window_us
        # Inline: this is the hot path of every admitted call.
        receipt = (born, charged, cost, now)
        decision = _new(Decision, (True, limit, count, limit - count, end, 0, None, receipt, 0))
        return ((*before, start, count), born, charged, settled), decision, end - now, True

    def charge(self, state: Counts | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Counts]:
        start = due - due % self.window_us
        after, used = self._charged(state, now, start, cost)
        return after, self._admitted(used, due), start + self.window_us - now, True

    def earliest(self, state: Counts | None, at: int, cost: int, skew: int = 0) -> int:
        if not state:
            return at
        start, count = state[-2:]
        if at >= start + self.window_us:
            return at
        return max(at, start) if count + cost <= self.limit else start + self.window_us

    def refund_many(
        self, state: Counts | None, now: int, charges: Sequence[Sequence[int]], skew: int = 0
    ) -> Counts | None:
        kept = self._kept(state, now)
        parts: list[Counts] = []
        done = 0
        for charged_at, units in charges:
            start = charged_at - charged_at % self.window_us
            at = 2 * bisect_left(range(0, len(kept), 2), start, key=kept.__getitem__)
            if at >= done and kept[at : at + 1] == (start,):
                left = kept[at + 1] - units
                parts += (kept[done:at], (start, left) if left > 0 else ())
                done = at + 2
        after = (*chain.from_iterable(parts), *kept[done:])
        # The present window stays, empty: if the clock goes back, no earlier window opens again.
        return after or (now - now % self.window_us, 0) if done else state

    def refund_passed(
        self, state: Counts, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Counts]:
        outcome = self.refund(state, now, cost, charged_at, skew)
        left = outcome.state or state
        if left[-2] >= state[-2]:
            return outcome
        return self._settled((*left, state[-2], 0), now)

    def prospect(self, state: Counts | None, cost: int, skew: int = 0) -> Periodic:
        window = self.window_us
        known = [(state[-2], state[-1], state[-2])] if state else []
        return Periodic(self.limit, self._bounds, window, 0, known, following_spans(window), 1)

    def together(self, charged_at: int) -> int:
        return charged_at // self.window_us

    def debit(
        self, state: Counts | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Counts]:
        start = max(now - now % self.window_us, state[-2] if state else 0)
        after, _ = self._charged(state, now, start, cost)
        return self._settled(after, now, receipt=max(now, start))

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(*scaled_window(self.limit, self.window_us, share_of(share)))

    def adopt(self, state: Counts, writer: Any, now: int, skew: int = 0) -> Counts:
        return self._placed(writer.entries(state, now))

    def rescheduled(self, state: Counts, newest: int, when: Callable[[int], int]) -> Counts:
        return self._placed((when(at), count) for at, count in self.entries(state, newest))

    def shifted(self, state: Counts, moved: Shift, skew: int) -> Counts:
        counts = moved.counts(zip(state[::2], state[1::2], strict=True), self._bounds)
        return tuple(chain.from_iterable([*counts.items()][-_MAX_WINDOWS:]))

    def crowded(self, state: Counts, moved: Shift, skew: int) -> Iterator[tuple[Bounds, int]]:
        if not moved.fits(zip(state[::2], state[1::2], strict=True), self._bounds, self.limit):
            yield self._bounds, moved.first

    def _bounds(self, at: int) -> tuple[int, int]:
        start = at - at % self.window_us
        return start, start + self.window_us

    def resumed(self, state: Counts, newest: int) -> Counts:
        return self.rescheduled(state, newest, lambda at: min(at, newest))

    def entries(self, state: Counts, now: int) -> Iterator[tuple[int, int]]:
        """The latest instants at which units may have been admitted, with their number, oldest first.

        Units of the present window were admitted by `now`.
        """
        for begun, count in zip(state[::2], state[1::2], strict=True):
            last = begun + self.window_us - 1
            yield now if begun <= now < last else last, count

    def life(self, state: Counts, now: int, skew: int = 0) -> int:
        return max(0, state[-2] + self.window_us - now) if state else 0

    def inspect(self, state: Any) -> None:
        starts = state[::2]
        if len(state) % 2 or len(starts) > _MAX_WINDOWS or list(starts) != sorted(set(starts)):
            raise ValueError("malformed windows")
        sum(state)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["fixed_window", self.limit, self.window_us]

    def _placed(self, entries: Iterable[tuple[int, int]]) -> Counts:
        counts: dict[int, int] = {}
        for at, count in entries:
            start = at - at % self.window_us
            counts[start] = counts.get(start, 0) + count
        return tuple(number for item in counts.items() for number in item)

    def _full_after(self, charged_at: int) -> int:
        return self._bounds(charged_at)[1]

    def _kept(self, state: Counts | None, now: int) -> Counts:
        """The state without windows that have ended."""
        first, over = 0, now - self.window_us
        while state and first < len(state) and state[first] <= over:
            first += 2
        return state[first:] if state else ()

    def _charged(self, state: Counts | None, now: int, start: int, cost: int) -> tuple[Counts, int]:
        """The state with `cost` more in the newest window or a newer one, and the count of that window."""
        kept = self._kept(state, now)
        if kept and kept[-2] == start:
            used = kept[-1] + cost
            return (*kept[:-1], used), used
        if len(kept) == 2 * _MAX_WINDOWS:
            kept = (*kept[:-4], kept[-2], kept[-3] + kept[-1])
        return (*kept, start, cost), cost

    def _decision(self, state: Counts | None, now: int, cost: int, skew: int = 0) -> Decision:
        wait = self.earliest(state, now, cost) - now
        start, count = state[-2:] if state and now < state[-2] + self.window_us else (now, 0)
        full = start + self.window_us if count else now + wait
        remaining = max(0, self.limit - count) if start <= now else 0
        return Decision(wait == 0, self.limit, count, remaining, full, wait)
