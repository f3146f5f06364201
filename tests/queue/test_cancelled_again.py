"""A task that is cancelled again while it gives back what it took gives it back all the same."""

import asyncio
from contextvars import copy_context
from itertools import count

import pytest

from shapekit import ManualClock, MemoryStore, Policy, RedisStore, Shaper
from shapekit.stores.sqlite import SQLiteStore

from ..redis_server import shared_server
from .inflight.rooms import is_forgotten, standing

_names = count()
CALLERS = 5

STORES = {
    "memory": lambda _, clock: MemoryStore(clock),
    "file": lambda path, clock: SQLiteStore(path / "limits.db", clock=clock),
    "redis": lambda _, clock: RedisStore.from_url(
        shared_server().url, clock=clock, prefix=f"again{next(_names)}"
    ),
}
pytestmark = pytest.mark.parametrize("passes", [0, 1, 2, 3, 5])


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    store = STORES[request.param](tmp_path, ManualClock(1_000.0))
    yield store
    store.close()


def wait_for_slots(store):
    """Tasks that wait for their slots; whether they do; and whether only the first slot is taken."""
    shaper = Shaper("1/h", store=store, name="n")
    shaper.reserve()

    def are_waiting():
        return len(store.clock._sleepers) == CALLERS

    def is_free():
        return shaper.forecast().first_in == 3_600

    return shaper.aschedule, are_waiting, is_free


def hold_permits(store):
    """Tasks that stay in their calls, and whose permits are given back as they end."""
    policy, inside = Policy(concurrency=CALLERS, store=store, name="n"), []

    async def call():
        async with policy.aadmit():
            inside.append(True)
            await asyncio.Event().wait()

    def are_inside():
        return len(inside) == CALLERS

    def is_free():
        return standing(policy) == (0, 0) and is_forgotten(policy)

    return call, are_inside, is_free


def wait_for_permits(store):
    """Tasks that stand in line for the permit of a call in flight."""
    policy = Policy(concurrency=1, store=store, name="n")
    # In a context of its own, so that the waiting calls are no part of it.
    inside = copy_context().run(policy.admit().__enter__)

    async def call():
        async with policy.aadmit():
            """It never gets there."""

    def are_waiting():
        return len(policy.permits.registry._keys["default"].waiting) == CALLERS

    def is_free():
        return inside.holds_permit and standing(policy) == (1, 0)

    return call, are_waiting, is_free


CASES = pytest.mark.parametrize("case", [wait_for_slots, hold_permits, wait_for_permits])


async def begun(call, are_there):
    tasks = [asyncio.ensure_future(call()) for _ in range(CALLERS)]
    while not are_there():
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
    return tasks


@CASES
def test_nothing_stays_taken_however_often_a_task_is_cancelled(store, case, passes):
    call, are_there, is_free = case(store)

    async def main():
        tasks = await begun(call, are_there)
        while not all(task.done() for task in tasks):
            for task in tasks:
                task.cancel()
            for _ in range(passes):
                await asyncio.sleep(0)
            if not passes:
                await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert is_free()
        await store.aclose()

    asyncio.run(main())


@CASES
def test_nothing_stays_taken_if_a_loop_ends_as_its_tasks_are_cancelled(store, case, passes):
    """`asyncio.run` cancels all tasks that it finds, and ends when they have ended."""
    call, are_there, is_free = case(store)
    found = []

    async def last():
        """Runs after all tasks, and before the loop is closed."""
        try:
            yield
        finally:
            found.append(is_free())
            await store.aclose()

    ends = last()

    async def main():
        await anext(ends)
        for task in await begun(call, are_there):
            task.cancel()
        for _ in range(passes):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert found == [True]
