"""First come, first served; and a wait on one key delays no call of another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, ManualClock, MemoryStore, Shaper, StoreUnavailableError, first_of

from ..algorithms.queue.follower import SECOND, Follower
from ..algorithms.queue.setups import ALIGNED, ALWAYS
from ..crew import in_threads


@pytest.mark.parametrize("name", sorted(ALWAYS | ALIGNED))
@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), min_size=2, max_size=25))
def test_departures_are_in_order_of_arrival(name, calls):
    args, options, _ = (ALWAYS | ALIGNED)[name]
    follower = Follower(*args, **options)
    for cost, hundredths in calls:
        follower.reserve(cost, 10_000 * SECOND)
        follower.advance(hundredths * SECOND // 100)
    due = [call.slot.grant.departs_at_us for call in follower.calls]
    assert len(due) == len(calls)
    assert due == sorted(due)


@pytest.mark.parametrize(
    ("options", "large"),
    [
        ({}, 50),
        ({"burst": 5}, 50),
        ({"gates": (GCRA("20/s", burst=50),)}, 50),
        ({"burst": 3, "gates": (FixedWindow(50, "10s"),)}, 50),
        ({"burst": 60, "gates": (first_of(large=FixedWindow(55, "1m"), small=FixedWindow(9, "1s")),)}, 50),
    ],
)
def test_a_large_call_is_not_overtaken_by_a_stream_of_small_ones(options, large):
    clock = ManualClock(1_000)
    shaper = Shaper("10/s", clock=clock, **options)
    before = [shaper.reserve() for _ in range(10)]
    big = shaper.reserve(cost=large)
    assert big.departs_at >= before[-1].departs_at
    for _ in range(100):
        assert shaper.reserve().departs_at >= big.departs_at
        assert not shaper.reserve(max_wait=0)
        clock.advance(0.05)


def test_start_order_is_call_order(stage, clock):
    shaper = Shaper("100/s", burst=3, clock=clock)
    for name in range(200):
        stage.wait_for(shaper, name, cost=1 + name % 3, at=name // 50 * 0.1)
    stage.run()
    assert stage.names == list(range(200))


def test_a_wait_on_one_key_delays_no_other_key(stage, clock):
    shaper = Shaper("1/h", clock=clock)
    for name in range(3):
        stage.wait_for(shaper, name, key="busy")
    stage.wait_for(shaper, "other", at=1, key="idle")
    stage.at(1800, lambda: stage.left.append(("now", shaper.reserve("third").delay)))
    stage.run()
    assert stage.left == [(0, 0.0), ("other", 1.0), ("now", 0.0), (1, 3_600.0), (2, 7_200.0)]


def test_no_lock_is_held_while_a_thread_sleeps(crew, by_hand, until_asleep):
    """Everything else can be done meanwhile, on the same key and on others."""
    shaper = Shaper("1/h", clock=by_hand, name="api")
    other = Shaper("1/h", store=shaper.core.store, name="api")
    shaper.reserve()
    crew.start(shaper.schedule)
    until_asleep(by_hand, 1)
    done = []

    def all_else():
        reservation = shaper.reserve()
        done.append(reservation.delay)
        assert reservation.cancel()
        assert shaper.reserve("another key").delay == 0.0
        assert other.forecast().first_in == 7_200
        assert other.hold(5) == 5
        assert other.resume() == 0.25
        shaper.reset("another key")
        Shaper("1/s", store=shaper.core.store, name="third").schedule()

    in_threads([all_else])
    assert done == [7_200]
    shaper.close()
    crew.join()
    assert [type(error) for error in crew.raised()] == [StoreUnavailableError]


@pytest.mark.parametrize("what", ["sleep", "asleep"])
def test_the_locks_are_free_whenever_a_call_falls_asleep(stage, clock, what):
    """Looked at from within the sleep itself."""
    store = MemoryStore(clock)
    shaper = Shaper("1/s", store=store, name="api")
    found = []

    def look():
        in_threads([take])  # the thread that holds a lock may take it again

    def take():
        found.append(store._lock.acquire(blocking=False))
        if found[-1]:
            store._lock.release()

    clock.on_sleep = look
    if what == "sleep":
        shaper.schedule()
        shaper.schedule()
    else:
        stage.wait_for(shaper, 0)
        stage.wait_for(shaper, 1)
        stage.run()
    assert found
    assert all(found)
