"""httpx-limiter: transports for httpx.AsyncClient that wait, by aiolimiter or pyrate-limiter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from httpx_limiter import AsyncRateLimitedTransport, Rate
from httpx_limiter.aiolimiter import AiolimiterAsyncLimiter
from httpx_limiter.pyrate import PyrateAsyncLimiter

from ..waits import Wait, Waiting

MODULE = "httpx_limiter"
CANNOT = {
    "decisions": "as aiolimiter or pyrate-limiter",
    "keyed": "as aiolimiter or pyrate-limiter",
    "redis_calls": "in one process",
    "redis_acalls": "in one process",
    "requests_adapters": "is for httpx",
}


def _waiting(limiter: Any) -> Wait:
    async def wait() -> None:
        async with limiter:
            pass

    return wait


@asynccontextmanager
async def _aiolimiter(rate: int, _: str) -> AsyncIterator[Wait]:
    yield _waiting(AiolimiterAsyncLimiter.create(Rate.create(magnitude=1, duration=1 / rate)))


@asynccontextmanager
async def _pyrate(rate: int, _: str) -> AsyncIterator[Wait]:
    yield _waiting(PyrateAsyncLimiter.create(Rate.create(magnitude=1, duration=1 / rate)))


def waits() -> list[Waiting]:
    return [
        Waiting("over aiolimiter, 1 in 1/rate", _aiolimiter),
        Waiting("over pyrate-limiter, 1 in 1/rate", _pyrate),
    ]


def httpx_transports() -> dict[str, Callable[[], httpx.AsyncBaseTransport]]:
    far = Rate.create(magnitude=1_000_000)
    return {
        "over aiolimiter": lambda: AsyncRateLimitedTransport.create(AiolimiterAsyncLimiter.create(far)),
        "over pyrate-limiter": lambda: AsyncRateLimitedTransport.create(PyrateAsyncLimiter.create(far)),
    }
