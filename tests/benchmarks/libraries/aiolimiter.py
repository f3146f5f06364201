"""aiolimiter: one key on one event loop, without a lock; a limiter for each key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from aiolimiter import AsyncLimiter

from ..subjects import FAR, Subject
from ..waits import Wait, Waiting

MODULE = "aiolimiter"
CANNOT = {
    "redis_calls": "on one event loop",
    "redis_acalls": "on one event loop",
    "httpx_transports": "no client wrapper",
    "requests_adapters": "no client wrapper",
}


def decisions() -> list[Subject]:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"acquire": AsyncLimiter(FAR, 1).acquire}

    return [Subject("aiolimiter", "AsyncLimiter", "await acquire()", opened, lambda answer: answer is None)]


@asynccontextmanager
async def _one_by_one(rate: int, _: str) -> AsyncIterator[Wait]:
    yield AsyncLimiter(1, 1 / rate).acquire


@asynccontextmanager
async def _at_once(rate: int, _: str) -> AsyncIterator[Wait]:
    yield AsyncLimiter(rate, 1).acquire


def waits() -> list[Waiting]:
    return [
        Waiting("AsyncLimiter(1, 1/rate)", _one_by_one),
        Waiting("AsyncLimiter(rate, 1)", _at_once, bursts=True),
    ]


@contextmanager
def keyed(limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    limiters: dict[str, AsyncLimiter] = defaultdict(partial(AsyncLimiter, limit, seconds))
    yield {"AsyncLimiter": lambda key: limiters[key].acquire()}
