"""Interleaved rounds: every subject in each round, so that a noisy minute falls on all of them.

Time is what this thread spent on the processor: other programs on the machine do not count, and neither
do the threads that some of the others keep in the background.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from statistics import median
from typing import Any, NamedTuple

from subjects import Subject

LOOP = """
from itertools import repeat
from time import thread_time_ns
{kind} timed(warm_up, calls):
    for _ in repeat(None, warm_up):
        {call}
    start = thread_time_ns()
    for _ in repeat(None, calls):
        answer = {call}
    return thread_time_ns() - start, answer
"""
"""The loop costs a few ns, the same for everybody; no wrapper stands between it and the call."""

IMPORT = "import time; a = time.thread_time_ns(); import {module}; print(time.thread_time_ns() - a)"


class Row(NamedTuple):
    """What a subject took, in ns a call."""

    group: str
    name: str
    rounds: list[float]

    @property
    def ns(self) -> float:
        """The median of the rounds."""
        return median(self.rounds)


def measured(subjects: list[Subject], rounds: int, calls: int) -> list[Row]:
    """Each subject in each round, made anew; every second round runs backwards."""
    times: dict[tuple[str, str], list[float]] = {(subject.group, subject.name): [] for subject in subjects}
    for number in range(rounds):
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            times[subject.group, subject.name].append(one_round(subject, calls))
            gc.collect()
    return [Row(*name, taken) for name, taken in times.items()]


def one_round(subject: Subject, calls: int) -> float:
    """ns a call; AssertionError if the last call was not admitted."""
    is_async = subject.call.startswith("await ")
    with subject.opened() as names:
        scope: dict[str, Any] = dict(names)
        exec(LOOP.format(kind="async def" if is_async else "def", call=subject.call), scope)
        timed = scope["timed"](subject.warm_up, calls)
        taken, answer = asyncio.run(timed) if is_async else timed
    if not subject.admitted(answer):
        raise AssertionError(f"{subject.group} {subject.name} did not admit its last call: {answer}")
    return taken / calls


def import_times(module: str, rounds: int) -> list[float]:
    """ms that a fresh interpreter takes to import the module, its bytecode cached."""
    command = [sys.executable, "-c", IMPORT.format(module=module)]
    # The first run writes the cache, wherever the environment would forbid it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        for _ in range(rounds + 1)
    ]
    return [int(done.stdout) / 1e6 for done in run[1:]]
