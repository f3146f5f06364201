"""A store in parts, each of which can be lost by itself, and can be replaced by another."""

import logging

import anyio
import pytest

from shapekit import GCRA, Gate, MemoryStore, StoreUnavailableError
from shapekit.stores.resilient import ResilientStore
from shapekit.testing import FaultyStore, ManualClock

MODES = ("raise", "open", "closed", "local")
WAYS = {
    "check": lambda gate, key: gate.check(key),
    "check_many": lambda gate, key: gate.check_many([key])[0],
    "acheck": lambda gate, key: anyio.run(gate.acheck, key),
    "acheck_many": lambda gate, key: anyio.run(gate.acheck_many, [key])[0],
}


class Sharded(FaultyStore):
    """A store whose keys lie on servers by their names, as on a cluster; each server can be down."""

    sharded = True

    def __init__(self, clock, servers):
        super().__init__(MemoryStore(clock))
        self.servers = servers
        self.gone = set()

    def shard(self, name, program, key):
        return self.servers[key]

    def bind(self, name, program, operation):
        apply = super().bind(name, program, operation)

        def ask(key, *args):
            self.find(key)
            return apply(key, *args)

        return ask

    def abind(self, name, program, operation):
        aapply = super().abind(name, program, operation)

        async def ask(key, *args):
            self.find(key)
            return await aapply(key, *args)

        return ask

    def find(self, key):
        if self.servers[key] in self.gone:
            raise StoreUnavailableError(f"{self.servers[key]} is gone")


@pytest.fixture
def clock():
    return ManualClock(1_000.0)


@pytest.fixture
def cluster(clock):
    return Sharded(clock, {"one": "a", "two": "a", "three": "b"})


@pytest.fixture(params=MODES)
def store(request, cluster):
    share = 0.5 if request.param == "local" else None
    store = ResilientStore(cluster, on_outage=request.param, share=share, timeout=20)
    yield store
    store.close()


@pytest.fixture(params=WAYS)
def ask(request, store):
    gate = Gate(GCRA("1/d", burst=100), name="gate", store=store)

    def ask(key):
        try:
            return WAYS[request.param](gate, key)
        except StoreUnavailableError:
            return None

    return ask


def test_each_server_is_lost_and_found_by_itself(store, cluster, clock, ask):
    cluster.gone.add("a")
    ask("one")
    assert store.is_lost
    assert ask("three").remaining == 99
    calls = cluster.calls
    ask("two")
    assert cluster.calls == calls, "a server that is known to be lost gets no call"
    cluster.gone.clear()
    clock.advance(10)
    assert ask("two").remaining == 99
    assert not store.is_lost


def test_a_server_that_was_replaced_is_no_longer_lost(store, cluster, ask, caplog):
    """The new map may be read without any probe; but no call would ever go to the old server again."""
    caplog.set_level(logging.WARNING, "shapekit.store")
    cluster.gone.add("a")
    ask("one")
    cluster.servers |= {"one": "c", "two": "c"}
    assert not store.is_lost
    assert ask("one").remaining == 99
    assert ask("two").remaining == 99
    assert [record.msg.split()[0] for record in caplog.records] == ["lost", "%s"]


def test_a_call_notices_replaced_servers_too(store, cluster, ask, caplog):
    caplog.set_level(logging.WARNING, "shapekit.store")
    cluster.gone.add("a")
    ask("one")
    cluster.servers |= {"one": "c", "two": "c"}
    ask("three")
    assert len(caplog.records) == 2


def test_a_server_stays_lost_while_the_server_of_its_keys_is_unknown(store, cluster, clock, ask):
    cluster.gone.add("a")
    ask("one")
    cluster.servers["one"] = None
    assert store.is_lost
    cluster.servers["one"] = "a"
    cluster.gone.clear()
    clock.advance(10)
    assert ask("one").remaining == 99
    assert not store.is_lost


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_store_answers_for_no_server_also_if_it_had_not_asked_that_one(store, way):
    gate = Gate(GCRA("1/d", burst=100), name="gate", store=store)
    WAYS["check"](gate, "one")
    store.close()
    with pytest.raises(StoreUnavailableError, match="this ResilientStore is closed"):
        WAYS[way](gate, "three")
    assert not store.is_lost
