"""Timelines: generated histories of operations on a few keys, as plain values.

A timeline is a trial and steps. A step names earlier steps by their number, so steps can be left out
of a failing timeline until nothing more can be: what is left shows the fault.

Histories are lawful: the clock goes back by at most a second below the highest time seen, because
beyond that a store may have dropped what it then would need.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from shapekit.algorithms.tempo import FULL, LEAST
from shapekit.rate import SECOND_US
from shapekit.stores.base import Key
from shapekit.testing.trials import Trial
from shapekit.testing.truth import LINGER_US

_DAY_US = 86_400 * SECOND_US
NO_EDGE = 2

GATE_OPERATIONS = (
    *("check",) * 9, *("commit",) * 3, *("refund",) * 4, *("debit",) * 2,
    "peek", "forecast", "earliest",
)  # fmt: skip
QUEUE_OPERATIONS = (
    *("reserve",) * 9, *("cancel",) * 4, *("confirm",) * 2, *("settle",) * 2,
    *("hold",) * 2, "resume", "look", *("reserve_many",) * 2, *("cancel_many",) * 2,
)  # fmt: skip
ADAPTIVE_OPERATIONS = (
    *("reserve",) * 9, *("cancel",) * 2, *("settle",) * 2, *("throttled",) * 3, *("succeeded",) * 6,
    "confirm", *("stated",) * 3, "hold", "resume", "look",
)  # fmt: skip
ROOM_OPERATIONS = (*("enter",) * 9, *("leave",) * 5, *("watch",) * 3, *("keep",) * 3, "look")


class Step(NamedTuple):
    """An operation, and how time moves before it."""

    number: int
    operation: str
    key: int
    args: tuple[Any, ...] = ()
    of: int = -1
    """The number of the step whose receipt or grant is used."""
    move_us: int = 0
    edge: int = NO_EDGE
    """From -1 to 1: move so far that the last wait is over, and by this much more."""
    ahead_us: int = 0
    """How far civil time is ahead."""
    program: int = 0
    """Which of the programs asks, where the numbers change."""


class Timeline(NamedTuple):
    """What happens to a few keys of one name."""

    seed: str
    trials: tuple[Trial, ...]
    steps: tuple[Step, ...]

    def key(self, index: int) -> Key:
        """The key of a step; where parts have keys of their own, some of which others have too."""
        if not self.trials[0].apart:
            return f"{self.seed}/{index}"
        return tuple(
            f"{self.seed}/{index >> place & 1}" for place, _ in enumerate(self.trials[0].program.names)
        )


def generated(seed: str, trials: tuple[Trial, ...], length: int) -> Timeline:
    """The timeline of a seed: the same seed gives the same one, always."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be kept secret
    return Timeline(seed, trials, tuple(_step(rng, trials, number) for number in range(length)))


def _step(rng: random.Random, trials: tuple[Trial, ...], number: int) -> Step:
    program = rng.randrange(len(trials)) if number > 2 else 0
    trial = trials[program]
    operation = rng.choice(_operations(trial))
    of = -1
    of_another = ("refund", "cancel", "cancel_many", "settle")
    if operation in of_another or (operation == "debit" and rng.random() < 0.5):
        if number == 0:
            operation = "reserve" if trial.is_queue else "check"
        else:
            of = rng.choice((number - 1, rng.randrange(number)))
    if rng.random() < 0.02:
        operation, of = "reset", -1
    edge = rng.randint(-1, 1) if rng.random() < 0.1 else NO_EDGE
    ahead_us = 0
    if trial.program.civil and rng.random() < 0.15:
        ahead_us = rng.choice((1, 3_600 * SECOND_US, -_DAY_US // 3, 17 * _DAY_US))
    key = rng.choice((0, 0, 0, 1, 2))
    args = (_of_room if trial.is_room else _arguments)(rng, trial, operation)
    return Step(number, operation, key, args, of, _move_us(rng, trial.scale_us), edge, ahead_us, program)


def _operations(trial: Trial) -> tuple[str, ...]:
    if trial.is_room:
        return ROOM_OPERATIONS
    if trial.is_adaptive:
        return ADAPTIVE_OPERATIONS
    return QUEUE_OPERATIONS if trial.is_queue else GATE_OPERATIONS


def _of_room(rng: random.Random, trial: Trial, operation: str) -> tuple[Any, ...]:
    """Few owners with few numbers, so that they meet; now and then the largest there can be."""
    owner = rng.choice((1, 2, 3, 2**53 - 1))
    number = rng.choice((*range(1, 7), 2**53 - 1))
    match operation:
        case "enter":
            return (owner, number, rng.choice((0, 1, 1)))
        case "leave":
            return (owner, number)
        case "keep":
            numbers = tuple(rng.sample(range(1, 7), rng.randint(0, 4)))
            return (owner, rng.choice((0, 3, 6)), numbers)
        case "watch":
            return (owner,)
    return ()


def _move_us(rng: random.Random, scale_us: int) -> int:
    """Bunched, sparse, around the edges of the limit, back, and past the life of a state."""
    how = rng.random()
    if how < 0.35:
        return 0
    if how < 0.55:
        return rng.randint(0, scale_us // 4 + 1)
    if how < 0.8:
        return max(0, scale_us * rng.randint(1, 25) // 20 + rng.randint(-1, 1))
    if how < 0.95:
        return -rng.choice((1, rng.randint(1, LINGER_US), min(LINGER_US, scale_us // 3 + 1)))
    return 4 * scale_us + rng.randint(1, 4 * SECOND_US)


def _arguments(rng: random.Random, trial: Trial, operation: str) -> tuple[Any, ...]:
    most = min(trial.program.max_cost, 6 if trial.is_queue else trial.program.max_cost)
    cost = 1 if rng.random() < 0.6 else rng.randint(1, most)
    wait = rng.choice((None, None, 0, rng.randint(0, 2 * trial.scale_us)))
    match operation:
        case "check" | "forecast" | "earliest":
            return (cost,)
        case "commit":
            return (cost, wait)
        case "refund":
            return (cost,)
        case "debit":
            return (rng.randint(1, 2 * most),)
        case "reserve":
            return ((cost, wait, rng.getrandbits(51)),)
        case "reserve_many":
            asked = tuple((cost, wait, rng.getrandbits(51)) for _ in range(rng.randrange(3)))
            span = max(0, rng.randint(0, 20) * trial.scale_us // 10 - rng.randint(0, 1))
            return asked, (rng.randrange(6), span, rng.getrandbits(51))
        case "settle":
            return (rng.randint(0, 2 * most), rng.getrandbits(51))
        case "hold":
            return (rng.randint(1, 2 * trial.scale_us), rng.getrandbits(51))
        case "resume":
            return (rng.choice((0, 250_000)),)
    return _of_adaptive(rng, trial, operation)


def _of_adaptive(rng: random.Random, trial: Trial, operation: str) -> tuple[Any, ...]:
    """What became of calls: most of them left lately, some long ago."""
    age = rng.choice((0, rng.randint(0, SECOND_US), rng.randint(0, 3 * trial.scale_us)))
    match operation:
        case "throttled":
            return (age, rng.choice((0, rng.randint(1, trial.scale_us))), rng.getrandbits(51))
        case "succeeded":
            return (rng.choice((0, 1, rng.randint(0, 100))), age, rng.getrandbits(51))
        case "stated":
            return (rng.choice((LEAST, FULL, rng.randint(LEAST, FULL))), age, rng.getrandbits(51))
    return ()


@cache
def _edges_us() -> tuple[int, ...]:
    """When European clocks change: the last Sundays of March and October."""
    found = []
    for year in range(1996, 2100):
        for month in (3, 10):
            last = datetime(year, month, 31, 1, tzinfo=UTC)
            last -= timedelta(days=(last.weekday() + 1) % 7)
            found.append(int(last.timestamp()) * SECOND_US)
    return tuple(found)


def next_edge_us(after_us: int) -> int:
    """The next change of European clocks."""
    edges = _edges_us()
    return edges[min(len(edges) - 1, bisect_right(edges, after_us))]
