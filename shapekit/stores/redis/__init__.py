"""RedisStore: one truth for all workers on all hosts."""

from shapekit.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
