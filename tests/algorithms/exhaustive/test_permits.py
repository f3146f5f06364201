"""Permits, every interleaving of three workers: enter, leave, renewals, lost messages, crash, expiry, time.

Workers are prompt: a living worker renews before its lease is over. What is checked is what the workers
believe, since that is what they act on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from shapekit import Concurrency
from shapekit.algorithms.inflight import PERMITTED, REFUSED

from .explore import LawBrokenError, explore

LEASE = 1_000_000
TICK = LEASE // 2
START = 10 * LEASE


class Worker(NamedTuple):
    """One worker: its owner, how many calls it has made, and what it believes of the one it is at."""

    owner: int
    made: int = 0
    call: str = ""
    """"sits", "waits", or nothing: it is at no call."""
    lives: bool = True


class World(NamedTuple):
    """The store's state, the time, and what all workers believe."""

    now: int
    room: Any
    workers: tuple[Worker, ...]
    line: tuple[int, ...] = ()
    """The owners that wait, in order of arrival."""
    troubles: int = 1
    """How many crashes and lost messages may still come."""


class Rules:
    """What can happen, until the end of time."""

    def __init__(self, program: Concurrency, calls: int, end: int) -> None:
        self.program = program
        self.calls = calls
        self.end = end

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Whatever may come next."""
        for worker in world.workers:
            if worker.lives:
                yield from self.acts(world, worker)
        if world.now < self.end and not self.is_urgent(world):
            yield "time passes", world._replace(now=world.now + TICK)

    def acts(self, world: World, worker: Worker) -> Iterator[tuple[str, World]]:
        name = f"{worker.owner} "
        if not worker.call:
            if worker.made < self.calls:
                entered, known = self.enters(world, worker)
                yield name + "enters", known
                if world.troubles:
                    yield (
                        name + "enters and never gets the answer",
                        changed(entered, worker, made=worker.made + 1),
                    )
        else:
            left = self.leaves(world, worker)
            yield name + "leaves", left
            if world.troubles:
                lost = left._replace(room=world.room, troubles=world.troubles - 1)
                yield name + "leaves, and the message is lost", lost
                crashed = changed(world, worker, lives=False, call="")
                line = tuple(one for one in world.line if one != worker.owner)
                yield name + "crashes", crashed._replace(troubles=world.troubles - 1, line=line)
        if worker.call == "waits":
            yield name + "watches", self.watches(world, worker)
        yield name + "renews", self.renews(world, worker)

    def enters(self, world: World, worker: Worker) -> tuple[World, World]:
        """What the store has then; and the world in which the worker gets the answer."""
        room, (stands_at, came_with), _, persist = self.program.enter(
            world.room, world.now, worker.owner, worker.made + 1, 1
        )
        assert persist
        assert stands_at != REFUSED
        assert came_with, "an owner that has entered is not there"
        entered = world._replace(room=room, troubles=world.troubles - 1)
        known = changed(
            world, worker, made=worker.made + 1, call="sits" if stands_at == PERMITTED else "waits"
        )._replace(room=room)
        return entered, known if stands_at == PERMITTED else known._replace(line=(*world.line, worker.owner))

    def leaves(self, world: World, worker: Worker) -> World:
        room, _, _, _ = self.program.leave(world.room, world.now, worker.owner, worker.made)
        again, _, _, _ = self.program.leave(room, world.now, worker.owner, worker.made)
        assert again == room, "a permit is given back twice"
        line = tuple(one for one in world.line if one != worker.owner)
        return changed(world, worker, call="")._replace(room=room, line=line)

    def watches(self, world: World, worker: Worker) -> World:
        room, answer, _, _ = self.program.watch(world.room, world.now, worker.owner)
        return self.learns(world, worker, answer)._replace(room=room)

    def renews(self, world: World, worker: Worker) -> World:
        numbers = (worker.made,) if worker.call else ()
        room, answer, _, _ = self.program.keep(world.room, world.now, worker.owner, worker.made, numbers)
        return self.learns(world, worker, answer)._replace(room=room)

    def learns(self, world: World, worker: Worker, answer: tuple[int, ...]) -> World:
        if not worker.call:
            return world
        assert answer[0], f"{worker.owner} lives and was dropped"
        if worker.made not in answer[1:]:
            assert worker.call == "waits", f"{worker.owner} lives and has lost its permit"
            return world
        line = tuple(one for one in world.line if one != worker.owner)
        return changed(world, worker, call="sits")._replace(line=line)

    def is_urgent(self, world: World) -> bool:
        """Whether a living worker has to renew first."""
        owners = world.room[1] if world.room else ()
        until = {owner: ends for owner, ends, _ in owners}
        return any(
            worker.call and until.get(worker.owner, 0) <= world.now + TICK
            for worker in world.workers
            if worker.lives
        )

    # laws

    def check(self, world: World) -> None:
        """All that has to hold in every world."""
        sitting = [worker.owner for worker in world.workers if worker.call == "sits"]
        assert len(sitting) <= self.program.limit, f"too many in flight: {sitting}"
        self.first_come_first_served(world)
        self.ends_well(world)

    def first_come_first_served(self, world: World) -> None:
        _, _, permits, line = world.room or (0, (), (), ())
        numbers = {worker.owner: worker.made for worker in world.workers}
        waiting = [owner for owner, first, last in line if first <= numbers[owner] <= last]
        permitted = [owner for owner, first, last in permits if first <= numbers[owner] <= last]
        believed = [owner for owner in world.line if owner not in permitted]
        assert believed == [owner for owner in waiting if owner in world.line], (
            f"{waiting} is not {world.line}"
        )
        assert list(world.line[len(world.line) - len(believed) :]) == believed, "a call overtakes"

    def ends_well(self, world: World) -> None:
        """Once the dead are forgotten and the living have renewed, those in flight leave, and all get one."""
        for _ in range(3):
            for owner in range(len(world.workers)):
                if world.workers[owner].lives:
                    world = self.renews(world, world.workers[owner])
            world = world._replace(now=world.now + TICK)
        alive = [worker for worker in world.workers if worker.call]
        assert self.program.standing(world.room, world.now) == (
            min(len(alive), self.program.limit),
            max(0, len(alive) - self.program.limit),
        ), "a permit is lost for ever"
        while sitting := [worker for worker in world.workers if worker.call == "sits"]:
            world = self.leaves(world, sitting[0])
            for owner in range(len(world.workers)):
                if world.workers[owner].call:
                    world = self.watches(world, world.workers[owner])
        assert not world.line, "a call waits for ever"
        assert self.program.standing(world.room, world.now) == (0, 0)


def changed(world: World, worker: Worker, **fields: Any) -> World:
    workers = [one._replace(**fields) if one.owner == worker.owner else one for one in world.workers]
    return world._replace(workers=tuple(workers))


def explored(program: Concurrency, calls: int, troubles: int, end: int) -> int:
    rules = Rules(program, calls, START + end * TICK)
    start = World(START, None, tuple(Worker(owner) for owner in range(3)), troubles=troubles)
    return explore(start, rules.steps, rules.check)


@pytest.mark.parametrize("limit", [1, 2])
def test_three_workers_in_any_order(limit: int) -> None:
    assert explored(Concurrency(limit, lease=1), calls=1, troubles=2, end=3) > 1_000


def test_three_workers_with_two_calls_each() -> None:
    assert explored(Concurrency(1, lease=1), calls=2, troubles=0, end=2) > 1_000


def test_a_program_that_forgets_waiting_calls_is_found() -> None:
    class Forgetful(Concurrency):
        def leave(self, state: Any, now: int, owner: int, number: int, skew: int = 0) -> Any:
            room, answer, life, persist = super().leave(state, now, owner, number)
            return (room and (*room[:3], ())), answer, life, persist

    with pytest.raises(LawBrokenError, match="after: 0 enters, 1 enters, 2 enters"):
        explored(Forgetful(1, lease=1), calls=1, troubles=0, end=1)
