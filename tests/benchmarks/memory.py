"""The memory of a key while it is remembered: in the process, and in Redis."""

from __future__ import annotations

import asyncio
import gc
import inspect
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..redis_server import RedisServer
from .rounds import Figures, in_turns
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "memory"
LIMIT, SECONDS = 1_000, 3_600
CALLS = 100
KEYS_HERE, KEYS_THERE = 1_000, 50
METHOD = f"""
Bytes for each of many keys at {LIMIT:,} calls an hour, after one call and after {CALLS}. In the process: what
tracemalloc counts, over {KEYS_HERE:,} keys without their texts; a library that serves one key has an object
for each. In Redis: `MEMORY USAGE`, over {KEYS_THERE} keys of 20 bytes.
"""
ONCE, OFTEN = "after 1 call", f"after {CALLS} calls"
COLUMNS = [Column(ONCE, "bytes", 0, compared=True), Column(OFTEN, "bytes", 0, compared=True)]


def key_of(number: int) -> str:
    """A text of 20 bytes."""
    return f"key-{number:016d}"


async def call_all(call: Callable[[str], Any], keys: list[str], times: int) -> None:
    """Each key, so often."""
    for _ in range(times):
        for key in keys:
            answer = call(key)
            if inspect.isawaitable(answer):
                await answer


async def here(module: Any, name: str, keys: int) -> Figures:
    """Bytes a key in this process."""
    texts = [key_of(number) for number in range(keys)]
    with module.keyed(LIMIT, SECONDS) as calls:
        call = calls[name]
        await call_all(call, [key_of(10**9)], 2)  # what is made once
        gc.collect()
        tracemalloc.start()
        try:
            figures = {}
            for column, times in ((ONCE, 1), (OFTEN, CALLS - 1)):
                await call_all(call, texts, times)
                gc.collect()
                figures[column] = tracemalloc.get_traced_memory()[0] / keys
            return figures
        finally:
            tracemalloc.stop()


def there(module: Any, name: str, server: RedisServer, keys: int) -> Figures:
    """Bytes a key in Redis."""
    texts = [key_of(number) for number in range(keys)]
    with server.client() as client:
        client.flushall()
        with module.redis_calls(server.url, LIMIT, SECONDS) as calls:
            asyncio.run(call_all(calls[name], [key_of(10**9)], 1))
            made_once = set(client.scan_iter(count=1_000))  # what is no key's own, and one key
            figures = {}
            for column, times in ((ONCE, 1), (OFTEN, CALLS - 1)):
                asyncio.run(call_all(calls[name], texts, times))
                places = set(client.scan_iter(count=1_000)) - made_once
                figures[column] = sum(client.memory_usage(key, samples=0) or 0 for key in places) / keys
            return figures


def names_of(opened: AbstractContextManager[dict[str, Any]]) -> list[str]:
    """The subjects on offer."""
    with opened as calls:
        return list(calls)


def measure(effort: Effort) -> Group:
    """All libraries with keys."""
    with RedisServer() as server:

        def offered_here(module: Any) -> Iterator[tuple[str, Callable[[], Figures]]]:
            for name in names_of(module.keyed(LIMIT, SECONDS)):
                yield name, lambda name=name: asyncio.run(here(module, name, max(50, effort.of(KEYS_HERE))))

        def offered_there(module: Any) -> Iterator[tuple[str, Callable[[], Figures]]]:
            for name in names_of(module.redis_calls(server.url, LIMIT, SECONDS)):
                yield name, partial(there, module, name, server, max(10, effort.of(KEYS_THERE)))

        in_process = in_turns("keyed", effort.rounds, offered_here)
        in_redis = in_turns("redis_calls", effort.rounds, offered_there)
    return Group(
        NAME,
        "Memory for each key",
        METHOD,
        [
            Table("A key in the process", COLUMNS, in_process, ("shapekit", "Gate(GCRA)"), OFTEN),
            Table("A key in Redis", COLUMNS, in_redis, ("shapekit", "Gate(GCRA).check"), OFTEN),
        ],
        goals(in_redis),
    )


def goals(in_redis: list[Line]) -> list[Goal]:
    """Each goal, and what was measured."""
    used = {line.name: line.median(ONCE) for line in in_redis if line.library == "shapekit"}
    return [
        Goal("bytes of a GCRA key in Redis", used["Gate(GCRA).check"], 112),
        Goal("bytes of a shaper key in Redis", used["Shaper.reserve"], 144),
    ]
