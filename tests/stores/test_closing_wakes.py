"""Closing a store wakes all calls that wait for their slots, and closes what is open on any loop."""

import asyncio
import threading
from functools import partial
from itertools import count

import anyio
import pytest
import trio

from shapekit import (
    GCRA,
    Gate,
    LLMBudget,
    MemoryStore,
    Policy,
    RedisStore,
    ResilientStore,
    Shaper,
    StoreUnavailableError,
)
from shapekit.stores.sqlite import SQLiteStore

from ..redis_server import shared_server

PATIENCE_S = 20.0
_names = count()


def redis():
    return RedisStore.from_url(shared_server().url, prefix=f"closing{next(_names)}")


@pytest.fixture(params=["memory", "file", "redis", "resilient"])
def store(request, tmp_path):
    store = {
        "memory": MemoryStore,
        "file": lambda: SQLiteStore(tmp_path / "limits.db"),
        "redis": redis,
        "resilient": lambda: ResilientStore(redis(), on_outage="local", share=1),
    }[request.param]()
    yield store
    store.close()


def budget(store):
    budget = LLMBudget(tokens="1/h", store=store, name="n")
    waits = budget._books.budget_limits[0].policy.shaper.core.sleepers
    return budget.admit(1), budget.admit(1), waits


def permits(store):
    policy = Policy(concurrency=1, store=store, name="n")
    # A wait without a bound, inside of the call that it waits for, would be warned about.
    return policy.admit(), policy.admit(max_wait="1d"), policy.shaper.core.sleepers


def slots(store, **options):
    policy = Policy("1/h", store=store, name="n", **options)
    return policy.admit(), policy.admit(), policy.shaper.core.sleepers


WAITS = {"slot": slots, "prefetched slot": partial(slots, prefetch="1s"), "permit": permits, "tokens": budget}


def closed_when(waiters, store):
    """Closes the store when a call waits."""

    def close():
        while not waiters._alarms:
            pass
        store.close()

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("make", WAITS.values(), ids=WAITS)
def test_closing_wakes_threads(store, make):
    first, second, waiters = make(store)
    first.__enter__()
    thread = closed_when(waiters, store)
    with pytest.raises(StoreUnavailableError):
        second.__enter__()
    thread.join(PATIENCE_S)
    first.__exit__(None, None, None)


@pytest.mark.anyio
@pytest.mark.parametrize("make", WAITS.values(), ids=WAITS)
async def test_closing_wakes_tasks(store, make):
    first, second, waiters = make(store)
    await first.__aenter__()
    thread = closed_when(waiters, store)
    with anyio.fail_after(PATIENCE_S), pytest.raises(StoreUnavailableError):
        await second.__aenter__()
    thread.join(PATIENCE_S)
    await first.__aexit__(None, None, None)
    await getattr(store, "primary", store).aclose()


def keepers():
    return [thread for thread in threading.enumerate() if thread.name == "shapekit leases"]


def test_leases_are_no_longer_renewed_after_closing(tmp_path):
    store = SQLiteStore(tmp_path / "limits.db")
    policy, before = Policy(concurrency=1, store=store, name="n"), set(keepers())
    with policy.admit():
        (keeper,) = set(keepers()) - before
        store.close()
        keeper.join(PATIENCE_S)
        assert not keeper.is_alive()


def test_a_shaper_that_is_gone_is_not_kept_for_it():
    store = MemoryStore()
    waiters = Shaper("1/s", store=store).core.sleepers
    del waiters
    import gc  # noqa: PLC0415

    gc.collect()
    assert not store.__dict__["_companions"]["waiting"]


class Elsewhere:
    """A loop on a thread of its own."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self.loop.close()


async def _settled(own):
    while own._tasks:
        await asyncio.wait(own._tasks)


@pytest.mark.parametrize("closes", ["close", "aclose on asyncio", "aclose on trio"])
def test_closing_closes_the_connections_of_other_loops(closes):
    store, others = redis(), [Elsewhere() for _ in range(2)]
    gate = Gate(GCRA("9/s", burst=9), store=store, name="n")
    for other in others:
        assert other.run(gate.acheck())
    opened = [(other, store._loops._loops[other.loop]) for other in others]
    connections = [kept for _, own in opened for kept, _ in own.link._kept._idle]
    assert [connection.is_connected for connection in connections] == [True, True]
    {
        "close": store.close,
        "aclose on asyncio": lambda: asyncio.run(store.aclose()),
        "aclose on trio": lambda: trio.run(store.aclose),
    }[closes]()
    for other, own in opened:
        other.run(_settled(own))
    assert [connection.is_connected for connection in connections] == [False, False]
    for other in others:
        other.close()


def test_a_loop_that_has_closed_its_connections_begins_no_task_at_its_end():
    store, other = redis(), Elsewhere()
    other.run(Gate(GCRA("9/s"), store=store, name="n").acheck())
    own = store._loops._loops[other.loop]
    other.run(store.aclose())

    async def begun():
        own.close()  # as the store of another thread does
        return len(own._tasks)

    assert other.run(begun()) == 0
    other.close()
