"""Hundreds of waiting calls, all started at once: they leave by the law, in order, no later for one stall."""

import asyncio
import threading
import time
from itertools import pairwise

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit import Shaper

from ..benchmarks.departures import inversions
from ..crew import in_threads
from .law import check_departures
from .stopped import SlowClock

RATE = 200


class Crowd:
    """The calls that have left, by their slots, and when they left."""

    def __init__(self, clock=None):
        self.shaper = Shaper(f"{RATE}/s", clock=clock)
        self.left = []

    def note(self, reservation):
        self.left.append((reservation.grant.start, time.monotonic()))

    async def awaited(self):
        self.note(await self.shaper.aschedule())

    def check(self):
        check_departures([at for _, at in self.left], f"{RATE}/s")

    def check_order(self):
        assert all(later > earlier for (_, earlier), (_, later) in pairwise(sorted(self.left)))


@pytest.fixture
def crowd():
    crowd = Crowd()
    yield crowd
    crowd.shaper.close()


@pytest.mark.long
def test_six_hundred_tasks_of_asyncio(crowd):
    async def main():
        await asyncio.gather(*(crowd.awaited() for _ in range(600)))

    asyncio.run(main())
    crowd.check()
    crowd.check_order()


@pytest.mark.long
def test_six_hundred_tasks_of_trio(crowd):
    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(600):
                tasks.start_soon(crowd.awaited)
                await checkpoint()

    anyio.run(main, backend="trio")
    crowd.check()
    crowd.check_order()


@pytest.mark.long
def test_six_hundred_threads(crowd):
    barrier = threading.Barrier(600)

    def member():
        barrier.wait()
        crowd.note(crowd.shaper.schedule())

    in_threads([member] * 600)
    # Which threads run first, and which it keeps so long that they need another slot, the system decides.
    crowd.check()


@pytest.mark.parametrize("look_us", [1, 10, 50])
def test_one_stall_makes_the_others_neither_late_nor_busy(look_us):
    clock, left = SlowClock(look_us), []
    shaper = Shaper(f"{RATE}/s", clock=clock)

    async def caller():
        reservation = await shaper.aschedule()
        left.append((reservation.grant.start, clock.now()))
        if len(left) == 100:
            clock.stall(0.015)

    async def main():
        await asyncio.gather(*(caller() for _ in range(300)))

    asyncio.run(main())
    assert inversions([slot for slot, _ in left]) == 0
    first, second, *_, last = [at for _, at in left]
    # What passed while 300 tasks began, and in the stall, is not made up; the stall costs three slots more.
    assert last - first <= 299 / RATE + (second - first) + 0.015 + 3 / RATE
    # A handful for each call, where nothing is late.
    assert clock.looks <= 20 * 300
