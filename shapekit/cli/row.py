"""Row: what an operator wants to know of a key, worked out from its state."""

from __future__ import annotations

from typing import NamedTuple

from shapekit.algorithms.adaptive_queue import AdaptiveQueue
from shapekit.algorithms.composite import Composite
from shapekit.algorithms.concurrency import Concurrency
from shapekit.algorithms.description import Described
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.algorithms.meter import Meter
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.algorithms.usage import leaves_of
from shapekit.rate import SECOND_US, seconds_text
from shapekit.stores.sighting import Sighting

__all__ = ["Row", "Use", "limit_text", "row_of"]

UNKNOWN = "(unknown: its program has not told its name)"


class Use(NamedTuple):
    """How much of one limit is in use."""

    limit: str
    used: int
    most: int


class Row(NamedTuple):
    """A key as it stands; instants are civil, in epoch seconds."""

    key: str
    limit: str
    wait: float
    """Seconds until a call that comes now would leave."""
    next_at: float
    """When that is."""
    held: float
    """Seconds for which nobody leaves."""
    held_until: float | None
    uses: tuple[Use, ...]

    @property
    def fullest(self) -> float:
        """The part that is in use of whatever is used most."""
        return max([use.used / use.most for use in self.uses], default=0.0)


def row_of(seen: Sighting) -> Row:
    """The row of a key that was seen."""
    wait_us, held_us = 0, 0
    if isinstance(seen.program, LeakyQueue):
        wait_us, _ = seen.program.outlook(seen.state, seen.now_us, 1, 1, seen.skew_us)
        held_us = max(0, seen.program.confirm(seen.state, seen.now_us)[2] - seen.now_us)
    elif seen.program is not None and not isinstance(seen.program, Concurrency):
        told = seen.program.forecast(seen.state, seen.now_us, 1, seen.skew_us)
        wait_us = max(0, told.admits_at_us - seen.now_us)
    civil_us = seen.now_us + seen.skew_us
    return Row(
        seen.shown,
        UNKNOWN if seen.program is None else limit_text(seen.program) + _found(seen),
        wait_us / SECOND_US,
        (civil_us + wait_us) / SECOND_US,
        held_us / SECOND_US,
        (civil_us + held_us) / SECOND_US if held_us else None,
        _uses(seen),
    )


def _found(seen: Sighting) -> str:
    """The rate that a key has now, where that is found."""
    if not isinstance(seen.program, AdaptiveQueue):
        return ""
    _, _, _, _, *clock = seen.program.confirm(seen.state, seen.now_us)
    return f", now {seen.program.per_second(clock[1]):.3g}/s" if clock else ""


def _uses(seen: Sighting) -> tuple[Use, ...]:
    """Of all that is limited beside a pace."""
    if seen.program is None:
        return ()
    if isinstance(seen.program, Concurrency):
        in_flight, _ = seen.program.standing(seen.state, seen.now_us)
        return (Use(limit_text(seen.program), in_flight, seen.program.limit),)
    leaves = [
        (leaf.limit, leaf.peek()) for leaf in leaves_of(seen.program, seen.state, seen.now_us, seen.skew_us)
    ]
    return tuple(Use(limit_text(limit), told.current, told.limit) for limit, told in leaves)


def limit_text(program: Described) -> str:
    """A limit in few words.

    >>> from shapekit import GCRA, Quota, all_of
    >>> limit_text(all_of(fast=GCRA("10/s"), month=Quota("1_000_000/month")))
    'all_of(gcra 10/s burst 10, quota 1000000/month)'
    """
    if isinstance(program, LeakyQueue):
        return _queue_text(program)
    if isinstance(program, Concurrency):
        return f"concurrency {program.limit}"
    if isinstance(program, Composite):
        return f"{program.kind}({', '.join(map(limit_text, program.parts))})"
    if isinstance(program, Quota):
        return f"quota {program.limit}/{program.per}{' spread' if program.spread else ''}"
    if isinstance(program, FixedWindow | SlidingWindow | SlidingWindowLog):
        return f"{program.kind} {program.limit} per {seconds_text(program.window_us)}"
    assert isinstance(program, Meter)  # noqa: S101 - all that are left
    return f"{program.kind} {program.rate} burst {program.burst}"


def _queue_text(queue: LeakyQueue) -> str:
    if isinstance(queue, AdaptiveQueue):
        between = f"adaptive {queue.lowest} to {queue.highest}"
        return between if queue.burst == 1 else f"{between} burst {queue.burst}"
    parts = [str(rate) for rate in queue.rates]
    if queue.burst > 1 and not any(rate.burst for rate in queue.rates):
        parts[0] += f" burst {queue.burst}"
    parts += [limit_text(gate) for gate in queue.gates]
    words = "; ".join(parts) or "no rate"
    if queue.pace != "smooth":
        words += f", pace {queue.pace}"
    if queue.headroom:
        words += f", headroom {float(queue.headroom):.3g}"
    return words
