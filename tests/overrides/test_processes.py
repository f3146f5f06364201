"""Processes with waiting calls, while an operator's command changes their rate: on Redis, and on SQLite."""

import itertools
import time
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from ..cli.screen import shapekit
from ..redis_server import RedisServer
from ..together import go, outputs_of, started
from ..witness import watched

PATIENCE_S = 60.0
PROCESSES = 3
MANY = 90
LATE_S = 0.3
"""From so long after a command on all leave by what it has set."""

OVERTAKEN_S = 0.2
LONGEST_SLOT_S = 0.5
MISSED = 7 / 3
"""A call that is kept from running for more than three quarters of its slot gets the next one: by so many
times what has kept it another may leave before it, whatever the rate.
"""

pytestmark = pytest.mark.long


@pytest.fixture(params=["redis", "sqlite"])
def place(request, tmp_path):
    if request.param == "sqlite":
        yield str(tmp_path / "limits.db")
        return
    with RedisServer() as server:
        yield server.url


class Left(NamedTuple):
    """A call that has left: its number in the line, and when."""

    number: int
    at: float


class Fleet:
    """Processes with calls that wait for a policy; a command takes effect at some time while it runs."""

    def __init__(self, place, running):
        self.place, self.running, self.workers = place, running, []

    def start(self, rate, calls):
        command = ("-m", "tests.overrides.worker", self.place, rate, calls)
        [worker] = self.running.enter_context(started([command]))
        self.workers.append(worker)
        return worker

    def run_command(self, *command):
        """Run a command; returns when it began, and when it was done."""
        began = time.time()
        assert shapekit(*command, "--store", self.place).returncode == 0
        return began, time.time()

    def left(self):
        """The calls that have left, in order."""
        departures = []
        for output in outputs_of(self.workers, PATIENCE_S):
            for line in output.splitlines():
                number, at = line.split()
                departures.append(Left(int(number), float(at)))
        return sorted(departures, key=lambda one: one.at)


@pytest.fixture
def fleet(place):
    with ExitStack() as running:
        yield Fleet(place, running)


def most_in(departures, seconds):
    """The most departures in any window of so many seconds."""
    return max(sum(at <= other < at + seconds for other in departures) for at in departures)


def between(left, begin, end):
    return [one.at for one in left if begin <= one.at < end]


def pace(departures):
    """The rate at which they leave, by the median of their intervals: a machine that stops for a while makes
    one of them long and the next ones short."""
    intervals = sorted(after - before for before, after in itertools.pairwise(departures))
    return 1 / (intervals[len(intervals) // 2])


def test_the_rate_follows_the_command(fleet):
    # More than leave before the last command, also where a busy machine takes seconds for each.
    workers = [fleet.start("5/s", MANY) for _ in range(PROCESSES)]
    go(workers)
    time.sleep(1.0)
    with watched(*[worker.pid for worker in workers]) as witness:
        _, fast = fleet.run_command("set", "stripe", "20/s")
        time.sleep(2.5)
        slow_begun, slow = fleet.run_command("set", "stripe", "2/s")
        time.sleep(4.0)
        back_begun, back = fleet.run_command("unset", "stripe")
        time.sleep(3.0)
        end, _ = fleet.run_command("set", "stripe", "50/s")
        left = fleet.left()
    assert len(left) == PROCESSES * MANY
    at_20 = between(left, fast + LATE_S, slow_begun + LATE_S)
    assert pace(at_20) == pytest.approx(20, rel=0.05)
    # No second has more than the highest rate in force and one, with what leaves in its last 10 ms.
    assert most_in(between(left, 0, slow + LATE_S), 0.99) <= 21
    at_2 = between(left, slow + 1, back_begun + LATE_S)
    assert most_in(at_2, 0.99) <= 3
    assert pace(at_2) == pytest.approx(2, rel=0.05)
    at_5 = between(left, back + LATE_S + 0.5, end + LATE_S)
    assert pace(at_5) == pytest.approx(5, rel=0.05)
    assert most_in(at_5, 0.99) <= 6
    # In the order of the line, but for a thread that a busy machine wakes late.
    monotonic_s = time.monotonic() - time.time()
    for before, after in itertools.pairwise(sorted(left)):
        since, until = after.at - LONGEST_SLOT_S + monotonic_s, before.at + monotonic_s
        kept_s = witness.stalls.within(since, until)
        assert before.at - after.at < OVERTAKEN_S + MISSED * kept_s, (before, after, kept_s)


def test_a_rolling_deploy_does_not_undo_what_is_set(fleet):
    """Processes of 10/s go, and those of 20/s come, one after the other: 15/s throughout."""
    old = [fleet.start("10/s", 15) for _ in range(PROCESSES)]
    fleet.run_command("set", "stripe", "15/s")
    began = time.time()
    go(old)
    for _ in range(PROCESSES):
        go([fleet.start("20/s", 15)])
    left = [one.at for one in fleet.left()]
    assert len(left) == 2 * PROCESSES * 15
    assert pace(left) == pytest.approx(15, rel=0.05)
    assert most_in(left, 0.99) <= 16
    assert left[-1] - began >= (len(left) - 1) / 15
