"""FixedWindow: a counter for each window of the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import Algorithm, Decided, Outcome, scaled_window, share_of, windowed
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.rate import Duration, Rate

__all__ = ["FixedWindow"]

Counts: TypeAlias = tuple[int, int, int, int]

_new = tuple.__new__


@dataclass(frozen=True, slots=True, init=False)
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

    The state is the start of the newest window and its count, then those of the window before. An
    older window is never reopened: where time goes back, calls wait for the newest one. Only where
    the newest holds nothing but turns that were given back does the older one count again.
    """

    kind: ClassVar[str] = "fixed_window"

    limit: int
    window_us: int

    def __init__(self, limit: int | str | Rate, window: Duration | None = None) -> None:
        units, window_us = windowed(limit, window)
        object.__setattr__(self, "limit", units)
        object.__setattr__(self, "window_us", window_us)

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: Counts | None, now: int, cost: int, skew: int = 0) -> Decided[Counts]:
        start = now - now % self.window_us
        count = cost
        if state is None:
            before, used = start, 0
        elif state[0] < start:
            before, used = state[0], state[1]
        else:
            _, _, before, used = state
            count += state[1]
            if state[0] > start or count > self.limit:
                return state, self._decision(state, now, cost), 0, False
        limit = self.limit
        end = start + self.window_us
        # Written out: this is the path of every admitted call.
        decision = _new(Decision, (True, limit, count, limit - count, end, 0, None, now, 0))
        return (start, count, before, used), decision, end - now, True

    def earliest(self, state: Counts | None, at: int, cost: int, skew: int = 0) -> int:
        if state is None:
            return at
        start, count, _, _ = state
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
        if state is not None and isinstance(charged_at, int):
            start, count, before, used = state
            charged = charged_at - charged_at % self.window_us
            if charged == start:
                count = max(0, count - cost)
                if count == 0 and now < start:
                    return self._settled((before, used, before, 0), now)
                return self._settled((start, count, before, used), now)
            if charged == before:
                return self._settled((start, count, before, max(0, used - cost)), now)
        return Outcome(state, self.peek(state, now), 0, False)

    def debit(
        self,
        state: Counts | None,
        now: int,
        cost: int,
        charged_at: Receipt = None,
        skew: int = 0,
    ) -> Outcome[Counts]:
        start = now - now % self.window_us
        if state is None:
            return self._settled((start, cost, start, 0), now)
        if state[0] >= start:
            return self._settled((state[0], state[1] + cost, *state[2:]), now)
        return self._settled((start, cost, *state[:2]), now)

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(*scaled_window(self.limit, self.window_us, share_of(share)))

    def adopt(self, state: Counts, writer: Any) -> Counts:
        start = state[0] - state[0] % self.window_us
        return (start, state[1], start, 0)

    def _settled(self, state: Counts, now: int) -> Outcome[Counts]:
        ttl = max(0, state[0] + self.window_us - now)
        return Outcome(state, self._decision(state, now, 1), ttl, True)

    def _decision(self, state: Counts | None, now: int, cost: int) -> Decision:
        wait = self.earliest(state, now, cost) - now
        if state is None or now >= state[0] + self.window_us or not state[1]:
            return Decision(wait == 0, self.limit, 0, self.limit, now + wait, wait)
        remaining = max(0, self.limit - state[1])
        return Decision(wait == 0, self.limit, state[1], remaining, state[0] + self.window_us, wait)
