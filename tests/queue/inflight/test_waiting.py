"""Calls that wait for permits: first come, first served, and a call that gives up has taken nothing."""

import gc
import random
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit import Concurrency, MemoryStore, Policy, QueueFullError, StoreUnavailableError
from shapekit._queue.inflight import Permit
from shapekit._runtime import process
from shapekit._runtime.drivers import run
from shapekit.events import Departed
from shapekit.stores.sqlite import SQLiteStore

from ...crew import in_threads
from .rooms import PATIENCE_S, Inside, given_back, is_forgotten, seconds, standing

LONG = "300d"
"""A lease for tests where time jumps while a file is read."""


# threads


def test_threads_are_never_more_than_the_permits_and_use_them_all():
    policy, inside = Policy(concurrency=3), Inside()
    together = threading.Barrier(3)

    def job():
        for visit in range(30):
            with policy.admit(), inside:
                if visit == 0:
                    together.wait(PATIENCE_S)

    in_threads([job] * 9)
    assert (inside.most, inside.visits) == (3, 270)
    assert standing(policy) == (0, 0)
    assert is_forgotten(policy)


def test_threads_on_two_stores_of_one_file_share_the_permits(tmp_path):
    stores = [SQLiteStore(tmp_path / "limits.db") for _ in range(2)]
    policies = [Policy(concurrency=3, name="api", store=store) for store in stores]
    inside = Inside()

    def job(policy):
        for _ in range(5):
            with policy.admit(), inside:
                pass

    in_threads([lambda one=policy: job(one) for policy in policies for _ in range(4)])
    assert inside.most <= 3
    assert inside.visits == 40
    assert standing(policies[0]) == (0, 0)
    for store in stores:
        store.close()


def test_two_policies_of_one_name_on_one_store_wake_each_other():
    store = MemoryStore()
    one, other = (Policy(concurrency=1, name="api", store=store) for _ in range(2))
    has_come, left = threading.Event(), []

    def wait():
        has_come.set()
        with other.admit():
            left.append(True)

    with one.admit():
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert has_come.wait(PATIENCE_S)
        while standing(one)[1] == 0:
            pass
        assert not left
    thread.join(PATIENCE_S)
    assert left


# tasks


@pytest.mark.anyio
async def test_tasks_get_permits_in_order_of_arrival(clock):
    policy, order, began_us = Policy(concurrency=2, clock=clock), [], clock.now_us()

    async def call(number):
        async with policy.aadmit() as admission:
            order.append((number, admission.delay))
            await checkpoint()
            await policy.shaper.core.sleepers.asleep(clock.now_us() + 1_000_000)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(call, number)
            await checkpoint()
    # Two go in the same instant; which of them runs first is the loop's affair.
    pairs = [order[place : place + 2] for place in range(0, 20, 2)]
    assert [{number for number, _ in pair} for pair in pairs] == [{n, n + 1} for n in range(0, 20, 2)]
    assert [{delay for _, delay in pair} for pair in pairs] == [{float(n)} for n in range(10)]
    assert seconds(clock, began_us) == 10.0
    assert is_forgotten(policy)


@pytest.mark.anyio
@pytest.mark.parametrize("options", [{}, {"max_wait": "1min"}, {"timeout": "1min"}])
async def test_the_delay_of_a_call_includes_its_wait_for_a_permit(options, clock):
    """A call takes 2.5 s, and every 2 s comes a slot: the third waits for both."""
    policy = Policy("30/min", concurrency=2, clock=clock)
    events, delays = [], []

    async def call():
        async with policy.aadmit(**options) as admission:
            delays.append(admission.delay)
            await policy.shaper.core.sleepers.asleep(clock.now_us() + 2_500_000)

    with policy.listen(lambda event: events.append(event) if isinstance(event, Departed) else None):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(call)
                await checkpoint()
    assert delays == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert [event.delay for event in events] == delays
    assert [event.late for event in events] == [0.0] * 5


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("where", ["memory", "file"])
async def test_a_task_that_is_cancelled_anywhere_keeps_nothing(seed, where, clock, file):
    rng = random.Random(seed)
    store = MemoryStore(clock) if where == "memory" else file()
    policy, inside = Policy("50/s", concurrency=Concurrency(3, LONG), name="api", store=store), Inside()
    scopes = [anyio.CancelScope() for _ in range(24)]

    async def call(scope):
        with scope:
            async with policy.aadmit():
                with inside:
                    for _ in range(rng.randrange(4)):
                        await checkpoint()
                    await policy.shaper.core.sleepers.asleep(clock.now_us() + rng.randrange(200_000))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(call, scope)
            for scope in rng.sample(scopes, 16):
                for _ in range(rng.randrange(6)):
                    await checkpoint()
                scope.cancel()
    assert inside.most <= 3
    with anyio.fail_after(PATIENCE_S):
        # Work that a cancelled task left behind may still be under way.
        while standing(policy) != (0, 0) or not is_forgotten(policy):
            await checkpoint()


@pytest.mark.anyio
async def test_a_thousand_tasks_get_through(clock):
    policy, inside = Policy(concurrency=5, clock=clock), Inside()

    async def call():
        async with policy.aadmit():
            with inside:
                await checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(1_000):
            tasks.start_soon(call)
    assert (inside.most, inside.visits) == (5, 1_000)


# how long


def test_zero_refuses_at_once_and_gives_the_reason():
    policy = Policy(concurrency=2, max_wait=0)
    with policy.admit(), policy.admit():
        with pytest.raises(QueueFullError, match="key 'default': 2 calls are in flight") as caught:
            policy.admit().__enter__()
        assert caught.value.code == "queue_full"
        assert caught.value.retry_after == 1.0
        assert standing(policy) == (2, 0)
    assert is_forgotten(policy)


def test_a_bound_covers_the_permit_and_the_slot_together(clock):
    policy = Policy("1 per 10 s", concurrency=1, clock=clock)
    with policy.admit():
        began_us = clock.now_us()
        with pytest.raises(QueueFullError, match=r"within max_wait=3 s"):
            policy.admit(max_wait=3).__enter__()
        assert seconds(clock, began_us) == 3.0
        with pytest.raises(TimeoutError, match="after 2 s"):
            policy.admit(timeout=2).__enter__()
    assert standing(policy) == (0, 0)
    # The permit is free, and the slot is 5 s away by now.
    with pytest.raises(QueueFullError) as caught:
        policy.admit(max_wait=4).__enter__()
    assert caught.value.delay == 5.0
    assert standing(policy) == (0, 0), "a call without a slot has no permit"
    with policy.admit(max_wait=5) as admission:
        assert admission.delay == 5.0


@pytest.mark.anyio
async def test_the_wait_for_the_permit_counts_towards_max_wait(clock):
    policy = Policy("1 per 10 s", concurrency=1, clock=clock)
    outcomes = []

    async def second():
        try:
            async with policy.aadmit(max_wait=9):
                outcomes.append("left")
        except QueueFullError as error:
            outcomes.append((error.delay, error.max_wait, seconds(clock, began_us)))

    began_us = clock.now_us()
    async with anyio.create_task_group() as tasks, policy.aadmit():
        tasks.start_soon(second)
        await policy.shaper.core.sleepers.asleep(clock.now_us() + 4_000_000)
    # Permitted after 4 s, its slot comes 10 s after its arrival: that is too late, and it raises at once.
    assert outcomes == [(10.0, 9.0, 4.0)]
    assert standing(policy) == (0, 0)


def test_closing_wakes_waiting_calls():
    policy, caught = Policy(concurrency=1, name="api", store=MemoryStore()), []

    def wait():
        try:
            with policy.admit():
                pass
        except StoreUnavailableError as error:
            caught.append(error)

    with policy.admit():
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        while standing(policy)[1] == 0:
            pass
        policy.close()
        thread.join(PATIENCE_S)
        assert len(caught) == 1
        assert standing(policy) == (1, 0)


def test_a_dropped_permit_of_another_process_is_left_alone():
    policy = Policy(concurrency=1)
    with policy.admit():
        permit = Permit(policy.permits, "default")
        permit.owner, permit.number, permit.is_over = 4711, 1, False
        run(policy.permits.leave, permit)
        del permit
        given_back()
        assert process._here.left.empty()
        assert standing(policy) == (1, 0)


def test_a_permit_that_is_dropped_is_given_back():
    policy = Policy(concurrency=1)
    policy.admit().__enter__()
    # The call waits until the background thread gives back what was dropped.
    with policy.admit(timeout=PATIENCE_S):
        assert standing(policy) == (1, 0)

    def begun():
        with policy.admit():
            yield

    generator = begun()
    next(generator)
    del generator
    with policy.admit(timeout=PATIENCE_S):
        pass
    gc.collect()
