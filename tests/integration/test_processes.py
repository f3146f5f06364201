"""Several processes, one limit: exactly its number, exactly its pace, through every change of it."""

import threading
import time
from bisect import bisect_left
from math import ceil

import pytest

from shapekit import GCRA, Gate, RedisStore, Shaper, SQLiteStore
from shapekit.rate import SECOND_US
from shapekit.testing import check_pace

from ..redis_server import shared_server

PATIENCE_S = 60.0
PROCESSES = 4
THREADS = 8


# exactly the limit

LIMIT = 60
CROWD = """
import json, sys, threading
from shapekit import *
from shapekit.stores.redis import RedisStore

url, prefix, LIMIT, threads = map(json.loads, sys.argv[1:])
strategies = [
    GCRA("1/day", burst=LIMIT), TokenBucket("1/day", LIMIT), LeakyBucket("1/day", LIMIT),
    FixedWindow(LIMIT, "3000d"), SlidingWindow(LIMIT, "3000d"), SlidingWindowLog(LIMIT, "3000d"),
    Quota(LIMIT, "fixed:3000d"), Quota(LIMIT, "rolling:3000d"),
    all_of(a=GCRA("1/day", burst=LIMIT), b=SlidingWindowLog(LIMIT + 9, "3000d")),
    any_of(a=GCRA("1/day", burst=LIMIT), b=SlidingWindowLog(LIMIT - 9, "3000d")),
    first_of(a=GCRA("1/day", burst=LIMIT - 9), b=SlidingWindowLog(9, "3000d")),
]
store = RedisStore.from_url(url, prefix=prefix)
calls = [Gate(strategy, name=f"gate{n}", store=store).check for n, strategy in enumerate(strategies)]
calls.append(Shaper("1/day", burst=LIMIT, max_wait=0, name="smooth", store=store).reserve)
calls.append(Shaper("60 per 3000 days", pace="burst", max_wait=0, name="burst", store=store).reserve)
gated = dict(burst=LIMIT + 5, gates=[FixedWindow(LIMIT, "3000d")])
calls.append(Shaper("1/day", **gated, max_wait=0, name="gated", store=store).reserve)
barrier = threading.Barrier(threads)
admitted = [0] * len(calls)
lock = threading.Lock()

def work():
    barrier.wait(20)
    for n, call in enumerate(calls):
        mine = sum(bool(call()) for _ in range(4))
        with lock:
            admitted[n] += mine

crew = [threading.Thread(target=work) for _ in range(threads)]
print("ready", flush=True)
sys.stdin.readline()
for thread in crew: thread.start()
for thread in crew: thread.join()
print(json.dumps(admitted))
"""


def test_four_processes_of_eight_threads_are_admitted_exactly_the_limit(crew, prefix):
    """On Redis; of SQLite the store's own tests say the same."""
    told = crew(CROWD, [(shared_server().url, prefix, LIMIT, THREADS)] * PROCESSES)
    assert LIMIT < PROCESSES * THREADS * 4
    assert [sum(counts) for counts in zip(*told, strict=True)] == [LIMIT] * 14


# exactly the pace

RATE = 200
SECONDS = 5
FAIR = RATE * SECONDS // PROCESSES
DECISION_S = 0.150
PACED = """
import json, sys, threading, time
from shapekit import Shaper

where, prefix, RATE, SECONDS, THREADS = map(json.loads, sys.argv[1:])
slowest_s = 0.0

def timed(kind):
    class Timed(kind):
        def bind(self, *what):
            call = super().bind(*what)
            def decide(*args):
                global slowest_s
                start = time.monotonic()
                try:
                    return call(*args)
                finally:
                    slowest_s = max(slowest_s, time.monotonic() - start)
            return decide
    return Timed

if where.startswith("redis:"):
    from shapekit.stores.redis import RedisStore
    store = timed(RedisStore).from_url(where, prefix=prefix)
else:
    from shapekit.stores.sqlite import SQLiteStore
    store = timed(SQLiteStore)(where)
shaper = Shaper(f"{RATE}/s", name="shared", store=store)
left = []
stalled_s = 0.0
over = threading.Event()
warm = threading.Barrier(THREADS + 1)
go = threading.Event()

def decider_now_us():
    # On Redis the server's clock decides, which is this machine's date; on SQLite the store's.
    return store.clock.now_us() if store.clock_decides else time.time_ns() // 1_000

def work():
    shaper.reserve("another key", max_wait=0)
    warm.wait(20)
    go.wait(20)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        turn = shaper.schedule()
        left.append((time.monotonic_ns() // 1_000, decider_now_us(), turn.granted[2]))

def watch():
    # How long this process is kept from running, whatever the store does: that releases the interpreter.
    global stalled_s
    while not over.is_set():
        start = time.monotonic()
        time.sleep(0.005)
        stalled_s = max(stalled_s, time.monotonic() - start - 0.005)

crew = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in crew: thread.start()
warm.wait(20)
slowest_s = 0.0
print("ready", flush=True)
sys.stdin.readline()
watcher = threading.Thread(target=watch)
watcher.start()
go.set()
for thread in crew: thread.join()
over.set()
watcher.join()
print(json.dumps({"left": left, "slowest_s": slowest_s, "stalled_s": stalled_s}))
"""


class ServerWatch:
    """How long the server at most lets a stranger wait."""

    def __init__(self):
        self.stalled_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        with shared_server().client() as client:
            client.ping()
            while not self._over.wait(0.005):
                start = time.monotonic()
                client.ping()
                self.stalled_s = max(self.stalled_s, time.monotonic() - start)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(PATIENCE_S)


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_four_processes_share_two_hundred_a_second(crew, prefix, tmp_path, kind):
    """For five seconds in real time.

    A machine that stalls crowds those who were due meanwhile together. Each process measures how long it
    is kept from running, and for the Redis server a stranger does, who only says PING; the worst of that
    is granted, and nothing else. Nobody may be early.
    """
    where = shared_server().url if kind == "redis" else str(tmp_path / "limits.db")
    with ServerWatch() as server:
        told = crew(PACED, [(where, prefix, RATE, SECONDS, THREADS)] * PROCESSES)
    departures = sorted(tuple(departure) for each in told for departure in each["left"])
    left = [at for at, _, _ in departures]
    promised = sorted(due for _, _, due in departures)
    late = sorted(now - due for _, now, due in departures)
    shares = [len(each["left"]) for each in told]
    slowest_s = max(each["slowest_s"] for each in told)
    stalls = [each["stalled_s"] for each in told]
    stalled_s = max(stalls if kind == "sqlite" else [*stalls, server.stalled_s])
    crowded = max(bisect_left(left, at + SECOND_US) - index for index, at in enumerate(left))
    rate = (len(left) - 1) * SECOND_US / (left[-1] - left[0])
    report = (
        f"{kind}: {len(left)} left, {rate:.2f}/s, {crowded} in a second, shares {shares}, "
        f"late median {late[len(late) // 2]} µs, most {late[-1]} µs, slowest decision {slowest_s:.4f} s, "
        f"stalled {stalled_s:.4f} s"
    )
    check_pace([due / SECOND_US for due in promised], f"{RATE}/s", tolerance="1us")
    assert late[0] >= 0, report
    # Stalls make some late; were it the shaper that drifts, most would be.
    assert late[len(late) // 2] <= SECOND_US // RATE, report
    assert abs(rate - RATE) <= RATE * max(0.01, stalled_s / SECONDS), report
    assert crowded <= max(RATE + 4, ceil(RATE * (1 + stalled_s))), report
    assert min(shares) >= FAIR / 2, report
    if kind == "sqlite":
        assert slowest_s <= DECISION_S + stalled_s, report


# one name, other numbers

SECOND_WORKER = """
import json, sys
from shapekit import *

kind, where, prefix = map(json.loads, sys.argv[1:])
def store():
    if kind == "redis":
        from shapekit.stores.redis import RedisStore
        return RedisStore.from_url(where, prefix=prefix)
    from shapekit.stores.sqlite import SQLiteStore
    return SQLiteStore(where)

print("ready", flush=True)
sys.stdin.readline()
"""
FASTER = (
    SECOND_WORKER
    + """
faster = Shaper("10/s", name="api", store=store())
print(json.dumps([faster.reserve().granted[2] for _ in range(5)]))
"""
)
OTHER = (
    SECOND_WORKER
    + """
told = []
for strategy in (FixedWindow(9, "30d"), Quota(9, "month"), all_of(a=GCRA("1/h", 9), b=GCRA("1/h", 9))):
    try:
        told.append(repr(Gate(strategy, name="api", store=store()).check()))
    except ConfigError as error:
        told.append(error.code)
try:
    told.append(repr(Shaper("1/h", name="api", store=store()).reserve()))
except ConfigError as error:
    told.append(error.code)
print(json.dumps(told))
"""
)


@pytest.fixture(params=["redis", "sqlite"])
def shared(request, tmp_path, prefix):
    """A store that processes share, and what they have to be told to find it."""
    if request.param == "redis":
        where = shared_server().url
        store = RedisStore.from_url(where, prefix=prefix)
    else:
        where = str(tmp_path / "limits.db")
        store = SQLiteStore(where)
    yield store, (request.param, where, prefix)
    store.close()


def test_a_changed_rate_continues_at_the_old_tail(shared, crew):
    """A worker with the new numbers is deployed while one with the old ones runs on."""
    store, where = shared
    slower = Shaper("1/m", name="api", store=store)
    old = [slower.reserve().granted[2] for _ in range(4)]
    assert [due - old[0] for due in old] == [n * 60 * SECOND_US for n in range(4)]
    (new,) = crew(FASTER, [where])
    tail = old[0] + 240 * SECOND_US
    assert new == [tail + n * SECOND_US // 10 for n in range(5)]
    assert slower.reserve().granted[2] == new[-1] + SECOND_US // 10
    assert slower.reserve().granted[2] == new[-1] + SECOND_US // 10 + 60 * SECOND_US


def test_another_algorithm_under_the_name_is_refused_and_nothing_is_lost(shared, crew):
    store, where = shared
    gate = Gate(GCRA("1/h", 9), name="api", store=store)
    assert all(gate.check() for _ in range(4))
    assert crew(OTHER, [where]) == [["config_invalid"] * 4]
    assert gate.peek().current == 4
    assert [bool(gate.check()) for _ in range(6)] == [True] * 5 + [False]
