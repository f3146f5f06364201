"""MemoryStore: the truth of one process."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias
from weakref import ref

from shapekit._runtime import forks
from shapekit._runtime.virtual import forgets
from shapekit.algorithms.base import CHECK, NEVER_US
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.queue.queue import RESERVE
from shapekit.clock import Clock, SystemClock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.stores.base import (
    Apply,
    ApplyMany,
    Key,
    Operation,
    Program,
    Store,
    check_prefix,
    continued,
    of_two_kinds,
    part_keys,
)

__all__ = ["MemoryStore"]

_Entry: TypeAlias = tuple[Any, int, Any]
"""The state (None once reset), when it is no different from a cold one, and the program that wrote it."""
_Space: TypeAlias = dict[Any, _Entry]
"""By key; where the parts of a composite have keys of their own, by (part, key)."""

_BATCH = 16
"""Keys that one call looks at, to see whether they are idle."""
_PAUSE_US = 10_000
"""How long sweeping rests after a batch in which nothing was idle."""
_LINGER_US = 1_000_000
"""How long an idle key is kept, so that a clock that goes back a little still finds it."""


class _Records:
    """All that one store holds, and the lock on it: what a fork has to do with."""

    __slots__ = ("__weakref__", "clock", "lock", "spaces")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.spaces: dict[str, tuple[str, _Space]] = {}

    def live(self, prefix: str = "") -> Iterator[tuple[str, _Space, Any]]:
        check_prefix(prefix)
        now = self.clock.now_us()
        for name, (_, space) in self.spaces.items():
            for record, entry in space.items():
                shown = f"{name}:{record}" if isinstance(record, str) else f"{name}:{record[0]}:{record[1]}"
                if entry[1] > now and shown.startswith(prefix):
                    yield shown, space, record


class MemoryStore(Store):
    """Thread-safe, exact, and gone with the process.

    Nothing runs in the background: each call sweeps a few idle keys, and a live key is never
    dropped. A forked child warns once, because from then on there are two truths and twice the rate.
    """

    shared = False
    instant = True
    clock_decides: bool = True

    def __init__(self, clock: Clock | None = None) -> None:
        if clock is not None and (isinstance(clock, type) or not isinstance(clock, Clock)):
            raise ConfigError("clock", clock, "is not a clock", "pass SystemClock() or ManualClock()")
        self.clock: Clock = SystemClock() if clock is None else clock
        self._records = _Records(self.clock)
        self._lock = self._records.lock
        self._spaces = self._records.spaces
        self._line: deque[tuple[_Space, Any]] = deque()
        self._sweep_due_us = NEVER_US
        self._swept_us = 0
        self._closed = False
        self._clock_reads: dict[ref[Any], Callable[[], None]] = {}
        _STORES.add(self._records)
        forgets(self, MemoryStore._forget_all)

    def _forget_all(self) -> None:
        # From now on, what was bound reads the clock as it is now.
        with self._lock:
            for _, space in self._spaces.values():
                space.clear()
            self._line.clear()
            self._sweep_due_us, self._swept_us = NEVER_US, 0
            for read_clock in list(self._clock_reads.values()):
                read_clock()

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        run = self._runner(name, program, operation)
        clock = self.clock
        lock = self._lock

        def apply(key: Any, *args: Any) -> Any:
            with lock:
                return run(key, clock.now_us(), args)

        if operation not in (CHECK, RESERVE):
            return apply
        space = self._space(name, program)
        find, step = space.get, operation.step(program)
        if program.civil:
            step = _at_civil_time(step, clock)
        ticks, per_us, offset_us = _ticks_of(clock)

        def read_clock() -> None:
            nonlocal ticks, per_us, offset_us
            ticks, per_us, offset_us = _ticks_of(clock)

        def charge(key: Any, asked: Any) -> Any:
            # `apply`, written out for the path of every admitted call: a live key of this program.
            with lock:
                now = ticks() // per_us + offset_us
                entry = find(key)
                if entry is None or entry[2] is not program or now >= self._sweep_due_us:
                    return run(key, now, (asked,))
                state, result, ttl_us, persist = step(entry[0], now, asked)
                if persist:
                    space[key] = (state, now + ttl_us, program)
                return result

        self._clock_reads[ref(charge, self._clock_reads.pop)] = read_clock
        return charge

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        run = self._runner(name, program, operation)

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            with self._lock:
                now = self.clock.now_us()
                return [run(key, now, args) for key in keys]

        return apply_many

    def reset(self, name: str, program: Program, key: Key) -> None:
        space = self._space(name, program)
        with self._lock:
            self._check_open()
            for record in part_keys(program, key) if isinstance(key, tuple) else (key,):
                self._forget(space, record)

    def reset_all(self, prefix: str = "") -> int:
        with self._lock:
            self._check_open()
            live = list(self._records.live(prefix))
            for _, space, record in live:
                self._forget(space, record)
            return len(live)

    def keys(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            self._check_open()
            return iter([shown for shown, _, _ in self._records.live(prefix)])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for _, space in self._spaces.values():
                space.clear()
            self._line.clear()
        self.wake()

    def __len__(self) -> int:
        """The keys in memory, idle ones that are not swept yet included."""
        return sum(len(space) for _, space in self._spaces.values())

    def __repr__(self) -> str:
        return f"MemoryStore({len(self)} keys)"

    # under the lock

    def _runner(self, name: str, program: Program, operation: Operation) -> Callable[..., Any]:
        space = self._space(name, program)
        step = operation.step(program)
        reads = operation.is_read
        civil = program.civil
        clock = self.clock
        find = space.get
        parts = program.parts if isinstance(program, Composite) else ()

        def run(key: Any, now: int, args: tuple[Any, ...]) -> Any:
            if key.__class__ is tuple:
                return run_together(key, now, args)
            skew = clock.wall_us() - now if civil else 0
            entry = find(key)
            if entry is None:
                now, state = self._miss(now), None
            else:
                state = (
                    entry[0]
                    if entry[2] is program
                    else continued(name, key, program, entry[0], entry[2], now, clock.wall_us() - now)
                )
            outcome = step(state, now, *args, skew=skew) if civil else step(state, now, *args)
            if reads:
                return outcome
            if outcome[3]:
                if entry is None:
                    # First: where a signal comes in between, what stands in line without a record is dropped.
                    self._line.append((space, key))
                space[key] = (outcome[0], now + outcome[2], program)
                if entry is None or now >= self._sweep_due_us:
                    self._sweep(now)
            return outcome[1]

        def run_together(keys: tuple[str, ...], now: int, args: tuple[Any, ...]) -> Any:
            skew = clock.wall_us() - now
            records = part_keys(program, keys)
            entries = [find(record) for record in records]
            if None in entries:
                now = self._miss(now)
            states = tuple(
                None if entry is None else continued(name, key, part, entry[0], entry[2], now, skew)
                for key, part, entry in zip(keys, parts, entries, strict=True)
            )
            outcome = step(states, now, *args, skew=skew)
            if reads:
                return outcome
            if outcome[3]:
                for record, part, before, after in zip(records, parts, states, outcome[0], strict=True):
                    if after is not before:
                        if record not in space:
                            self._line.append((space, record))
                        space[record] = (after, now + part.life(after, now, skew), part)
                self._sweep(now)
            return outcome[1]

        return run

    def _space(self, name: str, program: Program) -> _Space:
        kind, space = self._spaces.setdefault(name, (program.kind, {}))
        if kind != program.kind:
            raise of_two_kinds(name, kind, program)
        return space

    def _miss(self, now: int) -> int:
        """The time a cold key starts at: not before a time at which it may have been swept."""
        self._check_open()
        return now if now >= self._swept_us - _LINGER_US else self._swept_us

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("this MemoryStore is closed; make a new one")

    def _forget(self, space: _Space, record: Any) -> None:
        # The entry stays in line, cold, and is swept like any idle one.
        entry = space.get(record)
        if entry is not None:
            space[record] = (None, 0, entry[2])

    def _sweep(self, now: int) -> None:
        line = self._line
        found = False
        for _ in range(min(_BATCH, len(line))):
            space, record = line[0]
            entry = space.get(record)
            if entry is None:
                line.popleft()
            elif entry[1] + _LINGER_US <= now:
                if now > self._swept_us:
                    self._swept_us = now
                del space[record]
                line.popleft()
                found = True
            else:
                line.rotate(-1)
        self._sweep_due_us = now if found else now + _PAUSE_US


_STORES: forks.Living[_Records] = forks.Living()


def _resting(records: _Records) -> Iterator[None]:
    # A lock held by another thread while we fork would stay locked in the child for ever.
    with records.lock:
        yield


def _warn() -> None:
    if any(next(records.live(), None) for records in _STORES):
        warnings.warn(
            "forked with live rate-limit keys in a MemoryStore: parent and child now count apart, so the "
            "rate multiplies; share a RedisStore or SQLiteStore, or make the store after the fork",
            RuntimeWarning,
            stacklevel=2,
        )


forks.resting(lambda: map(_resting, _STORES))
forks.in_child(_warn)


def _ticks_of(clock: Clock) -> tuple[Callable[[], int], int, int]:
    return clock.ticks() if type(clock) is SystemClock else (clock.now_us, 1, 0)


def _at_civil_time(step: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    def skewed(state: Any, now: int, asked: Any) -> Any:
        return step(state, now, asked, clock.wall_us() - now)

    return skewed
