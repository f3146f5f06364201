"""Scopes on stores that answer late: no call leaves into a hold, and the order is kept."""

import anyio
import pytest

from shapekit.algorithms.queue.wire import CONFIRM, RESERVE
from shapekit.keys import scoped

from ..slow_store import FarStore, SlowStore
from .scoped_servers import HOST, Client, until


@pytest.fixture(params=[SlowStore, FarStore])
def far(request, clock):
    """A store behind a wire; and one whose own clock is an hour ahead."""
    return request.param(clock, 0.004)


@pytest.mark.anyio
async def test_the_client_that_placed_a_hold_obeys_it_at_once(far, github):
    """An answer from a moment ago is used again, but not by a process that has changed the key since."""
    client = Client(github, store=far, name="github")
    for number in range(3):
        await client.asend(f"/search/{number}")
    await client.asend("/search/0")
    assert [seen.status for seen in github.seen] == [200] * 4
    assert github.seen[-1].at >= 6


@pytest.mark.anyio
async def test_a_slot_that_has_passed_during_the_question_is_given_back_too(far, clock, github):
    client = Client(github, rate="1/s", burst=1, store=far, name="github")
    await client.asend("/search")
    shaper = client.request_shaper._main.policy.shaper
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.asend, "/search/1")
        await until(clock, 0.9)
        await shaper.ahold("5s", key=scoped(HOST, "search"))
        await until(clock, 1.2)
        reservation = await shaper.areserve(HOST)
        assert reservation.delay == 0
        await reservation.acancel()
    assert client.sent[-1][2] >= 5.9


@pytest.mark.anyio
async def test_the_order_is_kept(far, clock, github):
    github.limits["search"] = 10**6
    client = Client(github, rate="10/s", burst=1, store=far, name="github")
    await client.asend("/search")
    await client.request_shaper._main.policy.shaper.ahold("2s", key=scoped(HOST, "search"))

    async def at(number):
        await until(clock, 0.5 + number / 1_000)
        await client.asend(f"/search/{number}")

    async def newcomers():
        for number in range(100, 104):
            await until(clock, 2.0 + (number - 100) / 250)
            tasks.start_soon(client.asend, f"/search/{number}")

    async with anyio.create_task_group() as tasks:
        for number in range(8, 0, -1):
            tasks.start_soon(at, number)
        tasks.start_soon(newcomers)
    expected = [f"/search/{number}" for number in (*range(1, 9), *range(100, 104))]
    assert [path for _, path, _ in client.sent[1:]] == expected
    assert all(at >= 2 for _, _, at in client.sent[1:])


@pytest.mark.anyio
@pytest.mark.parametrize("after_s", [0.001, 0.003, 0.005, 0.007, 0.009, 1.0, 1.999, 2.001, 2.003, 2.005, 2.5])
async def test_calls_cancelled_at_any_moment_take_nothing_along(far, clock, github, after_s):
    client = Client(github, rate="1/s", burst=1, store=far, name="github")
    await client.asend("/search")
    shaper = client.request_shaper._main.policy.shaper
    await until(clock, 1)
    await shaper.ahold("2s", key=scoped(HOST, "search"))
    start = clock.now()

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.asend, "/search/1")
            tasks.start_soon(client.asend, "/search/2")
            tasks.start_soon(client.asend, "/search/3")
            await until(clock, start + after_s)
            scope.cancel()
    left = [at for _, _, at in client.sent[1:]]
    assert not client.request_shaper._main.policy.scoped._lines._lines
    # A request that was under way to the store when it was cancelled may cost one slot.
    under_way = 3 if after_s < 0.01 else 1 if left or after_s > 2 else 0
    reservation = await shaper.areserve(HOST)
    assert reservation.delay <= under_way


@pytest.mark.anyio
async def test_a_request_to_a_part_that_is_not_held_costs_one_trip(far, clock, github):
    github.limits["search"] = 10**6
    client = Client(github, store=far, name="github")
    await client.asend("/search/first")
    await until(clock, 1)
    for number in range(10):
        before = far.trips.total()
        await client.asend(f"/search/{number}")
        assert far.trips.total() - before == 1


@pytest.mark.anyio
async def test_a_request_that_waits_for_its_slot_costs_two(far, clock, github):
    """As any other: the slot, and whether it still stands."""
    github.limits["search"] = 10**6
    client = Client(github, rate="5/s", burst=1, store=far, name="github")
    await client.asend("/search/first")
    for number in range(3):
        before = far.trips.total()
        await client.asend(f"/search/{number}")
        assert far.trips.total() - before == 2


@pytest.mark.anyio
async def test_a_hold_by_another_process_is_found_once_and_obeyed(far, clock, github):
    """The other one's hold marks the key: the slot that is taken there shows it."""
    github.limits["search"] = 10**6
    holder, other = (Client(github, store=far, name="github") for _ in range(2))
    await other.asend("/search/first")
    await other.asend("/repos")
    await until(clock, 1)
    await holder.request_shaper._main.policy.shaper.ahold("5s", key=scoped(HOST, "search"))
    reserved = far.trips[RESERVE]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.asend, "/search/1")
        await until(clock, 2)
        assert far.trips[RESERVE] - reserved == 1
        tasks.start_soon(other.asend, "/search/2")
        await until(clock, 3)
        # It knows by now, and takes no slot to find that out.
        assert far.trips[RESERVE] - reserved == 1
        await other.asend("/repos")
    assert [(path, int(at)) for _, path, at in other.sent[2:]] == [
        ("/repos", 3),
        ("/search/1", 6),
        ("/search/2", 6),
    ]


@pytest.mark.anyio
async def test_calls_that_wait_together_ask_together(far, clock, github):
    client = Client(github, store=far, name="github")
    github.limits["search"] = 10**6
    await client.asend("/search")
    await client.request_shaper._main.policy.shaper.ahold("1s", key=scoped(HOST, "search"))
    before = far.trips[CONFIRM]
    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(client.asend, f"/search/{number}")
    # Ten times a second, and where slots are taken and used one after the other, each 20 ms.
    assert far.trips[CONFIRM] - before <= 10 + 2 + 30 * 4 / 20 + 2
