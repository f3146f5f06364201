"""Another kind under a name of a SQLite file: refused while one lives there, free once all is idle."""

from contextlib import closing

import pytest

from shapekit import GCRA, ConfigError, Gate, ManualClock, MemoryStore
from shapekit.algorithms.base import CHECK
from shapekit.algorithms.compose import of_one_kind
from shapekit.algorithms.inflight import ENTER
from shapekit.algorithms.queue.wire import RESERVE
from shapekit.stores.sqlite import SQLiteStore
from shapekit.testing.timelines import GROUPS


@pytest.fixture
def clock():
    return ManualClock(1_000.0)


@pytest.fixture
def stores(path, clock):
    """Two stores on one file, as two processes have them."""
    with closing(SQLiteStore(path, clock=clock)) as one, closing(SQLiteStore(path, clock=clock)) as other:
        yield one, other


ONE_OF_EACH = {
    trial.program.kind + ("" if not trial.apart else " apart"): trial
    for group in GROUPS.values()
    for trial in group()
}
KINDS = pytest.mark.parametrize("kind", ONE_OF_EACH)


def charging(store, trial, name="api"):
    """A call on one key, by the operation that fits this kind of program."""
    operation = ENTER if trial.is_room else RESERVE if trial.is_queue else CHECK
    args = {ENTER: (7, 1, 1), RESERVE: ((1, None, 7),), CHECK: (1,)}[operation]
    ask = store.bind(name, trial.program, operation)
    key = ("same",) * len(trial.program.parts) if trial.apart else "same"
    return lambda: ask(key, *args)


@KINDS
def test_a_name_that_was_refused_is_free_once_all_its_keys_are_idle(kind, stores, clock):
    first = ONE_OF_EACH[kind]

    def until_all_are_idle():
        [(idle_us,)] = stores[0]._file.transact(
            lambda execute: execute("SELECT max(expires_us) FROM records").fetchall()
        )
        clock.set(max(clock.now(), idle_us / 1e6))

    for number, second in enumerate(ONE_OF_EACH.values()):
        if of_one_kind(second.program.kind, first.program.kind):
            continue
        name = f"api {number}"
        before = charging(stores[0], first, name)
        later = charging(stores[1], second, name)
        before()
        with pytest.raises(ConfigError, match=f"already holds a {first.program.kind}"):
            later()
        until_all_are_idle()
        assert later() == charging(MemoryStore(clock), second)()
        until_all_are_idle()
        # A store that used the name before still knows it.
        assert before()


def test_a_state_of_a_later_version_blocks_its_name_until_it_is_idle(stores, clock):
    gate = Gate(GCRA("1/s", burst=1), name="api", store=stores[0])
    assert gate.check()
    forged = ('["gcra_plus",[1,1],1]',)
    stores[0]._file.transact(lambda execute: execute("UPDATE programs SET description = ?", forged))
    other = Gate(GCRA("2/s", burst=1), name="api", store=stores[1])
    with pytest.raises(ConfigError, match="does not describe a program"):
        other.check()
    clock.advance(1)
    assert other.check()
