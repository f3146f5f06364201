"""The events of a call: each way, each ending, in order, and no others."""

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


def test_a_call_that_leaves_at_once(world, policy, way, recorded):
    world.run(policy, way, "alice")
    assert recorded == [Reserved("stripe", "alice", 1, 0.0), Departed("stripe", "alice", 1, 0.0, 0.0)]


def test_a_call_that_waits(world, policy, way, recorded):
    policy.shaper.reserve("alice")
    del recorded[:]
    world.run(policy, way, "alice", cost=3)
    world.run(policy, way, "alice")
    assert recorded == [
        Reserved("stripe", "alice", 3, 0.1),
        Departed("stripe", "alice", 3, 0.1, 0.0),
        Reserved("stripe", "alice", 1, 0.3),
        Departed("stripe", "alice", 1, 0.3, 0.0),
    ]


def test_each_event_is_reported_when_it_happens(world, policy, clock, way):
    policy.shaper.reserve("alice")
    events = []
    with policy.listen(lambda event: events.append((type(event), clock.now()))):
        world.run(policy, way, "alice")
    assert events == [(Reserved, 0.0), (Departed, 0.1)]


def test_a_call_that_is_refused_at_once(world, clock, way, recorded):
    policy = Policy("10/s", name="stripe", max_wait=0.05, clock=clock)
    policy.shaper.reserve("alice")
    del recorded[:]
    with pytest.raises(QueueFullError) as caught:
        world.run(policy, way, "alice", cost=2)
    assert recorded == [Refused("stripe", "alice", 2, "queue_full", 0.1, False)]
    assert caught.value.delay == 0.1


def test_a_call_that_a_spent_quota_refuses(world, clock, way, recorded):
    policy = Policy("10/s", name="stripe", quota="1/day", clock=clock)
    world.run(policy, way, "alice")
    clock.advance(3_600)
    del recorded[:]
    with pytest.raises(QuotaExhaustedError):
        world.run(policy, way, "alice")
    assert recorded == [Refused("stripe", "alice", 1, "quota_exhausted", 23 * 3_600.0, False)]


def test_a_call_that_gives_up(world, policy, patient, recorded):
    policy.shaper.reserve("alice", cost=10)
    del recorded[:]
    with pytest.raises(TimeoutError):
        world.run(policy, patient, "alice", timeout=0.25)
    assert recorded == [Reserved("stripe", "alice", 1, 1.0), Cancelled("stripe", "alice", 1, True)]


def test_a_call_whose_wait_a_hold_makes_too_long(world, policy, patient, recorded):
    policy.shaper.reserve("alice", cost=10)
    policy.shaper.hold("1s", key="alice")
    del recorded[:]
    longer = once_reserved(policy, policy.shaper.hold, "5s", key="alice")
    with longer, pytest.raises(QueueFullError) as caught:
        world.run(policy, patient, "alice", max_wait=3)
    kinds = [type(event) for event in recorded]
    assert kinds == [Held, Reserved, Refused]  # the listener here is called first, and held the key
    assert recorded[2] == Refused("stripe", "alice", 1, "queue_full", 6.0, True)
    assert caught.value.delay == 6.0


def test_a_call_that_a_hold_delays_further(world, policy, way, recorded):
    policy.shaper.reserve("alice", cost=10)
    del recorded[:]
    with once_reserved(policy, policy.shaper.hold, "3s", key="alice"):
        world.run(policy, way, "alice")
    assert recorded[1:] == [Reserved("stripe", "alice", 1, 1.0), Departed("stripe", "alice", 1, 4.0, 0.0)]


@pytest.mark.parametrize("way", ["schedule", "admit", "prepared", "templated"])
def test_departed_says_how_late_a_call_leaves(world, clock, way, recorded):
    # Each trip to the store takes a tenth of a second: one before the slot, and one before it leaves.
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("1/s", name="stripe", store=store)
    world.do(policy.shaper.reserve, "alice", cost=2)
    store.slow = 0.1
    del recorded[:]
    world.run(policy, way, "alice")
    assert recorded == [Reserved("stripe", "alice", 1, 1.9), Departed("stripe", "alice", 1, 2.0, 0.1)]


def test_a_call_that_is_woken_by_a_close(world, policy, patient, recorded):
    policy.shaper.reserve("alice", cost=10)
    del recorded[:]
    with once_reserved(policy, policy.close), pytest.raises(StoreUnavailableError, match="was closed"):
        world.run(policy, patient, "alice")
    assert recorded == [Reserved("stripe", "alice", 1, 1.0), Cancelled("stripe", "alice", 1, False)]


def test_a_call_that_is_interrupted(policy, clock, recorded, monkeypatch):
    policy.shaper.reserve("alice")
    del recorded[:]

    def interrupted(seconds, alarm):
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        policy.shaper.schedule("alice")
    assert recorded == [Reserved("stripe", "alice", 1, 0.1), Cancelled("stripe", "alice", 1, True)]


@pytest.mark.parametrize("call", ["aschedule", "scoped"])
def test_a_call_that_is_dropped_with_its_loop_reports_nothing(policy, recorded, call):
    policy.shaper.reserve("alice")
    del recorded[:]

    async def main():
        waiting = (
            policy.shaper.aschedule("alice") if call == "aschedule" else Tasks("").scoped(policy, "alice")
        )
        waiting.send(None)
        waiting.close()

    anyio.run(main)
    assert recorded == [Reserved("stripe", "alice", 1, 0.1)]


@pytest.mark.parametrize("way", ["schedule", "admit", "prepared", "templated"])
def test_a_store_that_is_gone_when_a_call_reserves(world, clock, way, recorded):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)
    store.down = True
    with pytest.raises(StoreUnavailableError):
        world.run(policy, way, "alice")
    assert recorded == [StoreFailed("stripe", "alice", "this FaultyStore is down")]


def test_a_store_that_is_gone_when_a_call_wants_to_leave(world, clock, way, recorded):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)
    world.do(policy.shaper.reserve, "alice")
    del recorded[:]

    def cut(event):
        store.down = True

    with policy.listen(cut), pytest.raises(StoreUnavailableError):
        world.run(policy, way, "alice")
    assert recorded == [
        Reserved("stripe", "alice", 1, 0.1),
        StoreFailed("stripe", "alice", "this FaultyStore is down"),
        Cancelled("stripe", "alice", 1, False),
    ]


# slots that another caller waits for


def test_a_reservation_is_reported_and_no_departure(world, policy, recorded):
    reservations = [world.do(policy.shaper.reserve, "alice") for _ in range(2)]
    world.do(policy.shaper.remaining, reservations[1])
    assert recorded == [Reserved("stripe", "alice", 1, 0.0), Reserved("stripe", "alice", 1, 0.1)]


def test_a_reservation_that_is_refused(world, policy, recorded):
    world.do(policy.shaper.reserve, "alice")
    assert not world.do(policy.shaper.reserve, "alice", max_wait=0)
    assert recorded[1:] == [Refused("stripe", "alice", 1, "queue_full", 0.1, False)]


def test_a_slot_that_is_given_back_is_reported_once(world, policy, recorded):
    reservations = [world.do(policy.shaper.reserve, "alice", cost=2) for _ in range(2)]
    del recorded[:]
    assert world.do(reservations[1].cancel)
    assert not world.do(reservations[1].cancel)
    assert recorded == [Cancelled("stripe", "alice", 2, True)]


def test_a_slot_that_has_passed_is_not_given_back(world, policy, clock, recorded):
    reservation = world.do(policy.shaper.reserve, "alice")
    clock.advance(1)
    assert not world.do(reservation.cancel)
    assert recorded == [Reserved("stripe", "alice", 1, 0.0)]


def test_a_refusal_that_is_raised_later_is_not_reported_again(policy, recorded):
    policy.shaper.reserve("alice")
    reservation = policy.shaper.reserve("alice", max_wait=0)
    del recorded[:]
    with pytest.raises(QueueFullError):
        run(policy.shaper.core.leave, reservation)
    assert recorded == []


def test_a_slot_that_is_waited_for_later(world, policy, recorded):
    """Celery tasks that have missed their slot leave like this."""
    for delay in (0.0, 0.1):
        reservation = world.do(policy.shaper.reserve, "alice")
        world.flow(policy.shaper.core.leave, reservation)
        assert recorded == [Reserved("stripe", "alice", 1, delay), Departed("stripe", "alice", 1, delay, 0.0)]
        del recorded[:]


# what calls cost in the end


def test_a_call_that_cost_something_else(world, policy, recorded):
    with policy.admit("alice", cost=5) as admission:
        pass
    del recorded[:]
    assert world.do(admission.settle, 7)
    assert world.do(admission.settle, 3)
    assert recorded == [Settled("stripe", "alice", 5, 7), Settled("stripe", "alice", 7, 3)]


def test_a_call_that_cost_what_it_was_charged(world, policy, recorded):
    reservation = policy.shaper.reserve("alice", cost=5)
    del recorded[:]
    world.do(policy.shaper.settle, reservation, 5)
    assert recorded == []


def test_a_call_that_can_no_longer_be_settled(world, policy, recorded):
    reservation = policy.shaper.reserve("alice", cost=5)
    policy.shaper.reset("alice")
    del recorded[:]
    assert not world.do(policy.shaper.settle, reservation, 3)
    assert recorded == []


def test_a_call_that_never_counted(policy, clock, recorded):
    policy = Policy("10/s", name="stripe", refund_on=LookupError, clock=clock)
    with pytest.raises(LookupError), policy.admit("alice"):
        raise LookupError
    assert recorded[2:] == [Settled("stripe", "alice", 1, 0)]


# the rest


def test_every_operation_that_the_store_does_not_answer_is_reported_once(world, clock, recorded):
    store = FaultyStore(MemoryStore(clock))
    shaper = Shaper("10/s", name="stripe", store=store)
    reservation = world.do(shaper.reserve, "alice")
    store.down = True
    operations = [
        lambda: world.do(shaper.reserve, "alice"),
        lambda: world.do(shaper.hold, "1s", key="alice"),
        lambda: world.do(shaper.resume, key="alice"),
        lambda: world.do(shaper.held, key="alice"),
        lambda: world.do(shaper.remaining, reservation),
        lambda: world.do(shaper.forecast, key="alice"),
        lambda: world.do(shaper.settle, reservation, 3),
        lambda: world.do(reservation.cancel),
        lambda: world.do(shaper.reset, "alice"),
    ]
    for ask in operations:
        del recorded[:]
        with pytest.raises(StoreUnavailableError):
            ask()
        assert recorded == [StoreFailed("stripe", "alice", "this FaultyStore is down")]


def test_a_refusal_by_a_closed_shaper_is_no_failure_of_the_store(world, policy, recorded):
    policy.close()
    with pytest.raises(StoreUnavailableError):
        world.do(policy.shaper.reserve, "alice")
    assert recorded == []


def test_while_shaping_is_off_no_event_is_reported(world, policy, way, recorded):
    with off():
        world.run(policy, way, "alice")
        world.run(policy, way, "alice")
        reservation = world.do(policy.shaper.reserve, "alice")
        world.do(reservation.cancel)
        world.do(policy.shaper.hold, "1s", key="alice")
        world.do(policy.shaper.resume, key="alice")
    assert recorded == []


def test_a_call_of_one_scope_is_one_call_however_many_slots_it_takes(world, policy, clock, recorded):
    policy.shaper.reserve("alice", cost=10)
    del recorded[:]
    # Held once it has its slot: it gives that back, waits until the scope is free, and takes another.
    with once_reserved(policy, run, policy.scoped.hold, 30.0, "alice", SCOPE):
        world.run(policy, "scoped", "alice")
    held, reserved, departed = recorded
    assert held == Held("stripe", f"alice%scope={SCOPE}", 30.0, 30.0)
    assert reserved == Reserved("stripe", "alice", 1, 1.0)
    assert departed == Departed("stripe", "alice", 1, 30.0, 0.0)
    assert clock.now() == 30.0


def test_a_call_that_gives_up_after_it_gave_its_slot_back(world, policy, recorded):
    policy.shaper.reserve("alice", cost=10)
    del recorded[:]
    held = once_reserved(policy, run, policy.scoped.hold, 30.0, "alice", SCOPE)
    with held, pytest.raises(TimeoutError):
        world.run(policy, "scoped", "alice", timeout=5)
    assert recorded[1:] == [Reserved("stripe", "alice", 1, 1.0), Cancelled("stripe", "alice", 1, True)]
    assert policy.shaper.reserve("alice").delay == 0.0


def test_a_call_that_would_wait_too_long_for_its_scope(world, policy, recorded):
    run(policy.scoped.hold, 30.0, "alice", SCOPE)
    del recorded[:]
    with pytest.raises(QueueFullError):
        world.run(policy, "scoped", "alice", max_wait=5)
    assert recorded == [Refused("stripe", "alice", 1, "queue_full", 30.0, False)]
