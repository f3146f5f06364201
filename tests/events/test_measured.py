"""enforce=False: no call waits and none is refused, so no wait and no refusal is reported."""

import math

import pytest

from shapekit import GCRA, MemoryStore, Policy, StoreUnavailableError, off
from shapekit.events import BudgetReached, Measured, StoreFailed
from shapekit.testing import FaultyStore

WAYS = ["admit", "scoped", "prepared", "templated"]


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def test_a_call_is_reported_with_the_wait_or_refusal_that_it_was_spared(world, clock, way, recorded):
    policy = Policy("10/s", name="stripe", max_wait=0.1, enforce=False, clock=clock)
    for _ in range(3):
        world.run(policy, way, "alice", cost=2)
    assert recorded == [
        Measured("stripe", "alice", 2, 0.0, None),
        Measured("stripe", "alice", 2, 0.2, "queue_full"),
        Measured("stripe", "alice", 2, 0.2, "queue_full"),
    ]
    assert clock.now() == 0.0


def test_a_call_that_would_have_waited(world, clock, way, recorded):
    policy = Policy("10/s", name="stripe", enforce=False, clock=clock)
    for _ in range(2):
        world.run(policy, way, "alice")
    assert recorded[1:] == [Measured("stripe", "alice", 1, 0.1, None)]


def test_a_spent_quota(world, clock, way, recorded):
    policy = Policy("10/s", name="stripe", quota="1/day", enforce=False, clock=clock)
    for _ in range(2):
        world.run(policy, way, "alice")
    assert recorded[1:] == [
        BudgetReached("stripe", "alice", "quota", 0.8, 1, 1),
        BudgetReached("stripe", "alice", "quota", 0.95, 1, 1),
        Measured("stripe", "alice", 1, 86_400.0, "quota_exhausted"),
    ]


def test_a_cost_that_could_never_be_admitted(world, clock, way, recorded):
    policy = Policy("10/s", name="stripe", gates=(GCRA("5/s"),), enforce=False, clock=clock)
    world.run(policy, way, "alice", cost=6)
    assert recorded == [Measured("stripe", "alice", 6, math.inf, "cost_exceeds_limit")]


def test_a_settlement_is_made_and_not_reported(world, clock, recorded):
    policy = Policy("10/s", name="stripe", enforce=False, clock=clock)
    with policy.admit("alice") as admission:
        pass
    assert world.do(admission.settle, 5)
    assert len(recorded) == 1
    assert policy.forecast(key="alice").first_in == 0.5


def test_a_store_that_does_not_answer_is_reported(world, clock, way, recorded):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", enforce=False, store=store)
    store.down = True
    with pytest.raises(StoreUnavailableError):
        world.run(policy, way, "alice")
    assert recorded == [StoreFailed("stripe", "alice", "this FaultyStore is down")]


def test_while_shaping_is_off_no_event_is_reported(world, clock, way, recorded):
    policy = Policy("10/s", name="stripe", enforce=False, clock=clock)
    with off():
        world.run(policy, way, "alice")
        world.run(policy, way, "alice")
    assert recorded == []
