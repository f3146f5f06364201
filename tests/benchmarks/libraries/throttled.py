"""throttled-py: `limit` of each of its strategies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from throttled import MemoryStore, RateLimiterType, RedisStore, Throttled, rate_limiter
from throttled.asyncio import MemoryStore as AsyncMemoryStore
from throttled.asyncio import RedisStore as AsyncRedisStore
from throttled.asyncio import Throttled as AsyncThrottled

from ..subjects import FAR, Subject
from ..waits import Wait, Waiting, fresh

MODULE = "throttled"
CANNOT = {"httpx_transports": "no client wrapper", "requests_adapters": "no client wrapper"}
PATIENCE_S = 60.0
SHARED = ("fixed_window", "gcra", "token_bucket")


def decisions() -> list[Subject]:
    return [_decision(kind.value) for kind in RateLimiterType]


def _decision(using: str) -> Subject:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        quota = rate_limiter.per_min(FAR, burst=FAR)
        yield {"limit": Throttled(using=using, quota=quota, store=MemoryStore()).limit}

    return Subject("throttled-py", using, 'limit("key")', opened, lambda answer: not answer.limited)


def _waiting(rate: int, store: Any) -> Wait:
    quota = rate_limiter.per_sec(rate, burst=1)
    return AsyncThrottled(key=fresh(), using="gcra", quota=quota, store=store, timeout=PATIENCE_S).limit


@asynccontextmanager
async def _in_memory(rate: int, _: str) -> AsyncIterator[Wait]:
    yield _waiting(rate, AsyncMemoryStore())


@asynccontextmanager
async def _on_redis(rate: int, url: str) -> AsyncIterator[Wait]:
    yield _waiting(rate, AsyncRedisStore(server=url))


def waits() -> list[Waiting]:
    return [Waiting("gcra", _in_memory), Waiting("gcra, Redis", _on_redis, on_redis=True)]


@contextmanager
def keyed(limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    quota = rate_limiter.per_duration(timedelta(seconds=seconds), limit, burst=limit)
    size = 1_000_000
    yield {
        kind.value: Throttled(
            using=kind.value, quota=quota, store=MemoryStore(options={"MAX_SIZE": size})
        ).limit
        for kind in RateLimiterType
    }


@contextmanager
def redis_calls(url: str, limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    quota = rate_limiter.per_duration(timedelta(seconds=seconds), limit, burst=limit)
    yield {using: Throttled(using=using, quota=quota, store=RedisStore(server=url)).limit for using in SHARED}


@asynccontextmanager
async def redis_acalls(url: str, limit: int, seconds: int) -> AsyncIterator[dict[str, Callable[[str], Any]]]:
    quota = rate_limiter.per_duration(timedelta(seconds=seconds), limit, burst=limit)
    yield {
        using: AsyncThrottled(using=using, quota=quota, store=AsyncRedisStore(server=url)).limit
        for using in SHARED
    }
