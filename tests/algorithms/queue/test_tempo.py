"""The clock of variable speed: it and its inverse, exactly."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from shapekit.algorithms.queue.adaptive import END_US, FULL, LEAST, real, shown

INSTANTS = st.integers(0, 2**51)
SHARES = st.one_of(st.integers(LEAST, FULL), st.sampled_from([LEAST, FULL, FULL // 3]))
SPANS = st.integers(0, 2**40)


@given(INSTANTS, INSTANTS, SHARES, SPANS)
def test_the_clock_runs_at_its_share_of_real_time(anchor, virtual, share, span):
    exactly = virtual + Fraction(span * share, FULL)
    assert exactly - 1 < shown(anchor, virtual, share, anchor + span) <= exactly


@given(INSTANTS, INSTANTS, SHARES, SPANS)
def test_real_is_the_first_instant_at_which_a_time_is_shown(anchor, virtual, share, ahead):
    at = real(anchor, virtual, share, virtual + ahead)
    if at == END_US:
        assert shown(anchor, virtual, share, END_US) <= virtual + ahead
        return
    assert shown(anchor, virtual, share, at) >= virtual + ahead
    assert at == anchor or shown(anchor, virtual, share, at - 1) < virtual + ahead


@given(INSTANTS, INSTANTS, SHARES, st.lists(st.integers(-(2**40), 2**40), min_size=2))
def test_both_are_monotone_and_never_below_where_it_stood(anchor, virtual, share, spans):
    spans.sort()
    showings = [shown(anchor, virtual, share, anchor + span) for span in spans]
    instants = [real(anchor, virtual, share, virtual + span) for span in spans]
    assert showings == sorted(showings)
    assert instants == sorted(instants)
    assert min(showings) >= virtual
    assert min(instants) >= anchor


@given(INSTANTS, INSTANTS, SHARES, SHARES, SPANS, SPANS)
def test_a_change_of_speed_neither_slots_it_back_nor_lets_it_jump(anchor, virtual, one, two, first, then):
    at = anchor + first
    stood = shown(anchor, virtual, one, at)
    assert shown(at, stood, two, at) == stood
    later = shown(at, stood, two, at + then)
    assert stood <= later <= stood + then
