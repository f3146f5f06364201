"""SharedFile: one SQLite file that the processes of a host use in turn.

They queue at a lock of our own, on a file beside the database: SQLite's own waiting lets a writer
starve for seconds. It is `BEGIN IMMEDIATE` that makes them safe, also where somebody removes that file;
and where the system has no such locks (Windows), SQLite's waiting is what is left.

What is committed survives the death of any process. A machine that loses power may lose the last
moments (the log is synced at checkpoints only), but never the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, TypeAlias

from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.stores.file_lock import PRIVATE, FileLock
from shapekit.stores.states import is_misfit

Execute: TypeAlias = Callable[..., sqlite3.Cursor]

PATIENCE_S = 5.0
"""How long a call waits for the other threads of its process, and then for the other processes."""

APPLICATION = 0x53484B54
VERSION = 1
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


class SharedFile:
    """A database whose `with` block is a transaction: nobody else, in any process, is in one meanwhile.

    The connection is made when it is needed, is closed while the process forks, and after any trouble.
    """

    def __init__(self, path: str, met: Callable[[Execute], object]) -> None:
        """`met` is called in a transaction with each new connection."""
        self.path = path
        self.life = 0
        """Changes when rows that were seen may be gone: with each connection and each rollback."""
        self._met = met
        self._turn = threading.Lock()
        self._lock: FileLock | None = None
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        _FILES.add(self)

    def __enter__(self) -> Execute:
        if not self._turn.acquire(timeout=PATIENCE_S):
            raise self._starved("another thread")
        try:
            if self._connection is None or self._lock is None:
                self._lock, self._connection = self._connect()
            else:
                self._lock.acquire(PATIENCE_S)
            execute = self._connection.execute
            execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._give_up(error)
        return execute

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.life += 1
        if isinstance(error, sqlite3.Error) or is_misfit(error):
            self._give_up(error)
        try:
            if self._connection is not None and self._lock is not None:
                self._connection.execute("COMMIT" if error is None else "ROLLBACK")
                self._lock.release()
        except BaseException as trouble:
            self._give_up(trouble)
        self._turn.release()

    def close(self) -> None:
        """For good."""
        with self._turn:
            self._closed = True
            self._disconnect()

    def __del__(self) -> None:
        self._disconnect()

    # in turn

    def _connect(self) -> tuple[FileLock, sqlite3.Connection]:
        if self._closed:
            raise StoreUnavailableError(f"the SQLiteStore on {self.path!r} is closed; make a new one")
        if os.path.isdir(self.path):
            raise ConfigError("path", self.path, "is a directory", "name a file in it")
        lock = FileLock(f"{self.path}-lock", self.path)
        try:
            lock.acquire(PATIENCE_S)
            return lock, self._opened_database()
        except BaseException:
            lock.close()
            raise

    def _opened_database(self) -> sqlite3.Connection:
        self._make_private()
        connection = sqlite3.connect(
            self.path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
        )
        try:
            execute = connection.execute
            is_new = self._is_new(execute)
            for setting in (*(_NEW if is_new else ()), *_EACH_TIME):
                execute(setting)
            execute("BEGIN IMMEDIATE")
            for table in _TABLES if is_new else ():
                execute(table)
            self._met(execute)
            execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self.life += 1
        return connection

    def _make_private(self) -> None:
        """Make the file if it is not there: SQLite would let all read it. Its companions get its mode.

        One that is there is never opened here: closing it would end SQLite's own locks on it.
        """
        with suppress(FileExistsError):
            os.close(os.open(os.path.realpath(self.path), os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))

    def _is_new(self, execute: Execute) -> bool:
        asked = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        application, version, tables = [execute(question).fetchone()[0] for question in asked]
        if application != APPLICATION and (application or tables):
            raise ConfigError("path", self.path, "is a database of another program", "name another file")
        if version != VERSION and tables:
            raise ConfigError(
                "path", self.path, f"has format {version}, and this version {VERSION}", "name another file"
            )
        # A process that was killed in between leaves the settings without the tables.
        return not tables

    def _disconnect(self) -> None:
        connection, lock = self._connection, self._lock
        self._connection = self._lock = None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
        if lock is not None:
            lock.close()

    def _give_up(self, error: BaseException) -> NoReturn:
        """After trouble: the next call begins anew, whatever state this connection is in."""
        self._disconnect()
        self._turn.release()
        if isinstance(error, TimeoutError):
            raise self._starved("another process") from None
        if isinstance(error, sqlite3.Error):
            fix = _FIXES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "see whether the file is intact")
        elif isinstance(error, OSError):
            fix = "use a directory of a local disk that is there and writable"
        elif is_misfit(error):
            told = f"what is in {self.path!r} is damaged ({error}); reset the key, or remove the file"
            raise StoreUnavailableError(told) from error
        else:
            raise error
        raise StoreUnavailableError(f"cannot use {self.path!r}: {error}; {fix}") from error

    def _starved(self, who: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self.path!r} was kept locked by {who} for {PATIENCE_S:g} s; see whether it hangs"
        )

    # a connection must not cross a fork

    def part(self) -> None:
        """Before a fork: finish what is going on, and let go."""
        self._turn.acquire()
        self._disconnect()

    def go_on(self) -> None:
        """After a fork, in both processes."""
        self._turn.release()


_FILES: weakref.WeakSet[SharedFile] = weakref.WeakSet()
_PARTED: list[SharedFile] = []


def _part_all() -> None:
    for file in list(_FILES):
        file.part()
        _PARTED.append(file)


def _go_on_all() -> None:
    while _PARTED:
        _PARTED.pop().go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_part_all, after_in_parent=_go_on_all, after_in_child=_go_on_all)
