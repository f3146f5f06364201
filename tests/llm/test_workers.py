"""Four processes, one Redis, one model on loopback that keeps its own books: both agree to the token.

No check depends on time: the first test spends a budget that does not come back, the second judges the calls
by the instants that Redis promised them.
"""

import json
from pathlib import Path

import pytest

from shapekit import LLMBudget, RedisStore

from ..loopback import LoopbackServer
from ..redis_server import RedisServer
from ..together import run_together

pytestmark = pytest.mark.long

WORKERS, THREADS = 4, 4
PATIENCE_S = 60
ASKERS = Path(__file__).with_name("askers.py")


class Model(LoopbackServer):
    """Answers in lines. Sometimes it refuses, fails, or breaks off in the middle."""

    path = "/"

    def __init__(self, fates):
        super().__init__()
        self.fates = fates
        self.requests = self.charged = self.used = 0

    def answer(self, headers, body):
        most = json.loads(body)["max_tokens"]
        with self.lock:
            self.requests += 1
            number = self.requests
            fate = self.fates[number % len(self.fates)]
            used = 1 + number * 37 % most  # a usage of zeros counts as none
            self.charged += {"answered": used, "refused": 0}.get(fate, most)
            self.used += used if fate == "answered" else 0
        if fate in ("refused", "failed"):
            return (400 if fate == "refused" else 500), {}, b""
        parts = [{"text": "a"}, {"text": "b"}]
        if fate == "answered":
            parts.append({"usage": {"input_tokens": 0, "output_tokens": used}})
        lines = b"".join(json.dumps(line).encode() + b"\n" for line in parts)
        return 200, {}, lines + (b'{"text": ' if fate == "broken" else b"")


def run_workers(redis, server, budget, calls):
    """Lets four processes call; returns what they print of their calls."""
    command = (ASKERS, redis.url, server.url, json.dumps(budget), THREADS, calls)
    return [call for line in run_together([command] * WORKERS, PATIENCE_S) for call in json.loads(line)]


@pytest.fixture
def redis():
    with RedisServer() as server:
        yield server


def test_the_books_of_all_workers_are_those_of_the_server(redis):
    budget = {"tokens": "1/day", "capacity": 12_000, "tokens_per_day": 100_000, "max_wait": 0}
    with Model(["answered", "answered", "refused", "answered", "failed", "broken"]) as server:
        run_workers(redis, server, budget, calls=24)
    store = RedisStore.from_url(redis.url)
    shared = LLMBudget(**budget, store=store, name="model")
    (day,) = shared.quotas()
    assert server.requests > 100
    assert day.used == server.charged
    assert server.used < server.charged <= 12_000
    store.close()


def test_the_server_never_sees_more_than_the_bucket_and_its_rate(redis):
    rate, capacity = 20_000, 2_000
    with Model(["answered"]) as server:
        budget = {"tokens": f"{rate}/s", "capacity": capacity, "requests": "2000/s"}
        calls = sorted(run_workers(redis, server, budget, calls=18))
    assert len(calls) == WORKERS * THREADS * 12
    assert server.requests == WORKERS * THREADS * 18
    for first, (start_us, _) in enumerate(calls):
        used = 0
        for departs_at_us, tokens in calls[first:]:
            used += tokens
            # A token is 50 µs, and instants are whole microseconds.
            assert used <= capacity + rate * (departs_at_us - start_us + 1) / 1_000_000
