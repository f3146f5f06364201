"""Control-C wherever it can come in a call of a store: the next call works in any thread, nothing is lost."""

import gc
import threading
from itertools import count

import pytest

from shapekit import FixedWindow, Gate, ManualClock, MemoryStore, Shaper
from shapekit.stores.redis import RedisStore
from shapekit.stores.sqlite import SQLiteStore

from ..redis_server import RedisServer
from .interrupts import Interrupt, open_files

# A client that is interrupted twice in closing a connection leaves its socket to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE_S = 20
TWICE = [0, *(pytest.param(then, marks=pytest.mark.long) for then in (1, 2, 3))]
"""How many calls later the second interruption comes; 0 for none."""


class World:
    """A store, its users, and a witness, whose calls are all counted."""

    def __init__(self, store):
        self.store = store
        self.shaper = Shaper("10/s; 1000000/day", name="shaper", store=store)
        self.gate = Gate(FixedWindow("1000000/day"), name="gate", store=store)
        self.count = 0
        self.prepare()

    def prepare(self):
        self.shaper.reset("a")
        self.shaper.reserve("a")
        self.slot = self.shaper.reserve("a")

    def looks_right(self):
        """The next calls, in another thread and in this one, do not hang, and get the right answers."""
        asker = threading.Thread(target=self._ask, daemon=True)
        asker.start()
        asker.join(PATIENCE_S)
        assert not asker.is_alive(), "the next call hangs"
        seen = self._ask()
        assert seen == self.count, (
            f"the witness has called {self.count} times, and the store has counted {seen}"
        )
        self.prepare()

    def _ask(self):
        self.count += 1
        return self.gate.check("witness").current


CALLS = {
    "check": lambda world: world.gate.check("a"),
    "check_many": lambda world: world.gate.check_many(["a", "b"]),
    "reserve": lambda world: world.shaper.reserve("a"),
    "schedule": lambda world: world.shaper.schedule("a"),
    "cancel": lambda world: world.slot.cancel(),
    "settle": lambda world: world.shaper.settle(world.slot, 3),
    "hold": lambda world: world.shaper.hold("1s", key="a"),
    "reset": lambda world: world.gate.reset("a"),
    "reset_all": lambda world: world.store.reset_all("shaper:b"),
    "keys": lambda world: list(world.store.keys()),
}


@pytest.fixture(scope="module")
def server():
    """A Redis of its own: looking through all keys of a shared one takes more lines the more there are."""
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def make(request, tmp_path, monkeypatch, server):
    """Makes stores; on Redis one of a single connection, so that one that is lost is missed at once."""
    monkeypatch.setattr("shapekit.stores.redis.store.MOST_CONNECTIONS", 1)

    numbers = count()
    # Garbage is looked for again and again, among what a test has made itself.
    gc.collect()
    gc.freeze()

    def new():
        clock = ManualClock(1_000.0, autojump=True)
        match request.param:
            case "memory":
                return MemoryStore(clock)
            case "sqlite":
                return SQLiteStore(tmp_path / f"{min(next(numbers), 1)}.db", clock=clock)
            case _:
                return RedisStore.from_url(server.url, clock=clock, prefix=tmp_path.name)

    return new


def interrupted_everywhere(call, looks_right, then=0):
    """Interrupts `call` at one place after the other, until it comes through; returns how many there were."""
    for at in count(1):  # pragma: no branch
        with Interrupt(at, then) as interrupt:
            try:
                call()
            except KeyboardInterrupt:
                """It was interrupted."""
        if interrupt.where is None:
            break
        try:
            looks_right()
        except BaseException as error:
            raise AssertionError(f"after an interruption on the {interrupt.where}") from error
    return at - 1


@pytest.mark.parametrize("then", TWICE)
@pytest.mark.parametrize("name", CALLS)
def test_the_next_call_works_and_nothing_is_lost(make, name, then):
    world = World(make())
    # What is made once, scripts above all, is made now.
    CALLS[name](world)
    world.looks_right()
    before = open_files()

    def looks_right():
        world.looks_right()
        assert open_files(before) <= before, "descriptors are lost"

    assert interrupted_everywhere(lambda: CALLS[name](world), looks_right, then) > 3
    world.store.close()


@pytest.mark.long
@pytest.mark.parametrize("then", [0, 1, 2, 3])
def test_a_store_that_is_interrupted_while_it_is_made_leaves_nothing_behind(make, then):
    witness = World(make())
    CALLS["check"](witness)
    witness.looks_right()
    before = open_files()

    def use():
        store = make()
        Gate(FixedWindow("9/day"), name="gate", store=store).check("a")
        store.close()

    def looks_right():
        witness.looks_right()
        assert open_files(before) <= before, "descriptors are lost"

    assert interrupted_everywhere(use, looks_right, then) > 20
    witness.store.close()


def test_a_store_can_be_closed_again_after_an_interrupted_close(make):
    before = open_files()
    for at in count(1):
        world = World(make())
        with Interrupt(at) as interrupt:
            try:
                world.store.close()
            except KeyboardInterrupt:
                """It was interrupted."""
        world.store.close()
        assert open_files(before) <= before, f"after an interruption on the {interrupt.where}"
        if interrupt.where is None:
            break
