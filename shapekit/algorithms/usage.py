"""Usage: how much of each limit is used, read from a state. Consumes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.ledger import Ledger
from shapekit.algorithms.queue.constraints import timeline
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.quota.quota import Quota
from shapekit.decision import Decision
from shapekit.rate import SECOND_US

__all__ = ["QuotaUsage"]


class QuotaUsage(NamedTuple):
    """How much of a quota is used, and how much is left."""

    name: str
    """The name that the `decision` of a refusal uses: "quota", or in a composite that of the part
    (`outer.inner`).
    """
    per: str
    """The period as given to `Quota`: `"month"`, `"fixed:30d"`, `"rolling:30d"`."""
    limit: int
    """Units per period."""
    used: int
    """Units charged in this period, including slots still to come; above `limit` if a call was settled for
    more.
    """
    remaining: int
    """The units left. Once a slot of a later period was granted, no call can be put before it."""
    resets_at: float
    """When the period ends, in epoch seconds; for a rolling one, when all units are free without further
    calls.
    """
    resets_in: float
    """Seconds until `resets_at`."""


class Leaf(NamedTuple):
    """One limit of a program, with its state, and the time and skew to read it at."""

    name: str
    limit: Algorithm[Any]
    state: Any
    at: int
    skew: int

    def peek(self) -> Decision:
        """The state of the limit now."""
        return self.limit.peek(self.state, self.at, self.skew)


def leaves_of(program: Algorithm[Any] | LeakyQueue, state: Any, now: int, skew: int) -> Iterator[Leaf]:
    """The single limits of a program; of a queue, those in addition to its pace.

    The time of a queue stands still during a hold, so its limits are shown as they will be when the hold
    ends.
    """
    if isinstance(program, LeakyQueue):
        yield from _leaves_of_queue(program, state, now, skew)
    else:
        yield from _leaves("", program, state, now, skew)


def quotas_of(program: Algorithm[Any] | LeakyQueue, state: Any, now: int, skew: int) -> list[QuotaUsage]:
    """The usage of each quota of a program, including those in composites."""
    found = []
    for leaf in leaves_of(program, state, now, skew):
        if isinstance(leaf.limit, Quota):
            limit = leaf.limit.limit
            used, ends_us = leaf.limit.usage(leaf.state, leaf.at, leaf.skew)
            times = ends_us / SECOND_US, (ends_us - now - skew) / SECOND_US
            found.append(QuotaUsage(leaf.name, leaf.limit.per, limit, used, max(0, limit - used), *times))
    return found


def _leaves_of_queue(queue: LeakyQueue, line: Any, now: int, skew: int) -> Iterator[Leaf]:
    constraints = queue.constraints
    if not constraints.algorithms:
        return
    until, shift, book, states = (0, 0, (), constraints.cold) if line is None else line[4:]
    at = max(now, until) - shift
    if book:
        # A free place is not charged.
        states = queue.places.uncharged(book[0], states, at, (shift, skew))
    for algorithm, state in zip(constraints.algorithms, states, strict=True):
        real, ahead = timeline(algorithm, (shift, skew))
        yield from _leaves("", algorithm, state, at + real, ahead)


def _leaves(name: str, program: Algorithm[Any], state: Any, at: int, skew: int) -> Iterator[Leaf]:
    if isinstance(program, Ledger):
        yield from _leaves(name, program.limit, None if state is None else state[0], at, skew)
        return
    if not isinstance(program, Composite):
        yield Leaf(name or program.kind, program, state, at, skew)
        return
    states = (None,) * len(program.parts) if state is None else state
    for part_name, part, own in zip(program.names, program.parts, states, strict=True):
        yield from _leaves(f"{name}.{part_name}" if name else part_name, part, own, at, skew)
