"""LeakyQueue: the leaky bucket that delays. Asked "when?", it commits a departure.

A paced queue is a grid. A call of cost c occupies c intervals T of it, one call after the other, and
leaves at the start of what it occupies, or up to `burst - c` intervals earlier. So for any two calls
`t_j - t_i >= (cost(i..j) - max(burst, cost_j)) * T`, to the microsecond that instants are rounded up
to, and a queue that never runs dry keeps the rate exactly, however long it is. Other limits
(constraints) may move the departure; all of them are decided at that instant, and committed together.

Everything here happens on the queue's own time, which stands still while the queue is held: `time =
max(now, until) - shift`, where `shift` is all the time it was ever held. A hold thereby delays every
call that waits, and every limit's memory of past calls, by its own length, in order and without a burst.

A reservation that is given back at the tail retracts the tail. In the middle it leaves a hole, which
the next newcomer takes as it is, departure and charges included: nobody is delayed, nobody moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.constraints import Constraints, Receipts, States, slowed, unpaced
from shapekit.algorithms.grant import Asked, Grant, Granted
from shapekit.algorithms.meter import MAX_TAU_US, interval
from shapekit.decision import Decision
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, Rate, one_of, whole

PACES = ("smooth", "burst")
MAX_HOLES = 64
"""Places that are remembered as given back; beyond it a place expires unused."""

_UNPACED = (1, 1024)
"""The grid of a queue without a paced rate: so fine that it only tells the calls apart."""
_TAKEN = -1
UNKNOWN = -1

Place: TypeAlias = tuple[int, int, int, int, int, tuple[int, int], Receipts]
"""A stretch of the grid that was given back: from, to, the version that gave it back, its departure
(or _TAKEN: nobody may have it any more), its cost, the tail and newest departure before it, receipts."""

Line: TypeAlias = tuple[int, int, int, int, int, int, tuple[Place, ...], States]
"""tail (in 1/q µs), newest departure, generation, version, held until, shift, places, constraints."""


@dataclass(frozen=True, slots=True, init=False)
class LeakyQueue:
    """What one shaper promises: rates, a burst, a pace, and further constraints."""

    kind: ClassVar[str] = "leaky_queue"

    rates: tuple[Rate, ...]
    burst: int
    pace: str
    gates: tuple[Algorithm[Any], ...]
    headroom: Fraction
    constraints: Constraints = field(repr=False, compare=False)
    civil: bool = field(repr=False, compare=False)
    max_cost: int = field(repr=False, compare=False)
    _p: int = field(repr=False, compare=False)
    _q: int = field(repr=False, compare=False)
    _paced: bool = field(repr=False, compare=False)

    def __init__(
        self,
        rates: Sequence[Rate],
        burst: int | None,
        pace: str,
        gates: Sequence[Algorithm[Any]],
        headroom: float = 0.0,
    ) -> None:
        one_of("pace", pace, PACES)
        paced = min(rates, key=lambda rate: rate.period_us, default=None) if pace == "smooth" else None
        others = [rate for rate in rates if rate is not paced]
        part = _part_below(headroom)
        constraints = Constraints([*(unpaced(rate, part) for rate in others), *gates])
        leap = _burst(paced, burst)
        p, q = _UNPACED if paced is None else interval(slowed(paced, part), leap)
        values = {
            "rates": tuple(rates),
            "burst": leap,
            "pace": pace,
            "gates": tuple(gates),
            "headroom": 1 - part,
            "constraints": constraints,
            "civil": constraints.civil,
            "max_cost": constraints.max_cost(min(MAX_COUNT, MAX_TAU_US * q // p)),
            "_p": p,
            "_q": q,
            "_paced": paced is not None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # reserving

    def reserve(
        self, state: Line | None, now: int, asked: Asked, skew: int = 0
    ) -> tuple[Line | None, Granted, int, bool]:
        """Take the earliest departure that is at most `max_wait` away, or refuse and change nothing.

        Without a `max_wait` an exhausted quota refuses; with one, it is waited for like anything.
        """
        cost, max_wait, nonce = asked
        line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        tail, newest, generation, version, until, shift, places, parts = line
        held = until > now
        at = (until if held else now) - shift
        if places:
            places, parts = self._swept(places, parts, at, shift + skew)
            line = (tail, newest, generation, version, until, shift, places, parts)
            for index, place in enumerate(places):
                if place[3] >= at and place[4] >= cost:
                    return self._moved_in(line, now, asked, index, skew)
        q = self._q
        width = self._p * cost if self._paced else 1
        time = at if q == 1 else at * q
        start = tail if tail > time else time
        ready = tail if cost >= self.burst else tail - self._p * (self.burst - cost)
        due = at if ready <= time else -(-ready // q)
        after = start + width
        if parts:
            return self._reserve_under(line, now, asked, skew, due)
        wait = due + shift - now
        if max_wait is not None and wait > max_wait:
            return state, self._refused(None, tail, now, wait, held, cost, max_wait, shift), 0, False
        # Written out: this is the path of every admitted call.
        return (
            (after, due, generation, version, until, shift, places, parts),
            (True, wait, due + shift, held, None, cost, generation, version, start, due, (tail, newest), ()),
            (after if q == 1 else -(-after // q)) + shift - now,
            True,
        )

    def confirm(
        self, state: Line | None, now: int, generation: int, due: int, skew: int = 0
    ) -> tuple[int, bool]:
        """How long a reservation has to wait from now on, and whether the queue is held.

        Negative where the key was reset: what was promised then still stands, and nothing else.
        """
        if state is None or state[2] != generation:
            return UNKNOWN, False
        until, shift = state[4], state[5]
        return max(0, due + shift - now, until - now), until > now

    def cancel(
        self, state: Line | None, now: int, grant: Grant, skew: int = 0
    ) -> tuple[Line | None, bool, int, bool]:
        """Give back a place that has not been used; late or again, this does nothing."""
        line = self._standing(state, now, grant, skew)
        if line is None or grant.due_us < max(now, line[4]) - line[5]:
            return state, False, 0, False
        tail, newest, generation, version, until, shift, places, parts = line
        if len(places) >= MAX_HOLES:
            return state, False, 0, False
        end = grant.start + self._width(grant.cost)
        back, before = grant.undo
        since = version + 1
        if end < tail:
            hole: Place = (grant.start, end, since, grant.due_us, grant.cost, grant.undo, grant.receipts)
            left = (*(old for old in places if not (old[0] == grant.start and old[1] <= end)), hole)
            line = (tail, newest, generation, since, until, shift, tuple(sorted(left)), parts)
            return self._kept(line, now, skew)
        # The tail retracts, over the free places that now end it too.
        at = max(now, until) - shift
        first = grant.start
        parts = self.constraints.refund(parts, at, grant.cost, grant.receipts, shift + skew)
        for place in reversed(places):
            if place[1] == back and place[3] != _TAKEN:
                first = place[0]
                back, before = place[5]
                parts = self.constraints.refund(parts, at, place[4], place[6], shift + skew)
        taken: Place = (first, tail, since, _TAKEN, 0, (0, 0), ())
        left = (*(place for place in places if place[0] < first), taken)
        return self._kept((back, before, generation, since, until, shift, left, parts), now, skew)

    def settle(
        self, state: Line | None, now: int, grant: Grant, actual: int, skew: int = 0
    ) -> tuple[Line | None, bool, int, bool]:
        """Make a call cost what it turned out to cost: charge the difference, or give it back."""
        line = self._standing(state, now, grant, skew)
        if line is None:
            return state, False, 0, False
        tail, newest, generation, version, until, shift, places, parts = line
        at = max(now, until) - shift
        extra = actual - grant.cost
        if extra > 0:
            parts = self.constraints.debit(parts, at, extra, grant.receipts, shift + skew)
            if self._paced:
                tail = max(tail, at * self._q) + self._p * extra
        else:
            parts = self.constraints.refund(parts, at, -extra, grant.receipts, shift + skew)
            if self._paced and tail == grant.start + self._p * grant.cost:
                tail += self._p * extra
        return self._kept((tail, newest, generation, version, until, shift, places, parts), now, skew)

    # holding

    def hold(
        self, state: Line | None, now: int, length: int, nonce: int, skew: int = 0
    ) -> tuple[Line, int, int, bool]:
        """Nobody leaves before `now + length`; a longer hold in place stays. Returns its length from now."""
        line: Line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        tail, newest, generation, version, until, shift, places, parts = line
        end = now + length
        if end <= until:
            return line, until - now, 0, False
        # What an idle queue could have sent at once it may not send when the hold ends.
        idle = (max(now, until) - shift) * self._q + self._p * (self.burst - 1)
        shift += end - max(now, until)
        held = (max(tail, idle), newest, generation, version, end, shift, places, parts)
        return held, length, self._life(held, now, skew), True

    def resume(
        self, state: Line | None, now: int, notice: int, skew: int = 0
    ) -> tuple[Line | None, int, int, bool]:
        """End a hold `notice` from now, if it would last longer. Returns its length from now."""
        if state is None or state[4] <= now + notice:
            return state, 0 if state is None else max(0, state[4] - now), 0, False
        tail, newest, generation, version, until, shift, places, parts = state
        end = now + notice
        freed = (tail, newest, generation, version, end, shift - (until - end), places, parts)
        return freed, notice, self._life(freed, now, skew), True

    # looking

    def look(self, state: Line | None, now: int, skew: int = 0) -> tuple[Line | None, int, int]:
        """The state itself with its time, for whoever wants to play it on."""
        return state, now, skew

    def outlook(self, state: Line | None, now: int, calls: int, skew: int) -> tuple[int, int]:
        """How long until the first and the last of `calls` more calls of cost 1 would have left."""
        first = last = None
        after = state
        for ahead in range(calls):
            if first is not None and after is not None and not after[6] and not self.constraints:
                ready = after[0] + self._p * (calls - ahead - self.burst)
                last = max(last or 0, -(-ready // self._q) + after[5] - now)
                break
            after, granted, _, _ = self.reserve(after, now, (1, MAX_TAU_US, 0), skew)
            first = granted[1] if first is None else first
            last = max(last or 0, granted[1])
        return first or 0, last or 0

    def decision(self, granted: Granted) -> Decision:
        """An answer to a reservation in the words of a gate: what is used and left of the burst."""
        if granted[4] is not None:
            return granted[4]
        _, wait, departs_at, _, _, cost, _, _, start, due, _, _ = granted
        now = departs_at - wait
        after = start + self._width(cost)
        drained = (now - departs_at + due) * self._q
        current = max(0, -((drained - after) // self._width(1)))
        full = -(-after // self._q) + departs_at - due
        return Decision(True, self.burst, current, max(0, self.burst - current), full, 0, delay_us=wait)

    def adopt(self, state: Line, writer: Any) -> Line:
        """A line that a queue with other numbers left: its tail and hold go on, its grants are void."""
        tail, newest, generation, _, until, shift, _, parts = state
        position = -(-tail * self._q // writer._q)
        return (
            position,
            newest,
            generation + 1,
            0,
            until,
            shift,
            (),
            self.constraints.adopt(parts, writer.constraints),
        )

    # inside

    def _reserve_under(
        self, line: Line, now: int, asked: Asked, skew: int, on_grid: int
    ) -> tuple[Line, Granted, int, bool]:
        """`reserve`, where constraints may move the departure from where the grid has it."""
        cost, max_wait, _ = asked
        tail, newest, generation, version, until, shift, places, parts = line
        held = until > now
        due, spent = self.constraints.departure(parts, max(on_grid, newest), cost, shift + skew)
        wait = due + shift - now
        if (spent is not None) if max_wait is None else wait > max_wait:
            return line, self._refused(spent, tail, now, wait, held, cost, max_wait, shift), 0, False
        anchor = due if due > on_grid else max(now, until) - shift
        start = max(tail, anchor * self._q)
        after = start + self._width(cost)
        parts, receipts, life = self.constraints.charge(parts, due, cost, shift + skew)
        ends = max(-(-after // self._q), due + life)
        return (
            (after, due, generation, version, until, shift, places, parts),
            (
                True,
                wait,
                due + shift,
                held,
                None,
                cost,
                generation,
                version,
                start,
                due,
                (tail, newest),
                receipts,
            ),
            ends + shift - now,
            True,
        )

    def _width(self, cost: int) -> int:
        return self._p * cost if self._paced else 1

    def _refused(
        self,
        spent: Decision | None,
        tail: int,
        now: int,
        wait: int,
        held: bool,
        cost: int,
        max_wait: int | None,
        shift: int,
    ) -> Grant:
        if spent is not None:
            told = spent._replace(retry_after_us=wait, reset_at_us=spent.reset_at_us + shift)
        else:
            full = -(-tail // self._q) + shift
            told = Decision(False, self.burst, self.burst, 0, full, wait - (max_wait or 0))
        return Grant(False, wait, now + wait, held, told, cost, 0, 0, 0, 0, (0, 0), ())

    def _swept(
        self, places: tuple[Place, ...], parts: States, at: int, skew: int
    ) -> tuple[tuple[Place, ...], States]:
        """Without the places that time has passed; what they were charged is given back."""
        kept: list[Place] = []
        for place in places:
            if place[3] != _TAKEN and place[3] < at:
                parts = self.constraints.refund(parts, at, place[4], place[6], skew)
                place = (*place[:3], _TAKEN, 0, (0, 0), ())  # noqa: PLW2901 - the same place, taken
            if place[1] > at * self._q:
                kept.append(place)
        return tuple(kept), parts

    def _moved_in(
        self, line: Line, now: int, asked: Asked, index: int, skew: int
    ) -> tuple[Line, Granted, int, bool]:
        """Give a newcomer the place of somebody who has gone."""
        cost, max_wait, _ = asked
        tail, newest, generation, version, until, shift, places, parts = line
        start, end, since, due, units, undo, receipts = places[index]
        wait = due + shift - now
        held = until > now
        if max_wait is not None and wait > max_wait:
            return line, self._refused(None, tail, now, wait, held, cost, max_wait, shift), 0, False
        parts = self.constraints.refund(parts, max(now, until) - shift, units - cost, receipts, shift + skew)
        taken: Place = (start, end, since, _TAKEN, 0, (0, 0), ())
        left = (*places[:index], taken, *places[index + 1 :])
        after = (tail, newest, generation, version, until, shift, left, parts)
        grant = Grant(
            True, wait, due + shift, held, None, cost, generation, version, start, due, undo, receipts
        )
        return after, grant, self._life(after, now, skew), True

    def _standing(self, state: Line | None, now: int, grant: Grant, skew: int) -> Line | None:
        """The line, swept, if the grant's place on it is still the grant's."""
        if state is None or state[2] != grant.generation:
            return None
        tail, newest, generation, version, until, shift, places, parts = state
        end = grant.start + self._width(grant.cost)
        for place in places:
            if place[2] > grant.version and place[0] < end and grant.start < place[1]:
                return None
        places, parts = self._swept(places, parts, max(now, until) - shift, shift + skew)
        return tail, newest, generation, version, until, shift, places, parts

    def _kept(self, line: Line, now: int, skew: int) -> tuple[Line, bool, int, bool]:
        return line, True, self._life(line, now, skew), True

    def _life(self, line: Line, now: int, skew: int) -> int:
        """How long the line differs from a cold one."""
        tail, _, _, _, until, shift, _, parts = line
        at = max(now, until) - shift
        ends = max(-(-tail // self._q), self.constraints.full_at(parts, at, shift + skew))
        return max(0, ends + shift - now, until - now)


def _burst(paced: Rate | None, burst: int | None) -> int:
    told = None if paced is None else paced.burst
    if burst is None:
        return 1 if told is None else told
    if paced is None:
        raise ConfigError(
            "burst", burst, "has no paced rate to apply to", 'leave it away, or use pace="smooth"'
        )
    if told is not None:
        raise ConfigError("burst", burst, "comes on top of the burst in the rate", "give the burst once")
    return whole("burst", burst)


def _part_below(headroom: object) -> Fraction:
    if isinstance(headroom, bool) or not isinstance(headroom, (int, float)) or not 0 <= headroom < 1:
        raise ConfigError(
            "headroom", headroom, "is not from 0 to below 1", "write 0.02 for 2 % below the rate"
        )
    return 1 - Fraction(headroom).limit_denominator(1_000_000)
