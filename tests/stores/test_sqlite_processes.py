"""SQLiteStore and processes: exactly the limit, whichever of them are killed, forked or stuck on the way."""

import os
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from shapekit import GCRA, Gate, ManualClock, Shaper, StoreUnavailableError
from shapekit.stores import sqlite_file
from shapekit.stores.sqlite import SQLiteStore
from shapekit.stores.sqlite_file import FileLock

pytestmark = pytest.mark.long

KILLED = """
import os, signal, sys, threading
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])
gate = Gate(GCRA("1/day", burst=3000), name="gate", store=store)
shaper = Shaper("1/day", burst=3000, name="shaper", store=store, max_wait=0)
pages = Gate(SlidingWindowLog(3000, "30d"), name="log", store=store)

def load(writer):
    for n in range(100_000):
        for mark, call in ((b"g", gate.check), (b"s", shaper.reserve), (b"l", pages.check)):
            if call():
                os.write(writer, mark)
        gate.check(f"key-{n}")

for number in range(20):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        for _ in range(2):
            threading.Thread(target=load, args=(writer,), daemon=True).start()
        signal.pause()
    os.close(writer)
    seen = b""
    while len(seen) < 40 + 7 * number:
        seen += os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reader, 65536):
        seen += more
    os.close(reader)
    print(seen.count(b"g"), seen.count(b"s"), seen.count(b"l"), gate.peek().current, pages.peek().current)
left = sum(cost for cost in (2**bit for bit in range(11, -1, -1)) if shaper.reserve(cost=cost))
print(3000 - left)
print(gate.peek("key-1").current)
"""


def test_a_process_killed_twenty_times_under_load_loses_no_charge(run, path):
    *rounds, queued, other = run(KILLED, path)
    assert len(rounds) == 20
    printed = [0, 0, 0]
    for number, line in enumerate(rounds, start=1):
        *counts, checked, logged = map(int, line.split())
        printed = [before + count for before, count in zip(printed, counts, strict=True)]
        # Each kill may have met two threads between the commit and the print: one charge for each.
        assert printed[0] <= checked <= printed[0] + 2 * number
        assert printed[2] <= logged <= printed[2] + 2 * number
    assert printed[1] <= int(queued) <= printed[1] + 2 * 20
    assert int(other) > 20
    assert min(printed) > 200
    with closing(sqlite3.connect(path)) as looking:
        assert looking.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


DIES_INSIDE = """
import os, signal, sys
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

class Deadly(ManualClock):
    calls = 0
    def now_us(self):
        self.calls += 1
        if self.calls == 4: os.kill(os.getpid(), signal.SIGKILL)
        return super().now_us()

store = SQLiteStore(sys.argv[1], clock=Deadly(1_000.0))
gate = Gate(GCRA("1/day", burst=5), name="api", store=store)
gate.check()
gate.check()
print("two", flush=True)
store._records.sweep = lambda execute, now: store.clock.now_us() and store.clock.now_us()
gate.check()
"""


def test_a_process_that_dies_in_a_transaction_takes_nothing_and_leaves_no_lock(script, path):
    process = script(DIES_INSIDE, path)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("two\n", -9)
    with closing(SQLiteStore(path, clock=ManualClock(1_000.0))) as store:
        assert Gate(GCRA("1/day", burst=5), name="api", store=store).check().current == 3


FORKS = """
import os, signal, sys
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])
gate = Gate(GCRA("1/day", burst=60), name="api", store=store)

def check(times):
    return sum(gate.check().allowed for _ in range(times))

assert check(10) == 10
children = []
for _ in range(3):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        mine = check(20)
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(20)
            os.write(writer, b"%d\\n" % check(20))
            os._exit(0)
        os.waitpid(grandchild, 0)
        os.write(writer, b"%d\\n" % (mine + check(20)))
        if len(children) == 0:
            sys.exit(0)    # with everything that an interpreter does at its end
        os._exit(0)
    os.close(writer)
    children.append((child, reader))
admitted = 10 + check(20)
for child, reader in children:
    with os.fdopen(reader) as pipe:
        admitted += sum(map(int, pipe.read().split()))
    assert os.waitpid(child, 0)[1] == 0
print(admitted, check(1), store._file.life)
"""


def test_forked_children_share_the_limit(run, path):
    admitted, more, life = map(int, run(FORKS, path)[0].split())
    assert (admitted, more) == (60, 0)
    assert life == 2, "the parent made a new connection after the forks"


FORKS_IN_A_CROWD = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)    # that there are threads is the point
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])
gate = Gate(GCRA("1/s", burst=10**6), name="api", store=store)
stop = threading.Event()

def load():
    while not stop.is_set():
        gate.check()

threads = [threading.Thread(target=load) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if gate.check() else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
print(gate.peek().current > 10)
"""


def test_a_fork_while_threads_are_at_it_does_not_deadlock(run, path):
    assert run(FORKS_IN_A_CROWD, path) == ["True"]


STUCK = """
import sys
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])
def stay(execute):
    print("inside", flush=True)
    sys.stdin.readline()
store._file.transact(stay)
"""


def test_a_lock_that_cannot_be_had_raises_in_time(script, path, monkeypatch, crew):
    monkeypatch.setattr(sqlite_file, "PATIENCE_S", 0.05)
    store = SQLiteStore(path)
    gate = Gate(GCRA("1/day", burst=5), name="api", store=store)
    assert gate.check()
    process = script(STUCK, path)
    assert process.stdout.readline() == "inside\n"
    with pytest.raises(StoreUnavailableError, match=r"was kept locked by another process for 0\.05 s"):
        gate.check()
    process.kill()
    process.wait()
    assert gate.check().current == 2

    def meanwhile(execute):
        crew.start(gate.check)
        crew.join()

    store._file.transact(meanwhile)
    [error] = crew.raised()
    assert "another thread" in str(error)
    assert gate.check().current == 3
    store.close()


@pytest.mark.parametrize(("late_s", "least", "most"), [(0.0, 20_000, 30_000), (0.002, 150, 400)])
def test_waiting_processes_leave_the_processors_to_the_one_that_has_the_lock(
    path, monkeypatch, late_s, least, most
):
    """The later sleeps end, the more processes may wait before their looks keep all processors busy."""
    now_s, looks = 0.0, 0

    def sleep(seconds):
        nonlocal now_s, looks
        now_s, looks = now_s + seconds + late_s, looks + 1

    monkeypatch.setattr(sqlite_file, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    one, other = FileLock(path), FileLock(path)
    assert one.acquire(5.0)
    assert not other.acquire(5.0)
    assert least < looks < most
    one.close()
    other.close()


def test_where_the_lock_file_is_removed_the_database_keeps_the_limit(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "PATIENCE_S", 0.05)
    with closing(SQLiteStore(path)) as one:
        gate = Gate(GCRA("1/day", burst=5), name="api", store=one)
        assert gate.check()
        os.unlink(f"{path}-lock")
        with closing(SQLiteStore(path)) as other:
            there = Gate(GCRA("1/day", burst=5), name="api", store=other)
            with pytest.raises(StoreUnavailableError, match="locked"):
                one._file.transact(lambda _: there.check())
            assert there.check().current == 2
            assert gate.check().current == 3


def test_threads_leave_nothing_behind(path, crew):
    with closing(SQLiteStore(path)) as store:
        shaper = Shaper("1/day", burst=50, max_wait=0, name="api", store=store)
        shaper.reserve()
        before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
        admitted = []
        for _ in range(40):
            crew.start(lambda: admitted.extend(bool(shaper.reserve()) for _ in range(2)))
        crew.join()
        assert (len(admitted), sum(admitted)) == (80, 49)
        after = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
        assert len(after) == len(before)
