"""Prefetch, every interleaving of workers that own slots ahead: take, use, hand back, hold, crash, time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from shapekit import Rate
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant

from .explore import LawBrokenError, explore
from .test_queue import NONCE, START, Rules, T, World, paced, ranked, without

pytestmark = pytest.mark.long

AHEAD, SPAN = 2, 2
"""How many slots a worker takes beyond its own, and how far ahead of that the last of them may be."""


class Prefetcher(NamedTuple):
    """A worker with a stock of slots that none of its calls has taken yet."""

    calls: int
    slot: Grant | None = None
    due: int = 0
    buffer: tuple[Grant, ...] = ()


class PrefetchRules(Rules):
    """The workers of a queue that take several slots in one trip."""

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Whatever may come next."""
        yield from super().steps(world)
        for worker in set(world.workers):
            others = without(world.workers, worker)
            if worker.buffer:
                yield self.hands_back(world, worker, others)
                if world.troubles and worker.slot is None:
                    yield self.crashes(world, worker, others)

    def owned(self, worker):
        return (*super().owned(worker), *worker.buffer)

    def asks(self, world, worker, others):
        """A call takes the first slot in stock that is still to come, or its worker some more."""
        coming = [slot for slot in worker.buffer if self.due(world, slot) >= world.now]
        passed = [slot for slot in worker.buffer if slot not in coming]
        world = world._replace(ghosts=ranked(*world.ghosts, *passed))
        if not coming:
            further = (AHEAD, SPAN, NONCE)
            line, (_, answers), _, _ = self.queue.reserve_many(
                world.line, world.now, [(1, None, NONCE)], further
            )
            coming = [Grant(*granted) for granted in answers]
            world = world._replace(line=line)
            ahead = [slot.due_us - coming[1].due_us for slot in coming[1:]]
            assert max(ahead) <= SPAN, f"owns slots too far ahead: {ahead}"
        slot, *buffer = coming
        tried = worker._replace(calls=worker.calls - 1, buffer=tuple(buffer))
        due = self.due(world, slot)
        if due <= world.now:
            yield "leaves at once", self.leaves(world, others, tried, slot, due)
        else:
            waiting = tried._replace(slot=slot, due=due)
            yield "takes a slot", world._replace(workers=ranked(*others, waiting))

    def hands_back(self, world, worker, others):
        line, _, _, _ = self.queue.cancel_many(world.line, world.now, worker.buffer)
        passed = [slot for slot in worker.buffer if self.is_over(world, slot)]
        left = world._replace(line=line, late=ranked(*world.late, *passed))
        return "hands its stock back", left._replace(workers=ranked(*others, worker._replace(buffer=())))

    # laws

    def to_come(self, world):
        return [*super().to_come(world), *(slot for slot in in_stock(world) if not self.is_over(world, slot))]

    def newcomer_is_served(self, world, slots):
        # Slots that have passed in the stock of one worker were not available to others.
        passed = [slot for slot in in_stock(world) if self.is_over(world, slot)]
        super().newcomer_is_served(world, [*slots, *passed])

    def is_over(self, world: World, slot: Grant) -> bool:
        return slot.due_us < self.at(world)


def in_stock(world: World) -> list[Grant]:
    return [slot for worker in world.workers for slot in worker.buffer]


def explored(burst: int, workers: int, calls: int, end: int, holds: int = 1) -> int:
    # A call may stand behind all slots that all workers take.
    units = workers * calls * (1 + AHEAD)
    rules = PrefetchRules(paced(burst), units, START + end, None)
    start = World(START, None, (Prefetcher(calls),) * workers, holds, troubles=1)
    return explore(start, rules.steps, rules.check)


def test_three_workers_in_any_order() -> None:
    assert explored(1, workers=3, calls=1, end=3, holds=0) > 5_000


def test_two_workers_that_are_held() -> None:
    assert explored(1, workers=2, calls=1, end=4, holds=1) > 5_000


def test_workers_of_a_queue_with_a_burst() -> None:
    assert explored(2, workers=2, calls=2, end=3, holds=0) > 5_000


def test_a_slot_handed_back_twice_is_free_once() -> None:
    class Stubborn(LeakyQueue):
        def cancel_many(self, state: Any, now: int, grants: Any, skew: int = 0) -> Any:
            return super().cancel_many(state, now, (*grants, *grants), skew)

    rules = PrefetchRules(Stubborn([Rate.of(1, T)], 1, "smooth", ()), 9, START + 3, None)
    assert explore(World(START, None, (Prefetcher(1),) * 2, 0), rules.steps, rules.check) > 500


def test_a_prefetch_that_keeps_what_it_hands_back_is_found() -> None:
    class Keeping(PrefetchRules):
        def hands_back(self, world: World, worker: Any, others: Any) -> tuple[str, World]:
            event, after = super().hands_back(world, worker, others)
            return event, world._replace(line=after.line)

    rules = Keeping(paced(1), 9, START + 3, None)
    with pytest.raises(LawBrokenError, match="hands its stock back"):
        explore(World(START, None, (Prefetcher(1),) * 2, 0), rules.steps, rules.check)
