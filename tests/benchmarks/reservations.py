"""The cost of a reservation, and how late a waiting call leaves, on threads, asyncio and trio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

import trio

from shapekit import GCRA, Adaptive, Shaper, SystemClock
from shapekit._runtime.process import SWITCH
from shapekit.events import Event

from .library import offering
from .measure import NS, measured
from .progress import say
from .subjects import FAR, Subject, floor
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "reservations"
METHOD = """
`Shaper.reserve`, and `schedule` of a slot that has come. Lateness: 100 waiters ask at once, at 200 calls a
second; the figure is the median delay after the promised slot.
"""
RATE = 200
WAITERS = 100
AT_ONCE = f"{FAR}/s burst 1000"
FOUND = Adaptive(min="10/s", max="50/s")
"""A fast machine makes more than one call in a microsecond."""
BASE = ("shapekit", "reserve")
LATE = "late"


def subject(
    name: str,
    call: str,
    make: Callable[[], Shaper],
    *,
    waits: bool = False,
    listening: Callable[[Shaper], AbstractContextManager[Any]] = nullcontext,
) -> Subject:
    """A row; `waits` where the answer is a slot far ahead, otherwise it must be a slot that has come."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        shaper = make()
        with listening(shaper):
            yield {"shaper": shaper, "reserve": shaper.reserve, "areserve": shaper.areserve}
        shaper.close()

    def admitted(reservation: Any) -> bool:
        return bool(reservation) and (reservation.delay > 0) == waits

    return Subject("shapekit", name, call, opened, admitted)


def looking() -> list[Subject]:
    """The cost of events for a reserve without a listener: one look, and the loop that measures it."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"SWITCH": SWITCH}

    return [
        Subject("floor", "the loop itself", "None", opened, lambda answer: answer is None),
        Subject("floor", "the check for listeners", "not SWITCH.loud", opened, lambda answer: answer is True),
    ]


def ignore(_: Event) -> None:
    """Listen, and do nothing."""


def subjects() -> list[Subject]:
    """The floor, and the calls of a shaper."""
    gate = GCRA("10/s", burst=FAR)
    another = Shaper("10/s")  # its listeners go with it
    return [
        floor(),
        subject("reserve", 'reserve("key")', lambda: Shaper(AT_ONCE)),
        subject("reserve, behind others", 'reserve("key")', lambda: Shaper("10/s"), waits=True),
        subject("reserve, odd T, behind others", 'reserve("key")', lambda: Shaper("7/s"), waits=True),
        subject(
            "reserve, max_wait and cost", 'reserve("key", cost=2, max_wait=1.0)', lambda: Shaper(AT_ONCE)
        ),
        subject("reserve, a GCRA beside", 'reserve("key")', lambda: Shaper(AT_ONCE, gates=(gate,))),
        subject("reserve, adaptive", 'reserve("key")', lambda: Shaper(adaptive=FOUND), waits=True),
        subject("areserve", 'await areserve("key")', lambda: Shaper(AT_ONCE)),
        subject("schedule", 'shaper.schedule("key")', lambda: Shaper(AT_ONCE)),
        subject("aschedule", 'await shaper.aschedule("key")', lambda: Shaper(AT_ONCE)),
        *looking(),
        subject(
            "reserve, with a listener",
            'reserve("key")',
            lambda: Shaper(AT_ONCE),
            listening=lambda shaper: shaper.listen(ignore),
        ),
        subject(
            "reserve, listener of another shaper",
            'reserve("key")',
            lambda: Shaper(AT_ONCE),
            listening=lambda _: another.listen(ignore),
        ),
        subject(
            "schedule, with a listener",
            'shaper.schedule("key")',
            lambda: Shaper(AT_ONCE),
            listening=lambda shaper: shaper.listen(ignore),
        ),
    ]


class Lateness:
    """Sleepers of one round, and by how many ms each was late."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._shaper = Shaper(f"{RATE}/s", clock=self._clock)
        self._shaper.reserve()
        self.ms: list[float] = []

    def wait(self) -> None:
        self._note(self._shaper.schedule())

    async def await_(self) -> None:
        self._note(await self._shaper.aschedule())

    def _note(self, reservation: Any) -> None:
        self.ms.append((self._clock.now_us() - reservation.grant.departs_at_us) / 1_000)


def threads(lateness: Lateness) -> None:
    """A round of threads that all wait at once."""
    crew = [threading.Thread(target=lateness.wait) for _ in range(WAITERS)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()


def on_asyncio(lateness: Lateness) -> None:
    """A round of tasks on asyncio."""

    async def main() -> None:
        await asyncio.gather(*(lateness.await_() for _ in range(WAITERS)))

    asyncio.run(main())


def on_trio(lateness: Lateness) -> None:
    """A round of tasks on trio."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(WAITERS):
                nursery.start_soon(lateness.await_)

    trio.run(main)


KINDS = {"asyncio": (on_asyncio, 0.8), "threads": (threads, 0.2), "trio": (on_trio, None)}


def lateness(rounds: int) -> list[Line]:
    """The median of each round in ms, by kind; the rounds of all kinds interleave."""
    medians: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        say(f"waiters, round {number + 1} of {rounds}")
        for kind, (run, _) in KINDS.items():
            seen = Lateness()
            run(seen)
            medians[kind].append(median(seen.ms))
    return [Line("shapekit", kind, {LATE: late}) for kind, late in medians.items()]


def goals(lines: list[Line], late: list[Line]) -> list[Goal]:
    """Each goal, and what was measured."""
    by_name = {line.name: line for line in lines if not line.failed}
    ns = {name: line.median(NS) for name, line in by_name.items()}
    look = ns["the check for listeners"] - ns["the loop itself"]
    reserve, listened = by_name["reserve"], by_name["reserve, with a listener"]
    found = [
        Goal("the check for listeners / Shaper.reserve", look / ns["reserve"], 0.03),
        Goal("Shaper.reserve with a listener / without", listened.beside(reserve, NS)),
    ]
    if "AsyncLimiter" in ns:
        peer, behind = by_name["AsyncLimiter"], by_name["reserve, behind others"]
        found[:0] = [
            Goal("Shaper.reserve / aiolimiter.acquire", reserve.beside(peer, NS), 1.5),
            Goal("Shaper.reserve behind others / aiolimiter.acquire", behind.beside(peer, NS)),
        ]
    found += [
        Goal(f"median lateness at {RATE}/s, {line.name}, ms", line.median(LATE), KINDS[line.name][1])
        for line in late
    ]
    return found


def measure(effort: Effort) -> Group:
    """The calls of a shaper, and how late its waiting calls leave."""
    # Compared subjects stand side by side: a machine changes its speed within a round.
    rows = subjects()
    for library, module in offering("decisions")[0]:
        if library.name == "aiolimiter":
            rows[2:2] = module.decisions()
    lines = measured(rows, effort.rounds, effort.of(50_000))
    late = lateness(effort.rounds)
    return Group(
        NAME,
        "Reservations",
        METHOD,
        [
            Table("Taking a slot", [Column(NS, "ns", 0, compared=True)], lines, BASE),
            Table(f"Lateness at {RATE}/s", [Column(LATE, "ms", 3)], late),
        ],
        goals(lines, late),
    )
