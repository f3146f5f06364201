"""Places: what was given back in the middle of a queue that obeys further limits.

Such a place is taken as it is, departure and charges included, and stays charged until somebody takes it,
the tail goes back over it, or its instant passes. Most calls cost 1, and all of theirs follows from where
they stand: they are kept in rows, and rows that touch are one. Every other place is kept by itself.

Gaps: what is free in the middle of a queue that only paces. There one part of the grid is as good as another:
free stretches that touch are one, and a newcomer takes the beginning of the first that is wide enough.

Gone: which slots of a line were given back or settled, so that saying it again does nothing more. Every
reservation has a serial number of its own. Once its slot is given back or settled the number is gone, and a
grant with that number moves nothing any more. A settled slot goes on under a new number, which the caller
hears. A caller who did not hear it says its word again with the old one: for the latest settlements the queue
knows the number that followed, and what the slot costs since. Numbers are exact while their slots wait. Of
slots that have left, the oldest are forgotten first: then whatever left up to that instant counts as gone, so
forgetting can refuse a late give-back and never mint.

Grant: what a queue agreed on with one call, in plain values that another process can carry on.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from shapekit._runtime.value import Value
from shapekit.algorithms import rows as pages
from shapekit.algorithms.queue.constraints import Ahead, Constraints, Receipts, States
from shapekit.algorithms.rows import Pages
from shapekit.decision import Decision

MOST = 2**16
"""Rows, other places and gaps that are remembered; beyond it a place is given back at once, and the gap in
the middle expires unused."""
_ROW, _SINGLE, _UNDO, _GAP = 7, 6, 2, 2

Row: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Where it starts, how many slots it has, the departure of the first, the tail and the newest departure
before that one, and how far time was ahead when they were charged: that of aligned limits, and civil time."""
Single: TypeAlias = tuple[int, int, int, int, tuple[int, int], Receipts]
"""From, to, its departure, its cost, the tail and the newest departure before it, and its receipts."""
Free: TypeAlias = tuple[Pages, Pages]
"""Rows, and single places."""

NONE: Free = ((), ())

MOST_LEFT = 256
"""Rows of slots that have left, which are known apart."""
MOST_ROWS = 2**16
"""Rows of slots that wait: no order of giving back makes more of them among twice as many."""
MOST_SAID = 64
"""Settlements whose answers may have been lost."""
_GONE, _WORD = 3, 5
_ONE_PROCESS = 2**32
"""Nonces that are nearer to each other are of one process, which counts them up."""

Word: TypeAlias = tuple[int, int, int, int, int]
"""The generation and number that a caller settled by, the number that followed, the cost since, and the nonce
that came with it."""
Gone: TypeAlias = tuple[Pages, int, tuple[Word, ...]]
"""Of each row of numbers that are gone the first, the last and the latest departure; the departure up to
which all slots count as gone; and the latest words."""

NOTHING_GONE: Gone = ((), -1, ())


class Grant(NamedTuple):
    """The answer to a reservation, and what is needed to confirm, cancel or settle it."""

    accepted: bool
    wait_us: int
    """How long until the departure; if refused, how long it would have been."""
    departs_at_us: int
    """The departure, on the store's clock."""
    held: bool
    """Whether the queue was held when this was decided."""
    refusal: Decision | None
    """Why it was refused; `binding` names a budget that is spent, and nothing where it is the wait alone."""
    cost: int
    generation: int
    """Which life of the key this is; a reset starts another. Negative if nothing was taken at all."""
    version: int
    """Its number on the line: another one after each settlement that was heard."""
    start: int
    """Where on the grid the call stands."""
    end: int
    """Where the next call can stand."""
    due_us: int
    """The departure, on the queue's own time."""
    undo: tuple[int, int]
    """The tail and the newest departure before this call."""
    receipts: Receipts

    @classmethod
    def refused(cls, wait_us: int, now: int, *, held: bool, told: Decision, cost: int) -> Grant:
        """What somebody is told who gets nothing."""
        return cls(False, wait_us, now + wait_us, held, told, cost, 0, 0, 0, 0, 0, (0, 0), ())


Granted: TypeAlias = tuple[
    bool, int, int, bool, Decision | None, int, int, int, int, int, int, tuple[int, int], Receipts
]
"""A Grant without its names: what the path of every admitted call returns, for names cost it a tenth."""
ACCEPTED: Final = 0
WAIT_US: Final = 1
"""Where that has what every call looks at."""

Asked: TypeAlias = tuple[int, int | None, int]
"""The cost, the longest wait, and a nonce that names the generation if this is the key's first call."""


class Given(NamedTuple):
    """A place for a newcomer, and what is left."""

    free: Free
    single: Single


class Places(Value):
    """Where the places of one queue lie: on slots of its grid, each at an instant that follows from it."""

    __slots__ = fields = ("_constraints", "_lead", "_paced", "_q", "_slot")

    _constraints: Constraints
    _lead: int
    _paced: bool
    _q: int
    _slot: int

    def __init__(self, constraints: Constraints, slot: int, lead: int, q: int, *, paced: bool) -> None:
        self._fill(_constraints=constraints, _lead=lead, _paced=paced, _q=q, _slot=slot if paced else 1)

    def given_back(self, free: Free, grant: Grant) -> Free | None:
        """With one place more; None if there are too many."""
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
        return None if is_full else (kept, singles)

    def first(self, free: Free, cost: int) -> Given | None:
        """The first place that bears such a cost."""
        rows, singles = free
        single: Single | None = next((one for page in singles for one in page if one[3] >= cost), None)
        if cost == 1 and rows and (single is None or rows[0][0][0] < single[0]):
            row = rows[0][0]
            rest = self._without(rows, 1)
            start, _, due, tail, newest, *offsets = row
            receipts = self._constraints.receipts_at(due, offsets)
            single = (start, start + self._slot, due, 1, (tail, newest), receipts)
            return Given((rest, singles), single)
        return None if single is None else Given((rows, pages.without(singles, single)), single)

    def retracted(
        self, free: Free, undo: tuple[int, int], parts: States, at: int, ahead: Ahead
    ) -> tuple[Free, tuple[int, int], States]:
        """Over the places that end the line where `undo` has its tail; with what they were charged."""
        rows, singles = free
        while True:
            tail = undo[0]
            row = rows[-1][-1] if rows else None
            if row and row[0] + row[1] * self._slot == tail:
                rows, undo = pages.without_last(rows), row[3:5]
                parts = self._refunded(parts, row, row[1], at, ahead)
            elif singles and singles[-1][-1][1] == tail:
                _, _, _, cost, undo, receipts = singles[-1][-1]
                singles = pages.without_last(singles)
                parts = self._constraints.refund_last(parts, at, cost, receipts, ahead)
            else:
                return (rows, singles), undo, parts

    def swept(self, free: Free, parts: States, at: int, ahead: Ahead) -> tuple[Free, States]:
        """Without the places whose instant has passed; what they were charged is given back."""
        rows, singles = free
        while rows and (passed := self._passed(rows[0][0], at)):
            parts = self._refunded(parts, rows[0][0], passed, at, ahead)
            rows = self._without(rows, passed)
        while singles and singles[0][0][2] < at:
            _, _, _, cost, _, receipts = singles[0][0]
            parts = self._constraints.refund(parts, at, cost, receipts, ahead)
            singles = pages.without_first(singles)
        return (rows, singles), parts

    def uncharged(self, free: Free, parts: States, at: int, ahead: Ahead) -> States:
        """The limits as they would be without what is charged for places that nobody has."""
        rows, singles = free
        for row in reversed(pages.flat(rows)):
            parts = self._refunded(parts, row, row[1], at, ahead)
        for _, _, _, cost, _, receipts in reversed(pages.flat(singles)):
            parts = self._constraints.refund(parts, at, cost, receipts, ahead)
        return parts

    def inspect(self, free: Any) -> None:
        """Refuse what was read and is no such places, or more than may be."""
        rows, singles = free
        pages.inspect(rows, _ROW, MOST)
        counts = [row[1] for row in pages.flat(rows)]
        if min(counts, default=1) < 1 or sum(counts) > 4 * MOST or pages.count(singles) > MOST:
            raise ValueError("these are no places, or too many")
        for *numbers, undo, receipts in pages.flat(singles):
            sum((*numbers, *undo, len(receipts)))
            if len(numbers) != _SINGLE - 2 or len(undo) != _UNDO:
                raise ValueError("this is no place")

    # inside

    def _offsets(self, place: Single) -> tuple[int, int] | None:
        """How far time was ahead when it was charged, if nothing else has to be known of it."""
        start, end, due, cost, _, receipts = place
        if cost != 1 or end - start != self._slot:
            return None
        return self._constraints.offsets(due, receipts)

    def _due(self, row: Row, index: int) -> int:
        """The departure of a slot of the row; that of the one before it for the slot after the last."""
        if not self._paced:
            return row[2]
        return max(row[2], -((self._lead - row[0] - index * self._slot) // self._q))

    def _joined(self, row: Row, other: Row) -> Row | None:
        """Two rows as one, if the first slot of the other follows from the row."""
        start, count = row[:2]
        follows = (
            start + count * self._slot,
            self._due(row, count),
            start + count * self._slot,
            self._due(row, count - 1),
            *row[5:],
        )
        if follows != (other[0], *other[2:]) or count + other[1] > 4 * MOST:
            return None
        return (start, count + other[1], *row[2:])

    def _rest(self, row: Row, count: int) -> Row:
        """The row without its first slots."""
        start = row[0] + count * self._slot
        return (start, row[1] - count, self._due(row, count), start, self._due(row, count - 1), *row[5:])

    def _without(self, rows: Pages, count: int) -> Pages:
        """Without the first slots of the first row."""
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
        return max(0, min(count, ((at - 1) * self._q + self._lead - start) // self._slot + 1))

    def _refunded(self, parts: States, row: Row, count: int, at: int, ahead: Ahead) -> States:
        dues = [self._due(row, index) for index in range(count)]
        return self._constraints.refund_many(parts, at, dues, row[5:], ahead)


def gaps_after(gaps: Pages, time: int) -> Pages:
    """What has not passed."""
    while gaps and gaps[0][0][1] <= time:
        gaps = pages.without_first(gaps)
    return gaps


def gaps_room(gaps: Pages, soonest: int, width: int) -> int | None:
    """Where in the first that is wide enough a newcomer stands; or None."""
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
    """The gaps after somebody has taken one of them from `start` up to `end`."""
    low, high, near, index = pages.around(gaps, start + 1)
    last = near[index - 1][1]
    left = ((end, last),) if end < last else ()
    return pages.put(gaps, low, high, (*near[: index - 1], *left, *near[index:]))


def gaps_given_back(gaps: Pages, start: int, end: int) -> Pages:
    """The gaps with one more stretch.

    Of too many, the one in the middle is forgotten: a newcomer takes the first, and the tail goes back over
    the last.
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
    """Where the tail goes if what begins at `start` goes: over the gap before it too; and the gaps then."""
    if gaps and gaps[-1][-1][1] == start:
        return gaps[-1][-1][0], pages.without_last(gaps)
    return start, gaps


def inspect_gaps(gaps: Any) -> None:
    """Refuse gaps that were read and that are none, or more than may be."""
    pages.inspect(gaps, _GAP, MOST)


def is_gone(gone: Gone, number: int, due: int) -> bool:
    """Whether a slot was given back or settled, or left too long ago to tell."""
    rows, floor, _ = gone
    if due <= floor or not rows:
        return due <= floor
    _, _, near, index = pages.around(rows, number + 1)
    return index > 0 and bool(number <= near[index - 1][1])


def with_slot(gone: Gone, number: int, due: int, at: int) -> Gone | None:
    """The same with one slot more that is gone; None if it is gone already."""
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
    if len(rows) * pages.PAGE >= MOST_LEFT and pages.count(rows) % MOST_LEFT == 0:
        rows, floor = _forgotten(rows, floor, at)
    return rows, floor, words


def with_word(gone: Gone, word: Word) -> Gone:
    """The same with one settlement more, in place of what the caller said before."""
    rows, floor, words = gone
    kept = [old for old in words if old[:2] != word[:2]]
    return rows, floor, (*kept[1 - MOST_SAID :], word)


def last_word(gone: Gone, generation: int, number: int, nonce: int) -> tuple[int, int] | None:
    """The number that followed this one, and what its slot costs since; None if nothing is known of it.

    None, too, where the process has said another word since: then this one comes late.
    """
    for *known, follows, cost, latest in gone[2]:
        if known == [generation, number]:
            return None if 0 < latest - nonce < _ONE_PROCESS else (follows, cost)
    return None


def inspect_gone(gone: Any) -> None:
    """Refuse what was read and is none of this, or more than may be."""
    rows, floor, words = gone
    pages.inspect(rows, _GONE, MOST_ROWS)
    if len(words) > MOST_SAID or any(len(word) != _WORD for word in words):
        raise ValueError("these are no words")
    sum((floor, *(number for word in words for number in word)))


def _forgotten(rows: Pages, floor: int, at: int) -> tuple[Pages, int]:
    """Without the oldest half of the slots that have left, if these are too many."""
    known = pages.flat(rows)
    departures = sorted([due for _, _, due in known if due < at])
    kept = MOST_LEFT // 2
    if len(departures) < kept:
        if len(known) < MOST_ROWS:
            return rows, floor
        # Nothing else is left to forget: those who leave next cannot give back any more.
        departures, kept = sorted([due for _, _, due in known]), MOST_ROWS // 2
    floor = max(floor, departures[-kept])
    return pages.paged([row for row in known if row[2] > floor]), floor
