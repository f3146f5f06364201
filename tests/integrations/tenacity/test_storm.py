"""Many workers hammer a server that fails half of all calls: no storm, in threads, tasks and processes."""

import os
from bisect import bisect_left
from itertools import count
from pathlib import Path

import pytest

from shapekit import Policy

from ...adapters.http.server import PATIENCE_S, Reply, Server
from ...together import go, outputs_of, started
from ...witness import watched
from . import hammer

pytestmark = pytest.mark.long

RATE = 40
MOST = 50
"""Calls in a second. A fifth more than the shaped rate: requests have been on their way for a while."""
LONG_S = 0.25
"""Calls that are late by less than this do not bring so many together."""


@pytest.fixture
def server():
    failing = count(1)
    server = Server(lambda arrival: Reply(503 if next(failing) % 2 else 200)).start()
    yield server
    server.close()


def check(server, workers, stalls):
    """What the server saw was within the rate, and retries were within the budget.

    A second that begins with a call that a stall delayed may hold more: as many as come meanwhile.
    """
    instants = sorted(at for at, _ in server.log)
    for number, at in enumerate(instants):
        in_a_second = bisect_left(instants, at + 1) - number
        assert in_a_second <= MOST + RATE * stalls.within(at - LONG_S, at)
    calls = workers * hammer.CALLS
    retries = len(server.log) - calls
    failures = server.statuses.count(503)
    assert retries <= hammer.SHARE * calls + hammer.RESERVE
    # Half of all calls fail: the budget was all used, except for what calls earned while it was full, before
    # the first had failed.
    assert failures >= calls / 2
    assert retries >= hammer.RESERVE


def test_twenty_threads(server):
    with watched(os.getpid()) as witness:
        hammer.in_threads(Policy(f"{RATE}/s"), server.url, 20)
    check(server, 20, witness.stalls)


@pytest.mark.anyio
async def test_twenty_tasks(server):
    with watched(os.getpid()) as witness:
        await hammer.in_tasks(Policy(f"{RATE}/s"), server.url, 20)
    check(server, 20, witness.stalls)


def test_two_processes(server, tmp_path):
    command = (Path(hammer.__file__), tmp_path / "limits.db", server.url, f"{RATE}/s", 4)
    with started([command] * 2) as workers, watched(os.getpid()) as witness:
        go(workers)
        outputs_of(workers, PATIENCE_S)
    check(server, 8, witness.stalls)
