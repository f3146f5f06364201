"""Three processes that call a model at once, and the counts of its server.

A worker is a script: `python worker.py KIND URL STORE SECONDS`. It prints "ready", waits for a line, and
calls without a pause, in several threads, with questions of `sizes`, until that long after its first answer:
loading a framework takes seconds before that. In the end it prints how many calls were answered, how many
raised an error, and when the first error came.
"""

import itertools
import json
import sys
import threading
import time
from typing import NamedTuple

import anyio

from shapekit import LLMBudget

from ..redis_server import RedisServer
from ..together import run_together
from .provider import PER_WINDOW, WINDOW_S

WORKERS, THREADS = 3, 8
PATIENCE_S = 90
SIZES = (150, 450, 750)
"""The most tokens that answers may have, one after the other."""
QUESTION = "why? " * 12


class Seen(NamedTuple):
    answered: int
    failed: int
    failed_at: float | None
    """When the first error was raised, on the clock of the server."""


def run_fleet(script, kind, provider, seconds):
    with RedisServer() as redis:
        commands = [("-m", script, kind, provider.url, redis.url, seconds)] * WORKERS
        results = [json.loads(line) for line in run_together(commands, PATIENCE_S)]
    answered, failed, first_errors = zip(*results, strict=True)
    return Seen(sum(answered), sum(failed), min((at for at in first_errors if at is not None), default=None))


def budget(store):
    """The server's limits. Its worst window has 8 s of the rate and the capacity: 97.1 % of the limit.

    No call is refused here. Other processes may overtake the first call of a line for a second, and a hold
    comes on top: in virtual time, too, calls wait up to 5.3 s after a hold of 2 s.
    """
    limits = {"requests": "28/s", "tokens": "9600/s", "capacity": 850, "max_wait": "30s"}
    return LLMBudget(**limits, count=lambda text: len(text) // 4, name="model", store=store)


def work(ask, seconds, refused=()):
    """Calls `ask(question, most)` without a pause."""
    answered, failed, sizes, lock = [], [], itertools.cycle(SIZES), threading.Lock()
    print("ready", flush=True)
    sys.stdin.readline()

    def loop():
        while not answered or time.monotonic() < answered[0] + seconds:
            try:
                ask(QUESTION, next(sizes))
            except refused:
                ended = failed
            else:
                ended = answered
            with lock:
                ended.append(time.monotonic())

    threads = [threading.Thread(target=loop) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([len(answered), len(failed), failed[0] if failed else None]), flush=True)


async def run_on_a_clock(asks, clock, seconds):
    """The calls of a fleet of tasks in virtual time: `(when, tokens)`; each of `asks` is a worker's."""
    left, sizes = [], itertools.cycle(SIZES)

    async def loop(ask):
        while clock.now() < seconds:
            most = next(sizes)
            at = await ask(QUESTION, most)
            left.append((at if isinstance(at, float) else clock.now(), len(QUESTION) // 3 + most))

    async with anyio.create_task_group() as tasks:
        for ask in asks:
            for _ in range(THREADS):
                tasks.start_soon(loop, ask)
    return left


def used(left, seconds):
    """The share of the limit that was used, and what the fullest window had of it."""
    left = [(at, tokens) for at, tokens in left if at < seconds]
    fullest = max(sum(tokens for at, tokens in left if begin <= at < begin + WINDOW_S) for begin, _ in left)
    return sum(tokens for _, tokens in left) / (PER_WINDOW * seconds / WINDOW_S), fullest / PER_WINDOW
