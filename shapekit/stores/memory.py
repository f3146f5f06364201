"""MemoryStore: the truth of one process."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias
from weakref import ref

from shapekit._runtime import process
from shapekit.algorithms.base import CHECK, NEVER_US
from shapekit.algorithms.compose import Composite, of_one_kind
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.queue.wire import RESERVE
from shapekit.clock import Clock, SystemClock, forgets
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.stores.base import (
    Apply,
    ApplyMany,
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

__all__ = ["MemoryStore"]

_FEW = 3
"""Keys that a call with a new key looks at, to see whether they are idle. Each adds one, so that of all keys
that are kept, at least half were live or lingered at one time.
"""
_BATCH = 16
"""Keys that a call with a known key looks at, if sweeping is due."""
_PAUSE_US = 10_000
"""How long sweeping rests after a batch in which nothing was idle."""
_LINGER_US = 1_000_000
"""How long an idle key is kept, so that a clock that goes back a little still finds it."""
_PAGE = 64
"""Keys that stand in line together."""


class _Overtaken(Exception):  # noqa: N818 - no error: the step is taken again
    """Another call of the same thread came in between, and has changed what this one has found."""


class _Table:
    """The states that one program has left under one name.

    They are tuples of integers in dictionaries without anything else, and keys stand in line in tuples of
    texts: the garbage collector stops tracking both, so that a million keys do not delay it.
    """

    __slots__ = ("ends", "is_bound", "page", "program", "states")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.states: dict[Any, Any] = {}
        """By key, or by (part, key) for parts of a composite with keys of their own; None if cold."""
        self.ends: dict[Any, int] = {}
        """When each state is no different from a cold one. A key that is in here stands in line once."""
        self.page: _Page | None = None
        """The page that is being filled."""
        self.is_bound = False
        """Whether the program is one of those in code, which keep their table for ever."""

    def chill(self, record: Any) -> None:
        """Make a key cold. It stays in line, and is swept like any idle one."""
        if record in self.ends:
            self.states[record] = None
            self.ends[record] = 0

    def clear(self) -> None:
        """Forget every key."""
        # One by one: a call that comes in between finds a key as it was, or not at all, and puts it in line.
        self.page = None
        for record in list(self.ends):
            if record in self.ends:
                del self.ends[record]
                self.states.pop(record, None)


class _Page:
    """Keys of one table that stand in line together: a list while it is filled or swept."""

    __slots__ = ("keys", "table")

    def __init__(self, table: _Table, record: Any) -> None:
        self.table = table
        self.keys: list[Any] | tuple[Any, ...] = [record]


_Left: TypeAlias = tuple[_Table, Any]
"""The table of another program, and the state that it has left there."""
_Space: TypeAlias = dict[Program, _Table]
"""The shelves of one name: more than one where a limit was changed, or has parts with keys of their own."""


class _Records:
    """All that one store holds, and the lock on it: what a fork has to do with.

    A finalizer or a signal handler may call the store in the midst of a call of the same thread, which so
    takes the lock once more. What a call has found is therefore compared with what is there, and stored, in
    statements that call and make nothing, or it is asked again: each of the two counts once. Another thread
    comes in at the same places, so a charge, which stores one state, needs no lock: the others take it to
    keep several things together.
    """

    __slots__ = ("__weakref__", "clock", "lock", "spaces")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.spaces: dict[str, tuple[str, _Space]] = {}

    def tables(self) -> Iterator[tuple[str, _Table]]:
        # Copies: other threads may bind meanwhile.
        for name, (_, space) in list(self.spaces.items()):
            for table in list(space.values()):
                yield name, table

    def live(self, prefix: str = "") -> Iterator[tuple[str, _Table, Any]]:
        check_prefix(prefix)
        now = self.clock.now_us()
        for name, table in self.tables():
            for record in list(table.ends):
                end = table.ends.get(record, 0)
                shown = f"{name}:{record}" if isinstance(record, str) else f"{name}:{record[0]}:{record[1]}"
                if end > now and shown.startswith(prefix):
                    yield shown, table, record


class MemoryStore(Store):
    """Keeps states in the memory of this process, for all of its threads and event loops.

    Nothing runs in the background: each call sweeps a few idle keys, and a live key is never
    dropped. A forked child warns once, because parent and child then count apart, at twice the rate.
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
        self._line: deque[_Page] = deque()
        self._sweep_due_us = NEVER_US
        self._swept_us = 0
        self._changes = 0
        """How often states were stored, other than by `charge`, or cleared."""
        self._rest: list[tuple[_Table, Any, Any, int]] = []
        """What is left to store of the parts of a call, which count together: table, record, state, end."""
        self._closed = False
        self._renewals: dict[ref[Any], Callable[[], None]] = {}
        """What renews that which bound calls know of the clock, and whether limits are overridden."""
        self._stored: dict[str, Stored] = {}
        self._tidied: dict[str, object] = {}
        """By name, what was set when the tables of what was set before were last dropped."""
        _STORES.add(self._records)
        forgets(self, MemoryStore._forget_all)

    def _forget_all(self) -> None:
        # From now on, what was bound reads the clock as it is now.
        with self._lock:
            self._clear()
            self._sweep_due_us, self._swept_us = NEVER_US, 0
            for name in list(self._stored):
                self._stored.pop(name, None)
                self.settings(name).hear(Stored(), self.clock.wall_us())
            self._tidied.clear()
            self._renew()

    def _renew(self) -> None:
        for renew in list(self._renewals.values()):
            renew()

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        run = self._runner(name, program, operation)
        clock = self.clock
        lock = self._lock

        def apply(key: Any, *args: Any) -> Any:
            with lock:
                while True:
                    try:
                        return run(key, clock.now_us(), args)
                    except _Overtaken:
                        """It is asked again."""

        if operation not in (CHECK, RESERVE):
            return apply
        table = self._table(name, program)
        states, ends, step = table.states, table.ends, operation.step(program)
        find: Callable[[Any], Any] = states.get
        if program.civil:
            step = _at_civil_time(step, clock)
        ticks, per_us, offset_us = _ticks_of(clock)
        settings = self.settings(settings_name(name, program))

        def renew() -> None:
            nonlocal find, ticks, per_us, offset_us
            ticks, per_us, offset_us = _ticks_of(clock)
            # While something is set for the name, its calls find no state here and look at that.
            find = states.get if not settings.known.overrides else lambda _: None

        def charge(key: Any, asked: Any) -> Any:
            # `apply`, written out for the path of every admitted call: a live key of this program.
            # The state is read before the clock: a state is never later than the call that goes by it.
            before = find(key)
            if before is not None and (now := ticks() // per_us + offset_us) < self._sweep_due_us:
                state, result, ttl_us, persist = step(before, now, asked)
                if not persist:
                    return result
                try:
                    if states[key] is before:
                        states[key] = state
                        ends[key] = now + ttl_us
                        return result
                except KeyError:
                    """A call that came in between has swept it."""
            return apply(key, asked)

        def charge_alone(key: Any, asked: Any) -> Any:
            with lock:
                return charge(key, asked)

        bound = charge if process.switches_at_calls() else charge_alone
        renew()
        self._renewals[ref(bound, self._renewals.pop)] = renew
        return bound

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        run = self._runner(name, program, operation)
        settings = self.settings(settings_name(name, program))

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            with self._lock:
                now = self.clock.now_us()
                self._drop_ended(settings)
                for key in keys if settings.known.overrides else ():
                    other = settings.program(program, key)
                    if (error := beyond(operation, args, other, key, name)) is not None:
                        raise error  # before any of them is charged
                answers = []
                for key in keys:
                    while True:
                        try:
                            answers.append(run(key, now, args))
                            break
                        except _Overtaken:
                            """It is asked again."""
                return answers

        return apply_many

    def read_overrides(self, name: str) -> Stored:
        settings = self.settings(name)
        with self._lock:
            self._check_open()
            self._drop_ended(settings)
            return self._stored.get(name, Stored())

    def all_overrides(self) -> dict[str, Stored]:
        with self._lock:
            return dict(self._stored)

    def write_overrides(self, name: str, text: str, known: Stored) -> bool:
        nothing, fresh, settings = Stored(), Stored(str(process.fresh_id()), text), self.settings(name)
        with self._lock:
            self._check_open()
            there = self._stored[name] if name in self._stored else nothing  # noqa: SIM401 - `get` is a call
            is_known = there == known
            if is_known:
                self._stored[name] = fresh
                while settings.known.stored != self._stored[name]:
                    settings.hear(self._stored[name], self.clock.wall_us())
                self._renew()
            return is_known

    def reset(self, name: str, program: Program, key: Key) -> None:
        with self._lock:
            self._check_open()
            self._store_rest()
            for table in list(self._space(name, program).values()):
                for record in part_keys(program, key) if isinstance(key, tuple) else (key,):
                    table.chill(record)

    def reset_all(self, prefix: str = "") -> int:
        with self._lock:
            self._check_open()
            self._store_rest()
            live = list(self._records.live(prefix))
            for _, table, record in live:
                table.chill(record)
            return len(live)

    def keys(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            self._check_open()
            return iter([shown for shown, _, _ in self._records.live(prefix)])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._clear()
        self.wake()

    def __len__(self) -> int:
        """The keys in memory, idle ones that are not swept yet included."""
        return sum(len(table.ends) for _, table in self._records.tables())

    def __repr__(self) -> str:
        return f"MemoryStore({len(self)} keys)"

    # under the lock

    def _runner(
        self, name: str, program: Program, operation: Operation, *, as_it_is: bool = False
    ) -> Callable[..., Any]:
        """What an operation does with a state; `as_it_is` for a program with the limits of an override.

        It raises _Overtaken where it has done nothing, because another call came in between.
        """
        table, space = self._table(name, program), self._space(name, program)
        step = operation.step(program)
        reads = operation.is_read
        civil = program.civil
        clock = self.clock
        find = table.states.get
        parts = program.parts if isinstance(program, Composite) else ()
        apart = [space.setdefault(part, _Table(part)) for part in parts]
        settings = Settings(name) if as_it_is else self.settings(settings_name(name, program))
        others: dict[int, tuple[Program, Callable[..., Any]]] = {}
        known: object = None
        for own in () if as_it_is else (table, *apart):
            own.is_bound = True

        def elsewhere(own: _Table, key: Any, record: Any, now: int) -> tuple[_Left | None, Any]:
            """The state that another program has left, with its table, and as this program continues it."""
            for table in list(space.values()):
                if table is not own and (state := table.states.get(record)) is not None:
                    skew = clock.wall_us() - now
                    return (table, state), continued(name, key, own.program, state, table.program, now, skew)
            return None, None

        def overridden(key: Any, now: int, args: tuple[Any, ...]) -> Callable[..., Any] | None:
            """What decides about a key instead, while limits of its name are overridden."""
            nonlocal known
            self._drop_ended(settings)
            if known is not settings.known:
                # What was set before decides no more, and neither its programs nor their tables are kept.
                others.clear()
                known = settings.known
                self._tidy(name, known)
            other = settings.program(program, key)
            if (error := beyond(operation, args, other, key, name)) is not None:
                raise error
            if other is program:
                return None
            found = others.get(id(other))
            if found is None:
                found = others.setdefault(
                    id(other), (other, self._runner(name, other, operation, as_it_is=True))
                )
            return found[1]

        def run(key: Any, now: int, args: tuple[Any, ...]) -> Any:
            if settings.known.overrides and (other := overridden(key, now, args)) is not None:
                return other(key, now, args)
            if key.__class__ is tuple:
                return run_together(key, now, args)
            changes = self._changes
            skew = clock.wall_us() - now if civil else 0
            before = state = find(key)
            left = None
            if state is None:
                if len(space) > 1:
                    left, state = elsewhere(table, key, key, now)
                if left is None:
                    now = self._miss(now)
            outcome = step(state, now, *args, skew=skew) if civil else step(state, now, *args)
            if reads:
                return outcome
            if outcome[3] and not self._keep(table, key, before, outcome, now, left, changes):
                raise _Overtaken
            return outcome[1]

        def run_together(keys: tuple[str, ...], now: int, args: tuple[Any, ...]) -> Any:
            if self._rest:
                self._store_rest()
            changes = self._changes
            records = part_keys(program, keys)
            befores = [
                (None, state)
                if (state := own.states.get(record)) is not None
                else elsewhere(own, key, record, now)
                for own, key, record in zip(apart, keys, records, strict=True)
            ]
            states = tuple([state for _, state in befores])
            skew = clock.wall_us() - now
            if None in states:
                now = self._miss(now)
            outcome = step(states, now, *args, skew=skew)
            if reads:
                return outcome
            if not outcome[3]:
                return outcome[1]
            rest, cold = [], 0
            for part, own, record, (left, before), after in zip(
                parts, apart, records, befores, outcome[0], strict=True
            ):
                if after is before:
                    continue
                if record not in own.ends:
                    self._line_up(own, record)
                    cold += 1
                rest.append((own, record, after, now + part.life(after, now, skew)))
                if left is not None:
                    rest.append((left[0], record, None, 0))
            if self._changes != changes:
                raise _Overtaken
            self._changes = changes + 1
            self._rest = rest
            self._store_rest()
            if cold or now >= self._sweep_due_us:
                self._sweep(now, _FEW * cold or _BATCH)
            return outcome[1]

        return run

    def _drop_ended(self, settings: Settings) -> None:
        if settings.is_over(self.clock):
            settings.hear(settings.known.stored, self.clock.wall_us())
            self._renew()

    def _space(self, name: str, program: Program) -> _Space:
        kind, space = self._spaces.setdefault(name, (program.kind, {}))
        if not of_one_kind(kind, program.kind):
            raise of_two_kinds(name, kind, program)
        return space

    def _tidy(self, name: str, known: object) -> None:
        """Drop the empty tables of programs that were set before. Once for all operations: from then on those
        of what is set now are in use.
        """
        if self._tidied.get(name) is known:
            return
        self._tidied[name] = known
        _, space = self._spaces[name]
        for program, table in list(space.items()):
            if not table.is_bound and not table.ends:
                del space[program]

    def _table(self, name: str, program: Program) -> _Table:
        return self._space(name, program).setdefault(program, _Table(program))

    def _miss(self, now: int) -> int:
        """The time a cold key starts at: not before a time at which it may have been swept."""
        self._check_open()
        return now if now >= self._swept_us - _LINGER_US else self._swept_us

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("this MemoryStore is closed; make a new one")

    def _clear(self) -> None:
        self._changes += 1
        self._rest.clear()
        # First: what a call adds in between is in line.
        self._line.clear()
        for _, table in self._records.tables():
            table.clear()

    def _keep(
        self, table: _Table, key: str, before: Any, outcome: Any, now: int, left: _Left | None, changes: int
    ) -> bool:
        """Store a state, which no other program's table holds any longer, and sweep.

        False where a call has come in between since what was there `before` was found.
        """
        is_new = key not in table.ends
        if is_new:
            # First: where a signal comes in between, what stands in line without a state is dropped.
            self._line_up(table, key)
        states, (state, _, ttl_us, _) = table.states, outcome
        # No signal and no finalizer comes between these: nothing is called or made.
        there = states[key] if key in states else None  # noqa: SIM401 - `get` is a call
        if there is not before or self._changes != changes:
            return False
        if left is not None:
            if left[0].states[key] is not left[1]:
                return False
            left[0].states[key] = None
            left[0].ends[key] = 0
        self._changes = changes + 1
        states[key] = state
        table.ends[key] = now + ttl_us
        if is_new or now >= self._sweep_due_us:
            self._sweep(now, _FEW if is_new else _BATCH)
        return True

    def _store_rest(self) -> None:
        """Store the parts of a call: a call that comes in between stores what is left of it first."""
        rest = self._rest
        while rest:
            try:
                table, record, state, end = rest[-1]
            except IndexError:
                return  # a call has come in between the look and this
            table.states[record] = state
            table.ends[record] = end
            del rest[-1]

    def _line_up(self, table: _Table, record: Any) -> None:
        page = table.page
        if page is None:
            page = _Page(table, record)
            # Whatever came in between: this page is in line as soon as others may be added to it.
            table.page = page
            self._line.append(page)
            return
        keys: Any = page.keys
        keys.append(record)
        if len(keys) >= _PAGE:
            table.page = None
            page.keys = tuple(keys)

    def _sweep(self, now: int, most: int) -> None:
        if self._rest:
            # They stand in line already, and would be dropped from it.
            self._store_rest()
        line = self._line
        found = False
        for _ in range(most):
            if not line:
                break
            page = line[0]
            table = page.table
            if table.page is page:
                table.page = None
            if page.keys.__class__ is tuple:
                page.keys = list(page.keys)
            keys: Any = page.keys
            if keys:
                record = keys[-1]
                if record not in table.ends:
                    pass
                elif table.ends[record] + _LINGER_US <= now:
                    if now > self._swept_us:
                        self._swept_us = now
                    del table.ends[record]
                    table.states.pop(record, None)
                    found = True
                else:
                    self._line_up(table, record)
                # Last: where a signal comes in between, the key stands in line twice, not nowhere.
                if keys and keys[-1] is record:
                    keys.pop()
            if not keys and line and line[0] is page:
                line.popleft()
        self._sweep_due_us = now if found else now + _PAUSE_US


_STORES: process.WeakRegistry[_Records] = process.WeakRegistry()


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


def _begin_child() -> None:
    # The calls in flight are the parent's: none of them ends in the child.
    for records in _STORES:
        for _, table in records.tables():
            if isinstance(table.program, Concurrency):
                table.clear()


process.resting(lambda: map(_resting, _STORES))
process.in_child(_warn)
process.in_child(_begin_child)


def _ticks_of(clock: Clock) -> tuple[Callable[[], int], int, int]:
    return clock.ticks() if type(clock) is SystemClock else (clock.now_us, 1, 0)


def _at_civil_time(step: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    def skewed(state: Any, now: int, asked: Any) -> Any:
        return step(state, now, asked, clock.wall_us() - now)

    return skewed
