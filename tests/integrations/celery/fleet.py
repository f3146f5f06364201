"""Real Celery workers for tests: started on demand, and always stopped at the end."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import redis

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
"""Longer than any event takes, even on a busy machine: only a failing test waits this long."""
IS_MEASURED = "COVERAGE_PROCESS_CONFIG" in os.environ
"""Whether tests have to leave workers the time to write their coverage data."""
LAST_WORDS_S = 5.0
QUICK = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
"""Options that switch off what takes time to start and what no test is about."""


def eventually(ask, patience_s=PATIENCE_S):
    """Repeat the question until the answer is true, and return the answer."""
    deadline = time.monotonic() + patience_s
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"still {answer!r} after {patience_s} s"
        time.sleep(0.01)
    return answer


class Worker:
    """One `celery worker` process and the processes of its pool."""

    def __init__(self, url, module, options, env):
        self._folder = tempfile.TemporaryDirectory(prefix="worker-")
        self._log = Path(self._folder.name, "log")
        self._url = url
        self._ready = f"ready:{uuid.uuid4()}"
        command = [
            sys.executable,
            "-m",
            "tests.integrations.celery.launch",
            module,
            url,
            self._ready,
            *QUICK,
            *options,
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self):
        """The log that the worker has written."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def is_alive(self):
        return self.process.poll() is None

    def wait_ready(self):
        """Wait until the worker consumes."""
        deadline = time.monotonic() + PATIENCE_S
        with redis.Redis.from_url(self._url) as client:
            while client.blpop([self._ready], timeout=1) is None:
                assert self.is_alive, self.log
                assert time.monotonic() < deadline, self.log
        return self

    def stop(self):
        """Send SIGTERM: the worker finishes its running tasks and ends."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)

    def kill(self):
        """Send SIGKILL to the worker and its pool, and wait until they are gone."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE_S)

    def close(self):
        if IS_MEASURED:
            with suppress(subprocess.TimeoutExpired):
                self.process.terminate()
                self.process.wait(LAST_WORDS_S)
        self.kill()
        self._folder.cleanup()


class Fleet:
    """Workers on one broker."""

    def __init__(self, url):
        self.url = url
        self.workers = []

    def launch(
        self, module="tests.integrations.celery.apps", *, pool="solo", concurrency=1, options=(), env=None
    ):
        """Launch a worker of the app that the module's `make_app(url)` makes; returns before it is ready."""
        name = f"w{len(self.workers) + 1}@%h"
        arguments = ("-P", pool, "-c", str(concurrency), "-n", name, *options)
        worker = Worker(self.url, module, arguments, env or {})
        self.workers.append(worker)
        return worker

    def start(self, module="tests.integrations.celery.apps", **launched):
        """Launch a worker, and wait until it consumes."""
        return self.launch(module, **launched).wait_ready()

    def close(self):
        for worker in self.workers:
            worker.close()
