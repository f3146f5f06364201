"""A store that can only be awaited, as it is or behind another store: overrides are read and written."""

import asyncio

import pytest
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shapekit import (
    GCRA,
    CostExceedsLimitError,
    Gate,
    ManualClock,
    Override,
    Policy,
    RedisStore,
    Shaper,
    StoreUnavailableError,
)
from shapekit.stores.resilient import ResilientStore
from shapekit.testing import FaultyStore

from ..redis_server import free_port, shared_server
from .conftest import fresh_redis, put

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def others():
    """The store as another process has it, with calls of both kinds."""
    store = fresh_redis(ManualClock(1_000_000_000))
    yield store
    store.reset_all()
    store.close()


@pytest.fixture(params=["plain", "faulty", "raise", "open", "closed"])
async def store(request, others):
    async with AsyncRedis(port=shared_server().port) as client:
        store = RedisStore(aclient=client, clock=others.clock, prefix=others.prefix)
        if request.param == "faulty":
            store = FaultyStore(store)
        elif request.param != "plain":
            store = ResilientStore(store, on_outage=request.param)
        yield store
        await store.aclose()


async def test_a_call_that_costs_more_than_the_limit_raises(store):
    gate = Gate(GCRA("10/s"), name="gate", store=store)
    shaper = Shaper("10/s", gates=[GCRA("5/s")], name="shaper", store=store)
    policy = Policy("10/s", gates=[GCRA("5/s")], name="policy", store=store)
    for ask in (
        lambda: gate.acheck(cost=100),
        lambda: gate.acheck_many(["a", "b"], cost=100),
        lambda: shaper.areserve(cost=100),
        lambda: policy.aadmit(cost=100).__aenter__(),
    ):
        with pytest.raises(CostExceedsLimitError):
            await ask()


async def test_a_limit_that_another_process_has_raised_admits_it(store, others):
    gate = Gate(GCRA("10/s"), name="gate", store=store)
    put(others, "gate", Override(burst=100))
    assert await gate.acheck(cost=100)


async def test_an_override_holds_here_and_elsewhere_until_it_is_removed(store, others):
    mine, theirs = (Policy("10/s", name="api", store=one) for one in (store, others))
    await mine.aconfigure("1/s")
    assert [one.rate for one in await mine.aconfigured()] == ["1/s"]
    assert [one.rate for one in theirs.configured()] == ["1/s"]
    assert [(await mine.shaper.areserve()).delay for _ in range(3)] == [0, 1, 2]
    theirs.configure("2/s")
    assert [one.rate for one in await mine.aconfigured()] == ["2/s"]
    assert await mine.aunconfigure()
    assert await mine.aconfigured() == theirs.configured() == []
    assert not await mine.aunconfigure()


async def test_every_override_set_at_the_same_time_is_kept(store):
    policy = Policy("10/s", name="api", store=store)
    await asyncio.gather(*(policy.aconfigure("2/s", key=key) for key in "abcdefgh"))
    assert {one.key for one in await policy.aconfigured()} == set("abcdefgh")


@pytest.mark.parametrize("mode", ["raise", "open", "closed"])
async def test_while_the_store_is_gone_costs_are_checked_by_the_code_and_overrides_raise(mode):
    async with AsyncRedis(port=free_port(), retry=Retry(NoBackoff(), 0)) as client:
        store = ResilientStore(RedisStore(aclient=client), on_outage=mode)
        with pytest.raises(CostExceedsLimitError):
            await Gate(GCRA("10/s"), name="gate", store=store).acheck(cost=100)
        policy = Policy("10/s", name="api", store=store)
        for ask in (policy.aconfigured, lambda: policy.aconfigure("1/s"), policy.aunconfigure):
            with pytest.raises(StoreUnavailableError):
                await ask()
        await store.aclose()
