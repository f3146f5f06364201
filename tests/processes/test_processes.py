"""Several processes, one limit: exactly its number, exactly its pace, through every change of it."""

import pytest

from shapekit import GCRA, Gate, RedisStore, Shaper, SQLiteStore
from shapekit.rate import SECOND_US

from ..redis_server import shared_server
from .pace import Departure, Pace

pytestmark = pytest.mark.long

PROCESSES = 4
THREADS = 8


# exactly the limit

LIMIT = 60
CROWD = """
import json, sys, threading
from shapekit import *

where, prefix, LIMIT, threads = map(json.loads, sys.argv[1:])
strategies = [
    GCRA("1/day", burst=LIMIT), TokenBucket("1/day", LIMIT), LeakyBucket("1/day", LIMIT),
    FixedWindow(LIMIT, "3000d"), SlidingWindow(LIMIT, "3000d"), SlidingWindowLog(LIMIT, "3000d"),
    Quota(LIMIT, "fixed:3000d"), Quota(LIMIT, "rolling:3000d"),
    all_of(a=GCRA("1/day", burst=LIMIT), b=SlidingWindowLog(LIMIT + 9, "3000d")),
    any_of(a=GCRA("1/day", burst=LIMIT), b=SlidingWindowLog(LIMIT - 9, "3000d")),
    first_of(a=GCRA("1/day", burst=LIMIT - 9), b=SlidingWindowLog(9, "3000d")),
]
if where.startswith("redis:"):
    from shapekit.stores.redis import RedisStore
    store = RedisStore.from_url(where, prefix=prefix)
else:
    from shapekit.stores.sqlite import SQLiteStore
    store = SQLiteStore(where)
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


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_four_processes_of_eight_threads_are_admitted_exactly_the_limit(crew, prefix, tmp_path, kind):
    where = shared_server().url if kind == "redis" else str(tmp_path / "limits.db")
    outputs = crew(CROWD, [(where, prefix, LIMIT, THREADS)] * PROCESSES)
    assert LIMIT < PROCESSES * THREADS * 4
    assert [sum(counts) for counts in zip(*outputs, strict=True)] == [LIMIT] * 14


# exactly the pace

RATE = 200
SECONDS = 5
FAIR = RATE * SECONDS // PROCESSES
DECISION_S = 0.150
PACED = """
import json, sys, threading, time
from shapekit import Shaper

where, prefix, RATE, SECONDS, THREADS, DECISION_S = map(json.loads, sys.argv[1:])
slow = []

def timed(kind):
    class Timed(kind):
        def bind(self, *what):
            call = super().bind(*what)
            def decide(*args):
                start = time.monotonic()
                try:
                    return call(*args)
                finally:
                    end = time.monotonic()
                    if end - start > DECISION_S:
                        slow.append((start, end))
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
        reservation = shaper.schedule()
        at, now = time.monotonic(), decider_now_us()
        slot = reservation.grant.departs_at_us
        left.append((at, (now - slot) / 1e6, slot, reservation.delay > 0))

crew = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in crew: thread.start()
warm.wait(20)
slow.clear()
print("ready", flush=True)
sys.stdin.readline()
go.set()
for thread in crew: thread.join()
print(json.dumps({"left": left, "slow": slow}))
"""


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_four_processes_share_two_hundred_a_second(crew, prefix, tmp_path, kind):
    """For five seconds in real time.

    A machine that stalls crowds the calls together that were due meanwhile: the test allows for the stalls
    that a witness has seen, and for nothing else. No call may be early.
    """
    where = shared_server().url if kind == "redis" else str(tmp_path / "limits.db")
    outputs = crew(PACED, [(where, prefix, RATE, SECONDS, THREADS, DECISION_S)] * PROCESSES)
    pace = Pace([Departure(*departure) for each in outputs for departure in each["left"]], RATE, crew.stalls)
    assert pace.is_unbroken, pace
    assert pace.earliest >= 0, pace
    assert abs(pace.rate - RATE) <= RATE * 0.01, pace
    assert pace.most_in_a_second <= RATE + 4, pace
    assert pace.median <= 1 / RATE, pace
    assert pace.idle <= pace.stalled + 0.01 * SECONDS, pace
    shares = [len(each["left"]) for each in outputs]
    assert min(shares) >= FAIR / 2, shares
    if kind == "sqlite":
        for start, end in (decision for each in outputs for decision in each["slow"]):
            assert crew.stalls.undone(start, end) <= start + DECISION_S, (start, end, pace)


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
print(json.dumps([faster.reserve().grant.departs_at_us for _ in range(5)]))
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
    """A store that processes share, and the arguments by which they find it."""
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
    old = [slower.reserve().grant.departs_at_us for _ in range(4)]
    assert [due - old[0] for due in old] == [n * 60 * SECOND_US for n in range(4)]
    (new,) = crew(FASTER, [where])
    tail = old[0] + 240 * SECOND_US
    assert new == [tail + n * SECOND_US // 10 for n in range(5)]
    assert slower.reserve().grant.departs_at_us == new[-1] + SECOND_US // 10
    assert slower.reserve().grant.departs_at_us == new[-1] + SECOND_US // 10 + 60 * SECOND_US


def test_another_algorithm_under_the_name_is_refused_and_nothing_is_lost(shared, crew):
    store, where = shared
    gate = Gate(GCRA("1/h", 9), name="api", store=store)
    assert all(gate.check() for _ in range(4))
    assert crew(OTHER, [where]) == [["config_invalid"] * 4]
    assert gate.peek().current == 4
    assert [bool(gate.check()) for _ in range(6)] == [True] * 5 + [False]
