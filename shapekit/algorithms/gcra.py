"""GCRA: the generic cell rate algorithm.

Meter: one position on a grid, the mathematics of GCRA, TokenBucket and LeakyBucket.

A unit occupies an interval T = period/limit. The state is one *position*: the instant at which everything
charged so far will have drained. A call at `now` moves the position to `max(position, now) + T·cost`. It is
admitted if the position is then at most T·burst ahead of `now` (equality admits).

In addition to the position, the state keeps what refunds need. A receipt is the position at which a charge
ends, plus the *retraction* so far: how far refunds have moved positions back. So no two charges have the same
receipt, and a receipt minus the retraction is never above the position at which its charge ends now. Slots
given back in the middle leave stretches: once everything after a stretch is given back as well, the position
retracts over it.

T is the reduced fraction p/q of a microsecond, and positions are counted in 1/q µs: as one integer, which is
never rounded and does not drift. (The Lua twin keeps the same number as whole microseconds and a remainder
below q, because a double is exact only to 2^53.) If q would exceed 2^26, T is rounded up to a multiple of
2^-26 µs, and the rate is slower by that: only for limits above 67 million that do not divide their period.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, gcd
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import (
    MOST_UNITS,
    NOWHERE,
    Algorithm,
    Book,
    Decided,
    Outcome,
    bare,
    decision_of,
    paced,
    reborn,
    receipted,
    share_of,
    slowed,
)
from shapekit.algorithms.prospects import Metered
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError, span_words
from shapekit.rate import Rate, RateLike

__all__ = ["GCRA", "LeakyBucket", "TokenBucket"]

MAX_TAU_US = 2**52
_EXACT = 2**53
_LATEST_US = 2**52
_MAX_Q = 2**26
_MAX_STRETCHES = 64
_COLD = (0, 0, 0, 0)
_BRIEF = 5
_new = tuple.__new__

Positions: TypeAlias = tuple[int, int, int, int, *tuple[int, ...]]
"""The position, the newest departure, the retraction, the newest receipt, and `from, to` of each stretch."""


def interval(rate: Rate) -> tuple[int, int]:
    """T = p/q µs, with a q small enough for the twin to stay below 2^53."""
    shared = gcd(rate.period_us, rate.limit)
    p, q = rate.period_us // shared, rate.limit // shared
    if q > _MAX_Q:
        exact = Fraction(ceil(Fraction(p, q) * _MAX_Q), _MAX_Q)
        p, q = exact.numerator, exact.denominator
    return p, q


class Meter(Algorithm[Positions]):
    """`burst` units at once, `rate` in the long run."""

    limit_name: ClassVar[str] = "burst"

    fields = ("rate", "burst")
    __slots__ = (*fields, "_p", "_q", "_tau")

    rate: Rate
    """The rate in the long run."""
    burst: int
    """How many units an idle key admits at once."""
    _p: int
    _q: int
    _tau: int

    def __init__(self, rate: RateLike, burst: int | None = None) -> None:
        rate, burst = paced(rate, burst, self.limit_name)
        if burst * rate.period_us > MAX_TAU_US * rate.limit:
            longest = span_words(MAX_TAU_US)
            fix = f"use at most {MAX_TAU_US * rate.limit // rate.period_us}"
            raise ConfigError(self.limit_name, burst, f"takes longer than {longest} to refill at {rate}", fix)
        p, q = interval(rate)
        self._fill(rate=Rate.of(rate.limit, rate.period_us), burst=burst, _p=p, _q=q, _tau=p * burst)

    @property
    def max_cost(self) -> int:
        return self.burst

    def decide(self, state: Positions | None, now: int, cost: int, skew: int = 0) -> Decided[Positions]:
        return bare(self.booked, state, now, cost, skew)

    def booked(self, book: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        state, born, charged, settled = book or (None, now, 0, ())
        q = self._q
        start = now * q
        drained = start if state is None or state[0] < start else state[0]
        after = drained + self._p * cost
        over = after - start - self._tau
        if over > 0:
            return book, self._decision(False, now, drained, -(-over // q), None), 0, False
        charged += cost
        if charged > MOST_UNITS:
            born, charged, settled = reborn(born, now, cost)
        current = -((start - after) // self._p)
        full = after if q == 1 else -(-after // q)
        burst = self.burst
        # Inline: this is the hot path of every admitted call.
        decision = _new(
            Decision, (True, burst, current, burst - current, full, 0, None, (born, charged, cost, after), 0)
        )
        newest = now
        if state is not None:
            if state[2] or state[3] > drained or len(state) > 4:
                moved, decision, life, _ = self._charged(state, now, now, after)
                again: Book = (moved, born, charged, settled)
                return again, receipted(again, decision, cost), life, True
            if state[1] > now:
                newest = state[1]
        return ((after, newest, 0, after), born, charged, settled), decision, full - now, True

    def earliest(self, state: Positions | None, at: int, cost: int, skew: int = 0) -> int:
        if state is None:
            return at
        ready = state[0] + self._p * cost - self._tau
        return at if ready <= at * self._q else -(-ready // self._q)

    def prospect(self, state: Positions | None, cost: int, skew: int = 0) -> Metered:
        return Metered((state or _COLD)[0], self._p * cost, self._tau, self._q)

    def peek(self, state: Positions | None, now: int, skew: int = 0) -> Decision:
        wait = self.earliest(state, now, 1) - now
        return self._decision(wait == 0, now, self._drained(state, now), wait, None)

    def forecast(self, state: Positions | None, now: int, cost: int, skew: int = 0) -> Forecast:
        drained = self._drained(state, now)
        room = self._tau - (drained - now * self._q)
        return Forecast(
            self.earliest(state, now, cost), max(0, room // (self._p * cost)), -(-drained // self._q)
        )

    def refund(
        self, state: Positions | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Positions]:
        if state is None or not isinstance(charged_at, int):
            return Outcome(state, self.peek(state, now), 0, False)
        tail, newest, retracted, top, *stretches = state
        ends, start, width = charged_at - retracted, now * self._q, self._p * cost
        if ends == tail and tail > start:
            tail = max(start, tail - width)
            while stretches and stretches[-1] >= tail:
                tail = max(start, stretches[-2])
                del stretches[-2:]
            return self._settled((tail, newest, retracted, top, *stretches), now)
        # There are later charges. The part of this one that had drained by the last of them may be used up.
        back = min(width, ends - max(start, newest * self._q))
        if back > 0 and ends < tail:
            return self._settled((tail - back, newest, retracted + back, top), now)
        if start < ends < tail and not retracted and len(stretches) < 2 * _MAX_STRETCHES:
            pairs = {*zip(stretches[::2], stretches[1::2], strict=True), (ends - width, ends)}
            flat = (end for pair in sorted(pairs) for end in pair)
            return self._settled((tail, newest, retracted, top, *flat), now)
        return Outcome(state, self.peek(state, now), 0, False)

    def refund_last(
        self,
        state: Positions | None,
        now: int,
        cost: int,
        charged_at: Receipt,
        skew: int = 0,
        before: int | None = None,
    ) -> Positions | None:
        if state is None or not isinstance(charged_at, int) or charged_at < 0:
            return state
        # A charge from before a retraction ends where its receipt says at the latest.
        tail, newest, retracted, top, *stretches = state
        start = now * self._q
        width = self._p * cost
        tail = min(tail, max(start, min(tail, charged_at) - width))
        while stretches and stretches[-1] >= tail:
            tail = min(tail, max(start, stretches[-2]))
            del stretches[-2:]
        if charged_at == top:
            # This was the newest charge: all other receipts are lower by at least its width.
            top = max(charged_at - width, tail + retracted)
        if before is not None:
            newest = min(newest, max(before, now))
        return (tail, newest, retracted, top, *stretches)

    def debit(
        self, state: Positions | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Positions]:
        # A debt beyond any clock is capped, so that a double still has room for the retraction.
        after = min(self._drained(state, now) + self._p * cost, _LATEST_US * self._q)
        moved = self._moved(state or _COLD, now, now, after)
        return self._settled(moved, now, moved[3])

    def charge(
        self, state: Positions | None, now: int, due: int, cost: int, skew: int = 0
    ) -> Decided[Positions]:
        before = state or _COLD
        q, tail, width = self._q, before[0], self._p * cost
        start = now * q
        # A slot delayed by this meter alone is charged from its exact position, not from the whole
        # microsecond at which it is taken: otherwise a long queue would drift by the rounding.
        exact = tail + width - self._tau
        leaves = exact if exact > start and due == -(-exact // q) else due * q
        base = tail if tail > leaves else leaves
        drained = tail if tail > start else start
        if base > drained and len(before) < 2 * _MAX_STRETCHES:
            # Another limit delayed the slot: if the slot is given back, the skipped stretch is free again.
            before = (before[0], before[1], before[2], before[3], *before[4:], drained, base)
        return self._charged(before, now, due, base + width)

    def scaled(self, share: float | Fraction) -> Self:
        part = share_of(share)
        return type(self)(slowed(self.rate, part), max(1, int(self.burst * part)))

    def adopt(self, state: Positions, writer: Any, now: int, skew: int = 0) -> Positions:
        # Older receipts are in units of the old q.
        _, before = interval(writer.rate)
        tail, _, retracted, top, *_ = (-(-number * self._q // before) for number in state)
        return self._anew(tail, retracted, top)

    def rescheduled(self, state: Positions, newest: int, when: Callable[[int], int]) -> Positions:
        if (later := (when(newest) - newest) * self._q) <= 0:
            return state
        # No call is moved further than the newest.
        tail, _, retracted, top, *_ = state
        return self._anew(tail + later, retracted, top + later)

    def moved_receipt(self, receipt: Receipt, when: Callable[[int], int] | None) -> Receipt:
        # All calls were moved as far as the newest: the state does not tell where this one ends now.
        return receipt if receipt is None else NOWHERE

    def brought(self, state: Positions, now: int, skew: int = 0) -> Positions:
        tail, _, retracted, top, *_ = state
        full = now * self._q + self._tau
        return state if tail <= full else self._anew(full, retracted, top)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        q = self._q
        return ["gcra", self.burst, q, divmod(self._p, q), divmod(self._tau, q)]

    def state_sent(self, state: Positions) -> list[int]:
        q = self._q
        tail, newest, *positions = state
        flat = [number for position in positions for number in divmod(position, q)]
        return [*divmod(tail, q), newest, *flat]

    def state_received(self, sent: Any) -> Positions:
        q = self._q
        tail, rest, newest, *flat = sent
        positions = (whole * q + part for whole, part in zip(flat[::2], flat[1::2], strict=True))
        return (tail * q + rest, newest, *positions)

    def before_run(self, sent: Any) -> Positions:
        # The short form: nothing was ever given back.
        tail, rest, newest = sent
        position = tail * self._q + rest
        return (position, newest, 0, position)

    def receipt_sent(self, receipt: Receipt) -> Any:
        return divmod(receipt, self._q) if isinstance(receipt, int) else None

    def receipt_received(self, sent: Any) -> Receipt:
        return None if sent is None else sent[0] * self._q + sent[1]

    def decision_received(self, sent: Any) -> Decision:
        if len(sent) > _BRIEF:
            return decision_of(sent, self.receipt_received)
        # An admission in short form: now, the tail, and the receipt if it differs from that.
        q, burst = self._q, self.burst
        after = sent[1] * q + sent[2]
        current = -((sent[0] * q - after) // self._p)
        receipt = sent[3] * q + sent[4] if len(sent) == _BRIEF else after
        return _new(Decision, (True, burst, current, burst - current, -(-after // q), 0, None, receipt, 0))

    def _anew(self, tail: int, retracted: int, top: int) -> Positions:
        """The state at this position, in which older receipts give nothing back.

        A receipt that ends after the tail is not recognized, nor, after a retraction, one below `newest`.
        """
        retracted += 1
        top = max(top, tail + retracted)
        return (tail, -(-top // self._q), retracted, top)

    def _drained(self, state: Positions | None, now: int) -> int:
        return max(now * self._q, 0 if state is None else state[0])

    def _charged(self, state: Positions, now: int, due: int, after: int) -> Decided[Positions]:
        q, burst = self._q, self.burst
        current = -((due * q - after) // self._p)
        full = after if q == 1 else -(-after // q)
        moved = self._moved(state, now, due, after)
        receipt = moved[3]
        decision = _new(Decision, (True, burst, current, burst - current, full, 0, None, receipt, 0))
        return moved, decision, full - now if receipt == after else self.life(moved, now), True

    def _moved(self, state: Positions, now: int, due: int, after: int) -> Positions:
        """The state with a charge that ends at `after`, and a unique receipt."""
        start = now * self._q
        tail, newest, retracted, top, *stretches = state
        if not stretches:
            if top <= start:
                return (after, due, 0, after)
            if not retracted and top <= tail:
                return (after, due if due > newest else newest, 0, after)
        # Every position up to the newest receipt may be used as a receipt: continue above it.
        retracted = max(retracted, top - max(tail, start))
        kept = (
            end
            for pair in zip(stretches[::2], stretches[1::2], strict=True)
            if pair[1] > start
            for end in pair
        )
        return (after, max(due, newest), retracted, after + retracted, *kept)

    def life(self, state: Positions, now: int, skew: int = 0) -> int:
        # Until the last receipt has passed, which is never before the tail: a receipt must not be presented
        # to a cold state, which knows no retraction.
        return max(0, -(-state[3] // self._q) - now)

    def _settled(self, state: Positions, now: int, receipt: int | None = None) -> Outcome[Positions]:
        wait = self.earliest(state, now, 1) - now
        # A refund never moves the tail into the past: units that have drained are not given back.
        decision = self._decision(wait == 0, now, state[0], wait, receipt)
        return Outcome(state, decision, self.life(state, now), True)

    def _decision(self, allowed: bool, now: int, drained: int, wait: int, receipt: int | None) -> Decision:
        burst = self.burst
        current = min(_EXACT - 1, -((now * self._q - drained) // self._p))
        left = burst - current if current < burst else 0
        return _new(Decision, (allowed, burst, current, left, -(-drained // self._q), wait, None, receipt, 0))


class GCRA(Meter):
    """`rate` in the long run, with up to `burst` calls at once; the right choice for most limits.

    A cold key may admit burst + limit calls in its first period, and `limit` in each later one.

    Invariant: for any admitted calls i <= j, `t_j - t_i >= (cost(i..j) - burst) * T`, with T = period/limit.
    So in any span of length L at most `burst + L/T` units are admitted, and that many can be: `burst` at
    once, then one every T.

        >>> gcra = GCRA("10/s", burst=2)
        >>> first = gcra.check(None, 0, 1)
        >>> second = gcra.check(first.state, 0, 1)
        >>> third = gcra.check(second.state, 0, 1)
        >>> [step.decision.allowed for step in (first, second, third)]
        [True, True, False]
        >>> third.decision.retry_after
        0.1

    The state is one number, and the limit is smooth and exact. `burst=1` spaces calls evenly; the default,
    `burst=limit`, lets an idle key spend a whole period at once.
    """

    __slots__ = ()
    kind: ClassVar[str] = "gcra"


class TokenBucket(Meter):
    """A bucket of `capacity` tokens, full at first and refilled at `rate`; a call takes `cost` of them.

    Refilling is lazy and exact. `remaining` is the number of whole tokens in the bucket, `current` the number
    missing, `reset_at` when it is full. Worst burst: `capacity` at once, and `capacity + L/T` in any span of
    length L.

        >>> bucket = TokenBucket("10/s", capacity=5)
        >>> bucket.check(None, 0, 3).decision.remaining
        2

    It decides exactly as `GCRA(rate, burst=capacity)` does; use the one whose terms you prefer.
    """

    __slots__ = ()
    kind: ClassVar[str] = "token_bucket"
    limit_name: ClassVar[str] = "capacity"

    def __init__(self, rate: RateLike, capacity: int | None = None) -> None:
        super().__init__(rate, capacity)

    @property
    def capacity(self) -> int:
        """The number of tokens in a full bucket."""
        return self.burst


class LeakyBucket(Meter):
    """A bucket that leaks at `rate`; a call that would make it overflow `capacity` is rejected.

    `current` is the level, rounded up to whole units. Worst burst: `capacity` into an empty bucket. This is
    the leaky bucket as a meter, which rejects calls; `Shaper` is the leaky bucket as a queue, which delays
    them, on the same grid.

        >>> bucket = LeakyBucket("10/s", capacity=2)
        >>> full = bucket.check(bucket.check(None, 0, 1).state, 0, 1)
        >>> full.decision.current, bucket.check(full.state, 50_000, 1).decision.retry_after
        (2, 0.05)
    """

    __slots__ = ()
    kind: ClassVar[str] = "leaky_bucket"
    limit_name: ClassVar[str] = "capacity"

    def __init__(self, rate: RateLike, capacity: int | None = None) -> None:
        super().__init__(rate, capacity)

    @property
    def capacity(self) -> int:
        """The level above which a call is rejected."""
        return self.burst
