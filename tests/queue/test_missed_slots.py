"""Slots of calls that wait elsewhere, such as tasks in a queue, and come late to them.

Each call is looked at when its slot is due, or later: then it gets the next slot of the line, or another one.
"""

import heapq
import random
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import Adaptive, ManualClock, MemoryStore, Shaper, SQLiteStore
from shapekit._runtime.drivers import run
from shapekit.algorithms.queue.queue import SOON_US
from tests.algorithms.queue.test_late import worst

from .slow_store import FarStore, SlowStore, in_another_process

SECOND = 1_000_000
SOON_S = SOON_US / SECOND
GRACE = 3 / 4


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    clock = ManualClock(1_000)
    made = (
        MemoryStore(clock=clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "limits.db", clock=clock)
    )
    with closing(made):
        yield made


def coming(reservation, grace_s=0.0375, **more):
    return run(reservation.core.coming, reservation, grace_s, **more)


class Line:
    """Calls that are looked at when their slots are due, or later by `late_s`; notes when they
    leave.
    """

    def __init__(self, shaper, calls, late_s):
        self._core = shaper.core
        self._clock = shaper.core.clock
        self._late_s = late_s
        self._grace_s = shaper.core.queue.grace_us / SECOND
        self.left = []
        self.missed = 0
        looks = [(self._at(reservation.delay), number) for number, reservation in enumerate(calls)]
        heapq.heapify(looks)
        while looks:
            at, number = heapq.heappop(looks)
            self._clock.advance(max(0.0, at - self._clock.now()))
            wait_s, calls[number] = self._look(calls[number])
            if wait_s is not None:
                heapq.heappush(looks, (self._at(wait_s), number))

    def _at(self, wait_s):
        return self._clock.now() + wait_s + self._late_s()

    def _look(self, reservation):
        answer = coming(reservation, self._grace_s)
        if answer is None:
            self.missed += 1
            run(self._core.settle, reservation, 0)
            another = run(self._core.reserve, reservation.key, 1, None)
            return another.delay, another
        if answer.has_moved:
            self.missed += 1
            assert answer.remaining_s <= SOON_S + self._grace_s / GRACE
        if answer.remaining_s > 0 and not answer.has_moved:
            return answer.remaining_s, answer.reservation
        self.left.append(self._clock.now_us() + max(0, round(answer.remaining_s * SECOND)))
        return None, answer.reservation


@given(
    rate=st.sampled_from(["20/s", "20/s; 30/2s", "100/s", "5/s", "1000/s; 50/s"]),
    number=st.integers(1, 60),
    stalls_s=st.sampled_from([0.0, 0.05, 0.3, 0.9, 3.0]),
    seed=st.integers(0, 1_000),
)
def test_no_window_has_more_than_one_call_too_many(rate, number, stalls_s, seed):
    clock, chance = ManualClock(1_000), random.Random(seed)
    shaper = Shaper(rate, clock=clock)
    calls = [shaper.reserve() for _ in range(number)]
    line = Line(shaper, calls, lambda: chance.uniform(0, stalls_s) if chance.random() < 0.4 else 0.0)
    assert len(line.left) == number
    for limit in shaper.core.queue.rates:
        assert worst(line.left, limit.period_us) <= limit.limit + 1


@given(number=st.integers(1, 60), late_s=st.floats(0, 5), rate=st.sampled_from([5, 20, 100]))
def test_a_slot_that_is_missed_costs_the_queue_less_than_two(number, late_s, rate):
    shaper = Shaper(f"{rate}/s", clock=ManualClock(1_000))
    line = Line(shaper, [shaper.reserve() for _ in range(number)], iter([late_s, *[0.0] * 999]).__next__)
    last_s = max(line.left) / SECOND - 1_000
    bound_s = max((number - 1) / rate, late_s) + 2 * line.missed / rate
    assert last_s <= bound_s + 1e-5


def test_the_next_slot_is_used_and_the_calls_behind_move(store):
    shaper = Shaper("20/s", store=store, name="api")
    late, punctual = shaper.reserve(), [shaper.reserve() for _ in range(20)]
    store.clock.advance(0.32)
    answer = coming(late)
    assert answer.has_moved
    assert answer.remaining_s == pytest.approx(0.03)
    assert answer.reservation.departs_at == pytest.approx(1_000.35)
    assert answer.reservation.delay == pytest.approx(0.35)
    # Time stands still from now until the slot after that.
    for number, reservation in enumerate(punctual[6:]):
        assert shaper.remaining(reservation) == pytest.approx(0.11 + 0.05 * number)


def test_a_slot_that_has_passed_is_shown_as_it_was_when_it_came(store):
    """Time stood still from 0.32 to 0.4: before the one of 0.35, and after the one of 0.3."""
    shaper = Shaper("20/s", store=store, name="api")
    late, *punctual = [shaper.reserve() for _ in range(10)]
    store.clock.advance(0.32)
    assert coming(late).has_moved
    store.clock.advance(0.08)
    before = coming(punctual[5])
    store.clock.advance(0.04)
    after = coming(punctual[6])
    for answer, departs_at in ((before, 1_000.3), (after, 1_000.43)):
        assert answer.remaining_s <= 0
        assert answer.reservation.departs_at == pytest.approx(departs_at)


def test_while_time_stands_still_for_one_call_others_have_no_grace(store):
    """Otherwise they would leave beside the call whose slot comes then."""
    shaper = Shaper("20/s", store=store, name="api")
    calls = [shaper.reserve() for _ in range(20)]
    store.clock.advance(0.32)
    assert coming(calls[0]).reservation.departs_at == pytest.approx(1_000.35)
    # Late by 20 ms.
    answer = coming(calls[6])
    assert answer.has_moved
    assert answer.reservation.departs_at == pytest.approx(1_000.40)
    assert shaper.remaining(calls[7]) == pytest.approx(0.16)


@pytest.mark.parametrize(("trip_s", "is_given"), [(0.005, True), (0.02, False)])
def test_no_slot_is_given_that_would_have_passed_before_the_answer(clock, trip_s, is_given):
    shaper = Shaper("20/s", store=FarStore(clock, trip_s), name="api")
    reservation = shaper.reserve()
    for _ in range(20):
        # Some answers show how far away the store is.
        run(shaper.core.status.ask, "default")
        clock.advance(0.02)
    shaper.reserve()
    assert (coming(reservation) is not None) is is_given


def test_slots_taken_ahead_move_no_call(clock):
    shaper = Shaper("20/s", store=SlowStore(clock, 0.001), name="api", prefetch="1s")
    reservation, _ = shaper.reserve(), shaper.reserve()
    clock.advance(0.5)
    assert coming(reservation) is None


def test_a_slot_within_the_grace_is_its_own(store):
    shaper = Shaper("20/s", store=store, name="api")
    reservation = shaper.reserve()
    store.clock.advance(0.03)
    answer = coming(reservation)
    assert (answer.reservation.grant, answer.has_moved) == (reservation.grant, False)
    assert answer.remaining_s == pytest.approx(-0.03)


def test_a_slot_that_passed_before_a_hold_does_not_come_when_that_ends(store):
    shaper = Shaper("20/s", store=store, name="api")
    missed, next_one, behind = shaper.reserve(), shaper.reserve(), shaper.reserve()
    store.clock.advance(0.07)
    shaper.hold(10.0)
    assert coming(missed) is None
    # Late by less than the grace, so it is not missed.
    assert coming(next_one).remaining_s == pytest.approx(10.0)
    answer = coming(behind)
    assert answer.remaining_s == pytest.approx(10.03)
    assert answer.reservation.departs_at == pytest.approx(1_010.10)
    assert answer.reservation.delay == pytest.approx(10.10)


@pytest.mark.parametrize(
    ("rate", "late_s"),
    [
        ("4/s", 0.3),
        ("3/s", None),
        ("20/s; 30/2s", 0.9),
        ("20/s; 30/2s", None),
        (Adaptive("5/s", "20/s"), None),
    ],
    ids=str,
)
def test_which_late_call_gets_the_next_slot(rate, late_s):
    """Not where it may be far away, nor where other limits counted the missed slot long ago."""
    clock = ManualClock(1_000)
    shaper = Shaper(rate, clock=clock) if isinstance(rate, str) else Shaper(adaptive=rate, clock=clock)
    reservation = shaper.reserve()
    clock.advance(1.1 if late_s is None else late_s)
    answer = coming(reservation)
    assert (answer is None) is (late_s is None)


def test_further_limits_count_a_slot_once_that_may_have_been_used(clock):
    shaper = Shaper("20/s; 30/2s", clock=clock)
    reservation = shaper.reserve()
    clock.advance(0.5)
    assert coming(reservation, is_unused=False) is None
    assert coming(reservation).has_moved


def test_after_a_reset_another_slot_is_taken(store):
    shaper = Shaper("20/s", store=store, name="api")
    reservation = shaper.reserve()
    store.clock.advance(0.5)
    shaper.reset()
    shaper.reserve()
    assert coming(reservation) is None


def test_a_slot_that_another_process_got_meanwhile_is_not_used_twice(clock):
    """By an answer that is a few milliseconds old, both could leave."""
    store = SlowStore(clock, 0.001)
    one, two = (Shaper("20/s", store=own, name="api") for own in (store, in_another_process(store)))
    missed, punctual = one.reserve(), [two.reserve() for _ in range(10)]
    clock.advance(0.246 - (clock.now() - 1_000))
    assert coming(punctual[5]).remaining_s > 0
    given = coming(missed)
    assert given.has_moved
    answer = coming(punctual[4])
    assert answer.reservation.departs_at - given.reservation.departs_at >= 0.05
