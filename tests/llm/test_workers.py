"""Four processes, one Redis, one model on loopback that keeps its own books: both agree to the token.

Nothing of it is timed: the first test spends a budget that does not come back, the second judges the calls
by the instants that Redis promised them.
"""

import json
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shapekit import LLMBudget, RedisStore

from ..redis_server import PATIENCE_S, RedisServer

pytestmark = pytest.mark.long

WORKERS, THREADS = 4, 4
ASKERS = Path(__file__).with_name("askers.py")


class Model(BaseHTTPRequestHandler):
    """Answers in lines. Every now and then it refuses, fails, or breaks off in the middle."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        most = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        with self.server.lock:
            self.server.asked += 1
            number = self.server.asked
            fate = self.server.fates[number % len(self.server.fates)]
            used = number * 37 % (most + 1)
            self.server.charged += {"answered": used, "refused": 0}.get(fate, most)
            self.server.used += used if fate == "answered" else 0
        self.close_connection = True
        if fate in ("refused", "failed"):
            self.send_response(400 if fate == "refused" else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        answer = [{"text": "a"}, {"text": "b"}]
        if fate == "answered":
            answer.append({"usage": {"input_tokens": 0, "output_tokens": used}})
        body = b"".join(json.dumps(line).encode() + b"\n" for line in answer)
        if fate == "broken":
            body += b'{"text": '
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # all callers may connect at once


@contextmanager
def model(fates):
    with Server(("127.0.0.1", 0), Model) as server:
        server.daemon_threads = True
        server.lock = threading.Lock()
        server.fates, server.asked, server.charged, server.used = fates, 0, 0, 0
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(PATIENCE_S)


def asked(redis, server, budget, calls):
    """Lets four processes ask; what they tell of their calls."""
    url = f"http://127.0.0.1:{server.server_port}/"
    said = json.dumps(budget)
    command = [sys.executable, str(ASKERS), redis.url, url, said, str(THREADS), str(calls)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as scripts:
        workers = [scripts.enter_context(subprocess.Popen(command, **pipes)) for _ in range(WORKERS)]
        for worker in workers:
            scripts.callback(worker.kill)
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        told = [call for worker in workers for call in json.loads(worker.stdout.readline())]
        assert [worker.wait(PATIENCE_S) for worker in workers] == [0] * WORKERS
    return told


@pytest.fixture
def redis():
    with RedisServer() as server:
        yield server


def test_the_books_of_all_workers_are_those_of_the_server(redis):
    budget = {"tokens": "1/day", "capacity": 12_000, "tokens_per_day": 100_000, "max_wait": 0}
    with model(["answered", "answered", "refused", "answered", "failed", "broken"]) as server:
        asked(redis, server, budget, calls=24)
    store = RedisStore.from_url(redis.url)
    shared = LLMBudget(**budget, store=store, name="model")
    (day,) = shared.quotas()
    assert server.asked > 100
    assert day.used == server.charged
    assert server.used < server.charged <= 12_000
    store.close()


def test_the_server_never_sees_more_than_the_bucket_and_its_rate(redis):
    rate, capacity = 20_000, 2_000
    with model(["answered"]) as server:
        budget = {"tokens": f"{rate}/s", "capacity": capacity, "requests": "2000/s"}
        told = sorted(asked(redis, server, budget, calls=18))
    assert len(told) == WORKERS * THREADS * 12
    assert server.asked == WORKERS * THREADS * 18
    for first, (start_us, _) in enumerate(told):
        used = 0
        for departs_at_us, tokens in told[first:]:
            used += tokens
            # A token is 50 µs, and instants are whole microseconds.
            assert used <= capacity + rate * (departs_at_us - start_us + 1) / 1_000_000
