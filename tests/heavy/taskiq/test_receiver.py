"""What a receiver does with a message that another worker has received meanwhile, or that nobody would."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from taskiq_redis import ListQueueBroker

from shapekit import Policy
from shapekit.integrations import taskiq
from shapekit.integrations.taskiq import PARKED, ShapedReceiver, shaped_task
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


def test_a_task_whose_lease_has_brought_it_back_is_not_put_back_too(server, notes):
    broker, asked, ran = ListQueueBroker(server.url, queue_name=QUEUE), [], []
    policy = Policy("1/min", quota="10/day", name="stalled", store=server.url)

    def key(number):
        # It stalls here for so long that another worker finds the lease of its second task due.
        asked.append(number)
        if asked == [0, 1]:
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
            # The other worker has it, and nobody else will.
            assert notes.llen(QUEUE) == 1
            assert notes.zcard(PARKED + QUEUE) == 0
            # So nobody comes for the slot.
            assert policy.quotas("all")[0].used == 1
            assert policy.forecast(key="all").first_in <= 60
            # That one puts it back as any other.
            await receiver.callback(await anext(messages))
            assert notes.llen(QUEUE) == 0
            assert notes.zcard(PARKED + QUEUE) == 1
            await messages.aclose()

    asyncio.run(body())
    assert ran == [0]
