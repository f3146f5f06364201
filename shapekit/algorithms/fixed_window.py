"""FixedWindow: a counter for each window of the epoch."""

from __future__ import annotations

from collections.abc import Sequence
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
from shapekit.rate import Duration, Rate

__all__ = ["FixedWindow"]

Counts: TypeAlias = tuple[int, ...]

_MAX_WINDOWS = 64

_new = tuple.__new__


class FixedWindow(Algorithm[Counts]):
    """At most `limit` units in each epoch-aligned window; up to 2 x limit around a boundary.

    The whole limit may be spent at the end of one window and again at the start of the next. Take
    it where the server counts this way, or where that does not matter; else GCRA or SlidingWindow.

        >>> window = FixedWindow("2/s")
        >>> state = window.check(None, 900_000, 2).state
        >>> window.check(state, 999_999, 1).decision.retry_after_us
        1
        >>> window.check(state, 1_000_000, 2).decision.allowed
        True

    The state is the start and the count of each window that counts still, ascending: the present one,
    and those that hold turns still to come. An older window is never reopened: where time goes back, or
    turns are still to come, calls wait for the newest one.
    """

    kind: ClassVar[str] = "fixed_window"

    __slots__ = fields = ("limit", "window_us")

    limit: int
    window_us: int

    def __init__(self, limit: int | str | Rate, window: Duration | None = None) -> None:
        units, window_us = windowed(limit, window)
        self._fill(limit=units, window_us=window_us)

    @property
    def aligned(self) -> bool:
        return True

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: Counts | None, now: int, cost: int, skew: int = 0) -> Decided[Counts]:
        start = now - now % self.window_us
        count = cost
        before: Counts = ()
        if state:
            newest = state[-2]
            if newest == start:
                count += state[-1]
                before = state[:-2]
            if newest > start or count > self.limit:
                return state, self._decision(state, now, cost), 0, False
        limit = self.limit
        end = start + self.window_us
        # Written out: this is the path of every admitted call.
        decision = _new(Decision, (True, limit, count, limit - count, end, 0, None, now, 0))
        return (*before, start, count), decision, end - now, True

    def charge(self, state: Counts | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Counts]:
        start = due - due % self.window_us
        counts = self._kept(state, now)
        before = counts.pop(start, 0)
        counts[start] = before + cost
        end = start + self.window_us
        used = before + cost
        decision = Decision(True, self.limit, used, self.limit - used, end, 0, None, due)
        return self._flat(counts), decision, end - now, True

    def earliest(self, state: Counts | None, at: int, cost: int, skew: int = 0) -> int:
        if not state:
            return at
        start, count = state[-2:]
        if at >= start + self.window_us:
            return at
        return max(at, start) if count + cost <= self.limit else start + self.window_us

    def peek(self, state: Counts | None, now: int, skew: int = 0) -> Decision:
        return self._decision(state, now, 1)

    def forecast(self, state: Counts | None, now: int, cost: int, skew: int = 0) -> Forecast:
        now_or_never = self.peek(state, now)
        fits = now_or_never.remaining // cost if now_or_never.allowed else 0
        return Forecast(self.earliest(state, now, cost), fits, now_or_never.reset_at_us)

    def refund(
        self, state: Counts | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Counts]:
        if isinstance(charged_at, int):
            counts = self._kept(state, now)
            start = charged_at - charged_at % self.window_us
            if start in counts:
                counts[start] -= cost
                return self._settled(self._flat(counts), now)
        return Outcome(state, self.peek(state, now), 0, False)

    def debit(
        self,
        state: Counts | None,
        now: int,
        cost: int,
        charged_at: Receipt = None,
        skew: int = 0,
    ) -> Outcome[Counts]:
        counts = self._kept(state, now)
        start = max([now - now % self.window_us, *counts])
        counts[start] = counts.get(start, 0) + cost
        return self._settled(self._flat(counts), now, max(now, start))

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(*scaled_window(self.limit, self.window_us, share_of(share)))

    def adopt(self, state: Counts, writer: Any, now: int, skew: int = 0) -> Counts:
        counts: dict[int, int] = {}
        for begun, count in zip(state[::2], state[1::2], strict=True):
            last = begun + writer.window_us - 1
            if begun <= now < last:
                last = now
            start = last - last % self.window_us
            counts[start] = counts.get(start, 0) + count
        return self._flat(counts)

    def decision_received(self, sent: Any) -> Decision:
        if len(sent) > 2:
            return decision_of(sent, self.receipt_received)
        now, count = sent
        end = now - now % self.window_us + self.window_us
        return Decision(True, self.limit, count, self.limit - count, end, 0, None, now)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["fixed_window", self.limit, self.window_us]

    def _kept(self, state: Counts | None, now: int) -> dict[int, int]:
        """The counts by window, without the windows that are over."""
        over = now - self.window_us
        return {
            start: count
            for start, count in zip((state or ())[::2], (state or ())[1::2], strict=True)
            if start > over
        }

    def _flat(self, counts: dict[int, int]) -> Counts:
        used = sorted(item for item in counts.items() if item[1] > 0)[-_MAX_WINDOWS:]
        return tuple(number for item in used for number in item)

    def _settled(self, state: Counts, now: int, receipt: int | None = None) -> Outcome[Counts]:
        ttl = state[-2] + self.window_us - now if state else 0
        decision = self._decision(state, now, 1)._replace(receipt=receipt)
        return Outcome(state, decision, max(0, ttl), True)

    def _decision(self, state: Counts | None, now: int, cost: int) -> Decision:
        wait = self.earliest(state, now, cost) - now
        if not state or now >= state[-2] + self.window_us:
            return Decision(wait == 0, self.limit, 0, self.limit, now, wait)
        count = state[-1]
        if now < state[-2]:
            return Decision(False, self.limit, count, 0, state[-2] + self.window_us, wait)
        return Decision(
            wait == 0, self.limit, count, max(0, self.limit - count), state[-2] + self.window_us, wait
        )
