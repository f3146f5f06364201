"""asynciolimiter: one key on one event loop; a limiter for each key, which keeps a timer of the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asynciolimiter import LeakyBucketLimiter, Limiter, StrictLimiter

from ..subjects import FAR, Subject
from ..waits import Wait, Waiting

MODULE = "asynciolimiter"
CANNOT = {
    "redis_calls": "on one event loop",
    "redis_acalls": "on one event loop",
    "httpx_transports": "no client wrapper",
    "requests_adapters": "no client wrapper",
}


def decisions() -> list[Subject]:
    """Its only limiter that can have a burst: the others let one call go in each slot of the loop."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"wait": LeakyBucketLimiter(10, capacity=FAR).wait}

    return [
        Subject("asynciolimiter", "LeakyBucketLimiter", "await wait()", opened, lambda answer: answer is None)
    ]


@asynccontextmanager
async def _limiter(rate: int, _: str) -> AsyncIterator[Wait]:
    limiter = Limiter(rate)
    yield limiter.wait
    limiter.close()


@asynccontextmanager
async def _strict(rate: int, _: str) -> AsyncIterator[Wait]:
    limiter = StrictLimiter(rate)
    yield limiter.wait
    limiter.close()


def waits() -> list[Waiting]:
    return [Waiting("Limiter", _limiter), Waiting("StrictLimiter", _strict)]


@contextmanager
def keyed(limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    limiters: dict[str, LeakyBucketLimiter] = {}

    def call(key: str) -> Any:
        limiter = limiters.get(key)
        if limiter is None:
            limiter = limiters[key] = LeakyBucketLimiter(limit / seconds, capacity=limit)
        return limiter.wait()

    yield {"LeakyBucketLimiter": call}
    for limiter in limiters.values():
        limiter.close()
