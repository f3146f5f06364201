"""A hundred callers that come at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..redis_server import RedisServer
from .departures import inversions
from .library import Cannot
from .rounds import Figures, in_turns
from .tables import Column, Effort, Group, Table
from .waits import Wait, Waiting
from .wire import Wire

NAME = "waiters"
WAITERS = 100
RATE = 100
METHOD = f"""
{WAITERS} tasks ask at once, at {RATE} calls a second, one by one: the last may leave after
{(WAITERS - 1) / RATE:.2f} s. Time: until all have left. Swapped: of {WAITERS * (WAITERS - 1) // 2:,} pairs,
those in the wrong order. Round trips to Redis are counted on the wire.
"""
TIME, SWAPPED, TRIPS = "time", "swapped", "round trips"
COLUMNS = [Column(TIME, "s", 2, compared=True), Column(SWAPPED, "pairs", 0), Column(TRIPS, "", 0)]


async def crowd(waiting: Waiting, wire: Wire) -> Figures:
    """One round. Libraries on Redis have a crowd before, which opens the connections."""
    if waiting.bursts:
        raise Cannot("calls leave at once")
    left: list[int] = []

    async def one(number: int, wait: Wait) -> None:
        await wait()
        left.append(number)

    url = f"redis://127.0.0.1:{wire.port}/0"
    async with asyncio.timeout(60):
        async with waiting.opened(RATE, url) as wait:
            if waiting.on_redis:
                await asyncio.gather(*(one(number, wait) for number in range(WAITERS)))
                left.clear()
                await asyncio.sleep(0.1)
            before, began = wire.traffic, time.monotonic()
            await asyncio.gather(*(one(number, wait) for number in range(WAITERS)))
            figures = {TIME: time.monotonic() - began, SWAPPED: float(inversions(left))}
            if waiting.on_redis:
                figures[TRIPS] = float(wire.traffic.since(before).trips)
            return figures


def measure(effort: Effort) -> Group:
    """All libraries that wait."""
    with RedisServer() as server, Wire(server.port) as wire:

        def offered(module: Any) -> Iterator[tuple[str, Callable[[], Figures]]]:
            for waiting in module.waits():
                yield waiting.name, partial(one_round, waiting, wire)

        lines = in_turns("waits", effort.rounds, offered)
    table = Table(f"{WAITERS} waiters at {RATE}/s", COLUMNS, lines, ("shapekit", "Shaper"), TIME)
    return Group(NAME, f"{WAITERS} waiters", METHOD, [table])


def one_round(waiting: Waiting, wire: Wire) -> Figures:
    """On an event loop of its own."""
    return asyncio.run(crowd(waiting, wire))
