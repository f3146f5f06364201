"""The others, in memory, in every strategy they have for one process; all limits far away.

Each is called as its documentation tells, one call on one key that does not wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiolimiter import AsyncLimiter
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from pyrate_limiter import GCRA, AbstractBucket, Duration, InMemoryBucket, Limiter, Rate, StateBucket
from subjects import FAR, Subject
from throttled import MemoryStore, RateLimiterType, Throttled, rate_limiter


def aiolimiter() -> list[Subject]:
    """Serves one key on one event loop, without a lock."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"acquire": AsyncLimiter(FAR, 1).acquire}

    return [Subject("aiolimiter", "AsyncLimiter", "await acquire()", opened, lambda answer: answer is None)]


def limits() -> list[Subject]:
    """`hit` of each strategy."""
    kinds = (FixedWindowRateLimiter, SlidingWindowCounterRateLimiter, MovingWindowRateLimiter)
    return [_limits(kind) for kind in kinds]


def _limits(kind: Any) -> Subject:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"hit": kind(MemoryStorage()).hit, "item": parse(f"{FAR}/minute")}

    return Subject("limits", kind.__name__.removesuffix("RateLimiter"), 'hit(item, "key")', opened)


def throttled() -> list[Subject]:
    """`limit` of each strategy."""
    return [_throttled(kind.value) for kind in RateLimiterType]


def _throttled(using: str) -> Subject:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        quota = rate_limiter.per_min(FAR, burst=FAR)
        yield {"limit": Throttled(using=using, quota=quota, store=MemoryStore()).limit}

    return Subject("throttled-py", using, 'limit("key")', opened, lambda answer: not answer.limited)


def pyrate() -> list[Subject]:
    """`try_acquire` that does not block. Its TokenBucket is its GCRA under another name."""
    often = [Rate(1_000_000, Duration.SECOND)]
    return [
        _pyrate("InMemoryBucket", lambda: InMemoryBucket([Rate(FAR, Duration.MINUTE)])),
        _pyrate("GCRA", lambda: StateBucket(often, GCRA())),
    ]


def _pyrate(name: str, bucket: Any) -> Subject:
    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        made: AbstractBucket = bucket()
        with Limiter(made) as limiter:
            yield {"acquire": limiter.try_acquire}

    return Subject("pyrate-limiter", name, 'acquire("key", blocking=False)', opened)


def peers() -> list[Subject]:
    """All of them."""
    return [*aiolimiter(), *limits(), *throttled(), *pyrate()]
