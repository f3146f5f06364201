"""Places: slots given back in the middle of a queue with constraints.

A place is taken as it is, with its departure and charges, and stays charged until a call takes it, the tail
retracts over it, or its instant passes. Most calls cost 1, and everything about their places follows from
their positions: they are kept in rows, and rows that touch are merged. Every other place is kept by itself.

Gaps: what is free in the middle of a queue that only paces. All parts of such a grid are equal: gaps that
touch are merged, and a newcomer takes the beginning of the first gap that is wide enough.

Gone: the slots of a line that were given back or settled, so that a repetition does nothing. Every
reservation has a serial number. Once its slot is given back or settled, the number is gone, and a grant with
that number has no effect any more. A settled slot gets a new number, which the caller receives. A caller that
missed the answer repeats the settlement with the old number: for the latest settlements, the queue knows the
number that followed and the slot's cost since then. Numbers are exact while their slots wait. Of slots that
have left, the oldest are forgotten first, and then every slot that left up to that instant counts as gone. So
forgetting may refuse a late give-back but never creates capacity.

Grant: the slot that a queue has given to one call, in plain values that another process can use.

Moves: where waiting calls go when an operator changes a limit while they wait.

A granted slot is a place on the grid of the old limits. A Move maps it to the grid of the new ones: up to the
`pivot` nothing changes, and from there on the distance to the pivot is stretched or shortened by the ratio of
the intervals. So calls keep their order, and calls that were n intervals apart are exactly n new intervals
apart. The pivot lies a little ahead, so that every waiting call learns of the change before it takes effect.

With a burst, a call may leave earlier than its place, by its lead: the intervals that the burst allows. So a
place that is a full lead later than its departure is so after the change as well, by the new interval and the
new burst: then newcomers leave behind all waiting calls. A place that is less far ahead is a part of the
burst in use, which stays the same number of calls.

A key remembers its last moves. A call that waits has a grant of an earlier generation, and follows the moves
since then, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from typing import Any, Final, NamedTuple, TypeAlias

from shapekit.algorithms import rows as pages
from shapekit.algorithms.base import END_US
from shapekit.algorithms.queue.constraints import Ahead, Call, Constraints, Receipts, States
from shapekit.algorithms.rows import Pages, mapped
from shapekit.decision import Decision
from shapekit.rate import Value

MOST = 2**16
"""How many rows, other places and gaps are remembered, and a quarter of how many slots may lie in rows.
Beyond that, a place is not kept but refunded at once, and the middle one of the gaps is dropped.
"""
_ROW, _SINGLE, _UNDO, _GAP = 7, 6, 2, 2

Row: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Start, number of slots, departure of the first; the tail and the newest departure before the first; and how
far the time of aligned limits, and civil time, were ahead when the slots were charged.
"""
Single: TypeAlias = tuple[int, int, int, int, tuple[int, int], Receipts]
"""Start, end, departure, cost; the tail and the newest departure before it; and its receipts."""
Free: TypeAlias = tuple[Pages, Pages]
"""Rows, and single places."""

NONE: Free = ((), ())

MOST_LEFT = 256
"""How many rows of slots that have left are remembered."""
MOST_ROWS = 2**16
"""How many rows of waiting slots are kept: in twice as many slots, no order of giving back makes more."""
MOST_SAID = 64
"""How many settlements are kept whose answers may have been lost."""
_GONE, _WORD = 3, 5
_ONE_PROCESS = 2**32
"""Nonces closer than this are from one process, which counts them up."""

Word: TypeAlias = tuple[int, int, int, int, int]
"""A settlement: the generation and number in the caller's grant, the number that followed, the cost since
then, and the nonce that came with it.
"""
Gone: TypeAlias = tuple[Pages, int, tuple[Word, ...]]
"""For each row of numbers that are gone, the first, the last and the latest departure; then the departure up
to which all slots count as gone; and the latest settlements.
"""

NOTHING_GONE: Gone = ((), -1, ())

MOST_PAUSES = 16
"""How many pauses ahead are remembered; beyond that, the shortest one is forgotten."""

Pauses: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""Under constraints: the shift that the last hold began with, -1 if that does not matter; and the pauses
ahead: pairs of departures between which no call leaves.
"""
NO_PAUSES: Pauses = (-1, ())


class Grant(NamedTuple):
    """The answer to a reservation, with everything that is needed to confirm, cancel or settle it."""

    accepted: bool
    wait_us: int
    """How long until the departure; for a refusal, the wait that was refused."""
    departs_at_us: int
    """The departure, on the store's clock."""
    held: bool
    """Whether the key, or a part of it, was held when the slot was granted."""
    refusal: Decision | None
    """The decision that refused; `binding` names a spent quota, and is None if only the wait was too long."""
    cost: int
    generation: int
    """The life of the key; a reset starts a new one. Negative if the slot is not in the primary store."""
    version: int
    """The slot's number on the line; it changes with each settlement."""
    start: int
    """Where the call begins on the grid."""
    end: int
    """Where the next call can begin."""
    due_us: int
    """The departure, on the queue's own time."""
    undo: tuple[int, int]
    """The tail and the newest departure before this call."""
    receipts: Receipts
    queue: Any = None
    """The queue that granted the slot, if an operator has set its limits; None for the shaper's own."""

    @classmethod
    def refused(cls, wait_us: int, now: int, *, held: bool, told: Decision, cost: int) -> Grant:
        """The answer to a call that gets no slot."""
        return cls(False, wait_us, now + wait_us, held, told, cost, 0, 0, 0, 0, 0, (0, 0), ())


Granted: TypeAlias = tuple[
    bool, int, int, bool, Decision | None, int, int, int, int, int, int, tuple[int, int], Receipts, Any
]
"""A Grant as a plain tuple, which the hot path returns: names would make it slower by a tenth."""
ACCEPTED: Final = 0
WAIT_US: Final = 1
DEPARTS_AT_US: Final = 2
REFUSAL: Final = 4
COST: Final = 5
GENERATION: Final = 6
QUEUE: Final = 13
"""The indexes of the fields that the hot path reads."""

Request: TypeAlias = tuple[int, int | None, int]
"""The cost, the longest wait, and a nonce that names the generation if this is the key's first call."""


class Places(Value):
    """The places of one queue: at slots of its grid, each with a departure that follows from its position."""

    __slots__ = fields = ("_constraints", "_lead", "_paced", "_q", "_slot")

    _constraints: Constraints
    _lead: int
    _paced: bool
    _q: int
    _slot: int

    def __init__(self, constraints: Constraints, slot: int, lead: int, q: int, *, paced: bool) -> None:
        self._fill(_constraints=constraints, _lead=lead, _paced=paced, _q=q, _slot=slot if paced else 1)

    def given_back(self, free: Free, grant: Grant, number: int) -> Free | None:
        """The free places with one more; None if there are too many. `number` is the latest of the line."""
        rows, singles = free
        place = (grant.start, grant.end, grant.due_us, grant.cost, grant.undo, grant.receipts)
        offsets = self._offsets(place)
        if offsets is None:
            if pages.count(singles) >= MOST:
                return None
            low, high, near, index = pages.around(singles, place[0])
            return rows, pages.put(singles, low, high, (*near[:index], place, *near[index:]))
        start, _, due, _, undo, receipts = place
        low, high, near, index = pages.around(rows, start)
        left = right = index
        for other in near[max(0, index - 1) : index + 1]:
            if self._constraints.are_alike(due, receipts, other[5:]):
                offsets = other[5], other[6]
                break
        row: Row = (start, 1, due, undo[0], undo[1], offsets[0], offsets[1])
        if index and (joined := self._joined(near[index - 1], row)):
            left, row = index - 1, joined
        if index < len(near) and (joined := self._joined(row, near[index])):
            right, row = index + 1, joined
        kept = pages.put(rows, low, high, (*near[:left], row, *near[right:]))
        is_full = len(kept) * pages.PAGE > MOST and pages.count(kept) > MOST
        # No line has more slots than numbers.
        is_full = is_full or (number > 4 * MOST and _slots(kept) > 4 * MOST)
        return None if is_full else (kept, singles)

    def first(self, free: Free, cost: int) -> tuple[Free, Single] | None:
        """The first place with at least this cost, after the places that are left without it."""
        rows, singles = free
        single: Single | None = next((one for page in singles for one in page if one[3] >= cost), None)
        if cost == 1 and rows and (single is None or rows[0][0][0] < single[0]):
            return (self._without(rows, 1), singles), self._stretch(rows[0][0], 1)
        return None if single is None else ((rows, pages.without(singles, single)), single)

    def retracted(
        self, free: Free, undo: tuple[int, int], parts: States, at: int, ahead: Ahead
    ) -> tuple[Free, tuple[int, int], States]:
        """Retract the tail over the places that end at it, and give back their charges."""
        rows, singles = free
        while True:
            tail = undo[0]
            row = rows[-1][-1] if rows else None
            if row and row[0] + row[1] * self._slot == tail:
                rows, undo = pages.without_last(rows), row[3:5]
                parts = self._refunded(parts, row, row[1], ahead)
            elif singles and singles[-1][-1][1] == tail:
                _, _, due, cost, undo, receipts = singles[-1][-1]
                singles = pages.without_last(singles)
                parts = self._constraints.refund_last(parts, due, cost, receipts, ahead, undo[1])
            else:
                return (rows, singles), undo, parts

    def swept(self, free: Free, parts: States, at: int, ahead: Ahead) -> tuple[Free, States]:
        """The places without those that have passed, whose charges are given back.

        If the last of these ends ahead of `at`, it stays, merged with those that touch it, at no cost: the
        tail may still retract over it.
        """
        rows, singles = free
        gone: list[Single] = [*takewhile(lambda place: place[2] < at, chain.from_iterable(singles))]
        for _, _, due, cost, _, receipts in gone:
            parts = self._constraints.refund(parts, due, cost, receipts, ahead, "left")
        passed = gone.copy()
        while rows and (count := self._passed(row := rows[0][0], at)):
            parts = self._refunded(parts, row, count, ahead, "left")
            passed.append(self._stretch(row, count))
            rows = self._without(rows, count)
        kept: list[Single] = []
        for start, end, due, _, undo, receipts in sorted(passed, key=lambda place: place[:2]):
            if kept and kept[-1][1] == start:
                start, undo = kept[-1][0], kept[-1][4]  # noqa: PLW2901
            kept = [(start, end, due, 0, undo, receipts)] if end > at * self._q else []
        if kept != gone:
            singles = pages.paged([*kept, *pages.flat(singles)[len(gone) :]])
        return (rows, singles), parts

    def uncharged(self, free: Free, parts: States, at: int, ahead: Ahead) -> States:
        """The states of the limits without the charges of free places."""
        rows, singles = free
        for row in reversed(pages.flat(rows)):
            parts = self._refunded(parts, row, row[1], ahead)
        for _, _, due, cost, _, receipts in reversed(pages.flat(singles)):
            parts = self._constraints.refund(parts, due, cost, receipts, ahead)
        return parts

    def inspect(self, free: Any) -> None:
        """Raise if places from a store are malformed or too many."""
        rows, singles = free
        pages.inspect(rows, _ROW, MOST)
        too_short = any(row[1] < 1 for row in pages.flat(rows))
        # The places that have passed leave one more.
        if too_short or _slots(rows) > 4 * MOST or pages.count(singles) > MOST + 1:
            raise ValueError("malformed places, or too many")
        for *numbers, undo, receipts in pages.flat(singles):
            sum((*numbers, *undo, len(receipts)))
            if len(numbers) != _SINGLE - 2 or len(undo) != _UNDO:
                raise ValueError("malformed place")

    # inside

    def _offsets(self, place: Single) -> tuple[int, int] | None:
        """How far time was ahead when the place was charged; None if a row cannot hold all of it."""
        start, end, due, cost, _, receipts = place
        if cost != 1 or end - start != self._slot:
            return None
        return self._constraints.offsets(due, receipts)

    def _due(self, row: Row, index: int) -> int:
        """The departure of a slot of the row; past the last slot, the departure that the next would have."""
        # If limits were changed, the first slot may leave before its position.
        if index == 0 or not self._paced:
            return row[2]
        return max(row[2], -((self._lead - row[0] - index * self._slot) // self._q))

    def _joined(self, row: Row, other: Row) -> Row | None:
        """The two rows as one, if the other one continues the row."""
        start, count = row[:2]
        follows = (
            start + count * self._slot,
            self._due(row, count),
            start + count * self._slot,
            self._due(row, count - 1),
            *row[5:],
        )
        if follows != (other[0], *other[2:]):
            return None
        return (start, count + other[1], *row[2:])

    def _rest(self, row: Row, count: int) -> Row:
        """The row without its first slots."""
        start = row[0] + count * self._slot
        return (start, row[1] - count, self._due(row, count), start, self._due(row, count - 1), *row[5:])

    def _stretch(self, row: Row, count: int) -> Single:
        """The first slots of a row as one place."""
        start, _, _, tail, newest, *offsets = row
        due = self._due(row, count - 1)
        receipts = self._constraints.receipts_at(due, offsets)
        return (start, start + count * self._slot, due, count, (tail, newest), receipts)

    def _without(self, rows: Pages, count: int) -> Pages:
        """The rows without the first slots of the first row."""
        row = rows[0][0]
        if count == row[1]:
            return pages.without_first(rows)
        return ((self._rest(row, count), *rows[0][1:]), *rows[1:])

    def _passed(self, row: Row, at: int) -> int:
        """How many slots of a row have passed."""
        start, count, due = row[:3]
        if due >= at:
            return 0
        if not self._paced:
            return count
        return max(1, min(count, ((at - 1) * self._q + self._lead - start) // self._slot + 1))

    def _refunded(self, parts: States, row: Row, count: int, ahead: Ahead, call: Call = "waits") -> States:
        dues = [self._due(row, index) for index in range(count)]
        return self._constraints.refund_many(parts, dues, row[5:], ahead, call)


def _slots(rows: Pages) -> int:
    return sum([row[1] for page in rows for row in page])


def gaps_after(gaps: Pages, time: int) -> Pages:
    """The gaps that have not passed."""
    while gaps and gaps[0][0][1] <= time:
        gaps = pages.without_first(gaps)
    return gaps


def gaps_room(gaps: Pages, soonest: int, width: int) -> int | None:
    """Where a newcomer begins in the first gap that is wide enough; None if there is none."""
    for page in gaps:
        for start, end in page:
            begin = max(start, soonest)
            if begin + width <= end:
                return int(begin)
    return None


def gaps_slots(gaps: Pages, soonest: int, width: int) -> int:
    """How many slots of this width are free from `soonest` on."""
    return sum(max(0, end - max(start, soonest)) // width for start, end in pages.flat(gaps))


def gaps_taken(gaps: Pages, start: int, end: int) -> Pages:
    """The gaps after a newcomer took the part from `start` to `end`."""
    low, high, near, index = pages.around(gaps, start + 1)
    last = near[index - 1][1]
    left = ((end, last),) if end < last else ()
    return pages.put(gaps, low, high, (*near[: index - 1], *left, *near[index:]))


def gaps_given_back(gaps: Pages, start: int, end: int) -> Pages:
    """The gaps with one more.

    If there are too many, the middle one is forgotten: newcomers take the first gaps, and the tail retracts
    over the last ones.
    """
    low, high, near, index = pages.around(gaps, start)
    left = right = index
    if left and near[left - 1][1] == start:
        left -= 1
        start = near[left][0]
    if right < len(near) and near[right][0] == end:
        end = near[right][1]
        right += 1
    kept = pages.put(gaps, low, high, (*near[:left], (start, end), *near[right:]))
    if len(kept) * pages.PAGE <= MOST or pages.count(kept) <= MOST:
        return kept
    return pages.without(kept, pages.flat(kept)[MOST // 2])


def gaps_retracted(gaps: Pages, start: int) -> tuple[int, Pages]:
    """The tail after it retracted over the slot at `start` and over a gap before that; and the gaps left."""
    if gaps and gaps[-1][-1][1] == start:
        return gaps[-1][-1][0], pages.without_last(gaps)
    return start, gaps


def inspect_gaps(gaps: Any) -> None:
    """Raise if gaps from a store are malformed or too many."""
    pages.inspect(gaps, _GAP, MOST)


def is_gone(gone: Gone, number: int, due: int) -> bool:
    """Whether a slot was given back or settled, or left too long ago to tell."""
    rows, floor, _ = gone
    if due <= floor or not rows:
        return due <= floor
    _, _, near, index = pages.around(rows, number + 1)
    return index > 0 and bool(number <= near[index - 1][1])


def with_slot(gone: Gone, number: int, due: int, at: int) -> Gone | None:
    """The record with one more slot; None if the slot is in it already."""
    rows, floor, words = gone
    low, high, near, index = pages.around(rows, number + 1)
    if due <= floor or (index and number <= near[index - 1][1]):
        return None
    left = right = index
    first = last = number
    if index and near[index - 1][1] + 1 == number:
        left -= 1
        first, due = near[left][0], max(due, near[left][2])
    if index < len(near) and near[index][0] == number + 1:
        right += 1
        last, due = near[index][1], max(due, near[index][2])
    rows = pages.put(rows, low, high, (*near[:left], (first, last, due), *near[right:]))
    if left == right and pages.count(rows) % MOST_LEFT == 0:
        rows, floor = _forgotten(rows, floor, at)
    return rows, floor, words


def with_word(gone: Gone, word: Word) -> Gone:
    """The record with one more settlement, which replaces an earlier one of the same grant."""
    rows, floor, words = gone
    kept = [old for old in words if old[:2] != word[:2]]
    return rows, floor, (*kept[1 - MOST_SAID :], word)


def settled_since(gone: Gone, generation: int, number: int) -> int:
    """How many of the remembered settlements came after this number."""
    return sum(word[0] == generation and word[2] > number for word in gone[2])


def last_word(gone: Gone, generation: int, number: int, nonce: int) -> tuple[int, int] | None:
    """The number that followed this one, and the slot's cost since then; None if they are not known.

    None also if the process has settled the slot once more since then: this repetition comes too late.
    """
    for *known, follows, cost, latest in gone[2]:
        if known == [generation, number]:
            return None if 0 < latest - nonce < _ONE_PROCESS else (follows, cost)
    return None


def inspect_gone(gone: Any) -> None:
    """Raise if a record from a store is malformed or too large."""
    rows, floor, words = gone
    pages.inspect(rows, _GONE, MOST_ROWS)
    if len(words) > MOST_SAID or any(len(word) != _WORD for word in words):
        raise ValueError("malformed settlements")
    sum((floor, *(number for word in words for number in word)))


def _forgotten(rows: Pages, floor: int, at: int) -> tuple[Pages, int]:
    """The rows without the older half of the slots that have left, if there are too many."""
    known = pages.flat(rows)
    departures = sorted([due for _, _, due in known if due < at])
    kept = MOST_LEFT // 2
    if len(departures) < kept:
        if len(known) < MOST_ROWS:
            return rows, floor
        # No slots that have left are there to forget: the slots that leave next can no longer be given back.
        departures, kept = sorted([due for _, _, due in known]), MOST_ROWS // 2
    floor = max(floor, departures[-kept])
    return pages.paged([row for row in known if row[2] > floor]), floor


AT_ONCE = 2**60
"""The old interval in a move that lets all calls leave at once: longer than any real one."""
MOST_MOVES = 8
"""How many moves a key remembers: a call that waits through more of them keeps the slot it was granted."""
NOTICE_US = 350_000
"""How long after a change its pivot lies: by then, every process whose calls leave soon knows of it."""
_MOVE = 9


class Move(NamedTuple):
    """One change of the limits of a queue."""

    generation: int
    """The generation of the grants that it moves; they become those of the next one."""
    pivot_us: int
    """Up to when nothing changes, on the queue's own time."""
    interval: int
    """The interval before, in units of 1/q µs; only the ratio of the two intervals matters."""
    q: int
    interval_since: int
    """The interval since then, in units of 1/q_since µs."""
    q_since: int
    burst: int
    """The burst before, which a call leaves ahead of its place by."""
    burst_since: int
    """The burst since then."""
    changed_us: int
    """When the change was made, on the queue's own time: it does not move departures before that."""

    @property
    def is_later(self) -> bool:
        """Whether the distance of calls has changed; they have then moved later."""
        return self.interval * self.q_since != self.interval_since * self.q

    def place(self, position: int) -> int:
        """Where a position on the grid is now."""
        changed, lead = self.changed_us * self.q, self.interval * (self.burst - 1)
        if not lead and self.burst_since == 1:
            return self._stretched(position)
        leaves = position - lead
        if leaves > changed:
            since = self.interval_since * (max(self.burst, self.burst_since) - 1)
            return min(self._stretched(leaves) + since, END_US * self.q_since)
        if position <= changed:
            return -(-position * self.q_since // self.q)
        used = -(-(position - changed) * self.interval_since // self.interval)
        return self.changed_us * self.q_since + used

    def stretch(self, start: int, end: int) -> tuple[int, int]:
        """Where a stretch between two positions is now: as wide as before in new intervals, or narrower.

        A higher burst moves what is ahead further on, including a stretch that the present lies in.
        """
        changed, lead = self.changed_us * self.q, self.interval * (self.burst - 1)
        if start - lead > changed or end - lead <= changed:
            return self.place(start), self.place(end)
        raised = self.interval_since * max(0, self.burst_since - self.burst)
        return self.place(max(start, changed)) + raised, self.place(end)

    def _stretched(self, position: int) -> int:
        """Where an instant in units of 1/q µs is now."""
        pivot = self.pivot_us * self.q
        if position <= pivot:
            return -(-position * self.q_since // self.q)
        beyond = -(-(position - pivot) * self.interval_since // self.interval)
        return min(self.pivot_us * self.q_since + beyond, END_US * self.q_since)

    def instant(self, at_us: int) -> int:
        """Where an instant of the queue's own time is now."""
        return -(-self._stretched(at_us * self.q) // self.q_since)

    def moved(self, grant: Grant, constraints: Constraints) -> Grant:
        """A grant of this generation as one of the next; `constraints` are those that charged it."""
        tail, newest = grant.undo
        due_us = self.instant(grant.due_us)
        if self.interval >= AT_ONCE * self.q:
            # The call keeps its order but gives nothing back: it counts anew, and its place may be taken.
            generation = grant.generation + 1
            return grant._replace(generation=generation, end=grant.start, due_us=due_us, receipts=())
        exact = grant.start - self.interval * max(0, self.burst - grant.cost)
        if grant.due_us > self.pivot_us and -(-exact // self.q) == grant.due_us:
            # The instant was rounded up: move the exact position, so that it is not rounded up twice.
            due_us = -(-self._stretched(exact) // self.q_since)
        start, end = self.place(grant.start), self.place(grant.end)
        if grant.due_us >= self.changed_us:
            start, end = self.stretch(grant.start, grant.end)
        return grant._replace(
            generation=grant.generation + 1,
            start=start,
            end=end,
            due_us=due_us,
            undo=(self.place(tail), self.instant(newest)),
            receipts=constraints.moved(grant.receipts, self.instant, later=self.is_later),
        )

    def given_back(self, free: Any, gone: Gone) -> tuple[Any, Gone]:
        """The gaps and the record of gone slots after the move; places do not survive one."""
        rows, floor, words = gone
        gaps = mapped(free, lambda gap: self.stretch(*gap))
        known = mapped(rows, lambda row: (row[0], row[1], self.instant(row[2])))
        later = tuple([(word[0] + (word[0] == self.generation), *word[1:]) for word in words])
        return gaps, (known, self.instant(floor), later)


Moves: TypeAlias = tuple[Move, ...]


def followed(grant: Grant, moves: Iterable[Move], own: Constraints) -> Grant | None:
    """The grant after all moves since it was made; None if no remembered move applies to it.

    `own` are the constraints of the shaper's own queue.
    """
    generation = grant.generation
    constraints = own if grant.queue is None else grant.queue.constraints
    for move in moves:
        if move.generation == grant.generation:
            grant = move.moved(grant, constraints)
    return None if grant.generation == generation else grant


def inspect_moves(moves: Sequence[Sequence[int]]) -> None:
    """Raise if moves from a store are malformed or too many."""
    for move in moves:
        sum(move)
        if len(move) != _MOVE or min(move[2:-1]) < 1:
            raise ValueError("malformed move")
    if len(moves) > MOST_MOVES:
        raise ValueError("too many moves")
