"""LeakyQueue: the leaky bucket as a queue. It computes when a call may leave, and charges that departure.

A paced queue is a grid. A call of cost c occupies c intervals T of it, one call after the other, and leaves
at the start of what it occupies, or up to `burst - c` intervals earlier. So for any two calls `t_j - t_i >=
(cost(i..j) - max(burst, cost_j)) * T`, except that instants are rounded up to the microsecond, and a queue
that never runs dry keeps the rate exactly, however long it is. Other limits (constraints) may move the
departure; all of them are decided at that instant and committed together.

All of this happens on the queue's own time, which stands still while the queue is held: `time = max(now,
until) - shift`, where `shift` is the total time it stood still. So a hold delays every waiting call by the
length of the hold, in order and without a burst.

Under windows, a call may have to wait longer than the hold lasts, and must not wait for one after the other.
So if all limits are windows or quotas, time goes on in a hold up to the first call that would leave before
the hold ends, and stands still from then on. To find that call, a line remembers the pauses ahead of it.

A part of a key may be held under a key of its own (scopes.py). The key is then marked: a call that takes a
slot meanwhile sees the mark, and checks that part before it leaves.

A reservation that is given back at the tail retracts the tail. In the middle it leaves a place for the next
newcomer, and no other call moves. Under constraints a place is taken as it is, with its departure and
charges. Without them there is only the grid, and places that touch become one gap. Every reservation has a
number, which ends when the slot is given back or settled, so a repeated cancel or settle does nothing
(slots.py implements places, gaps and numbers).

Ten slots taken in one operation are the same as the slots of ten calls one right after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from shapekit.algorithms.base import END_US, NEVER_US, Algorithm, Leaf, Shift, Stepped, share_of, slowed
from shapekit.algorithms.gcra import interval
from shapekit.algorithms.prospects import Pace, departures, unforeseeable
from shapekit.algorithms.queue import slots
from shapekit.algorithms.queue.constraints import Call, Constraints, States, burst_of, part_below, timeline
from shapekit.algorithms.queue.slots import NONE, NOTICE_US, Grant, Granted, Move, Moves, Places, Request
from shapekit.algorithms.queue.wire import UNKNOWN, Confirmed, Further, Late, Moved, WiredQueue
from shapekit.algorithms.quota import Quota
from shapekit.decision import Decision
from shapekit.rate import MAX_COUNT, MAX_SPAN_US, SECOND_US, Rate, one_of

PACES = ("smooth", "burst")
_UNPACED = (1, 1024)
"""The grid of a queue without a paced rate: so fine that it only keeps calls in order."""
_DEBT = 2**12
"""How far a settlement that adds cost moves an unpaced tail. A call moves it by 1, so the two can be told
apart unless this many calls have one departure.
"""
_HOWEVER_LONG_US = 2**64
LEAST_GRACE_US = 10_000
"""A call that is late by less does not move the line, however fast the rate: machines are not more exact."""
SOON_US = 250_000
"""A late call can get another slot at most this long before time goes on."""
MOST_LATE_US = 1_000_000
"""A call that is later than this moves the line by its own slot alone, whatever the limits."""
HELD_US = 30 * 86_400 * SECOND_US
"""The longest hold of an operator, which a decision renews once half of it has passed."""
MOST_STEPS = 5_000
"""The most calls that a forecast simulates on the states, for limits that have no `prospect`."""

Book: TypeAlias = tuple[()] | tuple[Any, slots.Gone, int, Moves, int, slots.Pauses]
"""What is free (gaps, or places under constraints), what is gone, until when a part of the key is held, the
last changes of the limits, until when time stands still for a late call, and where the line pauses. Empty for
a key to which none of this has happened.
"""
Line: TypeAlias = tuple[int, int, int, int, int, int, Book, States]
"""tail (in 1/q µs), newest departure, generation, the number of the latest slot, held until, shift, book,
states of the constraints.
"""


class LeakyQueue(WiredQueue):
    """The limits of one shaper: rates, a burst, a pace, and further constraints."""

    kind: ClassVar[str] = "leaky_queue"
    adapts: ClassVar[bool] = False
    """Whether the rate is adaptive."""
    is_set: ClassVar[bool] = False
    """Whether an operator has set its limits: then waiting calls move when these change."""

    fields: ClassVar[tuple[str, ...]] = ("rates", "burst", "pace", "gates", "headroom")
    __slots__ = (
        *fields,
        *("constraints", "civil", "held_until_us", "max_cost", "places", "slot_us", "p", "q", "paced"),
    )

    rates: tuple[Rate, ...]
    burst: int
    pace: str
    gates: tuple[Algorithm[Any], ...]
    headroom: Fraction
    constraints: Constraints
    civil: bool
    held_until_us: int
    """Until when an operator holds it, in civil time: 0 if not at all, NEVER_US if without end."""
    slot_us: int
    """The length of a slot, rounded up."""
    max_cost: int
    places: Places
    p: int
    q: int
    paced: bool

    def __init__(
        self,
        rates: Sequence[Rate],
        burst: int | None,
        pace: str,
        gates: Sequence[Algorithm[Any]],
        headroom: float = 0.0,
    ) -> None:
        one_of("pace", pace, PACES)
        paced = paced_of(rates, pace)
        others = [rate for rate in rates if rate is not paced]
        part = part_below(headroom)
        constraints = Constraints(others, part, gates)
        p, q = _UNPACED if paced is None else interval(slowed(paced, part))
        most = min(MAX_COUNT, MAX_SPAN_US * q // p)
        burst = burst_of(paced, burst, most)
        self._fill(
            rates=tuple(rates),
            burst=burst,
            pace=pace,
            gates=tuple(gates),
            headroom=1 - part,
            constraints=constraints,
            civil=constraints.civil,
            held_until_us=0,
            max_cost=constraints.max_cost(most),
            places=Places(constraints, p, p * (burst - 1), q, paced=paced is not None),
            slot_us=-(-p // q),
            p=p,
            q=q,
            paced=paced is not None,
        )

    def scaled(self, share: float | Fraction) -> LeakyQueue:
        """The same limits at a share of their rates."""
        part, paced = share_of(share), paced_of(self.rates, self.pace)
        return LeakyQueue(
            () if paced is None else (slowed(paced, part),),
            None if paced is None else max(1, int(self.burst * part)),
            self.pace,
            [limit.scaled(part) for limit in self.constraints.algorithms],
            float(self.headroom),
        )

    # reserving

    def reserve(
        self, state: Line | None, now: int, request: Request, skew: int = 0
    ) -> Stepped[Line | None, Granted]:
        """Take the earliest departure that is at most `max_wait` away, or refuse and change nothing.

        Without a `max_wait`, an exhausted quota refuses the call; with one, the call waits for the quota as
        for any limit.
        """
        cost, max_wait, nonce = request
        line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        tail, newest, generation, slot, until, shift, book, parts = line
        held = until > now
        at = (until if held else now) - shift
        if book:
            if parts and book[5][0] == shift:
                tail, at = self._tail_at(line, now), line_time(line, now)
                line = (tail, newest, generation, slot, until, shift, book, parts)
            if book[2] > now:
                return self._reserve_marked(line, now, request, skew)
            if any(book[0]):
                line = self._swept(line, at, now, skew)
                _, _, _, _, _, _, book, parts = line
                moved = self._moved_in(line, now, request, skew)
                if moved is not None:
                    return moved
        slot += 1
        q = self.q
        width = self.p * cost if self.paced else 1
        time = at if q == 1 else at * q
        if tail <= time and not parts and not held:
            # No call waits. Written out here: this is the hot path of every call that leaves at once.
            end = time + width
            return (
                (end, at, generation, slot, until, shift, book, parts),
                (True, 0, now, False, None, cost, generation, slot, time, end, at, (tail, newest), (), None),
                -(-width // q),
                True,
            )
        ready = tail if cost >= self.burst else tail - self.p * (self.burst - cost)
        due = at if ready <= time or not self.paced else -(-ready // q)
        if parts:
            return self._reserve_under(line, now, request, skew, due)
        wait = due + shift - now
        if max_wait is not None and wait > max_wait:
            return state, self._refused(None, line, now, wait, request), 0, False
        start = tail if tail > time else time
        end = start + width
        undo = (tail, newest)
        at_us = due + shift
        granted = (True, wait, at_us, held, None, cost, generation, slot, start, end, due, undo, (), None)
        life = (end if q == 1 else -(-end // q)) + shift - now
        return (end, due, generation, slot, until, shift, book, parts), granted, life, True

    def confirm(self, state: Line | None, now: int, skew: int = 0) -> Confirmed:
        """The state of the key: its generation, shift, end of the hold, the time, end of the mark.

        A grant of that generation departs at `max(due + shift, until)`. A cold key has the generation
        UNKNOWN: earlier grants then keep their departures.
        """
        if state is None:
            return UNKNOWN, 0, 0, now, 0
        return state[2], state[5], state[4], now, marked(state[6])

    def cancel(self, state: Line | None, now: int, grant: Grant, skew: int = 0) -> Stepped[Line | None, bool]:
        """Give back a place that was not used; too late or again, this does nothing."""
        if state is None or state[2] != grant.generation or not grant.cost:
            return state, False, 0, False
        at = line_time(state, now)
        line = self._swept(state, at, now, skew)
        tail, newest, generation, number, until, shift, book, parts = line
        free, before, mark, changes, stands_until, pause = opened_book(book, parts)
        left, ahead = slots.with_slot(before, grant.version, grant.due_us, at), (shift, skew, now)
        if grant.due_us < at or left is None:
            return state, False, 0, False
        stands = grant.start < grant.end <= tail  # not if the caller missed a settlement for less
        if not parts:
            if stands and grant.end < tail:
                free = slots.gaps_given_back(free, grant.start, grant.end)
            elif stands:
                tail, free = slots.gaps_retracted(free, grant.start)
                newest = min(newest, -(-tail // self.q))
        else:
            grant, kept = self.own(grant), None
            call: Call = "changed" if changes else "waits"
            charged = grant.due_us, grant.cost, grant.receipts
            is_last = stands and grant.end == tail
            is_newest = not self.paced and grant.due_us == newest and self._is_newest(line, grant)
            if stands and grant.end < tail and not is_newest:
                kept = self.places.given_back(free, grant, number)
            if kept is not None:
                free = kept
            elif is_last:
                # The tail retracts, also over free places that now end it.
                parts = self.constraints.refund_last(parts, *charged, ahead, grant.undo[1], call)
                undo = (min(grant.undo[0], grant.start), grant.undo[1])
                free, (tail, newest), parts = self.places.retracted(free, undo, parts, at, ahead)
            else:
                parts = self.constraints.refund(parts, *charged, ahead, call)
                newest = min(newest, grant.undo[1]) if is_newest else newest
        book = (free, left, mark, changes, stands_until, pause)
        after = (tail, newest, generation, number, until, shift, book, parts)
        return after, True, self._life(after, now, skew), True

    def settle(
        self, state: Line | None, now: int, settlement: tuple[Grant, int, int], skew: int = 0
    ) -> Stepped[Line | None, int]:
        """Correct the cost of a call to what it turned out to be: charge the difference, or give it back.

        Returns the slot's new number, for later operations on it; 0 if nothing was done.
        """
        grant, actual, nonce = self.own(settlement[0]), *settlement[1:]
        line: Line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        tail, newest, generation, number, until, shift, book, parts = line
        at = line_time(line, now)
        free, left, mark, changes, stands_until, pause = opened_book(book, parts)
        is_own = generation == grant.generation
        follows, cost = grant.version, grant.cost
        if not is_own or slots.is_gone(left, follows, grant.due_us):
            # A repetition; but after a reset of the key it may be the first time.
            word = slots.last_word(left, grant.generation, follows, nonce)
            if word is not None:
                follows, cost = word
            is_over = is_own and (word is None or slots.is_gone(left, follows, grant.due_us))
            if grant.generation < 0 or is_over or (word is None and actual <= cost):
                return state, 0, 0, False
        extra = actual - cost
        if extra == 0 or (extra < 0 and not is_own):
            return state, 0 if extra else follows, 0, False
        if extra > 0:
            # Used units stay used, whether or not the key was reset. In a hold they count from where time
            # would go on if it were ended.
            parts = self.constraints.debit(
                parts, min(at, now - pause[0]), extra, grant.receipts, (shift, skew, now)
            )
            # An unpaced tail moves as well: else `cancel` could take an earlier call for the last one.
            owed = max(tail, at * self.q) + (self.p * extra if self.paced else _DEBT)
            tail = max(tail, min(owed, END_US * self.q))
        else:
            call: Call = "changed" if changes else "left" if grant.due_us < at else "waits"
            ahead = shift, skew, now
            parts = self.constraints.refund(parts, grant.due_us, -extra, grant.receipts, ahead, call)
            end = self.end_of(grant, actual)
            if tail == grant.end > end and follows == grant.version:
                tail = end
        if is_own:
            left, number = slots.with_slot(left, follows, grant.due_us, at) or left, number + 1
            follows = number
        left = slots.with_word(left, (grant.generation, grant.version, follows, actual, nonce))
        book = (free, left, mark, changes, stands_until, pause)
        after = (tail, newest, generation, number, until, shift, book, parts)
        return after, follows, self._life(after, now, skew), True

    def _is_newest(self, line: Line, grant: Grant) -> bool:
        """Whether a call is the last of an unpaced line: only settlements came after it. Those that added
        cost have moved the tail.
        """
        tail, _, generation, number, _, _, book, _ = line
        since = slots.settled_since(book[1], generation, grant.version) if book else 0
        debts, others = divmod(tail - grant.end, _DEBT)
        return number == grant.version + since and not others and debts <= since

    def end_of(self, grant: Grant, actual: int) -> int:
        """Where a grant ends once it costs `actual`; never later, because extra cost is charged elsewhere."""
        return min(grant.end, grant.start + self.p * actual) if self.paced else grant.end

    # leaving late

    def late(
        self, state: Line | None, now: int, calls: Sequence[Late], skew: int = 0
    ) -> Stepped[Line | None, tuple[Moved, ...]]:
        """Let calls leave that are later than their slots by more than the grace: move the line behind them.

        Each late call takes the next slot, and every call that has not left yet moves back by one. So calls
        stay as far apart as before, and the lost time is not made up.

        Under further limits, which remember when calls left, the queue's time goes back to the late call's
        own slot instead, and all other calls move by as much as it is late.
        """
        answers: list[Moved] = []
        life, persists = 0, False
        for call in calls:
            moved, answer = self._moved(state, now, call, skew)
            answers.append(answer)
            if moved is not None:
                state, life, persists = moved, self._life(moved, now, skew), True
        return state, tuple(answers), life, persists

    def _moved(self, state: Line | None, now: int, call: Late, skew: int) -> tuple[Line | None, Moved]:
        generation, by, cost, nonce = call
        line: Line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        tail, newest, own, number, until, shift, book, parts = line
        free_at = max(now, until)
        at = line_time(line, now)
        late = at - by if own == generation else MOST_LATE_US + 1
        # No grace while time stands still: all calls whose slots have passed would leave together at its end.
        grace = 0 if until > now else self.grace_us
        if late <= grace or free_at > now + SOON_US:
            # An earlier late call may have moved the whole line: then the slot of this one lies ahead again.
            slot_at = by + shift if parts and own == generation else 0
            return None, (max(free_at, slot_at), UNKNOWN)
        # Time stands still for the call as in any hold: it leaves at the end of that, and counts then.
        tail, newest, own, number, until, shift, book, _ = self.stopped(line, now)
        first, base = at, paused(book)[0] if until > now else UNKNOWN
        if parts and late <= MOST_LATE_US:
            at, shift, base = by, shift + late, base + late if base >= 0 else base
            # If time stands still for another late call, it has to stand still for this one as well.
            if until <= now or not self.paced:
                book, parts = _with_base(book, base), self._shifted(line, first, shift, now, skew)
                return (tail, newest, own, number, until, shift, book, parts), (free_at, free_at)
        # Time stands still from now until the slot after the call's new one: so it makes no other call late.
        leaves_at = free_at if until > now else self.next_slot(tail, at) + shift
        ends = leaves_at + -(-self._width(cost) // self.q)
        book = _with_base(book, base)
        if ends > now + SOON_US:
            book = standing(book, parts, ends)
        parts = self._shifted(line, first, ends - at, now, skew)
        return (tail, newest, own, number, ends, ends - at, book, parts), (leaves_at, ends)

    def _shifted(self, line: Line, first: int, shift: int, now: int, skew: int) -> States:
        """The states after the line has moved to this `shift`, from the departure `first` on: limits of real
        time count calls where they leave now.
        """
        before, parts = line[5], line[7]
        moved = self._shift(line, first, shift - before, now)
        if not parts or moved.newest < first or not moved.by:
            return parts
        return self.constraints.shifted(parts, moved, (before, skew, now))

    def _shift(self, line: Line, first: int, by: int, now: int) -> Shift:
        tail, newest, _, _, _, shift, book, _ = line
        # The end of a hold gives back what the hold has taken, even if all waiting calls have given up.
        newest = newest if by > 0 else max(newest, first)

        def most(at: int) -> int:
            return max(0, (tail - (at - 1) * self.q) // self.p) if self.paced else NEVER_US

        return Shift(now - shift, first, newest, by, most, paused(book)[1])

    @property
    def is_off(self) -> bool:
        """Whether an operator has lifted all limits."""
        return False

    @property
    def grace_us(self) -> int:
        """How late a call may leave without moving the line: three quarters of a slot, and at least 10 ms.

        The rest of the slot is a margin for the way to a server that counts strictly.
        """
        is_limited = self.paced or bool(self.constraints.algorithms)
        return max(LEAST_GRACE_US, self.slot_us * 3 // 4) if is_limited else END_US

    def next_slot(self, tail: int, at: int) -> int:
        """The first instant after `at` at which a slot of the line begins; `at` itself if the line is empty,
        or has slots at every microsecond.
        """
        if tail <= at * self.q or self.p < self.q:
            return at
        return -(-(tail - (tail - at * self.q - 1) // self.p * self.p) // self.q)

    # several at once: each is decided as by the single operation, in order, at one instant

    def reserve_many(
        self, state: Any, now: int, requests: Sequence[Request], further: Further, skew: int = 0
    ) -> Stepped[Any, tuple[Confirmed, tuple[Grant, ...]]]:
        """A slot or a refusal for each call, in order, and then further slots of cost 1.

        The further slots stop before the first one that is refused, or would depart more than the span after
        the first of them. The answer begins with the state of the key after all of this.
        """
        most, span, nonce = further
        answers: list[Grant] = []
        life, persists = 0, False
        for one in requests:
            after, granted, lives, is_taken = self.reserve(state, now, one, skew)
            if is_taken:
                state, life, persists = after, lives, True
            answers.append(Grant(*granted))
        within = None
        for _ in range(most):
            after, granted, lives, is_taken = self.reserve(state, now, (1, within, nonce), skew)
            if not is_taken:
                break
            state, life, persists = after, lives, True
            answers.append(Grant(*granted))
            if within is None:
                within = answers[-1].wait_us + span
        return state, (self.confirm(state, now, skew), tuple(answers)), life, persists

    def cancel_many(self, state: Any, now: int, grants: Sequence[Grant], skew: int = 0) -> Stepped[Any, int]:
        """Give back unused slots, from the last to the first, so that the tail retracts over them.

        A slot that has passed keeps its place but is settled at a cost of 0. Returns how many were given
        back.
        """
        count, life, persists = 0, 0, False
        for grant in reversed(grants):
            is_back: int
            after, is_back, lives, keeps = self.cancel(state, now, grant, skew)
            if not is_back:
                after, is_back, lives, keeps = self.settle(state, now, (grant, 0, 0), skew)
            if keeps:
                state, life, persists = after, lives, True
            count += bool(is_back)
        return state, count, life, persists

    def slots(self, span: int) -> int:
        """How many slots of cost 1 leave in a span that only the pace limits."""
        return span * self.q // self.p

    def leaves_by(self, grant: Grant) -> int:
        """Until when, on the queue's own time, a slot may still be used without coming too close to the next.

        With a burst, a call may leave before its place on the grid begins; at the beginning it merely leaves
        the burst unused. Under constraints, a departure is charged at its exact instant.
        """
        due = grant.due_us
        return due if self.constraints.algorithms or not self.paced else max(due, grant.start // self.q)

    # holding

    @property
    def is_held(self) -> bool:
        """Whether an operator holds it."""
        return self.held_until_us > 0

    def held_us(self, civil_us: int) -> int:
        """How long an operator's hold lasts if it begins at this civil time; 0 if there is none."""
        return max(0, min(HELD_US, self.held_until_us + NOTICE_US - civil_us)) if self.is_held else 0

    def hold(
        self, state: Line | None, now: int, length: int, nonce: int, skew: int = 0
    ) -> Stepped[Line, int]:
        """Hold departures until `now + length`; a longer hold stays. Returns the hold's length from now."""
        line: Line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        tail, newest, generation, number, until, shift, book, parts = line
        end = now + length
        if end <= until:
            return line, until - now, 0, False
        tail = max(tail, self._idle(line_time(line, now)))
        first = max(now, until) - shift
        if parts and self.constraints.save_nothing:
            book, first = self._before_hold(line, now, end)
        elif until <= now:
            book = _with_base(book, UNKNOWN)
        shift = max(shift, end - first)
        parts = self._shifted(line, first, shift, now, skew)
        held = (tail, newest, generation, number, end, shift, book, parts)
        return held, length, self._life(held, now, skew), True

    def _idle(self, at: int) -> int:
        """The tail of an idle queue that is held, moved on by the burst: when the hold ends, the queue must
        not send at once what it has saved.
        """
        return at * self.q + self.p * (self.burst - 1)

    def _before_hold(self, line: Line, now: int, end: int) -> tuple[Book, int]:
        """The book under a hold until `end`, and the first departure that the hold has to move, as far as
        known: a call that waits longer for one of the limits is not moved.
        """
        _, newest, _, _, until, shift, book, parts = line
        base, pauses = paused(book)
        rigid, at, held = max(now, until) - shift, line_time(line, now), until > now
        if held and base < 0:
            return book, rigid
        # A call that is due at this very instant may not have left yet.
        if newest < at:
            first = end - shift
        else:
            first = max([rigid, *(following for left, following in pauses if left < at)])
        base = base if held else shift if first > rigid else -1
        return (*opened_book(book, parts)[:5], (base, pauses)), first

    def resume(
        self, state: Line | None, now: int, notice: int, skew: int = 0, *, whatever_fits: bool = False
    ) -> Stepped[Line | None, int]:
        """End a hold `notice` from now, if it would last longer. Returns the hold's length from now.

        Time stands still for a late call until its end, or the next call would be next to it. And calls that
        were put off to a later window stay held, unless `whatever_fits`, if the one in which they would leave
        has no room for them.
        """
        if state is None:
            return None, 0, 0, False
        tail, newest, generation, number, until, shift, book, parts = state
        end = max(now + notice, stands_until(book))
        if until <= end:
            return state, max(0, until - now), 0, False
        base, stood = paused(book)[0], until - shift
        wanted = until - end if base < 0 else min(until - end, shift - base)
        if newest >= stood and not whatever_fits:
            moved = self._shift(state, stood, -wanted, now)
            back = self.constraints.sooner(parts, moved, (shift, skew, now))
            wanted, end = back, end if back == wanted else until - back
        shift -= wanted
        parts = self._shifted(state, stood, shift, now, skew)
        parts = self.constraints.resumed(parts, end - shift, newest, shift)
        freed = (tail, newest, generation, number, end, shift, book, parts)
        return freed, end - now, self._life(freed, now, skew), True

    def mark(
        self, state: Line | None, now: int, length: int, nonce: int, skew: int = 0
    ) -> Stepped[Line, int]:
        """Mark the key because a part of it is held; a longer mark stays. Returns the mark's length."""
        line: Line = state or (0, 0, nonce, 0, 0, 0, (), self.constraints.cold)
        mark = marked(line[6])
        if now + length <= mark:
            return line, mark - now, 0, False
        after = _remarked(line, now + length)
        return after, length, self._life(after, now, skew), True

    # looking

    def outlook(self, state: Line | None, now: int, calls: int, cost: int, skew: int) -> tuple[int, int]:
        """How long until the first and the last of `calls` more calls would leave."""
        if self.constraints.algorithms:
            return self._outlook_under(
                state or (0, 0, 0, 0, 0, 0, (), self.constraints.cold), now, calls, cost, skew
            )
        if not self.paced:
            calls = 1  # the others leave with it
        waits: list[int] = []
        after = state
        before = -1
        while len(waits) < calls:
            if waits and after is not None and after[0] > before:
                # No gap was wide enough: from here on, slots follow the plain grid.
                last = after[0] + self.p * (cost * (calls - len(waits)) - max(self.burst, cost))
                waits.append(max(0, -(-last // self.q) + after[5] - now))
                break
            before = -1 if after is None else after[0]
            after, granted, _, _ = self.reserve(after, now, (cost, _HOWEVER_LONG_US, 0), skew)
            waits.append(Grant(*granted).wait_us)
        return waits[0], max(waits)

    def leaves(self, state: Line | None, now: int, skew: int) -> Iterator[Leaf]:
        """The single limits that hold in addition to the pace.

        Time stands still during a hold, so the limits are shown as they will be when it ends.
        """
        constraints = self.constraints
        if not constraints.algorithms:
            return
        until, shift, book, states = (0, 0, (), constraints.cold) if state is None else state[4:]
        at = max(now, until) - shift
        if book:
            # A free place is not charged.
            states = self.places.uncharged(book[0], states, at, (shift, skew, now))
        for algorithm, own in zip(constraints.algorithms, states, strict=True):
            real, ahead = timeline(algorithm, (shift, skew, now))
            yield from algorithm.leaves(own, at + real, ahead)

    def waiting(self, state: Any, now: int) -> int | None:
        """How many slots are taken whose departure lies ahead; None if the state does not tell."""
        if state is None:
            return 0
        held = state[4] > now
        return self.slots_ahead(state, line_time(state, now), held=held)

    def slots_ahead(self, line: Line, at: int, *, held: bool) -> int | None:
        """`waiting`, at an instant of the queue's own time. A call that costs 5 is five slots.

        Under a plain pace they are the intervals between `at` and the tail, without the burst, which leaves
        before its place begins, and without gaps. Constraints leave room between slots that the grid does not
        show: then only the newest departure tells whether any slot lies ahead.
        """
        tail, newest, _, _, _, _, book, _ = line
        if self.constraints.algorithms or not self.paced:
            return 0 if newest < at + (not held) else None
        # A call that leaves at this very instant does not wait, unless the queue is held.
        soonest = at * self.q + self.p * (self.burst - 1) + (not held)
        free = slots.gaps_slots(book[0], soonest, self.p) if book else 0
        return max(0, (tail - soonest) // self.p - free)

    def taken_since(self, line: Any, before: Any) -> int | None:
        """How many slots were taken since an earlier state of the key, including those that were given back.

        Settlements take numbers from the same sequence, so those that the queue remembers are subtracted:
        None if it may have forgotten some. If a new life of the key has begun, only its slots count.
        """
        _, _, generation, number, _, _, book, _ = line
        since = before[3] if before is not None and before[2] == generation else 0
        settled = slots.settled_since(book[1], generation, since) if book else 0
        return None if settled == slots.MOST_SAID else max(0, number - since - settled)

    def decision(self, granted: Granted) -> Decision:
        """The answer to a reservation as a gate's Decision: how much of the burst is used and left."""
        _, wait, departs_at, _, refusal, _, _, _, _, end, due, undo, *_ = granted
        if refusal is not None:
            return refusal
        now, after = departs_at - wait, max(end, undo[0])
        drained = (now - departs_at + due) * self.q
        current = max(0, -((drained - after) // self._width(1)))
        full = -(-after // self.q) + departs_at - due
        return Decision(True, self.burst, current, max(0, self.burst - current), full, 0, delay_us=wait)

    def adopt(self, state: Line, writer: Any, now: int, skew: int = 0) -> Line:
        """Adopt the line of a queue with other limits: tail, hold and mark continue, grants become void.

        If an operator has set one of the two queues' limits, waiting calls move instead.
        """
        if self.held_until_us < writer.held_until_us:
            is_other = self.is_off or self.constraints != writer.constraints
            state = writer.resume(state, now, NOTICE_US, skew, whatever_fits=is_other)[0]
        if not self.constraints.algorithms:
            state = writer.stopped(state, now)
        tail, newest, generation, number, until, shift, book, parts = state
        at, ahead = line_time(state, now), (shift, skew, now)
        free, left, mark, changes, stands, (base, pauses) = opened_book(book, parts)
        if parts and any(free):
            parts = writer.places.uncharged(free, parts, at, ahead)
        is_idle = tail <= at * writer.q and newest < at
        if self.is_off:
            # Without limits, no new call lines up behind the waiting ones.
            parts, newest = writer.constraints.brought(parts, at, ahead), min(newest, at)
        last = max(at, newest)
        if is_idle or not (self.is_set or writer.is_set):
            kept = self.constraints.adopt(parts, writer.constraints, last, ahead)
            position = -(-tail * self.q // writer.q)
            return position, newest, generation + 1, 0, until, shift, unused(book, kept), kept
        pivot = at + max(0, NOTICE_US - max(0, until - now))
        if changes:
            # So long after the last change, calls are as far apart as before that one.
            _, last_pivot, *_, last_at = changes[-1]
            pivot = max(pivot, min(last_pivot, last_at + NOTICE_US))
        # A pause that is longer than the dearest call makes is one until the next window or day.
        longest = END_US if self.is_off else writer.slot_us * writer.max_cost
        pauses = tuple([pause for pause in pauses if pause[1] - pause[0] > longest])
        pivot = max([pivot, *(following for before, following in pauses if before <= pivot)])
        move = self._move(writer, generation, pivot, at)
        kept = self.constraints.adopt(parts, writer.constraints, last, ahead)
        kept = self.constraints.rescheduled(kept, last, move.instant, ahead)
        if parts or kept:
            free = NONE if kept else ()
        free, left = move.given_back(free, left)
        pauses = tuple([(move.instant(before), move.instant(following)) for before, following in pauses])
        pause = (base, pauses if kept else ())
        opened = (free, left, mark, (*changes, move)[-slots.MOST_MOVES :], stands, pause)
        return move.place(tail), move.instant(newest), generation + 1, number, until, shift, opened, kept

    def _move(self, writer: Any, generation: int, pivot: int, at: int) -> Move:
        """How calls move that wait by the limits of `writer`.

        Further limits that count in windows have counted their slots, and allow none closer together: so
        these calls only move later. Calendar quotas count them wherever they move.
        """
        before, since = (writer.p, writer.q), (self.p, self.q)
        limits = (*writer.constraints.algorithms, *self.constraints.algorithms)
        is_bound = not all(isinstance(limit, Quota) and limit.civil and not limit.spread for limit in limits)
        is_sooner = self.p * writer.q < writer.p * self.q
        bursts = writer.burst, self.burst
        if self.is_off and limits:
            before, since, bursts = (slots.AT_ONCE * writer.q, writer.q), (1, self.q), (1, 1)
        elif not writer.paced or (is_bound and is_sooner):
            # Calls keep their distances in time.
            before, since, bursts = (writer.q, writer.q), (self.q, self.q), (1, 1)
        return Move(generation, pivot, *before, *since, *bursts, at)

    def follow(self, state: Line | None, now: int, skew: int = 0) -> Stepped[Line | None, tuple[Any, ...]]:
        """`confirm`, and how waiting calls have moved; then whose numbers that are. Keeps what is adopted."""
        if state is None:
            return None, (*self.confirm(None, now), (), self), 0, False
        answer = (*self.confirm(state, now), self._changes(state), self)
        return state, answer, self._life(state, now, skew), True

    def _changes(self, state: Any) -> Moves:
        book: Book = state[6]
        # A store may have kept them as plain numbers.
        return tuple([Move(*change) for change in book[3]]) if book else ()

    # inside

    def _outlook_under(self, line: Line, now: int, calls: int, cost: int, skew: int) -> tuple[int, int]:
        """`outlook` under constraints."""
        line = (self._tail_at(line, now), *line[1:])
        at = max(now, line[4]) - line[5]
        if line_time(line, now) < at:
            # The first call may make time stand still.
            after, *_ = self.reserve(line, now, (cost, _HOWEVER_LONG_US, 0), skew)
            shift = after[5] if after else line[5]
            line, at = (*line[:5], shift, *line[6:]), line[4] - shift
        tail, newest, generation, number, until, shift, book, parts = self._swept(line, at, now, skew)
        free, ahead = book[0] if book else NONE, (shift, skew, now)
        dues: list[int] = []
        while len(dues) < calls and any(free) and (given := self.places.first(free, cost)):
            free, (_, _, due, units, _, receipts) = given
            parts = self.constraints.refund(parts, due, units - cost, receipts, ahead)
            dues.append(due)
        rest = calls - len(dues)
        if rest and (prospects := self.constraints.prospects(parts, cost, ahead)) is not None:
            lead = self.p * max(0, self.burst - cost)
            pace = Pace(at, newest, tail, self.q, self._width(cost), lead, self.paced)
            dues += departures(pace, prospects, cost, rest)
        elif rest:
            if rest > MOST_STEPS:
                raise unforeseeable(calls, MOST_STEPS)
            after = (tail, newest, generation, number, until, shift, (), parts)
            for _ in range(rest):
                after, granted, _, _ = self.reserve(after, now, (cost, _HOWEVER_LONG_US, 0), skew)
                dues.append(Grant(*granted).due_us)
        return dues[0] + shift - now, max(dues) + shift - now

    def _reserve_marked(
        self, line: Line, now: int, request: Request, skew: int
    ) -> Stepped[Line | None, Granted]:
        """`reserve` on a marked key: keeps the mark, and tells the caller to check further."""
        mark = marked(line[6])
        after, granted, life, is_taken = self.reserve(_remarked(line, now), now, request, skew)
        grant = Grant(*granted)._replace(held=True)
        if after is None or not is_taken:
            return line, grant, 0, False
        return _remarked(after, mark), grant, max(life, mark - now), True

    def _reserve_under(
        self, line: Line, now: int, request: Request, skew: int, on_grid: int
    ) -> Stepped[Line, Granted]:
        """`reserve` under constraints, which may move the departure off the grid."""
        cost, max_wait, _ = request
        tail, newest, generation, number, until, shift, book, parts = line
        held, ahead, q = until > now, (shift, skew, now), self.q
        soonest = on_grid if on_grid > newest else newest
        due, spent = self.constraints.departure(parts, soonest, cost, ahead)
        at = line_time(line, now)
        if held and due + shift < until:
            # The first call that the hold delays: from here on, the hold moves the line.
            at, shift = due, until - due
            line, ahead = (*line[:5], shift, *line[6:]), (shift, skew, now)
            due, spent = self.constraints.departure(parts, due, cost, ahead)
        wait = due + shift - now
        if (spent is not None) if max_wait is None else wait > max_wait:
            return line, self._refused(spent, line, now, wait, request), 0, False
        anchor = (due if due > on_grid else at) * q
        start = tail if tail > anchor else anchor
        after = start + (self.p * cost if self.paced else 1)
        parts, receipts, life = self.constraints.charge(parts, at, due, cost, ahead)
        undo = (tail, newest)
        number += 1
        if due > at or held:
            book = self._pausing(book, parts, newest, at, due)
        line = (after, due, generation, number, until, shift, book, parts)
        lives = (self._clears(line) if book else after if q == 1 else -(-after // q)) - at
        at_us = due + shift
        place = (generation, number, start, after, due, undo, receipts, None)
        granted = (True, wait, at_us, held, None, cost, *place)
        return line, granted, (lives if lives > life else life) + at + shift - now, True

    def _pausing(self, book: Book, parts: States, newest: int, at: int, due: int) -> Book:
        """The book after a call that waits, with the pause before it, if there is one."""
        base, before = paused(book)
        # If calls were given back, this one may come before their pauses.
        pauses = [pause for pause in before if at < pause[1] <= due]
        if due - newest > (self.slot_us if self.paced else 0):
            pauses.append((newest, due))
        if len(pauses) > slots.MOST_PAUSES:
            pauses.remove(min(reversed(pauses), key=lambda pause: pause[1] - pause[0]))
        return (*opened_book(book, parts)[:5], (base, tuple(pauses))) if pauses or before else book

    def _tail_at(self, line: Line, now: int) -> int:
        """The tail for a newcomer. If the last hold has moved no call, the line's saved burst is taken away
        here: see `_idle`.
        """
        tail, _, _, _, until, shift, _, _ = line
        return max(tail, self._idle(min(now, until) - shift)) if has_moved_none(line) else tail

    def stopped(self, line: Line, now: int) -> Line:
        """The line with time standing still until its hold ends, if it has gone on in the hold so far."""
        if not has_moved_none(line):
            return line
        _, newest, generation, number, until, shift, book, parts = line
        shift += max(0, until - now)
        book = _with_base(book, UNKNOWN)
        return self._tail_at(line, now), newest, generation, number, until, shift, book, parts

    def _clears(self, line: Line) -> int:
        """When the line is empty."""
        return -(-self._tail_at(line, line[4]) // self.q)

    def _width(self, cost: int) -> int:
        return self.p * cost if self.paced else 1

    def _refused(self, spent: Decision | None, line: Line, now: int, wait: int, request: Request) -> Grant:
        cost, max_wait, _ = request
        tail, until, shift = line[0], line[4], line[5]
        if spent is not None:
            told = spent._replace(retry_after_us=wait, reset_at_us=spent.reset_at_us + shift)
        else:
            full = -(-tail // self.q) + shift
            told = Decision(False, self.burst, self.burst, 0, full, wait - (max_wait or 0))
        return Grant.refused(wait, now, held=until > now, told=told, cost=cost)

    def _swept(self, line: Line, at: int, now: int, skew: int) -> Line:
        """The line without places that have passed; their charges are given back."""
        tail, newest, generation, number, until, shift, book, parts = line
        if not book or not any(book[0]):
            return line
        free = book[0]
        if parts:
            free, parts = self.places.swept(free, parts, at, (shift, skew, now))
        else:
            free = slots.gaps_after(free, at * self.q)
        return tail, newest, generation, number, until, shift, (free, *book[1:]), parts

    def _moved_in(self, line: Line, now: int, request: Request, skew: int) -> Stepped[Line, Granted] | None:
        """Give a newcomer a place that was given back; None if none suits."""
        cost, max_wait, _ = request
        tail, newest, generation, number, until, shift, book, parts = line
        p, q = self.p, self.q
        at = line_time(line, now)
        book = opened_book(book, parts)
        free = book[0]
        if parts:
            given = self.places.first(free, cost)
            if given is None:
                return None
            free, (start, end, due, units, undo, receipts) = given
            parts = self.constraints.refund(parts, due, units - cost, receipts, (shift, skew, now))
        else:
            # A gap that begins within the current microsecond has not passed.
            width = self._width(cost)
            found = slots.gaps_room(free, (at - 1) * q + 1, width)
            if found is None:
                return None
            start, end = found, found + width
            due = max(at, -(-(start - p * max(0, self.burst - cost)) // q))
            free, undo, receipts = slots.gaps_taken(free, start, end), (tail, newest), ()
        wait = due + shift - now
        if max_wait is not None and wait > max_wait:
            return line, self._refused(None, line, now, wait, request), 0, False
        number += 1
        after = (tail, newest, generation, number, until, shift, (free, *book[1:]), parts)
        granted = (True, wait, due + shift, until > now, None, cost, generation, number, start, end, due)
        return after, (*granted, undo, receipts, None), self._life(after, now, skew), True

    def _life(self, line: Line, now: int, skew: int) -> int:
        """How long the line differs from a cold one."""
        tail, _, _, _, until, shift, book, parts = line
        ends = -(-tail // self.q)
        if parts:
            at = line_time(line, now)
            ends = max(self._clears(line), at + self.constraints.lasts(parts, at, (shift, skew, now)))
        return max(0, ends + shift - now, until - now, marked(book) - now)


def paced_of(rates: Iterable[Rate], pace: str) -> Rate | None:
    """The rate that paces a queue, which is the one with the shortest period; None without a pace."""
    return min(rates, key=lambda rate: rate.period_us, default=None) if pace == "smooth" else None


def has_moved_none(line: Line) -> bool:
    """Whether the last hold has moved no call so far: only if `save_nothing`; else a hold moves all calls."""
    return bool(line[7]) and paused(line[6])[0] == line[5]


def line_time(line: Line, now: int) -> int:
    """The queue's own time. It goes on in a hold that has moved no call yet."""
    until, shift = line[4:6]
    return (now if until <= now or has_moved_none(line) else until) - shift


def _with_base(book: Book, base: int) -> Book:
    """The book with the shift that the hold began with; UNKNOWN if there is no hold that could be ended."""
    return (*book[:5], (base, *book[5][1:])) if book else book


def opened_book(book: Book, parts: States) -> tuple[Any, slots.Gone, int, Moves, int, slots.Pauses]:
    """The book of a line, or an empty one."""
    return book or (NONE if parts else (), slots.NOTHING_GONE, 0, (), 0, slots.NO_PAUSES)


def standing(book: Book, parts: States, until: int) -> Book:
    """The book of a line whose time stands still for a late call: no hold is ended sooner."""
    return (*opened_book(book, parts)[:4], until, paused(book))


def stands_until(book: Book) -> int:
    """Until when time stands still for a late call."""
    return book[4] if book else 0


def paused(book: Book) -> slots.Pauses:
    """Where the line pauses, as far as that is known."""
    return book[5] if book else slots.NO_PAUSES


def marked(book: Book) -> int:
    """Until when a part of the key is held."""
    return book[2] if book else 0


def _remarked(line: Line, mark: int) -> Line:
    tail, newest, generation, number, until, shift, book, parts = line
    book = opened_book(book, parts)
    book = (*book[:2], mark, *book[3:])
    return tail, newest, generation, number, until, shift, book, parts


def unused(book: Book, parts: States) -> Book:
    """A book for other limits: only the mark, until when time stands still, and the shift before a hold."""
    base = paused(book)[0]
    if not book or not (book[2] or book[4] or base >= 0):
        return ()
    return (*opened_book((), parts)[:2], book[2], (), book[4], (base, ()))
