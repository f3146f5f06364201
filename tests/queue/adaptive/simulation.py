"""A simulation in virtual time: workers that find the rate of a server which does not state it.

Everything that happens is an event in a heap, and random values are drawn from a seed. The
workers' tasks call again and again, so that a call is always waiting.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from shapekit import Adaptive, ManualClock, MemoryStore, Shaper, listen
from shapekit.events import Event, RateChanged
from shapekit.shaper import Reservation

LOOK_S = 0.1
START_S = 1_700_000_000.0
BETWEEN = Adaptive(min="1/s", max="50/s")


class TokenBucket:
    """A server that lets `rate(now)` a second pass, and `burst` at once; a refusal says when to return."""

    def __init__(self, rate: Callable[[float], float], burst: float, retry_after: float | None = 1.0) -> None:
        self.rate, self.burst, self.retry_after = rate, burst, retry_after
        self._level, self._at = burst, 0.0

    def ask(self, now: float) -> float | None:
        """None if the call passes, else for how long to stay away."""
        self._level = min(self.burst, self._level + (now - self._at) * self.rate(now))
        self._at = now
        if self._level < 1:
            return self.retry_after or 0.0
        self._level -= 1
        return None


class FixedWindow:
    """A server that counts by the clock; a refusal says when the window ends."""

    def __init__(self, rate: Callable[[float], float], window: float, retry_after: bool = True) -> None:
        self.rate, self.window, self.retry_after = rate, window, retry_after
        self._number, self._used = -1, 0

    def ask(self, now: float) -> float | None:
        """None if the call passes, else for how long to stay away."""
        number = int(now // self.window)
        if number != self._number:
            self._number, self._used = number, 0
        if self._used >= round(self.rate(now) * self.window):
            return (number + 1) * self.window - now if self.retry_after else 0.0
        self._used += 1
        return None


class Process:
    """What a worker has: a shaper of its own on the store that all share."""

    def __init__(self, store: MemoryStore, between: Adaptive) -> None:
        self.shaper = Shaper(adaptive=between, store=store, name="api")

    def reserve(self) -> Reservation:
        """A slot."""
        return self.shaper.reserve()

    def remaining(self, reservation: Reservation) -> float:
        """How long until it comes."""
        return self.shaper.remaining(reservation)

    def succeeded(self, reservation: Reservation, age: float) -> None:
        """Its call was answered."""
        self.shaper.adaptive.succeeded(age=age, waited=reservation.delay > 0)

    def throttled(self, reservation: Reservation, age: float, hold: float) -> None:
        """Its call was refused."""
        self.shaper.adaptive.throttled(age=age, hold=hold)


class Call(NamedTuple):
    """A call that was answered."""

    left: float
    arrived: float
    passed: bool
    worker: int


class Run(NamedTuple):
    """What became of all calls."""

    calls: list[Call]
    strangers: list[float]
    """When calls of others passed."""
    rates: list[tuple[float, float]]
    """The rate, whenever it changed."""

    def passed(self, start: float, end: float) -> float:
        """Calls a second that passed."""
        return sum(call.passed for call in self.calls if start <= call.arrived < end) / (end - start)

    def refused(self, start: float, end: float) -> float:
        """The share of calls that were refused."""
        outcomes = [call.passed for call in self.calls if start <= call.arrived < end]
        return 1 - sum(outcomes) / len(outcomes)


def simulate(
    server: Any,
    *,
    seconds: float,
    seed: int,
    workers: int = 4,
    between: Adaptive = BETWEEN,
    tasks: int = 24,
    latency: tuple[float, float] = (0.05, 0.25),
    strangers: Callable[[float], float] | None = None,
) -> Run:
    """Let the tasks of some workers call for so many seconds, each again as soon as it was answered.

    `latency`: from leaving to being answered; each half of it is drawn, so calls overtake each other on both
    ways. `strangers`: how many calls a second others send, at random.
    """
    clock = ManualClock(START_S)
    store = MemoryStore(clock)
    crew = [Process(store, between) for _ in range(workers)]
    rates: list[tuple[float, float]] = []
    rng = random.Random(seed)
    order = count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    calls: list[Call] = []
    passed_by: list[float] = []
    sleeping: dict[int, Callable[[float], None]] = {}

    def at(when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (when, next(order), what))

    def stay(now: float) -> None:
        """The sleeper was woken before."""

    def changed(now: float) -> None:
        """Waiting calls look at whole tenths of a second: when this one ends, all notice the change."""
        at((int(now / LOOK_S + 1e-6) + 1) * LOOK_S, wake)

    def wake(now: float) -> None:
        for place in sorted(sleeping):
            sleeping.pop(place)(now)

    def begin(number: int) -> Callable[[float], None]:
        worker = crew[number]

        def ask(now: float) -> None:
            look(worker.reserve(), now)

        def look(reservation: Any, now: float) -> None:
            left = worker.remaining(reservation)
            if left <= 1e-6:
                leave(reservation, now)
                return
            place = next(order)
            sleeping[place] = lambda now: look(reservation, now)
            at(now + left, lambda now: sleeping.pop(place, stay)(now))  # noqa: PLW0108 - looked up then

        def leave(reservation: Any, left: float) -> None:
            def arrive(now: float) -> None:
                held = server.ask(now)
                calls.append(Call(left, now, held is None, number))
                at(now + rng.uniform(*latency) / 2, answered(held))

            def answered(held: float | None) -> Callable[[float], None]:
                def finish(now: float) -> None:
                    if held is None:
                        worker.succeeded(reservation, now - left)
                    else:
                        worker.throttled(reservation, now - left, held)
                        changed(now)
                    ask(now)

                return finish

            at(left + rng.uniform(*latency) / 2, arrive)

        return ask

    def stranger(now: float) -> None:
        if server.ask(now) is None:
            passed_by.append(now)
        at(now + rng.expovariate(max(strangers(now), 1e-3)), stranger)  # type: ignore[misc]

    def note(event: Event) -> None:
        if isinstance(event, RateChanged):
            rates.append((clock.now() - START_S, event.rate))
            changed(clock.now() - START_S)

    for number in range(workers):
        for _ in range(tasks // workers):
            at(rng.uniform(0, 0.5), begin(number))
    if strangers is not None:
        at(0.0, stranger)
    with listen(note):
        while events and events[0][0] < seconds:
            now, _, what = heapq.heappop(events)
            clock.set(START_S + now)
            what(now)
    return Run(calls, passed_by, rates)
