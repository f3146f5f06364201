"""Places: stretches of a queue's grid that were given back, and who may still have them.

A place remembers at which version of the line it was given back. A grant of an older version that
overlaps it is void: so nobody gives back twice, and nobody what another has got meanwhile.
"""

from __future__ import annotations

from typing import TypeAlias

from shapekit.algorithms.constraints import Receipts

MAX_HOLES = 64
"""Free places in the middle that are remembered; beyond it a place expires unused."""

TAKEN = -1
"""In place of a departure: nobody may have this place any more."""

Place: TypeAlias = tuple[int, int, int, int, int, tuple[int, int], Receipts]
"""From, to, the version that gave it back, its departure (or TAKEN), its cost, the tail and the newest
departure before it, and what its departure was charged."""


def taken(start: int, end: int, since: int) -> Place:
    """A place that nobody may have: it only voids the grants of whoever had it."""
    return (start, end, since, TAKEN, 0, (0, 0), ())


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
    fences = [old for old in kept if old[3] == TAKEN]
    if len(fences) >= MAX_HOLES:
        # Two fences become one: some grants between them cannot be given back any more.
        one, two = fences[:2]
        kept = [old for old in kept if old not in (one, two)]
        kept.append(taken(one[0], max(one[1], two[1]), max(one[2], two[2])))
    return tuple(sorted([*kept, place]))
