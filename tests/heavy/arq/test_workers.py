"""arq's own workers, two of them."""

import asyncio
import time
from pathlib import Path

import pytest
from arq import create_pool
from arq.connections import RedisSettings
from arq.constants import retry_key_prefix
from arq.jobs import Job, ResultNotFound
from arq.worker import Retry

from shapekit import ConfigError, Policy, QueueFullError
from shapekit.integrations.arq import shaped_job
from tests.heavy.queues.fleet import BIN, distinct, most_in, most_in_a_second, running, span_of


@pytest.fixture(scope="module")
def fleet():
    with running(Path(__file__).parent, "jobs", (BIN / "arq", "jobs.Settings")) as fleet:
        fleet.wait_for_all(lambda: enqueue(fleet, ("free", 0)))
        yield fleet


@pytest.fixture
def app(fleet):
    return fleet.app


def enqueue(fleet, *calls):
    """Enqueue jobs, and return their ids."""

    async def all_of_them():
        pool = await create_pool(RedisSettings.from_dsn(fleet.server.url))
        jobs = [await pool.enqueue_job(*call) for call in calls]
        await pool.aclose()
        return [job.job_id for job in jobs]

    return asyncio.run(all_of_them())


def results(fleet, ids):
    """The outcomes of jobs: their results, or their errors."""

    async def result(job):
        try:
            return await job.result(timeout=20, poll_delay=0.1)
        except ResultNotFound:
            # arq looks for the result and then in the queue: the job has ended in between.
            return await job.result(timeout=20)

    async def all_of_them():
        pool = await create_pool(RedisSettings.from_dsn(fleet.server.url))
        jobs = [Job(one, pool) for one in ids]
        found = await asyncio.gather(*map(result, jobs), return_exceptions=True)
        await pool.aclose()
        return found

    return asyncio.run(all_of_them())


def test_two_workers_share_one_rate(fleet):
    with fleet.watched() as witness:
        enqueue(fleet, *(("quick", number) for number in range(200)))
        starts = fleet.wait("quick", 200)
    assert distinct(starts) == len(starts) == 200
    assert most_in_a_second(starts, witness) <= 41
    assert span_of(starts, witness) <= 199 / 40 * 1.05


def test_each_key_has_its_rate_and_a_job_that_comes_back_has_its_slot(fleet):
    ids = enqueue(fleet, *(("slow", account, number) for number in range(5) for account in ("anna", "ben")))
    for account in ("anna", "ben"):
        starts = fleet.wait(f"slow:{account}", 5)
        assert distinct(starts) == 5
        assert 3.5 <= span_of(starts) <= 4.5
    # No try was counted.
    assert results(fleet, ids) == [1] * 10
    # No slot was taken twice either, or the next job would come later.
    policy = Policy("1/s", name="slow", store=fleet.server.url)
    assert policy.forecast(key="anna").first_in <= 1.0
    policy.close()


def test_a_refused_job_fails_at_once_or_comes_back(fleet):
    outcomes = results(fleet, enqueue(fleet, *(("refused", number) for number in range(4))))
    assert [type(outcome) for outcome in outcomes].count(QueueFullError) == 2
    enqueue(fleet, *(("patient", number) for number in range(4)))
    starts = fleet.wait("patient", 4)
    assert distinct(starts) == len(starts) == 4
    assert most_in(starts, 0.4) == 1


def test_jobs_without_a_shape_do_not_wait(fleet):
    enqueue(fleet, *(("slow", "queue", number) for number in range(100)))
    at = time.time()
    enqueue(fleet, ("free", 1))
    assert fleet.wait("free", 1)[-1][0] - at < 4.0


def test_a_killed_worker_loses_no_job(fleet):
    with fleet.watched() as witness:
        enqueue(fleet, *(("killed", number) for number in range(160)))
        before = fleet.wait("killed", 40)
        fleet.kill(fleet.workers[0])
        fleet.start(1)
        starts = fleet.wait("killed", 160, distinct)
    assert len(before) < 160
    assert most_in_a_second(starts, witness) <= 41
    # A job whose end the killed worker was about to record runs twice, as without shapekit.
    assert len(starts) - distinct(starts) <= 5


def test_a_store_that_workers_cannot_share_is_refused():
    async def job(ctx): ...

    with pytest.raises(ConfigError, match="is in the memory of each process"):
        shaped_job(rate="1/s")(job)


def test_a_function_that_is_called_waits_where_it_is_called(app):
    async def twice():
        for number in range(2):
            await app.called({}, number)

    at = time.monotonic()
    asyncio.run(twice())
    assert time.monotonic() - at >= 0.2


def test_a_function_that_another_job_calls_waits_there_and_puts_no_job_back(fleet):
    ids = enqueue(fleet, ("caller", 0))
    assert results(fleet, ids) == [1]
    starts = fleet.wait("far", 3)
    assert distinct(starts) == len(starts) == 3


def test_a_job_that_arq_starts_before_its_time_is_deferred_again_and_takes_no_slot(fleet):
    # The worker had read the queue before another worker put the job back.
    async def early():
        pool = await create_pool(RedisSettings.from_dsn(fleet.server.url))
        ctx = {"job_id": "early", "job_try": 3, "score": round((time.time() + 60) * 1000), "redis": pool}
        with pytest.raises(Retry) as caught:
            await asyncio.create_task(fleet.app.early(ctx))
        tries = await pool.get(retry_key_prefix + "early")
        await pool.aclose()
        return caught.value.defer_score, tries

    defer_ms, tries = asyncio.run(early())
    assert 55_000 < defer_ms <= 60_000
    assert tries == b"2"
    policy = Policy("1/h", name="early", store=fleet.server.url)
    assert policy.forecast().first_in == 0
    policy.close()
