"""Connections: one command to the right Redis server and its reply, once.

A client that repeats a command whose reply was lost may consume twice; the clients of redis-py do so by
default. Here a command is sent once, on a connection that no other call uses meanwhile; it is sent again only
if the server itself has said that it did not run it. If a reply is lost, the call raises
StoreUnavailableError, and at most this one call was charged for nothing.

- `OwnConnections`, `AsyncOwnConnections`: the pool of a client that the store made. The connection that was
  used last is used next. It is tested only after it was idle for a while, since the test takes as long as the
  command itself. If another connection has failed meanwhile, it is closed: when a server loses its power, or
  a firewall forgets its connections, none of them is ended, so each would look sound and then fail. A client
  that the caller made lends its connections by the rules of its own pool.
- A server that has become a replica, whether or not it has found its primary, has not run the command. Its
  connection is closed, because the name or the Sentinel that leads to the primary may now lead to another
  server, and the command is sent once more.
- `Link`: sends a command to its server, through a cluster or a Sentinel.
- `Map`: what a cluster's client knows of its servers, which of them are doubted, and redirections.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from contextlib import suppress
from inspect import signature
from itertools import starmap
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio import SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Driver, PatientTimeout, Twin, run, running_loop
from shapekit.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

REDIRECTIONS_AT_MOST = 5
REFRESH_PAUSE_S = 1.0
"""How often the map of a cluster is read again while its servers fail."""
_DOUBTFUL = (MovedError, ClusterDownError, TryAgainError, ReadOnlyError)
_APART = (AskError, ClusterCrossSlotError)
"""The errors that a plain client gets from a cluster: a key is elsewhere, or the keys of a call are apart."""
_OF_REPLICA = (ReadOnlyError, MasterDownError)
"""The errors of a replica, which has not run the command: it may write nothing, or has lost its primary."""
_MASTERLESS = (MasterNotFoundError, AsyncMasterNotFoundError)
"""The errors of a Sentinel's client: no Sentinel has named a master."""
_FIXES = {
    _APART: "; this is one server of a Redis Cluster: pass a RedisCluster",
    _OF_REPLICA: "; lead the URL or the client to the primary",
    _MASTERLESS: (
        "; if this goes on, check the name of the master, and the addresses, passwords and ssl_ options of"
        " the Sentinels"
    ),
    (AuthenticationError,): "; check the user and the password that are given with its URL or client",
    (NoPermissionError,): "; give the user this right",
    (OutOfMemoryError,): "; raise maxmemory, or remove other keys from the server",
    (ssl.SSLError,): "; if this goes on, check the certificates and the ssl_ options of the URL or client",
    (FileNotFoundError, IsADirectoryError, PermissionError): (
        "; see whether the socket, or the files that ssl_ options name, are there and may be read"
    ),
}
"""How to fix an error of a client, or the error that it was raised for."""


class Map:
    """What a cluster's client knows of the servers, and which of them are doubted.

    The map is read again only for keys of doubted servers: trouble with one shard costs the keys of the
    others nothing.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._doubted: set[str] = set()
        self._read_at = -REFRESH_PAUSE_S

    async def routed(self, driver: Driver, command: tuple[Any, ...]) -> Any:
        """The reply of the server that has the key of a command, after redirections."""
        node = await self._owner(driver, key_of(command))
        reply, asking = None, False
        for _ in range(REDIRECTIONS_AT_MOST):
            try:
                reply = await driver.ask(_EXCHANGE, self._lender(node), packed(command), asking=asking)
            except _FAILURES as error:
                reply = error
            if not isinstance(reply, Exception):
                return reply
            if isinstance(reply, _DOUBTFUL) or not isinstance(reply, ResponseError):
                self._doubted.add(node.name)
            if not isinstance(reply, ResponseError):
                raise reply
            if not isinstance(reply, AskError):
                return reply
            asking = not isinstance(reply, MovedError)
            node = await self._named(driver, reply)
        return reply

    def server_of(self, key: bytes) -> str | None:
        """The name of the server that has this key, if it is known."""
        node = self._known(key)
        return None if node is None else str(node.name)

    async def _owner(self, driver: Driver, key: bytes) -> Any:
        node = self._known(key)
        if (node is None or node.name in self._doubted) and self._is_due():
            self._doubted.clear()
            if not await self._is_read(driver) and node is not None:
                self._doubted.add(node.name)
            node = self._known(key)
        if node is None:
            raise SlotNotCoveredError("no server of the cluster has this key")
        return node

    async def _named(self, driver: Driver, reply: AskError) -> Any:
        """The server that a redirection names, which may be new and have another address for clients."""
        host, port = self._client.nodes_manager.remap_host_port(reply.host, reply.port)
        node = self._client.get_node(host=host, port=port)
        if node is None:
            await self._is_read(driver)
            node = self._client.get_node(host=host, port=port)
        if node is None:
            raise SlotNotCoveredError(f"the cluster does not know {reply.host}:{reply.port}")
        return node

    async def _is_read(self, driver: Driver) -> bool:
        """Read the map again; returns whether a server has answered."""
        initialize = self._client.nodes_manager.initialize
        try:
            await driver.ask(Twin(initialize, initialize))
        except _FAILURES:
            return False
        return True

    def _lender(self, node: Any) -> Any:
        """What lends connections to a server: for asynchronous callers the client's node itself."""
        is_awaited = hasattr(node, "acquire_connection")
        return node if is_awaited else self._client.get_redis_connection(node).connection_pool

    def _known(self, key: bytes) -> Any:
        try:
            return self._client.get_node_from_key(key)
        except SlotNotCoveredError:
            return None

    def _is_due(self) -> bool:
        if time.monotonic() - self._read_at < REFRESH_PAUSE_S:
            return False
        self._read_at = time.monotonic()
        return True


def key_of(command: tuple[Any, ...]) -> bytes:
    """The key that decides where a command goes: after the script and the number of keys, or first."""
    key: bytes = command[3] if command[0] in ("EVALSHA", "EVAL") else command[1]
    return key


TRUSTED_S = 0.5
"""How long an idle connection is assumed to be sound."""
KEPT_S = 60.0
"""How long a connection may be idle: load balancers and firewalls silently drop idle ones after minutes."""


def packed(command: tuple[Any, ...]) -> bytes:
    """A command in the wire format of Redis."""
    parts = [part if part.__class__ is bytes else str(part).encode() for part in command]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class OwnConnections:
    """Connections that only this store uses, at most as many as the pool allows. A thread that finds none
    free waits, and gives up if no call has got an answer for as long as an answer may take.

    Idle connections have no reply pending: if a call is given up in the middle, its connection is closed.
    """

    def __init__(self, pool: Any, patience_s: float) -> None:
        self._pool = pool
        self._patience_s = patience_s
        self._failed_at = self._replied_at = 0.0
        self._closed = False
        self._clear()
        _KEPT.add(self)

    def _clear(self) -> None:
        self._idle: list[tuple[Any, float]] = []
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._pool.max_connections):
            self._permits.put(None)

    def __del__(self) -> None:
        # Each connection is in a reference cycle, in which the collector may finalize the socket first.
        for connection, _ in self._idle:
            with suppress(Exception):  # no caller is left that an error could reach
                connection.disconnect()

    def begin(self) -> None:
        """Start empty in a forked child: the open connections are its parent's."""
        self._pool.reset()
        self._clear()

    def exchange(self, command: bytes) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        idle, permits = self._idle, self._permits
        taken: list[None] = []
        lent: list[tuple[Any, float]] = []
        try:
            try:
                # Taken and recorded in one C call: a signal handler that raises comes before or after both.
                taken += starmap(permits.get, ((True, self._patience_s),))
            except Empty:
                self._wait_on(permits, taken)
            try:
                lent += starmap(idle.pop, ((),))
            except IndexError:
                # Not by the pool, which would count the connection for ever.
                lent.append((self._pool.connection_class(**self._pool.connection_kwargs), inf))
            connection, since = lent[0]
            self._look_at(connection, since)
            reply = _replied(connection, command)
            if reply.__class__ in _OF_REPLICA:  # faster than isinstance, which every decision would pay for
                self._failed_at = time.monotonic()
                connection.disconnect()
                reply = _replied(connection, command)
                if isinstance(reply, _OF_REPLICA):
                    connection.disconnect()
            self._replied_at = replied_at = time.monotonic()
            back = (connection, replied_at)
            # Nothing is called, so no signal handler comes in between: the connection is either idle or lent.
            idle += (back,)
            lent = []
            if self._closed:
                # Another thread has closed the store, perhaps before this connection was idle.
                connection.disconnect()
            return reply
        finally:
            try:
                if lent:
                    # Connections that are idle now are not used again.
                    self._failed_at = time.monotonic()
                    lent[0][0].disconnect()
            finally:
                if taken:
                    permits.put(None)

    def close(self) -> None:
        """Close what is idle now, and what is in use as soon as it comes back."""
        self._closed = True
        for connection, _ in self._idle:
            connection.disconnect()
        # The client's own commands, such as scans for keys, use the pool itself.
        self._pool.disconnect()

    def _wait_on(self, permits: Any, taken: list[None]) -> None:
        """Wait for a free connection, as long as other calls get answers."""
        while not taken:
            patience_s = self._replied_at + self._patience_s - time.monotonic()
            if patience_s <= 0:
                raise RedisConnectionError(f"no connection was free for {self._patience_s:g} s") from None
            with suppress(Empty):
                taken += starmap(permits.get, ((True, patience_s),))

    def _look_at(self, connection: Any, since: float) -> None:
        """Close a connection if it was idle and may have ended, or lead to a replica; sending opens it again.
        `since` is `inf` for a new one.
        """
        idle_s = time.monotonic() - since
        is_old = since < self._failed_at or idle_s > KEPT_S
        if is_old or (idle_s > TRUSTED_S and not _is_whole(connection)):
            connection.disconnect()


_KEPT = process.begin_anew(OwnConnections.begin)


def exchange(pool: Any, command: bytes, *, asking: bool = False) -> Any:
    """The reply to a command, on a connection that the client's own pool lends and tests."""
    taken: list[Any] = []
    is_whole = False
    try:
        taken += starmap(pool.get_connection, ((),))
        reply = _replied(taken[0], command, asking=asking)
        is_whole = not isinstance(reply, _OF_REPLICA)
        return reply
    finally:
        if taken:
            if not is_whole:
                taken[0].disconnect()
            pool.release(taken[0])


def _replied(connection: Any, command: bytes, *, asking: bool = False) -> Any:
    """The reply, after which the connection can be used again; after an exception it cannot."""
    try:
        if asking:
            connection.send_packed_command([packed(("ASKING",))])
            connection.read_response(disable_decoding=True)
        connection.send_packed_command([command])
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


class PromptSSLConnection(SSLConnection):
    """Closes at once if that is not awaited.

    asyncio itself waits half a minute for the other side to confirm the end of TLS. If that is gone, each
    call without an answer would leave a socket open for as long.
    """

    async def disconnect(self, nowait: bool = False, *args: Any, **more: Any) -> None:
        if nowait and self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(nowait, *args, **more)


class AsyncOwnConnections:
    """Connections that only this store uses, on one event loop; a task that finds none free waits."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._room = asyncio.Semaphore(pool.max_connections)
        self._idle: list[tuple[Any, float]] = []
        self._failed_at = self._replied_at = 0.0
        # A connection can be closed only on its loop. A loop that ends, as in `asyncio.run`, calls `aclose`
        # of all asynchronous generators that are registered with it, so this object is registered as one.
        if (begun := sys.get_asyncgen_hooks().firstiter) is not None:
            begun(cast("AsyncGenerator[Any, Any]", self))

    def __del__(self) -> None:
        if running_loop() is self._loop:
            for connection, _ in self._idle:
                with suppress(Exception):  # no caller is left that an error could reach
                    connection.disconnect(nowait=True).send(None)

    async def exchange(self, command: bytes) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        has_entered = False
        try:
            has_entered = await self._enter()
            connection, since = self._idle.pop() if self._idle else (self._pool.make_connection(), inf)
            try:
                # One timer for sending and receiving; the client would set one for each.
                async with PatientTimeout(self._timeout_s):
                    idle_s = time.monotonic() - since
                    if since < self._failed_at or idle_s > KEPT_S:
                        await connection.disconnect(nowait=True)
                    elif idle_s > TRUSTED_S:
                        await _renew(connection)
                    await connection.send_packed_command(command)
                    try:
                        reply = await connection.read_response(disable_decoding=True)
                    except _OF_REPLICA:
                        self._failed_at = time.monotonic()
                        await connection.disconnect(nowait=True)
                        await connection.send_packed_command(command)
                        reply = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                reply = error
                if isinstance(error, _OF_REPLICA):
                    await connection.disconnect(nowait=True)
            except BaseException as error:
                _check_loop(self._loop)
                self._failed_at = time.monotonic()
                await connection.disconnect(nowait=True)
                if isinstance(error, TimeoutError):
                    raise RedisTimeoutError(f"no answer within {self._timeout_s:g} s") from None
                raise
            self._replied_at = time.monotonic()
            self._idle.append((connection, self._replied_at))
            if self._closed:
                await self.aclose()
            return reply
        finally:
            if has_entered:
                with suppress(RuntimeError):  # the event loop of the waiting tasks is closed
                    self._room.release()

    async def _enter(self) -> bool:
        """Wait for a free connection; give up if no call has got an answer for as long as that may take."""
        if not self._room.locked():
            return await self._room.acquire()
        try:
            async with PatientTimeout(self._timeout_s, lambda: self._replied_at):
                return await self._room.acquire()
        except TimeoutError:
            raise RedisConnectionError(f"no connection was free for {self._timeout_s:g} s") from None

    async def aclose(self) -> None:
        """Close what is idle now, and what is in use as soon as it comes back."""
        self._closed = True
        # TLS ends only when the other side confirms it, and that may be gone.
        with suppress(TimeoutError, RedisTimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._end_idle(nowait=False)
        await self._end_idle(nowait=True)

    async def _end_idle(self, *, nowait: bool) -> None:
        while self._idle:
            connection, _ = self._idle.pop()
            await connection.disconnect(nowait=nowait)


async def aexchange(lender: Any, command: bytes, *, asking: bool = False) -> Any:
    """The reply to a command, on a connection that the client's own pool or a server of a cluster lends. The
    latter does not test it.
    """
    loop = asyncio.get_running_loop()
    is_pool = hasattr(lender, "get_connection")
    connection = await lender.get_connection() if is_pool else lender.acquire_connection()
    try:
        await _renew(connection)
        if asking:
            await connection.send_packed_command(packed(("ASKING",)))
            await connection.read_response(disable_decoding=True)
        await connection.send_packed_command(command)
        reply = await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        reply = error
        if isinstance(error, _OF_REPLICA):
            await connection.disconnect(nowait=True)
    except BaseException:
        _check_loop(loop)
        try:
            await connection.disconnect(nowait=True)
        finally:
            await _released(lender, connection)
        raise
    await _released(lender, connection)
    return reply


async def _released(lender: Any, connection: Any) -> None:
    # Servers of a cluster have no public method for this before redis-py 6.4.
    release = getattr(lender, "release", None) or lender._free.append  # noqa: SLF001
    if (releasing := release(connection)) is not None:
        await releasing


def _check_loop(loop: object) -> None:
    """Continue only on the connection's own loop: without it the connection cannot be closed.

    When a coroutine is dropped, redis-py tries to close it all the same, and raises a useless error.
    """
    if running_loop() is not loop:
        raise GeneratorExit


def _is_whole(connection: Any) -> bool:
    """Whether nothing has arrived unasked, such as the end of the connection."""
    try:
        return not connection.can_read()
    except (RedisConnectionError, RedisTimeoutError, OSError):
        return False


async def _renew(connection: Any) -> None:
    """Close a connection that the server has ended: sending opens it again.

    The client's own pool does not check that if the server might send notifications.
    """
    if not connection.is_connected:
        return
    # The name of the method before redis-py 8.
    has_come = getattr(connection, "can_read", None) or connection.can_read_destructive
    try:
        is_whole = not await has_come()
    except (RedisConnectionError, OSError):
        is_whole = False
    if not is_whole:
        await connection.disconnect(nowait=True)


class Link:
    """Sends commands through a client: Redis, RedisCluster, or one that a Sentinel has made.

    An asynchronous client is used with `asay`, on the event loop that it belongs to.
    """

    def __init__(self, client: Any, kept: OwnConnections | AsyncOwnConnections | None = None) -> None:
        self._client = client
        self._kept: Any = kept
        self.is_cluster = hasattr(client, "get_node_from_key")
        self.is_closed = False
        self._map = Map(client)

    def say(self, command: tuple[Any, ...]) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        if self.is_closed:
            raise closed()
        try:
            if self._kept is not None:
                return self._kept.exchange(packed(command))
            return run(self._map.routed if self.is_cluster else self._reply, command)
        except _FAILURES as error:
            raise unavailable(error) from error

    async def asay(self, command: tuple[Any, ...]) -> Any:
        try:
            if self._kept is not None:
                return await self._kept.exchange(packed(command))
            if not self.is_cluster:
                return await self._reply(TASKS, command)
            await self._client.initialize()
            return await self._map.routed(TASKS, command)
        except _FAILURES as error:
            raise unavailable(error) from error

    def close(self) -> None:
        """Send nothing more, and close the connections that this store made."""
        self.is_closed = True
        if self._kept is not None:
            self._kept.close()

    async def aclose(self) -> None:
        """Close an asynchronous client that this store made."""
        self.is_closed = True
        if self._kept is not None:
            await self._kept.aclose()
            await self._client.aclose()

    def server_of(self, key: bytes) -> str | None:
        """The server of the cluster that has this key, if it is known."""
        return self._map.server_of(key) if self.is_cluster else None

    async def _reply(self, driver: Driver, command: tuple[Any, ...]) -> Any:
        pool = self._client.connection_pool
        try:
            reply = await driver.ask(_EXCHANGE, pool, packed(command))
        except RedisConnectionError as error:
            # A Sentinel's connection raises a lost connection if the server replied that it is a replica.
            reply = error.__context__
            if not isinstance(reply, _OF_REPLICA):
                raise
        if isinstance(reply, _OF_REPLICA):
            # A replica now: a Sentinel's pool finds the new primary when a connection is opened.
            idle = {"inuse_connections": False}
            # A BlockingConnectionPool of redis-py 6 does not have this argument.
            chosen = idle if idle.keys() <= signature(pool.disconnect).parameters.keys() else {}
            await driver.ask(Twin(pool.disconnect, pool.disconnect), **chosen)
            reply = await driver.ask(_EXCHANGE, pool, packed(command))
        return reply


_EXCHANGE = Twin(exchange, aexchange)
# For a host name that cannot exist, the resolver raises UnicodeError.
_FAILURES = (RedisError, RedisClusterException, OSError, UnicodeError)


def closed() -> StoreUnavailableError:
    """The error for calls after the store was closed."""
    return StoreUnavailableError("this RedisStore is closed; make a new one")


def unavailable(error: Exception) -> StoreUnavailableError:
    """An error of a client, or one that the server replied, as StoreUnavailableError.

    The texts of such errors contain no credentials.
    """
    if isinstance(error, _MASTERLESS):
        # It shows the client of each Sentinel, before redis-py 8 with its password, and what that raised.
        text, _, clients = str(error).partition(" : <")
        _, is_there, reason = clients.rpartition(")> - ")
        error.args = (f"{text}: {reason}" if is_there else text,)
    is_reply = isinstance(error, ResponseError | AuthenticationError)
    text = f"refused: {error}" if is_reply else f"does not answer: {type(error).__name__}: {error}"
    # The text of the error itself does not say how to fix it.
    # For trouble with a socket, clients raise an error of their own.
    found = (error, error.__cause__ or error.__context__)
    fix = next((fix for kinds, fix in _FIXES.items() if any(isinstance(one, kinds) for one in found)), "")
    return StoreUnavailableError(f"Redis {text.removesuffix('.') if fix else text}{fix}")
