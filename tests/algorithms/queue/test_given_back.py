"""A newcomer never waits for a cancelled call: slots given back at the end leave no trace."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    Adaptive,
    FixedWindow,
    LeakyBucket,
    ManualClock,
    Quota,
    Shaper,
    SlidingWindowLog,
    TokenBucket,
)
from shapekit._runtime.drivers import run
from shapekit.algorithms.queue.wire import LOOK
from shapekit.algorithms.rows import count

from .follower import SECOND, Follower, undone
from .setups import ALIGNED, ALWAYS

PLAIN = {
    "plain": (("10/s",), {}, []),
    "odd interval": (("7/s",), {}, []),
    "burst": (("3/s",), {"burst": 5}, []),
    "odd interval with a burst": (("99_991/s",), {"burst": 3}, []),
}
SETUPS = PLAIN | ALWAYS | ALIGNED

costs = st.one_of(st.just(1), st.integers(1, 4))
steps = st.tuples(costs, st.integers(0, 20).map(lambda n: n * SECOND // 20))


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(SETUPS)),
    st.lists(steps, max_size=8),
    st.lists(costs, min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.lists(costs, min_size=1, max_size=6),
)
@example("fixed window", [(1, 0)], [4, 4], None, [1])
@example("fixed quota", [(1, 0)], [7 - 3, 4, 4], None, [1])
@example("quota and window", [(1, 0)], [4], None, [1])
def test_a_queue_whose_end_was_given_back_is_the_queue_without_that(name, before, gone, order, after):
    args, options, _ = SETUPS[name]
    real, replay = (Follower(*args, **options) for _ in range(2))
    for follower in (real, replay):
        for cost, span in before:
            follower.reserve(cost)
            follower.advance(span)
    leaving = [call for cost in gone if (call := real.reserve(cost, 1_000 * SECOND))]
    if order is not None:
        order.shuffle(leaving)
    for call in leaving:
        assert real.cancel(call)
    for cost in after:
        newcomers = [follower.shaper.reserve(cost=cost) for follower in (real, replay)]
        assert newcomers[0].grant[:2] == newcomers[1].grant[:2]


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(SETUPS)),
    st.lists(steps, max_size=8),
    st.lists(steps, min_size=1, max_size=8),
    st.lists(costs, min_size=1, max_size=6),
)
def test_a_queue_whose_caller_went_before_the_answer_is_the_queue_without_that_call(
    name, before, gone, after
):
    """Be it a slot for now or a later one, and however late what was taken for it is given back."""
    args, options, _ = SETUPS[name]
    real, replay = (Follower(*args, **options) for _ in range(2))
    for follower in (real, replay):
        for cost, span in before:
            follower.reserve(cost)
            follower.advance(span)
    for cost, span in gone:
        slot = real.shaper.reserve(cost=cost, max_wait=1_000)
        for follower in (real, replay):
            follower.advance(span)
        if slot:
            assert undone(real.shaper, slot)
    for cost in after:
        newcomers = [follower.shaper.reserve(cost=cost) for follower in (real, replay)]
        assert newcomers[0].grant[:2] == newcomers[1].grant[:2]


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(SETUPS)),
    st.lists(steps, max_size=8),
    st.lists(st.integers(0, 4), min_size=1, max_size=16),
    st.lists(costs, min_size=1, max_size=6),
)
@example("GCRA without a rate", [(1, 0)], [1, 1, 0, 1, 0, 0] * 2, [4])
def test_a_queue_whose_end_was_given_back_and_taken_again_is_the_queue_without_it(name, before, gone, after):
    """`gone` are the costs of those that come; at 0, the last of them goes."""
    args, options, _ = SETUPS[name]
    real, replay = (Follower(*args, **options) for _ in range(2))
    for follower in (real, replay):
        for cost, span in before:
            follower.reserve(cost)
            follower.advance(span)
    leaving = []
    for cost in gone + [0] * len(gone):
        if cost and (call := real.reserve(cost, 1_000 * SECOND)):
            leaving.append(call)
        elif not cost and leaving:
            assert real.cancel(leaving.pop())
    for cost in after:
        newcomers = [follower.shaper.reserve(cost=cost) for follower in (real, replay)]
        assert newcomers[0].grant[:2] == newcomers[1].grant[:2]


METERS = ["GCRA", "odd GCRA", "GCRA without a rate", "leaky bucket", "a bursting second rate"]


@settings(max_examples=400)
@given(
    st.sampled_from(METERS),
    st.lists(costs, min_size=1, max_size=8),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
    costs,
)
@example("GCRA without a rate", [1, 1, 1], 5, None, 4)
def test_units_used_beyond_the_cost_of_a_call_stay_charged_when_the_calls_behind_it_cancel(
    name, waiting, extra, order, cost
):
    """Calls that come in their place leave a newcomer no sooner slot than they would have."""
    args, options, _ = SETUPS[name]
    real, replay = (Follower(*args, **options) for _ in range(2))
    for follower in (real, replay):
        used = follower.reserve(4)
        behind = [follower.reserve(one) for one in waiting]
        follower.shaper.settle(used.slot, 4 + extra)
        if follower is real:
            if order is not None:
                order.shuffle(behind)
            for call in behind:
                real.shaper.cancel(call.slot)
            for one in waiting:
                real.reserve(one)
    newcomers = [follower.shaper.reserve(cost=cost) for follower in (real, replay)]
    assert newcomers[0].departs_at >= newcomers[1].departs_at


@pytest.mark.parametrize("gate", [FixedWindow("1000/s"), SlidingWindowLog("1000/s"), GCRA("1000/s")])
def test_a_dear_slot_that_was_given_back_delays_no_call_once_it_has_passed(gate):
    clock = ManualClock(1_000)
    shaper = Shaper("1/s", gates=(gate,), clock=clock)
    shaper.reserve()
    dear, last = shaper.reserve(cost=100), shaper.reserve()
    assert (dear.delay, last.delay) == (1.0, 101.0)
    dear.cancel()
    clock.advance(2)
    assert shaper.forecast().first_in == 100.0
    last.cancel()
    assert shaper.forecast().first_in == 0.0
    assert shaper.reserve(max_wait=0)


@pytest.mark.parametrize(("cost", "first_in"), [(1, 2.0), (60, 61.0)])
def test_behind_a_settlement_for_more_the_last_call_is_still_given_back(cost, first_in):
    shaper = Shaper(gates=(GCRA("1/s", burst=100),), clock=ManualClock(1_000))
    used, waiting = shaper.reserve(cost=100), shaper.reserve(cost=50)
    shaper.settle(used, 101)
    waiting.cancel()
    assert shaper.forecast(cost=cost).first_in == first_in


@pytest.mark.parametrize("less", [False, True])
def test_a_settlement_for_less_makes_no_call_the_last(less):
    """Otherwise a newcomer would leave before the waiting call, and a third call in a window of two."""
    shaper = Shaper(gates=(FixedWindow(2, 2),), clock=(clock := ManualClock(1_000)))
    used, _, gone, waiting = (shaper.reserve(cost=cost) for cost in (2, 2, 1, 1))
    gone.cancel()
    instead = shaper.reserve()
    if less:
        shaper.settle(used, 1)
    clock.advance(1e-6)
    instead.cancel()
    shaper.hold(0.5)
    clock.advance(0.01)
    shaper.resume()
    clock.advance(0.4)
    left = [clock.now() + shaper.remaining(waiting), *(shaper.reserve().departs_at for _ in range(4))]
    assert [round(at - 1_000, 2) for at in left] == [4, 4, 6, 6, 8]


METERED = [
    (GCRA("20/min", burst=5), 3.0),
    (TokenBucket("1/s", 5), 1.0),
    (LeakyBucket("2/s", 6), 0.0),
    (SlidingWindowLog("5/10s"), 10.0),
]


@pytest.mark.parametrize("number", [0, 1, 3, 10])
@pytest.mark.parametrize(("gate", "first_in"), METERED, ids=lambda value: str(value)[:9])
def test_a_cancelled_call_takes_nothing_from_the_units_of_a_settlement_for_less(gate, first_in, number):
    shaper = Shaper(gates=(gate,), clock=ManualClock(1_000))
    used = shaper.reserve(cost=4)
    shaper.reserve()
    waiting = [shaper.reserve(cost=3) for _ in range(number)]
    assert all(slot.cancel() for slot in reversed(waiting))
    shaper.settle(used, 1)
    assert shaper.forecast(cost=4).first_in == first_in


@pytest.mark.parametrize("gate", [FixedWindow("1000/s"), SlidingWindowLog("1000/s"), GCRA("1000/s")])
def test_slots_given_back_that_have_passed_delay_no_call_whatever_their_number(gate):
    """What is ahead of them by a burst is one place, and the tail goes back over it."""
    clock = ManualClock(1_000)
    shaper = Shaper("1/s", burst=100, gates=(gate,), clock=clock)
    taken = [shaper.reserve() for _ in range(150)]
    *gone, last = taken[100:]
    assert all(slot.cancel() for slot in gone)
    clock.advance(49.5)
    look = shaper.core.store.bind(shaper.name, shaper.core.queue, LOOK)
    behind = shaper.reserve()
    rows, singles = look("default")[0][6][0]
    assert (count(rows), count(singles)) == (0, 1)
    assert behind.cancel()
    assert last.cancel()
    assert shaper.forecast(calls=40).last_in == 0.0


def test_a_tail_given_back_by_many_takes_no_place():
    """However many calls cancel from the end backwards, each slot is free again."""
    shaper = Shaper("10/s", clock=ManualClock(1_000))
    slots = [shaper.reserve() for _ in range(1_000)]
    assert all(slot.cancel() for slot in reversed(slots))
    assert [shaper.reserve().delay for _ in range(3)] == [0.0, 0.1, 0.2]


def test_a_small_call_in_a_large_place_takes_the_large_place_along():
    shaper = Shaper("10/s", clock=ManualClock(1_000))
    shaper.reserve()
    large, last = shaper.reserve(cost=3), shaper.reserve()
    assert large.cancel()
    small = shaper.reserve()
    assert small.delay == large.delay
    assert last.cancel()
    assert small.cancel()
    assert [shaper.reserve().delay for _ in range(3)] == [0.1, 0.2, 0.3]


def test_the_tail_retracts_also_where_places_in_the_middle_are_free():
    shaper = Shaper("10/s", clock=ManualClock(1_000))
    slots = [shaper.reserve() for _ in range(200)]
    for slot in slots[1:129:2]:
        assert slot.cancel()
    assert slots[-1].cancel()
    filled = [shaper.reserve().delay for _ in range(64)]
    assert filled == [slot.delay for slot in slots[1:129:2]]
    assert shaper.reserve().delay == slots[-1].delay


@pytest.mark.parametrize(
    ("rate", "gates"),
    [("10/s; 5/min", ()), ("10/s", (FixedWindow(5, "1m"),)), ("10/s", (Quota("5/day"),))],
)
def test_a_free_place_that_no_call_took_is_not_charged_to_the_other_limits(rate, gates):
    clock = ManualClock(1_000_000_000)
    shaper = Shaper(rate, gates=gates, clock=clock)
    slots = [shaper.reserve() for _ in range(5)]
    assert slots[2].cancel()
    clock.advance(0.25)
    assert shaper.reserve().delay == 0.25
    assert not shaper.reserve(max_wait=1)


@pytest.mark.parametrize(
    "gates",
    [
        (FixedWindow(5, "1m"),),
        (FixedWindow(5, "1m"), GCRA("10/s", burst=5)),
        (Quota("5/fixed:1m"),),
        (Quota("5/day"),),
    ],
)
def test_slots_of_later_periods_that_are_given_back_leave_this_period_as_it_was(gates):
    shaper = Shaper("100/s", gates=gates, max_wait="30d", clock=ManualClock(1_000_000_000))
    shaper.reserve()
    slots = [shaper.reserve(cost=5) for _ in range(3)]
    assert min(slot.delay for slot in slots) > 1
    for slot in reversed(slots):
        assert slot.cancel()
    assert [shaper.reserve().delay for _ in range(4)] == [0.01, 0.02, 0.03, 0.04]


def test_a_slot_that_was_given_back_frees_no_room_in_the_window_before_it():
    """The 65th call waits for the first to leave the window; so does the call that comes in its place."""
    shaper = Shaper("1000/s; 66/min", gates=(FixedWindow(70, "1h"),), clock=ManualClock(1_000_000_000))
    for _ in range(64):
        shaper.reserve()
    large = shaper.reserve(cost=10)
    assert large.delay > 60
    assert large.cancel()
    small = [shaper.reserve().delay for _ in range(6)]
    assert small == [0.064, 0.065, 60.0, 60.001, 60.002, 60.003]


@pytest.mark.parametrize("rate", ["10/s", "10/s; 3/min"])
def test_a_call_that_was_settled_at_nothing_has_nothing_to_give_back(rate):
    shaper = Shaper(rate, clock=ManualClock())
    slot = shaper.reserve()
    number = run(slot.core.settle, slot, 0)
    assert number
    assert not slot.costing(0, number).cancel()
    assert not slot.cancel()
    assert shaper.reserve().delay == 0.0


@given(
    st.sampled_from(["10/s", "7/s", Adaptive("3/s", "5/s")]),
    st.integers(1, 4),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.sampled_from([0.0, 1.7e9]),
)
def test_a_decision_has_how_much_of_the_burst_is_in_use(limit, burst, costs, start):
    how = {"adaptive": limit} if isinstance(limit, Adaptive) else {"rate": limit}
    shaper = Shaper(**how, burst=burst, clock=ManualClock(start))
    used = 0
    for cost in costs:
        decision = shaper.reserve(cost=min(cost, burst)).decision
        used += min(cost, burst)
        assert (decision.current, decision.remaining) == (used, max(0, burst - used))


@given(
    st.sampled_from([("10/s", 1), ("7/s", 1), ("3/s", 5), ("99_991/s", 3)]),
    st.lists(st.integers(0, 9), min_size=2, max_size=8),
    st.integers(0, 7),
)
def test_the_burst_in_use_in_a_decision_counts_the_calls_behind_a_given_back_slot(limit, costs, gone):
    rate, burst = limit
    is_there = []
    for early_us in (2, 0):
        shaper = Shaper(rate, burst=burst, name="api", clock=ManualClock())
        taken = [shaper.reserve(cost=1 + cost % burst) for cost in costs]
        shaper.cancel(taken[gone % len(taken)])
        decision = shaper.reserve().decision
        now_us = shaper.core.clock.now_us()
        assert decision.remaining == max(0, burst - decision.current)
        assert (decision.reset_at_us > now_us) == (decision.current > 0)
        shaper.core.clock.advance((decision.reset_at_us - early_us - now_us) / SECOND)
        is_there.append(shaper.reserve(cost=burst, max_wait=0).accepted)
    assert is_there == [False, True]
