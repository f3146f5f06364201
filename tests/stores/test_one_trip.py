"""A call that leaves at once is one trip to Redis, the first too, and one that takes a description along."""

import asyncio
from contextlib import contextmanager
from itertools import pairwise

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from shapekit import GCRA, Concurrency, FixedWindow, Gate, ManualClock, Policy, RedisStore, Shaper, all_of
from shapekit._queue.waiter import Waiter
from shapekit._runtime.drivers import run
from shapekit.stores.redis import protocol as redis_program
from shapekit.stores.redis.protocol import KNOWN_FOR_S

from ..redis_server import RedisServer

OPENING = ("HELLO", "CLIENT", "SELECT", "AUTH", "PING", "COMMAND", "CLUSTER")
"""The commands of a client on a new connection, and those by which a cluster's client finds its servers."""
CALLS = 60


class Watch:
    """Each reading is some seconds later than the one before."""

    def __init__(self, step_s):
        self._step_s = step_s
        self.now = 1_000.0

    def monotonic(self):
        self.now += self._step_s
        return self.now


@pytest.fixture(params=[0.0, 3.7, 10.0, 25.0])
def step_s(request, monkeypatch):
    """How much time passes from one call to the next, for the code that sends descriptions."""
    monkeypatch.setattr(redis_program, "time", Watch(request.param))
    return request.param


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    """A call asks again where the machine keeps its answer for long: that is not counted here."""
    monkeypatch.setattr(Waiter, "is_prompt", lambda *_: True)


@pytest.fixture(scope="module")
def url():
    """The URL of a server that no other test uses."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def server(url):
    client = Redis.from_url(url)
    client.flushdb()
    client.script_flush()
    yield client
    client.close()


@contextmanager
def commands_at(client):
    """The commands that the server gets meanwhile, without what scripts do."""
    commands = []
    with client.monitor() as monitor:
        yield commands
        client.echo("the end")
        for command in monitor.listen():
            words = command["command"].split(" ", 1)
            if words[0] == "ECHO":
                return
            if command["client_type"] != "lua" and words[0] not in OPENING:
                commands.append(words[0])


def limits(store):
    """Everything that admits calls, by name."""
    parts = {"fast": GCRA("1000/s", burst=1_000), "slow": FixedWindow(10_000, "1h")}
    gate = Gate(GCRA("1000/s", burst=1_000), name="gate", store=store)
    both = Gate(all_of(**parts), name="both", store=store)
    shaper = Shaper("1000/s", burst=1_000, name="shaper", store=store)
    several = Shaper("1000/s; 60_000/h", burst=1_000, name="several", store=store)
    policy = Policy("1000/s", burst=1_000, quota="1_000_000/month", name="policy", store=store)
    return {
        "gate": (gate.check, gate.acheck),
        "parts of one key": (both.check, both.acheck),
        "parts of several": (
            lambda: both.check({"fast": "a", "slow": "b"}),
            lambda: both.acheck({"fast": "a", "slow": "b"}),
        ),
        "shaper": (shaper.schedule, shaper.aschedule),
        "several rates": (several.schedule, several.aschedule),
        "policy": (lambda: _admitted(policy), lambda: _aadmitted(policy)),
    }


KINDS = ("gate", "parts of one key", "parts of several", "shaper", "several rates", "policy")


def _admitted(policy):
    with policy.admit():
        pass


async def _aadmitted(policy):
    async with policy.aadmit():
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clock", [None, ManualClock(1_700_000_000.0)], ids=["server's time", "a clock"])
def test_each_call_is_one_trip(server, url, step_s, kind, clock):
    store = RedisStore.from_url(url, clock=clock, prefix="one trip")
    call, _ = limits(store)[kind]
    for _ in range(CALLS):
        with commands_at(server) as commands:
            call()
        assert len(commands) == 1, commands
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_each_awaited_call_is_one_trip(server, url, step_s, kind):
    store = RedisStore.from_url(url, prefix="one trip")

    async def main():
        _, call = limits(store)[kind]
        for _ in range(CALLS):
            with commands_at(server) as commands:
                await call()
            assert len(commands) == 1, commands
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["gate", "shaper", "policy"])
def test_calls_that_come_together_share_one_trip(server, url, step_s, kind):
    store = RedisStore.from_url(url, prefix="one trip")

    async def main():
        _, call = limits(store)[kind]
        for size in (50, 1, 7, 50):
            with commands_at(server) as commands:
                await asyncio.gather(*(call() for _ in range(size)))
            assert len(commands) == 1, commands
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("clients", ["client", "aclient"])
def test_each_call_with_a_client_of_the_caller_is_one_trip(server, url, step_s, clients):
    async def main():
        given = {"client": server} if clients == "client" else {"aclient": AsyncRedis.from_url(url)}
        store = RedisStore(**given, prefix="one trip")
        gate = Gate(GCRA("1000/s", burst=1_000), name="gate", store=store)
        for _ in range(CALLS):
            with commands_at(server) as commands:
                await gate.acheck()
            assert len(commands) == 1, commands
        if clients == "aclient":
            await given["aclient"].aclose()

    asyncio.run(main())


def test_many_keys_are_one_trip_for_an_asynchronous_client_alone(server, url):
    async def check_many():
        client = AsyncRedis.from_url(url)
        gate = Gate(
            GCRA("1000/s", burst=1_000), name="gate", store=RedisStore(aclient=client, prefix="alone")
        )
        with commands_at(server) as commands:
            assert all(await gate.acheck_many(["a", "b", "c"]))
        assert len(commands) == 1, commands
        await client.aclose()

    asyncio.run(check_many())


def test_a_permit_is_one_trip_to_take_and_one_to_give_back(server, url, step_s):
    store = RedisStore.from_url(url, prefix="one trip")
    permits = Policy(concurrency=Concurrency(5), name="permits", store=store).permits
    for _ in range(CALLS):
        with commands_at(server) as commands:
            permit = permits.untaken("key")
            run(permits.take, permit)
            run(permits.leave, permit)
        assert len(commands) == 2, commands
    store.close()


def test_the_description_is_there_when_the_first_state_is_and_again_after_a_flush(server, url, step_s):
    store = RedisStore.from_url(url, prefix="one trip")
    gate = Gate(GCRA("1000/s", burst=1_000), name="gate", store=store)
    gate.check()
    assert server.hlen("one trip:program:gate") == 1
    assert KNOWN_FOR_S - 86_400 < server.ttl("one trip:program:gate") <= KNOWN_FOR_S
    server.flushdb()
    for _ in range(3):
        gate.check()
    assert server.hlen("one trip:program:gate") == (1 if step_s > 3 else 0)
    store.close()


def test_a_call_works_after_the_server_has_forgotten_its_scripts(server, url):
    """Two trips, once: the error of the server is the first sign that it has lost its scripts."""
    store = RedisStore.from_url(url, prefix="one trip")
    gate = Gate(GCRA("10/h"), name="gate", store=store)
    gate.check()
    server.script_flush()
    with commands_at(server) as commands:
        left = [gate.check().remaining for _ in range(3)]
    assert commands == ["EVALSHA", "EVAL", "EVALSHA", "EVALSHA"]
    assert all(sooner - later == 1 for sooner, later in pairwise(left))
    store.close()
