"""Cancelled while the store is slow to answer: what was known is settled, what was taken comes back."""

import anyio
import pytest

from shapekit import LLMBudget, ManualClock, MemoryStore
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.testing import FaultyStore

from .errors import RefusedByServer

SLOW_S = 1.0


@pytest.fixture
def store():
    return FaultyStore(MemoryStore(ManualClock(autojump=True)))


@pytest.fixture
def one(store):
    return LLMBudget(
        requests="1/min burst 2", tokens="60k/min", capacity=60_000, tokens_per_day="1M", store=store
    )


async def cancelled(task, clock, after_s):
    """Runs the task, and cancels it in the midst of the call to the store."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task)
        await clock.asleep(after_s, AsyncAlarm())
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_who_knows_what_it_cost_settles_it(store, one, used):
    async def task():
        async with one.aadmit(1_000) as call:
            store.slow = SLOW_S
            await call.asettle(60)

    await cancelled(task, store.clock, SLOW_S / 2)
    store.mend()
    assert used(one) == 60


@pytest.mark.anyio
async def test_what_an_error_did_not_cost_comes_back(store, one, used):
    async def task():
        async with one.aadmit(1_000):
            store.slow = SLOW_S
            raise RefusedByServer(400)

    with pytest.RaisesGroup(RefusedByServer):
        await cancelled(task, store.clock, SLOW_S / 2)
    store.mend()
    assert used(one) == 0


@pytest.mark.anyio
async def test_who_waits_for_the_turn_gives_back_the_tokens(store, one, used):
    for _ in range(2):
        async with one.aadmit(100):
            pass

    async def task():
        async with one.aadmit(1_000):
            pytest.fail("it was cancelled")

    async def slows():
        await store.clock.asleep(59.8, AsyncAlarm())
        assert used(one) == 1_200
        store.slow = SLOW_S

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slows)
        await cancelled(task, store.clock, 59.9)
    store.mend()
    assert used(one) == 200


@pytest.mark.anyio
@pytest.mark.parametrize("trips", [2.5, 3.5])
async def test_who_was_refused_the_turn_gives_back_the_tokens_also_then(store, one, used, trips):
    for _ in range(2):
        async with one.aadmit(100):
            pass

    async def task():
        async with one.aadmit(1_000):
            pytest.fail("it was cancelled")

    store.slow = SLOW_S
    await cancelled(task, store.clock, trips * SLOW_S)
    store.mend()
    assert used(one) == 200


@pytest.mark.anyio
@pytest.mark.parametrize("trips", [2.3, 2.8])
async def test_who_has_asked_until_when_a_day_is_spent_keeps_no_tokens(store, used, trips):
    one = LLMBudget(requests="600/min", tokens_per_day=100, store=store)
    first = one.admit(100)
    first.__enter__()

    async def task():
        async with one.aadmit(100):
            pytest.fail("it was cancelled")

    async def settles():
        await store.clock.asleep(1.5 * SLOW_S, AsyncAlarm())
        store.slow = 0
        await first.asettle(0)
        store.slow = SLOW_S

    store.slow = SLOW_S
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settles)
        await cancelled(task, store.clock, trips * SLOW_S)
    store.mend()
    assert used(one) == 0
