"""A SQLite file that is removed or replaced while it is in use: all users of its path find one new one."""

import logging
import os
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from shapekit import GCRA, Gate, SlidingWindowLog, StoreUnavailableError
from shapekit.stores import sqlite_file
from shapekit.stores.sqlite import SQLiteStore

OTHER = """
import sys
from shapekit import GCRA, Gate
from shapekit.stores import sqlite_file
from shapekit.stores.sqlite import SQLiteStore
sqlite_file.LOOK_EVERY_S = 0.0
gate = Gate(GCRA("1000/d"), name="api", store=SQLiteStore(sys.argv[1]))
for _ in sys.stdin:
    print(gate.check().current, flush=True)
"""
BEFORE = 3


def unlink(path, *ends):
    for end in ends:
        os.unlink(f"{path}{end}")


def replaced(path, *ends):
    """Another file of ours in its place, in which two calls were made."""
    new = path.with_name("new.db")
    with closing(SQLiteStore(new)) as store:
        gate = Gate(GCRA("1000/d"), name="api", store=store)
        assert [gate.check().current for _ in range(2)] == [1, 2]
    unlink(path, *ends)
    os.replace(new, path)


def restored(path):
    """A backup, in which names and programs have other numbers, is copied into the file by SQLite."""
    new = path.with_name("new.db")
    with closing(SQLiteStore(new)) as store:
        for limit, name in (
            (SlidingWindowLog("9/d"), "log"),
            (GCRA("500/d"), "other"),
            (GCRA("1000/d"), "api"),
        ):
            gate = Gate(limit, name=name, store=store)
            assert [gate.check().current for _ in range(2)] == [1, 2]
    with closing(sqlite3.connect(new)) as backup, closing(sqlite3.connect(path)) as file:
        backup.backup(file)
    new.unlink()


def unindexed(path):
    unlink(path, "-shm")


def moved(path):
    os.rename(path.parent, path.parent.with_name("old"))
    path.parent.mkdir()


WAYS = {
    "the file alone": (lambda path: unlink(path, ""), 0),
    "with its log": (lambda path: unlink(path, "", "-wal", "-shm"), 0),
    # The last user that closes the file writes into it what is in the log, even if that has no name any more.
    "the log alone": (lambda path: unlink(path, "-wal", "-shm"), BEFORE),
    "the index of the log alone": (unindexed, BEFORE),
    "with its lock": (lambda path: unlink(path, "", "-wal", "-shm", "-lock"), 0),
    "renamed": (lambda path: os.rename(path, path.with_name("old.db")), 0),
    "replaced": (replaced, 2),
    "replaced, its log removed": (lambda path: replaced(path, "-wal", "-shm"), 2),
    "restored": (restored, 2),
    "the folder moved": (moved, 0),
    "the folder made anew": (lambda path: (shutil.rmtree(path.parent), path.parent.mkdir()), 0),
}
each_way = pytest.mark.parametrize(("harm", "used"), WAYS.values(), ids=WAYS)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "limits.db"


@pytest.fixture
def gate(path):
    """With some calls behind it, in a store that looks at each call."""
    with closing(SQLiteStore(path)) as store:
        gate = Gate(GCRA("1000/d"), name="api", store=store)
        assert [gate.check().current for _ in range(BEFORE)] == [1, 2, 3]
        yield gate


@pytest.fixture
def always(monkeypatch):
    """A store looks at each call."""
    monkeypatch.setattr(sqlite_file, "LOOK_EVERY_S", 0.0)


@pytest.fixture
def worker(script, path):
    """Starts processes on the path; each makes a call when it gets a line."""

    def start():
        process = script(OTHER, path)

        def ask():
            process.stdin.write("\n")
            return int(process.stdout.readline())

        return ask

    return start


@each_way
def test_a_new_file_is_joined_by_a_store_of_the_old_one(
    harm, used, always, gate, path, worker, caplog, afterwards
):
    harm(path)
    assert gate.check().current == used + 1
    late = worker()
    counts = [ask() for _ in range(3) for ask in (late, lambda: gate.check().current)]
    assert counts == [*range(used + 2, used + 8)]
    afterwards()
    [record] = caplog.records
    assert (record.name, record.levelno) == ("shapekit.store", logging.WARNING)
    assert str(path) in record.getMessage()


@each_way
def test_earlier_users_join_the_file_of_the_first_new_one(harm, used, always, gate, path, worker):
    early = worker()
    assert early() == BEFORE + 1
    harm(path)
    late = worker()
    came = late()
    if came == BEFORE + 2 and harm is not unindexed:
        # Where nothing but the file is replaced, SQLite takes the old log for that of the new file, until
        # one of the earlier users notices.
        assert harm is replaced
        came = used
    calls = [early, late, lambda: gate.check().current]
    assert [ask() for _ in range(3) for ask in calls] == [*range(came + 1, came + 10)]


def test_calls_raise_until_a_folder_that_is_gone_is_back(always, gate, path):
    shutil.rmtree(path.parent)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="use a directory of a local disk"):
            gate.check()
    path.parent.mkdir()
    assert gate.check().current == 1


def test_a_store_looks_ten_times_a_second_and_no_more(gate, path, monkeypatch, caplog, afterwards):
    now = [0.0]
    monkeypatch.setattr(sqlite_file, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns))
    gate._store._file._look_at = 0.1
    os.unlink(path)
    now[0] = 0.099
    assert gate.check().current == BEFORE + 1
    now[0] = 0.1
    assert gate.check().current == 1
    now[0] = 0.15
    os.unlink(path)
    assert gate.check().current == 2
    now[0] = 0.2
    assert [gate.check().current, gate.check().current] == [1, 2]
    afterwards()
    assert len(caplog.records) == 2


def test_a_log_handler_may_call_the_same_store(always, gate, path, crew, afterwards):
    handled = []

    class Handler(logging.Handler):
        def emit(self, record):
            handled.append(gate.check("lines").current)

    handler, log = Handler(), logging.getLogger("shapekit.store")
    log.addHandler(handler)
    try:
        os.unlink(path)
        crew.start(gate.check)
        crew.join()
        afterwards()
    finally:
        log.removeHandler(handler)
    assert handled == [1]


def test_many_threads_and_a_file_that_goes_again_and_again(always, gate, path, crew):
    # None is refused, however many calls a busy machine makes between two removals.
    gate = Gate(GCRA("1M/s"), name="many", store=gate._store)
    stop = threading.Event()

    def call():
        while not stop.is_set():
            assert gate.check()

    for _ in range(4):
        crew.start(call)
    for _ in range(50):
        # In a transaction of its own, between two of the others.
        gate._store._file.transact(lambda _: os.unlink(path))
    stop.set()
    crew.join()
    assert gate.check()
