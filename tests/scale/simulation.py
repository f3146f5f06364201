"""A fleet on virtual time: the program that decides is the real one, the network is made up.

Every worker is a generator that yields how long it does nothing, in microseconds; between two yields it
does one thing at one instant. The store is one state of one `LeakyQueue`, which decides whatever arrives
in the order of arrival. There are no threads and no clocks, so ten thousand workers are ten thousand
generators and a heap, and the same seed gives the same run.

What a worker does is what `_queue.waiter` does over a network: it asks for a slot (a trip), sleeps for the
delay of the answer, from the moment at which the answer arrived, asks once more if it had to wait (a trip, or
the answer that another caller of its process got within the last 20 ms), and then its call travels to the
upstream.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from shapekit._queue.waiter import FRESH_US
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.rate import SECOND_US, parse_rates

__all__ = ["Call", "Fleet", "Network", "Run", "most_in_window", "pace", "run"]


class Network(NamedTuple):
    """Log-normal times of one way, from `least_us` to `most_us`: what lies beyond is cut."""

    median_us: int
    sigma: float
    least_us: int = 1
    most_us: int = 10 * SECOND_US

    def way_us(self, chance: random.Random) -> int:
        """How long one message takes."""
        drawn = round(math.exp(chance.normalvariate(math.log(self.median_us), self.sigma)))
        return min(self.most_us, max(self.least_us, drawn))


class Fleet(NamedTuple):
    """What is simulated."""

    workers: int
    rate: str
    store: Network
    upstream: Network
    seconds: int = 10
    headroom: float = 0.0
    callers: int = 1
    """Workers of one process, which share what they ask before leaving."""
    pause_us: int = 0
    """How long a worker rests after each call, half as long at least; zero: it always has the next one."""
    crash: float = 0.0
    """The share of workers that die half-way through, wherever they are."""
    give_up: float = 0.0
    """The share of slots that are given back while calls wait for them."""
    seed: int = 1


class Call(NamedTuple):
    """One call that left."""

    worker: int
    slot_us: int
    """When its slot was, by the store's clock."""
    left_us: int
    came_us: int
    """When it was at the upstream."""
    waited: bool


class Run(NamedTuple):
    """What came of it."""

    fleet: Fleet
    queue: LeakyQueue
    calls: list[Call]
    """In the order of their slots."""
    trips: int
    lost: list[int]
    """The slots of workers that died with one."""
    given_back: int

    @property
    def rate(self) -> float:
        """Calls a second, over the slots from the first one until no more calls came."""
        return pace([call.slot_us for call in self.calls if call.slot_us < self.fleet.seconds * SECOND_US])

    @property
    def trips_per_call(self) -> float:
        """Round trips to the store for each call that left."""
        return self.trips / len(self.calls)

    def fairness(self) -> float:
        """Jain's index of the shares: 1 if all made as many calls, 1/n if one of n made them all."""
        shares = self.shares()
        return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))

    def shares(self) -> list[int]:
        """How many calls each survivor made since all of them have made one: before, the first ones to come
        had the rate to themselves.
        """
        shares = [0] * round(self.fleet.workers * (1 - self.fleet.crash))
        firsts = {call.worker: call.slot_us for call in reversed(self.calls)}
        all_there_us = max(firsts.values())
        for call in self.calls:
            if call.slot_us > all_there_us and call.worker < len(shares):
                shares[call.worker] += 1
        return shares

    def jitter_us(self) -> int:
        """By how much the ways from the slots to the upstream differ."""
        ways = [call.came_us - call.slot_us for call in self.calls]
        return max(ways) - min(ways)

    def late_us(self, part: float) -> int:
        """How long after its slot a call left, at this quantile."""
        late = sorted(call.left_us - call.slot_us for call in self.calls)
        return late[min(len(late) - 1, int(part * len(late)))]

    def overtaken(self) -> float:
        """The share of calls that come to the upstream after one whose slot is later."""
        first, behind = math.inf, 0
        for call in reversed(self.calls):
            behind += call.came_us > first
            first = min(first, call.came_us)
        return behind / len(self.calls)


def pace(ordered: Sequence[int]) -> float:
    """How many a second these instants are."""
    return (len(ordered) - 1) * SECOND_US / (ordered[-1] - ordered[0])


def most_in_window(instants: Sequence[int], window_us: int) -> int:
    """The most instants in any half-open window of this length."""
    ordered, first, most = sorted(instants), 0, 0
    for last, at in enumerate(ordered):
        while ordered[first] <= at - window_us:
            first += 1
        most = max(most, last - first + 1)
    return most


class _Question:
    """A question of a process to the store before calls leave, and the callers that wait for the answer."""

    def __init__(self, sent_us: int) -> None:
        self.sent_us = sent_us
        self.is_open = True
        self.waiting: list[_Life] = []


_Life: TypeAlias = Generator["int | _Question", None, None]


class _World:
    """The time, the store, and all that will happen."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.chance = random.Random(fleet.seed)
        self.queue = LeakyQueue(parse_rates(fleet.rate), None, "smooth", (), fleet.headroom)
        self.state: Any = None
        self.now_us = 0
        self.end_us = fleet.seconds * SECOND_US
        self.calls: list[Call] = []
        self.lost: list[int] = []
        self.trips = self.given_back = 0
        self._questions: dict[int, _Question] = {}
        self._events: list[tuple[int, int, _Life]] = []
        self._order = count()

    def run(self) -> Run:
        """Run all events until no worker asks any more and all calls that have a slot have left."""
        for number in range(self.fleet.workers):
            self._later(self.chance.randrange(SECOND_US), self._worker(number))
        while self._events:
            self.now_us, _, life = heappop(self._events)
            self._go_on(life)
        calls = sorted(self.calls, key=lambda call: call.slot_us)
        return Run(self.fleet, self.queue, calls, self.trips, self.lost, self.given_back)

    def _go_on(self, life: _Life) -> None:
        rest = next(life, None)
        if isinstance(rest, _Question):
            rest.waiting.append(life)
        elif rest is not None:
            self._later(rest, life)

    def _later(self, rest_us: int, life: _Life) -> None:
        heappush(self._events, (self.now_us + rest_us, next(self._order), life))

    def _way(self) -> int:
        return self.fleet.store.way_us(self.chance)

    def _worker(self, number: int) -> _Life:
        fleet = self.fleet
        # The last ones of the fleet are those that die.
        is_doomed = number >= round(fleet.workers * (1 - fleet.crash))
        while self.now_us < self.end_us:
            yield self._way()
            self.trips += 1
            self.state, granted, _, _ = self.queue.reserve(self.state, self.now_us, (1, None, 1))
            grant = Grant(*granted)
            yield self._way()
            if grant.wait_us and self.chance.random() < fleet.give_up:
                yield self.chance.randrange(grant.wait_us)
                yield from self._give_back(grant)
                continue
            if is_doomed and self.now_us + grant.wait_us >= self.end_us // 2:
                self.lost.append(grant.departs_at_us)
                return
            if grant.wait_us:
                yield grant.wait_us
                yield from self._confirm(number // fleet.callers)
            came_us = self.now_us + fleet.upstream.way_us(self.chance)
            self.calls.append(Call(number, grant.departs_at_us, self.now_us, came_us, grant.wait_us > 0))
            yield self.chance.randrange(fleet.pause_us // 2, 3 * fleet.pause_us // 2) if fleet.pause_us else 0

    def _give_back(self, grant: Grant) -> _Life:
        yield self._way()
        self.trips += 1
        self.state, is_back, _, _ = self.queue.cancel(self.state, self.now_us, grant)
        self.given_back += is_back
        yield self._way()

    def _confirm(self, process: int) -> _Life:
        """Ask before leaving, or take the answer that another caller of the process gets or got."""
        question = self._questions.get(process)
        if question is not None and self.now_us - question.sent_us <= FRESH_US:
            if question.is_open:
                yield question
            return
        question = self._questions[process] = _Question(self.now_us)
        yield self._way()
        self.trips += 1
        self.queue.confirm(self.state, self.now_us)
        yield self._way()
        question.is_open = False
        for life in question.waiting:
            self._later(0, life)


def run(fleet: Fleet) -> Run:
    """Play a fleet."""
    return _World(fleet).run()
