"""A server and workers far away from it, in virtual time: everything is decided by stocks and one queue.

The server runs the pure program; a worker does with its stock what a tender does, on a clock of its own.
Nothing is random but by the seed, and there is no thread, so a run of a minute takes a second.
"""

import heapq
import random
from itertools import count

from shapekit._queue.prefetch import MOST, Ask, GiveBack, Refill, Rest, SlotBuffer, Wait
from shapekit._queue.waiter import KeyState
from shapekit.algorithms.queue.wire import CANCEL_MANY, RESERVE_MANY
from shapekit.testing.timelines import queue

SECOND = 1_000_000


class World:
    """The events to come, in order."""

    def __init__(self, seed=1):
        self.now = 0
        self.dice = random.Random(seed)
        self._events = []
        self._numbers = count()

    def after(self, delay_us, act):
        heapq.heappush(self._events, (self.now + max(0, round(delay_us)), next(self._numbers), act))

    def run(self, until_us):
        while self._events and self._events[0][0] <= until_us:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until_us


class Server:
    """The one queue; `departures` are the slots of it that were used."""

    def __init__(self, world, rate, **options):
        self.world = world
        self.queue = queue(rate, **options)
        self.state = None
        self.trips = 0
        self.is_down = False

    def fail(self, length_us):
        """From now on, trips that arrive within this time get no answer but an error."""
        self.is_down = True
        self.world.after(length_us, lambda: setattr(self, "is_down", False))

    def call(self, operation, *args):
        self.trips += 1
        state, answer, _, persists = operation.step(self.queue)(self.state, self.world.now, *args)
        if persists:
            self.state = state
        return answer


class Caller:
    """A caller that waits for a slot; `leave(departs_at)` is called when the call leaves."""

    def __init__(self, leave, cost=1, bound_us=None):
        self.leave = leave
        self.cost = cost
        self.bound_us = bound_us


class Worker:
    """One process: callers, a stock, and what a tender does, over trips that take time."""

    def __init__(self, world, server, *, prefetch_us, trip_us, jitter_us=0, ahead_us=0):
        self.world = world
        self.server = server
        self.buffer = SlotBuffer(prefetch_us, server.queue, clock_decides=False)
        self._trip_us = trip_us
        self._jitter_us = jitter_us
        self._ahead_us = ahead_us
        self._waiting = []
        self._is_away = False
        self._wakes_at = None
        self.is_dead = False
        self.left = []
        """For each call that has left: its slot with the holds since, by the server's clock; when it left."""
        self.trips = 0
        self.most_owned = 0

    @property
    def now(self):
        return self.world.now + self._ahead_us

    # callers

    def ask(self, caller):
        if self.is_dead:
            return
        if caller.cost == 1:
            self.buffer.come(self.now)
        granted = None
        if not self._waiting:
            granted = self.buffer.take(self.now, caller.cost, caller.bound_us)
        if granted is None:
            self._waiting.append(caller)
            self._fetch_on()
        else:
            self._depart(caller, granted)

    def _depart(self, caller, granted):
        if not granted[0]:
            caller.leave(None)
            return

        def leave():
            if self.is_dead:
                return
            if granted[1]:
                known = self.buffer.known(self.now)
                if known is None:
                    self._confirm(leave)
                    return
                slot_us = granted.due_us + known.shift_us
                if slot_us < known.until_us:
                    # The slot had passed before a hold.
                    self.buffer.miss(granted)
                    self.ask(caller)
                    return
                if slot_us > self.now - known.ahead_us:
                    self.world.after(slot_us - self.now + known.ahead_us, leave)
                    return
                self.left.append((slot_us, self.world.now))
            else:
                self.left.append((granted[2], self.world.now))
            caller.leave(granted[2])

        self.world.after(granted[1], leave)

    def _confirm(self, then):
        """A call that leaves asks how the key stands, unless that is known since less than a span ago."""
        self.trips += 1
        sent_us, doubts = self.now, self.buffer.doubts

        def arrive():
            self.server.trips += 1
            standing = self.server.queue.confirm(self.server.state, self.world.now)
            self.world.after(self._way_us(), lambda: back(standing))

        def back(standing):
            self._hear(standing, sent_us, doubts)
            then()

        self.world.after(self._way_us(), arrive)

    def _hear(self, standing, sent_us, doubts):
        generation, shift_us, until_us, there_us, mark_us = standing
        key_state = KeyState(generation, shift_us, until_us, self.now - there_us, mark_us=mark_us)
        self.buffer.hear(key_state, sent_us, self.now, doubts)

    def _way_us(self):
        return self._trip_us / 2 + self.world.dice.randint(0, self._jitter_us)

    def kill(self):
        self.is_dead = True

    # what a tender does

    def _fetch_on(self):
        if self._is_away or self.is_dead:
            return
        while self._waiting:
            caller = self._waiting[0]
            granted = self.buffer.take(self.now, caller.cost, caller.bound_us)
            if granted is None:
                break
            del self._waiting[0]
            self._depart(caller, granted)
        todo = self.buffer.next(self.now, len(self._waiting))
        self.most_owned = max(self.most_owned, len(self.buffer))
        if isinstance(todo, Rest):
            return
        if isinstance(todo, Wait):
            if todo.until_us != self._wakes_at:
                self._wakes_at = todo.until_us
                self.world.after(todo.until_us - self.now, self._fetch_on)
            return
        self._go(todo)

    def _go(self, todo):
        self._is_away = True
        self.trips += 1
        callers = self._waiting[:MOST] if isinstance(todo, Refill) else []
        del self._waiting[: len(callers)]
        sent_us, doubts = self.now, self.buffer.doubts
        there, back = self._way_us(), self._way_us()

        def arrive():
            if self.server.is_down:
                self.world.after(back, lambda: self._failed(todo, callers))
            elif isinstance(todo, GiveBack):
                self.server.call(CANCEL_MANY, todo.grants)
                self.world.after(back, self._return)
            elif isinstance(todo, Ask):
                self.server.trips += 1
                standing = self.server.queue.confirm(self.server.state, self.world.now)
                self.world.after(back, lambda: self._return(sent_us, doubts, standing))
            else:
                calls = [(caller.cost, caller.bound_us, 7) for caller in callers]
                answer = self.server.call(RESERVE_MANY, calls, (todo.further, todo.span_us, 7))
                self.world.after(back, lambda: self._return(sent_us, doubts, *answer, callers))

        self.world.after(there, arrive)

    def _failed(self, todo, callers):
        self._is_away = False
        self.buffer.failed()
        if isinstance(todo, GiveBack):
            self.buffer.keep(todo.grants, self.now)
        elif isinstance(todo, Ask):
            callers, self._waiting = self._waiting, []
        for caller in callers:
            caller.leave(None)
        self._fetch_on()

    def _return(self, sent_us=None, doubts=None, standing=None, granted=None, callers=()):
        if self.is_dead:
            return
        self._is_away = False
        if standing is not None:
            self._hear(standing, sent_us, doubts)
        if granted is not None:
            answers = self.buffer.fill(granted[: len(callers)], granted[len(callers) :], self.now)
            for caller, answer in zip(callers, answers, strict=True):
                self._depart(caller, answer)
        self._fetch_on()


# loads


def busy(world, worker, threads, work_us=0):
    """Threads that make one call after the other, each of which takes a while."""

    def start():
        worker.ask(Caller(again))

    def again(_):
        world.after(work_us and world.dice.randint(work_us // 2, work_us * 3 // 2), start)

    for _ in range(threads):
        world.after(world.dice.randint(0, 1_000), start)


def bursts(world, worker, size, every_us):
    """So many callers at once, again and again."""

    def burst():
        for _ in range(size):
            worker.ask(Caller(lambda _: None))
        world.after(every_us, burst)

    burst()


def poisson(world, worker, per_second):
    """Callers that come at random."""

    def one():
        worker.ask(Caller(lambda _: None))
        world.after(world.dice.expovariate(per_second) * SECOND, one)

    world.after(world.dice.expovariate(per_second) * SECOND, one)


def jain(shares):
    """1 where all have the same, 1/n where one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
