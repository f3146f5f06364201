"""The others on Redis: one call on one key that does not wait, as their documentation tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from limits import parse
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
from throttled import RedisStore, Throttled, rate_limiter

FAR = 10**6
SMALLEST = """
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local tat = tonumber(redis.call("GET", KEYS[1]) or now)
if tat < now then tat = now end
local after = tat + ARGV[1] * ARGV[3]
if after - now > tonumber(ARGV[2]) then return {0, after - now - ARGV[2]} end
redis.call("SET", KEYS[1], string.format("%.0f", after), "PX", math.ceil((after - now) / 1000))
return {1, 0}
"""
"""The smallest GCRA that one can write by the server's clock."""


def peers(url: str) -> dict[str, Callable[[], Any]]:
    """Their synchronous calls."""
    calls: dict[str, Callable[[], Any]] = {}
    storage = RedisStorage(url)
    item = parse(f"{FAR}/minute")
    for kind in (FixedWindowRateLimiter, SlidingWindowCounterRateLimiter, MovingWindowRateLimiter):
        limiter = kind(storage)
        name = kind.__name__.removesuffix("RateLimiter")
        calls[f"peer limits, {name}"] = lambda hit=limiter.hit, name=name: hit(item, name)
    for using in ("fixed_window", "gcra", "token_bucket"):
        quota = rate_limiter.per_min(FAR, burst=FAR)
        throttled = Throttled(using=using, quota=quota, store=RedisStore(server=url))
        calls[f"peer throttled-py, {using}"] = lambda limit=throttled.limit, using=using: limit(using)
    bucket = RedisBucket.init([Rate(FAR, Duration.SECOND)], redis.Redis.from_url(url), "pyrate")
    limiter = Limiter(bucket)
    calls["peer pyrate-limiter"] = lambda: limiter.try_acquire("key", blocking=False)
    return calls
