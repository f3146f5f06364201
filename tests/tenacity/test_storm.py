"""Many workers hammer a server that fails half of all calls: no storm, in threads, tasks and processes."""

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from shapekit import Policy
from shapekit.testing import check_window

from ..http.server import PATIENCE_S, Reply, Server
from . import hammer

SERVER_LIMIT = "50/s"
"""A fifth more than what is shaped to: what arrives has been on its way for a while."""


@pytest.fixture
def server():
    failing = count(1)
    server = Server(lambda arrival: Reply(503 if next(failing) % 2 else 200)).start()
    yield server
    server.close()


def check(server, workers):
    """What the server saw was within the rate, and retries were within the budget."""
    check_window([at for at, _ in server.log], SERVER_LIMIT)
    calls = workers * hammer.CALLS
    retries = len(server.log) - calls
    failures = server.statuses.count(503)
    assert retries <= hammer.SHARE * calls + hammer.RESERVE
    # Half of so many fail: the budget was all used, but for what was earned while it was full, by calls
    # that left before the first had failed.
    assert failures >= calls / 2
    assert retries >= hammer.RESERVE


def test_twenty_threads(server):
    hammer.in_threads(Policy(hammer.RATE), server.url, 20)
    check(server, 20)


@pytest.mark.anyio
async def test_twenty_tasks(server):
    await hammer.in_tasks(Policy(hammer.RATE), server.url, 20)
    check(server, 20)


def test_two_processes(server, tmp_path):
    script, path = str(Path(hammer.__file__)), str(tmp_path / "limits.db")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([sys.executable, script, path, server.url, "4"], **pipes) for _ in range(2)]
    try:
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    check(server, 8)
