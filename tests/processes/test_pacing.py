"""In real time: the rate, the order, and never too many in any second.

The figures are the project's promise: within half a percent of the rate, at most 202 in any second, in
the order of the calls. A machine that stalls crowds those who were due meanwhile together, without the
shaper having done anything wrong; so what a witness has seen of that is granted, and nobody may ever be
early. That it is not the shaper which keeps the loop busy is counted by the gate of the benchmarks.
"""

import asyncio
import os
import threading
import time

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit import Shaper, SystemClock

from ..witness import watched
from .pace import Departure, Pace

RATE = 200
SECOND = 1_000_000
PATIENCE_S = 30.0


class Departures:
    """Who left when, beside what they were promised on the shaper's own clock."""

    def __init__(self):
        self.clock = SystemClock()
        self.shaper = Shaper(f"{RATE}/s", clock=self.clock)
        self.names = []
        self.left = []

    def note(self, name, turn):
        at, now = time.monotonic(), self.clock.now_us()
        slot = turn.grant.departs_at_us
        self.names.append(name)
        self.left.append(Departure(at, (now - slot) / SECOND, slot, turn.delay > 0))

    def check(self, stalls):
        pace = Pace(self.left, RATE, stalls)
        assert set(pace.gaps) == {0}, pace
        assert pace.earliest >= 0, pace
        assert abs(pace.rate - RATE) <= RATE * 0.005, pace
        # Whoever was stalled leaves beside those whose slot it is then.
        assert pace.most_in_a_second <= RATE * (1 + pace.stalled) + 2, pace
        assert pace.median <= 1 / RATE, pace
        assert pace.idle <= pace.stalled, pace


@pytest.fixture
def departures():
    departures = Departures()
    yield departures
    departures.shaper.close()


CROWD = 600


def test_six_hundred_waiters_on_asyncio(departures):
    async def waiter(name):
        departures.note(name, await departures.shaper.aschedule())

    async def main():
        await asyncio.gather(*map(waiter, range(CROWD)))

    with watched(os.getpid()) as witness:
        asyncio.run(main())
    assert departures.names == list(range(CROWD))
    departures.check(witness.stalls)


def test_six_hundred_waiters_on_trio(departures):
    async def waiter(name):
        departures.note(name, await departures.shaper.aschedule())

    async def main():
        async with anyio.create_task_group() as tasks:
            for name in range(CROWD):
                tasks.start_soon(waiter, name)
                # Trio starts what is new in any order, but before it goes round a second time.
                await checkpoint()
                await checkpoint()

    with watched(os.getpid()) as witness:
        anyio.run(main, backend="trio")
    assert departures.names == list(range(CROWD))
    departures.check(witness.stalls)


def test_forty_threads_share_two_hundred_a_second(departures):
    barrier = threading.Barrier(41)

    def member(name):
        barrier.wait(PATIENCE_S)
        for _ in range(10):
            turn = departures.shaper.schedule()
            departures.note(name, turn)

    threads = [threading.Thread(target=member, args=(name,), daemon=True) for name in range(40)]
    for thread in threads:
        thread.start()
    with watched(os.getpid()) as witness:
        # All of them have asked before the first of them may leave.
        departures.shaper.hold(0.2)
        barrier.wait(PATIENCE_S)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert len(departures.left) == 400
    departures.check(witness.stalls)
