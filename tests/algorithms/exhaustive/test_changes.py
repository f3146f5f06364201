"""Changes of an operator, every interleaving with three workers: reserve, cancel, crash, learn of it, time.

Workers are prompt: a worker that is due asks again and leaves, or learns that its slot is another one, before
time goes on; and all have learned of a change by its pivot. Every world is checked for the law of the moment
of change: where each call is, by exact numbers; that none overtakes another; and that no window of either
rate has more departures than it may.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from shapekit import Rate
from shapekit.algorithms.overrides import overridden
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant, followed

from .explore import LawBrokenError, explore
from .test_queue import NONCE, START, ranked, without

pytestmark = pytest.mark.long

NOTICE = 2
"""How far ahead of a change its pivot lies."""


class Worker(NamedTuple):
    """One worker: how many calls it has still to make, and the slot that it waits for."""

    calls: int
    slot: Grant | None = None
    """The slot as it was granted."""
    due: int = 0
    """When the worker expects to leave."""
    start: Fraction = Fraction(0)
    """Where the slot is by now, in exact numbers."""
    leaves: Fraction = Fraction(0)
    """When it leaves by the law, in exact numbers."""


class World(NamedTuple):
    """The store's state, the time, and what all workers know and did."""

    now: int
    line: Any
    numbers: int
    """The index of the queue in force."""
    workers: tuple[Worker, ...]
    changes: int
    """How many changes may still come."""
    pivot: int = START
    """The instant from which the last change counts."""
    fastest: int = 0
    """The shortest interval that was in force since the start."""
    room: Fraction = Fraction(0)
    """How much later than exactly they may be: each change rounds up to the grid, and a slower one after it
    stretches that."""
    left: tuple[int, ...] = ()
    """When calls left."""


class Rules:
    """What can happen with these intervals, until the end of time; the first is that of the code."""

    def __init__(self, intervals: tuple[int, ...], burst: int, length: int) -> None:
        code = LeakyQueue([Rate.of(1, intervals[0])], burst, "smooth", ())
        changed = [overridden(LeakyQueue([Rate.of(1, one)], burst, "smooth", ())) for one in intervals[1:]]
        self.queues = [code, *changed]
        self.intervals, self.burst, self.end = intervals, burst, START + length

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Whatever may come next."""
        queue = self.queues[world.numbers]
        must_act = False
        for worker in set(world.workers):
            others = without(world.workers, worker)
            if worker.slot is None:
                if worker.calls:
                    yield self.asks(world, queue, worker, others)
                continue
            due = self.present(world, worker).due_us
            is_late = world.now >= world.pivot and due != worker.due
            must_act = must_act or is_late or worker.due <= world.now
            if due != worker.due:
                moved = world._replace(workers=ranked(*others, worker._replace(due=due)))
                yield "learns of a change", moved
            elif due <= world.now:
                free = worker._replace(slot=None, due=0, start=Fraction(0), leaves=Fraction(0))
                left = tuple(sorted((*world.left, world.now)))
                yield "leaves", world._replace(workers=ranked(*others, free), left=left)
                continue
            if due > world.now:
                yield self.cancels(world, queue, worker, others)
                yield "crashes", world._replace(workers=others)
        if world.changes:
            for number in range(len(self.queues)):
                if number != world.numbers:
                    yield f"every {self.intervals[number]} µs", self.changes(world, number)
        if not must_act and world.now < self.end:
            yield "a microsecond passes", world._replace(now=world.now + 1)

    def asks(
        self, world: World, queue: LeakyQueue, worker: Worker, others: tuple[Worker, ...]
    ) -> tuple[str, World]:
        line, granted, _, _ = queue.reserve(world.line, world.now, (1, None, NONCE))
        slot, interval = Grant(*granted), self.intervals[world.numbers]
        start = Fraction(slot.start, queue.q)
        leaves = max(Fraction(world.now), start - interval * (self.burst - 1))
        waiting = Worker(worker.calls - 1, slot, slot.due_us, start, leaves)
        return "asks", world._replace(line=line, workers=ranked(*others, waiting))

    def cancels(
        self, world: World, queue: LeakyQueue, worker: Worker, others: tuple[Worker, ...]
    ) -> tuple[str, World]:
        grant = self.present(world, worker)
        line, is_back, _, _ = queue.cancel(world.line, world.now, grant)
        assert is_back, "a slot that is still to come cannot be given back"
        assert queue.cancel(line, world.now, grant)[:2] == (line, False), "a slot is given back twice"
        return "cancels", world._replace(line=line, workers=ranked(*others, Worker(worker.calls)))

    def changes(self, world: World, number: int) -> World:
        before, since = self.queues[world.numbers], self.queues[number]
        ratio = Fraction(self.intervals[number], self.intervals[world.numbers])
        changed = world._replace(
            numbers=number,
            changes=world.changes - 1,
            fastest=min(world.fastest, self.intervals[number]),
        )
        if world.line is None:
            return changed._replace(pivot=world.now)
        line = since.adopt(world.line, before, world.now)
        moves = since._changes(line)
        if not moves or moves[-1].generation != before.confirm(world.line, world.now)[0]:
            return changed._replace(line=line, pivot=world.now)  # it is idle
        pivot = world.now + NOTICE
        moved = [
            worker._replace(
                start=self.placed(world, worker.start, pivot, ratio),
                leaves=exact(worker.leaves, pivot, ratio),
            )
            if worker.slot
            else worker
            for worker in world.workers
        ]
        room = world.room * max(1, ratio) + 1
        return changed._replace(line=line, workers=ranked(*moved), pivot=pivot, room=room)

    def placed(self, world: World, start: Fraction, pivot: int, ratio: Fraction) -> Fraction:
        """Where a place is after a change: a lead ahead of a departure, or so many intervals from now."""
        lead = self.intervals[world.numbers] * (self.burst - 1)
        if start - lead > world.now:
            return exact(start - lead, pivot, ratio) + lead * ratio
        return exact(start, world.now, ratio)

    def present(self, world: World, worker: Worker) -> Grant:
        """The grant of a waiting worker, as it is now."""
        assert worker.slot is not None
        generation, *_, changes, _ = self.queues[world.numbers].follow(world.line, world.now)[1]
        if generation == worker.slot.generation:
            return worker.slot
        found = followed(worker.slot, changes, self.queues[world.numbers].constraints)
        assert found is not None, "a slot is lost"
        return found

    # laws

    def check(self, world: World) -> None:
        """All that has to hold in every world."""
        queue = self.queues[world.numbers]
        waiting = [(worker, self.present(world, worker)) for worker in world.workers if worker.slot]
        for worker, grant in waiting:
            assert 0 <= Fraction(grant.start, queue.q) - worker.start <= world.room, f"is not there: {grant}"
            assert 0 <= grant.due_us - worker.leaves <= world.room, f"does not leave then: {grant}"
        for (one, its), (other, theirs) in combinations(waiting, 2):
            if one.start != other.start:
                first, second = (its, theirs) if one.start < other.start else (theirs, its)
                assert first.due_us <= second.due_us, f"overtaken: {first} by {second}"
        instants = sorted([*world.left, *(grant.due_us for _, grant in waiting)])
        self.keeps(instants, world.fastest, world.room)
        self.keeps([at for at in instants if at >= world.pivot], self.intervals[world.numbers], world.room)

    def keeps(self, instants: list[int], interval: int, room: Fraction) -> None:
        """Of calls that follow each other, all but what may burst take their intervals."""
        for first, second in combinations(range(len(instants)), 2):
            least = (second - first + 1 - self.burst) * interval - room
            assert instants[second] - instants[first] >= least, f"too close: {instants}"


def exact(at: Fraction, pivot: int, ratio: Fraction) -> Fraction:
    return at if at <= pivot else pivot + (at - pivot) * ratio


def explored(rules: Rules, *workers: Worker, changes: int) -> int:
    start = World(START, None, 0, ranked(*workers), changes, fastest=rules.intervals[0])
    return explore(start, rules.steps, rules.check)


@pytest.fixture(autouse=True)
def _notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapekit.algorithms.queue.queue.NOTICE_US", NOTICE)


@pytest.mark.parametrize("burst", [1, 2])
@pytest.mark.parametrize("intervals", [(4, 2), (2, 4), (3, 2), (2, 5)])
def test_a_change_among_three_workers(intervals: tuple[int, int], burst: int) -> None:
    assert explored(Rules(intervals, burst, 5), *[Worker(1)] * 3, changes=1) > 1_000


@pytest.mark.parametrize("intervals", [(4, 2, 3), (2, 3, 5)])
def test_two_changes_among_two_workers(intervals: tuple[int, int, int]) -> None:
    assert explored(Rules(intervals, 1, 5), Worker(2), Worker(1), changes=2) > 1_000


def test_a_queue_that_moves_calls_without_notice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapekit.algorithms.queue.queue.NOTICE_US", 0)
    with pytest.raises(LawBrokenError):
        explored(Rules((4, 2), 1, 8), *[Worker(1)] * 3, changes=1)
