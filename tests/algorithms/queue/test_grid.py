"""The grid: ten million calls without drift, and never two calls closer than the interval."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ConfigError, CostExceedsLimitError, ManualClock, Rate, Shaper
from shapekit.rate import MAX_COUNT, MAX_SPAN_US

from .follower import SECOND, Follower
from .histories import check_spacing

TEN_MILLION = 10_000_000
RATES = ("0.001/s", "1/min", "0.7/s", "1/s", "3/s", "7/s", "1000/s", "33_333/s", "99_991/s", "100_000/s")
ODD_STARTS_S = (0, 1_000_000_000, 1_712_345_678.987654)


def interval_of(rate):
    parsed = Rate.parse(rate)
    return Fraction(parsed.period_us, parsed.limit)


@pytest.mark.parametrize("start_s", ODD_STARTS_S)
@pytest.mark.parametrize("rate", RATES)
def test_after_ten_million_calls_the_last_departure_is_within_a_microsecond(rate, start_s):
    """In a thousand large calls, which the next test shows to be as good as their many small ones."""
    clock = ManualClock(start_s)
    shaper, interval = Shaper(rate, clock=clock), interval_of(rate)
    chunk = TEN_MILLION // 1_000 - 1
    for thousands in range(1_000):
        small = shaper.reserve()
        large = shaper.reserve(cost=chunk)
        before = thousands * (chunk + 1)
        for slot, calls in ((small, before), (large, before + 1)):
            late = slot.grant.departs_at_us - clock.now_us() - calls * interval
            assert 0 <= late < 1
    assert shaper.reserve().grant.wait_us == ceil(TEN_MILLION * interval)


@settings(max_examples=100)
@given(st.sampled_from(RATES), st.integers(1, 5), st.integers(1, 60), st.integers(1, 5))
def test_a_large_call_occupies_as_much_as_its_many_small_ones(rate, burst, cost, before):
    delays = []
    for costs in ([cost], [1] * cost):
        shaper = Shaper(rate, burst=burst, clock=ManualClock(1_000))
        for each in [1] * before + costs:
            shaper.reserve(cost=each)
        delays.append([shaper.reserve().delay for _ in range(3)])
    assert delays[0] == delays[1]


@pytest.mark.parametrize("rate", ["7/s", "99_991/s", "0.3/s"])
def test_two_hundred_thousand_calls_one_after_the_other_stay_on_the_grid(rate):
    """200,000 calls, each reserved; every departure is the ideal one, rounded up."""
    clock = ManualClock(1_000_000_000.123457)
    reserve, interval, now = Shaper(rate, clock=clock).reserve, interval_of(rate), clock.now_us()
    p, q = interval.numerator, interval.denominator
    for calls in range(200_000):
        ideal = now - (-calls * p // q)
        assert reserve().grant.departs_at_us == ideal


@pytest.mark.parametrize("rate", ["7/s", "99_991/s", "1.1/s"])
def test_one_caller_that_waits_each_time_keeps_the_rate_exactly(rate):
    """The instant at which it reserves is rounded; the grid is not, so the rounding does not add up."""
    clock = ManualClock(1_000_000_000.123457, autojump=True)
    shaper, interval, start = Shaper(rate, clock=clock), interval_of(rate), clock.now_us()
    for calls in range(5_000):
        shaper.schedule()
        assert clock.now_us() == start + ceil(calls * interval)


def test_a_queue_that_ran_dry_begins_a_new_grid_where_the_next_call_comes():
    clock = ManualClock(1_000)
    shaper = Shaper("10/s", clock=clock)
    shaper.reserve()
    clock.advance(0.123_456)
    assert [shaper.reserve().delay for _ in range(3)] == [0.0, 0.1, 0.2]


@pytest.mark.parametrize("burst", [2, 5, 1_000])
def test_a_burst_leaves_at_once_after_idling_and_then_the_rate_holds(burst):
    clock = ManualClock(1_000)
    shaper = Shaper("10/s", burst=burst, clock=clock)
    for _ in range(2):
        assert {shaper.reserve().delay for _ in range(burst)} == {0.0}
        assert [shaper.reserve().delay for _ in range(3)] == [0.1, 0.2, 0.3]
        clock.advance(0.3 + burst / 10)


def test_a_burst_fills_up_at_the_rate():
    clock = ManualClock(1_000)
    shaper = Shaper("10/s", burst=5, clock=clock)
    assert [shaper.reserve().delay for _ in range(5)] == [0.0] * 5
    clock.advance(0.25)
    assert [shaper.reserve().delay for _ in range(4)] == pytest.approx([0.0, 0.0, 0.05, 0.15], abs=1e-9)


def test_several_shapers_of_one_name_share_one_grid():
    clock = ManualClock(1_000)
    one = Shaper("7/s", clock=clock, name="api")
    other = Shaper("7/s", store=one.core.store, name="api")
    waits = [shaper.reserve().grant.wait_us for _ in range(10) for shaper in (one, other)]
    assert waits == [ceil(n * Fraction(SECOND, 7)) for n in range(20)]


@settings(max_examples=150)
@given(
    st.sampled_from(["7/s", "10/s", "99_991/s", "3/min"]),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_reserving_and_cancelling_in_any_order_never_puts_two_calls_too_close(rate, burst, rounds, order):
    parsed = Rate.parse(rate)
    follower, quarter = Follower(rate, burst=burst), parsed.period_us // parsed.limit // 4
    for reserved, cancelled, quarters in rounds:
        for _ in range(reserved):
            follower.reserve()
        for call in order.sample(follower.waiting, min(cancelled, len(follower.waiting))):
            assert follower.cancel(call)
            assert not follower.cancel(call)
        follower.advance(quarters * quarter + 1)
        for call in order.sample(follower.calls, min(cancelled, len(follower.calls))):
            follower.cancel(call)
    follower.finish()
    check_spacing(follower.departures, parsed.limit, parsed.period_us, burst)
    assert len(follower.departures) == sum(not call.cancelled for call in follower.calls)


def test_a_second_limit_that_does_not_bind_leaves_the_grid_exact():
    """A window beside the grid rounds nothing: ten thousand calls later the grid is where it was."""
    shaper = Shaper("7/s; 70_000/day", clock=ManualClock(1_000))
    waits = [shaper.reserve().grant.wait_us for _ in range(10_000)]
    assert waits == [ceil(n * Fraction(SECOND, 7)) for n in range(10_000)]


@pytest.mark.parametrize(
    ("rate", "most"), [("1/h", MAX_SPAN_US // (3_600 * SECOND)), ("1000000/s", MAX_COUNT)]
)
def test_a_call_takes_no_longer_than_the_longest_duration(rate, most):
    assert Shaper(rate, burst=most).core.queue.max_cost == most
    with pytest.raises(ConfigError, match=f"{most:,}"):
        Shaper(rate, burst=most + 1)
    with pytest.raises(CostExceedsLimitError):
        Shaper(rate).reserve(cost=most + 1)
