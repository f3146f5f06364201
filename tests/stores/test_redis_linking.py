"""Scripts are put together when an operation is bound: while a caller waits, none is read or built.

But for operations that share a trip for the first time: their script is joined then, and no file is read.
"""

import asyncio
import builtins
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count

import pytest
from redis import RedisCluster

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    Policy,
    QueueFullError,
    Quota,
    RedisStore,
    ResilientStore,
    Shaper,
    all_of,
)
from shapekit.algorithms.base import CHECK, DEBIT, FORECAST
from shapekit.algorithms.ledger import ledgered
from shapekit.stores.redis import protocol as script

from ..redis_cluster import shared_cluster
from ..redis_server import shared_server
from .cluster.stores import store_on

_fresh = count()
LINKING = ("_linked", "_files", "_cut")
PATIENCE_S = 30.0


@contextmanager
def nothing_is_built(monkeypatch, *, but_mixes=False):
    """No file of ours is read, and no script put together."""
    caught = []

    def watched(name, usual):
        def call(*args, **options):
            caught.append(name)
            return usual(*args, **options)

        return call

    def opened(file, *args, **options):
        if str(file).endswith(".lua"):
            caught.append(file)
        return usual_open(file, *args, **options)

    usual_open = builtins.open
    with monkeypatch.context() as patch:
        patch.setattr("io.open", opened)
        for name in () if but_mixes else LINKING:
            patch.setattr(script, name, watched(name, getattr(script, name)))
        yield
    assert caught == []


def forget():
    """Forgets all scripts, as in a process that has not bound anything yet."""
    script._script.cache_clear()
    script._files.cache_clear()


@contextmanager
def one_server():
    store = RedisStore.from_url(shared_server().url, prefix=f"linking{next(_fresh)}")
    yield store
    store.close()


@asynccontextmanager
async def on_one_server():
    with one_server() as store:
        yield store
        await store.aclose()


@contextmanager
def on_cluster():
    client = RedisCluster(host="127.0.0.1", port=shared_cluster().servers[0].port)
    yield RedisStore(client)
    client.close()


STORES = {
    "one server": (one_server, on_one_server),
    "cluster": (on_cluster, lambda: store_on(shared_cluster(), "asyncio")),
}
each_store = pytest.mark.parametrize("where", STORES)
may_be_lost = pytest.mark.parametrize(
    "outer",
    [lambda store: store, lambda store: ResilientStore(store, timeout=PATIENCE_S)],
    ids=["bare", "resilient"],
)


def bound(store):
    forget()
    number = next(_fresh)
    parts = all_of(ip=GCRA("1000/s"), user=FixedWindow(1_000, "1h"))
    return (
        Policy("20/s", burst=1, quota="1_000/day", concurrency=2, name=f"policy{number}", store=store),
        Shaper("20/s", burst=1, name=f"shaper{number}", store=store),
        Gate(parts, name=f"gate{number}", store=store),
        Shaper("10_000/s", prefetch="1s", name=f"far{number}", store=store),
    )


def functions(limit, operation):
    text = script.script_of(ledgered(limit).twin((0,)), [operation]).text
    return {line.split("function ")[1].split("(")[0] for line in text.splitlines() if "function " in line}


def test_a_script_holds_no_method_that_a_class_made_from_another_hides():
    hidden = {f"Algorithm:{name}" for name in ("check", "freeze", "thaw", "life")}
    assert not hidden & functions(GCRA("1/s"), CHECK)
    assert hidden & functions(FixedWindow("1/s"), CHECK) == {"Algorithm:freeze", "Algorithm:check"}


def test_a_script_holds_what_a_method_calls_by_the_class_that_it_hides():
    assert {"Counting:forecast", "PeriodCounter:forecast"} <= functions(Quota("1/day"), FORECAST)


def test_a_script_holds_no_method_because_something_else_has_its_name():
    """The ledger calls what was given back `settled`, as a method of windows is called."""
    assert "Counting:settled" not in functions(FixedWindow("1/s"), CHECK)
    assert "Counting:settled" in functions(FixedWindow("1/s"), DEBIT)


@each_store
@may_be_lost
def test_no_script_is_built_between_a_call_and_its_answer(where, outer, monkeypatch):
    open_store, _ = STORES[where]
    with open_store() as store:
        there = outer(store)
        things = bound(there)
        with nothing_is_built(monkeypatch):
            call(*things)
        for thing in (*things, there):
            thing.close()


def call(policy, shaper, gate, far):
    for _ in range(2):  # at once, and after a wait
        with policy.admit():
            pass
    shaper.schedule()
    shaper.reserve("other", cost=20)
    assert shaper.reserve("other").cancel()  # a second ahead
    shaper.hold(0.05)
    shaper.schedule()  # waits through the hold
    assert shaper.settle(shaper.reserve(), 3)
    with pytest.raises(QueueFullError):
        shaper.schedule(max_wait=0)
    shaper.resume()
    shaper.forecast()
    shaper.reset()
    for _ in range(20):
        far.schedule()
    for key in ("key", {"ip": "::1", "user": "alice"}):
        decision = gate.check(key)
        gate.refund(key, decision)
        gate.debit(key)
        gate.peek(key)
        gate.forecast(key)
        gate.check_many([key, key])
        gate.reset(key)


async def acall(policy, shaper, gate, far):
    async def admitted():
        async with policy.aadmit():
            pass

    async def cancelled():
        slot = await shaper.areserve()
        await shaper.acancel(slot)

    async def settled():
        await shaper.asettle(await shaper.aschedule(), 2)

    async def given_up():
        task = asyncio.ensure_future(shaper.aschedule())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def decided(key):
        decision = await gate.acheck(key)
        await gate.arefund(key, decision)
        await gate.adebit(key)
        await asyncio.gather(gate.apeek(key), gate.aforecast(key), gate.acheck_many([key, key]))
        await gate.areset(key)

    parts = {"ip": "::1", "user": "alice"}
    for _ in range(2):
        await asyncio.gather(
            *(job() for job in (admitted, cancelled, settled, given_up) for _ in range(3)),
            *(decided(key) for key in ("key", parts) for _ in range(3)),
            shaper.ahold(0.05),
            shaper.aforecast(),
        )
    await shaper.aresume()
    await shaper.areset()
    await policy.shaper.areset()


@each_store
@may_be_lost
def test_no_script_is_built_where_calls_are_awaited_and_share_trips(where, outer, monkeypatch):
    _, open_store = STORES[where]

    async def main():
        async with open_store() as store:
            there = outer(store)
            things = bound(there)
            with nothing_is_built(monkeypatch, but_mixes=True):
                await acall(*things)
            for thing in (*things, there):
                await thing.aclose()

    asyncio.run(main())


def test_a_state_with_other_numbers_needs_no_other_script(monkeypatch):
    with one_server() as store:
        assert Gate(GCRA("1/h"), name="rate", store=store).check()
        other = RedisStore.from_url(shared_server().url, prefix=store.prefix)
        gate = Gate(GCRA("2/h"), name="rate", store=other)
        with nothing_is_built(monkeypatch):
            assert not gate.check()
        assert gate.peek().limit == 2
        other.close()
