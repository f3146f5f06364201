"""headroom lowers the stated rates by exactly its share, in the long run, too."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import ManualClock, Policy
from shapekit.testing import check_window

SECOND_US = 1_000_000


def last_departure_us(policy, calls, key="default"):
    """When the last of so many simultaneous calls leaves, in µs from now."""
    for _ in range(calls - 1):
        policy.shaper.reserve(key)
    return round(policy.shaper.reserve(key).delay * SECOND_US)


def test_ten_a_second_with_2_percent_headroom_are_9_8_a_second_in_the_long_run():
    policy = Policy("10/s", headroom=0.02, clock=ManualClock())
    # Call number 98,001 leaves after exactly 98,000 intervals: 10,000 s, not a microsecond off.
    assert last_departure_us(policy, 98_001) == 10_000 * SECOND_US


def test_enforced_calls_leave_at_9_8_a_second(policy, clock):
    one = policy("10/s", headroom=0.02)
    for call in range(99):
        with one.admit():
            assert clock.now_us() == -(-call * SECOND_US * 10 // 98)
    assert clock.now() == 10.0


PERCENT = st.integers(0, 99).map(lambda percent: percent / 100)
RATES = st.tuples(st.integers(1, 2_000), st.sampled_from(["s", "min", "h", "day"]))
LENGTH_S = {"s": 1, "min": 60, "h": 3_600, "day": 86_400}


@given(RATES, PERCENT, st.integers(2, 200))
def test_the_queue_keeps_the_lowered_rate_to_the_microsecond(rate, headroom, calls):
    limit, unit = rate
    policy = Policy(f"{limit}/{unit}", headroom=headroom, clock=ManualClock())
    # A float means its shortest decimal: 0.07 is 7 %, not the binary fraction next to it.
    lowered = limit * (1 - Fraction(Decimal(str(headroom))))
    ideal = (calls - 1) * LENGTH_S[unit] * SECOND_US / lowered
    assert last_departure_us(policy, calls) == -(-ideal.numerator // ideal.denominator)


@pytest.mark.parametrize(
    ("rate", "headroom"),
    [("1/week", 0.0333), ("100/h", 0.123457), ("5_000_000/day", 0.123457), ("1000/30d", 0.0333)],
)
def test_any_rate_may_have_any_headroom(rate, headroom):
    lowered = Policy(rate, headroom=headroom, clock=ManualClock())
    stated = Policy(rate, clock=ManualClock())
    wanted = last_departure_us(stated, 11) / (1 - headroom)
    assert last_departure_us(lowered, 11) == pytest.approx(wanted, rel=1e-9, abs=1)


def test_without_headroom_the_rate_is_the_stated_one():
    assert last_departure_us(Policy("10/s", headroom=0, clock=ManualClock()), 101) == 10 * SECOND_US


def test_several_rates_are_all_lowered(policy, clock):
    one = policy("10/s; 100/min", headroom=0.02)
    left = []
    for _ in range(300):
        with one.admit():
            left.append(clock.now())
    check_window(left, 98, "1min")
    # 98 calls in the first minute, at 9.8 a second; the 99th opens the next.
    assert left[97] == pytest.approx(97 / 9.8, abs=1e-6)
    assert left[98] == 60.0
    assert left[196] == 120.0


def test_a_rate_with_a_burst_keeps_its_burst():
    policy = Policy("10/s burst 5", headroom=0.02, clock=ManualClock())
    assert last_departure_us(policy, 5) == 0
    assert last_departure_us(policy, 98, "x") == -(-(98 - 5) * SECOND_US * 10 // 98)


def test_a_further_rate_with_a_burst_keeps_its_burst_and_is_lowered_exactly():
    policy = Policy("1000/s; 60/min burst 10", headroom=0.1, clock=ManualClock())
    assert last_departure_us(policy, 10) == pytest.approx(9 * SECOND_US / 900, abs=1)
    # From then on 54 a minute; the meter was full when the tenth had left.
    assert last_departure_us(policy, 54) == pytest.approx(60 * SECOND_US, abs=1)


@pytest.mark.parametrize(("limit", "left_in_a_second"), [(10, 9), (100, 98), (49, 48), (50, 49), (1, 1)])
def test_a_burst_pace_is_rounded_down_to_whole_calls(fits, limit, left_in_a_second):
    # A window of 9.8 calls holds 9; below one call there is nothing to round down to.
    policy = Policy(f"{limit}/s", pace="burst", headroom=0.02, clock=ManualClock())
    assert fits(policy, 0.999) == left_in_a_second
