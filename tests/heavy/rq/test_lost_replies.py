"""A connection is cut between a request and its reply, at each request that a worker sends for a job."""

from contextlib import closing, suppress

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry

from shapekit import Policy
from shapekit.integrations.rq import ShapedSimpleWorker, shaped_job
from tests.heavy.queues.cutting import CuttingProxy
from tests.redis_server import RedisServer

MOST_REQUESTS = 60


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(server):
    with closing(CuttingProxy(server.port)) as proxy:
        yield proxy


@pytest.fixture
def policy(server, request):
    with closing(Policy("10/s", quota="1000/day", name=request.node.name, store=server.url)) as policy:
        yield policy


@pytest.fixture
def ran(policy, monkeypatch):
    """The numbers of the jobs that have run."""
    ran = []
    function = shaped_job(policy=policy)(ran.append)
    monkeypatch.setattr(Job, "func", property(lambda job: function))
    return ran


def found(client, queue, job):
    """Where RQ finds a job."""
    lists = {"queued": queue.key, "taken": queue.intermediate_queue_key}
    places = [name for name, key in lists.items() if job.id.encode() in client.lrange(key, 0, -1)]
    kinds = FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
    registries = [queue.scheduled_job_registry, *(kind(queue=queue) for kind in kinds)]
    return places + [type(one).__name__ for one in registries if job.id in one.get_job_ids(cleanup=False)]


@pytest.mark.parametrize("tries", [1, 2])
@pytest.mark.parametrize("held_s", [0, 5])
def test_no_job_is_lost(server, proxy, policy, ran, tries, held_s):
    """Also if the client repeats the request. RQ itself lets a job fail that its worker could not begin."""
    client, retry = server.client(), Retry(NoBackoff(), tries - 1)
    with client, closing(redis.Redis(port=proxy.port, retry=retry)) as cut:
        queue = Queue(f"{tries} {held_s}", connection=client)
        for number in range(1, MOST_REQUESTS):
            if held_s:
                policy.shaper.hold(held_s)
            job = queue.enqueue("work", number)
            worker = ShapedSimpleWorker([Queue(queue.name, connection=cut)], connection=cut)
            client.lmove(queue.key, queue.intermediate_queue_key)
            taken = Job.fetch(job.id, connection=cut)
            used = policy.quotas()[0].used
            proxy.cut_after(number)
            with suppress(redis.ConnectionError):
                worker.execute_job(taken, worker.queues[0])
            places = found(client, queue, job)
            assert places, f"the job is nowhere after request {number}"
            assert policy.quotas()[0].used >= used + ran.count(number)
            if not proxy.spare():
                break
        else:
            pytest.fail("a job takes more requests")
