"""What an outlook multiplies is what calls get that are made one by one."""

from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, Quota, Rate, SlidingWindow, any_of
from shapekit.algorithms import prospects
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant

from .follower import SECOND
from .setups import ALIGNED, ALWAYS

DAY = 86_400 * SECOND
SETUPS = {
    **{name: (*args, options) for name, (args, options, _) in (ALWAYS | ALIGNED).items()},
    "calendars": ("10/s burst 5; 30/min", {"gates": (Quota("100/day"), Quota("450/week"))}),
    "time zone": ("1/min", {"gates": (Quota("300/day", tz="Europe/Berlin"),)}),
    "quota alone": ({"gates": (Quota("90/day"),)},),
    "burst, three rates": ("3/s; 20 per 10 s; 60/min", {"pace": "burst"}),
    "slack GCRA": ("7/s", {"gates": (GCRA("30/s", burst=4),)}),
    "GCRA, in fractions": ("9/s", {"gates": (GCRA("7 per 1.1 s", burst=3),)}),
    "periods, in fractions": ("9/s", {"gates": (FixedWindow(9, "4s"),)}),
    "a quota that no call may end": ("10/s", {"gates": (Quota("30/fixed:4s"),)}),
    "GCRA, slack at first": ("10/s", {"gates": (FixedWindow(9, 1), GCRA("5/s", burst=50))}),
    "ticks, periods and a meter": (
        "7/s burst 3",
        {
            "gates": (
                GCRA("3 per 1.1 s", burst=4),
                SlidingWindow(50, "7s", conservative=True),
                FixedWindow(90, "31s"),
            )
        },
    ),
    "ticks of their own": (
        "9/s; 7 per 3 s",
        {"gates": (SlidingWindow(8, 2.6, buckets=4, conservative=True),)},
    ),
    "days": ("10/s", {"gates": (Quota("7/day"),)}),
    "three a day": ("10/s burst 3", {"gates": (Quota("3/day", offset_minutes=-330),)}),
    "weeks": ("10/s; 30 per 10 s", {"gates": (Quota("9/week", week_start="sunday"),)}),
    "months": ("10/s", {"gates": (Quota("5/month", anchor_day=31),)}),
    "days of a zone": ("10/s", {"gates": (Quota("4/day", tz="Australia/Lord_Howe"),)}),
    "months of a zone": ("1/min", {"gates": (Quota("3/month", tz="America/New_York", anchor_day=30),)}),
    "long equal spans": ("10/s", {"gates": (Quota("4/fixed:30d", offset_minutes=60),)}),
    "days and a slow meter": ("10/s", {"gates": (Quota("5/day"), GCRA("1 per 6 h", burst=3))}),
    "days and a meter that is full again": ("10/s", {"gates": (Quota("5/day"), GCRA("1/h", burst=3))}),
    "days and a meter that is full after weeks": (
        "10/s",
        {"gates": (Quota("5/day"), GCRA("1 per 5 h", burst=10))},
    ),
    "days and ticks": (
        "10/s; 9 per 1 d",
        {"gates": (Quota("5/day"), SlidingWindow(4, "7 h", buckets=7, conservative=True))},
    ),
    "days that just fit": ("2/h", {"gates": (Quota("47/day", tz="Europe/Berlin"),)}),
    "burst under days": ("9/h; 70/day", {"pace": "burst", "gates": (Quota("5/day"),)}),
    "only to be played": ("9/s", {"gates": (any_of(GCRA("3/s"), SlidingWindow("9/s")),)}),
}


def queue_of(name):
    *rates, options = SETUPS[name]
    parts = [Rate.parse(part) for text in rates for part in text.split(";")]
    return LeakyQueue(parts, None, options.get("pace", "smooth"), options.get("gates", ()))


def both(queue, line, now, calls, cost, skew):
    """The first and the latest wait: as forecast, and of calls made one by one."""
    seen = queue.outlook(line, now, calls, cost, skew)
    waits = []
    for _ in range(calls):
        line, granted, _, _ = queue.reserve(line, now, (cost, 2**60, 0), skew)
        waits.append(Grant(*granted).wait_us)
    return seen, (waits[0], max(waits))


steps = st.tuples(
    st.sampled_from(["reserve", "reserve", "cancel", "hold", "settle"]),
    st.integers(1, 3),
    st.integers(0, 20),
    st.sampled_from([0, 1, SECOND // 10, SECOND // 3, SECOND]),
    st.sampled_from([0, 0, 0, 3, -3, SECOND, -SECOND, -3 * DAY]),
)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(SETUPS)),
    st.sampled_from([SECOND, 1_234_567_890_123_457]),
    st.lists(steps, max_size=12),
    st.integers(1, 3),
    st.integers(1, 400),
    st.sampled_from([1, 2, 5, 30, prospects.SHORT]),
)
@example("days and a meter that is full after weeks", SECOND, [], 1, 400, 1)
# After the wait for a period, its calls are as far apart as before.
@example("periods, in fractions", SECOND, [], 1, 20, 1)
# The place of three units that is given back goes to a call of one: two of them are free again.
@example(
    "days", SECOND, [*(("reserve", units, 0, 0, 0) for units in (1, 3, 1)), ("cancel", 1, 1, 0, 0)], 1, 10, 1
)
def test_a_forecast_by_repetition_is_the_same_as_one_call_by_call(name, now, story, cost, calls, short):
    """However soon a repetition is looked for, and whatever the date does."""
    queue = queue_of(name)
    line, grants, skew = None, [], 10**15
    for what, units, times, span, set_by in story:
        if what == "reserve" or not grants:
            line, granted, _, _ = queue.reserve(line, now, (units, 2**60, 1), skew)
            grants.append(Grant(*granted))
        elif what == "cancel":
            line = queue.cancel(line, now, grants[times % len(grants)], skew)[0]
        elif what == "settle":
            line = queue.settle(line, now, (grants[-1], times // 3, 1), skew)[0]
        else:
            line = queue.hold(line, now, (1 + times) * SECOND // 7, 1, skew)[0]
        now, skew = now + times * span, skew + set_by
    with patch.object(prospects, "SHORT", short):
        seen, played = both(queue, line, now, calls, cost, skew)
    assert seen == played


@pytest.mark.parametrize("window", [FixedWindow(9, 1), Quota("9/fixed:1s")], ids=repr)
@pytest.mark.parametrize("used", [3, 9])
@pytest.mark.parametrize("ahead", [0, 5])
def test_a_period_that_holds_later_slots_is_waited_for(window, used, ahead):
    queue = LeakyQueue([Rate.parse("100/s")], None, "smooth", (window,))
    state = window.charge(None, SECOND, 5 * SECOND, used, 0)[0]
    line = (0, 0, 1, 1, 0, 0, (), (state,))
    seen, played = both(queue, line, SECOND, 40, 1, -ahead)
    assert seen == played
    assert seen[0] > 3 * SECOND


@pytest.mark.parametrize("calls", range(10, 20))
@pytest.mark.parametrize(("fits", "block"), [(9, 1), (8, 2)])
def test_the_end_of_a_period_is_no_repetition(fits, block, calls):
    """After nine calls in a second one waits for the next second: as long as a meter will ask later. After
    eight, one waits twice as long, so that two take as long as two will later.
    """
    gates = FixedWindow(fits, 1), GCRA("5/s", burst=50)
    with patch.object(prospects, "SHORT", block):
        seen, played = both(LeakyQueue([Rate.parse("10/s")], None, "smooth", gates), None, 0, calls, 1, 0)
    assert seen == played
