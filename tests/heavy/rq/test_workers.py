"""RQ's own workers, two of them."""

import asyncio
import time
from pathlib import Path

import pytest
from rq import Queue, Retry
from rq.job import JobStatus

from shapekit import ConfigError, Policy
from shapekit.integrations.rq import shaped_job
from tests.heavy.queues.fleet import BIN, distinct, most_in_a_second, running, span_of

COMMAND = (BIN / "rq", "worker", "--worker-class", "shapekit.integrations.rq.ShapedSimpleWorker")
FORKING = (BIN / "rq", "worker", "--worker-class", "shapekit.integrations.rq.ShapedWorker", "forks")


@pytest.fixture(scope="module")
def fleet():
    with running(Path(__file__).parent, "work", COMMAND, workers=1) as fleet:
        # The first worker has the scheduler.
        queue(fleet).enqueue(fleet.app.free, 0)
        fleet.wait("free", 1)
        fleet.start(1)
        fleet.notes.delete("free")
        fleet.wait_for_all(lambda: queue(fleet).enqueue(fleet.app.free, 0))
        yield fleet


@pytest.fixture
def app(fleet):
    return fleet.app


def queue(fleet):
    return Queue(connection=fleet.notes)


def ended(jobs):
    """The outcomes of jobs."""
    deadline = time.monotonic() + 20
    while not all(job.get_status() in (JobStatus.FINISHED, JobStatus.FAILED) for job in jobs):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [job.get_status() for job in jobs]


def test_two_workers_share_one_rate(app, fleet):
    with fleet.watched() as witness:
        # Half as many as of other queues: RQ needs more time for each job.
        for number in range(100):
            queue(fleet).enqueue(app.quick, number)
        starts = fleet.wait("quick", 100)
    assert distinct(starts) == len(starts) == 100
    assert most_in_a_second(starts, witness) <= 21
    assert span_of(starts, witness) <= 99 / 20 * 1.05


def test_each_key_has_its_rate_and_a_job_that_comes_back_has_its_slot(app, fleet):
    jobs = [queue(fleet).enqueue(app.slow, account, n) for n in range(3) for account in ("anna", "ben")]
    deadline = time.monotonic() + 20
    while jobs[-1].get_status() != JobStatus.SCHEDULED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for account in ("anna", "ben"):
        starts = fleet.wait(f"slow:{account}", 3)
        assert distinct(starts) == 3
        assert 5.5 <= span_of(starts) <= 7.5
    assert ended(jobs) == [JobStatus.FINISHED] * 6
    # No slot was taken twice, or the next one would come later.
    policy = Policy("1/3s", name="slow", store=fleet.server.url)
    assert policy.forecast(key="anna").first_in <= 3.0
    policy.close()


def test_a_refused_job_fails_at_once_or_comes_back(app, fleet):
    jobs = [queue(fleet).enqueue(app.refused, number) for number in range(2)]
    assert sorted(ended(jobs)) == [JobStatus.FAILED, JobStatus.FINISHED]
    failed = next(job for job in jobs if job.get_status() == JobStatus.FAILED)
    assert "QueueFullError: " in failed.latest_result().exc_string
    jobs = [queue(fleet).enqueue(app.patient, number, retry=Retry(max=1)) for number in range(2)]
    starts = fleet.wait("patient", 2)
    assert span_of(starts) >= 2.9
    assert ended(jobs) == [JobStatus.FINISHED] * 2
    assert [job.number_of_retries for job in jobs] == [None, None]


def test_jobs_without_a_shape_do_not_wait(app, fleet):
    for number in range(10):
        queue(fleet).enqueue(app.slow, "queue", number)
    at = time.time()
    queue(fleet).enqueue(app.free, 1)
    assert fleet.wait("free", 1)[-1][0] - at < 3.0


def taken(fleet, job):
    """Whether a worker has taken a job from its queue without beginning it."""
    return job.id in queue(fleet).intermediate_queue.get_job_ids()


def test_a_job_that_waits_in_a_worker_that_is_killed_comes_back(app, fleet):
    with fleet.watched() as witness:
        jobs = [queue(fleet).enqueue(app.killed, number) for number in range(40)]
        fleet.wait("killed", 10)
        fleet.kill(fleet.workers[1])
        fleet.start(1)

        def found(starts):
            ran = {number for _, number in starts}
            left = [job for number, job in enumerate(jobs) if number not in ran]
            if len(left) == 1 and (left[0].get_status() == JobStatus.STARTED or taken(fleet, left[0])):
                return 40
            return len(ran)

        # A job that was running, or had just left the queue, stays as it is until RQ's maintenance lets it
        # fail, as without shapekit.
        starts = fleet.wait("killed", 40, found)
    assert len(starts) == distinct(starts) >= 39
    assert most_in_a_second(starts, witness) <= 11


def test_a_worker_that_forks_hands_the_slot_to_the_process_of_the_job(app, fleet):
    fleet.start(1, FORKING)
    for number in range(10):
        Queue("forks", connection=fleet.notes).enqueue(app.forked, number)
    starts = fleet.wait("forked", 10)
    # With a second slot for each, these would take twice as long.
    assert 1.7 <= span_of(starts) <= 2.5


def waiting(fleet, name, jobs):
    """The one of two jobs that waits in a worker for its slot; the other has left."""
    registry = Queue(name, connection=fleet.notes).scheduled_job_registry
    fleet.wait(jobs[0].func_name.split(".")[-1], 1)
    deadline = time.monotonic() + 20
    while len(found := [job for job in jobs if job in registry]) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (job,) = found
    return job


def test_a_worker_that_stops_while_a_job_waits_ends_and_leaves_the_job(app, fleet):
    jobs = [Queue("stops", connection=fleet.notes).enqueue(app.stopped, number) for number in range(2)]
    fleet.start(1, (*FORKING[:-1], "stops"))
    job = waiting(fleet, "stops", jobs)
    fleet.workers[-1].terminate()
    assert fleet.workers.pop().wait(20) == 0
    assert job in Queue("stops", connection=fleet.notes).scheduled_job_registry
    assert distinct(fleet.starts("stopped")) == 1


@pytest.mark.parametrize("drop", [lambda job: job.cancel(), lambda job: job.delete()])
def test_a_job_that_is_cancelled_while_it_waits_does_not_run_and_its_slot_is_given_back(app, fleet, drop):
    before = app.DROPPED.quotas()[0].used
    fleet.notes.delete("dropped")
    jobs = [queue(fleet).enqueue(app.dropped, number) for number in range(2)]
    job = waiting(fleet, "default", jobs)
    drop(job)
    (other,) = {0, 1} - {jobs.index(job)}
    deadline = time.monotonic() + 20
    while app.DROPPED.quotas()[0].used != before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [number for _, number in fleet.starts("dropped")] == [other]


def test_an_awaited_job_gets_back_what_its_errors_refund(app, fleet):
    assert ended([queue(fleet).enqueue(app.refunding, 0)]) == [JobStatus.FAILED]

    async def called():
        with pytest.raises(ConnectionError):
            await app.refunding(1)
        (quota,) = await app.REFUNDING.aquotas()
        await app.REFUNDING.aclose()
        return quota.used

    assert asyncio.run(called()) == 0
    assert distinct(fleet.wait("refunding", 2)) == 2


def test_a_store_that_workers_cannot_share_is_refused():
    with pytest.raises(ConfigError, match="is in the memory of each process"):
        shaped_job(rate="1/s")(print)


def test_a_function_that_is_called_waits_where_it_is_called(app):
    at = time.monotonic()
    for number in range(2):
        app.called(number)
    assert time.monotonic() - at >= 0.2
