"""Four processes of twenty callers: a strict server never refuses them, and when it does, all of them wait.

At a rate of 49/s, fifty-one calls take a second and 20 ms: a call that is delayed for that long on the way to
the server can be refused. So a witness watches: a refusal is excused only where a stall just before was
longer than the arrival was early, and only as many as the stalls of the run make late. Any other bound gives
way by as much as was seen.
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from ...redis_server import RedisServer
from ...together import PIPES, go, outputs_of, started
from ...witness import NEAR_S, watched
from .server import PATIENCE_S

pytestmark = pytest.mark.long

WORKERS = 4
CALLERS = 20
CALLS = 100
MOST = 50
PER_S = 49
RATE = f"{PER_S}/s"
HOLD_S = 2.0
NOTICE_S = 0.05
STALL_S = 0.01
HERE = Path(__file__).parent


@pytest.fixture(params=["sqlite", "redis"])
def place(request, tmp_path):
    """The URL or path of the workers' store."""
    if request.param == "sqlite":
        yield str(tmp_path / "limits.db")
        return
    with RedisServer() as server:
        yield server.url


@contextmanager
def strict_server():
    """The server, as a process, and its URL."""
    command = [sys.executable, str(HERE / "strict.py"), str(CALLS), str(HOLD_S)]
    with subprocess.Popen(command, **PIPES) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def run(client, place):
    """The arrivals of the crowd at the server, and the stalls meanwhile."""
    with strict_server() as (server, url):
        callers = (HERE / "callers.py", client, place, url, RATE, CALLERS)
        with started([callers] * WORKERS) as workers:
            with watched(*[process.pid for process in (server, *workers)]) as witness:
                go(workers)
                log = json.loads(server.stdout.readline())
            outputs_of(workers, PATIENCE_S)
    return log, witness.stalls


@pytest.mark.parametrize("client", ["httpx", "aiohttp", "requests"])
def test_a_strict_server_never_refuses_and_all_obey_when_it_changes_its_mind(client, place):
    log, stalls = run(client, place)
    instants = [at for at, _ in log]
    refused = [number for number, (_, status) in enumerate(log[:CALLS]) if status == 429]
    for number in refused:
        # This call came too early after the one that took the first place of the second: that one was late.
        first = [at for at, status in log[:number] if status == 200][-MOST]
        early = first + 1 - instants[number]
        assert stalls.within(first - NEAR_S, first) > STALL_S + early, f"arrival {number} was refused"
    assert len(refused) <= PER_S * stalls.within(instants[0], instants[CALLS - 1])
    # A late call takes the next slot, and the missed slots are not made up.
    took = instants[CALLS - 1] - instants[0] - stalls.within(instants[0], instants[CALLS - 1])
    assert refused or took <= (CALLS - 1) / (0.97 * PER_S)
    # Requests that had left before the refusal was known are refused, too, and may then hold for a little
    # longer.
    refused_at = next(at for at, status in log[CALLS:] if status == 429)
    notice = NOTICE_S + stalls.around(refused_at)
    last = max(at for at, status in log if status == 429 and at < refused_at + HOLD_S / 2)
    back = next(at for at in instants if at > refused_at + notice)
    assert last <= refused_at + notice
    over = last + HOLD_S
    assert refused_at + HOLD_S - NOTICE_S <= back
    assert stalls.undone(over, back) <= over + NOTICE_S
