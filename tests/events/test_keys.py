"""Events of keys: holds, by any call or answer; and of stores that are lost and come back."""

import pytest

from shapekit import MemoryStore, Policy, ResilientStore, Shaper, off
from shapekit._queue.reporter import MOST_HOLDS
from shapekit.events import Held, Resumed, StoreBack, StoreFailed, StoreLost
from shapekit.testing import FaultyStore

from .calls import SCOPE, targeted


class Answer:
    """A 429."""

    def __init__(self, **headers):
        self.status = 429
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def test_a_hold(world, policy, recorded):
    assert world.do(policy.shaper.hold, "30s", key="alice") == 30.0
    assert recorded == [Held("stripe", "alice", 30.0, 30.0)]


def test_a_hold_below_a_longer_one_is_not_reported(world, policy, recorded):
    world.do(policy.shaper.hold, "30s", key="alice")
    assert world.do(policy.shaper.hold, "10s", key="alice") == 30.0
    assert recorded == [Held("stripe", "alice", 30.0, 30.0)]


def test_a_hold_that_lengthens_another_reports_the_added_time(world, policy, clock, recorded):
    for _ in range(3):
        world.do(policy.shaper.hold, "30s", key="alice")
        clock.advance(10)
    clock.advance(30)
    world.do(policy.shaper.hold, "5s", key="alice")
    assert [(held.length, held.added) for held in recorded] == [
        (30.0, 30.0),
        (30.0, 10.0),
        (30.0, 10.0),
        (5.0, 5.0),
    ]
    assert sum(held.added for held in recorded) == 55.0


def test_keys_and_shapers_are_held_apart(clock, recorded):
    one, other = (Shaper("10/s", name=name, clock=clock) for name in ("one", "other"))
    for shaper, key in ((one, "alice"), (one, "bob"), (other, "alice")):
        shaper.hold("30s", key=key)
    assert recorded == [
        Held("one", "alice", 30.0, 30.0),
        Held("one", "bob", 30.0, 30.0),
        Held("other", "alice", 30.0, 30.0),
    ]


def test_the_memory_of_held_keys_is_bounded(policy, clock, recorded):
    for number in range(MOST_HOLDS):
        policy.shaper.hold("1s", key=f"short {number}")
    clock.advance(2)
    for number in range(MOST_HOLDS + 1):
        policy.shaper.hold("30s", key=f"long {number}")
    assert len(policy.shaper.core.reporter._held_until_us) <= MOST_HOLDS
    del recorded[:]
    clock.advance(1)
    policy.shaper.hold("30s", key=f"long {MOST_HOLDS}")
    policy.shaper.hold("30s", key="long 1")
    policy.shaper.hold("30s", key="long 0")  # the first held key is forgotten
    assert [held.added for held in recorded] == [1.0, 1.0, 30.0]


def test_an_answer_of_the_server_holds_for_all(world, policy, recorded):
    with policy.admit("alice") as admission:
        pass
    del recorded[:]
    world.do(admission.observe, Answer(Retry_After="30"))
    assert recorded == [Held("stripe", "alice", 30.0, 30.0)]


def test_a_scope_of_the_server_is_reported_by_the_key_that_top_shows(world, policy, recorded):
    with targeted(policy, "alice") as admission:
        pass
    del recorded[:]
    world.do(admission.observe, Answer(X_RateLimit_Bucket=SCOPE, Retry_After="30"))
    assert recorded == [Held("stripe", f"alice%scope={SCOPE}", 30.0, 30.0)]


def test_an_answer_that_holds_nothing_is_not_reported(world, policy, recorded):
    with policy.admit("alice") as admission:
        pass
    del recorded[:]
    world.do(admission.observe, type("Fine", (), {"status": 200, "headers": {}}))
    assert recorded == []


def test_a_hold_that_is_ended(world, policy, recorded):
    world.do(policy.shaper.hold, "30s", key="alice")
    del recorded[:]
    assert world.do(policy.shaper.resume, key="alice") == 0.25
    assert recorded == [Resumed("stripe", "alice", 0.25)]


@pytest.mark.parametrize("left", [0.0, 0.2])
def test_a_resume_that_ends_no_hold_is_not_reported(world, policy, clock, recorded, left):
    world.do(policy.shaper.hold, "30s", key="alice")
    clock.advance(30 - left)
    del recorded[:]
    assert world.do(policy.shaper.resume, key="alice") == pytest.approx(left)
    assert recorded == []


def test_after_a_hold_was_ended_another_is_new(world, policy, recorded):
    world.do(policy.shaper.hold, "30s", key="alice")
    world.do(policy.shaper.resume, key="alice")
    del recorded[:]
    world.do(policy.shaper.hold, "30s", key="alice")
    assert recorded == [Held("stripe", "alice", 30.0, 29.75)]


def test_after_a_reset_a_hold_is_new(world, policy, recorded):
    world.do(policy.shaper.hold, "30s", key="alice")
    world.do(policy.shaper.reset, "alice")
    del recorded[:]
    world.do(policy.shaper.hold, "30s", key="alice")
    assert recorded == [Held("stripe", "alice", 30.0, 30.0)]


# stores


@pytest.fixture
def faulty(clock):
    return FaultyStore(MemoryStore(clock))


def test_a_lost_store_and_its_return_are_reported_once_each(world, faulty, clock, recorded):
    shaper = Shaper("10/s", name="stripe", store=ResilientStore(faulty, on_outage="open"))
    faulty.down = True
    for _ in range(3):
        world.do(shaper.reserve, "alice")
    faulty.down = False
    clock.advance(60)
    for _ in range(3):
        world.do(shaper.reserve, "alice")
    lost, back = (event for event in recorded if isinstance(event, StoreLost | StoreBack))
    assert (lost.cause, back.away) == ("this FaultyStore is down", 60.0)
    assert "FaultyStore" in lost.store
    assert "FaultyStore" in back.store
    assert not [event for event in recorded if isinstance(event, StoreFailed)]


def test_only_listeners_to_everything_receive_events_of_stores(faulty):
    policy = Policy("10/s", name="stripe", store=ResilientStore(faulty, on_outage="open"))
    events = []
    with policy.listen(events.append):
        faulty.down = True
        policy.shaper.reserve()
    assert len(events) == 1


def test_while_shaping_is_off_no_event_of_a_store_is_reported(faulty, recorded):
    shaper = Shaper("10/s", name="stripe", store=ResilientStore(faulty, on_outage="open"))
    faulty.down = True
    with off():
        shaper.forecast()
    assert shaper.core.store.is_lost
    assert recorded == []


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_key_that_an_outage_does_not_hold_is_not_reported_as_held(world, faulty, recorded, mode):
    shaper = Shaper("10/s", name="stripe", store=ResilientStore(faulty, on_outage=mode))
    faulty.down = True
    world.do(shaper.hold, "30s")
    world.do(shaper.resume)
    assert [type(event) for event in recorded] == [StoreLost]


def test_a_hold_that_another_process_ended_is_forgotten(world, policy, clock, recorded):
    elsewhere = Shaper("10/s", name="stripe", store=policy.shaper.core.store)
    world.do(policy.shaper.hold, "30s", key="alice")
    world.do(elsewhere.resume, key="alice")
    clock.advance(1)
    del recorded[:]
    world.do(policy.shaper.hold, "10s", key="alice")
    assert recorded == [Held("stripe", "alice", 10.0, 10.0)]


def test_a_hold_that_another_process_placed_can_be_ended_here(world, policy, recorded):
    elsewhere = Shaper("10/s", name="stripe", store=policy.shaper.core.store)
    world.do(elsewhere.hold, "30s", key="alice")
    assert world.do(policy.shaper.resume, key="alice") == 0.25
    assert recorded == [Held("stripe", "alice", 30.0, 30.0), Resumed("stripe", "alice", 0.25)]


def test_a_hold_or_resume_repeated_at_one_instant_is_reported_once(world, policy, recorded):
    for _ in range(2):
        world.do(policy.shaper.hold, "30s", key="alice")
    for _ in range(2):
        world.do(policy.shaper.resume, key="alice")
    assert [type(event) for event in recorded] == [Held, Resumed]
