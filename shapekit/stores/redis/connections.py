"""Connections: one command to the right Redis server and its reply, once.

A client may repeat a command whose reply was lost, and so consume twice; the clients of redis-py do by
default. Here a command is sent on a connection that no other call uses meanwhile, and never again, unless
the server itself has said that it did not run it. Where a reply is lost the caller is told that the store
is unavailable, and at most this one call was charged for nothing.

- `OwnConnections`, `AsyncOwnConnections`: the pool of a client that the store made. The connection that was
  used last is used next. It is examined only where it was idle for a while: that takes as long as the command
  itself. Where another one has failed since, it is closed: a server that has lost its power, or a firewall
  that has forgotten its connections, ends none of them, so that each would look whole and fail in its turn.
  A caller's own client lends its connections by its own pool's rules.
- A server that is a replica by now has not run the command. Its connection is closed, for whatever leads to
  the primary (a name, a Sentinel) may lead to another server by now, and the command is sent once more.
- `Link`: the way from a command to its server, through a cluster or a Sentinel.
- `Map`: what a cluster's client knows of its servers, whom to doubt, and where to go on to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import starmap
from math import inf
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from redis.asyncio.cluster import PipelineCommand
from redis.client import NEVER_DECODE
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shapekit._runtime import process
from shapekit._runtime.drivers import LAST_CALL_S, TASKS, Driver, Twin, run, running_loop
from shapekit.errors import StoreUnavailableError

REDIRECTIONS_AT_MOST = 5
REFRESH_PAUSE_S = 1.0
"""How often a cluster whose servers fail is asked how it stands now."""
_DOUBTFUL = (MovedError, ClusterDownError, TryAgainError, ReadOnlyError)
_APART = (AskError, ClusterCrossSlotError)
"""What a client gets that knows nothing of clusters: a key lies elsewhere, or those of a call lie apart."""


class Map:
    """What a cluster's client knows of the servers, and which of them not to believe.

    Only for a key of a doubted server is the map read again: what happens to one shard costs the keys
    of the others nothing.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._doubted: set[str] = set()
        self._read_at = -REFRESH_PAUSE_S

    async def routed(self, driver: Driver, command: tuple[Any, ...]) -> Any:
        """The reply of the server that has the key of a command, or of the one that it is sent on to."""
        node = await self._owner(driver, key_of(command))
        reply, asking = None, False
        for _ in range(REDIRECTIONS_AT_MOST):
            try:
                reply = await driver.ask(Twin(self._call_node, _acall_node), node, command, asking=asking)
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
        """The name of the server that has this key, as far as is known."""
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
        """The server that a reply names, which may be new. Clients may reach it at another address."""
        host, port = self._client.nodes_manager.remap_host_port(reply.host, reply.port)
        node = self._client.get_node(host=host, port=port)
        if node is None:
            await self._is_read(driver)
            node = self._client.get_node(host=host, port=port)
        if node is None:
            raise SlotNotCoveredError(f"the cluster does not say who {reply.host}:{reply.port} is")
        return node

    async def _is_read(self, driver: Driver) -> bool:
        """Read the map again; whether a server has told it."""
        initialize = self._client.nodes_manager.initialize
        try:
            await driver.ask(Twin(initialize, initialize))
        except _FAILURES:
            return False
        return True

    def _call_node(self, node: Any, command: tuple[Any, ...], *, asking: bool) -> Any:
        pool = self._client.get_redis_connection(node).connection_pool
        return exchange(pool, packed(command), asking=asking)

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
    """The key that decides where a command goes: behind the script and the count of keys, or first."""
    key: bytes = command[3] if command[0] in ("EVALSHA", "EVAL") else command[1]
    return key


TRUSTED_S = 0.5
"""How long an idle connection is taken to be whole."""
KEPT_S = 60.0
"""How long a connection may be idle: load balancers and firewalls on the way drop idle ones after minutes,
and tell neither end."""


def packed(command: tuple[Any, ...]) -> bytes:
    """A command as it goes over the wire."""
    words = [word if word.__class__ is bytes else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class OwnConnections:
    """Ours alone, at most as many as the pool allows; a thread that finds none free waits, and gives up if no
    call has got an answer for as long as one may take.

    Idle ones are whole: one whose call was given up in the midst of it is closed and never seen again.
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
        # Each is in a circle of its own client's, where the collector may come to the socket first.
        for connection, _ in self._idle:
            with suppress(Exception):  # no caller is left to hear of it
                connection.disconnect()

    def begin(self) -> None:
        """In the child of a fork: the parent goes on using what was open."""
        self._pool.reset()
        self._clear()

    def exchange(self, command: bytes) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        idle, permits = self._idle, self._permits
        taken: list[None] = []
        lent: list[tuple[Any, float]] = []
        try:
            try:
                # Taken and known to be taken in one go: a signal handler that raises comes before or after.
                taken += starmap(permits.get, ((True, self._patience_s),))
            except Empty:
                self._wait_on(permits, taken)
            try:
                lent += starmap(idle.pop, ((),))
            except IndexError:
                # The pool itself would count it, for ever.
                lent.append((self._pool.connection_class(**self._pool.connection_kwargs), inf))
            connection, since = lent[0]
            self._look_at(connection, since)
            reply = _replied(connection, command)
            if reply.__class__ is ReadOnlyError:  # a call of isinstance would be one for each decision
                self._failed_at = time.monotonic()
                connection.disconnect()
                reply = _replied(connection, command)
                if isinstance(reply, ReadOnlyError):
                    connection.disconnect()
            self._replied_at = replied_at = time.monotonic()
            back = (connection, replied_at)
            # Without a call no handler comes in between: it is either idle or lent.
            idle += (back,)
            lent = []
            if self._closed:
                # By another thread, which may have seen what was idle before.
                connection.disconnect()
            return reply
        finally:
            try:
                if lent:
                    # What is idle now is not used again.
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
        # The client's own commands, which look for keys, use the pool itself.
        self._pool.disconnect()

    def _wait_on(self, permits: Any, taken: list[None]) -> None:
        """Wait for a free connection as long as others get answers, so that its turn comes."""
        while not taken:
            patience_s = self._replied_at + self._patience_s - time.monotonic()
            if patience_s <= 0:
                raise RedisConnectionError(f"no connection was free for {self._patience_s:g} s") from None
            with suppress(Empty):
                taken += starmap(permits.get, ((True, patience_s),))

    def _look_at(self, connection: Any, since: float) -> None:
        """Close one that was idle and may have ended, or lead to a replica: sending opens it again. A new one
        comes from `inf`.
        """
        idle_s = time.monotonic() - since
        is_old = since < self._failed_at or idle_s > KEPT_S
        if is_old or (idle_s > TRUSTED_S and not _is_whole(connection)):
            connection.disconnect()


_KEPT = process.begin_anew(OwnConnections.begin)


def exchange(pool: Any, command: bytes, *, asking: bool = False) -> Any:
    """The reply to a command, on a connection that the client's own pool lends and looks at."""
    taken: list[Any] = []
    is_whole = False
    try:
        taken += starmap(pool.get_connection, ((),))
        reply = _replied(taken[0], command, asking=asking)
        is_whole = not isinstance(reply, ReadOnlyError)
        return reply
    finally:
        if taken:
            if not is_whole:
                taken[0].disconnect()
            pool.release(taken[0])


def _replied(connection: Any, command: bytes, *, asking: bool = False) -> Any:
    """The reply, with which the connection is whole again; if anything is raised, it is not."""
    try:
        if asking:
            connection.send_packed_command([packed(("ASKING",))])
            connection.read_response(disable_decoding=True)
        connection.send_packed_command([command])
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


class AsyncOwnConnections:
    """Ours alone, on one event loop, at most as many as the pool allows; a task that finds none waits."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._room = asyncio.Semaphore(pool.max_connections)
        self._idle: list[tuple[Any, float]] = []
        self._failed_at = self._replied_at = 0.0

    async def exchange(self, command: bytes) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        has_entered = False
        try:
            has_entered = await self._enter()
            connection, since = self._idle.pop() if self._idle else (self._pool.make_connection(), inf)
            try:
                # One timer for sending and receiving, where the client would make one for each.
                async with _Deadline(self._timeout_s):
                    idle_s = time.monotonic() - since
                    if since < self._failed_at or idle_s > KEPT_S:
                        await connection.disconnect(nowait=True)
                    elif idle_s > TRUSTED_S:
                        await _renew(connection)
                    await connection.send_packed_command(command)
                    try:
                        reply = await connection.read_response(disable_decoding=True)
                    except ReadOnlyError:
                        self._failed_at = time.monotonic()
                        await connection.disconnect(nowait=True)
                        await connection.send_packed_command(command)
                        reply = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                reply = error
                if isinstance(error, ReadOnlyError):
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
                with suppress(RuntimeError):  # the tasks that wait for it are thrown away, too
                    self._room.release()

    async def _enter(self) -> bool:
        """Wait for a free connection; give up if no call has got an answer for as long as one may take."""
        if not self._room.locked():
            return await self._room.acquire()
        try:
            async with _Deadline(self._timeout_s, lambda: self._replied_at):
                return await self._room.acquire()
        except TimeoutError:
            raise RedisConnectionError(f"no connection was free for {self._timeout_s:g} s") from None

    async def aclose(self) -> None:
        """Close what is idle now, and what is in use as soon as it comes back."""
        self._closed = True
        # TLS ends when the other side says so, too, which may be gone.
        with suppress(TimeoutError, RedisTimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._end_idle(nowait=False)
        await self._end_idle(nowait=True)

    async def _end_idle(self, *, nowait: bool) -> None:
        while self._idle:
            connection, _ = self._idle.pop()
            await connection.disconnect(nowait=nowait)


class _Deadline:
    """As `asyncio.timeout`; but what came while the loop was blocked is read before time is up.

    With `sign`, the time counts from the instant that it returns.
    """

    __slots__ = ("_handle", "_seconds", "_sign", "_timer")

    def __init__(self, seconds: float, sign: Callable[[], float] | None = None) -> None:
        self._seconds = seconds
        self._sign = sign

    async def __aenter__(self) -> None:
        self._timer = asyncio.timeout(None)
        await self._timer.__aenter__()
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        await self._timer.__aexit__(kind, error, trace)

    def _expire(self, *, was_called: bool = False) -> None:
        loop = asyncio.get_running_loop()
        left_s = 0.0 if self._sign is None else self._sign() + self._seconds - time.monotonic()
        if left_s > 0:
            self._handle = loop.call_later(left_s, self._expire)
        elif not was_called:
            self._handle = loop.call_later(LAST_CALL_S, partial(self._expire, was_called=True))
        else:
            self._timer.reschedule(loop.time())


async def aexchange(pool: Any, command: bytes) -> Any:
    """The reply to a command, on a connection that the client's own pool lends."""
    loop = asyncio.get_running_loop()
    connection = await pool.get_connection()
    try:
        await _renew(connection)
        await connection.send_packed_command(command)
        reply = await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        reply = error
        if isinstance(error, ReadOnlyError):
            await connection.disconnect(nowait=True)
    except BaseException:
        _check_loop(loop)
        try:
            await connection.disconnect(nowait=True)
        finally:
            await pool.release(connection)
        raise
    await pool.release(connection)
    return reply


def _check_loop(loop: object) -> None:
    """Go on only on the connection's own loop. Without it nothing of it can be closed.

    redis-py tries, where a coroutine is thrown away, and what it raises then is of no use.
    """
    if running_loop() is not loop:
        raise GeneratorExit


def _is_whole(connection: Any) -> bool:
    """Whether nothing has come unasked, the end of the connection above all."""
    try:
        return not connection.can_read()
    except (RedisConnectionError, RedisTimeoutError, OSError):
        return False


async def _renew(connection: Any) -> None:
    """Let go of a connection that the server has ended: sending opens it again.

    The client's own pool does not look at that where the server might send notifications.
    """
    if not connection.is_connected:
        return
    # Its name before redis-py 8.
    has_come = getattr(connection, "can_read", None) or connection.can_read_destructive
    try:
        is_whole = not await has_come()
    except (RedisConnectionError, OSError):
        is_whole = False
    if not is_whole:
        await connection.disconnect(nowait=True)


class Link:
    """The way to a client: Redis, RedisCluster, or one that a Sentinel has made.

    An asynchronous client is asked by `asay`, on the event loop where it is used.
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
            return run(self._map.routed if self.is_cluster else self._said, command)
        except _FAILURES as error:
            raise unavailable(error) from error

    async def asay(self, command: tuple[Any, ...]) -> Any:
        try:
            if self._kept is not None:
                return await self._kept.exchange(packed(command))
            if not self.is_cluster:
                return await self._said(TASKS, command)
            await self._client.initialize()
            return await self._map.routed(TASKS, command)
        except _FAILURES as error:
            raise unavailable(error) from error

    def close(self) -> None:
        """Say nothing more, and close the connections that we made."""
        self.is_closed = True
        if self._kept is not None:
            self._kept.close()

    async def aclose(self) -> None:
        """Close an asynchronous client that we made."""
        self.is_closed = True
        if self._kept is not None:
            await self._kept.aclose()
            await self._client.aclose()

    def server_of(self, key: bytes) -> str | None:
        """The server of the cluster that has this key, as far as is known."""
        return self._map.server_of(key) if self.is_cluster else None

    async def _said(self, driver: Driver, command: tuple[Any, ...]) -> Any:
        pool = self._client.connection_pool
        try:
            reply = await driver.ask(_EXCHANGE, pool, packed(command))
        except RedisConnectionError as error:
            # A Sentinel's connection tells as a loss that the server has replied it is a replica.
            reply = error.__context__
            if not isinstance(reply, ReadOnlyError):
                raise
        if isinstance(reply, ReadOnlyError):
            # A replica now: a Sentinel's pool finds the new master where a connection is opened.
            idle = {"inuse_connections": False}
            # A BlockingConnectionPool of redis-py 6 has no such choice.
            chosen = idle if idle.keys() <= signature(pool.disconnect).parameters.keys() else {}
            await driver.ask(Twin(pool.disconnect, pool.disconnect), **chosen)
            reply = await driver.ask(_EXCHANGE, pool, packed(command))
        return reply


async def _acall_node(node: Any, command: tuple[Any, ...], *, asking: bool) -> Any:
    if not asking:
        return await node.execute_command(*command, **{NEVER_DECODE: True})
    # A server that only imports the key's slot; ASKING holds for one connection.
    both = [PipelineCommand(0, "ASKING"), PipelineCommand(1, *command, **{NEVER_DECODE: True})]
    await node.execute_pipeline(both)
    return both[1].result


_EXCHANGE = Twin(exchange, aexchange)
# A host that can have no address is a UnicodeError of the resolver.
_FAILURES = (RedisError, RedisClusterException, OSError, UnicodeError)


def closed() -> StoreUnavailableError:
    """What calls get that come when the store is closed."""
    return StoreUnavailableError("this RedisStore is closed; make a new one")


def unavailable(error: Exception) -> StoreUnavailableError:
    """The same, for code that knows nothing of Redis. What clients write in errors holds no credentials."""
    return StoreUnavailableError(f"Redis does not answer: {type(error).__name__}: {error}{_fix(error)}")


def refused(reply: Exception) -> StoreUnavailableError:
    """What calls get where the server has replied an error."""
    return StoreUnavailableError(f"Redis refused: {reply}{_fix(reply)}")


def _fix(error: Exception) -> str:
    """What to do about an error that says it in no words of its own."""
    return "; this is one server of a Redis Cluster: pass a RedisCluster" if isinstance(error, _APART) else ""
