"""What a receiver does with a message that another worker has received meanwhile, or that no worker would."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from taskiq.acks import AcknowledgeType
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from shapekit import Policy
from shapekit.integrations import taskiq
from shapekit.integrations.taskiq import LEASE_S, PARKED, ShapedReceiver, shaped_task
from tests.redis_server import RedisServer

QUEUE = "queue"


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def notes(server):
    with server.client() as notes:
        notes.flushall()
        yield notes


@asynccontextmanager
async def started(broker, policy):
    broker.is_worker_process = True
    await broker.startup()
    try:
        yield
    finally:
        # A pool of connections belongs to one loop.
        await broker.shutdown()
        await broker.connection_pool.disconnect()
        await policy.aclose()


def bring_back(notes, kind):
    """What another worker does when all leases have run out."""
    notes.zadd(PARKED + QUEUE, dict.fromkeys(notes.zrange(PARKED + QUEUE, 0, -1), 0))
    notes.eval(taskiq._UNPARK, 2, PARKED + QUEUE, QUEUE, kind)


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def test_a_task_whose_lease_has_brought_it_back_is_not_put_back_too(server, notes):
    broker, numbers, ran = ListQueueBroker(server.url, queue_name=QUEUE), [], []
    policy = Policy("1/min", quota="10/day", name="stalled", store=server.url)

    def key(number):
        # It stalls here for so long that another worker finds the lease of its second task due.
        numbers.append(number)
        if numbers == [0, 1]:
            bring_back(notes, "list")
        return "all"

    @broker.task
    @shaped_task(policy=policy, key=key)
    async def task(number: int):
        ran.append(number)

    async def body():
        async with started(broker, policy):
            receiver, messages = ShapedReceiver(broker), broker.listen()
            for number in range(2):
                await task.kiq(number)
                await receiver.callback(await anext(messages))
            # The other worker has it, and no further worker will.
            assert notes.llen(QUEUE) == 1
            assert notes.zcard(PARKED + QUEUE) == 0
            # So no worker uses the slot.
            assert policy.quotas("all")[0].used == 1
            assert policy.forecast(key="all").first_in <= 60
            # That worker puts it back as any other.
            await receiver.callback(await anext(messages))
            assert notes.llen(QUEUE) == 0
            assert notes.zcard(PARKED + QUEUE) == 1
            await messages.aclose()

    asyncio.run(body())
    assert ran == [0]


@pytest.mark.parametrize("declared_by", ["worker", "task"])
def test_a_task_that_is_acknowledged_early_comes_back_if_its_worker_dies_while_it_waits(
    server, notes, declared_by
):
    broker, ran = RedisStreamBroker(server.url, queue_name=QUEUE, consumer_id="0"), []
    labels, options = {}, {"ack_type": AcknowledgeType.WHEN_RECEIVED}
    if declared_by == "task":
        if not hasattr(ShapedReceiver, "_get_ack_time"):
            pytest.skip("this taskiq has no such label")
        labels, options = {"ack_type": "when_received"}, {}

    policy = Policy("2/s", name="early", store=server.url)

    @broker.task(**labels)
    @shaped_task(policy=policy)
    async def task(number: int):
        ran.append(number)

    async def body():
        async with started(broker, policy):
            receiver, messages = ShapedReceiver(broker, **options), broker.listen()
            for number in range(2):
                await task.kiq(number)
            await receiver.callback(await anext(messages))
            waiting = asyncio.create_task(receiver.callback(await anext(messages)))
            await until(lambda: notes.zcard(PARKED + QUEUE))
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            assert notes.xpending(QUEUE, broker.consumer_group_name)["pending"] == 0
            bring_back(notes, "stream")
            async with asyncio.timeout(20):
                await receiver.callback(await anext(messages))
            await messages.aclose()

    asyncio.run(body())
    assert ran == [0, 1]
    # A finished task leaves nothing that would bring it back.
    assert notes.zcard(PARKED + QUEUE) == 0


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("kind", ["list", "stream"])
def test_a_request_that_the_client_repeats_puts_a_task_back_or_starts_it_once(
    server, notes, monkeypatch, kind, is_held
):
    """Between the two requests, another worker brings back what is due."""
    broker_class, ran = {"list": ListQueueBroker, "stream": RedisStreamBroker}[kind], []
    broker = broker_class(server.url, queue_name=QUEUE)
    policy = Policy("1/s", quota="10/day", name=f"repeated {kind} {is_held}", store=server.url)

    @broker.task
    @shaped_task(policy=policy)
    async def task(number: int):
        ran.append(number)

    async def body():
        async with started(broker, policy):
            receiver, messages = ShapedReceiver(broker), broker.listen()
            park = receiver._parking._park

            async def twice(keys, arguments):
                await park(keys, arguments)
                if arguments[0] < 1000 * LEASE_S:
                    bring_back(notes, kind)
                return await park(keys, arguments)

            receiver._parking._park = twice
            if is_held:
                await policy.shaper.ahold(5.0)
            await task.kiq(1)
            await receiver.callback(await anext(messages))
            assert notes.zcard(PARKED + QUEUE) == 0
            await messages.aclose()
            return (await policy.aquotas())[0].used

    assert asyncio.run(body()) == 1
    assert ran == ([] if is_held else [1])
