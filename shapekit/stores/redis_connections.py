"""Connections: one command out, one reply in, on a connection that nobody else uses meanwhile.

A caller's own client lends its connections, by its own pool's rules. Those of a client that we made are
kept here: the last one that was used is used next, and unless it was idle for a while, or another one has
failed since, it is not examined again, which would take as long as the command itself.
"""

from __future__ import annotations

import asyncio
import os
import time
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

TRUSTED_S = 0.5
"""How long an idle connection is taken to be whole."""


def packed(command: tuple[Any, ...]) -> bytes:
    """A command as it goes over the wire."""
    words = [word if word.__class__ is bytes else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Connections(Protocol):
    """Where connections come from, and where they go when they were used."""

    def take(self) -> Any: ...

    def give(self, connection: Any) -> None: ...

    def lost(self, connection: Any) -> None:
        """A connection has failed, and was closed; others may have failed, too."""


class Lent:
    """Those of a client's own pool."""

    def __init__(self, pool: Any) -> None:
        self.take = pool.get_connection
        self.give = pool.release

    def lost(self, connection: Any) -> None:
        """The pool looks at each connection that it lends."""


class Kept:
    """Ours alone, at most as many as the pool allows; a thread that finds none free waits a little."""

    def __init__(self, pool: Any, patience_s: float) -> None:
        self._pool = pool
        self._patience_s = patience_s
        self._clear()

    def _clear(self) -> None:
        self._process = os.getpid()
        self._idle: list[tuple[Any, float]] = []
        self._shut: set[Any] = set()
        self._failed_at = 0.0
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._pool.max_connections):
            self._permits.put(None)
        self._closed = False

    def take(self) -> Any:
        """A connection, maybe one that is still to be opened."""
        if self._process != os.getpid():
            # The parent of a fork goes on using what was open.
            self._pool.reset()
            self._clear()
        try:
            self._permits.get(timeout=self._patience_s)
        except Empty:
            raise RedisConnectionError(f"no connection was free for {self._patience_s:g} s") from None
        try:
            connection, since = self._idle.pop()
        except IndexError:
            return self._pool.make_connection()
        if connection in self._shut:
            # Sending opens it. To look at it would open it too, and so try twice where nobody answers.
            self._shut.discard(connection)
            return connection
        is_trusted = since >= self._failed_at and time.monotonic() - since <= TRUSTED_S
        if not is_trusted and not _is_whole(connection):
            connection.disconnect()
        return connection

    def give(self, connection: Any) -> None:
        """Back, for whoever is next."""
        if self._closed:
            connection.disconnect()
        self._idle.append((connection, time.monotonic()))
        self._permits.put(None)

    def lost(self, connection: Any) -> None:
        """What is idle now is examined before it is used again."""
        self._shut.add(connection)
        self._failed_at = time.monotonic()

    def close(self) -> None:
        """Close what is idle now, and what is in use as soon as it comes back."""
        self._closed = True
        for connection, _ in self._idle:
            connection.disconnect()
        # The client's own commands, which look for keys, use the pool itself.
        self._pool.disconnect()


def exchange(connections: Connections, command: bytes, *, asking: bool = False) -> Any:
    """The reply to a command; an error that the server replied is returned."""
    connection = connections.take()
    try:
        if asking:
            connection.send_packed_command([packed(("ASKING",))])
            connection.read_response()
        connection.send_packed_command([command])
        return connection.read_response()
    except ResponseError as error:
        return error
    except BaseException:
        connection.disconnect()
        connections.lost(connection)
        raise
    finally:
        connections.give(connection)


class AsyncKept:
    """Ours alone, on one event loop; a task that finds none free waits for one."""

    def __init__(self, pool: Any, most: int, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(most)
        self._idle: list[tuple[Any, float]] = []
        self._failed_at = 0.0

    async def exchange(self, command: bytes) -> Any:
        """The reply to a command; an error that the server replied is returned."""
        await self._enter()
        connection, since = self._idle.pop() if self._idle else (self._pool.make_connection(), 0.0)
        try:
            # One timer for sending and receiving, where the client would make one for each.
            async with asyncio.timeout(self._timeout_s):
                if since < self._failed_at or time.monotonic() - since > TRUSTED_S:
                    await _renew(connection)
                await connection.send_packed_command(command)
                return await connection.read_response()
        except ResponseError as error:
            return error
        except TimeoutError:
            await connection.disconnect(nowait=True)
            raise RedisTimeoutError(f"no answer within {self._timeout_s:g} s") from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            now = time.monotonic()
            if not connection.is_connected:
                self._failed_at = now
            self._idle.append((connection, now))
            self._room.release()

    async def _enter(self) -> None:
        """Wait for a free connection, as long as for an answer at most."""
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._room.acquire()
        except TimeoutError:
            raise RedisConnectionError(f"no connection was free for {self._timeout_s:g} s") from None

    async def aclose(self) -> None:
        """Close what is idle."""
        while self._idle:
            connection, _ = self._idle.pop()
            await connection.disconnect()


async def aexchange(pool: Any, command: bytes) -> Any:
    """The reply to a command, on a connection that the client's own pool lends."""
    connection = await pool.get_connection()
    try:
        await _renew(connection)
        await connection.send_packed_command(command)
        return await connection.read_response()
    except ResponseError as error:
        return error
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


def _is_whole(connection: Any) -> bool:
    """Whether nothing has come that nobody asked for, the end of the connection above all."""
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
