"""Departures: what the instants at which calls left say about the library that let them go."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence


def rate_reached(instants: Sequence[float]) -> float:
    """Calls a second between the first departure and the last."""
    if len(instants) < 2:
        raise ValueError("two departures are the least that have a rate")
    taken = max(instants) - min(instants)
    return math.inf if taken == 0 else (len(instants) - 1) / taken


def most_within(instants: Sequence[float], seconds: float = 1.0) -> int:
    """The most departures in any half-open window of that length."""
    ordered = sorted(instants)
    return max(
        (bisect_left(ordered, first + seconds) - number for number, first in enumerate(ordered)), default=0
    )


def lateness(instants: Sequence[float], rate: float) -> list[float]:
    """By how many seconds each left after its place on an even grid that begins with the first departure.

    Less than nothing for a call that left before its place.
    """
    ordered = sorted(instants)
    return [instant - (ordered[0] + number / rate) for number, instant in enumerate(ordered)]


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that is not exceeded by that share of them."""
    if not 0 < share <= 1:
        raise ValueError(f"a share lies above 0 and not above 1, unlike {share}")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def inversions(left: Sequence[int]) -> int:
    """How many pairs swapped: calls that asked before another one and left after it.

    `left` holds the numbers in the order of asking, as they left.
    """
    before: list[int] = []
    swapped = 0
    for number in left:
        swapped += len(before) - bisect_left(before, number)
        insort(before, number)
    return swapped
