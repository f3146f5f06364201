"""SQLiteStore: the truth of one host, in a file, without a server."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from shapekit.algorithms.composite import Composite, adopted
from shapekit.algorithms.description import describe
from shapekit.clock import Clock
from shapekit.errors import ConfigError
from shapekit.stores.base import READS, Apply, ApplyMany, Key, Operation, Program, Store
from shapekit.stores.errand import Errand
from shapekit.stores.host_clock import HostClock
from shapekit.stores.records import records_of, step_of
from shapekit.stores.sighting import Sighting
from shapekit.stores.sqlite_file import Execute
from shapekit.stores.sqlite_records import SqliteRecords, of_two_kinds, place_of
from shapekit.stores.sqlite_survey import SqliteSurvey
from shapekit.stores.states import sound
from shapekit.stores.undo import undos_of

__all__ = ["SQLiteStore"]


class SQLiteStore(Store):
    """The processes of one host share their limits through a file: `SQLiteStore("limits.db")`.

    Each call is one transaction under a lock; a process that is killed leaves nothing half done. The
    file and its companions (`-wal`, `-shm`, `-lock`) belong on a local disk. Time is that of the host
    since it started, so a system clock that is set changes nothing; only calendar quotas follow it.

    Threads may share one store, and so may a process and its forks. On an event loop a worker thread
    does the work; a task that is cancelled meanwhile gives back what was taken for it. A call that gets
    no turn within seconds, and any trouble with the file, is a StoreUnavailableError.
    """

    shared = True
    clock_decides: bool = True

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        if clock is not None and (isinstance(clock, type) or not isinstance(clock, Clock)):
            raise ConfigError("clock", clock, "is not a clock", "leave it away, or pass ManualClock()")
        self.clock: Clock = HostClock() if clock is None else clock
        self._kinds: dict[str, str] = {}
        self._records = SqliteRecords(_absolute(path), self.clock)
        self._file = self._records.file
        with self._file:
            """Whatever is wrong with the file is told at once."""

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        run = self._runner(name, program, operation)
        file, now_us = self._file, self.clock.now_us

        def apply(key: Key, *args: Any) -> Any:
            with file as execute:
                return run(execute, key, now_us(), args)

        return apply

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        run = self._runner(name, program, operation)
        file, now_us = self._file, self.clock.now_us

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            with file as execute:
                now = now_us()
                return [run(execute, key, now, args) for key in keys]

        return apply_many

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        apply = self.bind(name, program, operation)
        give_back = self._giver(name, program, operation)

        async def aapply(key: Key, *args: Any) -> Any:
            return await Errand(partial(apply, key, *args), partial(give_back, key, args)).run()

        return aapply

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        apply_many = self.bind_many(name, program, operation)
        give_back = self._giver(name, program, operation)

        async def aapply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            def give_all_back(results: list[Any]) -> None:
                for key, result in zip(keys, results, strict=True):
                    give_back(key, args, result)

            return await Errand(partial(apply_many, keys, args), give_all_back).run()

        return aapply_many

    def reset(self, name: str, program: Program, key: Key) -> None:
        records = self._records
        with self._file as execute:
            number = records.named(execute, name, program)
            for part, text, _ in records_of(program, key):
                row = records.find(execute, place_of(number, part, text))
                if row is not None:
                    records.reset(execute, row[0])

    async def areset(self, name: str, program: Program, key: Key) -> None:
        await Errand(partial(self.reset, name, program, key), _nothing).run()

    def reset_all(self, prefix: str = "") -> int:
        with self._file as execute:
            live = self._live(execute, prefix)
            for _, record in live:
                self._records.reset(execute, record)
            return len(live)

    def keys(self, prefix: str = "") -> Iterator[str]:
        with self._file as execute:
            return iter([shown for shown, _ in self._live(execute, prefix)])

    def survey(self, prefix: str = "") -> Iterator[Sighting]:
        """The live keys with their programs and states, to look at, without a turn in the file's queue."""
        _check_prefix(prefix)
        return SqliteSurvey(self._file.path, self.clock).sightings(prefix)

    def close(self) -> None:
        self._file.close()

    async def aclose(self) -> None:
        await Errand(self.close, _nothing).run()

    def __repr__(self) -> str:
        return f"SQLiteStore({self._file.path!r})"

    def _live(self, execute: Execute, prefix: str) -> list[tuple[str, int]]:
        _check_prefix(prefix)
        return list(self._records.live(execute, prefix))

    def _runner(self, name: str, program: Program, operation: Operation) -> Callable[..., Any]:
        """What an operation does in a transaction."""
        kind = self._kinds.setdefault(name, program.kind)
        if kind != program.kind:
            raise of_two_kinds(name, kind, program)
        records = self._records
        description = describe(program)
        parts = program.parts if isinstance(program, Composite) else ()
        described = [describe(part) for part in parts]
        step = step_of(program, operation)
        reads = operation in READS
        civil, wall_us = program.civil, self.clock.wall_us

        def run(execute: Execute, key: Key, now: int, args: tuple[Any, ...]) -> Any:
            space = records.named(execute, name, program)
            if not isinstance(key, str):
                return run_together(execute, space, key, now, args)
            number = records.numbered(execute, description)
            place = place_of(space, "", key)
            row = records.find(execute, place)
            # Before a cold key moves `now`: that is no step of the date.
            skew = wall_us() - now if civil else 0
            if row is None:
                now, state = records.cold_at(execute, now), None
            else:
                writer = program if row[2] == number else records.writer(execute, row[2])
                state = adopted(program, records.state(row, writer), writer, now, skew)
            outcome = step(state, now, *args, skew=skew) if civil else step(state, now, *args)
            if operation == "look":
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
            places = [place_of(space, part, key) for part, key, _ in records_of(program, keys)]
            rows = [records.find(execute, place) for place in places]
            skew = wall_us() - now
            if None in rows:
                now = records.cold_at(execute, now)
            writers = [None if row is None else records.writer(execute, row[2]) for row in rows]
            states = tuple(
                None if row is None else adopted(part, records.state(row, writer), writer, now, skew)
                for part, row, writer in zip(parts, rows, writers, strict=True)
            )
            outcome = step(states, now, *args, skew=skew)
            if reads:
                return outcome
            if outcome[3]:
                for place, row, part, text, before, after in zip(
                    places, rows, parts, described, states, outcome[0], strict=True
                ):
                    if after is not before:
                        number = records.numbered(execute, text)
                        ends = now + part.life(after, now, skew)
                        records.keep(execute, row, place, after, number, now, ends)
                records.sweep(execute, now)
            return outcome[1]

        return run

    def _giver(self, name: str, program: Program, operation: Operation) -> Callable[..., None]:
        """Gives back what an operation took for somebody who did not stay for the answer."""

        def give_back(key: Key, args: tuple[Any, ...], result: Any) -> None:
            for undo, undo_args in undos_of(operation, args, result):
                self.bind(name, program, undo)(key, *undo_args)

        return give_back


def _absolute(path: object) -> str:
    fix = 'name a file, such as "limits.db"'
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        raise ConfigError("path", path, "is not a path", fix) from None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError("path", path, "is not a path", fix)
    if text == ":memory:":
        raise ConfigError("path", path, "is no file that others can share", "use a MemoryStore")
    return os.path.abspath(text)


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str):
        raise ConfigError("prefix", prefix, "is not text", 'pass a str such as "api:"')


def _nothing(result: object) -> None:
    """What a reset or a close took need not be given back."""
