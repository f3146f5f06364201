"""steindamm: a token bucket that a `with` block waits for; a bucket for each key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import redis
import redis.asyncio
from steindamm import AsyncTokenBucket, SyncTokenBucket

from ..subjects import FAR, Subject
from ..waits import Wait, Waiting, fresh

MODULE = "steindamm"
CANNOT = {"httpx_transports": "no client wrapper", "requests_adapters": "no client wrapper"}


def decisions() -> list[Subject]:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        bucket = SyncTokenBucket.create(name=fresh(), capacity=FAR, refill_amount=1)
        yield {"enter": bucket.__enter__}

    return [Subject("steindamm", "SyncTokenBucket", "enter()", opened, lambda answer: answer is not False)]


def _waiting(rate: int, connection: Any = None) -> Wait:
    bucket = AsyncTokenBucket.create(
        name=fresh(),
        capacity=1,
        refill_frequency=1 / rate,
        refill_amount=1,
        max_sleep=0,
        connection=connection,
    )

    async def wait() -> None:
        async with bucket:
            pass

    return wait


@asynccontextmanager
async def _in_memory(rate: int, _: str) -> AsyncIterator[Wait]:
    yield _waiting(rate)


@asynccontextmanager
async def _on_redis(rate: int, url: str) -> AsyncIterator[Wait]:
    async with redis.asyncio.Redis.from_url(url) as client:
        yield _waiting(rate, client)


def waits() -> list[Waiting]:
    return [
        Waiting("AsyncTokenBucket", _in_memory),
        Waiting("AsyncTokenBucket, Redis", _on_redis, on_redis=True),
    ]


def _entering(kind: Any, limit: int, seconds: int, connection: Any = None) -> Callable[[str], Any]:
    prefix, buckets = fresh("bucket"), {}

    def call(key: str) -> Any:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = kind.create(
                name=f"{prefix}{key}",
                capacity=limit,
                refill_frequency=seconds / limit,
                refill_amount=1,
                expiry=2 * seconds,
                connection=connection,
            )
        return bucket.__aenter__() if kind is AsyncTokenBucket else bucket.__enter__()

    return call


@contextmanager
def keyed(limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    yield {"SyncTokenBucket": _entering(SyncTokenBucket, limit, seconds)}


@contextmanager
def redis_calls(url: str, limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    with redis.Redis.from_url(url) as client:
        yield {"SyncTokenBucket": _entering(SyncTokenBucket, limit, seconds, client)}


@asynccontextmanager
async def redis_acalls(url: str, limit: int, seconds: int) -> AsyncIterator[dict[str, Callable[[str], Any]]]:
    async with redis.asyncio.Redis.from_url(url) as client:
        yield {"AsyncTokenBucket": _entering(AsyncTokenBucket, limit, seconds, client)}
