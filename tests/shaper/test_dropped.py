"""What is dropped without being closed is gone at once, its store too: nothing is left to the collector."""

import asyncio
import gc
from weakref import ref

import pytest

from shapekit import (
    GCRA,
    Adaptive,
    ConfigError,
    Gate,
    ManualClock,
    MemoryStore,
    Policy,
    RateLimitedError,
    RedisStore,
    Shaper,
    StoreUnavailableError,
)
from shapekit._runtime.drivers import TASKS, run
from shapekit.algorithms.queue.wire import CONFIRM
from shapekit.keys import Target

from ..redis_server import shared_server

TARGET = Target("GET", "https", "api.x", None, "/search")


def admitted(policy):
    with policy.admit():
        pass


def refused(shaper):
    shaper.reserve()
    shaper.schedule(max_wait=0)


def refused_beside_a_permit(policy):
    policy.shaper.reserve()
    with policy.admit(max_wait=0):
        pass


def with_a_held_scope(policy):
    policy.scoped.scopes.learn("default", TARGET, "search")
    run(policy.scoped.hold, 60, "default", "search")
    return policy.scoped


def refused_in_a_scope(policy):
    run(with_a_held_scope(policy).schedule, "default", TARGET, 1, max_wait=0)


def unconfirmed(shaper):
    """Its store is gone when the call asks whether its slot has moved."""
    shaper.reserve()
    shaper.core.store.breaks = True
    shaper.schedule()


class Breaking(MemoryStore):
    instant = breaks = False

    def bind(self, name, program, operation):
        apply = super().bind(name, program, operation)

        def watched(*args):
            if self.breaks and operation is CONFIRM:
                raise StoreUnavailableError("gone")
            return apply(*args)

        return watched


REFUSED = {
    "shaper": lambda store: refused(Shaper("1/s", store=store, name="api")),
    "policy": lambda store: refused_beside_a_permit(Policy("1/s", concurrency=2, store=store, name="api")),
    "scope": lambda store: refused_in_a_scope(Policy("1/s", store=store, name="api")),
    "no answer": lambda store: unconfirmed(Shaper("1/s", store=store, name="api")),
}
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
def test_a_dropped_store_is_gone_at_once(use):
    store = MemoryStore(ManualClock(autojump=True))
    gone = ref(store)
    use(store)
    del store
    assert gone() is None


@pytest.mark.usefixtures("uncollected")
def test_a_store_that_refused_a_shaper_is_gone_at_once():
    store = MemoryStore(ManualClock())
    gone = ref(store)
    Gate(GCRA("10/s"), store=store, name="api").check()
    with pytest.raises(ConfigError):
        Shaper("10/s", store=store, name="api")
    del store
    assert gone() is None


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED)
def test_the_store_and_the_error_of_a_refused_call_are_gone_at_once(use):
    store = Breaking(ManualClock(autojump=True))
    gone = ref(store)
    try:
        use(store)
    except (RateLimitedError, StoreUnavailableError) as error:
        reason = ref(error)
    del store
    assert reason() is None
    assert gone() is None


@pytest.mark.usefixtures("uncollected")
def test_the_error_of_a_refused_task_is_gone_at_once():
    async def refused():
        policy = Policy("1/s", clock=ManualClock(), name="api")
        try:
            await with_a_held_scope(policy).schedule(TASKS, "default", TARGET, 1, max_wait=0)
        except RateLimitedError as error:
            return ref(error)

    assert asyncio.run(refused())() is None


@pytest.mark.usefixtures("uncollected")
def test_the_connections_of_a_redis_store_are_closed_with_it():
    store = RedisStore.from_url(shared_server().url)
    Gate(GCRA("10/s"), store=store, name="dropped").check()
    [(connection, _)] = store._kept._idle
    assert connection._sock is not None
    del store
    assert connection._sock is None
