"""What the seeds measured, computed exactly; where their figures were noise, the right ones.

The seeds ran GCRA at 10/s with a burst of 10 for three seconds on a real machine. "Three seconds" is
taken here both ways: up to just before t = 3 s, and with the instant t = 3 s itself.
"""

import operator

import pytest

from shapekit import GCRA, ConfigError, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket

INTERVAL_US = 100_000
BURST = 10
THREE_S = 3_000_000


def formula_admits(tolerance_us, compare, until_us):
    """Admissions of the seeds' three lines, hammered once every microsecond from a cold start.

    Between admissions nothing changes, so the loop may go from one admission to the next: the first
    microsecond at which `now` compares with `arrival - tolerance`.
    """
    arrival, now, at_zero, total = 0, 0, 0, 0
    while True:
        due = arrival - tolerance_us
        now = max(now, due if compare is operator.ge else due + 1)
        if now > until_us:
            return at_zero, total
        assert compare(now, due)
        assert now in (0, due, due + 1) or compare(now - 1, due)
        arrival = max(now, arrival) + INTERVAL_US
        total += 1
        at_zero += now == 0


OFF_BY_ONE = [
    # tolerance, comparison, at once, before 3 s, up to 3 s, the seeds' total
    (BURST, operator.ge, 11, 40, 41, 41),
    (BURST, operator.gt, 10, 40, 40, 41),
    (BURST - 1, operator.gt, 9, 39, 39, 39),
    (BURST - 1, operator.ge, 10, 39, 40, 40),
]


@pytest.mark.parametrize(("intervals", "compare", "at_once", "before", "up_to", "seeds"), OFF_BY_ONE)
def test_the_off_by_one_table(intervals, compare, at_once, before, up_to, seeds):
    """The seeds' bursts are right, and one of their totals is not.

    `tau = burst * T` with `>` admits 40 and not 41: its tenth call leaves at once, and each later one a
    microsecond after its slot. The seeds' other totals count t = 3 s itself; just before it, the two
    forms with `>=` have one call less.
    """
    tolerance_us = intervals * INTERVAL_US
    assert formula_admits(tolerance_us, compare, THREE_S - 1) == (at_once, before)
    assert formula_admits(tolerance_us, compare, THREE_S) == (at_once, up_to)
    assert (up_to == seeds) == ((intervals, compare) != (BURST, operator.gt))


def hammered(limit, start_us, span_us):
    """Instants of admission of a caller that calls every microsecond of a half-open span."""
    state, now, instants = None, start_us, []
    while (now := limit.earliest(state, now, 1)) < start_us + span_us:
        state = limit.check(state, now, 1).state
        instants.append(now)
    return instants


@pytest.mark.parametrize("kind", [GCRA, TokenBucket, LeakyBucket])
def test_three_seconds_of_hammering_admit_39_and_the_fortieth_at_three_seconds(kind):
    """burst + L/T: ten at once, 29 more just before t = 3 s, and the fortieth at t = 3 s exactly.

    Forty calls take (40 - burst) * T = 3 s, so forty before t = 3 s would break the invariant.
    """
    limit = kind("10/s", BURST)
    assert hammered(limit, 0, THREE_S) == [0] * 10 + [n * INTERVAL_US for n in range(1, 30)]
    assert hammered(limit, 0, THREE_S + 1) == [0] * 10 + [n * INTERVAL_US for n in range(1, 31)]


def test_a_burst_of_zero_would_halve_the_rate_and_is_refused():
    state, admitted = 0, []
    for now in range(0, 1_000_000, 1_000):
        if now >= state + INTERVAL_US:  # the seeds' formula with tau = (0 - 1) * T
            state = max(now, state) + INTERVAL_US
            admitted.append(now)
    assert len(admitted) == 5
    for kind in (GCRA, TokenBucket, LeakyBucket):
        with pytest.raises(ConfigError, match="0"):
            kind("10/s", 0)


@pytest.mark.parametrize(
    ("begins_us", "windows"),
    [
        (0, [10, 9, 9, 0]),
        (450_000, [10, 9, 9, 5]),
        (600_000, [10, 9, 9, 6]),
        (999_999, [10, 9, 9, 9]),
    ],
)
def test_two_counters_over_grant_to_synchronised_bursts(begins_us, windows):
    """The seeds' 34 of 30 is real: 10 + 9 + 9 + 6, for a run that begins 0.56 to 0.66 s into a window.

    The estimator takes the window before as evenly spread. Callers that all come at once spend their
    whole limit in the rest of the first window, and pay for it as if it had been spread over all of
    it. The run of three seconds touches four windows unless it begins on an edge, so it is granted
    28 to 37, where an exact log grants 30.
    """
    two_counters = SlidingWindow("10/s", buckets=1)
    instants = hammered(two_counters, begins_us, THREE_S)
    assert [sum(now // 1_000_000 == window for now in instants) for window in range(4)] == windows
    assert (sum(windows) == 34) == (begins_us == 600_000)


def test_the_over_grant_depends_on_where_the_run_begins():
    """In steps of 10 ms from just past the edge: at least 29, 34 from 0.56 to 0.66 s, at most 37."""
    two_counters = SlidingWindow("10/s", buckets=1)
    totals = {begins: len(hammered(two_counters, begins * 10_000 + 1, THREE_S)) for begins in range(100)}
    assert (min(totals.values()), max(totals.values())) == (29, 37)
    assert [begins for begins, total in totals.items() if total == 34] == list(range(56, 67))


def test_the_worst_second_of_two_counters_holds_nineteen():
    """Ten at the very end of a window, nine more within a second: the content of one bucket too much."""
    instants = hammered(SlidingWindow("10/s", buckets=1), 999_999, THREE_S)
    assert max(sum(start <= now < start + 1_000_000 for now in instants) for start in instants) == 19


def test_a_fixed_window_grants_twice_its_limit_around_an_edge():
    window = FixedWindow("10/s")
    instants = hammered(window, 999_999, 2)
    assert instants == [999_999] * 10 + [1_000_000] * 10
