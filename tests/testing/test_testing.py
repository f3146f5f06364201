"""The history checkers, against brute force and against limiters that admit one call too many."""

import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import GCRA, Gate, Rate, SlidingWindowLog, testing
from shapekit.testing import ManualClock, PaceError, check_pace, check_window

SECOND_US = 1_000_000
RATES = st.sampled_from(["10/s", "3/s", "7 per 2 s", "600/min", "0.5/s"])
HISTORIES = st.lists(st.tuples(st.integers(0, 60).map(lambda n: n / 20), st.integers(1, 4)), max_size=12)
GAPS = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 3)), min_size=30, max_size=60)


def broken(check, *args):
    """The PaceError of a check, or None."""
    try:
        check(*args)
    except PaceError as error:
        return error
    return None


def microseconds(history):
    return [(round(at * SECOND_US), cost) for at, cost in history]


def pace_breaches(history, rate, burst):
    """All pairs that break the pace, in O(n^2): {(i, j): microseconds too early}."""
    interval = Fraction(Rate.parse(rate).period_us, Rate.parse(rate).limit)
    calls = microseconds(history)
    breaches = {}
    for i, (start, _) in enumerate(calls):
        for j in range(i, len(calls)):
            cost = sum(cost for _, cost in calls[i : j + 1])
            early = (cost - burst) * interval - (calls[j][0] - start)
            if early > 0:
                breaches[i, j] = early
    return breaches


def window_breaches(history, limit, window_us):
    """All pairs that break the window, in O(n^2): {(i, j): units too many}."""
    calls = microseconds(history)
    breaches = {}
    for i, (start, _) in enumerate(calls):
        for j in range(i, len(calls)):
            cost = sum(cost for _, cost in calls[i : j + 1])
            if calls[j][0] < start + window_us and cost > limit:
                breaches[i, j] = cost - limit
    return breaches


@given(HISTORIES, RATES, st.integers(1, 8))
def test_check_pace_finds_the_verdict_of_brute_force(history, rate, burst):
    history.sort()
    breaches = pace_breaches(history, rate, burst)
    error = broken(check_pace, history, rate, burst)
    assert (error is not None) == bool(breaches)
    if error is not None:
        assert error.last == min(j for _, j in breaches)
        assert error.by == float(breaches[error.first, error.last] / SECOND_US)
        assert error.by == float(max(by for (_, j), by in breaches.items() if j == error.last) / SECOND_US)


@given(HISTORIES, st.integers(1, 8), st.integers(1, 30).map(lambda n: n / 10))
def test_check_window_finds_the_verdict_of_brute_force(history, limit, window):
    history.sort()
    breaches = window_breaches(history, limit, round(window * SECOND_US))
    error = broken(check_window, history, limit, window)
    assert (error is not None) == bool(breaches)
    if error is not None:
        assert error.last == min(j for _, j in breaches)
        assert error.by == breaches[error.first, error.last]
        assert error.by == max(by for (_, j), by in breaches.items() if j == error.last)


@given(HISTORIES.flatmap(lambda history: st.tuples(st.just(history), st.permutations(history))), RATES)
def test_the_order_of_recording_does_not_matter(histories, rate):
    recorded, shuffled = histories
    for check, bound in ((check_pace, (rate, 3)), (check_window, (4, "1s"))):
        verdicts = [broken(check, history, *bound) is None for history in (recorded, shuffled)]
        assert verdicts[0] == verdicts[1]


def hammered(strategy, gaps):
    """The admitted and the denied calls of a gate, as two histories."""
    clock = ManualClock()
    gate = Gate(strategy, clock=clock)
    admitted, denied = [], []
    for gap, cost in gaps:
        clock.advance(gap / SECOND_US)
        (admitted if gate.check(cost=cost) else denied).append((clock.now(), cost))
    return admitted, denied


@given(GAPS, RATES, st.integers(3, 6), st.randoms())
def test_check_pace_passes_a_gcra_and_fails_if_it_admits_one_too_many(gaps, rate, burst, random):
    admitted, denied = hammered(GCRA(rate, burst=burst), gaps)
    check_pace(admitted, rate, burst)
    if denied:
        with pytest.raises(PaceError, match="too early"):
            check_pace([*admitted, random.choice(denied)], rate, burst)


@given(GAPS, st.integers(3, 6), st.randoms())
def test_check_window_passes_a_log_and_fails_if_it_admits_one_too_many(gaps, limit, random):
    admitted, denied = hammered(SlidingWindowLog(limit, 1), gaps)
    check_window(admitted, limit, 1)
    if denied:
        with pytest.raises(PaceError, match="too many"):
            check_window([*admitted, random.choice(denied)], limit, 1)


class OffByOne:
    """A counter of windows whose comparison lets one call too many through."""

    def __init__(self, limit, clock):
        self.limit, self.clock = limit, clock
        self.departures = []

    def check(self):
        now = self.clock.now()
        recent = [at for at in self.departures if at > now - 1]
        if len(recent) <= self.limit:
            self.departures.append(now)


def test_both_fail_on_a_limiter_with_the_classic_off_by_one():
    clock = ManualClock()
    limiter = OffByOne(5, clock)
    for _ in range(300):
        limiter.check()
        clock.advance(0.01)
    with pytest.raises(PaceError) as caught:
        check_window(limiter.departures, "5/s")
    assert (caught.value.first, caught.value.last, caught.value.by) == (0, 5, 1)
    check_window(limiter.departures, "6/s")
    with pytest.raises(PaceError) as caught:
        check_pace(limiter.departures, "5/s", burst=5)
    assert (caught.value.first, caught.value.last) == (0, 5)
    assert caught.value.by == 0.15


@pytest.mark.parametrize("limit", [3, 7, 11, 120, 997])
def test_intervals_that_are_no_whole_microseconds_are_exact(limit):
    # T = 1/limit s lies between two microseconds: the longer one passes for ever, the shorter one never.
    longer = -(-SECOND_US // limit)
    check_pace([n * longer / SECOND_US for n in range(1_000)], limit)
    with pytest.raises(PaceError) as caught:
        check_pace([0, (longer - 1) / SECOND_US], limit)
    assert 0 < caught.value.by < 1e-6
    assert caught.value.by == float(Fraction(1, limit) - Fraction(longer - 1, SECOND_US))


@given(st.integers(1, 5_000), st.integers(1, 60))
def test_a_microsecond_of_tolerance_forgives_rounding_and_no_more(limit, period):
    # The slots of a queue lie on an exact grid, and are taken on the microsecond after.
    slots = [-(-n * period * SECOND_US // limit) / SECOND_US for n in range(50)]
    check_pace(slots, Rate(limit, period), tolerance="1us")
    check_pace([n * period / limit for n in range(50)], Rate(limit, period), tolerance="1us")
    early = [*slots[:-1], slots[-1] - 2 / SECOND_US]
    with pytest.raises(PaceError) as caught:
        check_pace(early, Rate(limit, period), tolerance="1us")
    assert 1e-6 < caught.value.by < 3e-6


def test_two_calls_exactly_one_window_apart_are_in_different_windows():
    check_window([0.25, 1.25], 1, "1s")
    with pytest.raises(PaceError):
        check_window([0.25, 1.249999], 1, "1s")


def test_an_empty_history_keeps_every_limit():
    check_pace([], "1/day")
    check_window([], "1/day")


def test_the_burst_is_that_of_the_rate_or_one():
    check_pace([0, 0, 0], "10/s burst 3")
    with pytest.raises(PaceError):
        check_pace([0, 0], "10/s")


def test_the_error_names_both_calls_and_the_breach_and_pickles():
    with pytest.raises(AssertionError) as caught:
        check_pace([0.5, 0.6, (0.65, 2)], "10/s")
    assert str(caught.value) == (
        "calls 0 (at 0.5 s) to 2 (at 0.65 s) cost 4 in 0.15 s; "
        "at 10/s burst 1 that takes 0.3 s: 0.15 s too early"
    )
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.__dict__) == (str(caught.value), caught.value.__dict__)


def test_fractions_of_a_microsecond_are_shown():
    with pytest.raises(PaceError, match=r"takes 0\.333333333 s: 0\.333333333 s too early$"):
        check_pace([0, 0], "3/s")


def test_a_breach_by_rounding_alone_names_the_tolerance_to_pass():
    left = [0, 0.333334, 0.666667]
    with pytest.raises(PaceError, match='slots are whole microseconds, so pass tolerance="1us"'):
        check_pace(left, "3/s")
    check_pace(left, "3/s", tolerance="1us")


@pytest.mark.parametrize("bad", ["1", None, True, float("nan"), float("inf"), 10**400, (1, 2, 3), [1, 2]])
def test_a_wrong_instant_is_a_config_error(refused, bad):
    refused(lambda: check_pace([0, bad], "1/s"), "departures[1]")
    refused(lambda: check_window([0, (bad, 1)], "1/s"), "departures[1]")


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, None, "1"])
def test_a_wrong_cost_is_a_config_error(refused, bad):
    refused(lambda: check_pace([0, (1, bad)], "1/s"), "departures[1]")
    refused(lambda: check_window([0, (1, bad)], "1/s"), "departures[1]")


def test_wrong_bounds_are_config_errors(refused):
    refused(lambda: check_pace([], "1/s", burst=0), "burst")
    refused(lambda: check_pace([], "1/s burst 2", burst=2), "burst")
    refused(lambda: check_pace([], "fast"), "rate")
    for tolerance in (-1, float("nan"), None, "soon", True):
        refused(lambda tolerance=tolerance: check_pace([], "1/s", tolerance=tolerance), "tolerance")
    refused(lambda: check_pace(5, "1/s"), "departures")
    refused(lambda: check_window([], 1), "window")
    refused(lambda: check_window([], 0, "1s"), "limit")


def test_the_module_exports_what_users_need():
    assert set(testing.__all__) >= {"ManualClock", "PaceError", "check_pace", "check_window"}
    assert all(hasattr(testing, name) for name in testing.__all__)
