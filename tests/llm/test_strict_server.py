"""Three processes, one budget on Redis, and a server that refuses what exceeds its limits in any window."""

import json
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ..redis_server import PATIENCE_S, RedisServer

pytestmark = pytest.mark.long

WORKERS, THREADS = 3, 6
ASKER = Path(__file__).with_name("strict_asker.py")
PERIOD_S, SECONDS = 6.0, 20.0


class Window:
    """So many units in any window of this length."""

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


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        used = int(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            now = time.monotonic()
            tokens, requests = self.server.tokens, self.server.requests
            is_granted = tokens.has_room(now, used) & requests.has_room(now, 1)
            if is_granted:
                tokens.take(now, used)
                requests.take(now, 1)
                self.server.told.append((now, used))
            else:
                self.server.refused += 1
        if is_granted:
            time.sleep(0.1)  # the model thinks
        self.close_connection = True
        self.send_response(200 if is_granted else 429)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


@contextmanager
def model(tokens, requests):
    with Server(("127.0.0.1", 0), Model) as server:
        server.lock = threading.Lock()
        server.tokens, server.requests = Window(tokens), Window(requests)
        server.refused, server.told = 0, []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(PATIENCE_S)


def asked(redis, server, budget):
    """Lets three processes ask as much as they may."""
    url = f"http://127.0.0.1:{server.server_port}/"
    command = [sys.executable, str(ASKER), redis.url, url, json.dumps(budget), str(THREADS), str(SECONDS)]
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
        assert [worker.wait(SECONDS + PATIENCE_S) for worker in workers] == [0] * WORKERS


@pytest.mark.parametrize(
    ("tokens", "requests"), [(18_000, 10_000), (1_000_000, 120)], ids=["by tokens", "by requests"]
)
def test_a_server_that_counts_every_window_refuses_nothing(tokens, requests):
    budget = {"tokens": f"{tokens} per 6 s", "requests": f"{requests} per 6 s"}
    with RedisServer() as redis, model(tokens, requests) as server:
        asked(redis, server, budget)
    assert server.refused == 0
    began = server.told[0][0]
    # Of whole periods, those of the start-up included.
    told = [used for at, used in server.told if at < began + 3 * PERIOD_S]
    share = max(sum(told) / tokens, len(told) / requests) / 3
    print(f"share of the limit: {share:.3f}")
    assert share >= 0.8
