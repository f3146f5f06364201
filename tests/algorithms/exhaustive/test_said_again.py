"""Every short history of reserve, cancel and settle, each repeated any number of times, with lost answers.

The truth is a list of calls and of what each cost, by its last settlement. A quota has to have
counted that, no more and no less, and a newcomer must not leave before what a line without the calls that
are gone allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from shapekit import FixedWindow, Quota, Rate, SlidingWindow, SlidingWindowLog
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.quota import quotas_of

from .explore import LawBrokenError, explore

T = 2
START = 1_000
WORDS = (0, 1, 3)


class Call(NamedTuple):
    """One call: the slot as its caller knows it, what it costs in truth, and whether it was given back."""

    slot: Grant
    units: int
    is_known: bool = True
    is_back: bool = False


class World(NamedTuple):
    now: int
    line: Any
    calls: tuple[Call, ...] = ()
    acts: int = 0
    is_settled: bool = False


class Rules:
    """What can happen with one queue."""

    def __init__(self, queue: LeakyQueue, most: int, acts: int) -> None:
        self.queue = queue
        self.most = most
        self.acts = acts

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        if world.acts == self.acts:
            return
        acted = world._replace(acts=world.acts + 1)
        if len(world.calls) < self.most:
            for cost in (1, 2):
                line, granted, _, _ = self.queue.reserve(world.line, world.now, (cost, None, 7))
                assert granted[0]
                call = Call(Grant(*granted), cost)
                yield f"reserves {cost}", acted._replace(line=line, calls=(*world.calls, call))
        yield "time passes", acted._replace(now=world.now + T)
        for index, call in enumerate(world.calls):
            line, is_back, _, changes = self.queue.cancel(world.line, world.now, call.slot)
            may = call.is_known and not call.is_back and call.slot.due_us >= world.now and call.units > 0
            assert is_back == may, f"a cancel is answered {is_back}"
            assert changes or line == world.line
            if is_back:
                yield f"{index} cancels", with_call(acted, line, index, call._replace(units=0, is_back=True))
            for actual in WORDS:
                yield from self.settles(world, acted, index, actual)

    def settles(self, world: World, acted: World, index: int, actual: int) -> Iterator[tuple[str, World]]:
        call = world.calls[index]
        acted = acted._replace(is_settled=True)
        line, number, _, changes = self.queue.settle(world.line, world.now, (call.slot, actual, 9))
        assert bool(number) == (not call.is_back), f"a settlement is answered {number}"
        assert changes == (not call.is_back and actual != call.units)
        again = self.queue.settle(line, world.now, (call.slot, actual, 9))
        assert again[:2] == (line, number), "said again, it does more"
        if not number:
            return
        end = self.queue.end_of(call.slot, actual) if call.is_known else call.slot.start
        known = call.slot._replace(cost=actual, version=number, end=end)
        assert self.queue.settle(line, world.now, (known, actual, 9))[:2] == (line, number)
        yield f"{index} settles {actual}", with_call(acted, line, index, Call(known, actual))
        if changes:
            lost = call._replace(units=actual, is_known=False)
            yield f"{index} settles {actual}, and the answer is lost", with_call(acted, line, index, lost)

    def check(self, world: World) -> None:
        truth = sum(call.units for call in world.calls)
        for usage in quotas_of(self.queue, world.line, world.now, 0):
            assert usage.used == truth, f"{usage.used} counted of {truth}"
        # A call that was settled at nothing occupies nothing, whatever a later settlement makes it cost.
        slots = [call.slot for call in world.calls if call.is_known and not call.is_back]
        waiting = sorted((slot.start, slot.end) for slot in slots if slot.start < slot.end)
        assert all(one[1] <= two[0] for one, two in pairwise(waiting)), "two stand in one place"
        self.is_cold_when_all_are_gone(world)

    def is_cold_when_all_are_gone(self, world: World) -> None:
        """Cancel all that can be: then a newcomer waits no longer than for those that left, as charged."""
        if world.is_settled:
            return
        for order in (world.calls, world.calls[::-1]):
            line, left = world.line, []
            for call in order:
                line, is_back, _, _ = self.queue.cancel(line, world.now, call.slot)
                if not is_back and not call.is_back:
                    left.append(call.slot)
            newcomer = self.queue.reserve(line, world.now, (1, None, 7))[1]
            # The rest of a free place that has passed is lost.
            passed = [call.slot for call in world.calls if call.is_back and call.slot.due_us < world.now]
            last = max([world.now, *(slot.end for slot in (*left, *passed))])
            if all(slot.due_us < world.now for slot in left):
                assert newcomer[10] <= max(last, self.limits_ask(world.now, left)), "waits for a ghost"

    def limits_ask(self, now: int, left: list[Grant]) -> int:
        """When the limits beside the pace admit one more after those that left."""
        states: Any = self.queue.constraints.cold
        for slot in sorted(left, key=lambda slot: slot.due_us):
            at, ahead = slot.due_us, (0, 0, slot.due_us)
            states = self.queue.constraints.charge(states, at, at, slot.cost, ahead)[0]
        return self.queue.constraints.departure(states, now, 1, (0, 0, now))[0]


def with_call(world: World, line: Any, index: int, call: Call) -> World:
    calls = (*world.calls[:index], call, *world.calls[index + 1 :])
    return world._replace(line=line, calls=calls)


QUOTA = Quota("100/fixed:1d")
GATES: dict[str, tuple[Algorithm[Any], ...]] = {
    "a quota": (QUOTA,),
    "a quota and a log": (QUOTA, SlidingWindowLog(3, "10us")),
    "a quota and windows": (QUOTA, FixedWindow(3, "8us"), SlidingWindow(4, "10us", conservative=True)),
}


def explored(gates: tuple[Algorithm[Any], ...], most: int, acts: int, kind: type = LeakyQueue) -> int:
    rules = Rules(kind([Rate.of(1, T)], 1, "smooth", gates), most, acts)
    return explore(World(START, None), rules.steps, rules.check)


@pytest.mark.parametrize("gates", GATES)
def test_repetitions_mint_nothing_and_lose_nothing(gates: str) -> None:
    assert explored(GATES[gates], 2, 5) > 1_000


@pytest.mark.long
@pytest.mark.parametrize("gates", GATES)
def test_repetitions_of_three_calls_mint_nothing_and_lose_nothing(gates: str) -> None:
    assert explored(GATES[gates], 3, 6) > 10_000


def test_a_queue_that_counts_repetitions_is_found() -> None:
    class Credulous(LeakyQueue):
        def settle(self, state: Any, now: int, args: Any, skew: int = 0) -> Any:
            after, number, life, persist = super().settle(state, now, args, skew)
            return (
                (*after[:6], (after[6][0], ((), -1, ()), 0, (), 0, (-1, ())), after[7]),
                number,
                life,
                persist,
            )

    with pytest.raises(LawBrokenError, match="said again, it does more"):
        explored(GATES["a quota"], 1, 3, Credulous)
