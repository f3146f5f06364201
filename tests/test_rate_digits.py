"""Rates of many digits: the ratio that they stand for, or hardly slower, or a reason why not."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import GCRA, LeakyBucket, ManualClock, Policy, Rate, Shaper, TokenBucket
from shapekit.rate import MAX_SPAN_US, SECOND_US

SLOWER, FLOAT = Fraction(1, 10_000), Fraction(1, 2**50)


def check_kept(rate, requested):
    """As requested, or at most a ten-thousandth slower; faster only by a float's error."""
    assert (
        requested * (1 - SLOWER)
        <= Fraction(rate.limit * SECOND_US, rate.period_us)
        <= requested * (1 + FLOAT)
    )
    assert Rate.parse(str(rate)) == rate


@given(st.floats(5e-10, 1e9))
def test_any_float_is_kept_and_never_faster(rate):
    kept = Rate.parse(rate)
    check_kept(kept, Fraction(repr(rate)))
    # As a burst, or in a window, that is a limit still.
    exact = Fraction(repr(rate))
    small = kept.limit <= max(1, rate) * 100_000 and kept.limit * kept.period_us // SECOND_US <= 10**12
    assert small or Fraction(kept.limit * SECOND_US, kept.period_us) == exact


@given(
    st.from_regex(r"[0-9]{1,6}\.[0-9]{1,60}", fullmatch=True),
    st.sampled_from(["s", "min", "h", "day", "7.3 s", "3.3333333333333333 s"]),
)
def test_any_decimal_in_text_is_kept_and_never_faster(count, unit):
    joint = " per " if unit[0].isdigit() else "/"
    times, _, name = unit.rpartition(" ")
    requested = Fraction(count) / (Fraction(times or 1) * Rate.parse(f"1/{name}").period_us / SECOND_US)
    # A rate slower than a call in years may have to be slower than one in 71.
    if requested * MAX_SPAN_US >= 10 * SECOND_US:
        check_kept(Rate.parse(f"{count}{joint}{unit}"), requested)


@given(st.integers(1, 1_000), st.integers(1, 1_000))
def test_a_divided_float_means_its_ratio(calls, seconds):
    rate = Rate.parse(calls / seconds)
    assert Fraction(rate.limit * SECOND_US, rate.period_us) == Fraction(calls, seconds)


@pytest.mark.parametrize(
    ("rate", "kept"),
    [
        (10 / 3, "10 per 3 s"),
        (1 / 3, "1 per 3 s"),
        (0.1 + 0.2, "3 per 10 s"),
        (4.35 * 100, "435/s"),
        (2.9999999999999996, "3/s"),
        (29.97, "2997 per 100 s"),
        (1_000 / 86_400, "5 per 432 s"),
        (math.pi, "289 per 92 s"),
        (123456.789012345, "123456/s"),
        ("3.33/s", "333 per 100 s"),
        ("3.3333333333333/s", "3333 per 1000 s"),
        ("3.3333333333333333333/s", "10 per 3 s"),
        ("0.1666666666666666666666/min", "1 per 360 s"),
        ("5 per 3.3333333333 s burst 2", "5 per 3.333334 s burst 2"),
    ],
)
def test_the_text_of_a_rate_shows_its_kept_value(rate, kept):
    assert str(Rate.parse(rate)) == kept
    assert kept.partition(" burst")[0] in repr(Shaper(rate, name="api"))


@pytest.mark.parametrize(
    ("rate", "why"),
    [
        (5e-324, "is slower than one call in 71 years"),
        (1e-10 / 3, "is slower than one call in 71 years"),
        ("0.0000001/week", "is slower than one call in 71 years"),
        (1e300, "is faster than 1000000000 calls a second"),
        (math.pi * 1e9, "is faster than 1000000000 calls a second"),
        ("9999999999999/s", "is faster than 1000000000 calls a second"),
        ("1/0.7us", "is not a whole number of calls in 1 µs to 71 years"),
    ],
)
def test_a_rate_that_cannot_be_kept_is_refused_with_the_reason(rate, why, refused):
    assert refused(lambda: Rate.parse(rate), "rate").bound == why


TAKERS = {
    "shaper": lambda rate: Shaper(rate).core.queue.rates[0],
    "policy": lambda rate: Policy(rate).shaper.core.queue.rates[0],
    "dict": lambda rate: Policy.from_dict({"name": "api", "rate": rate}).shaper.core.queue.rates[0],
    "gcra": lambda rate: GCRA(rate).rate,
    "token bucket": lambda rate: TokenBucket(rate).rate,
    "leaky bucket": lambda rate: LeakyBucket(rate).rate,
    "gate of a shaper": lambda rate: Shaper(gates=(GCRA(rate),)).core.queue.gates[0].rate,
    "arrivals": lambda rate: Rate.parse(str(rate) + "/s"),
}


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
def test_a_rate_is_kept_alike_everywhere(taker):
    assert taker(10 / 3) == Rate(10, 3)
    assert taker(math.pi) == Rate(289, 92)


def test_the_slots_of_a_kept_rate_lie_on_its_grid():
    shaper = Shaper(10 / 3, clock=ManualClock(0))
    assert [shaper.reserve().delay for _ in range(11)] == [round(0.3 * n, 1) for n in range(11)]
