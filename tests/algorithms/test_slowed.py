"""A share of a rate, up to the largest numbers that a rate may have."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shapekit.algorithms.base import slowed
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, MAX_PER_SECOND, MAX_SPAN_US, Rate

HAIR = Fraction(1, MAX_COUNT // 2)


@given(
    st.integers(1, MAX_COUNT),
    st.integers(1, MAX_SPAN_US),
    st.integers(1, 1_000_000).flatmap(
        lambda whole: st.builds(Fraction, st.integers(1, whole), st.just(whole))
    ),
)
def test_a_share_of_a_rate_is_exact_or_a_hair_slower(limit, period_us, part):
    assume(limit * 1_000_000 <= MAX_PER_SECOND * period_us)
    exact = Fraction(limit, period_us) * part
    try:
        slower = slowed(Rate.of(limit, period_us), part)
    except ConfigError:
        assert exact * MAX_SPAN_US < 1
        return
    rate = Fraction(slower.limit, slower.period_us)
    assert rate <= exact
    if exact.numerator <= MAX_COUNT and exact.denominator <= MAX_SPAN_US:
        assert rate == exact
    # Where it is next to nothing, by less than a call in seventy years.
    assert exact - rate <= max(exact * HAIR, Fraction(1, MAX_SPAN_US))


def test_a_share_of_less_than_a_call_in_seventy_years_is_refused():
    with pytest.raises(ConfigError, match="share"):
        slowed(Rate.of(1, MAX_SPAN_US // 2), Fraction(1, 3))
    assert slowed(Rate.of(1, MAX_SPAN_US // 3), Fraction(1, 3)) == Rate.of(1, MAX_SPAN_US // 3 * 3)
    assert slowed(Rate.of(3, MAX_SPAN_US), Fraction(1, 2)) == Rate.of(1, MAX_SPAN_US)
