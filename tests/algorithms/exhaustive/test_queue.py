"""The queue, every interleaving of three workers: reserve, cancel, hold, resume, lost replies, crash, time.

Workers are prompt: a worker that is due leaves before time goes on. Each world is checked for the instants
at which they leave, and where on the queue's own time a newcomer would stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from shapekit import Rate, SlidingWindowLog
from shapekit.algorithms.queue.queue import LeakyQueue, line_time
from shapekit.algorithms.queue.slots import NONE, NOTHING_GONE, Grant

from .explore import LawBrokenError, explore

pytestmark = pytest.mark.long

T = 2
"""The interval between two calls, in microseconds: every instant on the way is a world of its own."""
START = 10
NONCE = 1
LIMIT, WINDOW = 2, 5
HOLD = 3
NOTICE = 1


class Worker(NamedTuple):
    """One worker: how many calls it has still to make, and the slot that it waits for."""

    calls: int
    cost: int = 1
    slot: Grant | None = None
    due: int = 0
    """When the worker expects to leave."""


class World(NamedTuple):
    """The store's state, the time, and what all workers know and did."""

    now: int
    line: Any
    workers: tuple[Worker, ...]
    holds: int = 1
    """How many more holds may be placed."""
    spared: tuple[tuple[int, int], ...] = ()
    """What an idle queue could have sent at once when it was held, on the queue's own time: taken away."""
    resumed: bool = False
    troubles: int = 1
    """How many crashes and lost replies may still come."""
    left: tuple[tuple[int, Grant], ...] = ()
    """The slots that were used, and when."""
    ghosts: tuple[Grant, ...] = ()
    """Slots that are never used, and never given back."""
    late: tuple[Grant, ...] = ()
    """Slots that were given back when they had passed: at the end of the line their places are free."""


class Rules:
    """What can happen, with one queue, until the end of time."""

    def __init__(self, queue: LeakyQueue, units: int, end: int, max_wait: int | None) -> None:
        self.queue = queue
        self.units = units
        self.end = end
        self.max_wait = max_wait

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Whatever may come next."""
        due = [worker for worker in world.workers if worker.slot and worker.due <= world.now]
        for worker in set(world.workers):
            others = without(world.workers, worker)
            if worker.slot is None:
                if worker.calls:
                    yield from self.asks(world, worker, others)
            elif worker.due <= world.now:
                yield self.confirms(world, worker, others)
            else:
                yield self.cancels(world, worker, others)
                if world.troubles:
                    yield self.crashes(world, worker, others)
        if world.holds:
            line, length, _, _ = self.queue.hold(world.line, world.now, HOLD, NONCE)
            at = self.at(world)
            # A call that moves into a place that was given back leaves as its owner would have.
            first = max(at, world.line[0]) if world.line else at
            spared = (*world.spared, (first, at + (self.queue.burst - 1) * T))
            if length == HOLD:
                yield "is held", world._replace(line=line, holds=world.holds - 1, spared=spared)
        if not world.resumed:
            line, _, _, changed = self.queue.resume(world.line, world.now, NOTICE)
            if changed:
                yield "is resumed", self.informed(world._replace(line=line, resumed=True))
        if not due and world.now < self.end:
            yield "a microsecond passes", world._replace(now=world.now + 1)

    def asks(self, world: World, worker: Worker, others: tuple[Worker, ...]) -> Iterator[tuple[str, World]]:
        line, granted, _, persist = self.queue.reserve(
            world.line, world.now, (worker.cost, self.max_wait, NONCE)
        )
        tried = worker._replace(calls=worker.calls - 1)
        if not granted[0]:
            assert not persist, "a refusal persists something"
            assert line == world.line, "a refusal changes something"
            yield "is refused", world._replace(workers=ranked(*others, tried))
            return
        slot = Grant(*granted)
        assert self.max_wait is None or slot.wait_us <= self.max_wait
        taken = world._replace(line=line)
        if slot.wait_us:
            waiting = tried._replace(slot=slot, due=slot.departs_at_us)
            yield "takes a slot", taken._replace(workers=ranked(*others, waiting))
        else:
            yield "leaves at once", self.leaves(taken, others, tried, slot, world.now)
        if world.troubles:
            yield (
                "takes a slot and never gets the answer",
                taken._replace(
                    workers=ranked(*others, tried),
                    troubles=world.troubles - 1,
                    ghosts=ranked(*world.ghosts, slot),
                ),
            )

    def confirms(self, world: World, worker: Worker, others: tuple[Worker, ...]) -> tuple[str, World]:
        assert worker.slot is not None
        due = self.due(world, worker.slot)
        if due <= world.now:
            return "leaves", self.leaves(world, others, free(worker), worker.slot, due)
        return "learns of the hold", world._replace(workers=ranked(*others, worker._replace(due=due)))

    def cancels(self, world: World, worker: Worker, others: tuple[Worker, ...]) -> tuple[str, World]:
        line, given_back, _, _ = self.queue.cancel(world.line, world.now, worker.slot)
        assert given_back, "a slot that is still to come cannot be given back"
        again = self.queue.cancel(line, world.now, worker.slot)
        assert again[:2] == (line, False), "a slot is given back twice"
        return "cancels", world._replace(line=line, workers=ranked(*others, free(worker)))

    def crashes(self, world: World, worker: Any, others: tuple[Worker, ...]) -> tuple[str, World]:
        ghosts = ranked(*world.ghosts, *self.owned(worker))
        return "crashes", world._replace(workers=others, troubles=world.troubles - 1, ghosts=ghosts)

    def owned(self, worker: Any) -> tuple[Grant, ...]:
        """The slots that a worker owns, and would leave unused if it crashed."""
        return () if worker.slot is None else (worker.slot,)

    def due(self, world: World, slot: Grant) -> int:
        """When a slot is due, as a worker computes it from a confirmation."""
        generation, shift, until, _, _ = self.queue.confirm(world.line, world.now)
        assert generation == slot.generation
        return max(slot.due_us + shift, until)

    def at(self, world: World) -> int:
        """The time of the queue's own, which stands still while it is held: under windows, from the first
        call on that would leave before the end.
        """
        return line_time(world.line, world.now) if world.line else world.now

    def informed(self, world: World) -> World:
        """While a key is held every worker looks often enough to notice its end."""
        workers = [
            worker._replace(due=self.due(world, worker.slot)) if worker.slot else worker
            for worker in world.workers
        ]
        return world._replace(workers=ranked(*workers))

    def leaves(
        self, world: World, others: tuple[Worker, ...], worker: Worker, slot: Grant, due: int
    ) -> World:
        return world._replace(workers=ranked(*others, worker), left=ranked(*world.left, (due, slot)))

    # laws

    def check(self, world: World) -> None:
        """All that has to hold in every world."""
        # A waiting worker is as good as gone, at the instant of its slot now.
        instants = [*world.left, *((self.due(world, slot), slot) for slot in self.to_come(world))]
        self.keeps_the_limit(sorted((due, slot.cost) for due, slot in instants))
        self.newcomer_is_served(world, [slot for _, slot in instants])
        for due, slot in instants:
            assert due <= world.now + self.units * T + HOLD, f"waits for ever: {slot}"

    def to_come(self, world: World) -> list[Grant]:
        """The slots that may still be used."""
        return [worker.slot for worker in world.workers if worker.slot]

    def keeps_the_limit(self, instants: list[tuple[int, int]]) -> None:
        """Of calls that follow each other, all but what may burst take their intervals."""
        for first, (earlier, units) in enumerate(instants):
            total = units
            for later, cost in instants[first + 1 :]:
                total += cost
                least = (total - max(self.queue.burst, cost)) * T
                assert later - earlier >= least, f"too close: {instants}"

    def newcomer_is_served(self, world: World, slots: list[Grant]) -> None:
        """In the first free stretch of the queue's own time: no later, and no earlier."""
        taken = [*slots, *world.ghosts]
        first, last = self.stands(world, taken), self.stands(world, [*taken, *world.late])
        start = self.newcomer(world)[8]
        assert start in (first, last), f"stands at {start}, and {first} is free"

    def stands(self, world: World, taken: list[Grant]) -> int:
        start = self.at(world)
        places = [*world.spared, *((slot.start, slot.end) for slot in taken)]
        while any(first < start + T and start < last for first, last in places):
            start += 1
        return start

    def newcomer(self, world: World) -> Any:
        return self.queue.reserve(world.line, world.now, (1, None, NONCE))[1]


class WindowRules(Rules):
    """The same under a window, too: places are taken as they are, so a newcomer may get a later one."""

    widest = 2 * T

    def keeps_the_limit(self, instants: list[tuple[int, int]]) -> None:
        super().keeps_the_limit(instants)
        for start, _ in instants:
            within = [cost for due, cost in instants if start <= due < start + WINDOW]
            assert sum(within) <= LIMIT, f"too many in a window: {instants}"

    def newcomer_is_served(self, world: World, slots: list[Grant]) -> None:
        """Where no place is free, at the first instant at which no call is overtaken and all limits hold."""
        due = self.newcomer(world)[10]
        taken = [*slots, *world.ghosts]
        # A call that moves into the place of a dearer one has all of it.
        first = max([self.at(world), *(max(slot.due_us, slot.end) for slot in taken)])
        while sum(slot.cost for slot in taken if first - WINDOW < slot.due_us) >= LIMIT:
            first += 1
        book = world.line[6] if world.line else ()
        # A free place that has passed is over at its end, not before.
        passed = self.widest if book and book[:2] != (NONE, NOTHING_GONE) else 0
        assert due < first + passed or due == first, f"leaves at {due}, and could at {first}"
        is_free = bool(book) and any(book[0])
        assert due >= first or is_free, f"leaves at {due}, and overtakes a call at {first}"


def free(worker: Worker) -> Worker:
    return worker._replace(slot=None, due=0)


def ranked(*things: Any) -> tuple[Any, ...]:
    """Workers in one fixed order, so that worlds which differ in nothing else are equal."""
    return tuple(sorted(things, key=hash))


def without(workers: tuple[Worker, ...], one: Worker) -> tuple[Worker, ...]:
    index = workers.index(one)
    return workers[:index] + workers[index + 1 :]


def paced(burst: int) -> LeakyQueue:
    return LeakyQueue([Rate.of(1, T)], burst, "smooth", ())


def explored(rules: Rules, *workers: Worker, holds: int = 1, troubles: int = 1) -> int:
    start = World(START, None, ranked(*workers), holds, troubles=troubles)
    return explore(start, rules.steps, rules.check)


@pytest.mark.parametrize("max_wait", [None, 3])
@pytest.mark.parametrize("burst", [1, 2])
def test_three_workers_in_any_order(burst: int, max_wait: int | None) -> None:
    assert explored(Rules(paced(burst), 3, START + 5, max_wait), *[Worker(1)] * 3) > 10_000


def test_a_call_that_costs_two() -> None:
    assert (
        explored(Rules(paced(1), 4, START + 4, None), Worker(1), Worker(1), Worker(1, cost=2), troubles=0)
        > 5_000
    )


def test_two_workers_with_two_calls_each() -> None:
    assert explored(Rules(paced(1), 4, START + 3, None), *[Worker(2)] * 2) > 10_000


def test_two_workers_that_are_held_twice() -> None:
    assert explored(Rules(paced(2), 4, START + 6, None), *[Worker(1)] * 2, holds=2) > 10_000


@pytest.mark.parametrize("dear", [1, 2])
def test_three_workers_under_a_window(dear: int) -> None:
    window = SlidingWindowLog(LIMIT, timedelta(microseconds=WINDOW))
    rules = WindowRules(LeakyQueue([Rate.of(1, T)], 1, "smooth", [window]), 2 * WINDOW, START + 4, None)
    assert explored(rules, Worker(1), Worker(1), Worker(1, cost=dear), troubles=2 - dear) > 5_000


def test_a_queue_that_forgets_waiting_calls_is_found() -> None:
    class Forgetful(LeakyQueue):
        def cancel(self, state: Any, now: int, grant: Grant, skew: int = 0) -> Any:
            after, given_back, life, persist = super().cancel(state, now, grant, skew)
            return (None if after and after[0] > grant.end else after), given_back, life, persist

    with pytest.raises(LawBrokenError, match="after: leaves at once, takes a slot, takes a slot, cancels"):
        explored(Rules(Forgetful([Rate.of(1, T)], 1, "smooth", ()), 3, START + 5, None), *[Worker(1)] * 3)
