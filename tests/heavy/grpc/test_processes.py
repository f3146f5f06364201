"""Three processes and a server that allows 20 calls a second, after a bucket of 20: with one limit for all of
them nothing is refused. `python -m tests.heavy.grpc.test_processes` compares that with limits in each
process.
"""

import json
import threading
import time
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path

import grpc

from ...redis_server import RedisServer
from ...together import run_together
from .answers import EXHAUSTED, refusing, retry_in
from .conftest import Service

WORKERS, PER_S, BURST, SECONDS = 3, 20, 20, 10
PATIENCE_S = 60
WORKER = Path(__file__).with_name("worker.py")
KINDS = ("shared", "apart", "none")


class Bucket:
    """Refuses calls above the rate, and asks for a second's patience."""

    def __init__(self):
        self._lock = threading.Lock()
        self._left, self._at = BURST, time.monotonic()
        self._refuse = refusing(EXHAUSTED, retry_info=[retry_in(1)])

    def __call__(self, context):
        with self._lock:
            now = time.monotonic()
            self._left, self._at = min(BURST, self._left + (now - self._at) * PER_S), now
            is_empty = self._left < 1
            self._left -= not is_empty
        if is_empty:
            self._refuse(context)


def seen(kind):
    """The numbers of calls that were answered and refused."""
    service = Service()
    service.says = Bucket()
    with ExitStack() as running:
        server = grpc.server(running.enter_context(futures.ThreadPoolExecutor(8)), handlers=(service,))
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        running.callback(lambda: server.stop(None).wait())
        redis = running.enter_context(RedisServer())
        commands = [(WORKER, kind, target, redis.url, SECONDS)] * WORKERS
        results = [json.loads(line) for line in run_together(commands, PATIENCE_S)]
    return tuple(map(sum, zip(*results, strict=True)))


def test_processes_with_one_limit_are_never_refused():
    answered, refused = seen("shared")
    assert refused == 0
    assert 0.85 * PER_S * SECONDS <= answered <= PER_S * (SECONDS + 1)


if __name__ == "__main__":
    for each in KINDS:
        print(each, *seen(each))
