"""Every number of a state is replaced by forged ones of every kind: a refusal or an answer follows, soon."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from shapekit import (
    GCRA,
    FixedWindow,
    ManualClock,
    Quota,
    RedisStore,
    SlidingWindow,
    SQLiteStore,
    all_of,
)
from shapekit.algorithms.base import DEBIT
from shapekit.algorithms.inflight import ENTER, LEAVE, Concurrency
from shapekit.algorithms.queue.adaptive import SUCCEEDED, THROTTLED, AdaptiveQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL, CANCEL_MANY, LOOK, RESERVE, SETTLE
from shapekit.rate import Rate
from shapekit.stores.base import DamagedStateError
from shapekit.testing.timelines import Trial, queue

from ..redis_server import shared_server
from .poison import ARGUMENTS, NOW_US, as_text, is_answer, operations_of, packed, unpacked

pytestmark = pytest.mark.long

PREFIX = "forged"
LARGEST = 2**53 - 1
FALSE = (
    *(-1, 0, NOW_US, LARGEST, -LARGEST, 2**63 - 1, 10**400, 1.5, float("nan")),
    *(True, None, "", "9", [], {"a": 1}),
)
CALLS = 5
PROGRAMS: dict[str, Any] = {
    "spread over days": Quota("3/day", spread=True),
    "spread, in a zone": Quota("3/day", tz="Europe/Berlin", spread=True),
    "spread over odd spans": Quota("2/fixed:999983us", offset_minutes=7, spread=True),
    "days": Quota("1/day"),
    "months, in a zone": Quota("1/month", tz="America/New_York", anchor_day=31),
    "spread, in a composite": all_of(a=Quota("3/day", spread=True), b=GCRA("3/day", 9)),
    "line with a gap": queue("7/s"),
    "line, spread": queue(
        "5/day", gates=(Quota("1/day", tz="Europe/Berlin", spread=True), FixedWindow("4/s"))
    ),
    "line over days": queue(None, gates=(Quota("1/day"),)),
    "line over months, in a zone": queue(
        None, gates=(Quota("1/month", tz="America/New_York", anchor_day=31),)
    ),
    "line under windows": queue("5/s", gates=(SlidingWindow("2/s"), GCRA("2/s", 2))),
    "line under one window": queue("5/s", gates=(SlidingWindow("2/s"),)),
    "found rate": AdaptiveQueue(Rate.parse("1/s"), Rate.parse("62/s"), 3),
    "few permits": Concurrency(4, "10s"),
    "one permit": Concurrency(1, "1h"),
}
EACH = pytest.mark.parametrize("program_name", PROGRAMS)


class Life:
    """A program in a store after so many calls that its state has every part."""

    def __init__(self, store: Any, clock: ManualClock, program: Any) -> None:
        self.trial = Trial(program, 1)
        self._store = store
        self._asks = {one: store.bind("forged", program, one) for one in operations_of(self.trial)}
        self._grants: list[Grant] = []
        self._live(clock)

    def _live(self, clock: ManualClock) -> None:
        if self.trial.is_room:
            for number in range(1, 6):
                for owner in (7, 8):
                    self._ask(ENTER, owner, number, 1)
            self._ask(LEAVE, 7, 1)
            return
        if self.trial.is_queue:
            self._grants = [Grant(*self._ask(RESERVE, (1, 2**51, 7))) for _ in range(CALLS)]
            if self.trial.is_adaptive:
                self._ask(SUCCEEDED, 3, 10**5, 7)
                self._ask(THROTTLED, 10**5, 10**5, 7)
            for place in (1, 3):
                self._ask(CANCEL, self._grants[place])
            return
        for _ in range(CALLS):
            self._ask(DEBIT, 1)
            # The clock is set forward: a quota keeps several periods then.
            clock.step_wall(31 * 86_400)
        clock.advance(0.1)

    def ask_all(self, *refusals: type[Exception]) -> int:
        """Make every call; returns how many were refused."""
        refused = 0
        last = self._grants[-1:]
        odd: dict[str, tuple[Any, ...]] = {
            CANCEL: tuple(last[:1]),
            CANCEL_MANY: (tuple(last),),
            SETTLE: ((last[0], 3, 7),) if last else (),
        }
        for operation in self._asks:
            try:
                answer = self._ask(operation, *(odd.get(operation) or ARGUMENTS[operation]))
            except refusals as error:
                refused += 1
                assert len(str(error)) < 2_000
            else:
                assert operation == LOOK or is_answer(operation, answer), (operation, answer)
        return refused

    def heal(self) -> None:
        """A reset makes the key as good as new."""
        self._store.reset("forged", self.trial.program, "k")
        assert self.ask_all() == 0

    def _ask(self, operation: str, *args: Any) -> Any:
        return self._asks[operation]("k", *args)


def forgeries(state: Any) -> Iterator[Any]:
    """The state with one forged number, for every place and every kind; one part missing, one part twice."""
    yield from FALSE
    if isinstance(state, list):
        for place, part in enumerate(state):
            yield [*state[:place], *state[place + 1 :]]
            yield [*state[:place], part, *state[place:]]
            for forged in forgeries(part):
                yield [*state[:place], forged, *state[place + 1 :]]


class InRedis:
    """A program in Redis, whose state can be rewritten."""

    stride = 3
    """Calls go over a wire: only every third forgery is tried at each place, and another at the next."""

    def __init__(self, program: Any, clock: ManualClock) -> None:
        self._client = shared_server().client()
        self.store = RedisStore.from_url(shared_server().url, prefix=PREFIX, clock=clock)
        self.life = Life(self.store, clock, program)
        [self._key] = self._client.keys(f"{PREFIX}:{{*")
        self._tag, *self.state = unpacked(self._client.get(self._key))

    def write(self, state: Any) -> None:
        parts = state if isinstance(state, list) else [state]
        self._client.set(self._key, b"".join(map(packed, [self._tag, *parts])))

    def close(self) -> None:
        self._client.delete("nothing", *self._client.keys(f"{PREFIX}:*"))
        self._client.close()
        self.store.close()


class InFile:
    """A program in a file, whose state can be rewritten."""

    stride = 1

    def __init__(self, program: Any, clock: ManualClock, path: Path) -> None:
        self.store = SQLiteStore(path, clock=clock)
        self.life = Life(self.store, clock, program)
        transact = self.store._file.transact
        [(text,)] = transact(lambda execute: execute("SELECT state FROM records").fetchall())
        self.state = json.loads(text)

    def write(self, state: Any) -> None:
        self.store._file.transact(
            lambda execute: execute("UPDATE records SET state = ?, expires_us = ?", (as_text(state), 2**61))
        )

    def close(self) -> None:
        self.store.close()


@pytest.fixture(params=["Redis", "SQLite"])
def lived(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Runs a program in the store, by its name."""
    made: list[Any] = []

    def live(program_name: str) -> Any:
        clock = ManualClock(NOW_US / 1e6)
        where = (
            InRedis(PROGRAMS[program_name], clock)
            if request.param == "Redis"
            else InFile(PROGRAMS[program_name], clock, tmp_path / "forged.db")
        )
        made.append(where)
        return where

    yield live
    for where in made:
        where.close()


@EACH
def test_a_forged_number_is_refused_or_does_no_harm(lived: Callable[[str], Any], program_name: str) -> None:
    where = lived(program_name)
    refused = 0
    for state in islice(forgeries(where.state), None, None, where.stride):
        where.write(state)
        refused += where.life.ask_all(DamagedStateError)
        list(where.store.survey())
    assert refused > 100
    where.write("x")
    where.life.heal()


LISTS: list[tuple[str, tuple[int, ...]]] = [
    *(("days", ()), ("months, in a zone", ()), ("spread over days", (0,)), ("spread over days", (1,))),
    *(("spread, in a composite", (0, 0)), ("line, spread", (-1, 0, 0)), ("line, spread", (-2,))),
    *(("line with a gap", (-2,)), ("line under windows", (-2,)), ("found rate", (-4,))),
    *(("few permits", (-2,)), ("one permit", (-1,)), ("few permits", (-1,))),
]


@pytest.mark.parametrize(("program_name", "place"), LISTS)
def test_impossibly_long_lists_are_refused(
    lived: Callable[[str], Any], program_name: str, place: tuple[int, ...]
) -> None:
    """A loop that is fast for the possible numbers would take for ever with forged ones."""
    where = lived(program_name)
    part = where.state
    for index in place:
        part = part[index]
    assert part
    part += part[-3:] * 10_000
    where.write(where.state)
    assert where.life.ask_all(DamagedStateError) == len(operations_of(where.life.trial))
    where.life.heal()


RANGES = [(1, LARGEST), (-LARGEST, LARGEST), (5, 4), (5, -LARGEST), (LARGEST, 1), (1, 10_001), (2, 20_000)]


@pytest.mark.parametrize("program_name", ["few permits", "one permit"])
@pytest.mark.parametrize("ends", RANGES, ids=str)
@pytest.mark.parametrize("which", ["permits", "line"])
def test_impossible_numbers_of_calls_are_refused_without_a_loop_over_them(
    lived: Callable[[str], Any], program_name: str, ends: tuple[int, int], which: str
) -> None:
    where = lived(program_name)
    newest, owners, permits, line = where.state
    forged = [[7, *ends]]
    where.write([newest, owners, forged, line] if which == "permits" else [newest, owners, permits, forged])
    assert where.life.ask_all(DamagedStateError) == len(operations_of(where.life.trial))
    where.life.heal()


def test_the_largest_possible_number_of_calls_is_accepted(lived: Callable[[str], Any]) -> None:
    where = lived("one permit")
    newest, owners, *_ = where.state
    where.write([newest, owners, [[7, 1, 10_000]], [[7, 10_001, 20_000]]])
    assert where.life.ask_all() == 0


LAWS = [
    (0, 0),
    (0, 2**30 + 1),
    (1, -1),
    (2, -1),
    (2, 2**31),
    (3, -1),
    (3, 80_000_001),
    (6, -1),
    (6, 4),
    (7, 0),
]


@pytest.mark.parametrize(("place", "value"), LAWS)
def test_an_unreachable_rate_law_is_refused(lived: Callable[[str], Any], place: int, value: int) -> None:
    """If only one of the twins went on from it, they would not decide alike."""
    where = lived("found rate")
    where.state[-1][place] = value
    where.write(where.state)
    assert where.life.ask_all(DamagedStateError) == len(operations_of(where.life.trial))
    where.life.heal()


@pytest.mark.parametrize("cost", [0, -1, 10**12 + 1, LARGEST])
def test_a_charge_beyond_the_range_of_numbers_is_refused(lived: Callable[[str], Any], cost: int) -> None:
    where = lived("spread over days")
    where.state[1][2] = cost
    where.write(where.state)
    assert where.life.ask_all(DamagedStateError) == len(operations_of(where.life.trial))
    where.life.heal()


@pytest.mark.parametrize("count", [0, 2**20, 2**40, LARGEST])
def test_a_forged_number_of_places_ends(lived: Callable[[str], Any], count: int) -> None:
    where = lived("line under one window")
    book = where.state[-2]
    if isinstance(book[0], list):
        [[[row, *_]], _] = book[0]
        assert row[1] == 1
        row[1] = count
    else:
        digits = bytes([count >> up & 127 for up in range(49, -1, -7)])
        # The number of rows comes first, and of each the number of its slots second.
        assert book[0][16:24] == bytes([0] * 7 + [1])
        book[0] = book[0][:16] + digits + book[0][24:]
    where.write(where.state)
    where.life.ask_all(DamagedStateError)
    where.life.heal()


@pytest.mark.parametrize("opened", [-LARGEST, -(2**52), 0, LARGEST - 1, LARGEST])
@pytest.mark.parametrize("ahead_us", [0, -1, 1, -86_399_999_997, -86_399_999_999])
@pytest.mark.parametrize("program_name", ["days", "spread over days", "spread over odd spans"])
def test_a_forged_period_of_any_time_ends(
    lived: Callable[[str], Any], program_name: str, opened: int, ahead_us: int
) -> None:
    """At the end of a double's range, adding a microsecond changes nothing."""
    where = lived(program_name)
    where.store.clock.step_wall(ahead_us / 1e6)
    counter = PROGRAMS[program_name].counter
    periods = getattr(counter, "counter", counter).periods
    book = []
    for civil in (opened + ahead_us, opened, opened + 10**6):
        start, end = periods.bounds(civil)
        book += [part for begun in (start, end) for part in (min(begun, LARGEST), 10**12, opened)]
    where.write([book, []] if program_name.startswith("spread") else book)
    where.life.ask_all(DamagedStateError)
    where.life.heal()


def test_a_far_period_of_one_key_affects_no_other(lived: Callable[[str], Any]) -> None:
    for program_name in ("months, in a zone", "spread, in a zone"):
        where = lived(program_name)
        spread_out = [part for year in range(16) for part in (year * 10**14, 1, NOW_US)]
        far = (LARGEST, LARGEST - 2**40, -LARGEST, 2**52, 10**12)
        for periods in (*([start, 1, start] for start in far), spread_out):
            where.write([periods, []] if program_name.startswith("spread") else periods)
            where.life.ask_all(DamagedStateError)
        where.life.heal()
        where.store.reset_all()
