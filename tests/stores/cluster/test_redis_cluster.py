"""RedisStore on a real Redis Cluster of three shards: gates, shapers, composites, all keys at once."""

import threading
from collections import Counter

import anyio
import pytest

from shapekit import GCRA, Gate, RedisStore, Shaper, StoreUnavailableError, all_of, any_of, first_of
from shapekit.rate import SECOND_US

from ...crew import in_threads
from ...redis_cluster import SHARDS
from .stores import PATIENCE_S, store_on


def test_the_cluster_is_joined_quickly_and_correctly(servers):
    assert servers.is_well()
    assert sum(len(servers.slots_of(shard)) for shard in range(SHARDS)) == 16_384


def test_the_error_for_a_client_of_one_server_names_the_client_to_pass_instead(servers, name, keys):
    store = RedisStore.from_url(servers.servers[0].url)
    gate = Gate(GCRA("1/h", 3), name=name, store=store)
    for call in (gate.check, gate.reset):
        with pytest.raises(StoreUnavailableError, match="one server of a Redis Cluster: pass a RedisCluster"):
            call(keys[2])
    store.close()


def test_gates_of_all_shards_keep_their_limits(store, name, keys):
    gate = Gate(GCRA("1/h", 3), name=name, store=store)
    for slot in range(5):
        assert [bool(gate.check(key)) for key in keys] == [slot < 3] * SHARDS
    assert [bool(decision) for decision in gate.check_many([*keys, *keys], cost=2)] == [False] * 6
    gate.reset(keys[1])
    assert [bool(decision) for decision in gate.check_many([*keys, *keys], cost=2)] == [
        *(False, True, False),
        *(False, False, False),
    ]
    assert [gate.peek(key).current for key in keys] == [3, 2, 3]


def test_shapers_of_all_shards_keep_their_grids(store, name, keys):
    shaper = Shaper("1/min; 100/day", name=name, store=store, gates=[GCRA("1/h", 40)])
    slots = {key: [shaper.reserve(key) for _ in range(20)] for key in keys}
    for taken in slots.values():
        start = taken[0].grant.departs_at_us
        assert [slot.grant.departs_at_us - start for slot in taken] == [n * 60 * SECOND_US for n in range(20)]
        assert taken[19].cancel()
        assert taken[19].grant.departs_at_us == shaper.reserve(taken[19].key).grant.departs_at_us
    assert shaper.hold(3_600, key=keys[0]) > 3_590
    assert shaper.reserve(keys[1]).delay < 3_600 < shaper.reserve(keys[0]).delay


COMPOSITES = {
    "all_of": lambda: all_of(a=GCRA("1/h", 4), b=GCRA("1/h", 6)),
    "any_of": lambda: any_of(a=GCRA("1/h", 2), b=GCRA("1/h", 4)),
    "first_of": lambda: first_of(a=GCRA("1/h", 3), b=GCRA("1/h", 1)),
}


@pytest.mark.parametrize("kind", COMPOSITES)
def test_composites_of_one_key(store, name, keys, kind):
    gate = Gate(COMPOSITES[kind](), name=name, store=store)
    for slot in range(6):
        assert [bool(gate.check(key)) for key in keys] == [slot < 4] * SHARDS


@pytest.mark.parametrize("kind", COMPOSITES)
def test_composites_with_a_key_for_each_part(store, name, keys, kind):
    gate = Gate(COMPOSITES[kind](), name=name, store=store)
    places = [{"a": key, "b": f"whatever of {key}"} for key in keys]
    for slot in range(6):
        assert [bool(gate.check(place)) for place in places] == [slot < 4] * SHARDS
    # Callers with the same key for a part share that part.
    assert gate.peek({"a": keys[0], "b": "new"}).remaining == (
        4 if kind == "any_of" else 1 - (kind == "all_of")
    )
    assert len(set(store.keys(f"{name}:"))) == 6


def test_keys_and_reset_all_reach_all_shards(store, name):
    gate = Gate(GCRA("1/h"), name=name, store=store)
    keys = [f"key{number}" for number in range(30)]
    assert all(gate.check_many(keys))
    assert set(store.keys(f"{name}:")) == {f"{name}:{key}" for key in keys}
    assert set(store.keys(f"{name}:key2")) == {f"{name}:key{n}" for n in (2, *range(20, 30))}
    assert store.reset_all(f"{name}:key2") == 11
    assert store.reset_all(f"{name}:") == 19
    assert list(store.keys(f"{name}:")) == []
    assert all(gate.check_many(keys))


@pytest.mark.anyio
async def test_asynchronous_callers_of_all_shards(servers, name, keys, anyio_backend):
    async with store_on(servers, anyio_backend) as store:
        gate = Gate(all_of(a=GCRA("1/h", 12), b=GCRA("1/h", 15)), name=name, store=store)
        admitted = Counter()

        async def call(key):
            decision = await gate.acheck(key)
            admitted[key] += bool(decision)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for key in keys * 20:
                    tasks.start_soon(call, key)
        assert admitted == dict.fromkeys(keys, 12)
        assert not any(await gate.acheck_many(keys))
        parts = [{"a": f"a{key}", "b": "all"} for key in keys]
        assert [bool(slot) for _ in range(6) for slot in await gate.acheck_many(parts)] == [True] * 15 + [
            False
        ] * 3
        await gate.areset(keys[2])
        assert [bool(decision) for decision in await gate.acheck_many(keys)] == [False, False, True]

        shaper = Shaper("1/min", name=f"{name}-shaper", store=store)
        slots = [await shaper.areserve(key) for key in keys * 5]
        for number, key in enumerate(keys):
            due = [slot.grant.departs_at_us for slot in slots[number::SHARDS]]
            assert [at - due[0] for at in due] == [n * 60 * SECOND_US for n in range(5)], key
        assert await slots[-1].acancel()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_idle_connections_of_an_asynchronous_client_are_examined(servers, name, keys, anyio_backend):
    """A server with a `timeout` ends them, and redis-py's asynchronous client would use them again."""
    async with store_on(servers, anyio_backend) as store:
        gate = Gate(GCRA("1/h", 3), name=name, store=store)
        assert all(await gate.acheck_many(keys))
        for server in servers.servers:
            # On a thread: the loop must go on to notice what happens to its connections.
            await anyio.to_thread.run_sync(servers.command, server, "CLIENT KILL TYPE normal")
        assert [(await gate.acheck(key)).current for key in keys] == [2] * SHARDS


def test_threads_of_all_shards_are_admitted_exactly_the_limit(store, name, keys):
    gate = Gate(GCRA("1/h", 25), name=name, store=store)
    admitted = Counter()
    lock = threading.Lock()

    def work():
        mine = Counter(key for key in keys * 10 if gate.check(key))
        with lock:
            admitted.update(mine)

    in_threads([work] * 8)
    assert admitted == dict.fromkeys(keys, 25)
