"""Gaps: what is free in the middle of a queue that only paces, for whoever comes next.

Where nothing but the pace counts, one part of the grid is as good as another: free stretches that touch
are one, and a newcomer takes the beginning of the first that is wide enough.
"""

from __future__ import annotations

from typing import Any

from shapekit.algorithms import rows
from shapekit.algorithms.rows import Pages as Gaps

MOST = 2**16
"""Stretches that are remembered; beyond it one in the middle expires unused."""
_ENDS = 2
"""A gap is from, to. They stand in order, and none touches the next."""


def after(gaps: Gaps, time: int) -> Gaps:
    """What has not passed."""
    while gaps and gaps[0][0][1] <= time:
        gaps = rows.without_first(gaps)
    return gaps


def room(gaps: Gaps, soonest: int, width: int) -> int | None:
    """Where in the first that is wide enough a newcomer stands; or None."""
    for page in gaps:
        for start, end in page:
            begin = max(start, soonest)
            if begin + width <= end:
                return int(begin)
    return None


def taken(gaps: Gaps, start: int, end: int) -> Gaps:
    """The gaps after somebody has taken one of them from `start` up to `end`."""
    low, high, near, index = rows.around(gaps, start + 1)
    last = near[index - 1][1]
    left = ((end, last),) if end < last else ()
    return rows.put(gaps, low, high, (*near[: index - 1], *left, *near[index:]))


def given_back(gaps: Gaps, start: int, end: int) -> Gaps:
    """The gaps with one more stretch.

    Of too many, the one in the middle is forgotten: a newcomer takes the first, and the tail goes back over
    the last.
    """
    low, high, near, index = rows.around(gaps, start)
    left = right = index
    if left and near[left - 1][1] == start:
        left -= 1
        start = near[left][0]
    if right < len(near) and near[right][0] == end:
        end = near[right][1]
        right += 1
    kept = rows.put(gaps, low, high, (*near[:left], (start, end), *near[right:]))
    if len(kept) * rows.PAGE <= MOST or rows.count(kept) <= MOST:
        return kept
    return rows.without(kept, rows.flat(kept)[MOST // 2])


def retracted(gaps: Gaps, start: int) -> tuple[int, Gaps]:
    """Where the tail goes if what begins at `start` goes: over the gap before it too; and the gaps then."""
    if gaps and gaps[-1][-1][1] == start:
        return gaps[-1][-1][0], rows.without_last(gaps)
    return start, gaps


def inspect(gaps: Any) -> None:
    """Refuse gaps that were read and that are none, or more than may be."""
    rows.inspect(gaps, _ENDS, MOST)
