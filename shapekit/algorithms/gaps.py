"""Gaps: what is free in the middle of a queue that only paces, for whoever comes next.

Where nothing but the pace counts, one part of the grid is as good as another: free stretches that touch
are one, and a newcomer takes the beginning of the first that is wide enough. A gap is a run of free
stretches up to 48 slots apart: where it begins and ends, and a bit for each slot in which somebody
still stands. So 64 gaps tell exactly who has gone among thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from shapekit.algorithms.places import MAX_HOLES, TAKEN, Place, fenced

FREE = -2
"""In place of a departure: a gap. Whoever comes may have any free part of it."""
SLOTS = 48
"""The bits of a gap, which have to fit into a double."""

Stretch: TypeAlias = tuple[int, int]


def stretches(places: tuple[Place, ...], slot: int, time: int) -> Iterator[Stretch]:
    """All that is free after `time`, from the front."""
    for start, end, _, kind, standing, _, _ in places:
        if kind != FREE:
            continue
        begin = start
        while standing > 0:
            until = begin
            while not standing & 1:
                standing >>= 1  # noqa: PLW2901 - read bit by bit, as the twin does
                until += slot
            if until > time:
                yield begin, until
            begin = until
            while standing & 1:
                standing >>= 1  # noqa: PLW2901
                begin += slot
        if end > time:
            yield begin, end


def room(
    places: tuple[Place, ...], slot: int, time: int, microsecond: int, width: int
) -> tuple[int, Stretch] | None:
    """Where in the first free stretch that is wide enough a newcomer stands; or None."""
    for stretch in stretches(places, slot, time):
        # What begins in this very microsecond has not passed.
        start = max(stretch[0], time - microsecond + 1)
        if start + width <= stretch[1]:
            return start, stretch
    return None


def overlaps(places: tuple[Place, ...], slot: int, time: int, start: int, end: int) -> bool:
    """Whether some of this is free: then whoever had it has given it back."""
    return any(first < end and start < last for first, last in stretches(places, slot, time))


def given_back(
    places: tuple[Place, ...], slot: int, time: int, start: int, end: int
) -> tuple[Place, ...] | None:
    """The places with one more stretch free; None if it is one too many to remember."""
    first, last = start, end
    free = []
    for stretch in stretches(places, slot, time):
        if stretch[1] == start:
            first = stretch[0]
        elif stretch[0] == end:
            last = stretch[1]
        else:
            free.append(stretch)
    gaps = _packed(sorted([*free, (first, last)]), slot)
    if not any(gap[0] <= start < gap[1] for gap in gaps):
        return None
    fences = [old for old in places if old[3] == TAKEN and not (first <= old[0] and old[1] <= last)]
    return (*fences, *gaps)


def filled(
    places: tuple[Place, ...], slot: int, time: int, stretch: Stretch, end: int, since: int
) -> tuple[Place, ...]:
    """The places after somebody has taken this stretch up to `end`."""
    start, last = stretch
    free = [other for other in stretches(places, slot, time) if other != stretch]
    if end < last:
        free.append((end, last))
    fences = [old for old in places if old[3] == TAKEN]
    return (*fenced(fences, start, end, since), *_packed(sorted(free), slot))


def retracted(
    places: tuple[Place, ...], slot: int, time: int, start: int, tail: int, since: int
) -> tuple[int, tuple[Place, ...]]:
    """Where the tail goes if what begins at `start` goes: over the gap before it too; and the places then."""
    free = [*stretches(places, slot, time)]
    if free and free[-1][1] == start:
        start, _ = free.pop()
    fences = [old for old in places if old[3] == TAKEN and old[0] < start]
    behind = [old[1] for old in places if old[3] == TAKEN and old[0] >= start]
    return start, (*fenced(fences, start, max([tail, *behind]), since), *_packed(free, slot))


def _packed(free: Sequence[Stretch], slot: int) -> list[Place]:
    """Stretches as gaps. Of too many, the one in the middle is forgotten and expires unused.

    For a newcomer wants to know the first, and the tail retracts over the last.
    """
    gaps: list[tuple[int, int, int]] = []
    for start, end in free:
        if gaps:
            first, last, standing = gaps[-1]
            low, low_rest = divmod(last - first, slot)
            high, high_rest = divmod(start - first, slot)
            if high <= SLOTS and low_rest == high_rest == 0:
                gaps[-1] = (first, end, standing + (1 << high) - (1 << low))
                continue
        gaps.append((start, end, 0))
    while len(gaps) > MAX_HOLES:
        del gaps[MAX_HOLES // 2]
    return [(start, end, 0, FREE, standing, (0, 0), ()) for start, end, standing in gaps]
