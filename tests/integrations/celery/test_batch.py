"""Batches: slots that a worker takes several at a time are as exact as single ones, and none is left over."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import FixedWindow, ManualClock
from shapekit.algorithms.queue.wire import CANCEL_MANY, RESERVE, RESERVE_MANY
from shapekit.integrations.celery.worker import MOST_SLOTS, Batches
from shapekit.testing import check_pace

from ...queue.slow_store import NotingStore
from .eager import Eager

LIFE_S = 0.01


class Worker:
    """Takes slots for the messages of one task."""

    def __init__(self, **shape):
        self.clock = ManualClock()
        self.store = NotingStore(self.clock)
        self.left = 0
        shaped = (
            Eager(self.clock).shaped(lambda: None, {"store": self.store, "name": "batch", **shape}).shaped
        )
        self.shaper = shaped.policy.shaper
        self.batches = Batches(shaped, self.note_left)

    def note_left(self):
        self.left += 1

    def come(self, count=1, every_s=0.001, key="default", cost=1):
        """Let `count` tasks come one by one; returns their slots, and how long until each slot came."""
        took = []
        for _ in range(count):
            reservation, remaining_s = self.batches.take(key, cost)
            assert reservation.departs_at == pytest.approx(self.clock.now_us() / 1e6 + remaining_s)
            assert reservation.delay == pytest.approx(max(0.0, remaining_s))
            took.append((reservation.departs_at, remaining_s))
            self.clock.advance(every_s)
        return took

    def trips(self, *operations):
        return sum(operation in operations for operation in self.store.operations)


def test_tasks_in_close_succession_share_trips():
    worker = Worker(rate="1000/s")
    took = worker.come(100)
    check_pace([slot for slot, _ in took], "1000/s")
    assert worker.trips(RESERVE, RESERVE_MANY) <= 2 + 100 / (MOST_SLOTS - 1)
    assert worker.trips(CANCEL_MANY) == 0


def test_tasks_far_apart_take_one_slot_each_and_leave_none_over():
    worker = Worker(rate="1000/s")
    worker.come(20, every_s=LIFE_S * 1.1)
    assert worker.trips(RESERVE_MANY) == 20
    assert not worker.left
    assert not worker.batches.give_back()
    assert worker.trips(CANCEL_MANY) == 0


def test_tasks_that_wait_take_one_slot_each():
    worker = Worker(rate="500/s")
    took = worker.come(100, every_s=0.0001)
    check_pace([slot for slot, _ in took], "500/s")
    assert [slot for slot, _ in took] == pytest.approx([number / 500 for number in range(100)])
    assert worker.left <= 1


@pytest.mark.parametrize(
    "shape",
    [
        {"rate": "199/s burst 50"},
        {"rate": "1000/s", "max_wait": 0},
        {"rate": "1000/s", "quota": "1000/day"},
        {"rate": "1000/s; 5000/min"},
        {"rate": "1000/s", "pace": "burst"},
        {"rate": None, "gates": (FixedWindow("1000/s"),)},
        {"rate": "1000/s", "grace": 0},
    ],
    ids=str,
)
def test_slots_are_taken_one_by_one_where_an_early_slot_would_keep_other_calls_out(shape):
    worker = Worker(**shape)
    worker.come(20)
    assert worker.trips(RESERVE) == 20
    assert worker.trips(RESERVE_MANY) == 0


def test_each_key_has_its_own_batch_and_a_higher_cost_takes_a_trip_of_its_own():
    worker = Worker(rate="1000/s burst 100")
    for _ in range(10):
        for key in ("a", "b"):
            worker.come(1, key=key)
    before = worker.trips(RESERVE)
    worker.come(1, key="a", cost=5)
    assert worker.trips(RESERVE) == before + 1
    # The calls used 15 units of `a`; a few more are taken for tasks to come.
    assert 0 <= worker.shaper.forecast(85 + 20 - MOST_SLOTS, key="a").last_in <= 0.005


@settings(max_examples=200)
@given(
    rate=st.sampled_from(["200/s", "333/s", "1000/s burst 3", "1000000/s burst 1000000", "700/s"]),
    gaps=st.lists(st.integers(0, 15_000) | st.integers(0, 500), max_size=60),
)
def test_slots_are_exact_and_used_within_their_grace_whenever_tasks_come(rate, gaps):
    worker = Worker(rate=rate)
    slots = []
    for gap_us in gaps:
        [(slot, remaining_s)] = worker.come(every_s=gap_us / 1e6)
        assert remaining_s > -LIFE_S
        slots.append(slot)
        assert slots == sorted(slots)
        # No task waits longer than with single slots, except for a batch that has passed.
        assert remaining_s <= len(slots) / 200 + LIFE_S
    check_pace(slots, rate, tolerance="1us")


def test_a_hold_is_noticed_at_the_end_of_a_batch():
    worker = Worker(rate="1000/s")
    worker.come(12)
    worker.shaper.hold(5)
    held_at = worker.clock.now_us() / 1e6
    took = worker.come(30)
    soon = [slot for slot, _ in took if slot < held_at + 5]
    assert len(soon) < MOST_SLOTS
    assert all(slot <= held_at + LIFE_S for slot in soon)
    check_pace([slot for slot, _ in took], "1000/s")


def test_unused_slots_are_given_back_once_no_more_tasks_come():
    worker = Worker(rate="200/s burst 1000")
    worker.come(1, cost=900)
    worker.come(2, every_s=0.001)
    assert worker.left == 1
    # While more may come, nothing is given back.
    assert worker.batches.give_back(idle_only=True)
    assert worker.trips(CANCEL_MANY) == 0
    worker.clock.advance(2 * LIFE_S)
    assert not worker.batches.give_back(idle_only=True)
    assert worker.trips(CANCEL_MANY) == 1
    # The calls used 902, and 22 ms have brought four.
    assert worker.shaper.forecast(1000 - 902 + 4).last_in == 0
    assert worker.shaper.forecast(1000 - 902 + 5).last_in > 0


def test_a_worker_that_ends_gives_back_its_slots_at_once():
    worker = Worker(rate="1000/s")
    worker.come(3, every_s=0.0)
    assert worker.shaper.forecast().first_in > 0.003
    worker.batches.give_back()
    assert worker.shaper.forecast().first_in == pytest.approx(0.003)
    took = worker.come(1)
    assert took[0][1] == pytest.approx(0.003)


def test_a_slot_goes_to_one_thread_only():
    worker = Worker(rate="1000000/s burst 1000000")
    took, start = [], threading.Barrier(4)

    def take():
        start.wait()
        for _ in range(500):
            reservation, _ = worker.batches.take("default", 1)
            took.append(reservation.grant.start)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(took)) == 2000


def test_keys_without_tasks_are_forgotten():
    worker = Worker(rate="1000/s")
    for number in range(2_000):
        worker.come(1, key=str(number), every_s=0.0005)
    assert len(worker.batches._batches) <= 300
