"""Interleaved rounds: every subject in each round, so that a noisy minute falls on all of them.

Time is what this thread spent on the processor: other programs on the machine do not count, and neither
do the threads that some of the others keep in the background.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from .library import words
from .progress import say
from .subjects import Subject
from .tables import Line

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
"""The loop costs a few ns, the same for every subject; no wrapper stands between it and the call."""

NS = "a call"


def measured(subjects: list[Subject], rounds: int, calls: int) -> list[Line]:
    """ns a call of each subject in each round, made anew; every second round runs backwards."""
    times: dict[Subject, list[float]] = {subject: [] for subject in subjects}
    failed: dict[Subject, str] = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            if subject in failed:
                continue
            try:
                times[subject].append(one_round(subject, calls))
            except Exception as error:
                if subject.is_ours:
                    raise
                failed[subject] = words(error)
            gc.collect()
    return [
        Line(subject.group, subject.name, failed=failed[subject])
        if subject in failed
        else Line(subject.group, subject.name, {NS: taken})
        for subject, taken in times.items()
    ]


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
