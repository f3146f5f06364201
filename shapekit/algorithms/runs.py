"""Runs: calls in a row, told by who makes them and by consecutive numbers, so that a thousand take no room.

>>> line = joined(joined((), 7, 1), 7, 2)
>>> joined(line, 9, 1)
((7, 1, 2), (9, 1, 1))
>>> without(joined(line, 7, 3), 7, 2)
((7, 1, 1), (7, 3, 3))
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, TypeAlias

Run: TypeAlias = tuple[int, int, int]
"""An owner, and the first and the last of its numbers that stand here one after the other."""
Runs: TypeAlias = tuple[Run, ...]


def inspect(runs: Any, most: int) -> None:
    """Refuse runs that were read and that are empty, or more than may be: each number is gone through."""
    if len(runs) > most or not all(first <= last for _, first, last in runs) or count(runs) > most:
        raise ValueError("these are no calls in a row")


def joined(runs: Runs, owner: int, first: int, last: int | None = None) -> Runs:
    """With some numbers more, at the end."""
    end = first if last is None else last
    if runs:
        one, start, before = runs[-1]
        if one == owner and before + 1 == first:
            return (*runs[:-1], (owner, start, end))
    return (*runs, (owner, first, end))


def without(runs: Runs, owner: int, number: int) -> Runs:
    """Without this number; the others stay where they are."""
    for place, (one, first, last) in enumerate(runs):
        if one == owner and first <= number <= last:
            before = ((owner, first, number - 1),) if first < number else ()
            after = ((owner, number + 1, last),) if number < last else ()
            return (*runs[:place], *before, *after, *runs[place + 1 :])
    return runs


def of_owners(runs: Runs, owners: Container[int]) -> Runs:
    """What these owners have of them."""
    return tuple([run for run in runs if run[0] in owners])


def only(runs: Runs, owner: int, upto: int, numbers: Container[int]) -> Runs:
    """Without the owner's numbers up to `upto` that are none of these."""
    kept: Runs = ()
    for one, first, last in runs:
        if one != owner:
            kept = joined(kept, one, first, last)
            continue
        for number in range(first, last + 1):
            if number > upto or number in numbers:
                kept = joined(kept, owner, number)
    return kept


def count(runs: Runs) -> int:
    """How many there are."""
    return sum([last - first + 1 for _, first, last in runs])


def place(runs: Runs, owner: int, number: int) -> int:
    """How many stand up to this one and with it; 0 if it is not there."""
    before = 0
    for one, first, last in runs:
        if one == owner and first <= number <= last:
            return before + number - first + 1
        before += last - first + 1
    return 0


def numbers_of(runs: Runs, owner: int) -> list[int]:
    """The owner's numbers, in order."""
    return [number for one, first, last in runs if one == owner for number in range(first, last + 1)]
