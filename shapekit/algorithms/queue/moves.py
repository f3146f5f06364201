"""Moves: where waiting calls go when an operator changes a limit while they wait.

What a call was granted is a place on the grid of the old numbers. A Move maps it to the new ones: up to the
`pivot` nothing changes, and from there on the distance to it is stretched or shortened by the ratio of the
intervals. So calls keep their order, and those that left n intervals apart still do, by the new interval,
exactly. The pivot lies a little ahead, so that every waiting call hears of the change before it counts.

With a burst, a call leaves ahead of its place by what the burst allows, its lead, in intervals. So a place
that lies a lead ahead of a departure does so after the change, by the new interval and the new burst: then
newcomers leave behind all who wait. What is less far ahead is the burst that is in use: as many calls as
before.

A key remembers its last moves. A call that waits meanwhile has a grant of an earlier generation, and follows
the moves since then, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from shapekit.algorithms.base import END_US
from shapekit.algorithms.queue.slots import Gone, Grant
from shapekit.algorithms.rows import mapped

MOST = 8
"""How many moves a key remembers: a call that waits through more keeps the slot of its promise."""
NOTICE_US = 300_000
"""How far ahead of a change its pivot lies."""
_NUMBERS = 9


class Move(NamedTuple):
    """One change of the numbers of a queue."""

    generation: int
    """The generation of the grants that it moves to the next one."""
    pivot_us: int
    """Up to when nothing changes, on the queue's own time."""
    interval: int
    """The interval before, in units of 1/q µs; each pair of intervals matters by its ratio alone."""
    q: int
    interval_since: int
    """The interval since then, in units of 1/q_since µs."""
    q_since: int
    burst: int
    """The burst before: by that much a call leaves ahead of its place."""
    burst_since: int
    """The burst since then."""
    changed_us: int
    """When it was made, on the queue's own time: departures before are none of its business."""

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

    def moved(self, grant: Grant) -> Grant:
        """A grant of the generation before, as one of the next."""
        tail, newest = grant.undo
        due_us = self.instant(grant.due_us)
        exact = grant.start - self.interval * max(0, self.burst - grant.cost)
        if grant.due_us > self.pivot_us and -(-exact // self.q) == grant.due_us:
            # An instant is rounded up, and should not be so twice.
            due_us = -(-self._stretched(exact) // self.q_since)
        return grant._replace(
            generation=grant.generation + 1,
            start=self.place(grant.start),
            end=self.place(grant.end),
            due_us=due_us,
            undo=(self.place(tail), self.instant(newest)),
        )

    def given_back(self, free: Any, gone: Gone) -> tuple[Any, Gone]:
        """The gaps, and what is gone, after it; there are no places then."""
        rows, floor, words = gone
        gaps = mapped(free, lambda gap: (self.place(gap[0]), self.place(gap[1])))
        known = mapped(rows, lambda row: (row[0], row[1], self.instant(row[2])))
        later = tuple([(word[0] + (word[0] == self.generation), *word[1:]) for word in words])
        return gaps, (known, self.instant(floor), later)


Moves: TypeAlias = tuple[Move, ...]


def followed(grant: Grant, moves: Iterable[Move]) -> Grant | None:
    """The grant after all moves since; None if none of them is known to concern it."""
    generation = grant.generation
    for move in moves:
        if move.generation == grant.generation:
            grant = move.moved(grant)
    return None if grant.generation == generation else grant


def inspect(moves: Sequence[Sequence[int]]) -> None:
    """Refuse moves that were read and are malformed or too many."""
    for move in moves:
        sum(move)
        if len(move) != _NUMBERS or min(move[2:-1]) < 1:
            raise ValueError("this is no move")
    if len(moves) > MOST:
        raise ValueError("these are too many moves")
