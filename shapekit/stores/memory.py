"""MemoryStore: states in the memory of one process."""

from __future__ import annotations

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
"""How many keys a call with a new key checks for being idle. Such a call adds only one key, so at any time at
least half of the kept keys were live or lingering at once.
"""
_BATCH = 16
"""How many keys a call with a known key checks, if sweeping is due."""
_PAUSE_US = 10_000
"""How long sweeping pauses after a batch without an idle key."""
_LINGER_US = 1_000_000
"""How long an idle key is kept, so that it is still there if a clock goes back a little."""
_PAGE = 64
"""How many keys a page of the sweeping line holds."""


class _Overtaken(Exception):  # noqa: N818 - no error: the step is run again
    """Another call of the same thread came in between and changed the state that this one had read."""


class _Table:
    """The states that one program has left under one name.

    States are tuples of integers in plain dictionaries, and keys line up for sweeping in tuples of texts: the
    garbage collector stops tracking both, so that a million keys do not slow it down.
    """

    __slots__ = ("ends", "is_bound", "page", "program", "states")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.states: dict[Any, Any] = {}
        """By key, or by (part, key) for parts of a composite with keys of their own; None if cold."""
        self.ends: dict[Any, int] = {}
        """When each state is the same as a cold one. Every key in here is in the sweeping line once."""
        self.page: _Page | None = None
        """The page that is being filled."""
        self.is_bound = False
        """Whether the program comes from the code: then its table is kept for ever."""

    def chill(self, record: Any) -> None:
        """Make a key cold. It stays in the line, and is swept like any idle key."""
        if record in self.ends:
            self.states[record] = None
            self.ends[record] = 0

    def clear(self) -> None:
        """Forget every key."""
        # One by one: a call that comes in between finds a key unchanged, or finds none and adds it again.
        self.page = None
        for record in list(self.ends):
            if record in self.ends:
                del self.ends[record]
                self.states.pop(record, None)


class _Page:
    """Keys of one table in the sweeping line: a list while it is filled or swept, else a tuple."""

    __slots__ = ("keys", "table")

    def __init__(self, table: _Table, record: Any) -> None:
        self.table = table
        self.keys: list[Any] | tuple[Any, ...] = [record]


_Left: TypeAlias = tuple[_Table, Any]
"""The table of another program, and the state that the program has left there."""
_Space: TypeAlias = dict[Program, _Table]
"""The tables of one name: more than one if a limit was changed, or has parts with keys of their own."""


class _Records:
    """All that one store holds, and the lock on it: the part that a fork has to handle.

    A finalizer or a signal handler may call the store in the middle of a call of the same thread, and so
    takes the lock once more. Therefore a call compares the state that it has read with the one that is there,
    and stores the new one, in statements that call and allocate nothing. If the two differ, the call is run
    again: so both calls count, once each. Another thread can only come in at the same places, so a charge,
    which stores one state, needs no lock: other operations take it to keep several values consistent.
    """

    __slots__ = ("__weakref__", "clock", "lock", "spaces")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = process.rlock()
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

    Nothing runs in the background: each call sweeps a few idle keys, and a live key is never dropped. A
    forked child warns once, because parent and child then count separately, which allows twice the rate.
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
        """The parts of a composite's call that are still to be stored, as (table, record, state, end): they
        count together.
        """
        self._closed = False
        self._renewals: dict[ref[Any], Callable[[], None]] = {}
        """The functions that renew what bound calls know of the clock and of overrides."""
        self._stored: dict[str, Stored] = {}
        self._tidied: dict[str, object] = {}
        """By name, the settings for which the tables of earlier ones were last dropped."""
        _STORES.add(self._records)
        forgets(self, MemoryStore._forget_all)

    def _forget_all(self) -> None:
        # From now on, bound calls read the clock as it is now.
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
                        """The step is run again."""

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
            # While the name has overrides, its calls find no state here, and take the path that obeys them.
            find = states.get if not settings.known.overrides else lambda _: None

        def charge(key: Any, argument: Any) -> Any:
            # `apply`, written out for the path of every admitted call: a live key of this program. The state
            # is read before the clock: so it is never later than the time of the call.
            before = find(key)
            if before is not None and (now := ticks() // per_us + offset_us) < self._sweep_due_us:
                state, result, ttl_us, persist = step(before, now, argument)
                if not persist:
                    return result
                try:
                    if states[key] is before:
                        states[key] = state
                        ends[key] = now + ttl_us
                        return result
                except KeyError:
                    """A call that came in between has swept the key."""
            return apply(key, argument)

        def charge_alone(key: Any, argument: Any) -> Any:
            with lock:
                return charge(key, argument)

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
                        raise error  # before any of the keys is charged
                answers = []
                for key in keys:
                    while True:
                        try:
                            answers.append(run(key, now, args))
                            break
                        except _Overtaken:
                            """The step is run again."""
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
        """How many keys are in memory, including idle ones that are not swept yet."""
        return sum(len(table.ends) for _, table in self._records.tables())

    def __repr__(self) -> str:
        return f"MemoryStore({len(self)} keys)"

    # under the lock

    def _runner(
        self, name: str, program: Program, operation: Operation, *, as_it_is: bool = False
    ) -> Callable[..., Any]:
        """The function that runs an operation; `as_it_is` for a program with the limits of an override.

        It raises _Overtaken if another call came in between; then it has changed nothing.
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
            """The state that another program has left, with its table; and that state as this program's."""
            for table in list(space.values()):
                if table is not own and (state := table.states.get(record)) is not None:
                    skew = clock.wall_us() - now
                    return (table, state), continued(name, key, own.program, state, table.program, now, skew)
            return None, None

        def overridden(key: Any, now: int, args: tuple[Any, ...]) -> Callable[..., Any] | None:
            """The function that decides about a key in place of this one; None if no override applies."""
            nonlocal known
            self._drop_ended(settings)
            if known is not settings.known:
                # Earlier overrides decide no more: their programs and tables are dropped.
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
        """Drop the empty tables of programs of earlier overrides; once per change, for all operations: from
        then on, the tables of the current overrides are in use.
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
        # First: so a key that a call adds in between is in the line.
        self._line.clear()
        for _, table in self._records.tables():
            table.clear()

    def _keep(
        self, table: _Table, key: str, before: Any, outcome: Any, now: int, left: _Left | None, changes: int
    ) -> bool:
        """Store a state, remove it from another program's table, and sweep.

        False if a call came in between, after `before` was read: then nothing is stored.
        """
        is_new = key not in table.ends
        if is_new:
            # First: if a signal comes in between, a key in the line without a state is merely dropped.
            self._line_up(table, key)
        states, (state, _, ttl_us, _) = table.states, outcome
        # No signal handler and no finalizer comes between these: nothing is called or allocated.
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
        """Store the parts of a composite's call. A call that comes in between first stores what is left."""
        rest = self._rest
        while rest:
            try:
                table, record, state, end = rest[-1]
            except IndexError:
                return  # a call that came in between has stored the rest
            table.states[record] = state
            table.ends[record] = end
            del rest[-1]

    def _line_up(self, table: _Table, record: Any) -> None:
        page = table.page
        if page is None:
            page = _Page(table, record)
            # Whatever comes in between: the page is in the line before other calls can add to it.
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
            # These keys are in the line already, and would be dropped from it.
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
                # Last: if a signal comes in between, the key is in the line twice, rather than not at all.
                if keys and keys[-1] is record:
                    keys.pop()
            if not keys and line and line[0] is page:
                line.popleft()
        self._sweep_due_us = now if found else now + _PAUSE_US


_STORES: process.WeakRegistry[_Records] = process.WeakRegistry()


def _resting(records: _Records) -> Iterator[None]:
    # A lock that another thread holds during the fork would stay locked in the child for ever.
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
    # The calls in flight are the parent's: none of them will end in the child.
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
    def skewed(state: Any, now: int, argument: Any) -> Any:
        return step(state, now, argument, clock.wall_us() - now)

    return skewed
