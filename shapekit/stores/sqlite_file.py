"""SharedFile: one SQLite file that the processes of a host use in turn.

They wait for a separate lock, `FileLock`, on a file beside the database, because SQLite's own waiting lets a
writer starve for seconds. The operating system releases the lock when its process dies, however it dies.
Safety comes from `BEGIN IMMEDIATE`, even if the lock file is removed or the system has no such locks
(Windows): there the lock does nothing, and processes wait as SQLite does.

A committed transaction survives the death of any process. A machine that loses power may lose the last
moments (the log is synced only at checkpoints), but never the file.

HostClock: one timeline for all processes of a host, which the users of the file have agreed on.
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from io import FileIO
from itertools import starmap
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TypeAlias, TypeVar

from shapekit._runtime import process
from shapekit.clock import RealClock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.stores.base import DamagedStateError, warn
from shapekit.stores.encoding import is_misfit

_fcntl: ModuleType | None
try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover - Windows
    _fcntl = None

_LOOK_S = 0.000_2
"""How often a process checks whether the lock is free, on average: at random, so that no two keep step."""
_SELDOM_S = 0.02
"""The same if so many processes check that the processors are busy and delay the one that has the lock."""
_REST = 50
"""A process that was woken late pauses for this many times as long as it was late."""


PRIVATE = 0o600
"""The mode of new files: only the owner may read or write them, whatever the umask is."""


class FileLock:
    """A lock on a file, which is opened when it is first acquired and never deleted. `close` also releases.

    The lock file is beside the file `of` which it is the lock, even if that is given by a link. A new one
    gets the permissions of that file, or is private if that does not exist yet.
    """

    def __init__(self, of: str) -> None:
        self._of = of
        self.opened: list[FileIO] = []

    def acquire(self, patience_s: float) -> bool:
        """Wait for the lock; False if that takes too long."""
        gives_up, pause_s = None, _LOOK_S
        while True:
            # A signal handler that has forked meanwhile has closed it.
            if not self.opened:
                self._open()
            if _fcntl is None:
                return True
            try:
                _fcntl.flock(self.opened[0], _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                if gives_up is None:
                    gives_up = now + patience_s
                elif now > gives_up:
                    return False
                asked_s = random.uniform(0, 2 * pause_s)  # noqa: S311 - no secret
                time.sleep(asked_s)
                # Not by how long this process has waited: that would put the first comers last.
                late_s = time.monotonic() - now - asked_s
                pause_s = min(max(_LOOK_S, _REST * (late_s - _LOOK_S)), _SELDOM_S)
            else:
                return True

    def release(self) -> None:
        if _fcntl is not None:
            for file in self.opened:
                _fcntl.flock(file, _fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self.opened:
            file.close()
        self.opened.clear()

    def _open(self) -> None:
        # Opened and recorded in one C call: a signal handler that raises comes before or after both.
        opener = partial(os.open, mode=PRIVATE)
        path = f"{os.path.realpath(self._of)}-lock"
        try:
            self.opened += starmap(partial(FileIO, opener=opener), ((path, "x+"),))
        except FileExistsError:
            self.opened += starmap(FileIO, ((path, "r+"),))
        else:
            with suppress(FileNotFoundError):
                os.chmod(path, os.stat(self._of).st_mode & 0o666)


Execute: TypeAlias = Callable[..., sqlite3.Cursor]
T = TypeVar("T")

PATIENCE_S = 5.0
"""How long a call waits for the other threads of its process, and then for the other processes."""

LOOK_EVERY_S = 0.1
"""How often a store in use checks whether its file was removed, replaced or restored."""

APPLICATION = 0x53484B54
VERSION = 2
_NEW = (
    "PRAGMA page_size = 1024",
    "PRAGMA journal_mode = WAL",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
_TABLES = (
    "CREATE TABLE host (boot TEXT, offset_us INTEGER, swept_us INTEGER, highest_us INTEGER)",
    "CREATE TABLE names (id INTEGER PRIMARY KEY, name BLOB UNIQUE, kind TEXT)",
    "CREATE TABLE programs (id INTEGER PRIMARY KEY, description TEXT UNIQUE)",
    """CREATE TABLE records (
        id INTEGER PRIMARY KEY, name INTEGER, part TEXT, key BLOB, state TEXT, program INTEGER,
        expires_us INTEGER, written_us INTEGER, sweep_at INTEGER, UNIQUE (name, part, key))""",
    "CREATE INDEX by_sweep ON records (sweep_at)",
    "CREATE TABLE settings (name BLOB PRIMARY KEY, version TEXT, overrides TEXT)",
    "INSERT INTO host VALUES (NULL, 0, 0, 0)",
)
_EACH_TIME = ("PRAGMA synchronous = NORMAL", "PRAGMA wal_autocheckpoint = 1000")
_FIXES = {
    sqlite3.SQLITE_FULL: "free some disk space",
    sqlite3.SQLITE_IOERR: "see whether the disk is full or broken",
    sqlite3.SQLITE_READONLY: "make the file and its directory writable",
    sqlite3.SQLITE_PERM: "make the file and its directory writable",
    sqlite3.SQLITE_CANTOPEN: "make the file and its directory writable",
    sqlite3.SQLITE_NOTADB: "name another file, or remove this one",
    sqlite3.SQLITE_CORRUPT: "remove the file; its limits then start afresh",
    sqlite3.SQLITE_BUSY: "see which program keeps it locked",
}
_FIXES_OF_FILES = {
    errno.EMFILE: "let the process open more files (ulimit -n)",
    errno.ENOSPC: _FIXES[sqlite3.SQLITE_FULL],
}


class SharedFile:
    """A database that is used in transactions, only one at a time over all threads and processes.

    The connection is opened when it is needed, and closed while the process forks and after any trouble.
    """

    def __init__(self, path: str, met: Callable[[Execute], object]) -> None:
        """`met` is called in a transaction with each new connection."""
        self.path = path
        self.life = 0
        """Changes when rows that were read may be gone: with each connection and each rollback."""
        self._met = met
        self._turn = process.lock()
        self._lock = FileLock(path)
        self._connections: list[sqlite3.Connection] = []
        """The connection, once it is open."""
        self._is_whole = False
        """Whether connection and lock are open and in no transaction; otherwise they are closed."""
        self._closed = False
        self._identity: tuple[object, ...] = ()
        self._schema = 0
        self._look_at = 0.0
        _FILES.add(self)

    def transact(self, work: Callable[[Execute], T]) -> T:
        """Run `work` in a transaction and return its result; roll back if it raises.

        This is not a context manager: if a signal handler raises before the block of one that is written in
        Python begins, what it has taken is never released.
        """
        if process.is_inside(self._turn):
            raise StoreUnavailableError(
                f"{self.path!r} is in use by this thread, whose call a finalizer or a signal handler has "
                "interrupted with another one; make that one on a thread of its own"
            )
        taken: list[bool] = []
        try:
            # Taken and recorded in one C call: a signal handler that raises comes before or after both.
            taken += starmap(self._turn.acquire, ((True, PATIENCE_S),))
            if True not in taken:
                self._starve("another thread")
            return self._transacted(work)
        except BaseException as error:
            translated = self._translated(error)
            if translated is None:
                raise
            raise translated from error
        finally:
            # Only C calls, each the first of its `finally`: further signals skip none of them.
            try:
                if True in taken and not self._is_whole:
                    for connection in self._connections:
                        connection.close()
            finally:
                try:
                    if True in taken and not self._is_whole:
                        for file in self._lock.opened:
                            file.close()
                finally:
                    if True in taken:
                        self._turn.release()

    def close(self) -> None:
        """Close the file for good."""
        with self._turn:
            self._closed = True
            self.disconnect()

    def __del__(self) -> None:
        # If `__init__` was interrupted, there may be nothing to close.
        with suppress(AttributeError):
            self.disconnect()

    def resting(self) -> Iterator[None]:
        """For a fork, which no connection may cross: wait for the transaction under way, and disconnect."""
        with self._turn:
            self.disconnect()
            yield

    # in turn

    def _transacted(self, work: Callable[[Execute], T]) -> T:
        execute = self._begun()
        try:
            result = work(execute)
        except BaseException as error:
            self.life += 1
            if not isinstance(error, sqlite3.Error) and not is_misfit(error):
                self._end(execute, "ROLLBACK")
            raise
        self._end(execute, "COMMIT")
        return result

    def _begun(self) -> Execute:
        if not self._is_whole:
            self.disconnect()
            self._check_usable()
        self._is_whole = False
        if not self._lock.acquire(PATIENCE_S):
            self._starve("another process")
        if self._connections and time.monotonic() >= self._look_at:
            self._look()
        if not self._connections:
            self._connect()
        execute = self._connections[0].execute
        execute("BEGIN IMMEDIATE")
        return execute

    def _end(self, execute: Execute, how: str) -> None:
        execute(how)
        self._lock.release()
        self._is_whole = True

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreUnavailableError(f"the SQLiteStore on {self.path!r} is closed; make a new one")
        if os.path.isdir(self.path):
            raise ConfigError("path", self.path, "is a directory", "name a file in it")

    def _look(self) -> None:
        """Reopen the path if its file was removed or replaced: the old file is still open, but not shared.
        Also if a backup was restored into it, in which names and programs have other numbers.
        """
        self._look_at = time.monotonic() + LOOK_EVERY_S
        now = self._inodes()
        if now == self._identity and _schema_of(self._connections[0].execute) == self._schema:
            return
        self.disconnect()
        if not self._lock.acquire(PATIENCE_S):
            self._starve("another process")
        if now[0] != self._identity[0] and now[1] == self._identity[1]:
            # The log of the old file must not be applied to the new one.
            self._remove_log()
        warn(
            "%r or a file beside it was removed, replaced or restored while it was in use: its limits go on"
            " from what is there now",
            self.path,
        )

    def _names(self) -> tuple[str, str, str]:
        """The file with links resolved, its log, and the index of the log."""
        database = os.path.realpath(self.path)
        return database, f"{database}-wal", f"{database}-shm"

    def _inodes(self) -> tuple[object, ...]:
        return tuple(map(_inode, self._names()))

    def _remove_log(self) -> None:
        for leftover in self._names()[1:]:
            with suppress(FileNotFoundError):
                os.unlink(leftover)

    def _connect(self) -> None:
        self._make_private()
        database = _inode(self._names()[0])
        connect = partial(sqlite3.connect, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
        self._connections += starmap(connect, ((self.path,),))
        execute = self._connections[0].execute
        is_new = self._is_new(execute)
        for setting in (*(_NEW if is_new else ()), *_EACH_TIME):
            execute(setting)
        execute("BEGIN IMMEDIATE")
        for table in _TABLES if is_new else ():
            execute(table)
        self._met(execute)
        self._schema = _schema_of(execute)
        execute("COMMIT")
        self.life += 1
        self._identity = database, *self._inodes()[1:]
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def _make_private(self) -> None:
        """Make the file if there is none: SQLite would make one that all users can read. SQLite gives the
        companions the same mode.

        An existing file is never opened here: closing it would end SQLite's own locks on it. If there is
        none, a log beside it is left from a removed file; processes that have that open will notice as well.
        """
        made = (self._names()[0], os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE)
        with suppress(FileExistsError):
            # Opened and closed in one C call, which no signal handler interrupts.
            list(map(os.close, starmap(os.open, (made,))))
            self._remove_log()

    def _is_new(self, execute: Execute) -> bool:
        questions = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        application, version, tables = [execute(question).fetchone()[0] for question in questions]
        if application != APPLICATION and (application or tables):
            raise ConfigError("path", self.path, "is a database of another program", "name another file")
        if version != VERSION and tables:
            fix = "name another file"
            raise ConfigError("path", self.path, f"has format {version}, and this version {VERSION}", fix)
        # A process that was killed in between has left the settings without the tables.
        return not tables

    def disconnect(self) -> None:
        """Close the file until it is used again."""
        self._is_whole = False
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._lock.close()

    def _translated(self, error: BaseException) -> StoreUnavailableError | None:
        """The StoreUnavailableError for trouble with the file; None for any other error."""
        if not self._connections and (isinstance(error, sqlite3.ProgrammingError) or is_misfit(error)):
            return StoreUnavailableError(
                f"{self.path!r} was let go while this thread used it, by a finalizer or signal handler that "
                "has forked or closed it; do that on a thread of its own"
            )
        if isinstance(error, sqlite3.Error):
            fix = _FIXES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "see whether the file is intact")
        elif isinstance(error, OSError) and error.errno is not None and not self._is_whole:
            fix = _FIXES_OF_FILES.get(
                error.errno, "use a directory of a local disk that is there and writable"
            )
        elif is_misfit(error):
            return DamagedStateError(
                f"what is in {self.path!r} is damaged ({error}); reset the key, or remove the file"
            )
        else:
            return None
        return StoreUnavailableError(f"cannot use {self.path!r}: {error}; {fix}")

    def _starve(self, holder: str) -> NoReturn:
        raise StoreUnavailableError(
            f"{self.path!r} was kept locked by {holder} for {PATIENCE_S:g} s; see whether it hangs"
        )


def _schema_of(execute: Execute) -> int:
    """A number that SQLite changes with the tables, and when a backup is restored."""
    return int(execute("PRAGMA schema_version").fetchone()[0])


def _inode(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at a path; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# If a fork came without warning, the child leaves the open file to its parent.
_FILES = process.begin_anew(SharedFile.disconnect)
process.resting(lambda: map(SharedFile.resting, _FILES))


_TICKING = (
    getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) if hasattr(time, "clock_gettime_ns") else None
)
_ticks_ns = time.monotonic_ns if _TICKING is None else partial(time.clock_gettime_ns, _TICKING)
_HIGHEST = "SELECT max(highest_us, coalesce((SELECT max(written_us) FROM records), 0)) FROM host"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostClock(RealClock):
    """The time since the host started, counted from an epoch time that all processes agree on.

    It does not step, however the system's date is set. If the system has a clock that goes on while the
    machine sleeps, it is used. Civil time is the system's.
    """

    __slots__ = ("offset_us",)

    offset_us: int
    """The epoch time at which the host started, as its processes have agreed."""

    def __init__(self) -> None:
        self.offset_us = self.wall_us() - self.ticks_us()

    def now_us(self) -> int:
        return self.ticks_us() + self.offset_us

    def ticks_us(self) -> int:
        """The time since the host started, which is the same in all processes."""
        return _ticks_ns() // 1_000

    @staticmethod
    @cache
    def boot() -> str:
        """The id of this start of the host, if the system has one; else an empty text."""
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def agree(self, execute: Execute) -> bool:
        """Adopt the offset that the users of a file have agreed on; returns whether it has to be rewritten.

        Time never goes back before the highest that they have seen: if the date was set back while the host
        was down, the timeline goes on from there. If the system cannot tell one start from another, the old
        offset is kept as long as it leads to no earlier time.
        """
        boot, agreed_us = execute("SELECT boot, offset_us FROM host").fetchone()
        here, ticks_us, offset_us = self.boot(), self.ticks_us(), agreed_us
        if boot != here or not here:
            highest_us = int(execute(_HIGHEST).fetchone()[0])
            if boot != here or ticks_us + agreed_us < highest_us:
                offset_us = max(self.wall_us(), highest_us) - ticks_us
        self.offset_us = offset_us
        return (boot, agreed_us) != (here, offset_us)

    def __repr__(self) -> str:
        return "HostClock()"
