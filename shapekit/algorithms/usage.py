"""Usage: how much of each limit is used, in a state that somebody has looked at. Consumes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.ledger import Ledger
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.quota.quota import Quota
from shapekit.decision import Decision
from shapekit.rate import SECOND_US

__all__ = ["QuotaUsage"]


class QuotaUsage(NamedTuple):
    """How much of a quota is used, and what is left of it."""

    name: str
    """As the `decision` of a refusal names it: "quota", or in a composite the part's name (`outer.inner`)."""
    per: str
    """The period, as `Quota` was told it: `"month"`, `"fixed:30d"`, `"rolling:30d"`."""
    limit: int
    """Units in each period."""
    used: int
    """Units charged in this one, slots still to come included; more than `limit` where a call was settled
    for more."""
    remaining: int
    """The rest of them. Where somebody has been given a slot of a later period, none overtakes that one."""
    resets_at: float
    """When the period ends, in epoch seconds; of a rolling one, when all is free again if nobody calls."""
    resets_in: float
    """Seconds until then."""


class Leaf(NamedTuple):
    """One limit of a program, with its state, and the time and skew to ask it with."""

    name: str
    limit: Algorithm[Any]
    state: Any
    at: int
    skew: int

    def peek(self) -> Decision:
        """How it stands."""
        return self.limit.peek(self.state, self.at, self.skew)


def leaves_of(program: Algorithm[Any] | LeakyQueue, state: Any, now: int, skew: int) -> Iterator[Leaf]:
    """The single limits of a program; of a queue, those that it has beside its pace.

    A queue's time stands still while it is held, so its limits are seen as they will be when that ends.
    """
    if isinstance(program, LeakyQueue):
        yield from _leaves_of_queue(program, state, now, skew)
    else:
        yield from _leaves("", program, state, now, skew)


def quotas_of(program: Algorithm[Any] | LeakyQueue, state: Any, now: int, skew: int) -> list[QuotaUsage]:
    """How the quotas of a program stand, those in composites too."""
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
    if not constraints:
        return
    until, shift, book, states = (0, 0, (), constraints.cold) if line is None else line[4:]
    at = max(now, until) - shift
    if book:
        # Nobody has paid for a free place.
        states = queue.places.uncharged(book[0], states, at, (shift, skew))
    for algorithm, state in zip(constraints.algorithms, states, strict=True):
        real, ahead = (shift, skew) if algorithm.aligned else (0, shift + skew)
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
