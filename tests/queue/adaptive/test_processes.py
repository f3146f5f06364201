"""Four processes on one Redis find, through one client each, what a real server on loopback bears."""

import json
from contextlib import closing

import pytest

from shapekit import Adaptive, RedisStore, Shaper

from ...adapters.http.server import Reply, Server
from ...redis_server import shared_server
from ...together import go
from .simulation import TokenBucket

pytestmark = pytest.mark.long

PROCESSES = 4
THREADS = 6
LIMIT = 20
SETTLED_S = 15.0
ENOUGH = 500
"""Calls that have arrived after that."""
PATIENCE_S = 240.0

WORKER = """
import json, sys, threading
import httpx
from shapekit import Adaptive, RedisStore
from shapekit.integrations.httpx import ShapedTransport

url, redis, prefix, threads = map(json.loads, sys.argv[1:])
between = Adaptive(min="4/s", max="50/s")
store = RedisStore.from_url(redis, prefix=prefix)
transport = ShapedTransport(adaptive=between, name="api", key="default", store=store)
client = httpx.Client(transport=transport, timeout=60, trust_env=False)
over = threading.Event()

def work():
    while not over.is_set():
        client.get(url)

crew = [threading.Thread(target=work) for _ in range(threads)]
print("ready", flush=True)
sys.stdin.readline()
for thread in crew: thread.start()
sys.stdin.readline()
over.set()
for thread in crew: thread.join()
client.close()
store.close()
"""


def test_four_processes_find_the_limit_of_one_server(script, prefix):
    """The rate in the store is what the server bears, the same for all; and hardly a call is refused.

    Time is real, so the bounds leave room: a machine that stalls makes calls late, and the burst
    of the server, a second's worth, lets those pass that then come together.
    """
    bucket = TokenBucket(lambda _: LIMIT, LIMIT)

    def answer(arrival):
        stay_away = bucket.ask(arrival.at)
        return Reply() if stay_away is None else Reply(429, {"Retry-After": "1"})

    server = Server(answer).start()
    try:
        where = (f"{server.url}/", shared_server().url, prefix, THREADS)
        processes = [script(WORKER, *map(json.dumps, where)) for _ in range(PROCESSES)]
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        go(processes)
        server.wait_for(lambda server: bool(server.arrivals), PATIENCE_S)
        settled = server.arrivals[0].at + SETTLED_S

        def is_enough(server):
            late = [arrival for arrival in server.arrivals[-ENOUGH:] if arrival.at > settled]
            return len(late) == ENOUGH

        server.wait_for(is_enough, PATIENCE_S)
        with closing(RedisStore.from_url(shared_server().url, prefix=prefix)) as store:
            looker = Shaper(adaptive=Adaptive(min="4/s", max="50/s"), name="api", store=store)
            rate = looker.adaptive.rate()
        log = [(at, status) for at, status in server.log if at > settled]
        go(processes, "over")
        for process in processes:
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, errors) == (0, "")
    finally:
        server.close()
    refused = sum(status == 429 for _, status in log)
    passed = (len(log) - refused) / (log[-1][0] - log[0][0])
    assert refused <= 0.02 * len(log), f"{refused} of {len(log)} were refused"
    assert 0.8 * LIMIT <= rate <= 1.3 * LIMIT, f"the rate is {rate:.2f}/s"
    assert passed <= 1.1 * LIMIT
    assert len({arrival.peer for arrival in server.arrivals}) >= PROCESSES
