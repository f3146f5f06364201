"""SqliteSurvey: all states in a shared file, read by somebody who changes nothing.

It has a connection of its own that cannot write, and never queues for the lock: those who decide do not
notice it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from shapekit.algorithms.description import Described, revived
from shapekit.clock import Clock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.stores.encoding import MISFITS, Sighting, plain_text, sound, unpacked
from shapekit.stores.sqlite.clock import HostClock
from shapekit.stores.sqlite.file import APPLICATION, PATIENCE_S, VERSION, Execute

__all__ = ["SqliteSurvey"]

AT_ONCE = 1_000
"""Rows of one transaction: while one lasts, the log cannot be emptied."""
_ROWS = (
    "SELECT records.id, names.name, part, key, program, state FROM records JOIN names"
    " ON names.id = records.name WHERE records.id > ? AND expires_us > ? ORDER BY records.id LIMIT ?"
)


class SqliteSurvey:
    """Looks again and again; it remembers what programs are, for that never changes."""

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        """Without a `clock`, time is what those who share the file have agreed on."""
        self._path = path
        self._agrees = clock is None
        self._clock: Clock = HostClock() if clock is None else clock
        self._programs: dict[int, Described | None] = {}

    def sightings(self, prefix: str) -> Iterator[Sighting]:
        """The live keys whose `name:key` begins with the prefix, in the order in which they first came."""
        try:
            uri = f"{Path(self._path).absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE_S, isolation_level=None)) as file:
                execute = file.execute
                self._check(execute)
                now = self._now(execute)
                skew = self._clock.wall_us() - now
                last = 0
                while rows := execute(_ROWS, (last, now, AT_ONCE)).fetchall():
                    for last, name, part, key, number, state in rows:  # noqa: B007 - read after the loop
                        place = (plain_text(name), plain_text(part), plain_text(key))
                        sighting = self._sighting(place, self._program(execute, number), state, now, skew)
                        if sighting.shown.startswith(prefix):
                            yield sighting
        except ConfigError:
            raise
        except (sqlite3.Error, *MISFITS) as error:
            fix = "see whether it is there, intact, and may be read"
            raise StoreUnavailableError(f"cannot read {self._path!r}: {error}; {fix}") from error

    def _sighting(
        self, place: tuple[str, str, str], program: Described | None, state: str, now: int, skew: int
    ) -> Sighting:
        try:
            seen: Any = None if program is None else sound(program, unpacked(state), now, skew)
        except (*MISFITS, RecursionError, StoreUnavailableError):
            seen = program = None
        return Sighting(*place, program, seen, now, skew)

    def _program(self, execute: Execute, number: int) -> Described | None:
        if number not in self._programs:
            row = execute("SELECT description FROM programs WHERE id = ?", (number,)).fetchone()
            try:
                self._programs[number] = revived(row[0])
            except (ConfigError, TypeError):
                self._programs[number] = None
        return self._programs[number]

    def _now(self, execute: Execute) -> int:
        if self._agrees and isinstance(self._clock, HostClock):
            self._clock.agree(execute)
        return self._clock.now_us()

    def _check(self, execute: Execute) -> None:
        application = execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION:
            raise ConfigError("path", self._path, "is no file of a SQLiteStore", "name another file")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise ConfigError(
                "path", self._path, f"has format {version}, and this version {VERSION}", "name another file"
            )
