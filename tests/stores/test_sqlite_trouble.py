"""SQLiteStore in trouble: the error names the file, the fault and the remedy, then the store works again."""

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shapekit import GCRA, ConfigError, Gate, ManualClock, Shaper, StoreUnavailableError
from shapekit.stores.sqlite import SQLiteStore

posix = pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are those of POSIX")


def raises(call, path, *parts):
    with pytest.raises(StoreUnavailableError) as caught:
        call()
    message = str(caught.value)
    for part in (repr(str(path)), *parts):
        assert part in message
    return message


@pytest.mark.parametrize("path", [None, 7, b"limits.db", "", "a\0b", ":memory:", ["limits.db"]], ids=repr)
def test_a_value_that_is_no_path_is_refused(path, refused):
    refused(lambda: SQLiteStore(path), "path")


@pytest.mark.parametrize("clock", [7, ManualClock, "now"], ids=repr)
def test_a_value_that_is_no_clock_is_refused(path, clock, refused):
    refused(lambda: SQLiteStore(path, clock=clock), "clock")
    assert not path.exists()


def test_a_directory_is_refused(tmp_path, refused):
    refused(lambda: SQLiteStore(tmp_path), "path")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_missing(tmp_path):
    path = tmp_path / "missing" / "limits.db"
    raises(lambda: SQLiteStore(path), path, "use a directory of a local disk that is there and writable")


def test_all_ways_to_a_file_lead_to_one_lock(path):
    link = path.with_name("link.db")
    link.symlink_to(path)
    for way in (link, path):
        SQLiteStore(way).close()
    assert sorted(os.listdir(path.parent)) == sorted([link.name, path.name, f"{path.name}-lock"])


def test_a_file_that_is_no_database_is_left_alone(path):
    path.write_text("Dear diary, " * 1_000)
    raises(lambda: SQLiteStore(path), path, "not a database", "name another file")
    assert path.read_text() == "Dear diary, " * 1_000


@pytest.mark.parametrize("mark", ["PRAGMA user_version = 7", "PRAGMA application_id = 7", "SELECT 1"])
def test_the_database_of_another_program_is_left_alone(path, mark, refused):
    with closing(sqlite3.connect(path)) as other:
        other.execute(mark)
        other.execute("CREATE TABLE orders (id)")
    before = path.read_bytes()
    error = refused(lambda: SQLiteStore(path), "path")
    assert "another program" in str(error)
    assert path.read_bytes() == before


def test_another_format_is_left_alone(path, refused):
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 3")
    error = refused(lambda: SQLiteStore(path), "path")
    assert "has format 3, and this version 2" in str(error)


def test_an_empty_file_is_a_fresh_start(path):
    path.touch()
    with closing(SQLiteStore(path)) as store:
        assert Shaper("1/s", name="api", store=store).reserve()


def test_a_database_that_was_overwritten_raises_and_works_again_when_restored(path):
    store = SQLiteStore(path)
    gate = Gate(GCRA("1/day", burst=2), name="api", store=store)
    assert gate.check()
    store._file.disconnect()
    good = path.read_bytes()
    path.write_bytes(good[:1024] + b"\xff" * (len(good) - 1024))
    raises(gate.check, path, "malformed", "remove the file")
    path.write_bytes(good)
    assert gate.check().current == 2
    store.close()


@pytest.mark.parametrize("state", ["", "7", "[1.5]", "{}", "[" * 50_000, b"\xff\xfe"])
def test_a_damaged_state_raises_and_can_be_reset(path, state):
    with closing(SQLiteStore(path)) as store:
        gate = Gate(GCRA("1/day", burst=2), name="api", store=store)
        assert gate.check()
        store._file.transact(lambda execute: execute("UPDATE records SET state = ?", (state,)))
        raises(gate.check, path, "is damaged; reset the key")
        gate.reset()
        assert gate.check().current == 1


def test_a_state_of_a_program_of_a_later_version_raises(path):
    with closing(SQLiteStore(path)) as store:
        gate = Gate(GCRA("1/day", burst=2), name="api", store=store)
        assert gate.check()
        store._file.transact(
            lambda execute: execute("UPDATE programs SET description = ?", ('["gcra_plus",[1,1],1]',))
        )
    with closing(SQLiteStore(path)) as store:
        gate = Gate(GCRA("1/day", burst=2), name="api", store=store)
        with pytest.raises(ConfigError, match="does not describe a program"):
            gate.check()


def test_a_full_database_raises_and_works_again_when_there_is_room(path):
    with closing(SQLiteStore(path)) as store:
        gate = Gate(GCRA("1/day", burst=2), name="api", store=store)
        assert gate.check("live")
        pages = store._file.transact(lambda execute: execute("PRAGMA page_count").fetchone()[0])
        store._file._connections[0].execute(f"PRAGMA max_page_count = {pages}")
        keys = [f"{n}" * 200 for n in range(20)]
        raises(lambda: [gate.check(key) for key in keys], path, "full", "free some disk space")
        assert gate.check("live").current == 2
        assert not gate.check("live")
        gate.check_many(keys)


FULL_DISK = """
import resource, sys
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])
gate = Gate(GCRA("1/day", burst=5_000), name="api", store=store)
gate.check()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
admitted = 1
try:
    while True:
        gate.check()
        admitted += 1
except StoreUnavailableError as error:
    print(error)
for _ in range(3):
    try:
        gate.check()
        admitted += 1
    except StoreUnavailableError:
        pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(admitted + 1 == gate.check().current)
"""


@posix
def test_a_full_disk_loses_nothing(run, path):
    message, exact = run(FULL_DISK, path)
    assert str(path) in message
    assert "see whether the disk is full" in message or "free some disk space" in message
    assert exact == "True"
    with closing(sqlite3.connect(path)) as looking:
        assert looking.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


NO_MORE_FILES = """
import os, resource, sys
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])
gate = Gate(GCRA("1/day", burst=9), name="api", store=store)
gate.check()
store._file.disconnect()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
opened = []
try:
    while True:
        opened.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    gate.check()
except StoreUnavailableError as error:
    print(sys.argv[1] in str(error), "let the process open more files" in str(error))
for one in opened:
    os.close(one)
print(gate.check().current)
store.close()
"""


@posix
def test_a_process_without_a_file_to_spare_raises_and_goes_on_once_it_has_one(run, path):
    assert run(NO_MORE_FILES, path) == ["True True", "2"]


READ_ONLY = """
import os, sys, tempfile
from shapekit import *
from shapekit.stores.sqlite import SQLiteStore

folder = tempfile.mkdtemp()
path = os.path.join(folder, "limits.db")
store = SQLiteStore(path)
gate = Gate(GCRA("1/day", burst=9), name="api", store=store)
gate.check()
store._file.disconnect()
os.chmod(path, 0o444)
os.chmod(path + "-lock", 0o666)
os.chmod(folder, 0o755)
if os.geteuid() == 0:
    os.seteuid(65534)    # a user for whom, unlike root, modes count
for call in (gate.check, lambda: SQLiteStore(path)):
    try:
        call()
    except StoreUnavailableError as error:
        print(path in str(error) and "readonly" in str(error), "make the file and its" in str(error))
if os.getuid() == 0:
    os.seteuid(0)
os.chmod(folder, 0o755)
os.chmod(path, 0o644)
print(gate.check().current)
store.close()
for name in os.listdir(folder):
    os.unlink(os.path.join(folder, name))
os.rmdir(folder)
"""


@posix
def test_a_read_only_file_raises_and_works_again_when_writable(run):
    assert run(READ_ONLY) == ["True True", "True True", "2"]


def test_a_file_that_was_never_finished_is_finished(path):
    # Killed between the settings and the tables.
    with closing(sqlite3.connect(path)) as killed:
        killed.execute("PRAGMA journal_mode = WAL")
        killed.execute("PRAGMA application_id = 0x53484B54")
    with closing(SQLiteStore(path)) as store:
        assert Shaper("1/s", name="api", store=store).reserve()


def test_the_companions_lie_beside_the_file(path):
    with closing(SQLiteStore(path)) as store:
        Shaper("1/s", name="api", store=store).reserve()
        assert {file.name for file in Path(path).parent.iterdir()} == {
            "limits.db",
            "limits.db-lock",
            "limits.db-shm",
            "limits.db-wal",
        }
    assert sorted(os.listdir(path.parent)) == ["limits.db", "limits.db-lock"]
