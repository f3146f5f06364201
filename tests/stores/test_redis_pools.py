"""RedisStore works with any pool of a client and any options of a URL."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest
from redis import BlockingConnectionPool, ConnectionPool, Redis, RedisError

from shapekit import GCRA, Gate, ResilientStore, Shaper, StoreUnavailableError
from shapekit.stores.redis import RedisStore
from shapekit.stores.redis.connections import OwnConnections, packed

from ..faults.leftovers import Leftovers
from ..redis_server import RedisServer, shared_server


class Older(BlockingConnectionPool):
    """A pool like that of redis-py 6."""

    def disconnect(self):
        super().disconnect()


@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool, Older])
def test_a_server_that_has_become_a_replica_is_unavailable_until_it_is_a_master(kind):
    with RedisServer() as server, server.client() as operator:
        pool = kind.from_url(server.url)
        gate = Gate(GCRA("1/h", 2), name="gate", store=RedisStore(Redis(connection_pool=pool)))
        assert gate.check()
        operator.replicaof("127.0.0.1", 1)
        with pytest.raises(StoreUnavailableError):
            gate.check()
        operator.replicaof("NO", "ONE")
        assert gate.check().current == 2
        pool.disconnect()


@pytest.mark.parametrize("host", ["redis..internal", "a" * 70 + ".internal"])
def test_a_host_that_can_have_no_address_is_an_outage(host):
    store = RedisStore.from_url(f"redis://{host}:6379")
    gate = Gate(GCRA("1/h"), name="gate", store=store)
    with pytest.raises(StoreUnavailableError):
        gate.check()
    with pytest.raises(StoreUnavailableError):
        asyncio.run(gate.acheck())
    assert Gate(GCRA("1/h"), name="gate", store=ResilientStore(store, on_outage="open")).check()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_url_with_decode_responses_finds_every_key(encoding):
    options = f"?decode_responses=true&encoding={encoding}"
    store = RedisStore.from_url(shared_server().url + options, prefix=f"pools-{encoding}")
    gate = Gate(GCRA("1/h"), name="api", store=store)
    keys = ["é", "\ud800"]
    assert all(gate.check_many(keys))
    assert sorted(store.keys()) == [f"api:{key}" for key in keys]
    assert store.reset_all() == 2
    assert list(store.keys()) == []
    assert asyncio.run(awaited(gate, store)) == [True, True]


async def awaited(gate, store):
    allowed = [(await gate.acheck(key)).allowed for key in ("é", "\ud800")]
    await store.aclose()
    return allowed


def test_a_thread_waits_for_a_connection_as_long_as_others_get_answers(crew):
    pool = ConnectionPool.from_url(shared_server().url, max_connections=1)
    kept = OwnConnections(pool, 0.5)
    crew.at_once(*[partial(kept.exchange, packed(("BLPOP", "none", "0.1")))] * 8)
    assert crew.join() == [None] * 8
    kept.close()


def test_a_thread_gives_up_waiting_for_a_connection_when_no_answer_comes(crew):
    pool = ConnectionPool.from_url(shared_server().url, max_connections=1, socket_timeout=0.5)
    kept = OwnConnections(pool, 0.1)

    def exchange():
        with pytest.raises(RedisError) as caught:
            kept.exchange(packed(("BLPOP", "none", "0")))
        return "no connection was free" in str(caught.value)

    crew.at_once(exchange, exchange)
    assert sorted(crew.join()) == [False, True]
    kept.close()


def test_a_connection_that_comes_back_as_its_store_is_closed_is_closed_too():
    kept = OwnConnections(ConnectionPool.from_url(shared_server().url), 1)
    opened = []

    class Idle(list):
        def __iadd__(self, back):
            opened.extend(connection for connection, _ in back)
            kept.close()
            return super().__iadd__(back)

    kept._idle = Idle()
    assert kept.exchange(packed(("PING",))) == b"PONG"
    assert [connection._sock for connection in opened] == [None]


@pytest.mark.parametrize("ends", ["done", "cancelled", "failed"])
def test_an_event_loop_that_ends_closes_its_connections(ends):
    """Nothing else could: a wrapper that is given a URL makes the store, and closes only what it wraps."""
    store = RedisStore.from_url(shared_server().url, prefix=f"ends-{ends}")
    shaper = Shaper("1/h", name="api", store=store)
    shaper.reserve()

    async def calls():
        waiting = asyncio.create_task(shaper.aschedule())
        await asyncio.gather(*(shaper.areserve(key) for key in "abc"))
        if ends == "failed":
            raise LookupError
        if ends == "cancelled":
            waiting.cancel()

    left = Leftovers()
    for _ in range(2):
        with suppress(LookupError):
            asyncio.run(calls())
        assert left.sockets == 0
    assert shaper.reserve("d").accepted  # the store itself is still open
    store.close()


def test_a_store_that_is_dropped_on_an_event_loop_closes_its_connections_there():
    async def calls():
        store = RedisStore.from_url(shared_server().url, prefix="dropped")
        gate = Gate(GCRA("1/h"), name="api", store=store)
        assert all(await asyncio.gather(*(gate.acheck(key) for key in "abc")))
        store.reset_all()

    left = Leftovers()
    asyncio.run(calls())
    assert left.sockets == 0


ANSWERED = """
import sys
from shapekit import RedisStore, Shaper
shaper = Shaper("1/h", name="answered", store=RedisStore.from_url(sys.argv[1], prefix=sys.argv[2]))
first, waits = shaper.reserve(), shaper.reserve()
print(shaper.hold(5) > 4, waits.cancel(), shaper.resume() > 1)
"""


def test_no_answer_in_bytes_is_compared_with_text():
    url = shared_server().url + "?protocol=2"  # that of protocol 3 compares them in redis-py itself
    done = subprocess.run(
        [sys.executable, "-bb", "-c", ANSWERED, url, "answered"], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["True"] * 3, "")
