"""Concurrent asynchronous callers of one key share trips; loops have connections of their own."""

import asyncio
import gc
import threading
import warnings
from functools import partial

import pytest

from shapekit import GCRA, Gate, RedisStore, Shaper

from .conftest import BURST, PATIENCE_S

CALLERS = 200


@pytest.fixture
def trips(server):
    """How many script calls the server has run."""

    def trips():
        with server.client() as client:
            stats = client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))

    return trips


def test_many_callers_make_few_trips_and_a_lone_one_makes_one(server, open_store, trips):
    async def main():
        store = open_store(server)
        gate = Gate(GCRA("100/d"), store=store, name="gate")
        await gate.acheck("warm")
        before = trips()
        await gate.acheck()
        lone = trips()
        decisions = await asyncio.gather(*[gate.acheck() for _ in range(CALLERS)])
        together = trips()
        await store.aclose()
        return lone - before, together - lone, [decision.remaining for decision in decisions]

    alone, together, remaining = asyncio.run(main())
    # The first leaves alone at most, all others in the trip after it.
    assert alone == 1
    assert 1 <= together <= 2
    # First come, first served.
    assert remaining == [*range(98, -1, -1), *[0] * (CALLERS - 99)]


def test_a_batch_under_way_is_a_task_that_ends_with_its_work(server, open_store):
    async def main():
        store = open_store(server)
        gate = Gate(GCRA("100/d"), store=store, name="shown")
        call = asyncio.ensure_future(gate.acheck())
        await asyncio.sleep(0)
        (shown,) = asyncio.all_tasks() - {asyncio.current_task(), call}
        assert "_run" in shown.get_coro().__qualname__
        assert shown.get_name()
        assert shown.get_stack()
        assert shown.cancel()
        await asyncio.wait([shown])
        assert (await call).remaining == 99
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await store.aclose()

    asyncio.run(main())


def test_slots_go_to_callers_in_order_of_arrival(server, open_store):
    async def main():
        store = open_store(server)
        shaper = Shaper("10/d", store=store, name="shaper")
        slots = await asyncio.gather(*[shaper.areserve() for _ in range(50)])
        await store.aclose()
        return [slot.departs_at for slot in slots]

    departures = asyncio.run(main())
    assert departures == sorted(departures)
    assert len(set(departures)) == 50


def test_callers_of_different_keys_and_operations_get_their_own_answers(server, open_store):
    async def main():
        store = open_store(server)
        gate = Gate(GCRA("10/d"), store=store, name="gate")
        costs = [1, 2, 3, 4]
        checked = await asyncio.gather(*[gate.acheck(f"key {cost}", cost=cost) for cost in costs * 2])
        looked = await asyncio.gather(
            gate.apeek("key 1"), gate.aforecast("key 2", cost=3), gate.adebit("key 1", cost=5)
        )
        await store.aclose()
        return [decision.current for decision in checked], looked

    currents, (peeked, forecast, debited) = asyncio.run(main())
    assert currents == [1, 2, 3, 4, 2, 4, 6, 8]
    assert (peeked.current, forecast.fits_now, debited.current) == (2, 2, 7)


def test_loops_in_several_threads_share_one_store(server, open_store, crew):
    store = open_store(server)
    gate = Gate(GCRA("100/d"), store=store, name="gate")
    done = threading.Barrier(4)

    async def main():
        decisions = await asyncio.gather(*[gate.acheck() for _ in range(50)])
        await asyncio.to_thread(done.wait, PATIENCE_S)
        await store.aclose()
        return sum(decision.allowed for decision in decisions)

    crew.at_once(*[lambda: asyncio.run(main())] * 4)
    assert sum(crew.join()) == 100


def test_a_store_outlives_the_loops_it_was_used_on(server, open_store, gate_on, leftovers):
    store = open_store(server)
    gate = gate_on(store)

    async def last():
        decision = await gate.acheck()
        gc.collect()
        left = leftovers.sockets
        await store.aclose()
        return decision.remaining, left

    with warnings.catch_warnings():
        # asyncio warns about a loop that ends with open connections.
        warnings.simplefilter("ignore", ResourceWarning)
        remaining = [asyncio.run(gate.acheck()).remaining for _ in range(6)]
        gc.collect()
        # A loop has its connection and two sockets to wake it up.
        assert asyncio.run(last()) == (BURST - 7, 3)
    assert remaining == [BURST - used for used in range(1, 7)]
    gc.collect()
    assert leftovers.sockets == 0


@pytest.mark.parametrize("most", [1, 2])
def test_the_url_sets_how_many_connections_there_are(most, proxy, prefix, crew):
    store = RedisStore.from_url(proxy.url(f"?max_connections={most}"), prefix=prefix)
    gate = Gate(GCRA("10/d"), store=store, name="gate")

    async def check_all():
        decisions = await asyncio.gather(*[gate.acheck(f"task {number}") for number in range(12)])
        await store.aclose()
        return decisions

    crew.at_once(*[partial(gate.check, f"thread {number}") for number in range(12)])
    assert all(crew.join())
    of_threads = proxy.connections
    assert all(asyncio.run(check_all()))
    of_tasks = proxy.connections - of_threads
    assert 1 <= of_threads <= most
    assert of_tasks == most
