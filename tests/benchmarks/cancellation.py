"""What callers leave behind who are cancelled while they wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..redis_server import RedisServer
from .library import Cannot
from .rounds import Figures, in_turns
from .tables import Column, Effort, Group, Table
from .waits import Waiting

NAME = "cancellation"
RATE = 20
CANCELLED = 10
METHOD = f"""
At {RATE} calls a second, one by one: a call leaves, {CANCELLED} tasks wait behind it and are cancelled
together after 10 ms, and then the next caller asks. Told is how long after that first call it leaves.
Where the turns of those who went are nobody's, that is {1_000 // RATE} ms, and where they keep theirs,
{1_000 * (CANCELLED + 1) // RATE} ms. Less than {1_000 // RATE} ms is too early.
"""
AFTER = "the next leaves after"


async def after_the_cancelled(waiting: Waiting, url: str) -> Figures:
    """One round."""
    if waiting.in_threads:
        raise Cannot("callers are threads, which nobody can cancel")
    if waiting.bursts:
        raise Cannot("lets that many go at once")
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


def measure(effort: Effort) -> Group:
    """Everybody who waits."""
    server = RedisServer().start()
    try:

        def offered(module: Any) -> Iterator[tuple[str, Callable[[], Figures]]]:
            for waiting in module.waits():
                yield waiting.name, partial(one_round, waiting, server.url)

        lines = in_turns("waits", effort.rounds, offered)
    finally:
        server.close()
    table = Table(
        f"After {CANCELLED} who were cancelled",
        [Column(AFTER, "ms", 1, compared=True)],
        lines,
        ("shapekit", "Shaper"),
        AFTER,
    )
    return Group(NAME, "Cancellation", METHOD, [table])


def one_round(waiting: Waiting, url: str) -> Figures:
    """On an event loop of its own."""
    return asyncio.run(after_the_cancelled(waiting, url))
