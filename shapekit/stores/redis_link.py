"""Links: one command to the right Redis server and its reply, once.

A client may repeat a command whose reply was lost, and so consume twice; the clients of redis-py do by
default. Here a command is sent on a connection of the client's own pool and never again, unless the
server itself has said that it did not run it. Where a reply is lost the caller is told that the store
is unavailable, and at most this one call was charged for nothing.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio.cluster import PipelineCommand
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError

from shapekit.errors import StoreUnavailableError
from shapekit.stores.redis_connections import AsyncKept, Kept, Lent, aexchange, exchange, packed
from shapekit.stores.redis_map import Map, Step


class Link:
    """To a synchronous client: Redis, RedisCluster, or one that a Sentinel has made."""

    def __init__(self, client: Any, kept: Kept | None = None) -> None:
        self._client = client
        self._kept = kept
        self.is_cluster = hasattr(client, "get_node_from_key")
        self._map = Map(client)

    def say(self, command: tuple[Any, ...]) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        try:
            if not self.is_cluster:
                return self._said(command)
            return self._routed(command)
        except (RedisError, RedisClusterException, OSError) as error:
            raise unavailable(error) from error

    def server_of(self, key: bytes) -> str | None:
        """The server of the cluster that has this key, as far as is known."""
        return self._map.server_of(key) if self.is_cluster else None

    def _said(self, command: tuple[Any, ...]) -> Any:
        if self._kept is not None:
            return exchange(self._kept, packed(command))
        pool = self._client.connection_pool
        try:
            reply = exchange(Lent(pool), packed(command))
        except RedisConnectionError as error:
            reply = _demoted(error)
        if isinstance(reply, ReadOnlyError):
            # A replica now: a Sentinel's pool finds the new master where a connection is opened.
            pool.disconnect(inuse_connections=False)
            reply = exchange(Lent(pool), packed(command))
        return reply

    def _routed(self, command: tuple[Any, ...]) -> Any:
        route = self._map.route(command)
        step = next(route)
        try:
            while True:
                step = route.send(self._taken(step, command))
        except StopIteration as end:
            return end.value

    def _taken(self, step: Step, command: tuple[Any, ...]) -> Any:
        client = self._client
        try:
            if step is None:
                return client.nodes_manager.initialize()
            node, asking = step
            pool = client.get_redis_connection(node).connection_pool
            return exchange(Lent(pool), packed(command), asking=asking)
        except (RedisError, RedisClusterException, OSError) as error:
            return error


class AsyncLink:
    """To an asynchronous client, on the event loop where it is used."""

    def __init__(self, client: Any, kept: AsyncKept | None = None) -> None:
        self._client = client
        self._kept = kept
        self.is_cluster = hasattr(client, "get_node_from_key")
        self._map = Map(client)

    async def say(self, command: tuple[Any, ...]) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        try:
            if not self.is_cluster:
                return await self._said(command)
            return await self._routed(command)
        except (RedisError, RedisClusterException, OSError) as error:
            raise unavailable(error) from error

    async def aclose(self) -> None:
        """Close a client that we made."""
        if self._kept is not None:
            await self._kept.aclose()
            await self._client.aclose()

    async def _said(self, command: tuple[Any, ...]) -> Any:
        if self._kept is not None:
            return await self._kept.exchange(packed(command))
        pool = self._client.connection_pool
        try:
            reply = await aexchange(pool, packed(command))
        except RedisConnectionError as error:
            reply = _demoted(error)
        if isinstance(reply, ReadOnlyError):
            await pool.disconnect(inuse_connections=False)
            reply = await aexchange(pool, packed(command))
        return reply

    async def _routed(self, command: tuple[Any, ...]) -> Any:
        await self._client.initialize()
        route = self._map.route(command)
        step = next(route)
        try:
            while True:
                step = route.send(await self._taken(step, command))
        except StopIteration as end:
            return end.value

    async def _taken(self, step: Step, command: tuple[Any, ...]) -> Any:
        try:
            if step is None:
                return await self._client.nodes_manager.initialize()
            node, asking = step
            return await (_asked(node, command) if asking else node.execute_command(*command))
        except (RedisError, RedisClusterException, OSError) as error:
            return error


def unavailable(error: Exception) -> StoreUnavailableError:
    """The same, for whoever knows nothing of Redis. What clients write in errors holds no credentials."""
    return StoreUnavailableError(f"Redis does not answer: {type(error).__name__}: {error}")


async def _asked(node: Any, command: tuple[Any, ...]) -> Any:
    """What a server replies that only imports a key's slot; ASKING holds for one connection."""
    both = [PipelineCommand(0, "ASKING"), PipelineCommand(1, *command)]
    await node.execute_pipeline(both)
    return both[1].result


def _demoted(error: RedisConnectionError) -> ReadOnlyError:
    """That the server has replied it is a replica, where a Sentinel's connection tells it as a loss."""
    if isinstance(error.__context__, ReadOnlyError):
        return error.__context__
    raise error
