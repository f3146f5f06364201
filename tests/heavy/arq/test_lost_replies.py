"""A connection is cut between a request and its reply, at each request that a job sends before it runs."""

import asyncio
import time
from contextlib import closing, nullcontext

import pytest
from arq.connections import ArqRedis
from arq.worker import Retry
from redis.asyncio.retry import Retry as Repeating
from redis.backoff import NoBackoff

from shapekit import Policy
from shapekit.integrations import arq
from tests.heavy.queues.cutting import CuttingProxy
from tests.redis_server import RedisServer

MOST_REQUESTS = 20


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(server):
    with closing(CuttingProxy(server.port)) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("held_s", "is_stopped", "ends"),
    [(0.0, False, ()), (5.0, False, Retry), (1.0, True, asyncio.CancelledError)],
)
def test_a_job_does_not_fail(server, proxy, monkeypatch, held_s, is_stopped, ends):
    """It runs, or comes back, or its worker stops and it runs elsewhere."""
    monkeypatch.setattr(arq, "AGAIN_S", 0.0)
    ran = []

    async def body():
        policy = Policy("10/s", name=f"held {held_s}", store=server.url)
        has_begun = asyncio.Event()

        def key(ctx, number):
            has_begun.set()
            return "all"

        @arq.shaped_job(policy=policy, key=key)
        async def job(ctx, number):
            ran.append(number)

        for number in range(1, MOST_REQUESTS):
            if held_s:
                await policy.shaper.ahold(held_s, key="all")
            has_begun.clear()
            pool = ArqRedis(port=proxy.port, retry=Repeating(NoBackoff(), 0))
            await pool.ping()
            proxy.cut_after(number)
            ctx = {"job_id": f"{number}", "job_try": 1, "score": int(time.time() * 1000), "redis": pool}
            running = asyncio.create_task(job(ctx, number))
            if is_stopped:
                begun = asyncio.create_task(has_begun.wait())
                await asyncio.wait((running, begun), return_when=asyncio.FIRST_COMPLETED)
                begun.cancel()
                running.cancel()
            with pytest.raises(ends) if ends else nullcontext():
                await running
            await pool.aclose()
            if not proxy.spare():
                break
        else:
            pytest.fail("a job takes more requests")
        await policy.aclose()
        return number

    number = asyncio.run(body())
    assert ran == ([] if ends else [*range(1, number + 1)])
