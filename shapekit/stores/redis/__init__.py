"""RedisStore: states on a Redis server, shared by workers on any number of hosts."""

from shapekit.errors import missing

try:
    from shapekit.stores.redis.store import RedisStore
except ImportError as error:
    if (error.name or "").partition(".")[0] != "redis":
        raise
    raise missing("RedisStore", "redis") from None

__all__ = ["RedisStore"]
