"""Gaps: where only a pace counts, a newcomer waits for no cancelled call, however many there are."""

import random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shapekit import ManualClock, Rate, Shaper
from shapekit.algorithms import rows
from shapekit.algorithms.queue import slots

from .follower import SECOND, Follower
from .histories import check_spacing

CROWD = 1_000
T = SECOND // 100


class Waiting:
    """A crowd that came all at once, at 100/s; its clock, and the calls that are still there."""

    def __init__(self, crowd=CROWD):
        self.clock = ManualClock(1_000)
        self.start = self.clock.now_us()
        self.shaper = Shaper("100/s", clock=self.clock)
        self.slots = [self.shaper.reserve() for _ in range(crowd)]
        self.standing = set(range(crowd))

    def leave(self, name):
        assert self.slots[name].cancel()
        self.standing.remove(name)

    def until(self, instant):
        self.clock.advance((self.start + instant - self.clock.now_us()) / SECOND)

    def ideal(self, newcomers):
        """The slots of newcomers that wait for no cancelled call."""
        now = self.clock.now_us() - self.start
        slots, begin = [], now
        for name in sorted(self.standing):
            slots += range(begin, name * T - T + 1, T)
            begin = max(now, (name + 1) * T)
        return [*slots, *range(begin, begin + newcomers * T, T)][:newcomers]

    def come(self, newcomers):
        """The slots in which as many newcomers would leave; they give them back."""
        slots = [self.shaper.reserve() for _ in range(newcomers)]
        for slot in slots:
            assert slot.cancel()
        return [slot.grant.departs_at_us - self.start for slot in slots]

    def waiting(self):
        """How many wait, by the state of the queue."""
        queue, now = self.shaper.core.queue, self.clock.now_us()
        return queue.waiting(self.shaper.core.look.call("default")[0], now)

    def free(self):
        return rows.flat(self.shaper.core.look.call("default")[0][6][0])


@given(
    st.sets(st.integers(1, 19)),
    st.sampled_from([0, 1, T // 2, 3 * T]),
    st.lists(st.integers(0, T), max_size=30),
)
def test_a_cancelled_call_does_not_wait_any_more(gone, held, spans):
    """The first leaves at once; then the key may be held for a while."""
    line, now = Waiting(20), 1
    for name in gone:
        line.leave(name)
    line.until(now)
    if held:
        line.shaper.hold(held / SECOND)
    for span in (0, *spans):
        now += span
        line.until(now)
        assert line.waiting() == sum(name * T + held > now for name in line.standing - {0})


@pytest.mark.parametrize("seed", range(8))
def test_newcomers_wait_for_none_of_the_half_of_a_thousand_that_cancelled_at_random_moments(seed):
    rng = random.Random(seed)
    crowd = Waiting()
    leaving = rng.sample(range(1, CROWD), CROWD // 2)
    for moment, name in sorted((rng.randrange(name * T) | 1, name) for name in leaving):
        crowd.until(moment)
        crowd.leave(name)
        if rng.random() < 0.02:
            assert crowd.come(20) == crowd.ideal(20)
    assert crowd.come(600) == crowd.ideal(600)


@pytest.mark.parametrize("seed", range(4))
def test_every_slot_of_the_half_of_a_thousand_that_cancelled_at_once_is_used_again(seed):
    rng = random.Random(seed)
    crowd = Waiting()
    for name in rng.sample(range(CROWD), CROWD // 2):
        crowd.leave(name)
    assert crowd.come(600) == crowd.ideal(600)


@pytest.mark.parametrize("order", ["forwards", "backwards", "every second first", "random"])
def test_when_all_cancel_in_any_order_the_tail_goes_back_over_them_all(order):
    crowd = Waiting()
    names = list(range(CROWD))
    if order == "backwards":
        names.reverse()
    elif order == "every second first":
        names = [*names[::2], *names[1::2]]
    elif order == "random":
        random.Random(1).shuffle(names)
    for name in names:
        crowd.leave(name)
    assert not crowd.free()
    assert [crowd.shaper.reserve().delay for _ in range(3)] == [0.0, 0.01, 0.02]
    assert not any(slot.cancel() for slot in crowd.slots)


def test_the_middle_one_of_too_many_gaps_is_forgotten(monkeypatch):
    """The first and the last are what counts."""
    monkeypatch.setattr(slots, "MOST", 8)
    crowd = Waiting(101)
    left = range(1, 100, 2)
    for name in left:
        crowd.slots[name].cancel()
    kept = [*left[:4], *left[-4:]]
    assert crowd.come(9) == [*(name * T for name in kept), len(crowd.slots) * T]


def test_places_that_touch_are_one_for_a_large_call():
    crowd = Waiting(10)
    for name in (3, 5, 4, 7):
        crowd.leave(name)
    assert crowd.shaper.reserve(cost=3).delay == 0.03
    assert crowd.shaper.reserve(cost=2).delay == 0.1
    assert crowd.shaper.reserve().delay == 0.07


def test_a_smaller_call_leaves_the_rest_to_the_next():
    shaper = Shaper("100/s", clock=ManualClock(1_000))
    shaper.reserve()
    large, _ = shaper.reserve(cost=3), shaper.reserve()
    assert large.cancel()
    assert [shaper.reserve(cost=cost).delay for cost in (2, 2, 1)] == [0.01, 0.05, 0.03]
    assert not large.cancel()


def test_the_rest_of_a_place_whose_beginning_has_passed_is_free():
    crowd = Waiting(10)
    for name in (3, 4):
        crowd.leave(name)
    crowd.until(3 * T + 4_000)
    assert [crowd.shaper.reserve().delay for _ in range(2)] == [0.0, 0.066]


def test_a_place_is_free_up_to_its_instant_also_where_that_is_rounded_up():
    """7/s: the second slot begins at 142,857 1/7 µs, so its call leaves at 142,858."""
    for late, expected in [(0, 0), (1, 4 * SECOND // 7 - 142_858)]:
        clock = ManualClock(1_000)
        shaper = Shaper("7/s", clock=clock)
        slots = [shaper.reserve() for _ in range(4)]
        assert slots[1].grant.wait_us == 142_858
        assert slots[1].cancel()
        clock.advance((142_858 + late) / SECOND)
        assert shaper.reserve().grant.wait_us == expected


def test_a_part_of_a_gap_can_be_given_back_also_after_others_took_the_next():
    crowd = Waiting(10)
    for name in (3, 4):
        crowd.leave(name)
    one = crowd.shaper.reserve()
    crowd.leave(7)
    two = crowd.shaper.reserve()
    assert (one.delay, two.delay) == (0.03, 0.04)
    assert [one.cancel(), one.cancel(), two.cancel(), two.cancel()] == [True, False, True, False]
    assert [crowd.shaper.reserve().delay for _ in range(4)] == [0.03, 0.04, 0.07, 0.1]


def test_calls_in_places_of_others_keep_no_waiting_call_from_giving_its_slot_back():
    """Newcomers in many places, each between two calls that were there before."""
    crowd = Waiting(400)
    newcomers = []
    for name in range(1, 399, 2):
        crowd.leave(name)
        newcomers.append(crowd.shaper.reserve())
    assert not any(crowd.slots[name].cancel() for name in range(1, 399, 2))
    assert all(slot.cancel() for slot in newcomers)
    assert all(crowd.slots[name].cancel() for name in (*range(0, 399, 2), 399))
    assert crowd.shaper.reserve().delay == 0


def test_no_slot_is_given_back_twice_wherever_a_page_of_cancelled_slots_ends():
    crowd = Waiting(300)
    for name in (*range(0, 300, 2), *range(299, 0, -2)):
        crowd.leave(name)
        around = {name - 1, name, name + 1} & {*range(300)} - crowd.standing
        assert not any(crowd.slots[gone].cancel() for gone in around)


class Forgetful(RuleBasedStateMachine):
    """Where almost nothing is remembered, slots may be lost, but no call ever gets the slot of another."""

    @initialize(rate=st.sampled_from(["10/s", "7/s", "99_991/s"]), burst=st.sampled_from([1, 1, 3]))
    def begin(self, rate, burst):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("shapekit.algorithms.queue.slots.MOST", 2)
        self.patch.setattr("shapekit.algorithms.queue.slots.MOST_LEFT", 4)
        self.patch.setattr("shapekit.algorithms.rows.PAGE", 2)
        self.rate, self.burst = Rate.parse(rate), burst
        self.follower = Follower(rate, burst=burst)

    @rule(costs=st.lists(st.one_of(st.just(1), st.integers(1, 4)), min_size=1, max_size=8))
    def reserve(self, costs):
        for cost in costs:
            self.follower.reserve(cost)

    @precondition(lambda self: self.follower.calls)
    @rule(data=st.data())
    def cancel(self, data):
        """Any call, also for a second time: what was forgotten may be given back again."""
        call = data.draw(st.sampled_from(self.follower.calls))
        late = call.left_at is not None and call.left_at < self.follower.now
        assert not (self.follower.cancel(call) and late)

    @precondition(lambda self: self.follower.waiting)
    @rule(data=st.data(), count=st.integers(2, 6))
    def cancel_some(self, data, count):
        for _ in range(min(count, len(self.follower.waiting))):
            self.follower.cancel(data.draw(st.sampled_from(self.follower.waiting)))

    @rule(eighths=st.integers(0, 60))
    def advance(self, eighths):
        period = self.rate.period_us
        self.follower.advance(period * eighths // (8 * self.rate.limit))

    @rule(length=st.integers(1, 20))
    def hold(self, length):
        self.follower.hold(length * SECOND // 10)

    def teardown(self):
        if hasattr(self, "follower"):
            self.follower.finish()
            self.patch.undo()
            check_spacing(self.follower.departures, self.rate.limit, self.rate.period_us, self.burst)
            for call in self.follower.calls:
                assert call.cancelled or call.left_at is not None


Forgetful.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestForgetful = Forgetful.TestCase


def test_rows_in_any_order_lie_in_few_pages():
    kept = ()
    for number in sorted(range(5_000), key=lambda number: number * 2_654_435_761 % 2**32):
        low, high, near, index = rows.around(kept, number)
        kept = rows.put(kept, low, high, (*near[:index], (number,), *near[index:]))
    assert rows.flat(kept) == tuple((number,) for number in range(5_000))
    assert len(kept) <= 2 * 5_000 / rows.PAGE


def test_slots_that_join_a_row_do_not_look_for_some_to_forget():
    gone = slots.NOTHING_GONE
    with patch.object(slots, "_forgotten", wraps=slots._forgotten) as forgets:
        for number in range(0, 2 * slots.MOST_LEFT, 2):
            gone = slots.with_slot(gone, number, number, 0)
        assert forgets.call_count == 1
        for number in range(2 * slots.MOST_LEFT - 1, 3 * slots.MOST_LEFT):
            gone = slots.with_slot(gone, number, number, 0)
    assert forgets.call_count == 1
    assert rows.count(gone[0]) == slots.MOST_LEFT


def test_a_slot_before_the_last_one_that_is_remembered_is_not_given_back():
    gone = ((), 100, ())
    for due in (1, 99, 100):
        assert slots.is_gone(gone, 5, due)
        assert slots.with_slot(gone, 5, due, 200) is None
    assert not slots.is_gone(gone, 5, 101)
    later = slots.with_slot(gone, 5, 101, 200)
    assert slots.is_gone(later, 5, 101)
    assert slots.is_gone(later, 4, 100)
    assert not slots.is_gone(later, 4, 101)
