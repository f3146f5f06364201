"""A store behind a wire: every call is a trip, in virtual time, and is counted."""

import threading
from collections import Counter
from copy import copy

from shapekit import MemoryStore
from shapekit._runtime.drivers import AsyncAlarm


class NotingStore(MemoryStore):
    """Answers at once, and notes the operations."""

    def __init__(self, clock):
        super().__init__(clock)
        self.operations = []

    def bind(self, name, program, operation):
        apply = super().bind(name, program, operation)

        def noting(*args):
            self.operations.append(operation)
            return apply(*args)

        return noting


class SlowStore(MemoryStore):
    """Answers in the middle of each trip. `broken` is raised instead of an answer, where it is set."""

    shared = True
    instant = False
    ahead_s = 0

    def __init__(self, clock, trip_s):
        super().__init__(clock)
        self.trips = Counter()
        self.broken = None
        self._half_s = trip_s / 2

    def bind(self, name, program, operation):
        apply = self._bind_there(name, program, operation)

        def slow(key, *args):
            self.trips[operation] += 1
            self.clock.sleep(self._half_s, threading.Event())
            result = self._answered(apply, key, args)
            self.clock.sleep(self._half_s, threading.Event())
            return result

        return slow

    def abind(self, name, program, operation):
        apply = self._bind_there(name, program, operation)

        async def slow(key, *args):
            self.trips[operation] += 1
            await self.clock.asleep(self._half_s, AsyncAlarm())
            result = self._answered(apply, key, args)
            await self.clock.asleep(self._half_s, AsyncAlarm())
            return result

        return slow

    def _bind_there(self, name, program, operation):
        return super().bind(name, program, operation)

    def _answered(self, apply, key, args):
        if self.broken is not None:
            raise self.broken
        return apply(key, *args)


class Elsewhere:
    """A clock that is an hour ahead of another."""

    def __init__(self, clock):
        self._clock = clock
        self.sleep, self.asleep = clock.sleep, clock.asleep

    def now_us(self):
        return self._clock.now_us() + FarStore.ahead_s * 1_000_000

    wall_us = now_us


class FarStore(SlowStore):
    """A store whose own clock decides, so that callers have to convert its time to theirs."""

    clock_decides = False
    ahead_s = 3_600

    def __init__(self, clock, trip_s):
        super().__init__(clock, trip_s)
        self._there = MemoryStore(Elsewhere(clock))

    def _bind_there(self, name, program, operation):
        return self._there.bind(name, program, operation)

    def reset(self, name, program, key):
        self._there.reset(name, program, key)


def in_another_process(store):
    """The same truth, as a process sees it that shares nothing else."""
    return copy(store)
