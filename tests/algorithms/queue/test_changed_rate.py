"""A queue whose rate was changed continues at the very end of the queue that the old one left."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import GCRA, Quota
from shapekit.testing.timelines import queue

START = 1_000_000_000
RATES = st.sampled_from(
    [("10/s", 10), ("7/s", 7), ("3/s", 3), ("11 per 13s", Fraction(11, 13)), ("1/min", Fraction(1, 60))]
)


@given(RATES, RATES, st.integers(1, 30), st.integers(0, 500_000))
def test_the_next_call_leaves_where_the_queue_ends(before, after, calls, passed_us):
    (old, per_second), new = (queue(before[0]), before[1]), queue(after[0])
    state = None
    for _ in range(calls):
        state = old.reserve(state, START, (1, None, 7))[0]
    now = START + passed_us
    granted = new.reserve(new.adopt(state, old, now), now, (1, None, 7))[1]
    end = START + ceil(Fraction(calls * 1_000_000) / per_second)
    assert granted[2] == max(now, end)


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [
        ("5/s", "5/s; 100/min", [0]),
        ("5/s; 100/min", "5/s", []),
        ("5/s; 100/min", "5/s; 200/min", [3]),
        ("5/s; 50/h", "5/s; 100/min; 50/h", [0, 3]),
        ("5/s; 100/min; 50/h", "5/s; 50/h", [3]),
        ("5/s; 100/min", "5/s; 60/h", [3]),
        ("5/s; 100/min; 50/h", "5/s; 60/h; 300/day", [3, 3]),
        ("5/s; 100/min; 90/min burst 9", "6/s; 100/min; 90/min burst 9", [3, 3]),
        ("5/s; 100/min; 90/min burst 9", "6/s; 200/min", [3]),
        ("5/s; 100/min; 50/h", "5/s; 200/min; 50/min", [3, 3]),
    ],
)
def test_gates_continue_whatever_the_number_of_rates(before, after, counted):
    """A gate continues its own state, and a further rate that of its period, or of its place."""
    old, new = (queue(rates, gates=(Quota("5/month"), GCRA("1/s", burst=7))) for rates in (before, after))
    state = None
    for _ in range(3):
        state = old.reserve(state, START, (1, None, 7))[0]
    kept = zip(new.constraints.algorithms, new.adopt(state, old, START)[-1], strict=True)
    assert [limit.peek(own, START).current for limit, own in kept] == [*counted, 3, 3]


@pytest.mark.parametrize("had", [(), (Quota("5/month"),)])
def test_gates_that_are_new_start_cold(had):
    new = (*had, GCRA("1/s", burst=7), GCRA("2/s", burst=9), Quota("4/day"))
    old, queued = queue("5/s", gates=had), queue("5/s", gates=new)
    state = old.reserve(None, START, (1, None, 7))[0]
    parts = queued.adopt(state, old, START)[7]
    assert parts == (*state[7], None, None, None)
