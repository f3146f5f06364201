"""In real time: the rate, the order, and never too many in any second.

The figures are the project's promise: within half a percent of the rate, at most 202 in any second, in
the order of the calls. A machine that stalls crowds the calls together that were due meanwhile, through no
fault of the shaper; so a witness records the stalls, and the test allows for them. No call may ever be early.
That it is not the shaper which keeps the loop busy is counted by the gate of the benchmarks.
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

GRACE_S = 0.01
"""How late a call may leave at this rate without asking for another slot."""
MISSED_S = 0.1
"""How long before its departure a late call may have begun to miss slots."""

CROWD = 600
BEGINS_S = 0.1
"""How long a crowd may take to begin."""


class Departures:
    """The calls that left and when, beside their slots on the shaper's own clock."""

    def __init__(self):
        self.clock = SystemClock()
        self.shaper = Shaper(f"{RATE}/s", clock=self.clock)
        self.names = []
        self.left = []

    def note(self, name, reservation):
        at, now = time.monotonic(), self.clock.now_us()
        slot = reservation.grant.departs_at_us
        self.names.append(name)
        self.left.append(Departure(at, (now - slot) / SECOND, slot, reservation.delay > 0))

    def check_order(self, stalls):
        assert sorted(self.names) == list(range(CROWD))
        latest, since = -1, 0.0
        for name, departure in zip(self.names, self.left, strict=True):
            if name > latest:
                latest, since = name, departure.at
            else:
                # A call that the machine made miss its slot again and again leaves late, and others
                # before it.
                assert stalls.longest(since - MISSED_S, departure.at) > GRACE_S, (since, departure)

    def check(self, stalls):
        pace = Pace(self.left, RATE, stalls)
        assert pace.is_unbroken, pace
        assert pace.earliest >= 0, pace
        # Slots that pass while the crowd begins, or while the machine stalls a process, are not made up.
        missed_s = pace.stalled + BEGINS_S
        assert RATE * 1.005 >= pace.rate >= RATE * 0.995 * (1 - missed_s / (CROWD / RATE)), pace
        # In the last 10 ms of a second two more may leave.
        assert pace.most_in_a_second <= RATE * (1 + pace.stalled) + 3, pace
        assert pace.median <= 1 / RATE + missed_s, pace
        assert pace.idle <= pace.stalled, pace


@pytest.fixture
def departures():
    departures = Departures()
    yield departures
    departures.shaper.close()


def test_six_hundred_waiters_on_asyncio(departures):
    async def waiter(name):
        departures.note(name, await departures.shaper.aschedule())

    async def main():
        await asyncio.gather(*map(waiter, range(CROWD)))

    with watched(os.getpid()) as witness:
        asyncio.run(main())
    departures.check_order(witness.stalls)
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
    departures.check_order(witness.stalls)
    departures.check(witness.stalls)


def test_forty_threads_share_two_hundred_a_second(departures):
    barrier = threading.Barrier(41)

    def member(name):
        barrier.wait(PATIENCE_S)
        for _ in range(10):
            reservation = departures.shaper.schedule()
            departures.note(name, reservation)

    threads = [threading.Thread(target=member, args=(name,), daemon=True) for name in range(40)]
    for thread in threads:
        thread.start()
    with watched(os.getpid()) as witness:
        # All threads have asked for their slots before the first of them may leave.
        departures.shaper.hold(0.2)
        barrier.wait(PATIENCE_S)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert len(departures.left) == 400
    departures.check(witness.stalls)
