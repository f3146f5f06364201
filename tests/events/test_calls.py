"""What is told of a call: each way, each ending, in order, and nothing else."""

import anyio
import pytest

from shapekit import (
    MemoryStore,
    Policy,
    QueueFullError,
    QuotaExhaustedError,
    Shaper,
    StoreUnavailableError,
    off,
)
from shapekit._runtime.drivers import run
from shapekit.events import Cancelled, Departed, Held, Refused, Reserved, Settled, StoreFailed
from shapekit.testing import FaultyStore

from .calls import PATIENT, SCOPE, WAYS, Tasks, once_reserved


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture(params=PATIENT)
def patient(request):
    return request.param


def test_a_call_that_leaves_at_once(world, policy, way, heard):
    world.run(policy, way, "alice")
    assert heard == [Reserved("stripe", "alice", 1, 0.0), Departed("stripe", "alice", 1, 0.0, 0.0)]


def test_a_call_that_waits(world, policy, way, heard):
    policy.shaper.reserve("alice")
    del heard[:]
    world.run(policy, way, "alice", cost=3)
    world.run(policy, way, "alice")
    assert heard == [
        Reserved("stripe", "alice", 3, 0.1),
        Departed("stripe", "alice", 3, 0.1, 0.0),
        Reserved("stripe", "alice", 1, 0.3),
        Departed("stripe", "alice", 1, 0.3, 0.0),
    ]


def test_each_is_told_where_it_happens(world, policy, clock, way):
    policy.shaper.reserve("alice")
    told = []
    with policy.listen(lambda event: told.append((type(event), clock.now()))):
        world.run(policy, way, "alice")
    assert told == [(Reserved, 0.0), (Departed, 0.1)]


def test_a_call_that_is_refused_at_once(world, clock, way, heard):
    policy = Policy("10/s", name="stripe", max_wait=0.05, clock=clock)
    policy.shaper.reserve("alice")
    del heard[:]
    with pytest.raises(QueueFullError) as caught:
        world.run(policy, way, "alice", cost=2)
    assert heard == [Refused("stripe", "alice", 2, "queue_full", 0.1, False)]
    assert caught.value.delay == 0.1


def test_a_call_that_a_spent_quota_refuses(world, clock, way, heard):
    policy = Policy("10/s", name="stripe", quota="1/day", clock=clock)
    world.run(policy, way, "alice")
    clock.advance(3_600)
    del heard[:]
    with pytest.raises(QuotaExhaustedError):
        world.run(policy, way, "alice")
    assert heard == [Refused("stripe", "alice", 1, "quota_exhausted", 23 * 3_600.0, False)]


def test_a_call_that_gives_up(world, policy, patient, heard):
    policy.shaper.reserve("alice", cost=10)
    del heard[:]
    with pytest.raises(TimeoutError):
        world.run(policy, patient, "alice", timeout=0.25)
    assert heard == [Reserved("stripe", "alice", 1, 1.0), Cancelled("stripe", "alice", 1, True)]


def test_a_call_whose_wait_a_hold_makes_too_long(world, policy, patient, heard):
    policy.shaper.reserve("alice", cost=10)
    policy.shaper.hold("1s", key="alice")
    del heard[:]
    longer = once_reserved(policy, policy.shaper.hold, "5s", key="alice")
    with longer, pytest.raises(QueueFullError) as caught:
        world.run(policy, patient, "alice", max_wait=3)
    kinds = [type(event) for event in heard]
    assert kinds == [Held, Reserved, Refused]  # who listens here is told first, and held the key
    assert heard[2] == Refused("stripe", "alice", 1, "queue_full", 6.0, True)
    assert caught.value.delay == 6.0


def test_a_call_that_a_hold_delays_further(world, policy, way, heard):
    policy.shaper.reserve("alice", cost=10)
    del heard[:]
    with once_reserved(policy, policy.shaper.hold, "3s", key="alice"):
        world.run(policy, way, "alice")
    assert heard[1:] == [Reserved("stripe", "alice", 1, 1.0), Departed("stripe", "alice", 1, 4.0, 0.0)]


@pytest.mark.parametrize("way", ["schedule", "admit", "prepared", "templated"])
def test_how_late_a_call_leaves_is_told_by_itself(world, clock, way, heard):
    # Each trip to the store takes a tenth of a second: one before the slot, and one before it leaves.
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("1/s", name="stripe", store=store)
    world.do(policy.shaper.reserve, "alice", cost=2)
    store.slow = 0.1
    del heard[:]
    world.run(policy, way, "alice")
    assert heard == [Reserved("stripe", "alice", 1, 1.9), Departed("stripe", "alice", 1, 2.0, 0.1)]


def test_a_call_that_is_woken_by_a_close(world, policy, patient, heard):
    policy.shaper.reserve("alice", cost=10)
    del heard[:]
    with once_reserved(policy, policy.close), pytest.raises(StoreUnavailableError, match="was closed"):
        world.run(policy, patient, "alice")
    assert heard == [Reserved("stripe", "alice", 1, 1.0), Cancelled("stripe", "alice", 1, False)]


def test_a_call_that_is_interrupted(policy, clock, heard, monkeypatch):
    policy.shaper.reserve("alice")
    del heard[:]

    def interrupted(seconds, alarm):
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        policy.shaper.schedule("alice")
    assert heard == [Reserved("stripe", "alice", 1, 0.1), Cancelled("stripe", "alice", 1, True)]


@pytest.mark.parametrize("call", ["aschedule", "scoped"])
def test_a_call_that_is_thrown_away_with_its_loop_tells_nothing_from_wherever_that_happens(
    policy, heard, call
):
    policy.shaper.reserve("alice")
    del heard[:]

    async def main():
        waiting = (
            policy.shaper.aschedule("alice") if call == "aschedule" else Tasks("").scoped(policy, "alice")
        )
        waiting.send(None)
        waiting.close()

    anyio.run(main)
    assert heard == [Reserved("stripe", "alice", 1, 0.1)]


@pytest.mark.parametrize("way", ["schedule", "admit", "prepared", "templated"])
def test_a_store_that_is_gone_when_a_call_asks_for_its_turn(world, clock, way, heard):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)
    store.down = True
    with pytest.raises(StoreUnavailableError):
        world.run(policy, way, "alice")
    assert heard == [StoreFailed("stripe", "alice", "this FaultyStore is down")]


def test_a_store_that_is_gone_when_a_call_wants_to_leave(world, clock, way, heard):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)
    world.do(policy.shaper.reserve, "alice")
    del heard[:]

    def cut(event):
        store.down = True

    with policy.listen(cut), pytest.raises(StoreUnavailableError):
        world.run(policy, way, "alice")
    assert heard == [
        Reserved("stripe", "alice", 1, 0.1),
        StoreFailed("stripe", "alice", "this FaultyStore is down"),
        Cancelled("stripe", "alice", 1, False),
    ]


# turns that somebody else waits for


def test_a_reservation_is_told_and_nothing_more(world, policy, heard):
    turns = [world.do(policy.shaper.reserve, "alice") for _ in range(2)]
    world.do(policy.shaper.remaining, turns[1])
    assert heard == [Reserved("stripe", "alice", 1, 0.0), Reserved("stripe", "alice", 1, 0.1)]


def test_a_reservation_that_is_refused(world, policy, heard):
    world.do(policy.shaper.reserve, "alice")
    assert not world.do(policy.shaper.reserve, "alice", max_wait=0)
    assert heard[1:] == [Refused("stripe", "alice", 1, "queue_full", 0.1, False)]


def test_a_turn_that_is_given_back_is_told_once(world, policy, heard):
    turns = [world.do(policy.shaper.reserve, "alice", cost=2) for _ in range(2)]
    del heard[:]
    assert world.do(turns[1].cancel)
    assert not world.do(turns[1].cancel)
    assert heard == [Cancelled("stripe", "alice", 2, True)]


def test_a_turn_whose_time_has_passed_is_not_given_back(world, policy, clock, heard):
    turn = world.do(policy.shaper.reserve, "alice")
    clock.advance(1)
    assert not world.do(turn.cancel)
    assert heard == [Reserved("stripe", "alice", 1, 0.0)]


def test_a_refusal_that_is_raised_later_is_not_told_again(policy, heard):
    policy.shaper.reserve("alice")
    turn = policy.shaper.reserve("alice", max_wait=0)
    del heard[:]
    with pytest.raises(QueueFullError):
        run(policy.shaper.core.leave, turn)
    assert heard == []


def test_a_turn_that_is_waited_for_later(world, policy, heard):
    """As tasks of Celery's do that have missed their slot."""
    for delay in (0.0, 0.1):
        turn = world.do(policy.shaper.reserve, "alice")
        world.flow(policy.shaper.core.leave, turn)
        assert heard == [Reserved("stripe", "alice", 1, delay), Departed("stripe", "alice", 1, delay, 0.0)]
        del heard[:]


# what calls turn out to cost


def test_a_call_that_cost_something_else(world, policy, heard):
    with policy.admit("alice", cost=5) as admission:
        pass
    del heard[:]
    assert world.do(admission.settle, 7)
    assert world.do(admission.settle, 3)
    assert heard == [Settled("stripe", "alice", 5, 7), Settled("stripe", "alice", 7, 3)]


def test_a_call_that_cost_what_it_was_charged(world, policy, heard):
    turn = policy.shaper.reserve("alice", cost=5)
    del heard[:]
    world.do(policy.shaper.settle, turn, 5)
    assert heard == []


def test_a_call_that_can_no_longer_be_settled(world, policy, heard):
    turn = policy.shaper.reserve("alice", cost=5)
    policy.shaper.reset("alice")
    del heard[:]
    assert not world.do(policy.shaper.settle, turn, 3)
    assert heard == []


def test_a_call_that_never_counted(policy, clock, heard):
    policy = Policy("10/s", name="stripe", refund_on=LookupError, clock=clock)
    with pytest.raises(LookupError), policy.admit("alice"):
        raise LookupError
    assert heard[2:] == [Settled("stripe", "alice", 1, 0)]


# the rest


def test_everything_that_the_store_does_not_answer_is_told_once(world, clock, heard):
    store = FaultyStore(MemoryStore(clock))
    shaper = Shaper("10/s", name="stripe", store=store)
    turn = world.do(shaper.reserve, "alice")
    store.down = True
    asked = [
        lambda: world.do(shaper.reserve, "alice"),
        lambda: world.do(shaper.hold, "1s", key="alice"),
        lambda: world.do(shaper.resume, key="alice"),
        lambda: world.do(shaper.held, key="alice"),
        lambda: world.do(shaper.remaining, turn),
        lambda: world.do(shaper.forecast, key="alice"),
        lambda: world.do(shaper.settle, turn, 3),
        lambda: world.do(turn.cancel),
        lambda: world.do(shaper.reset, "alice"),
    ]
    for ask in asked:
        del heard[:]
        with pytest.raises(StoreUnavailableError):
            ask()
        assert heard == [StoreFailed("stripe", "alice", "this FaultyStore is down")]


def test_what_a_closed_shaper_refuses_is_no_failure_of_the_store(world, policy, heard):
    policy.close()
    with pytest.raises(StoreUnavailableError):
        world.do(policy.shaper.reserve, "alice")
    assert heard == []


def test_while_shaping_is_off_nothing_is_told(world, policy, way, heard):
    with off():
        world.run(policy, way, "alice")
        world.run(policy, way, "alice")
        turn = world.do(policy.shaper.reserve, "alice")
        world.do(turn.cancel)
        world.do(policy.shaper.hold, "1s", key="alice")
        world.do(policy.shaper.resume, key="alice")
    assert heard == []


def test_a_call_of_one_scope_is_one_call_however_often_it_takes_its_turn(world, policy, clock, heard):
    policy.shaper.reserve("alice", cost=10)
    del heard[:]
    # Held once it has its slot: it gives that back, waits until the scope is free, and takes another.
    with once_reserved(policy, run, policy.scoped.hold, 30.0, "alice", SCOPE):
        world.run(policy, "scoped", "alice")
    held, reserved, departed = heard
    assert held == Held("stripe", f"alice%scope={SCOPE}", 30.0, 30.0)
    assert reserved == Reserved("stripe", "alice", 1, 1.0)
    assert departed == Departed("stripe", "alice", 1, 30.0, 0.0)
    assert clock.now() == 30.0


def test_a_call_that_gives_up_while_it_has_given_its_turn_back(world, policy, heard):
    policy.shaper.reserve("alice", cost=10)
    del heard[:]
    held = once_reserved(policy, run, policy.scoped.hold, 30.0, "alice", SCOPE)
    with held, pytest.raises(TimeoutError):
        world.run(policy, "scoped", "alice", timeout=5)
    assert heard[1:] == [Reserved("stripe", "alice", 1, 1.0), Cancelled("stripe", "alice", 1, True)]
    assert policy.shaper.reserve("alice").delay == 0.0


def test_a_call_that_would_wait_too_long_for_its_scope(world, policy, heard):
    run(policy.scoped.hold, 30.0, "alice", SCOPE)
    del heard[:]
    with pytest.raises(QueueFullError):
        world.run(policy, "scoped", "alice", max_wait=5)
    assert heard == [Refused("stripe", "alice", 1, "queue_full", 30.0, False)]
