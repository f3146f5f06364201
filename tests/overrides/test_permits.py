"""Permits go by the limit in force; waiting calls learn of a change that makes room, on every store."""

import threading
from contextlib import contextmanager

import pytest

from shapekit import ConfigError, Policy, QueueFullError, shaped
from shapekit._queue.inflight import LATER_US

from ..crew import Crew
from ..queue.inflight.rooms import standing

CROWD = 3


@contextmanager
def waiting(policy, together):
    """A crowd that waits for permits; at the end all of them have to have one, together."""
    barrier, crew = threading.Barrier(together), Crew()

    def call():
        with policy.admit():
            barrier.wait(20)

    with policy.admit():
        for _ in range(CROWD):
            crew.start(call)
        while len(policy.permits.registry._keys["default"].waiting) < CROWD:
            pass
        yield
        crew.join()
    assert crew.raised() == []
    assert standing(policy) == (0, 0)


@pytest.mark.parametrize(
    "change", [{"concurrency": 1 + CROWD}, {"state": "off"}, {"concurrency": 9, "key": "def*"}]
)
def test_waiting_calls_get_permits_at_once_when_the_limit_is_raised(store, change):
    policy = Policy(concurrency=1, name="api", store=store)
    with waiting(policy, together=CROWD):
        policy.configure(**change)


def test_waiting_calls_get_permits_at_once_when_a_lower_limit_is_removed(store):
    policy = Policy(concurrency=9, name="api", store=store)
    policy.configure(concurrency=1)
    with waiting(policy, together=CROWD):
        policy.unconfigure()


def test_waiting_calls_get_permits_when_a_lower_limit_ends_by_itself(store):
    policy = Policy(concurrency=9, name="api", store=store)
    policy.configure(concurrency=1, until=store.clock.wall_us() / 1e6 + 30)
    with waiting(policy, together=CROWD):
        store.clock.advance(30)
        if store.shared:
            # The store is looked at now and then.
            store.clock.advance(LATER_US * 9 / 8 / 1e6)


def test_only_as_many_waiting_calls_get_permits_as_there_is_room(store):
    policy = Policy(concurrency=1, name="api", store=store)
    with waiting(policy, together=1):
        policy.configure(concurrency=2)


def test_a_refusal_has_the_limit_in_force(store):
    policy = Policy(concurrency=1, name="api", store=store)
    policy.configure(concurrency=2)
    with policy.admit(), policy.admit(), pytest.raises(QueueFullError) as caught:
        policy.admit(max_wait=0).__enter__()
    assert caught.value.decision.limit == 2


def test_calls_inside_calls_go_by_the_limit_in_force(store):
    policy, depths = Policy(concurrency=1, name="api", store=store), []

    @shaped(policy=policy)
    def call(depth):
        depths.append(depth)
        return call(depth + 1)

    policy.configure(concurrency=3)
    with pytest.raises(ConfigError, match="concurrency=3 is used up"):
        call(1)
    policy.configure(concurrency=2)
    with pytest.raises(ConfigError, match="concurrency=2 is used up"):
        call(1)
    assert depths == [1, 2, 3, 1, 2]
