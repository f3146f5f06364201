"""Stores on a cluster, and how long their clients wait for it."""

from contextlib import asynccontextmanager

from redis import RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster

from shapekit import RedisStore

TIMEOUT_S = 2.0
PATIENCE_S = 90.0


@asynccontextmanager
async def store_on(servers, backend):
    """A store for the callers of an event loop: on trio they go through the synchronous client."""
    there = {"host": "127.0.0.1", "port": servers.servers[0].port, "socket_timeout": TIMEOUT_S}
    client = RedisCluster(**there)
    aclient = AsyncRedisCluster(**there) if backend == "asyncio" else None
    try:
        yield RedisStore(client, aclient=aclient)
    finally:
        client.close()
        if aclient is not None:
            await aclient.aclose()
