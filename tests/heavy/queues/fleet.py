"""Real workers on a real Redis, and records of which tasks started when."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from contextlib import contextmanager
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.redis_server import RedisServer
from tests.witness import watched

BIN = Path(sys.executable).parent
LYING = 50
"""How many tasks lie in a queue at most."""
PATIENCE_S = 40.0
ROOT = Path(__file__).parents[3]


@contextmanager
def running(folder, module, command, workers=2):
    """A fleet of workers on a Redis of their own, and the module of their tasks for this process, too."""
    with (
        RedisServer() as server,
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory() as logs,
    ):
        for name in ("QUEUES_REDIS", "RQ_REDIS_URL"):
            patch.setitem(os.environ, name, server.url)
        patch.syspath_prepend(str(folder))
        fleet = Fleet(server, Path(logs) / "log", folder, command)
        try:
            fleet.app = importlib.import_module(module)
            fleet.start(workers)
            yield fleet
        finally:
            sys.modules.pop(module, None)
            fleet.close()


class Fleet:
    """Workers of one queue; `command` starts one."""

    app = None
    """The module of the tasks."""

    def __init__(self, server, log, folder, command):
        self.server = server
        self.notes = server.client()
        self.workers = []
        self._log = log
        self._folder = folder
        self._command = command

    def start(self, number, command=None):
        """Start workers, each the leader of a group of processes."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (self._folder, ROOT)))}
        for _ in range(number):
            with self._log.open("ab") as log:
                worker = subprocess.Popen(
                    command or self._command,
                    env=environment,
                    cwd=self._folder,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.workers.append(worker)

    def wait_for_all(self, send):
        """Wait until each worker has run one of the tasks that `send` sends.

        Several tasks are in the queue at a time: of workers that poll in step, the first would take each task
        that comes alone.
        """
        deadline, sent = time.monotonic() + PATIENCE_S, 0
        while self.notes.scard("workers") < len(self.workers):
            assert time.monotonic() < deadline, self._log.read_text()[-5000:]
            if sent - self.notes.llen("free") < LYING:
                send()
                sent += 1
            time.sleep(0.01)
        self.wait("free", sent)
        self.notes.delete("free")

    def kill(self, worker):
        """SIGKILL all processes of a worker."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        self.workers.remove(worker)

    def close(self):
        for worker in tuple(self.workers):
            self.kill(worker)
        self.notes.close()

    def watched(self):
        """A witness of stalls of the workers and their server."""
        return watched(self.server.pid, *[worker.pid for worker in self.workers])

    def starts(self, name):
        """When the tasks of a name started, in order, and their numbers."""
        noted = [note.decode().split() for note in self.notes.lrange(name, 0, -1)]
        return sorted((float(at), int(number)) for at, number in noted)

    def wait(self, name, number, is_enough=len):
        """Wait for so many starts."""
        deadline = time.monotonic() + PATIENCE_S
        while is_enough(starts := self.starts(name)) < number:
            if time.monotonic() > deadline:
                print(self._log.read_text()[-5000:])
                raise TimeoutError(f"{name}: {len(starts)} of {number} tasks have started")
            time.sleep(0.05)
        return starts


def distinct(starts):
    """How many tasks have started at least once."""
    return len({number for _, number in starts})


def most_in(starts, seconds):
    """The most starts in any span of so many seconds."""
    instants = [at for at, _ in starts]
    return max(bisect_left(instants, at + seconds) - place for place, at in enumerate(instants))


def most_in_a_second(starts, witness):
    """The most starts in any second, without its last 10 ms, which the law of departures leaves out, and
    without the longest stall: a start may be as late as that.
    """
    return most_in(starts, 0.99 - witness.stalls.longest(0, inf))


def span_of(starts, witness=None):
    """Seconds from the first start to the last, without those of stalls."""
    stalled_s = 0.0 if witness is None else witness.stalls.within(0, inf)
    return starts[-1][0] - starts[0][0] - stalled_s
