"""Gone: which turns of a line were given back or settled, so that saying it again does nothing more.

Every reservation has a serial number of its own. Once a slot is given back or settled its number is gone, and
a grant with that number moves nothing any more. A settled turn goes on under a new number, which the caller
hears. A caller who did not hear it says its word again with the old one: for the latest settlements the
queue knows the number that followed, and what the slot costs since.

Numbers are exact while their slots wait. Of turns that have left, the oldest are forgotten first: then
whatever left up to that instant counts as gone, so forgetting can refuse a late give-back and never mint.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from shapekit.algorithms import rows as pages
from shapekit.algorithms.rows import Pages

MOST_LEFT = 256
"""Rows of turns that have left, which are known apart."""
MOST_ROWS = 2**16
"""Rows of turns that wait: no order of giving back makes more of them among twice as many."""
MOST_SAID = 64
"""Settlements whose answers may have been lost."""
_ROW, _WORD = 3, 5
_ONE_PROCESS = 2**32
"""Nonces that are nearer to each other are of one process, which counts them up."""

Word: TypeAlias = tuple[int, int, int, int, int]
"""The generation and number that a caller settled by, the number that followed, the cost since, and the nonce
that came with it."""
Gone: TypeAlias = tuple[Pages, int, tuple[Word, ...]]
"""Of each row of numbers that are gone the first, the last and the latest departure; the departure up to
which all turns count as gone; and the latest words."""

NONE: Gone = ((), -1, ())


def is_gone(gone: Gone, number: int, due: int) -> bool:
    """Whether a slot was given back or settled, or left too long ago to tell."""
    rows, floor, _ = gone
    if due <= floor or not rows:
        return due <= floor
    _, _, near, index = pages.around(rows, number + 1)
    return index > 0 and bool(number <= near[index - 1][1])


def with_turn(gone: Gone, number: int, due: int, at: int) -> Gone | None:
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


def inspect(gone: Any) -> None:
    """Refuse what was read and is none of this, or more than may be."""
    rows, floor, words = gone
    pages.inspect(rows, _ROW, MOST_ROWS)
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
