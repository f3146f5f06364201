"""SQLiteStore: states in a file, shared by the processes of one host without a server.

SqliteSurvey: reads all states in such a file without changing anything. It uses its own read-only connection
and never waits for the lock, so that it does not delay decisions.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from shapekit._runtime import process
from shapekit.algorithms.compose import Composite, of_one_kind
from shapekit.clock import Clock
from shapekit.errors import ConfigError, StoreUnavailableError, whose
from shapekit.stores.base import (
    Apply,
    ApplyMany,
    DamagedStateError,
    Key,
    Operation,
    Program,
    Settings,
    Store,
    Stored,
    beyond,
    check_prefix,
    continued,
    of_two_kinds,
    part_keys,
    settings_name,
)
from shapekit.stores.encoding import (
    MISFITS,
    Described,
    LiveKey,
    describe,
    known_programs,
    packed,
    plain_bytes,
    plain_text,
    revived,
    shown,
    sound,
    unpacked,
)
from shapekit.stores.sqlite_file import APPLICATION, PATIENCE_S, VERSION, Execute, HostClock, SharedFile

__all__ = ["SQLiteStore"]

Row: TypeAlias = tuple[int, str, int, int, int]
"""id, state, the number of the program that wrote it, when the row may be swept, and when it is idle."""
Place: TypeAlias = tuple[int, str, bytes]
"""The number of the name, the part of a composite whose parts have keys of their own, and the key."""

_BATCH = 16
"""How many idle records one call removes at most."""
_PAUSE_US = 1_000_000
"""How long sweeping pauses after it has found no more idle records."""
_LINGER_US = 1_000_000
"""How long an idle record is kept, so that it is still there if a clock goes back a little."""
_SPAN_BITS = 24
"""Idle records are indexed by the span of 17 s in which they became idle: an index by the microsecond would
change with every call."""
_LATEST_US = 2**62

_FIND = "SELECT id, state, program, sweep_at, expires_us FROM records WHERE name = ? AND part = ? AND key = ?"
_KEEP = (
    "UPDATE records SET state = ?, program = ?, expires_us = ?, written_us = max(written_us, ?) WHERE id = ?"
)
_MOVE = (
    "UPDATE records SET state = ?, program = ?, expires_us = ?, written_us = max(written_us, ?), sweep_at = ?"
    " WHERE id = ?"
)
_ADD = (
    "INSERT INTO records (state, program, expires_us, written_us, sweep_at, name, part, key)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_RESET = "UPDATE records SET state = 'null', expires_us = 0, sweep_at = 0 WHERE id = ?"
"""Makes a record cold. It keeps the time at which it was written."""
_IDLE = "SELECT id, expires_us, written_us FROM records WHERE sweep_at < ? LIMIT ?"
_SWEPT = "UPDATE host SET swept_us = max(swept_us, ?), highest_us = max(highest_us, ?)"
_LIVE = (
    "SELECT records.id, names.name, part, key FROM records JOIN names ON names.id = records.name"
    " WHERE expires_us > ?"
)
_VERSION_OF = "SELECT version FROM settings WHERE name = ?"
_OVERRIDES = "SELECT version, overrides FROM settings WHERE name = ?"
_ALL_OVERRIDES = "SELECT name, version, overrides FROM settings"
_SET = "INSERT OR REPLACE INTO settings (name, version, overrides) VALUES (?, ?, ?)"
_WRITERS = (
    "SELECT DISTINCT description FROM names JOIN records ON records.name = names.id"
    " JOIN programs ON programs.id = records.program WHERE names.name = ?"
)


class SQLiteStore(Store):
    """Shares limits between the processes of one host through a file: `SQLiteStore("limits.db")`.

    Each call is one transaction under a lock; a process that is killed leaves nothing half done. The file and
    its companions (`-wal`, `-shm`, `-lock`) belong on a local disk. Time is measured since the host started,
    so setting the system clock changes nothing; only calendar quotas follow it.

    Threads may share one store, and so may a process and its forks. On an event loop a worker thread does the
    work; if a task is cancelled meanwhile, what was taken for it is given back. A call that does not get the
    file within seconds, or has any trouble with it, raises StoreUnavailableError.
    """

    shared = True
    clock_decides: bool = True

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        if clock is not None and (isinstance(clock, type) or not isinstance(clock, Clock)):
            raise ConfigError("clock", clock, "is not a clock", "leave it out, or pass ManualClock()")
        self.clock: Clock = HostClock() if clock is None else clock
        self._kinds: dict[str, str] = {}
        self._records = _Records(_absolute(path), self.clock)
        self._file = self._records.file
        # Open the file now, so that any trouble with it is raised here.
        self._file.transact(lambda _: None)

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        run = self._runner(name, program, operation)
        file, clock = self._file, self.clock

        def apply(key: Key, *args: Any) -> Any:
            return file.transact(lambda execute: run(execute, key, clock.now_us(), args))

        return apply

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        run = self._runner(name, program, operation)
        file, clock = self._file, self.clock

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            def run_each(execute: Execute) -> list[Any]:
                now = clock.now_us()
                return [run(execute, key, now, args) for key in keys]

            return file.transact(run_each)

        return apply_many

    def read_overrides(self, name: str) -> Stored:
        def look(execute: Execute) -> Stored:
            self._records.hear(execute, self.settings(name))
            return self.settings(name).known.stored

        return self._file.transact(look)

    def all_overrides(self) -> dict[str, Stored]:
        rows = self._file.transact(lambda execute: execute(_ALL_OVERRIDES).fetchall())
        return {plain_text(name): Stored(version, text) for name, version, text in rows}

    def write_overrides(self, name: str, text: str, known: Stored) -> bool:
        def change(execute: Execute) -> bool:
            settings = self.settings(name)
            self._records.hear(execute, settings)
            if settings.known.stored != known:
                return False
            execute(_SET, (plain_bytes(name), str(process.fresh_id()), text))
            self._records.hear(execute, settings)
            return True

        return self._file.transact(change)

    def reset(self, name: str, program: Program, key: Key) -> None:
        records = self._records

        def forget(execute: Execute) -> None:
            number = records.named(execute, name, program)
            for part, text in (("", key),) if isinstance(key, str) else part_keys(program, key):
                row = records.find(execute, _place_of(number, part, text))
                if row is not None:
                    execute(_RESET, (row[0],))

        self._file.transact(forget)

    def reset_all(self, prefix: str = "") -> int:
        def forget(execute: Execute) -> int:
            live = self._records.live(execute, prefix)
            for _, number in live:
                execute(_RESET, (number,))
            return len(live)

        return self._file.transact(forget)

    def remove(self, seen: LiveKey) -> None:
        """Reset this key, whose program need not be known, and no other."""

        def forget(execute: Execute) -> None:
            for place, number in self._records.live(execute, seen.shown):
                if place == seen[:3]:
                    execute(_RESET, (number,))

        self._file.transact(forget)

    def keys(self, prefix: str = "") -> Iterator[str]:
        live = self._file.transact(lambda execute: self._records.live(execute, prefix))
        return iter([shown(*place) for place, _ in live])

    def survey(self, prefix: str = "") -> Iterator[LiveKey]:
        """The live keys with their programs and states; reading them does not wait for the lock."""
        check_prefix(prefix)
        return SqliteSurvey(self._file.path, self.clock).live_keys(prefix)

    def programs(self, name: str) -> list[Described]:
        """The programs that have written under a name, as far as records of theirs are still in the file."""
        rows = self._file.transact(lambda execute: execute(_WRITERS, (plain_bytes(name),)).fetchall())
        return known_programs([text for (text,) in rows])

    def close(self) -> None:
        self._file.close()
        self.wake()

    async def aclose(self) -> None:
        await self._awaitable(self.close)()

    def __repr__(self) -> str:
        return f"SQLiteStore({self._file.path!r})"

    def _runner(self, name: str, program: Program, operation: Operation) -> Callable[..., Any]:
        """The function that runs an operation in a transaction."""
        records, settings = self._records, self.settings(settings_name(name, program))
        own = self._decider(name, program, operation)
        # Programs with the limits of overrides are cached.
        others = lru_cache(lambda other: self._decider(name, other, operation))

        def run(execute: Execute, key: Key, now: int, args: tuple[Any, ...]) -> Any:
            records.hear(execute, settings)
            other = settings.program(program, key)
            if (error := beyond(operation, args, other, key, name)) is not None:
                raise error
            decide = own if other is program else others(other)
            return decide(execute, key, now, args)

        return run

    def _decider(self, name: str, program: Program, operation: Operation) -> Callable[..., Any]:
        """`_runner` for one program, without regard to overrides."""
        kind = self._kinds.setdefault(name, program.kind)
        if not of_one_kind(kind, program.kind):
            raise of_two_kinds(name, kind, program)
        records = self._records
        description = describe(program)
        parts = program.parts if isinstance(program, Composite) else ()
        described = [describe(part) for part in parts]
        step = operation.step(program)
        reads = operation.is_read
        civil, clock = program.civil, self.clock

        def run(execute: Execute, key: Key, now: int, args: tuple[Any, ...]) -> Any:
            space = records.named(execute, name, program)
            if not isinstance(key, str):
                return run_together(execute, space, key, now, args)
            number = records.numbered(execute, description)
            place = _place_of(space, "", key)
            row = records.find(execute, place)
            # Computed before a cold key moves `now`, which does not change the date.
            skew = clock.wall_us() - now if civil else 0
            if row is None:
                now, state = records.cold_at(execute, now), None
            else:
                state = records.taken_over(execute, name, key, row, program, number, now, skew)
            outcome = step(state, now, *args, skew=skew) if civil else step(state, now, *args)
            if operation.is_look:
                sound(program, *outcome)
            if reads:
                return outcome
            if outcome[3]:
                records.keep(execute, row, place, outcome[0], number, now, now + outcome[2])
                records.sweep(execute, now)
            return outcome[1]

        def run_together(
            execute: Execute, space: int, keys: tuple[str, ...], now: int, args: tuple[Any, ...]
        ) -> Any:
            places = [_place_of(space, part, key) for part, key in part_keys(program, keys)]
            rows = [records.find(execute, place) for place in places]
            skew = clock.wall_us() - now
            if None in rows:
                now = records.cold_at(execute, now)
            numbers = [records.numbered(execute, text) for text in described]
            states = tuple(
                None if row is None else records.taken_over(execute, name, key, row, part, number, now, skew)
                for key, part, row, number in zip(keys, parts, rows, numbers, strict=True)
            )
            outcome = step(states, now, *args, skew=skew)
            if reads:
                return outcome
            if outcome[3]:
                for place, row, part, number, before, after in zip(
                    places, rows, parts, numbers, states, outcome[0], strict=True
                ):
                    if after is not before:
                        ends = now + part.life(after, now, skew)
                        records.keep(execute, row, place, after, number, now, ends)
                records.sweep(execute, now)
            return outcome[1]

        return run


def _absolute(path: object) -> str:
    fix = 'name a file, such as "limits.db"'
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        raise ConfigError("path", path, "is not a path", fix) from None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError("path", path, "is not a path", fix)
    if text == ":memory:":
        raise ConfigError("path", path, "is not a file that others can share", "use a MemoryStore")
    return os.path.abspath(text)


class _Records:
    """The tables of one file. Every method takes `execute`, which `records.file.transact` provides."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.file = SharedFile(path, self._meet)
        self._clock = clock
        self._life = 0
        self._names: dict[tuple[str, str], int] = {}
        self._numbers: dict[str, int] = {}
        self._writers: dict[int, Any] = {}
        self._sweep_due_us = 0

    def named(self, execute: Execute, name: str, program: Program) -> int:
        """The number of a name; ConfigError if it has live states of another kind."""
        if self._life != self.file.life:
            self._life = self.file.life
            self._names.clear()
            self._numbers.clear()
            self._writers.clear()
        known = self._names.get((name, program.kind))
        if known is not None:
            return known
        execute("INSERT OR IGNORE INTO names (name, kind) VALUES (?, ?)", (plain_bytes(name), program.kind))
        number, kind = execute("SELECT id, kind FROM names WHERE name = ?", (plain_bytes(name),)).fetchone()
        if not of_one_kind(kind, program.kind):
            live = execute(f"{_LIVE} AND records.name = ? LIMIT 1", (self._clock.now_us(), number))
            if live.fetchone() is not None:
                raise of_two_kinds(name, kind, program)
            execute("UPDATE names SET kind = ? WHERE id = ?", (program.kind, number))
        self._names[name, program.kind] = number
        return int(number)

    def hear(self, execute: Execute, settings: Settings) -> None:
        """Read the overrides of a name if the process does not know the ones in force."""
        name = plain_bytes(settings.name)
        row = execute(_VERSION_OF, (name,)).fetchone()
        version = "" if row is None else str(row[0])
        if version != settings.known.stored.version:
            row = execute(_OVERRIDES, (name,)).fetchone()
            settings.hear(
                Stored() if row is None else Stored(str(row[0]), str(row[1])), self._clock.wall_us()
            )
        elif settings.is_over(self._clock):
            settings.hear(settings.known.stored, self._clock.wall_us())

    def numbered(self, execute: Execute, description: str) -> int:
        """The number of a program."""
        known = self._numbers.get(description)
        if known is not None:
            return known
        execute("INSERT OR IGNORE INTO programs (description) VALUES (?)", (description,))
        sql = "SELECT id FROM programs WHERE description = ?"
        self._numbers[description] = number = int(execute(sql, (description,)).fetchone()[0])
        return number

    def writer(self, execute: Execute, number: int) -> Any:
        """The program with this number."""
        known = self._writers.get(number)
        if known is None:
            row = execute("SELECT description FROM programs WHERE id = ?", (number,)).fetchone()
            self._writers[number] = known = revived(*row)
        return known

    def find(self, execute: Execute, place: Place) -> Row | None:
        found: Row | None = execute(_FIND, place).fetchone()
        return found

    def taken_over(
        self, execute: Execute, name: str, key: str, row: Row, program: Any, number: int, now: int, skew: int
    ) -> Any:
        """The state in a row, as a state of `program`, which has this number."""
        if row[2] == number:
            return self.state(name, key, row, program)
        try:
            writer = self.writer(execute, row[2])
            state = self.state(name, key, row, writer)
            return continued(name, key, program, state, writer, now, skew)
        except ConfigError:
            # The state is of another kind, or of a later version of shapekit. An idle one is dropped here: it
            # would stay for ever, since a call that fails sweeps nothing.
            if row[4] <= now:
                return None
            raise

    def state(self, name: str, key: str, row: Row, writer: Any) -> Any:
        """The state in a row that `writer` wrote."""
        try:
            state = unpacked(row[1])
            if state is not None:
                writer.inspect(state)
        except (ValueError, TypeError, RecursionError):
            raise DamagedStateError(
                f"the state of {whose(key, name)} in {self.file.path!r} is damaged; "
                "reset the key, or remove the file"
            ) from None
        return state

    def cold_at(self, execute: Execute, now: int) -> int:
        """The time that a cold key starts at: not before a time at which a swept key was not cold yet."""
        return max(now, int(execute("SELECT swept_us FROM host").fetchone()[0]))

    def keep(
        self, execute: Execute, row: Row | None, place: Place, state: Any, number: int, now: int, expires: int
    ) -> None:
        """Write a state that differs from a cold one until `expires`."""
        expires = min(expires, _LATEST_US)
        sweep_at = expires + _LINGER_US >> _SPAN_BITS
        text = packed(state)
        if row is None:
            execute(_ADD, (text, number, expires, now, sweep_at, *place))
        elif row[3] == sweep_at:
            execute(_KEEP, (text, number, expires, now, row[0]))
        else:
            execute(_MOVE, (text, number, expires, now, sweep_at, row[0]))

    def sweep(self, execute: Execute, now: int) -> None:
        """Remove a few idle records."""
        if now < self._sweep_due_us:
            return
        idle = execute(_IDLE, (now >> _SPAN_BITS, _BATCH)).fetchall()
        for number, _, _ in idle:
            execute("DELETE FROM records WHERE id = ?", (number,))
        if idle:
            execute(_SWEPT, (max(expired for _, expired, _ in idle), max(written for _, _, written in idle)))
        self._sweep_due_us = now if len(idle) == _BATCH else now + _PAUSE_US

    def live(self, execute: Execute, prefix: str) -> list[tuple[tuple[str, ...], int]]:
        """The name, part and key of each live key that is shown with this prefix, and its id."""
        check_prefix(prefix)
        rows = execute(_LIVE, (self._clock.now_us(),)).fetchall()
        live = [(tuple(map(plain_text, place)), number) for number, *place in rows]
        return [found for found in live if shown(*found[0]).startswith(prefix)]

    def _meet(self, execute: Execute) -> None:
        """Agree on the time with the other processes that share the file."""
        clock = self._clock
        if isinstance(clock, HostClock) and clock.agree(execute):
            execute("UPDATE host SET boot = ?, offset_us = ?", (clock.boot(), clock.offset_us))


def _place_of(name: int, part: str, key: str) -> Place:
    """Where the state of a key is."""
    return name, part, plain_bytes(key)


AT_ONCE = 1_000
"""How many rows one transaction reads: the log cannot be emptied during a transaction."""
_ROWS = (
    "SELECT records.id, names.name, part, key, program, state FROM records JOIN names"
    " ON names.id = records.name WHERE records.id > ? AND expires_us > ? ORDER BY records.id LIMIT ?"
)


class SqliteSurvey:
    """Reads the live keys; it can be used repeatedly, and caches descriptions, which never change."""

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        """Without a `clock`, the time is the one that the processes that share the file have agreed on."""
        self._path = path
        self._agrees = clock is None
        self._clock: Clock = HostClock() if clock is None else clock
        self._programs: dict[int, Described | None] = {}

    def live_keys(self, prefix: str) -> Iterator[LiveKey]:
        """The live keys whose `name:key` begins with the prefix, in the order of their first use."""
        try:
            uri = f"{Path(self._path).absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE_S, isolation_level=None)) as file:
                execute = file.execute
                self._check(execute)
                if self._agrees and isinstance(self._clock, HostClock):
                    self._clock.agree(execute)
                now = self._clock.now_us()
                skew = self._clock.wall_us() - now
                last = 0
                while rows := execute(_ROWS, (last, now, AT_ONCE)).fetchall():
                    for last, name, part, key, number, state in rows:  # noqa: B007 - read after the loop
                        place = (plain_text(name), plain_text(part), plain_text(key))
                        live_key = self._live_key(place, self._program(execute, number), state, now, skew)
                        if live_key.shown.startswith(prefix):
                            yield live_key
        except ConfigError:
            raise
        except (sqlite3.Error, *MISFITS) as error:
            fix = "see whether it is there and intact, and its directory writable, as SQLite needs to read it"
            raise StoreUnavailableError(f"cannot read {self._path!r}: {error}; {fix}") from error

    def _live_key(
        self, place: tuple[str, str, str], program: Described | None, state: str, now: int, skew: int
    ) -> LiveKey:
        try:
            seen: Any = None if program is None else sound(program, unpacked(state), now, skew)
        except (*MISFITS, RecursionError, StoreUnavailableError):
            return LiveKey(*place, None, None, now, skew, is_damaged=True)
        return LiveKey(*place, program, seen, now, skew)

    def _program(self, execute: Execute, number: int) -> Described | None:
        if number not in self._programs:
            row = execute("SELECT description FROM programs WHERE id = ?", (number,)).fetchone()
            try:
                self._programs[number] = revived(row[0])
            except (ConfigError, TypeError):
                self._programs[number] = None
        return self._programs[number]

    def _check(self, execute: Execute) -> None:
        application = execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION:
            raise ConfigError("path", self._path, "is not a file of a SQLiteStore", "name another file")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            fix = "name another file"
            raise ConfigError("path", self._path, f"has format {version}, and this version {VERSION}", fix)
