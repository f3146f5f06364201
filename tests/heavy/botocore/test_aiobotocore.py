"""A shaped client of aiobotocore waits as a task does: the loop goes on, and cancelling gives all back."""

import asyncio
import time

import pytest
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from shapekit import ConfigError, Policy, errors
from shapekit.integrations.botocore import shape

from .server import failing

PATIENCE_S = 20


def run(body):
    """Run it in a loop of its own, for a while at most."""

    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            await body()

    asyncio.run(bounded())


def test_attempts_wait_and_the_loop_goes_on(server, aclient):
    async def body():
        async with aclient() as client:
            shape(client, rate="1/s")
            await client.list_queues()
            waiting = asyncio.create_task(client.list_queues())
            begun, steps = time.monotonic(), 0
            while not waiting.done():
                await asyncio.sleep(0.01)
                steps += 1
            await waiting
            assert time.monotonic() - begun >= 0.5
            assert steps >= 5

    run(body)
    assert server.statuses == [200, 200]
    assert server.arrivals[0].headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")


def test_each_attempt_takes_a_slot_and_throttling_holds(server, aclient):
    policy = Policy("1000/s", quota="1000/month", key="all")

    async def body():
        async with aclient() as client:
            shape(client, policy=policy)
            server.answers.append(failing("ThrottlingException", **{"x-amz-retry-after": 300}))
            await client.list_queues()

    run(body)
    refused, passed = server.arrivals
    assert passed.at - refused.at >= 0.25
    assert policy.quotas("all")[0].used == 2


def test_a_refusal_is_an_error_of_botocore(server, aclient):
    async def body():
        async with aclient() as client:
            shape(client, rate="1/h", max_wait=0)
            await client.list_queues()
            with pytest.raises(BotoCoreError) as refusal:
                await client.list_queues()
            assert isinstance(refusal.value, errors.QueueFullError)

    run(body)
    assert len(server.arrivals) == 1


def test_a_wait_that_is_cancelled_gives_its_slot_back(aclient):
    policy = Policy("1/min", key="all")

    async def body():
        async with aclient() as client:
            shape(client, policy=policy)
            await client.list_queues()
            waiting = asyncio.create_task(client.list_queues())

            async def next_in():
                return (await policy.shaper.aforecast(key="all")).first_in

            while await next_in() < 90:  # noqa: ASYNC110 - the line itself tells that the call waits
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await next_in() < 90

    run(body)


def test_permits_end_with_their_attempts_however_those_end(server, aclient):
    policy = Policy(concurrency=1, key="all", max_wait="10s")

    async def body():
        async with aclient() as client:
            shape(client, policy=policy)
            server.answers.extend([failing("InternalError", 500), failing("ValidationException")])
            with pytest.raises(ClientError):
                await client.list_queues()

            def unsigned(**_):
                raise RuntimeError("no credentials")

            client.meta.events.register("before-sign.sqs", unsigned)
            with pytest.raises(RuntimeError, match="no credentials"):
                await client.list_queues()
            client.meta.events.unregister("before-sign.sqs", unsigned)

            # Cancelled in flight, by a task that goes on.
            while server.came.acquire(blocking=False):
                pass
            server.gate.clear()
            sending = asyncio.create_task(client.list_queues())
            await asyncio.to_thread(server.came.acquire)
            sending.cancel()
            cancelled = await asyncio.gather(sending, return_exceptions=True)
            assert isinstance(cancelled[0], asyncio.CancelledError)
            server.gate.set()
            await client.list_queues()

            server.gate.clear()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.list_queues()
            server.gate.set()
            await client.list_queues()

    run(body)


def test_an_error_that_aws_answers_may_be_given_back(server, aclient):
    policy = Policy("1000/s", quota="10/month", key="all", refund_on=ClientError)

    async def body():
        async with aclient() as client:
            shape(client, policy=policy)
            server.answers.append(failing("ValidationException"))
            with pytest.raises(ClientError):
                await client.list_queues()
            await client.list_queues()

    run(body)
    assert policy.quotas("all")[0].used == 1


def test_clients_that_a_session_makes_later_share_its_limit(options):
    policy = Policy("1000/s", quota="1000/month", key="all")

    async def body():
        session = get_session()
        shape(session, policy=policy)
        for _ in range(2):
            async with session.create_client("sqs", **options) as client:
                await client.list_queues()
                with pytest.raises(ConfigError, match="is shaped already"):
                    shape(client, policy=policy)

    run(body)
    assert policy.quotas("all")[0].used == 2
