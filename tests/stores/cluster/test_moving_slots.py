"""RedisStore while a slot moves to another shard: ASK, MOVED and TRYAGAIN never cost a call."""

import anyio
import pytest
import redis
import redis.asyncio
from redis.crc import key_slot

from shapekit import GCRA, Gate, RedisStore, StoreUnavailableError, all_of

from ...redis_cluster import SHARDS, slot_of, wait_until
from .stores import TIMEOUT_S, store_on


class Move:
    """A slot on its way from the shard that has it to the next one, and back at the end."""

    def __init__(self, servers, slot):
        self._servers = servers
        self._slot = slot
        self.source = servers.owner_of(slot)
        self.target = servers.owner_of((slot + 16_384 // SHARDS) % 16_384)

    def begin(self):
        self._set(self.target, "IMPORTING", self._servers.id_of(self.source))
        self._set(self.source, "MIGRATING", self._servers.id_of(self.target))

    def carry(self, key):
        reply = self._servers.command(self.source, "MIGRATE", "127.0.0.1", self.target.port, key, 0, 5_000)
        assert reply in (b"OK", b"NOKEY")

    def carry_all(self):
        while keys := self._servers.command(self.source, "CLUSTER GETKEYSINSLOT", self._slot, 100):
            for key in keys:
                self.carry(key)

    def end(self):
        for server in (self.target, self.source):
            self._set(server, "NODE", self._servers.id_of(self.target))
        wait_until(lambda: self._servers.owner_of(self._slot) is self.target)

    def back(self):
        self.source, self.target = self.target, self.source
        self.begin()
        self.carry_all()
        self.end()

    def _set(self, server, what, node):
        self._servers.command(server, "CLUSTER SETSLOT", self._slot, what, node)


@pytest.fixture
def move(servers, name, keys):
    """A move of the slot of this test's first key."""
    move = Move(servers, slot_of(name, keys[0]))
    yield move
    move.back()


def test_a_key_keeps_its_limit_while_its_slot_moves(store, client, servers, name, keys, move):
    gate, key = Gate(GCRA("1/h", 5), name=name, store=store), keys[0]
    place = f"shapekit:{{{name}:{key}}}".encode()
    assert gate.check(key)
    move.begin()
    assert gate.check(key), "which has not left yet"
    move.carry(place)
    assert gate.check(key), "where the server says ASK"
    assert client.get_node_from_key(place).port == move.source.port
    move.carry_all()
    move.end()
    assert gate.check(key), "where it says MOVED"
    assert [bool(gate.check(key)), bool(gate.check(key))] == [True, False]
    assert servers.command(move.target, "EXISTS", place) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_key_keeps_its_limit_while_its_slot_moves_under_asyncio(servers, name, keys, move):
    async with store_on(servers, "asyncio") as store:
        gate, key = Gate(GCRA("1/h", 12), name=name, store=store), keys[0]
        place = f"shapekit:{{{name}:{key}}}".encode()
        # Several connections are free: ASKING and the command have to take the same one.
        other = Gate(GCRA("1/h", 100), name=f"{name}-other", store=store)
        admitted = 0

        async def check():
            nonlocal admitted
            decision = await gate.acheck(key)
            admitted += bool(decision)

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(other.acheck, f"key{number}")
        await check()
        move.begin()
        await check()
        move.carry(place)
        for _ in range(5):
            await check()
        move.carry_all()
        move.end()
        for _ in range(10):
            await check()
        assert admitted == 12


ELSEWHERE = {"address_remap": lambda address: ("127.1", address[1])}
"""For clients that reach the servers at other addresses than those they name."""


def test_clients_follow_a_key_although_they_reach_the_servers_at_other_addresses(servers, name, keys, move):
    key, port = keys[0], servers.servers[0].port
    with redis.RedisCluster("127.1", port, socket_timeout=TIMEOUT_S, **ELSEWHERE) as client:
        assert {node.host for node in client.get_nodes()} == {"127.1"}
        gate = Gate(GCRA("1/h", 5), name=name, store=RedisStore(client))
        assert gate.check(key)
        move.begin()
        move.carry_all()
        assert gate.check(key), "where the server says ASK"
        move.end()
        assert gate.check(key), "where it says MOVED"
        assert gate.peek(key).current == 3


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_clients_follow_a_key_although_they_reach_the_servers_at_other_addresses(
    servers, name, keys, move, anyio_backend
):
    key, port = keys[0], servers.servers[0].port
    async with redis.asyncio.RedisCluster("127.1", port, socket_timeout=TIMEOUT_S, **ELSEWHERE) as client:
        gate = Gate(GCRA("1/h", 5), name=name, store=RedisStore(aclient=client))
        assert await gate.acheck(key)
        move.begin()
        move.carry_all()
        assert await gate.acheck(key), "where the server says ASK"
        move.end()
        assert await gate.acheck(key), "where it says MOVED"
        assert (await gate.apeek(key)).current == 3


def test_parts_that_are_apart_while_their_slot_moves_are_not_charged(store, servers, name):
    gate = Gate(all_of(a=GCRA("1/h", 3), b=GCRA("1/h", 3)), name=name, store=store)
    keys = {"a": "one", "b": "other"}
    places = [f"shapekit:{{{name}}}:{part}:{key}".encode() for part, key in keys.items()]
    move = Move(servers, key_slot(places[0]))
    assert gate.check(keys)
    move.begin()
    try:
        move.carry(places[0])
        with pytest.raises(StoreUnavailableError, match="Redis"):
            gate.check(keys)
        move.carry_all()
        assert gate.check(keys), "where the server says ASK"
        move.end()
        assert [bool(gate.check(keys)), bool(gate.check(keys))] == [True, False]
    finally:
        move.carry_all()
        move.end()
        move.back()
