"""Four processes and a Redis 25 ms away each way, in real time, seen on the way and at the receiver."""

import json
import os
import signal
import time
from itertools import pairwise

import pytest

from shapekit.testing import check_pace

from ...processes.conftest import prefix, script  # noqa: F401 - fixtures
from ...redis_server import shared_server
from ...together import go
from ...witness import watched
from .far import FarAway

pytestmark = pytest.mark.long

PROCESSES = 4
SECONDS = 5
RATE = 400
PREFETCH_S = 1
TRIP_S = 0.05
WORKER = """
import json, sys, threading, time
from shapekit import Shaper
from shapekit.stores.redis import RedisStore

url, prefix, RATE, SECONDS, THREADS = map(json.loads, sys.argv[1:])
store = RedisStore.from_url(url, prefix=prefix)
shaper = Shaper(f"{RATE}/s", name="far", store=store, prefetch="1s")
left = []

def work(until):
    while time.monotonic() < until:
        reservation = shaper.schedule()
        left.append((time.monotonic(), time.time_ns() // 1_000, reservation.grant.departs_at_us))

# Connections are made, scripts are sent, and the stock has found its size.
def crowd(seconds):
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=work, args=(until,)) for _ in range(THREADS)]
    for thread in threads: thread.start()
    return threads

for thread in crowd(1.5): thread.join()
left.clear()
print("ready", flush=True)
sys.stdin.readline()
threads = crowd(SECONDS)
for thread in threads: thread.join()
print(json.dumps(left))
"""
CRASHING = WORKER.replace("for thread in threads: thread.join()\nprint", "time.sleep(3600)\nprint")


@pytest.fixture
def far():
    """The way to the shared server, through which each word takes half a trip's time."""
    far = FarAway(shared_server().port, TRIP_S / 2)
    yield far
    far.close()


def started(script, arguments, sources):  # noqa: F811
    """Processes that are warm and wait for their word."""
    processes = [script(source, *map(json.dumps, arguments)) for source in sources]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return processes


def all_watched(processes):
    """The server, the workers, and this process: the way to the server leads through it."""
    return watched(os.getpid(), shared_server().pid, *[process.pid for process in processes])


def departures_of(processes):
    """All that has left, in order: by this machine's clock, by its date, and as it was promised."""
    left = []
    for process in processes:
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        left.append(json.loads(out))
    return left


def test_four_processes_far_away_reach_the_limit(script, prefix, far):  # noqa: F811
    """While all are busy, with a trip for twenty calls."""
    arguments = (far.url(), prefix, RATE, SECONDS, 8)
    processes = started(script, arguments, [WORKER] * PROCESSES)
    with all_watched(processes) as witness:
        go(processes)
        departures = departures_of(processes)
    left = sorted(departure for each in departures for departure in each)
    slots = sorted(slot for _, _, slot in left)
    check_pace([slot / 1e6 for slot in slots], f"{RATE}/s", tolerance="1us")
    assert all(at >= slot for _, at, slot in left)
    # A process that has ended asks no more, and the others do not get its slots within their last span.
    start, busy_s = left[0][0], SECONDS - PREFETCH_S
    stalled = witness.stalls.within(start, start + busy_s)
    busy = sum(at < start + busy_s for at, _, _ in left)
    assert busy >= 0.95 * RATE * (busy_s - stalled), (busy, stalled)
    # No process starves; how fair it is where no machine stalls, the simulations show.
    assert min(len(each) for each in departures) >= SECONDS
    # A process that begins has to find out what it needs, for about a span. Slots that pass while the machine
    # stalls are asked for anew, in one trip after another.
    span = start + PREFETCH_S, start + busy_s
    stalled = witness.stalls.within(*span)
    calls, trips = (
        sum(span[0] <= at < span[1] for at in times) for times in ([at for at, _, _ in left], far.scripts)
    )
    assert trips <= calls / 20 + stalled / TRIP_S, (trips, calls, stalled)


def test_a_process_that_is_killed_does_not_delay_the_others(script, prefix, far):  # noqa: F811
    """Its slots are lost, at most a span of the queue and those that its callers waited for."""
    threads = 4
    processes = started(script, (far.url(), prefix, RATE, 6, threads), [CRASHING, WORKER, WORKER])
    doomed, *others = processes
    with all_watched(processes) as witness:
        go(processes)
        time.sleep(2)
        doomed.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        doomed.communicate(timeout=60)
        departures = departures_of(others)
    left = sorted(departure for each in departures for departure in each)
    check_pace([slot / 1e6 for _, _, slot in left], f"{RATE}/s", tolerance="1us")
    after = [at for at, _, _ in left if killed_at <= at <= killed_at + 3]
    stalled = witness.stalls.within(killed_at, killed_at + 3)
    lost = RATE * PREFETCH_S + 1 + threads
    assert len(after) >= 0.95 * RATE * (3 - stalled) - lost, (len(after), stalled)
    silence = max(late - early for early, late in pairwise(after))
    assert silence <= PREFETCH_S + (threads + 2) / RATE + stalled + 0.1, (silence, stalled)


def test_a_process_that_was_stopped_uses_no_slot_that_has_passed(script, prefix, far):  # noqa: F811
    """Calls that waited for such a slot take another one."""
    threads = 4
    processes = started(script, (far.url(), prefix, RATE, 5, threads), [WORKER] * 3)
    go(processes)
    time.sleep(1.5)
    processes[0].send_signal(signal.SIGSTOP)
    time.sleep(2)
    processes[0].send_signal(signal.SIGCONT)
    departures = departures_of(processes)
    slots = sorted(slot for each in departures for _, _, slot in each)
    check_pace([slot / 1e6 for slot in slots], f"{RATE}/s", tolerance="1us")
    late = [at - slot for _, at, slot in departures[0] if at - slot > 1_000_000]
    assert late == []
    assert max(at for at, _, _ in departures[0]) > min(at for at, _, _ in departures[0]) + 4, "it went on"
