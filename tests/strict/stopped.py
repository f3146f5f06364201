"""Processes that are stopped for a while, in virtual time: what they do is late, and exactly so."""

from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from shapekit import ManualClock, Shaper
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.rate import SECOND_US

from ..queue.slow_store import FarStore, in_another_process

TRIP_S, LOOK_US = 0.001, 1


class SlowClock(ManualClock):
    """Virtual time in which whatever runs takes some: so long for each look at the clock."""

    def __init__(self, look_us):
        super().__init__(1_000.0, autojump=True)
        self._look_us = look_us
        self.looks = 0

    def now_us(self):
        self.looks += 1
        self._now_us += self._look_us
        return self._now_us

    def stall(self, seconds):
        self._now_us += round(seconds * SECOND_US)


class Stopping:
    """The clock of a process that is stopped at times: no call in it wakes until it runs again."""

    def __init__(self, clock, stops):
        self._clock = clock
        self._stops_us = [(round(start * SECOND_US), round(end * SECOND_US)) for start, end in stops]
        self.now_us, self.wall_us = clock.now_us, clock.wall_us

    def sleep(self, seconds, alarm):
        raise NotImplementedError("these processes are event loops")

    async def asleep(self, seconds, alarm):
        await self._clock.asleep(seconds, alarm)
        while (stopped_us := self._left_us()) > 0:
            await self._clock.asleep(stopped_us / SECOND_US, AsyncAlarm())

    def _left_us(self):
        now = self._clock.now_us()
        return max((end - now for start, end in self._stops_us if start <= now < end), default=0)


class StoppingStore(FarStore):
    """A store as one process sees it: what it has sent arrives, and answers wait until it runs again."""

    def abind(self, name, program, operation):
        apply = self._bind_there(name, program, operation)

        async def far(key, *args):
            await self.wire.asleep(TRIP_S / 2, AsyncAlarm())
            answer = apply(key, *args)
            await self.clock.asleep(TRIP_S / 2, AsyncAlarm())
            return answer

        return far

    def seen_by(self, clock):
        process = in_another_process(self)
        process.wire, process.clock = self.clock, clock
        return process


class Fleet:
    """A shaper for each process, and when calls have left. `stops` has for each process when it is stopped.

    A process alone has its store in its own memory.
    """

    def __init__(self, rate, stops, **options):
        self._clock = clock = SlowClock(LOOK_US)
        self._origin = clock.now()
        self.left = []
        """When, in seconds from the start."""
        self.arrived, self.order = [], []
        """The callers in the order in which they asked for a slot, and in the order in which they left."""
        clocks = [Stopping(clock, [(self._origin + a, self._origin + b) for a, b in each]) for each in stops]
        options = {"name": "stopped", **options}
        if len(clocks) == 1:
            self._shapers = [Shaper(rate, clock=clocks[0], **options)]
        else:
            store = StoppingStore(clock, TRIP_S)
            self._shapers = [Shaper(rate, store=store.seen_by(each), **options) for each in clocks]
        self._clocks = clocks

    @property
    def now(self):
        return self._clock.now() - self._origin

    def run(self, backend, *, callers, seconds):
        """Each caller of each process makes one call after the other, as long as that takes."""
        anyio.run(partial(self._play, callers, seconds), backend=backend)

    async def _play(self, callers, seconds):
        async with anyio.create_task_group() as tasks:
            for _ in range(callers):
                for shaper, clock in zip(self._shapers, self._clocks, strict=True):
                    tasks.start_soon(self._call, shaper, clock, seconds)
                    # Trio starts what is new in any order, but before it goes round a second time.
                    await checkpoint()
                    await checkpoint()

    async def _call(self, shaper, clock, seconds):
        while self.now < seconds:
            reservation = await shaper.aschedule()
            self.left.append(self.now)
            self.order.append(reservation.grant.start)
            # What a call takes.
            await clock.asleep(0.005, AsyncAlarm())
