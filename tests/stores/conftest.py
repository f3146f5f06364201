"""What the stores' tests share: a path, scripts in processes of their own, and a crew of threads."""

import subprocess
import sys
import threading

import pytest

PATIENCE_S = 30.0
"""Longer than any event takes: reached only where a test fails."""


class Crew:
    """Threads; none may hang, and what one of them raises is kept."""

    def __init__(self):
        self._threads = []
        self.raised = []

    def start(self, job, *args):
        def work():
            try:
                job(*args)
            except Exception as error:
                self.raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self):
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread hangs"


@pytest.fixture
def crew():
    crew = Crew()
    yield crew
    crew.join()


@pytest.fixture
def path(tmp_path):
    """Where a SQLiteStore may live."""
    return tmp_path / "limits.db"


@pytest.fixture
def script():
    """Starts Python scripts that are told their arguments; those that still run are killed at the end."""
    running = []

    def start(source, *args):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", source, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def run(script):
    """Runs a Python script to its end; the lines that it printed."""

    def run(source, *args):
        process = script(source, *args)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0, "")
        return out.splitlines()

    return run
