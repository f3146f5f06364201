"""Calls cancelled while the store is slow: a known usage is settled, and taken tokens come back."""

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
    """Runs the task, and cancels it in the middle of the call to the store."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task)
        await clock.asleep(after_s, AsyncAlarm())
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_call_cancelled_while_it_settles_is_settled(store, one, used):
    async def task():
        async with one.aadmit(1_000) as call:
            store.slow = SLOW_S
            await call.asettle(60)

    await cancelled(task, store.clock, SLOW_S / 2)
    store.mend()
    assert used(one) == 60


@pytest.mark.anyio
async def test_tokens_that_an_error_did_not_cost_come_back(store, one, used):
    async def task():
        async with one.aadmit(1_000):
            store.slow = SLOW_S
            raise RefusedByServer(400)

    with pytest.RaisesGroup(RefusedByServer):
        await cancelled(task, store.clock, SLOW_S / 2)
    store.mend()
    assert used(one) == 0


@pytest.mark.anyio
async def test_a_call_that_waits_for_its_slot_gives_back_the_tokens(store, one, used):
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
async def test_a_call_whose_slot_was_refused_gives_back_the_tokens(store, one, used, trips):
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
async def test_a_call_cancelled_while_a_spent_day_refuses_it_keeps_no_tokens(store, used, trips):
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
