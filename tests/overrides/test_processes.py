"""Three processes whose calls wait, while an operator's command changes their rate."""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..cli.screen import shapekit
from ..redis_server import RedisServer

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
PROCESSES, CALLS = 3, 40
SCRIPT = [
    (1.0, ("set", "stripe", "20/s")),
    (1.5, ("set", "stripe", "2/s")),
    (3.0, ("unset", "stripe")),
    (0.5, ("set", "stripe", "50/s")),
]
"""How long after the last word the operator says what: the pace of the scenario itself."""


@pytest.fixture(params=["redis", "sqlite"])
def place(request, tmp_path):
    if request.param == "sqlite":
        yield str(tmp_path / "limits.db")
        return
    with RedisServer() as server:
        yield server.url


def most_in(departures, seconds):
    """The most departures in any window of so many seconds."""
    return max(sum(at <= other < at + seconds for other in departures) for at in departures)


@pytest.mark.long
def test_the_rate_follows_the_command(place):
    command = [sys.executable, "-m", "tests.overrides.worker", place, str(CALLS)]
    with ExitStack() as running:
        workers = []
        for _ in range(PROCESSES):
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            workers.append(running.enter_context(worker))
            running.callback(worker.kill)
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        asked, told = [], []
        for seconds, args in SCRIPT:
            time.sleep(seconds)
            asked.append(time.time())
            assert shapekit(*args, "--store", place).returncode == 0
            told.append(time.time())
        printed = " ".join(worker.communicate(timeout=PATIENCE_S)[0] for worker in workers)
    left = sorted(map(float, printed.split()))
    assert len(left) == PROCESSES * CALLS
    # What was set holds from some time between these on.
    (_, _, back, _), (faster, slower, _, _) = asked, told
    # No second has more than the highest rate in force and one, with what leaves in its last 10 ms.
    assert most_in([at for at in left if at < slower + 0.3], 0.99) <= 21
    # At the old rate, some five would have left since; at the new one, some twenty.
    assert sum(faster + 0.3 <= at < asked[1] + 0.3 for at in left) >= 5
    slow = [at for at in left if slower + 1 <= at < back + 0.3]
    assert most_in(slow, 0.99) <= 3
