"""What is told of keys: holds, by whoever places them; and of stores that are lost and found."""

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


def test_a_hold(world, policy, heard):
    assert world.do(policy.shaper.hold, "30s", key="alice") == 30.0
    assert heard == [Held("stripe", "alice", 30.0, 30.0)]


def test_a_hold_below_a_longer_one_is_none(world, policy, heard):
    world.do(policy.shaper.hold, "30s", key="alice")
    assert world.do(policy.shaper.hold, "10s", key="alice") == 30.0
    assert heard == [Held("stripe", "alice", 30.0, 30.0)]


def test_a_hold_that_lengthens_another_says_by_how_much(world, policy, clock, heard):
    for _ in range(3):
        world.do(policy.shaper.hold, "30s", key="alice")
        clock.advance(10)
    clock.advance(30)
    world.do(policy.shaper.hold, "5s", key="alice")
    assert [(held.length, held.added) for held in heard] == [
        (30.0, 30.0),
        (30.0, 10.0),
        (30.0, 10.0),
        (5.0, 5.0),
    ]
    assert sum(held.added for held in heard) == 55.0


def test_keys_and_shapers_are_held_apart(clock, heard):
    one, other = (Shaper("10/s", name=name, clock=clock) for name in ("one", "other"))
    for shaper, key in ((one, "alice"), (one, "bob"), (other, "alice")):
        shaper.hold("30s", key=key)
    assert heard == [
        Held("one", "alice", 30.0, 30.0),
        Held("one", "bob", 30.0, 30.0),
        Held("other", "alice", 30.0, 30.0),
    ]


def test_however_many_keys_are_held_little_is_remembered(policy, clock, heard):
    for number in range(MOST_HOLDS):
        policy.shaper.hold("1s", key=f"short {number}")
    clock.advance(2)
    for number in range(MOST_HOLDS + 1):
        policy.shaper.hold("30s", key=f"long {number}")
    assert len(policy.shaper.core.reporter._held_until_us) <= MOST_HOLDS
    del heard[:]
    clock.advance(1)
    policy.shaper.hold("30s", key=f"long {MOST_HOLDS}")
    policy.shaper.hold("30s", key="long 1")
    policy.shaper.hold("30s", key="long 0")  # the one that was held first is forgotten
    assert [held.added for held in heard] == [1.0, 1.0, 30.0]


def test_an_answer_of_the_server_holds_for_all(world, policy, heard):
    with policy.admit("alice") as admission:
        pass
    del heard[:]
    world.do(admission.observe, Answer(Retry_After="30"))
    assert heard == [Held("stripe", "alice", 30.0, 30.0)]


def test_a_part_of_the_server_is_held_by_the_key_that_top_shows(world, policy, heard):
    with targeted(policy, "alice") as admission:
        pass
    del heard[:]
    world.do(admission.observe, Answer(X_RateLimit_Bucket=SCOPE, Retry_After="30"))
    assert heard == [Held("stripe", f"alice%scope={SCOPE}", 30.0, 30.0)]


def test_an_answer_that_asks_for_nothing_is_not_told(world, policy, heard):
    with policy.admit("alice") as admission:
        pass
    del heard[:]
    world.do(admission.observe, type("Fine", (), {"status": 200, "headers": {}}))
    assert heard == []


def test_a_hold_that_is_ended(world, policy, heard):
    world.do(policy.shaper.hold, "30s", key="alice")
    del heard[:]
    assert world.do(policy.shaper.resume, key="alice") == 0.25
    assert heard == [Resumed("stripe", "alice", 0.25)]


@pytest.mark.parametrize("left", [0.0, 0.2])
def test_where_nothing_is_ended_nothing_is_told(world, policy, clock, heard, left):
    world.do(policy.shaper.hold, "30s", key="alice")
    clock.advance(30 - left)
    del heard[:]
    assert world.do(policy.shaper.resume, key="alice") == pytest.approx(left)
    assert heard == []


def test_after_a_hold_was_ended_another_is_new(world, policy, heard):
    world.do(policy.shaper.hold, "30s", key="alice")
    world.do(policy.shaper.resume, key="alice")
    del heard[:]
    world.do(policy.shaper.hold, "30s", key="alice")
    assert heard == [Held("stripe", "alice", 30.0, 29.75)]


def test_after_a_reset_a_hold_is_new(world, policy, heard):
    world.do(policy.shaper.hold, "30s", key="alice")
    world.do(policy.shaper.reset, "alice")
    del heard[:]
    world.do(policy.shaper.hold, "30s", key="alice")
    assert heard == [Held("stripe", "alice", 30.0, 30.0)]


# stores


@pytest.fixture
def faulty(clock):
    return FaultyStore(MemoryStore(clock))


def test_a_store_that_is_lost_and_found_is_told_once_each(world, faulty, clock, heard):
    shaper = Shaper("10/s", name="stripe", store=ResilientStore(faulty, on_outage="open"))
    faulty.down = True
    for _ in range(3):
        world.do(shaper.reserve, "alice")
    faulty.down = False
    clock.advance(60)
    for _ in range(3):
        world.do(shaper.reserve, "alice")
    lost, back = (event for event in heard if isinstance(event, StoreLost | StoreBack))
    assert (lost.cause, back.away) == ("this FaultyStore is down", 60.0)
    assert "FaultyStore" in lost.store
    assert "FaultyStore" in back.store
    assert not [event for event in heard if isinstance(event, StoreFailed)]


def test_only_who_listens_everywhere_hears_of_stores(faulty):
    policy = Policy("10/s", name="stripe", store=ResilientStore(faulty, on_outage="open"))
    events = []
    with policy.listen(events.append):
        faulty.down = True
        policy.shaper.reserve()
    assert len(events) == 1


def test_while_shaping_is_off_nobody_hears_of_stores(faulty, heard):
    shaper = Shaper("10/s", name="stripe", store=ResilientStore(faulty, on_outage="open"))
    faulty.down = True
    with off():
        shaper.forecast()
    assert shaper.core.store.is_lost
    assert heard == []


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_what_an_outage_does_not_hold_is_not_told_as_held(world, faulty, heard, mode):
    shaper = Shaper("10/s", name="stripe", store=ResilientStore(faulty, on_outage=mode))
    faulty.down = True
    world.do(shaper.hold, "30s")
    world.do(shaper.resume)
    assert [type(event) for event in heard] == [StoreLost]


def test_a_hold_that_was_ended_elsewhere_is_known_no_more(world, policy, clock, heard):
    elsewhere = Shaper("10/s", name="stripe", store=policy.shaper.core.store)
    world.do(policy.shaper.hold, "30s", key="alice")
    world.do(elsewhere.resume, key="alice")
    clock.advance(1)
    del heard[:]
    world.do(policy.shaper.hold, "10s", key="alice")
    assert heard == [Held("stripe", "alice", 10.0, 10.0)]


def test_a_hold_that_was_placed_elsewhere_can_be_ended_here(world, policy, heard):
    elsewhere = Shaper("10/s", name="stripe", store=policy.shaper.core.store)
    world.do(elsewhere.hold, "30s", key="alice")
    assert world.do(policy.shaper.resume, key="alice") == 0.25
    assert heard == [Held("stripe", "alice", 30.0, 30.0), Resumed("stripe", "alice", 0.25)]


def test_what_happens_twice_at_one_instant_happened_once(world, policy, heard):
    for _ in range(2):
        world.do(policy.shaper.hold, "30s", key="alice")
    for _ in range(2):
        world.do(policy.shaper.resume, key="alice")
    assert [type(event) for event in heard] == [Held, Resumed]
