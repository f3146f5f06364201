"""SqliteRecords: the states in a shared file, read and written inside its transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from shapekit.algorithms.description import revived
from shapekit.clock import Clock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.stores.base import Program
from shapekit.stores.host_clock import HostClock
from shapekit.stores.sighting import plain_text, shown
from shapekit.stores.sqlite_file import Execute, SharedFile
from shapekit.stores.states import packed, unpacked

Row: TypeAlias = tuple[int, str, int, int]
"""id, state, the number of the program that wrote it, and when it may be swept."""
Place: TypeAlias = tuple[int, str, bytes]
"""The number of the name, the part of the composite if the parts have keys of their own, and the key."""

_BATCH = 16
"""Idle records that one call removes at most."""
_PAUSE_US = 1_000_000
"""How long sweeping rests when nothing more was idle."""
_LINGER_US = 1_000_000
"""How long an idle record is kept, so that a clock that goes back a little still finds it."""
_SPAN_BITS = 24
"""Idle records are found by the 17 s in which they became idle: an index by the microsecond would have to
be changed with every call."""
_LATEST_US = 2**62

_FIND = "SELECT id, state, program, sweep_at FROM records WHERE name = ? AND part = ? AND key = ?"
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
_IDLE = "SELECT id, expires_us, written_us FROM records WHERE sweep_at < ? LIMIT ?"
_SWEPT = "UPDATE host SET swept_us = max(swept_us, ?), highest_us = max(highest_us, ?)"
_LIVE = (
    "SELECT records.id, names.name, part, key FROM records JOIN names ON names.id = records.name"
    " WHERE expires_us > ?"
)
HIGHEST = "SELECT max(highest_us, coalesce((SELECT max(written_us) FROM records), 0)) FROM host"


class SqliteRecords:
    """Every method takes `execute`, which `with records.file as execute` gives."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.file = SharedFile(path, self._meet)
        self._clock = clock
        self._life = 0
        self._names: dict[tuple[str, str], int] = {}
        self._numbers: dict[str, int] = {}
        self._writers: dict[int, Any] = {}
        self._sweep_due_us = 0

    def named(self, execute: Execute, name: str, program: Program) -> int:
        """The number of a name; ConfigError if states of another kind live under it."""
        if self._life != self.file.life:
            self._forget()
        known = self._names.get((name, program.kind))
        if known is not None:
            return known
        execute("INSERT OR IGNORE INTO names (name, kind) VALUES (?, ?)", (_bytes(name), program.kind))
        number, kind = execute("SELECT id, kind FROM names WHERE name = ?", (_bytes(name),)).fetchone()
        if kind != program.kind:
            live = execute(f"{_LIVE} AND records.name = ? LIMIT 1", (self._clock.now_us(), number))
            if live.fetchone() is not None:
                raise of_two_kinds(name, kind, program)
            execute("UPDATE names SET kind = ? WHERE id = ?", (program.kind, number))
        self._names[name, program.kind] = number
        return int(number)

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

    def state(self, row: Row, writer: Any) -> Any:
        """The state in a row that `writer` wrote."""
        try:
            state = unpacked(row[1])
            if state is not None:
                writer.inspect(state)
        except (ValueError, TypeError, RecursionError):
            raise StoreUnavailableError(
                f"a state in {self.file.path!r} is damaged; reset the key, or remove the file"
            ) from None
        return state

    def cold_at(self, execute: Execute, now: int) -> int:
        """The time a cold key starts at: not before a time at which one that was swept was not cold yet."""
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

    def live(self, execute: Execute, prefix: str) -> Iterator[tuple[str, int]]:
        """The live keys as they are shown, with their ids."""
        for number, name, part, key in execute(_LIVE, (self._clock.now_us(),)).fetchall():
            text = shown(plain_text(name), plain_text(part), plain_text(key))
            if text.startswith(prefix):
                yield text, number

    def reset(self, execute: Execute, number: int) -> None:
        """Make a record cold; the time at which it was written still counts."""
        execute(_RESET, (number,))

    def _forget(self) -> None:
        self._life = self.file.life
        self._names.clear()
        self._numbers.clear()
        self._writers.clear()

    def _meet(self, execute: Execute) -> None:
        """Agree with the other processes on the time."""
        clock = self._clock
        if isinstance(clock, HostClock):
            boot, offset_us = execute("SELECT boot, offset_us FROM host").fetchone()
            agreed_us = clock.agree(boot, offset_us, lambda: int(execute(HIGHEST).fetchone()[0]))
            if (boot, offset_us) != (clock.boot(), agreed_us):
                execute("UPDATE host SET boot = ?, offset_us = ?", (clock.boot(), agreed_us))


def of_two_kinds(name: str, kind: str, program: Program) -> ConfigError:
    """What is wrong where one name is used for two kinds of program."""
    return ConfigError(
        "name", name, f"already holds a {kind}, and this is a {program.kind}", "use another name"
    )


def _bytes(text: str) -> bytes:
    """Any text that Python can hold, also such as is not proper unicode."""
    return text.encode("utf-8", "surrogatepass")


def place_of(name: int, part: str, key: str) -> Place:
    """Where the state of a key is."""
    return name, part, _bytes(key)
