"""What the stores' tests share: a path, and scripts in processes of their own."""

import subprocess
import sys

import pytest

from ..crew import PATIENCE_S


@pytest.fixture
def path(tmp_path):
    """Where a SQLiteStore may live."""
    return tmp_path / "limits.db"


@pytest.fixture
def script():
    """Starts Python scripts with arguments; those that still run are killed at the end."""
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
