"""How evenly calls leave where more calls come than may leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ..redis_server import RedisServer
from .departures import lateness, most_within, percentile, rate_reached
from .rounds import Figures, in_turns
from .tables import Column, Effort, Group, Table
from .waits import Wait, Waiting

NAME = "pacing"
RATE = 200
TASKS = 20
SECONDS = 4
METHOD = f"""
{TASKS} tasks on one event loop call all the time, at {RATE} calls a second, one by one, for {SECONDS} s.
Reached: calls a second from the first departure to the last. Worst second: the most departures in a second.
Late: behind an even grid from the first departure; negative is ahead. CPU: of the process, for each call.
"""
REACHED, WORST, LATE_50, LATE_99, CPU = "reached", "worst second", "late, p50", "late, p99", "CPU a call"
COLUMNS = [
    Column(REACHED, "× rate", 3),
    Column(WORST, "× rate", 3),
    Column(LATE_50, "ms", 2),
    Column(LATE_99, "ms", 2),
    Column(CPU, "µs", 0, compared=True),
]


class Run(NamedTuple):
    """When calls left, and what they cost."""

    left: list[float]
    cpu_s: float

    def figures(self) -> Figures:
        """One round of each column."""
        late = lateness(self.left, RATE)
        return {
            REACHED: rate_reached(self.left) / RATE,
            WORST: most_within(self.left) / RATE,
            LATE_50: percentile(late, 0.50) * 1e3,
            LATE_99: percentile(late, 0.99) * 1e3,
            CPU: self.cpu_s / len(self.left) * 1e6,
        }


async def paced(waiting: Waiting, url: str, seconds: float) -> Run:
    """One round. Libraries on Redis make some calls before, which open the connections."""
    left: list[float] = []
    is_over = False

    async def work(wait: Wait) -> None:
        while not is_over:  # a client may swallow a cancellation
            await wait()
            left.append(time.monotonic())

    async with waiting.opened(RATE, url) as wait:
        if waiting.on_redis:
            await asyncio.gather(*(wait() for _ in range(TASKS)))
            await asyncio.sleep(1.1)
        began = time.process_time()
        tasks = [asyncio.ensure_future(work(wait)) for _ in range(TASKS)]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        cpu_s = time.process_time() - began
        run = Run(list(left), cpu_s)
        is_over = True
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ended:
        if isinstance(end, Exception):
            raise end
    return run


def one_round(waiting: Waiting, url: str, seconds: float) -> Figures:
    """On an event loop of its own."""
    return asyncio.run(paced(waiting, url, seconds)).figures()


def measure(effort: Effort) -> Group:
    """All libraries that wait."""
    seconds = max(1.3, SECONDS * effort.share)
    with RedisServer() as server:

        def offered(module: Any) -> Iterator[tuple[str, Callable[[], Figures]]]:
            for waiting in module.waits():
                yield waiting.name, partial(one_round, waiting, server.url, seconds)

        lines = in_turns("waits", effort.rounds, offered)
    table = Table(f"Pacing at {RATE}/s", COLUMNS, lines, ("shapekit", "Shaper"), WORST)
    return Group(NAME, "Pacing", METHOD, [table])
