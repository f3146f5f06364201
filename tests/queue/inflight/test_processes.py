"""Several processes on one store, for real: never more in flight than the permits, and none lost for ever."""

import subprocess
import sys
from pathlib import Path

import pytest

from shapekit import Concurrency, Policy
from shapekit.algorithms.queue.wire import LOOK
from shapekit.rate import SECOND_US
from shapekit.stores.redis import RedisStore
from shapekit.stores.sqlite import SQLiteStore

from ...redis_server import shared_server
from .bodies import Bodies

pytestmark = pytest.mark.long

PERMITS = 5
WORKER = Path(__file__).with_name("worker.py")
PATIENCE_S = 60.0


@pytest.fixture(params=["redis", "file"])
def where(request, tmp_path):
    if request.param == "file":
        return str(tmp_path / "limits.db")
    server = shared_server()
    server.client().delete("shapekit:{api.permits:default}", "shapekit:{api:default}")
    return server.url


@pytest.fixture
def store(where):
    store = RedisStore.from_url(where) if where.startswith("redis:") else SQLiteStore(where)
    yield store
    store.close()


@pytest.fixture
def workers(where):
    """Starts processes, and ends those that are left."""
    started = []

    def start(server, lease, how, many):
        command = [sys.executable, str(WORKER), where, server.url, str(PERMITS), lease, how, str(many)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **pipes)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdin.close()
        process.stdout.close()


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_four_processes_share_the_permits_and_use_them_all(workers, where):
    each = 15
    server = Bodies(PERMITS, 4 * each)
    crews = [workers(server, "60s", "crowd", each) for _ in range(4)]
    for crew in crews:
        go(crew)
    assert [crew.stdout.readline() for crew in crews] == ["done\n"] * 4
    server.close()
    assert (server.most, server.arrived) == (PERMITS, 4 * each)


def test_the_permits_of_a_killed_process_come_back_when_its_lease_is_over_and_not_before(workers, store):
    server = Bodies()
    limit = Concurrency(PERMITS, "2s")
    look = store.bind("api.permits", limit, LOOK)
    victim = workers(server, "2s", "hold", 3)
    go(victim)
    assert victim.stdout.readline() == "holds 3\n"
    policy = Policy(concurrency=limit, name="api", store=store)
    two = [policy.admit(max_wait=0).__enter__() for _ in range(2)]
    assert all(admission.holds_permit for admission in two)
    victim.kill()
    victim.wait(PATIENCE_S)
    (_, owners, _, _), killed_at_us, _ = look("default")
    ends_us = {owner: until for owner, until, _ in owners if owner != policy.permits.registry.owner}
    assert len(ends_us) == 1
    (end_us,) = ends_us.values()
    assert end_us <= killed_at_us + 2 * SECOND_US
    with policy.admit(timeout=PATIENCE_S):
        _, permitted_at_us, _ = look("default")
        assert permitted_at_us >= end_us
        others = [policy.admit(timeout=PATIENCE_S).__enter__() for _ in range(2)]
        assert policy.permits.limit.standing(*look("default")[:2]) == (PERMITS, 0)
        for admission in (*two, *others):
            admission.leave()
    assert policy.permits.limit.standing(*look("default")[:2]) == (0, 0)
    server.close()
