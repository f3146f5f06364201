"""A forecast is what would happen; it takes nothing."""

import threading
from unittest.mock import patch

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    ManualClock,
    Policy,
    Quota,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    any_of,
)
from shapekit.algorithms import prospects
from shapekit.algorithms.queue.queue import MOST_STEPS, LeakyQueue

from ..algorithms.queue.follower import SECOND, Follower
from ..algorithms.queue.setups import ALIGNED, ALWAYS

PLAIN = {"plain": (("10/s",), {}, []), "burst": (("7/s",), {"burst": 4}, [])}
SETUPS = PLAIN | ALWAYS | ALIGNED
stories = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 8), st.sampled_from(["", "", "cancel", "hold"])), max_size=10
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(SETUPS)), stories, st.integers(1, 15))
def test_a_forecast_is_what_happens_if_it_is_done(name, story, calls):
    args, options, _ = SETUPS[name]
    follower = Follower(*args, **options)
    for cost, tenths, what in story:
        follower.reserve(cost, 1_000 * SECOND)
        if what == "cancel" and follower.waiting:
            follower.cancel(follower.waiting[len(follower.waiting) // 2])
        if what == "hold" and name not in ALIGNED:
            follower.hold(SECOND)
        follower.advance(tenths * SECOND // 10)
    seen = follower.shaper.forecast(calls)
    assert follower.shaper.forecast(calls) == seen
    waits = [follower.shaper.reserve(max_wait="10000d").delay for _ in range(calls)]
    assert seen == (waits[0], max(waits))


@pytest.mark.parametrize(
    ("args", "options", "calls", "last_in"),
    [
        (("10/s; 100/min",), {}, 10**12, 60 * (10**10 - 1) + 9.9),
        (("10/s; 100/min",), {"pace": "burst"}, 10**9, 60 * (10**7 - 1) + 9),
        (("10/s; 100/min; 100000/day",), {}, 200_000, 154_949.9),
        (("10/s",), {"gates": (GCRA("8/s", burst=100),)}, 10**9 + 100, 10**9 / 8),
        (("10/s",), {"gates": (FixedWindow(100, "1m"),)}, 10**9, 60 * (10**7 - 1) - 40 + 9.9),
        (("10/s",), {"gates": (Quota("1_000_000/month"),)}, 1_000_001, 31 * 86_400 - 1_000),
        (("10/s",), {"gates": (Quota("1_000_000/month"),)}, 12_000_000, 334 * 86_400 - 1_000 + 99_999.9),
    ],
    ids=str,
)
def test_very_many_calls_under_several_limits_are_few_steps(args, options, calls, last_in):
    shaper = Shaper(*args, clock=ManualClock(1_000), **options)
    seen = []
    simulation = prospects._Simulation

    class Counted(simulation):
        def play(self, calls):
            seen.append(calls)
            return super().play(calls)

    with patch.object(prospects, "_Simulation", Counted):
        assert shaper.forecast(calls).last_in == pytest.approx(last_in, rel=1e-12)
    assert 0 < sum(seen) <= prospects.MAX_EFFORT


CALENDARS = (
    Quota("50/day"),
    Quota("1/day"),
    Quota("1000/week"),
    Quota("1000/month"),
    Quota(1_000, "fixed:30d"),
    Quota("50/day", tz="Europe/Berlin"),
)


@pytest.mark.parametrize("quota", CALENDARS, ids=str)
def test_very_many_calls_under_a_small_calendar_quota_are_few_steps(quota):
    policy = Policy("10/s", quota=quota, clock=ManualClock(1_000))
    seen = []
    plain = prospects._Simulation._play

    def noted(simulation, calls):
        seen.append(calls)
        plain(simulation, calls)

    bounds = quota.counter.periods.bounds
    with patch.object(prospects._Simulation, "_play", noted):
        last_in = policy.forecast(quota.limit * 10_000).last_in
    start = 0
    for _ in range(10_000 - 1):
        start = bounds(start)[1]
    assert last_in == pytest.approx(start / SECOND - 1_000 + (quota.limit - 1) / 10, rel=1e-12)
    assert sum(seen) <= 3 * quota.limit


@pytest.mark.parametrize(
    "quota",
    [
        Quota("7/day"),
        Quota("7/day", tz="America/New_York"),
        Quota("40/month", anchor_day=31),
        Quota("9/fixed:3d"),
        Quota("25/week"),
    ],
    ids=str,
)
def test_years_of_a_small_quota_pass_as_forecast(quota):
    """Through changes of the clocks, leap days, and calls that came before."""
    clock = ManualClock(1_700_000_000)
    shaper = Shaper("10/min; 20/h", gates=(quota,), clock=clock)
    for _ in range(3):
        shaper.reserve()
    seen = {calls: shaper.forecast(calls).last_in for calls in (10, 500, 1_999, 2_000)}
    waits = [shaper.reserve(max_wait="25000d").delay for _ in range(2_000)]
    assert seen == {calls: waits[calls - 1] for calls in seen}


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_a_forecast_under_calendars_ends_in_time(refused, zone):
    """What it does is bounded, and the bound that it names holds."""
    quotas = Quota("1/day", tz=zone), Quota("6/week", tz=zone), Quota("20/month", tz=zone)
    shaper = Shaper("10/s", gates=quotas, clock=ManualClock(1_000))
    error = refused(lambda: shaper.forecast(10**6), "calls")
    most = int(error.fix.removeprefix("ask for up to ").removesuffix(" calls"))
    assert most >= 5_000
    assert shaper.forecast(most).last_in > 10**8
    refused(lambda: shaper.forecast(most + 1), "calls")


def test_a_zone_has_no_dates_for_ever(refused):
    refused(lambda: Policy("10/s", quota=Quota("1/month", tz="Europe/Berlin")).forecast(300_000), "calls")


BOUNDED = {
    "estimating window": {"rate": "10/s", "gates": (SlidingWindow("100/min"),)},
    "any of two": {"rate": "10/s", "gates": (any_of(SlidingWindowLog("9/s"), GCRA("8/s")),)},
    "spread": {"rate": "10/s", "quota": Quota("1_000_000/month", spread=True)},
}


@pytest.mark.parametrize("name", BOUNDED)
def test_more_than_can_be_played_is_refused(name, refused):
    policy = Policy(**BOUNDED[name], clock=ManualClock(1_000))
    with patch.object(LeakyQueue, "reserve", side_effect=AssertionError("played")):
        error = refused(lambda: policy.forecast(MOST_STEPS + 1), "calls")
    assert f"{MOST_STEPS} calls" in error.fix
    assert policy.forecast(300).last_in > 29


def test_departures_that_do_not_repeat_themselves_are_refused(refused):
    shaper = Shaper("1000/s; 999_999/day", clock=ManualClock(1_000))
    refused(lambda: shaper.forecast(10**7), "calls")


def test_a_long_forecast_does_not_run_on_the_event_loop(anyio_backend):
    shaper = Shaper("10/s; 100/min", clock=ManualClock(1_000))
    threads = []
    plain = LeakyQueue.outlook

    def noted(*args):
        threads.append(threading.current_thread())
        return plain(*args)

    with patch.object(LeakyQueue, "outlook", noted):
        long = anyio.run(shaper.aforecast, 200_000, backend=anyio_backend)
        assert long == shaper.forecast(200_000)
        assert anyio.run(shaper.aforecast, 10, backend=anyio_backend).last_in == pytest.approx(0.9)
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [False, True, True]


def test_a_forecast_of_very_many_calls_is_as_quick_as_one():
    """Ten billion calls at 7/s, which would take for ever to play through one by one."""
    shaper = Shaper("7/s", clock=ManualClock(1_000))
    shaper.reserve()
    assert shaper.forecast(7 * 10**9 - 7).last_in == pytest.approx(10**9 - 1)


def test_a_forecast_of_an_idle_key(anyio_backend):
    shaper = Shaper("10/s", clock=ManualClock(1_000))
    assert shaper.forecast() == (0.0, 0.0)
    assert anyio.run(shaper.aforecast, 11, backend=anyio_backend) == (0.0, 1.0)
    assert shaper.reserve().delay == 0.0


@pytest.mark.parametrize("calls", [0, -1, 1.5, True, None, "2"])
def test_wrong_numbers_of_calls_are_refused(refused, calls):
    refused(lambda: Shaper("10/s").forecast(calls), "calls")
