"""Answers that arrive in time count, also where the loop was blocked until their time was up."""

import asyncio
import time

import pytest
from redis.asyncio import Connection, ConnectionPool
from redis.exceptions import TimeoutError as RedisTimeoutError

from shapekit import GCRA, Gate, RedisStore
from shapekit._runtime import drivers
from shapekit.stores.redis.connections import AsyncOwnConnections, PromptSSLConnection

from ..redis_server import RedisServer
from .outages import blocked_meanwhile

TIMEOUT_S = 0.05
PING = b"*1\r\n$4\r\nPING\r\n"
NEVER = b"*3\r\n$5\r\nBLPOP\r\n$4\r\nnone\r\n$1\r\n0\r\n"


@pytest.fixture
def long_last_call(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(drivers, "LAST_CALL_S", 10.0)


@pytest.fixture(scope="module")
def url():
    with RedisServer() as server:
        yield server.url


def block_the_loop():
    time.sleep(2 * TIMEOUT_S)


def outcome_of(url, question, **options):
    """The result of a question on a connection that is open."""

    async def main():
        pool = ConnectionPool.from_url(url, max_connections=1, **options)
        kept = AsyncOwnConnections(pool, TIMEOUT_S)
        assert await kept.exchange(PING) == b"PONG"
        try:
            return await question(kept)
        finally:
            await kept.aclose()

    return asyncio.run(main())


def test_an_answer_that_came_while_the_loop_was_blocked_is_an_answer(url, long_last_call):
    """Whichever step of connecting it has reached."""

    async def main():
        for rounds in range(0, 60, 3):
            kept = AsyncOwnConnections(ConnectionPool.from_url(url, max_connections=1), TIMEOUT_S)
            assert await blocked_meanwhile(kept.exchange(PING), rounds, 2 * TIMEOUT_S) == b"PONG"
            await kept.aclose()

    asyncio.run(main())


def test_an_answer_to_a_store_of_a_url_counts_too(url, long_last_call):
    """Its client would have a timer of its own for connecting."""

    async def main():
        for rounds in range(0, 60, 3):
            bounds = f"socket_timeout={TIMEOUT_S}&socket_connect_timeout={TIMEOUT_S}"
            store = RedisStore.from_url(f"{url}?{bounds}")
            question = Gate(GCRA("100/s"), name="gate", store=store).acheck(str(rounds))
            assert await blocked_meanwhile(question, rounds, 2 * TIMEOUT_S)
            await store.aclose()

    asyncio.run(main())


def test_an_answer_to_a_call_that_waited_for_a_connection_counts_too(url, long_last_call):
    async def question(kept):
        both = [asyncio.create_task(kept.exchange(PING)) for _ in range(2)]
        await asyncio.sleep(0)
        block_the_loop()
        return await asyncio.gather(*both)

    assert outcome_of(url, question) == [b"PONG", b"PONG"]


def test_a_call_waits_for_a_connection_as_long_as_others_get_answers(url):
    a_while = b"*3\r\n$5\r\nBLPOP\r\n$4\r\nnone\r\n$3\r\n0.1\r\n"

    async def main():
        kept = AsyncOwnConnections(ConnectionPool.from_url(url, max_connections=1), 0.5)
        answers = await asyncio.gather(*(kept.exchange(a_while) for _ in range(8)))
        assert answers == [None] * 8
        await kept.aclose()

    asyncio.run(main())


def test_a_missing_answer_is_waited_for_until_time_is_up(url):
    async def question(kept):
        with pytest.raises(RedisTimeoutError, match=r"no answer within 0\.05 s"):
            await kept.exchange(NEVER)
        return await kept.exchange(PING)

    assert outcome_of(url, question) == b"PONG"


class Lingering(PromptSSLConnection):
    """Speaks no TLS. Closing it does nothing until the other side confirms that, which it never does."""

    def _connection_arguments(self):
        return super()._connection_arguments() | {"ssl": None}

    async def _connect(self):
        await super()._connect()
        self._writer.close = lambda: None


def test_a_tls_connection_that_has_failed_does_not_linger(url):
    async def question(kept):
        transport = kept._idle[0][0]._writer.transport
        with pytest.raises(RedisTimeoutError):
            await kept.exchange(NEVER)
        await asyncio.sleep(0)
        return transport.get_extra_info("socket").fileno()

    assert outcome_of(url, question, connection_class=Lingering) == -1


def test_a_url_with_tls_has_such_connections():
    store = RedisStore.from_url("rediss://localhost")

    async def main():
        link = store._loops.here().link
        try:
            return link._client.connection_pool.connection_class
        finally:
            await store.aclose()

    assert asyncio.run(main()) is PromptSSLConnection


class Unanswered(Connection):
    """Waits for the other side to close, which it never does, like a TLS connection whose network is gone."""

    async def disconnect(self, nowait=False):
        await super().disconnect(nowait=True)
        if not nowait:
            await asyncio.Event().wait()


def test_closing_does_not_wait_for_the_other_side_for_ever(url):
    async def main():
        pool = ConnectionPool.from_url(url, connection_class=Unanswered)
        kept = AsyncOwnConnections(pool, TIMEOUT_S)
        await asyncio.gather(kept.exchange(PING), kept.exchange(PING))
        async with asyncio.timeout(20):
            await kept.aclose()

    asyncio.run(main())
