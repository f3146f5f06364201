"""`concurrency=` on policies and decorators: what it counts as in flight, and what it leaves alone."""

import asyncio
import os
import time

import anyio
import pytest
import tenacity
from anyio.lowlevel import checkpoint
from redis.asyncio import Redis as AsyncRedis

from shapekit import (
    GCRA,
    Admission,
    Concurrency,
    ConfigError,
    CostExceedsLimitError,
    ManualClock,
    Policy,
    QueueFullError,
    all_of,
    events,
    off,
    shaped,
)
from shapekit._queue.inflight import heartbeat_of
from shapekit.algorithms.queue.wire import LOOK
from shapekit.integrations.tenacity import shaped_retrying
from shapekit.stores.redis import RedisStore
from shapekit.stores.sqlite import SQLiteStore

from ...redis_server import shared_server
from .rooms import PATIENCE_S, is_forgotten, standing


def test_a_number_is_short_for_a_concurrency():
    assert Policy(concurrency=20).permits.limit == Concurrency(20) == Concurrency(20, lease="1m")
    assert Policy(concurrency=Concurrency(3, "5s")).permits.limit.lease_us == 5_000_000
    assert Policy("10/s").permits is None


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "20", 10_001, object()])
def test_a_concurrency_that_is_no_number_of_calls_is_refused(number, refused):
    refused(lambda: Policy(concurrency=number), "concurrency")


def test_a_lease_is_long_enough_to_be_renewed(refused):
    refused(lambda: Concurrency(1, "999ms"), "lease")
    refused(lambda: Concurrency(1, 0), "lease")
    refused(lambda: Concurrency(10_001), "limit")


def test_a_concurrency_is_no_gate(refused):
    error = refused(lambda: Policy("10/s", gates=(Concurrency(20),)), "gates")
    assert "concurrency=20" in error.fix
    refused(lambda: all_of(a=Concurrency(20), b=GCRA("1/s")), "a")


def test_concurrency_can_be_given_as_plain_values(tmp_path, refused):
    (tmp_path / "limits.toml").write_text(
        '[a]\nconcurrency = 20\n[b]\nrate = "5/s"\nconcurrency = {limit = 3, lease = "30s"}\n'
        "[c]\nconcurrency = {lease = 3}\n[d]\nconcurrency = {limit = 0}\n"
    )
    a, b = (Policy.from_toml(tmp_path / "limits.toml", name) for name in "ab")
    assert (a.permits.limit, b.permits.limit) == (Concurrency(20), Concurrency(3, "30s"))
    assert b.permits.limit != a.permits.limit
    for name in "cd":
        with pytest.raises(ValueError, match="concurrency"):
            Policy.from_toml(tmp_path / "limits.toml", name)
    refused(lambda: Policy.from_dict({"concurrency": "many"}), "concurrency")


def test_without_a_rate_calls_leave_at_once_and_holds_are_kept():
    clock = ManualClock(autojump=True)
    policy = Policy(concurrency=2, clock=clock)
    for _ in range(1_000):
        with policy.admit() as admission:
            assert admission.delay == 0
    policy.shaper.hold("30s")
    with policy.admit() as admission:
        assert admission.delay == 30.0
        assert clock.now() == 30.0
    with pytest.raises(ValueError, match="rate"):
        Policy()


def test_a_cost_that_can_never_be_admitted_takes_no_permit():
    policy = Policy(gates=(GCRA("1/s", 2),), concurrency=1)
    with pytest.raises(CostExceedsLimitError):
        policy.admit(cost=3).__enter__()
    assert is_forgotten(policy)


def test_keys_have_permits_of_their_own():
    policy = Policy(concurrency=1, max_wait=0)
    with policy.admit("one"), policy.admit("two"), pytest.raises(QueueFullError):
        policy.admit("one").__enter__()


def test_an_error_inside_gives_the_permit_back():
    policy = Policy("10/s", concurrency=1, refund_on=KeyError)
    with pytest.raises(KeyError), policy.admit():
        raise KeyError
    assert standing(policy) == (0, 0)


# decorated


def test_a_function_is_in_flight_while_it_runs():
    @shaped(concurrency=2, max_wait=0)
    def call(depth):
        assert standing(call.policy, "default")[0] == 3 - depth
        return call(depth - 1) if depth else "end"

    with pytest.raises(QueueFullError, match="2 calls are in flight"):
        call(2)
    assert standing(call.policy) == (0, 0)
    with pytest.raises(ValueError, match="rate"):
        shaped()


@pytest.mark.anyio
async def test_a_coroutine_is_in_flight_while_it_runs():
    most = [0]

    @shaped(concurrency=3)
    async def call():
        most[0] = max(most[0], standing(call.policy)[0])
        await checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(call)
    assert most == [3]
    assert standing(call.policy) == (0, 0)


def test_a_generator_is_in_flight_until_it_ends():
    @shaped(concurrency=1, max_wait=0)
    def items():
        yield 1
        yield 2

    first = items()
    assert next(first) == 1
    with pytest.raises(QueueFullError):
        next(items())
    assert list(first) == [2]
    assert list(items()) == [1, 2]
    assert standing(items.policy) == (0, 0)


@pytest.mark.anyio
async def test_an_asynchronous_generator_is_in_flight_until_it_ends():
    @shaped(concurrency=1)
    async def items():
        yield 1
        yield 2

    first = items()
    assert await anext(first) == 1
    assert standing(items.policy) == (1, 0)
    await first.aclose()
    with anyio.fail_after(PATIENCE_S):
        assert [item async for item in items()] == [1, 2]
    assert standing(items.policy) == (0, 0)


def test_methods_and_classes_share_or_have_their_own():
    class Client:
        @shaped(concurrency=1, per="instance", max_wait=0)
        def call(self, other=None):
            return other.call() if other else "end"

    one, two = Client(), Client()
    assert one.call(two) == "end"
    with pytest.raises(QueueFullError):
        one.call(one)


# switched off, or only measured


def test_nothing_is_counted_while_shaping_is_off():
    policy = Policy(concurrency=1, max_wait=0)
    with off(), policy.admit(), policy.admit() as admission:
        assert not admission.holds_permit
        assert standing(policy) == (0, 0)
    with policy.admit(), off(), policy.admit():
        assert standing(policy) == (1, 0)


@pytest.mark.anyio
async def test_without_enforcement_no_task_waits():
    policy, seen = Policy("10/s", name="api", concurrency=1, enforce=False), []
    with policy.listen(seen.append), policy.admit() as one:
        async with policy.aadmit() as two, policy.aadmit() as three:
            assert (one.holds_permit, two.holds_permit, three.holds_permit) == (True, False, False)
            assert standing(policy) == (1, 0)
    assert standing(policy) == (0, 0)
    assert [event.code for event in seen if isinstance(event, events.Measured)] == [
        None,
        "queue_full",
        "queue_full",
    ]


def test_without_enforcement_no_thread_waits_either():
    policy = Policy("10/s", concurrency=1, enforce=False)
    with policy.admit() as one, policy.admit() as two:
        assert (one.holds_permit, two.holds_permit) == (True, False)
    assert standing(policy) == (0, 0)


@pytest.mark.anyio
async def test_without_enforcement_a_call_that_could_never_leave_takes_no_permit():
    policy = Policy(gates=[GCRA("10/s", burst=5)], concurrency=1, enforce=False)
    with policy.admit(cost=6) as one:
        assert (one.reservation.accepted, one.holds_permit) == (False, False)
    async with policy.aadmit(cost=6) as two:
        assert (two.reservation.accepted, two.holds_permit) == (False, False)
    assert standing(policy) == (0, 0)


@pytest.mark.anyio
async def test_tasks_are_not_counted_while_shaping_is_off():
    policy = Policy(concurrency=1, max_wait=0)
    with off():
        async with policy.aadmit(), policy.aadmit() as admission:
            assert not admission.holds_permit
            assert standing(policy) == (0, 0)


def test_listeners_get_an_event_for_a_call_without_a_permit():
    policy, seen = Policy("10/s", name="api", concurrency=1, max_wait=0), []
    with policy.listen(seen.append), policy.admit(), pytest.raises(QueueFullError):
        policy.admit().__enter__()
    kinds = [type(event).__name__ for event in seen]
    assert kinds == ["Reserved", "Departed", "Refused"]
    assert (seen[-1].code, seen[-1].key, seen[-1].policy) == ("queue_full", "default", "api")


# processes


def test_a_forked_child_has_nothing_in_flight(tmp_path):
    policy = Policy(concurrency=2, name="api", store=SQLiteStore(tmp_path / "limits.db"))
    read, write = os.pipe()
    with policy.admit() as admission:
        child = os.fork()
        if child == 0:
            try:
                admission.leave()
                with policy.admit(max_wait=0):
                    os.write(write, repr(standing(policy)).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"(2, 0)"
        assert standing(policy) == (1, 0)
    assert standing(policy) == (0, 0)
    os.close(read)
    os.close(write)
    policy.shaper.core.store.close()


def test_the_heartbeat_ends_when_nothing_is_in_flight(tmp_path):
    clock = ManualClock(1_000.0)
    store = SQLiteStore(tmp_path / "limits.db", clock=clock)
    policy, heartbeat = Policy(concurrency=1, name="api", store=store), heartbeat_of(store)
    assert not heartbeat._runs
    for _ in range(3):
        with policy.admit():
            assert heartbeat._runs
            clock.advance(60.0)
    gives_up = time.monotonic() + PATIENCE_S
    while heartbeat._runs:
        clock.advance(20.0)
        assert time.monotonic() < gives_up
    with policy.admit():
        assert heartbeat._runs
    store.close()


def test_without_concurrency_there_is_a_plain_admission():
    with Policy("10/s").admit() as admission:
        assert type(admission) is Admission


# beside


def test_attempts_of_tenacity_are_in_flight_one_by_one():
    policy, seen = Policy(concurrency=1, max_wait=0), []

    retrying = {"stop": tenacity.stop_after_attempt(3), "wait": tenacity.wait_none()}

    @shaped_retrying(policy, retry=tenacity.retry_if_exception_type(ConnectionError), **retrying).wraps
    def call():
        seen.append(standing(policy))
        if len(seen) < 3:
            raise ConnectionError
        return "end"

    assert call() == "end"
    assert seen == [(1, 0)] * 3
    assert standing(policy) == (0, 0)


def test_a_store_that_can_only_be_awaited_is_renewed_on_its_loop():
    clock, limit = ManualClock(1_000.0), Concurrency(1, "30s")
    witness = RedisStore.from_url(shared_server().url, clock=clock, prefix="awaited")
    look = witness.bind("api.permits", limit, LOOK)

    def ends_us():
        ((_, until, _),) = look("default")[0][1]
        return until

    async def work():
        async with AsyncRedis.from_url(shared_server().url) as client:
            store = RedisStore(aclient=client, clock=clock, prefix="awaited")
            policy = Policy(concurrency=limit, name="api", store=store)
            async with policy.aadmit():
                before = ends_us()
                for _ in range(12):
                    await clock.aadvance(10.0)
                    while ends_us() != before + 10_000_000:
                        await checkpoint()
                    before = ends_us()
            assert limit.standing(*look("default")[:2]) == (0, 0)
            admission = await policy.aadmit().__aenter__()
            assert admission.holds_permit
            del admission
            # Only the keeper can tell the store, at one of the next renewals.
            while limit.standing(*look("default")[:2]) != (0, 0):
                await clock.aadvance(5.0)

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    witness.close()


def test_a_store_that_can_only_be_awaited_refuses_synchronous_calls(refused):
    store = RedisStore(aclient=AsyncRedis.from_url(shared_server().url), prefix="awaited")
    policy = Policy(concurrency=1, name="api", store=store)
    refused(lambda: policy.admit().__enter__(), "client")


def test_a_store_that_can_only_be_awaited_gets_permits_back_that_a_loop_returns_without_awaiting():
    async def work():
        async with AsyncRedis.from_url(shared_server().url) as client:
            # Nothing renews its leases before the test has ended.
            store = RedisStore(aclient=client, prefix="given-back")
            policy = Policy(concurrency=Concurrency(1, "1h"), name="api", store=store)
            for _ in range(3):
                admission = await policy.aadmit().__aenter__()
                waiting = asyncio.create_task(policy.aadmit(max_wait=PATIENCE_S).__aenter__())
                while not in_line(policy):
                    await checkpoint()
                admission.leave_soon()
                await (await waiting).aleave()
            assert is_forgotten(policy)

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_a_store_that_can_only_be_awaited_gets_a_dropped_permit_back_from_a_waiting_call():
    async def work():
        async with AsyncRedis.from_url(shared_server().url) as client:
            store = RedisStore(aclient=client, prefix="dropped")
            policy = Policy(concurrency=Concurrency(1, "1h"), name="api", store=store)
            admission = await policy.aadmit().__aenter__()
            waiting = asyncio.create_task(policy.aadmit(max_wait=PATIENCE_S).__aenter__())
            while not in_line(policy):
                await checkpoint()
            del admission
            await (await waiting).aleave()

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def in_line(policy):
    """Whether a call of this process waits."""
    return any(at_key.waiting for at_key in policy.permits.registry._keys.values())


@pytest.mark.parametrize("concurrency", [None, 2])
def test_a_store_that_only_works_on_asyncio_raises_on_trio(concurrency):
    store = RedisStore(aclient=AsyncRedis())
    policy = Policy("10/s", concurrency=concurrency, name="api", store=store)

    async def call():
        async with policy.aadmit():
            pass

    with pytest.raises(ConfigError, match="is needed for synchronous calls, on trio"):
        anyio.run(call, backend="trio")
