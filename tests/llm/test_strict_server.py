"""Three processes, one budget on Redis, and a server that refuses calls beyond its limits in any window."""

import json
import time
from collections import deque
from pathlib import Path

import pytest

from ..loopback import LoopbackServer
from ..redis_server import PATIENCE_S, RedisServer
from ..together import run_together

pytestmark = pytest.mark.long

WORKERS, THREADS = 3, 6
ASKER = Path(__file__).with_name("strict_asker.py")
PERIOD_S, SECONDS = 6.0, 20.0


class Window:
    """A number of units in any window of this length."""

    def __init__(self, limit):
        self.limit = limit
        self.calls = deque()
        self.units = 0

    def has_room(self, now, units):
        while self.calls and self.calls[0][0] <= now - PERIOD_S:
            self.units -= self.calls.popleft()[1]
        return self.units + units <= self.limit

    def take(self, now, units):
        self.calls.append((now, units))
        self.units += units


class Model(LoopbackServer):
    """Answers as long as both windows have room."""

    path = "/"

    def __init__(self, tokens, requests):
        super().__init__()
        self.tokens, self.requests = Window(tokens), Window(requests)
        self.refused, self.answered = 0, []

    def answer(self, headers, body):
        used = int(body)
        with self.lock:
            now = time.monotonic()
            is_granted = self.tokens.has_room(now, used) & self.requests.has_room(now, 1)
            if is_granted:
                self.tokens.take(now, used)
                self.requests.take(now, 1)
                self.answered.append((now, used))
            else:
                self.refused += 1
        if is_granted:
            time.sleep(0.1)  # the model thinks
        return (200 if is_granted else 429), {}, b""


def run_workers(redis, server, budget):
    """Lets three processes call as often as they may."""
    command = (ASKER, redis.url, server.url, json.dumps(budget), THREADS, SECONDS)
    run_together([command] * WORKERS, SECONDS + PATIENCE_S)


@pytest.mark.parametrize(
    ("tokens", "requests"), [(18_000, 10_000), (1_000_000, 120)], ids=["by tokens", "by requests"]
)
def test_a_server_that_counts_every_window_refuses_nothing(tokens, requests):
    budget = {"tokens": f"{tokens} per 6 s", "requests": f"{requests} per 6 s"}
    with RedisServer() as redis, Model(tokens, requests) as server:
        run_workers(redis, server, budget)
    assert server.refused == 0
    began = server.answered[0][0]
    # Of whole periods, those of the start-up included.
    usages = [used for at, used in server.answered if at < began + 3 * PERIOD_S]
    share = max(sum(usages) / tokens, len(usages) / requests) / 3
    print(f"share of the limit: {share:.3f}")
    assert share >= 0.8
