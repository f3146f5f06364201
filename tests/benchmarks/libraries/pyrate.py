"""pyrate-limiter: a bucket for each key, in the process or on Redis. Its TokenBucket is its GCRA renamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import redis
import redis.asyncio
from pyrate_limiter import (
    GCRA,
    AbstractBucket,
    BucketAsyncWrapper,
    Duration,
    InMemoryBucket,
    Limiter,
    Rate,
    RateItem,
    RedisBucket,
    StateBucket,
)

from ..subjects import FAR, Subject
from ..waits import Wait, Waiting, fresh

MODULE = "pyrate_limiter"
CANNOT = {
    "httpx_transports": "as httpx-limiter",
    "requests_adapters": "as requests-ratelimiter",
}


def decisions() -> list[Subject]:
    often = [Rate(1_000_000, Duration.SECOND)]
    return [
        _decision("InMemoryBucket", lambda: InMemoryBucket([Rate(FAR, Duration.MINUTE)])),
        _decision("GCRA", lambda: StateBucket(often, GCRA())),
    ]


def _decision(name: str, bucket: Callable[[], AbstractBucket]) -> Subject:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        with Limiter(bucket()) as limiter:
            yield {"acquire": limiter.try_acquire}

    return Subject("pyrate-limiter", name, 'acquire("key", blocking=False)', opened)


@asynccontextmanager
async def _log(rates: list[Rate]) -> AsyncIterator[Wait]:
    with Limiter(BucketAsyncWrapper(InMemoryBucket(rates))) as limiter:
        yield limiter.try_acquire_async


@asynccontextmanager
async def _gcra(rates: list[Rate]) -> AsyncIterator[Wait]:
    with Limiter(BucketAsyncWrapper(StateBucket(rates, GCRA()))) as limiter:
        yield limiter.try_acquire_async


@asynccontextmanager
async def _on_redis(rates: list[Rate], url: str) -> AsyncIterator[Wait]:
    async with redis.asyncio.Redis.from_url(url) as client:
        bucket = await RedisBucket.init(rates, client, fresh("pyrate"))
        yield Limiter(bucket).try_acquire_async


def _one_by_one(rate: int) -> list[Rate]:
    return [Rate(1, 1_000 // rate)]


def _in_a_second(rate: int) -> list[Rate]:
    return [Rate(rate, Duration.SECOND)]


def waits() -> list[Waiting]:
    one = "Rate(1, 1/rate)"
    return [
        Waiting(f"InMemoryBucket, {one}", lambda rate, _: _log(_one_by_one(rate))),
        Waiting("InMemoryBucket, Rate(rate, 1 s)", lambda rate, _: _log(_in_a_second(rate)), bursts=True),
        Waiting(f"GCRA, {one}", lambda rate, _: _gcra(_one_by_one(rate))),
        Waiting("GCRA, Rate(rate, 1 s)", lambda rate, _: _gcra(_in_a_second(rate)), bursts=True),
        Waiting(f"Redis, {one}", lambda rate, url: _on_redis(_one_by_one(rate), url), on_redis=True),
        Waiting(
            "Redis, Rate(rate, 1 s)",
            lambda rate, url: _on_redis(_in_a_second(rate), url),
            on_redis=True,
            bursts=True,
        ),
    ]


@contextmanager
def keyed(limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    """Without the thread that lets buckets leak: none of these buckets is old enough for it."""
    rates = [Rate(limit, seconds * Duration.SECOND)]
    kinds = {"InMemoryBucket": InMemoryBucket, "GCRA": lambda rates: StateBucket(rates, GCRA())}
    yield {name: _bucketed(kind, rates) for name, kind in kinds.items()}


def _bucketed(kind: Callable[[list[Rate]], AbstractBucket], rates: list[Rate]) -> Callable[[str], Any]:
    buckets: dict[str, AbstractBucket] = {}

    def call(key: str) -> Any:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = kind(rates)
        return bucket.put(RateItem(key, bucket.now()))

    return call


@contextmanager
def redis_calls(url: str, limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    limiters: dict[str, Limiter] = {}
    rates = [Rate(limit, seconds * Duration.SECOND)]
    with redis.Redis.from_url(url) as client:

        def call(key: str) -> Any:
            limiter = limiters.get(key)
            if limiter is None:
                limiter = limiters[key] = Limiter(RedisBucket.init(rates, client, f"pyrate:{key}"))
            return limiter.try_acquire(key, blocking=False)

        yield {"RedisBucket": call}
        for limiter in limiters.values():
            limiter.close()


@asynccontextmanager
async def redis_acalls(url: str, limit: int, seconds: int) -> AsyncIterator[dict[str, Callable[[str], Any]]]:
    async with redis.asyncio.Redis.from_url(url) as client:
        rates = [Rate(limit, seconds * Duration.SECOND)]
        limiter = Limiter(await RedisBucket.init(rates, client, fresh("pyrate")))
        yield {"RedisBucket": lambda key: limiter.try_acquire_async(key, blocking=False)}
