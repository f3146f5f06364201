"""LeakyQueue: the leaky bucket that delays. Asked "when?", it commits a departure.

A paced queue is a grid. A call of cost c occupies c intervals T of it, one call after the other, and
leaves at the start of what it occupies, or up to `burst - c` intervals earlier. So for any two calls
`t_j - t_i >= (cost(i..j) - max(burst, cost_j)) * T`, to the microsecond that instants are rounded up
to, and a queue that never runs dry keeps the rate exactly, however long it is. Other limits
(constraints) may move the departure; all of them are decided at that instant, and committed together.

Everything here happens on the queue's own time, which stands still while the queue is held: `time =
max(now, until) - shift`, where `shift` is all the time it was ever held. A hold thereby delays every
call that waits, and every limit's memory of past calls, by its own length, in order and without a burst.

A reservation that is given back at the tail retracts the tail. In the middle it leaves a place for the
next newcomer: nobody is delayed, nobody moves. Under constraints a place is taken as it is, departure
and charges included. Without them the grid is all there is, and places that touch become one gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from shapekit.algorithms.base import Algorithm, slowed
from shapekit.algorithms.constraints import Ahead, Constraints, States, burst_of, part_below, unpaced
from shapekit.algorithms.gaps import filled, given_back, overlaps, retracted, room
from shapekit.algorithms.grant import Asked, Grant, Granted
from shapekit.algorithms.many_turns import ManyTurns
from shapekit.algorithms.meter import interval
from shapekit.algorithms.places import TAKEN, Place, bounded, is_full, taken, with_place
from shapekit.decision import Decision
from shapekit.rate import MAX_COUNT, MAX_SPAN_US, Rate, one_of

PACES = ("smooth", "burst")
_UNPACED = (1, 1024)
"""The grid of a queue without a paced rate: so fine that it only tells the calls apart."""
_HOWEVER_LONG_US = 2**64
_END_US = 2**52
"""Where a debt is cut: a double has to hold all that is added to it."""
UNKNOWN = -1

Line: TypeAlias = tuple[int, int, int, int, int, int, tuple[Place, ...], States]
"""tail (in 1/q µs), newest departure, generation, version, held until, shift, places, constraints."""


class LeakyQueue(ManyTurns):
    """What one shaper promises: rates, a burst, a pace, and further constraints."""

    kind: ClassVar[str] = "leaky_queue"
    adapts: ClassVar[bool] = False
    """Whether the rate is found, and not given."""

    fields: ClassVar[tuple[str, ...]] = ("rates", "burst", "pace", "gates", "headroom")
    __slots__ = (*fields, "constraints", "civil", "max_cost", "_p", "_q", "_paced")

    rates: tuple[Rate, ...]
    burst: int
    pace: str
    gates: tuple[Algorithm[Any], ...]
    headroom: Fraction
    constraints: Constraints
    civil: bool
    max_cost: int
    _p: int
    _q: int
    _paced: bool

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
        part = part_below(headroom)
        constraints = Constraints([*(unpaced(rate, part) for rate in others), *gates])
        p, q = _UNPACED if paced is None else interval(slowed(paced, part))
        most = min(MAX_COUNT, MAX_SPAN_US * q // p)
        self._fill(
            rates=tuple(rates),
            burst=burst_of(paced, burst, most),
            pace=pace,
            gates=tuple(gates),
            headroom=1 - part,
            constraints=constraints,
            civil=constraints.civil,
            max_cost=constraints.max_cost(most),
            _p=p,
            _q=q,
            _paced=paced is not None,
        )

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
            places, parts = self._swept(places, parts, at, (shift, skew))
            line = (tail, newest, generation, version, until, shift, places, parts)
            moved = self._moved_in(line, now, asked, skew)
            if moved is not None:
                return moved
        q, width = self._q, self._p * cost
        time = at if q == 1 else at * q
        undo = (tail, newest)
        if tail <= time and not parts and not held:
            # Nobody waits: written out, for this is the path of every call that leaves at once.
            after = time + width
            return (
                (after, at, generation, version, until, shift, places, parts),
                (True, 0, now, False, None, cost, generation, version, time, after, at, undo, ()),
                -(-width // q),
                True,
            )
        ready = tail if cost >= self.burst else tail - self._p * (self.burst - cost)
        due = at if ready <= time or not self._paced else -(-ready // q)
        if parts:
            return self._reserve_under(line, now, asked, skew, due)
        wait = due + shift - now
        if max_wait is not None and wait > max_wait:
            return state, self._refused(None, line, now, wait, asked), 0, False
        start = tail if tail > time else time
        after = start + width
        return (
            (after, due, generation, version, until, shift, places, parts),
            (True, wait, due + shift, held, None, cost, generation, version, start, after, due, undo, ()),
            (after if q == 1 else -(-after // q)) + shift - now,
            True,
        )

    def confirm(self, state: Line | None, now: int, skew: int = 0) -> tuple[int, int, int, int]:
        """How the key stands: its generation, shift, until when it is held, and what time it is.

        Whoever has a grant of that generation departs at `max(due + shift, until)`. A cold key has
        none, UNKNOWN: what was promised then still stands, and nothing else.
        """
        if state is None:
            return UNKNOWN, 0, 0, now
        return state[2], state[5], state[4], now

    def cancel(
        self, state: Line | None, now: int, grant: Grant, skew: int = 0
    ) -> tuple[Line | None, bool, int, bool]:
        """Give back a place that has not been used; late or again, this does nothing."""
        line = self._standing(state, now, grant, skew)
        if line is None or not grant.cost or grant.due_us < max(now, line[4]) - line[5]:
            return state, False, 0, False
        tail, newest, generation, version, until, shift, places, parts = line
        since = version + 1
        at = max(now, until) - shift
        if not parts:
            p, time = self._p, at * self._q
            if grant.end < tail:
                left = given_back(places, p, time, grant.start, grant.end)
                if left is None:
                    return state, False, 0, False
            else:
                tail, left = retracted(places, p, time, grant.start, tail, since)
                newest = min(newest, -(-tail // self._q))
            return self._kept((tail, newest, generation, since, until, shift, left, parts), now, skew)
        if grant.end < tail:
            if is_full(places):
                return state, False, 0, False
            hole = (grant.start, grant.end, since, grant.due_us, grant.cost, grant.undo, grant.receipts)
            line = (tail, newest, generation, since, until, shift, with_place(places, hole), parts)
            return self._kept(line, now, skew)
        # The tail retracts, over the free places that now end it too.
        first = grant.start
        back, before = grant.undo
        parts = self.constraints.refund(parts, at, grant.cost, grant.receipts, (shift, skew))
        for place in reversed(places):
            if place[1] == back and place[3] != TAKEN:
                first = place[0]
                back, before = place[5]
                parts = self.constraints.refund(parts, at, place[4], place[6], (shift, skew))
        left = with_place(places, taken(first, tail, since))
        return self._kept((back, before, generation, since, until, shift, left, parts), now, skew)

    def settle(
        self, state: Line | None, now: int, asked: tuple[Grant, int, int], skew: int = 0
    ) -> tuple[Line | None, bool, int, bool]:
        """Make a call cost what it turned out to cost: charge the difference, or give it back."""
        grant, actual, nonce = asked
        extra = actual - grant.cost
        line = self._standing(state, now, grant, skew)
        if line is None:
            if extra <= 0 or grant.generation < 0:
                return state, False, 0, False
            # What was used was used, whether or not the key is still the same.
            line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        tail, newest, generation, version, until, shift, places, parts = line
        at = max(now, until) - shift
        if extra > 0:
            parts = self.constraints.debit(parts, at, extra, grant.receipts, (shift, skew))
            if self._paced:
                owed = max(tail, at * self._q) + self._p * extra
                tail = max(tail, min(owed, _END_US * self._q))
        else:
            parts = self.constraints.refund(parts, at, -extra, grant.receipts, (shift, skew))
            end = self.end_of(grant, actual)
            if tail == grant.end > end:
                # The grant must not be able to give back what others may have by then.
                version += 1
                places = with_place(places, taken(end, tail, version))
                tail = end
        return self._kept((tail, newest, generation, version, until, shift, places, parts), now, skew)

    def end_of(self, grant: Grant, actual: int) -> int:
        """Where a grant ends once it costs `actual`; never later, for what it costs more stands elsewhere."""
        return min(grant.end, grant.start + self._p * actual) if self._paced else grant.end

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

    def outlook(self, state: Line | None, now: int, calls: int, cost: int, skew: int) -> tuple[int, int]:
        """How long until the first and the last of `calls` more calls would have left."""
        waits: list[int] = []
        after = state
        before = -1
        while len(waits) < calls:
            if waits and after is not None and not self.constraints and after[0] > before:
                # No gap was wide enough. From here on it is a plain grid.
                last = after[0] + self._p * (cost * (calls - len(waits)) - max(self.burst, cost))
                waits.append(max(0, -(-last // self._q) + after[5] - now))
                break
            before = -1 if after is None else after[0]
            after, granted, _, _ = self.reserve(after, now, (cost, _HOWEVER_LONG_US, 0), skew)
            waits.append(granted[1])
        return waits[0], max(waits)

    def decision(self, granted: Granted) -> Decision:
        """An answer to a reservation in the words of a gate: what is used and left of the burst."""
        if granted[4] is not None:
            return granted[4]
        _, wait, departs_at, _, _, _, _, _, _, after, due, _, _ = granted
        now = departs_at - wait
        drained = (now - departs_at + due) * self._q
        current = max(0, -((drained - after) // self._width(1)))
        full = -(-after // self._q) + departs_at - due
        return Decision(True, self.burst, current, max(0, self.burst - current), full, 0, delay_us=wait)

    def adopt(self, state: Line, writer: Any, now: int, skew: int = 0) -> Line:
        """A line that a queue with other numbers left: its tail and hold go on, its grants are void."""
        tail, newest, generation, _, until, shift, _, parts = state
        position = -(-tail * self._q // writer._q)
        at = max(now, until) - shift
        kept = self.constraints.adopt(parts, writer.constraints, at, (shift, skew))
        return position, newest, generation + 1, 0, until, shift, (), kept

    # inside

    def _reserve_under(
        self, line: Line, now: int, asked: Asked, skew: int, on_grid: int
    ) -> tuple[Line, Granted, int, bool]:
        """`reserve`, where constraints may move the departure from where the grid has it."""
        cost, max_wait, _ = asked
        tail, newest, generation, version, until, shift, places, parts = line
        held = until > now
        due, spent = self.constraints.departure(parts, max(on_grid, newest), cost, (shift, skew))
        wait = due + shift - now
        if (spent is not None) if max_wait is None else wait > max_wait:
            return line, self._refused(spent, line, now, wait, asked), 0, False
        at = max(now, until) - shift
        anchor = due if due > on_grid else at
        start = max(tail, anchor * self._q)
        after = start + self._width(cost)
        parts, receipts, life = self.constraints.charge(parts, at, due, cost, (shift, skew))
        ends = max(-(-after // self._q), at + life)
        undo = (tail, newest)
        line = (after, due, generation, version, until, shift, places, parts)
        granted = (True, wait, due + shift, held, None, cost, generation, version, start, after, due)
        return line, (*granted, undo, receipts), ends + shift - now, True

    def _width(self, cost: int) -> int:
        return self._p * cost if self._paced else 1

    def _refused(self, spent: Decision | None, line: Line, now: int, wait: int, asked: Asked) -> Grant:
        cost, max_wait, _ = asked
        tail, until, shift = line[0], line[4], line[5]
        if spent is not None:
            told = spent._replace(retry_after_us=wait, reset_at_us=spent.reset_at_us + shift)
        else:
            full = -(-tail // self._q) + shift
            told = Decision(False, self.burst, self.burst, 0, full, wait - (max_wait or 0))
        return Grant(False, wait, now + wait, until > now, told, cost, 0, 0, 0, 0, 0, (0, 0), ())

    def _swept(
        self, places: tuple[Place, ...], parts: States, at: int, ahead: Ahead
    ) -> tuple[tuple[Place, ...], States]:
        """Without the places that time has passed; what they were charged is given back."""
        if not parts:
            return tuple([place for place in places if place[1] > at * self._q]), parts
        kept: list[Place] = []
        for place in places:
            if place[3] != TAKEN and place[3] < at:
                parts = self.constraints.refund(parts, at, place[4], place[6], ahead)
                place = taken(*place[:3])  # noqa: PLW2901 - the same place, taken
            if place[1] > at * self._q:
                kept.append(place)
        return tuple(kept), parts

    def _moved_in(
        self, line: Line, now: int, asked: Asked, skew: int
    ) -> tuple[Line, Granted, int, bool] | None:
        """Give a newcomer what somebody has left who has gone; None if nothing suits."""
        cost, max_wait, _ = asked
        tail, newest, generation, version, until, shift, places, parts = line
        p, q = self._p, self._q
        at = max(now, until) - shift
        if parts:
            place = next((old for old in places if old[3] >= at and old[4] >= cost), None)
            if place is None:
                return None
            start, end, since, due, units, undo, receipts = place
            left = bounded([*(old for old in places if old is not place), taken(start, end, since)])
            parts = self.constraints.refund(parts, at, units - cost, receipts, (shift, skew))
        else:
            found = room(places, p, at * q, q, p * cost)
            if found is None:
                return None
            start, stretch = found
            end = start + p * cost
            due = max(at, -(-(start - p * max(0, self.burst - cost)) // q))
            left, undo, receipts = filled(places, p, at * q, stretch, end, version), (start, newest), ()
        wait = due + shift - now
        if max_wait is not None and wait > max_wait:
            return line, self._refused(None, line, now, wait, asked), 0, False
        after = (tail, newest, generation, version, until, shift, left, parts)
        granted = (True, wait, due + shift, until > now, None, cost, generation, version, start, end, due)
        return after, (*granted, undo, receipts), self._life(after, now, skew), True

    def _standing(self, state: Line | None, now: int, grant: Grant, skew: int) -> Line | None:
        """The line, swept, if the grant's place on it is still the grant's."""
        if state is None or state[2] != grant.generation:
            return None
        tail, newest, generation, version, until, shift, places, parts = state
        for place in places:
            if place[2] > grant.version and place[0] < grant.end and grant.start < place[1]:
                return None
        at = max(now, until) - shift
        if overlaps(places, self._p, at * self._q, grant.start, grant.end):
            return None
        places, parts = self._swept(places, parts, at, (shift, skew))
        return tail, newest, generation, version, until, shift, places, parts

    def _kept(self, line: Line, now: int, skew: int) -> tuple[Line, bool, int, bool]:
        return line, True, self._life(line, now, skew), True

    def _life(self, line: Line, now: int, skew: int) -> int:
        """How long the line differs from a cold one."""
        tail, _, _, _, until, shift, _, parts = line
        at = max(now, until) - shift
        ends = max(-(-tail // self._q), self.constraints.full_at(parts, at, (shift, skew)))
        return max(0, ends + shift - now, until - now)
