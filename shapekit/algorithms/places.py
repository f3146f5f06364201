"""Places: stretches of a queue's grid that were given back, and who may still have them.

A taken place remembers at which version of the line it was given back. A grant of an older version that
overlaps it is void: so nobody gives back twice, and nobody what another has got meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from shapekit.algorithms.constraints import Receipts

MAX_HOLES = 64
"""Free places in the middle that are remembered; beyond it a place expires unused."""

MOST_PLACES = 4 * MAX_HOLES
"""More of them no queue has: what takes long with many must not take as long as somebody else likes."""

_NUMBERS = 5
_UNDO = 2

TAKEN = -1
"""In place of a departure: nobody may have this place any more."""

Place: TypeAlias = tuple[int, int, int, int, int, tuple[int, int], Receipts]
"""From, to, the version that gave it back, its departure (or TAKEN, or FREE: a gap), its cost (of a gap:
who stands in it), the tail and the newest departure before it, and what its departure was charged."""


def taken(start: int, end: int, since: int) -> Place:
    """A fence: a place that nobody may have. It only voids the grants of whoever had it."""
    return (start, end, since, TAKEN, 0, (0, 0), ())


def inspect(places: Any) -> None:
    """Refuse places that were read and that are none, or more than may be."""
    if len(places) > MOST_PLACES:
        raise ValueError("these are too many places")
    for *numbers, undo, receipts in places:
        sum((*numbers, *undo, len(receipts)))
        if len(numbers) != _NUMBERS or len(undo) != _UNDO:
            raise ValueError("this is no place")


def is_full(places: tuple[Place, ...]) -> bool:
    """Whether one more free place could not be remembered."""
    return sum(place[3] != TAKEN for place in places) >= MAX_HOLES


def with_place(places: tuple[Place, ...], place: Place) -> tuple[Place, ...]:
    """The places and one more, by their start; what the new one covers is dropped.

    A taken place at the tail covers everything behind its start.
    """
    start, end, since, due, *_ = place
    if due == TAKEN:
        behind = [old[1] for old in places if old[0] >= start]
        place = taken(start, max([end, *behind]), since)
        kept = [old for old in places if old[0] < start]
    else:
        kept = [old for old in places if not (old[0] >= start and old[1] <= end)]
    return bounded([*kept, place])


def bounded(places: Sequence[Place]) -> tuple[Place, ...]:
    """The places by their start, with no more fences than may be.

    Of too many, the two nearest become one: grants between them cannot be given back any more.
    """
    fences = sorted((place for place in places if place[3] == TAKEN), key=_extent)
    while len(fences) > MAX_HOLES:
        near = min(range(len(fences) - 1), key=lambda one: fences[one + 1][0] - fences[one][1])
        one, two = fences[near : near + 2]
        fences[near : near + 2] = [taken(one[0], max(one[1], two[1]), max(one[2], two[2]))]
    holes = [place for place in places if place[3] != TAKEN]
    return tuple(sorted([*fences, *holes], key=_extent))


def fenced(fences: Sequence[Place], start: int, end: int, since: int) -> tuple[Place, ...]:
    """The fences and one more; it is one with the fence before it if they touch and void the same."""
    for place in fences:
        if place[1] == start and place[2] == since:
            return bounded([*(old for old in fences if old is not place), taken(place[0], end, since)])
    return bounded([*fences, taken(start, end, since)])


def _extent(place: Place) -> tuple[int, int, int]:
    return place[:3]
