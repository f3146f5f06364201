"""Asynchronous callers that go away while their call is under way."""

import asyncio
import gc
import warnings
from contextlib import closing

import anyio
import pytest

from shapekit import Policy, RedisStore, Shaper
from shapekit._runtime import process

from ..witness import Stopwatch
from .conftest import BURST, PATIENCE_S

SLOT_S = 8_640


@pytest.fixture
def go_away_from(proxy):
    """Makes a call, goes away while the reply is held back, and lets that come."""

    async def go_away_from(call, *args):
        proxy.strike("hold")
        async with anyio.create_task_group() as group:
            group.start_soon(call, *args)
            assert await anyio.to_thread.run_sync(proxy.held.wait, PATIENCE_S)
            group.cancel_scope.cancel()
        proxy.release()

    return go_away_from


@pytest.fixture
def auntil():
    async def auntil(happened):
        with anyio.fail_after(PATIENCE_S):
            while not await happened():
                pass

    return auntil


@pytest.fixture
async def store(proxy, prefix):
    """With time enough for a reply to be held back."""
    store = RedisStore.from_url(f"{proxy.url()}?socket_timeout={PATIENCE_S}", prefix=prefix)
    yield store
    await store.aclose()


@pytest.mark.anyio
async def test_a_check_is_given_back(store, gate_on, go_away_from, auntil):
    gate = gate_on(store)
    await gate.apeek()
    await gate.acheck("warm")
    await go_away_from(gate.acheck)

    async def is_back():
        return (await gate.apeek()).remaining == BURST

    await auntil(is_back)
    # And the next answers are those to the next questions.
    assert [(await gate.acheck()).remaining for _ in range(4)] == [9, 8, 7, 6]


@pytest.mark.anyio
async def test_a_reservation_is_given_back(store, go_away_from, auntil):
    shaper = Shaper("10/d", store=store, name="shaper")
    await shaper.areserve()
    await go_away_from(shaper.areserve)

    async def is_back():
        return round((await shaper.aforecast()).first_in / SLOT_S) == 1

    await auntil(is_back)
    assert round((await shaper.areserve()).delay / SLOT_S) == 1


@pytest.mark.anyio
async def test_a_slot_for_now_is_given_back(store, go_away_from, auntil):
    """The instant of its slot has passed before its caller could learn of it."""
    shaper = Shaper("10/d", store=store, name="shaper")
    assert await shaper.aheld() == 0
    await go_away_from(shaper.aschedule)

    async def is_back():
        return (await shaper.aforecast()).first_in == 0

    await auntil(is_back)
    assert (await shaper.areserve()).delay == 0


async def one_held_back_and_others(proxy, shaper, number):
    """One caller whose reply is held back, and so many others that reserve meanwhile."""
    proxy.strike("hold")
    one = asyncio.create_task(shaper.areserve())
    assert await asyncio.to_thread(proxy.held.wait, PATIENCE_S)
    others = [asyncio.create_task(shaper.areserve()) for _ in range(number)]
    await asyncio.sleep(0)
    return one, others


def test_a_slot_for_now_goes_to_callers_that_came_meanwhile(proxy, prefix):
    async def main():
        store = RedisStore.from_url(f"{proxy.url()}?socket_timeout={PATIENCE_S}", prefix=prefix)
        shaper = Shaper("10/d", store=store, name="shaper")
        await shaper.aheld()
        gone, others = await one_held_back_and_others(proxy, shaper, 3)
        gone.cancel()
        proxy.release()
        assert [round((await other).delay / SLOT_S) for other in others] == [0, 1, 2]
        await store.aclose()

    asyncio.run(main())


@pytest.mark.anyio
async def test_many_keys_are_given_back(store, gate_on, go_away_from, auntil):
    gate = gate_on(store)
    await gate.acheck_many(["warm", "warmer"])
    await go_away_from(gate.acheck_many, ["one", "two"])

    async def are_back():
        return [(await gate.apeek(key)).remaining for key in ("one", "two")] == [BURST, BURST]

    await auntil(are_back)


def test_the_others_of_a_batch_get_their_answers_and_holes_are_filled(proxy, prefix):
    """First a trip of one call that is held back, then one of the four that came meanwhile."""

    async def main():
        store = RedisStore.from_url(f"{proxy.url()}?socket_timeout={PATIENCE_S}", prefix=prefix)
        shaper = Shaper("10/d", store=store, name="shaper")
        await shaper.areserve()
        first, others = await one_held_back_and_others(proxy, shaper, 4)
        others[0].cancel()
        proxy.strike("hold")
        proxy.release()
        assert round((await first).delay / SLOT_S) == 1
        # The batch of the other three is out now, its answers held back.
        assert await asyncio.to_thread(proxy.held.wait, PATIENCE_S)
        others[2].cancel()
        await asyncio.wait([others[2]])
        proxy.release()
        assert [round((await other).delay / SLOT_S) for other in (others[1], others[3])] == [2, 4]
        # The call that was never sent took no slot; the slot of the call that was sent is a hole.
        assert round((await shaper.areserve()).delay / SLOT_S) == 3
        assert round((await shaper.areserve()).delay / SLOT_S) == 5
        assert all(other.cancelled() for other in (others[0], others[2]))
        await store.aclose()

    asyncio.run(main())


def test_a_loop_ends_although_its_server_never_answers(proxy, prefix, monkeypatch):
    monkeypatch.setattr(process, "LAST_S", 0.05)

    async def main():
        store = RedisStore.from_url(f"{proxy.url()}?socket_timeout={10 * PATIENCE_S}", prefix=prefix)
        policy, is_inside = Policy("100/s", store=store, name="api", concurrency=5), asyncio.Event()

        async def call():
            async with policy.aadmit():
                is_inside.set()
                await asyncio.Event().wait()

        inside.append(asyncio.create_task(call()))
        await is_inside.wait()
        proxy.strike("hold")
        inside[0].cancel()
        assert await asyncio.to_thread(proxy.held.wait, PATIENCE_S)

    inside = []
    with Stopwatch() as watch:
        asyncio.run(main())
    assert watch.took < PATIENCE_S
    assert inside[0].cancelled()
    proxy.release()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_loop_that_ends_gives_back_what_is_on_its_way(proxy, prefix, gate_on, is_cancelled):
    """`asyncio.run` cancels all tasks that it finds: callers, and the tasks that ask the server for them."""

    def new_store():
        return RedisStore.from_url(f"{proxy.url()}?socket_timeout={PATIENCE_S}", prefix=prefix)

    async def main():
        store = new_store()
        gate = gate_on(store)
        await gate.acheck_many(["warm"])
        shaper = Shaper("10/d", store=store, name="shaper")
        await shaper.areserve()
        proxy.strike("hold")
        many = asyncio.create_task(gate.acheck_many(["one", "two"]))
        assert await asyncio.to_thread(proxy.held.wait, PATIENCE_S)
        one, others = await one_held_back_and_others(proxy, shaper, 3)
        if is_cancelled:
            for task in (many, one, *others):
                task.cancel()
        proxy.release(2)

    asyncio.run(main())
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # a connection that its loop has left open
    with closing(new_store()) as store:
        assert round(Shaper("10/d", store=store, name="shaper").reserve().delay / SLOT_S) == 1
        assert gate_on(store).peek("one").remaining == BURST
