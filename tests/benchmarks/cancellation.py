"""The cost of callers that are cancelled while they wait."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from shapekit import GCRA, ManualClock, Quota, Shaper

from ..redis_server import RedisServer
from .library import Cannot
from .rounds import Figures, in_turns
from .tables import Column, Effort, Group, Line, Table
from .waits import Waiting

NAME = "cancellation"
RATE = 20
CANCELLED = 10
METHOD = f"""
At {RATE} calls a second, one by one: a call leaves, {CANCELLED} tasks wait behind it and are cancelled
after 10 ms, and the next caller asks. It leaves {1_000 // RATE} ms after the first call if the slots are
free again, {1_000 * (CANCELLED + 1) // RATE} ms if not; less than {1_000 // RATE} ms is too early.

Then a crowd that waits in memory, on virtual time, and gives up in random order: what one cancel takes, and
how long the next caller waits when all are gone.
"""
AFTER = "the next leaves after"
CROWDS = (100, 1_000, 10_000, 100_000)
LIMITS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "10/s": ("10/s", ()),
    "10/s; 100/min": ("10/s; 100/min", ()),
    "10/s, a monthly quota": ("10/s", (Quota("1_000_000/month"),)),
    "10/s, GCRA 7/s": ("10/s", (GCRA("7/s", burst=20),)),
}
A_CANCEL, NEXT = "a cancel", "the next waits"


async def after_the_cancelled(waiting: Waiting, url: str) -> Figures:
    """One round."""
    if waiting.in_threads:
        raise Cannot("threads cannot be cancelled")
    if waiting.bursts:
        raise Cannot("calls leave at once")
    async with asyncio.timeout(60), waiting.opened(RATE, url) as wait:
        if waiting.on_redis:
            await asyncio.gather(*(wait() for _ in range(CANCELLED + 1)))  # opens the connections
            await asyncio.sleep(1.1)
        await wait()
        left = time.monotonic()
        waiters = [asyncio.ensure_future(wait()) for _ in range(CANCELLED)]
        await asyncio.sleep(0.01)
        for waiter in waiters:
            waiter.cancel()
        ended = await asyncio.gather(*waiters, return_exceptions=True)
        escaped = sum(not isinstance(end, asyncio.CancelledError) for end in ended)
        if escaped:
            raise Cannot(f"{escaped} of {CANCELLED} left before they were cancelled, out of turn")
        await wait()
        return {AFTER: (time.monotonic() - left) * 1e3}


def crowd_gone(limits: str, crowd: int) -> Figures:
    """One round of a crowd that gives up."""
    rate, gates = LIMITS[limits]
    shaper = Shaper(rate, gates=gates, clock=ManualClock(1e9), max_wait="3650d")
    reservations = [shaper.reserve() for _ in range(crowd)]
    random.Random(crowd).shuffle(reservations)
    began = time.process_time()
    for reservation in reservations:
        reservation.cancel()
    spent = time.process_time() - began
    return {A_CANCEL: spent * 1e6 / crowd, NEXT: shaper.reserve().delay * 1e3}


def crowds(effort: Effort) -> Table:
    """The time until a crowd is gone."""
    lines = []
    for limits in LIMITS:
        for crowd in (effort.of(crowd) for crowd in CROWDS):
            rounds = [crowd_gone(limits, crowd) for _ in range(min(3, effort.rounds))]
            figures = {name: [one[name] for one in rounds] for name in (A_CANCEL, NEXT)}
            lines.append(Line("shapekit", f"{limits}, {crowd:,} waiting", figures))
    return Table("A crowd that is gone", [Column(A_CANCEL, "µs", 1), Column(NEXT, "ms", 1)], lines)


def measure(effort: Effort) -> Group:
    """All libraries that wait."""
    with RedisServer() as server:

        def offered(module: Any) -> Iterator[tuple[str, Callable[[], Figures]]]:
            for waiting in module.waits():
                yield waiting.name, partial(one_round, waiting, server.url)

        lines = in_turns("waits", effort.rounds, offered)
    table = Table(
        f"After {CANCELLED} cancelled tasks",
        [Column(AFTER, "ms", 1, compared=True)],
        lines,
        ("shapekit", "Shaper"),
        AFTER,
    )
    return Group(NAME, "Cancellation", METHOD, [table, crowds(effort)])


def one_round(waiting: Waiting, url: str) -> Figures:
    """On an event loop of its own."""
    return asyncio.run(after_the_cancelled(waiting, url))
