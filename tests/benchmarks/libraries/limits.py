"""limits: `hit` of each of its strategies. It refuses, and leaves waiting to the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import limits.aio.strategies
import limits.strategies
from limits import RateLimitItemPerSecond, parse
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.storage import MemoryStorage, RedisStorage

from ..subjects import FAR, Subject

MODULE = "limits"
CANNOT = {
    "waits": "never waits",
    "httpx_transports": "no client wrapper",
    "requests_adapters": "no client wrapper",
}
KINDS = ("FixedWindow", "SlidingWindowCounter", "MovingWindow")


def decisions() -> list[Subject]:
    return [_decision(kind) for kind in KINDS]


def _decision(kind: str) -> Subject:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"hit": _limiter(limits.strategies, kind)(MemoryStorage()).hit, "item": parse(f"{FAR}/minute")}

    return Subject("limits", kind, 'hit(item, "key")', opened)


def _limiter(module: Any, kind: str) -> Any:
    return getattr(module, f"{kind}RateLimiter")


def _hits(module: Any, storage: Any, limit: int, seconds: int) -> dict[str, Callable[[str], Any]]:
    """`hit` of each strategy. Without the namespace, all of them would write the same keys."""
    return {
        kind: partial(
            _limiter(module, kind)(storage).hit, RateLimitItemPerSecond(limit, seconds, namespace=kind)
        )
        for kind in KINDS
    }


@contextmanager
def keyed(limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    yield {kind: _hits(limits.strategies, MemoryStorage(), limit, seconds)[kind] for kind in KINDS}


@contextmanager
def redis_calls(url: str, limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    yield _hits(limits.strategies, RedisStorage(url), limit, seconds)


@asynccontextmanager
async def redis_acalls(url: str, limit: int, seconds: int) -> AsyncIterator[dict[str, Callable[[str], Any]]]:
    storage = AsyncRedisStorage(f"async+{url}", implementation="redispy")
    yield _hits(limits.aio.strategies, storage, limit, seconds)
