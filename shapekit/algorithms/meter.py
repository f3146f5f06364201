"""Meter: one position on a grid, the mathematics under GCRA, TokenBucket and LeakyBucket.

A unit occupies an interval T = period/limit. The state is one *position*: the instant at which
everything charged so far will have drained. A cell arriving at `now` moves it from
`max(position, now)` on by T·cost, and is admitted if it then lies at most T·burst ahead of `now`
(equality admits).

T is the reduced fraction p/q of a microsecond, and positions are counted in 1/q µs: one integer, so
nothing rounds and nothing drifts. (The Lua twin holds the same number as whole microseconds and a
remainder below q, because a double is exact only to 2^53.) Where q would not fit, T is rounded up by
less than 2^-20 µs, that is, the rate is a hair slower than asked: only for limits above
9 million that do not divide their period.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, gcd
from typing import Any, ClassVar, Self

from shapekit.algorithms.base import Algorithm, Decided, Outcome, paced, share_of
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import Rate, RateLike, seconds_text

MAX_TAU_US = 2**52
_EXACT = 2**53
_MAX_Q = 2**26
_new = tuple.__new__


def interval(rate: Rate, burst: int) -> tuple[int, int]:
    """T = p/q µs, so that every product of the twin stays below 2^53."""
    shared = gcd(rate.period_us, rate.limit)
    p, q = rate.period_us // shared, rate.limit // shared
    finest = min(_MAX_Q, 1 << (53 - burst.bit_length()))
    if q > finest:
        exact = Fraction(ceil(Fraction(p, q) * finest), finest)
        p, q = exact.numerator, exact.denominator
    return p, q


@dataclass(frozen=True, slots=True, init=False)
class Meter(Algorithm[int]):
    """`burst` units at once, `rate` in the long run."""

    limit_name: ClassVar[str] = "burst"

    rate: Rate
    burst: int
    _p: int = field(repr=False, compare=False)
    _q: int = field(repr=False, compare=False)
    _tau: int = field(repr=False, compare=False)

    def __init__(self, rate: RateLike, burst: int | None = None) -> None:
        rate, burst = paced(rate, burst, self.limit_name)
        if burst * rate.period_us > MAX_TAU_US * rate.limit:
            longest = seconds_text(MAX_TAU_US)
            raise ConfigError(
                self.limit_name,
                burst,
                f"takes longer than {longest} to refill at {rate}",
                f"use at most {MAX_TAU_US * rate.limit // rate.period_us}",
            )
        p, q = interval(rate, burst)
        for name, value in (
            ("rate", Rate.of(rate.limit, rate.period_us)),
            ("burst", burst),
            ("_p", p),
            ("_q", q),
            ("_tau", p * burst),
        ):
            object.__setattr__(self, name, value)

    @property
    def max_cost(self) -> int:
        return self.burst

    def decide(self, state: int | None, now: int, cost: int, skew: int = 0) -> Decided[int]:
        q = self._q
        start = now * q
        drained = start if state is None or state < start else state
        after = drained + self._p * cost
        over = after - start - self._tau
        if over > 0:
            return state, self._decision(False, now, drained, -(-over // q), None), 0, False
        current = -((start - after) // self._p)
        full = after if q == 1 else -(-after // q)
        burst = self.burst
        # Written out: this is the path of every admitted call.
        decision = _new(Decision, (True, burst, current, burst - current, full, 0, None, full, 0))
        return after, decision, full - now, True

    def earliest(self, state: int | None, at: int, cost: int, skew: int = 0) -> int:
        if state is None:
            return at
        ready = -((self._tau - state - self._p * cost) // self._q)
        return max(at, ready)

    def peek(self, state: int | None, now: int, skew: int = 0) -> Decision:
        wait = self.earliest(state, now, 1) - now
        return self._decision(wait == 0, now, self._drained(state, now), wait, None)

    def forecast(self, state: int | None, now: int, cost: int, skew: int = 0) -> Forecast:
        drained = self._drained(state, now)
        room = self._tau - (drained - now * self._q)
        return Forecast(
            self.earliest(state, now, cost), max(0, room // (self._p * cost)), -(-drained // self._q)
        )

    def refund(
        self, state: int | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[int]:
        # The receipt is the instant (rounded up) at which the meter would have drained had nobody come
        # after this charge. What has drained of it by the last departure, which may be a turn still to
        # come, cannot be given back: it may have been used.
        if state is not None and isinstance(charged_at, int):
            start = now * self._q
            held_until = charged_at * self._q - (self._q - 1)
            back = min(self._p * cost, held_until - max(start, state - self._tau))
            if back > 0:
                return self._settled(max(state - back, start), now)
        return Outcome(state, self.peek(state, now), 0, False)

    def debit(
        self, state: int | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[int]:
        # A debt beyond any clock is cut at the last instant that a double holds.
        after = min(self._drained(state, now) + self._p * cost, (_EXACT - 1) * self._q)
        return self._settled(after, now)

    def commit(
        self, state: int | None, now: int, cost: int, max_wait: int | None, skew: int = 0
    ) -> Outcome[int]:
        # A turn is charged from its exact position, not from the whole microsecond at which it is
        # taken: else a long queue would drift by the rounding.
        at = self.earliest(state, now, cost)
        if max_wait is not None and at - now > max_wait:
            denied = self._decision(False, now, self._drained(state, now), at - now, None)
            return Outcome(state, denied, 0, False)
        after = self._drained(state, now) + self._p * cost
        current = -((at * self._q - after) // self._p)
        full = -(-after // self._q)
        decision = Decision(True, self.burst, current, self.burst - current, full, 0, None, full, at - now)
        return Outcome(after, decision, full - now, True)

    def scaled(self, share: float | Fraction) -> Self:
        part = share_of(share)
        slower = Rate.of(self.rate.limit * part.numerator, self.rate.period_us * part.denominator)
        return type(self)(slower, max(1, int(self.burst * part)))

    def adopt(self, state: int, writer: Any) -> int:
        position: int = -(-state * self._q // writer._q)
        return position

    def _drained(self, state: int | None, now: int) -> int:
        return max(now * self._q, 0 if state is None else state)

    def _settled(self, position: int, now: int) -> Outcome[int]:
        wait = self.earliest(position, now, 1) - now
        full = -(-position // self._q)
        decision = self._decision(wait == 0, now, position, wait, full)
        return Outcome(position, decision, full - now, True)

    def _decision(self, allowed: bool, now: int, drained: int, wait: int, receipt: int | None) -> Decision:
        current = -((now * self._q - drained) // self._p)
        full = -(-drained // self._q)
        return Decision(allowed, self.burst, current, max(0, self.burst - current), full, wait, None, receipt)
