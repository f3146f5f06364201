"""What is dropped without being closed is gone at once, its store too: nothing is left to the collector."""

import gc
from weakref import ref

import pytest

from shapekit import GCRA, Adaptive, ConfigError, Gate, ManualClock, MemoryStore, Policy, RedisStore, Shaper

from ..redis_server import shared_server


def admitted(policy):
    with policy.admit():
        pass


DROPPED = {
    "gate": lambda store: Gate(GCRA("10/s"), store=store).check(),
    "shaper": lambda store: Shaper("10/s", store=store).schedule(),
    "shaper that waited": lambda store: [shaper.schedule() for shaper in [Shaper("10/s", store=store)] * 2],
    "adaptive shaper": lambda store: Shaper(adaptive=Adaptive("1/s", "9/s"), store=store).schedule(),
    "policy": lambda store: admitted(Policy("10/s", store=store)),
    "policy of a quota": lambda store: admitted(Policy(quota="10/day", store=store)),
}


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("use", DROPPED.values(), ids=DROPPED)
def test_it_is_gone_at_once(use):
    store = MemoryStore(ManualClock(autojump=True))
    gone = ref(store)
    use(store)
    del store
    assert gone() is None


@pytest.mark.usefixtures("uncollected")
def test_also_where_it_was_refused():
    store = MemoryStore(ManualClock())
    gone = ref(store)
    Gate(GCRA("10/s"), store=store, name="api").check()
    with pytest.raises(ConfigError):
        Shaper("10/s", store=store, name="api")
    del store
    assert gone() is None


@pytest.mark.usefixtures("uncollected")
def test_the_connections_of_a_redis_store_are_closed_with_it():
    store = RedisStore.from_url(shared_server().url)
    Gate(GCRA("10/s"), store=store, name="dropped").check()
    [(connection, _)] = store._kept._idle
    assert connection._sock is not None
    del store
    assert connection._sock is None
