"""pace="burst": as fast as the rolling window allows, and never more in any half-open window."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, Shaper
from shapekit.testing import check_window

from .follower import SECOND, Follower
from .histories import check_windows

gaps = st.lists(st.integers(0, 30).map(lambda n: n * SECOND // 20), min_size=1, max_size=40)


@settings(max_examples=200)
@given(st.integers(1, 7), st.sampled_from([1, 3]), gaps)
def test_each_call_leaves_a_window_after_the_call_limit_places_before(limit, seconds, gaps):
    follower = Follower(f"{limit} per {seconds} s", pace="burst")
    window, due = seconds * SECOND, []
    for gap in gaps:
        follower.advance(gap)
        due.append(max(follower.now, due[-limit] + window if len(due) >= limit else 0))
        call = follower.reserve()
        assert call.slot.grant.departs_at_us == due[-1]
    follower.finish()
    check_windows(follower.departures, limit, window)


def test_a_whole_window_may_leave_now_or_never():
    shaper = Shaper("10/s", pace="burst", max_wait=0, clock=ManualClock(1_000))
    assert [shaper.reserve().accepted for _ in range(12)] == [True] * 10 + [False] * 2


def test_large_windows_leave_at_once_too():
    shaper = Shaper("1000/min", pace="burst", clock=ManualClock(1_000))
    assert {shaper.reserve().delay for _ in range(1_000)} == {0.0}
    assert {shaper.reserve().delay for _ in range(1_000)} == {60.0}
    assert shaper.reserve().delay == 120.0


def test_beyond_a_thousand_the_window_is_kept_in_parts_and_never_exceeded():
    """The conservative ring: at most a tenth of the window is lost, nothing is ever over."""
    follower = Follower("2000/min", pace="burst")
    for _ in range(5_000):
        follower.reserve()
    follower.finish()
    departures = follower.departures
    check_window([at / SECOND for at, _ in departures], "2000/min")
    assert departures[1_999][0] - departures[0][0] == 0
    assert 120 * SECOND <= departures[-1][0] - departures[0][0] <= 1.1 * 120 * SECOND


def test_smooth_with_two_rates_spaces_the_first_and_bounds_windows_of_the_second():
    follower = Follower("10/s; 25/min")
    for _ in range(60):
        follower.reserve()
    delays = [call.slot.grant.wait_us for call in follower.calls]
    tenth = SECOND // 10
    assert delays[:25] == [n * tenth for n in range(25)]
    assert delays[25:50] == [60 * SECOND + n * tenth for n in range(25)]
    assert delays[50:] == [120 * SECOND + n * tenth for n in range(10)]


def test_the_order_in_which_rates_are_written_does_not_matter():
    for text in ("10/s; 25/min; 40/h", "40/h; 25/min; 10/s"):
        shaper = Shaper(text, clock=ManualClock(1_000))
        delays = [shaper.reserve().delay for _ in range(41)]
        assert delays[24:26] == [2.4, 60.0]
        assert delays[39:] == [61.4, 3_600.0]


@pytest.mark.parametrize("options", [{"pace": "fast"}, {"pace": "burst", "burst": 5}])
def test_wrong_paces_are_refused(options, refused):
    refused(lambda: Shaper("10/s", **options), "pace", "burst")
