"""Exact where floats are not: bursts from cold, odd rates, and runs of ten million calls."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import GCRA, LeakyBucket, Rate, TokenBucket

from .stories import slot

EPOCH_US = 1_700_000_000_000_000
"""A present-day instant: where the rounding of floats bites."""

ODD_RATES = [
    Rate.of(7, 1_000_000),
    Rate.of(3, 1_000_000),
    Rate.of(10, 1_000_000),
    Rate.of(97, 60_000_000),
    Rate.of(999_983, 1_000_003),
    Rate.of(1_000_003, 999_983_000),
    Rate.of(1, 1_000_000_000),
    Rate.of(99_991, 3_600_000_000),
]


def admitted_at_once(limit, now):
    state, admitted = None, 0
    while (outcome := limit.check(state, now, 1)).decision.allowed:
        state, admitted = outcome.state, admitted + 1
    return admitted


def one_float_admits_at_once(limit, now_ms, period_ms=1_000.0):
    """The seeds' GCRA with one float of epoch milliseconds, formula for formula."""
    interval_ms = period_ms / limit
    tolerance_ms = interval_ms * limit
    arrival, admitted = now_ms, 0
    while now_ms >= max(arrival, now_ms) + interval_ms - tolerance_ms:
        arrival = max(arrival, now_ms) + interval_ms
        admitted += 1
    return admitted


def test_one_float_is_a_call_short_for_62_of_120_limits():
    short = [limit for limit in range(1, 121) if one_float_admits_at_once(limit, EPOCH_US / 1_000) < limit]
    assert len(short) == 62
    assert one_float_admits_at_once(6, EPOCH_US / 1_000) == 5
    assert all(one_float_admits_at_once(limit, EPOCH_US / 1_000) == limit - 1 for limit in short)


@pytest.mark.parametrize("kind", [GCRA, TokenBucket, LeakyBucket])
def test_every_limit_to_120_a_second_admits_exactly_itself(kind):
    for limit in range(1, 121):
        assert admitted_at_once(kind(limit), EPOCH_US) == limit


@pytest.mark.parametrize("burst", [1, 2, 3, 999, 1_000, 9_999, 10_000])
@pytest.mark.parametrize("rate", ODD_RATES[:6], ids=str)
def test_a_cold_key_admits_exactly_its_burst_call_by_call(rate, burst):
    assert admitted_at_once(GCRA(rate, burst), EPOCH_US + 1) == burst


def test_a_cold_key_admits_exactly_its_burst_for_every_burst_to_10_000():
    """All but one at once, then one, then no more: at odd limits, periods and instants."""
    for burst in range(1, 10_001):
        limit, period_us = 1 + burst * 7_919 % 9_973, 1_000_003 + burst * 104_729 % 999_983
        gcra, now = GCRA(Rate.of(limit, period_us), burst), EPOCH_US + burst
        state = gcra.check(None, now, burst - 1).state if burst > 1 else None
        last = gcra.check(state, now, 1)
        assert last.decision.allowed, burst
        assert last.decision.remaining == 0
        assert not gcra.check(last.state, now, 1).decision.allowed, burst
        assert gcra.forecast(None, now, 1).fits_now == burst
        assert gcra.check(None, now, burst).state == last.state


@given(
    st.integers(1, 10**12),
    st.integers(1, 2**51),
    st.integers(1, 10**4),
    st.integers(0, 2**52),
    st.integers(1, 99),
)
def test_a_cold_key_admits_exactly_its_burst_at_any_rate_and_instant(
    limit, period_us, burst, now, hundredths
):
    limit = min(limit, 1_000 * period_us)
    burst = min(burst, max(1, 2**52 * limit // period_us))
    gcra = GCRA(Rate.of(limit, period_us), burst)
    first = burst * hundredths // 100
    state = gcra.check(None, now, first).state if first else None
    last = gcra.check(state, now, burst - first)
    assert last.decision.allowed
    assert not gcra.check(last.state, now, 1).decision.allowed


@pytest.mark.parametrize("rate", ODD_RATES, ids=str)
def test_ten_million_units_neither_gain_nor_lose_one(rate):
    """Each charge at the first instant that admits it: the sum stays on the exact line.

    Unit n of an unbroken run from cold is admitted at ceil((n - burst) * T) exactly, so one call
    more or less in ten million would show as a shift by T.
    """
    burst, total = 10_000, 10_000_000
    gcra, interval_us = GCRA(rate, burst), Fraction(rate.period_us, rate.limit)
    state, now, units = None, EPOCH_US, 0
    sizes = (1, 4_999, 17, 7_001, 3)
    step = 0
    while units < total:
        cost = min(sizes[step % len(sizes)], total - units)
        step += 1
        now = gcra.earliest(state, now, cost)
        units += cost
        assert now == EPOCH_US + max(0, ceil((units - burst) * interval_us))
        state = gcra.check(state, now, cost).state
    assert units == total
    assert gcra.earliest(state, now, 1) == EPOCH_US + ceil((total + 1 - burst) * interval_us)


@pytest.mark.parametrize("rate", [Rate.of(7, 1_000_000), Rate.of(999_983, 1_000_003)], ids=str)
def test_two_hundred_thousand_calls_one_by_one(rate):
    gcra, interval_us = GCRA(rate, burst=5), Fraction(rate.period_us, rate.limit)
    state, now, calls = None, EPOCH_US, 200_000
    for _ in range(calls):
        now = gcra.earliest(state, now, 1)
        state = gcra.check(state, now, 1).state
    assert now == EPOCH_US + ceil((calls - 5) * interval_us)


@pytest.mark.parametrize("burst", [1, 5])
@pytest.mark.parametrize("rate", [Rate.of(3, 1_000_000), Rate.of(7, 1_000_000)], ids=str)
def test_slots_of_a_long_queue_do_not_drift(rate, burst):
    """Callers that all come at one instant leave on the exact line, also where T is a fraction."""
    gcra, interval_us = GCRA(rate, burst), Fraction(rate.period_us, rate.limit)
    state = None
    for n in range(1, 50_001):
        due, (state, *_) = slot(gcra, state, EPOCH_US, 1)
        assert due == EPOCH_US + max(0, ceil((n - burst) * interval_us))


@given(st.integers(1, 10**12), st.integers(1, 2**51), st.integers(1, 10**12), st.integers(1, 10**6))
@example(999_999_999_999, 10**9, 10**12, 10**6)
@example(10_007, 1_000_000, 10**12, 10**6)
@example(67_108_863, 67_108_864, 1, 10**6)
def test_a_rate_is_exact_or_for_huge_limits_a_hair_slower(limit, period_us, burst, units):
    """Above 67 million calls a period T may be longer than given, by less than 2^-26 µs; never shorter."""
    limit = min(limit, 1_000 * period_us)
    interval_us = Fraction(period_us, limit)
    burst = min(burst, max(1, int(2**50 / interval_us)))
    units = min(units, max(1, int(2**50 / interval_us)))
    gcra = GCRA(Rate.of(limit, period_us), burst)
    state = gcra.debit(gcra.check(None, 0, burst).state, 0, units).state
    due = gcra.earliest(state, 0, 1)
    # One more unit fits when all but burst - 1 of those charged have drained.
    assert due >= (units + 1) * interval_us
    if limit <= 2**26:
        assert due == ceil((units + 1) * interval_us)
    else:
        assert due < (units + 1) * (interval_us + Fraction(1, 2**26)) + 1
