"""Processes of tests that begin together: each prints "ready", and goes on when it has read a line."""

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@contextmanager
def started(commands):
    """One process for each command of Python; all are ready, and none outlives the block."""
    with ExitStack() as running:
        processes = []
        for command in commands:
            process = subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, **PIPES)
            processes.append(running.enter_context(process))
            running.callback(process.kill)
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.args
        yield processes


def go(processes, line="go"):
    """Let them go on."""
    for process in processes:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def outputs_of(processes, patience_s):
    """The output of each when it ends, which it does without an error."""
    outputs = [process.communicate(timeout=patience_s)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


def run_together(commands, patience_s):
    """The output of each, of processes that begin together."""
    with started(commands) as processes:
        go(processes)
        return outputs_of(processes, patience_s)
