"""`shapekit plan` predicts what the shaper does."""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import CostExceedsLimitError, ManualClock, Policy, Quota, Shaper, SQLiteStore
from shapekit.cli.main import CommandError
from shapekit.cli.output import counted, instant_words, ordinal, window_words
from shapekit.cli.plan import PlannedDepartures
from shapekit.errors import span_words
from shapekit.rate import SECOND_US

START_US = 1_772_323_200 * SECOND_US
"""2026-03-01T00:00:00Z"""
BERLIN = ZoneInfo("Europe/Berlin")

periods = st.sampled_from(["s", "250ms", "min", "h", "7h", "day"])
rates = st.lists(
    st.builds("{}/{}".format, st.integers(1, 30), periods), min_size=1, max_size=3, unique_by=lambda r: r[-3:]
).map("; ".join)
calendar = st.builds(
    Quota,
    st.integers(2, 40),
    st.sampled_from(["day", "week", "month"]),
    tz=st.none() | st.just("Europe/Berlin"),
)
spans = st.builds(Quota, st.integers(2, 40), st.sampled_from(["fixed:5h", "rolling:9h"]))


@st.composite
def policies(draw):
    """A policy, made twice: for the planned departures, and for the loop that is their model."""
    options = {
        "rate": draw(rates),
        "burst": draw(st.none() | st.integers(1, 5)),
        "quota": draw(st.none() | calendar | spans),
    }
    return [Policy(**options, clock=ManualClock(START_US / SECOND_US)) for _ in range(2)]


@given(policies(), st.integers(1, 60), st.integers(1, 2))
def test_each_planned_call_leaves_when_a_shaper_would_let_it(pair, calls, cost):
    try:
        course = PlannedDepartures(pair[0], calls, cost, START_US)
    except CostExceedsLimitError:
        with pytest.raises(CostExceedsLimitError):
            pair[1].shaper.reserve(cost=cost)
        return
    reservations = [pair[1].shaper.reserve(cost=cost, max_wait="26000d") for _ in range(calls)]
    leaves = [reservation.grant.departs_at_us for reservation in reservations]
    assert [course.leaves_us(number) for number in range(1, calls + 1)] == leaves
    for instant in (START_US - 1, *leaves, *(at - 1 for at in leaves), leaves[-1] + 1):
        assert course.gone_by(instant) == sum(at <= instant for at in leaves)


@given(policies(), st.integers(1, 60), st.sampled_from([UTC, BERLIN]))
def test_the_days_are_those_on_which_the_calls_leave(pair, calls, zone):
    course = PlannedDepartures(pair[0], calls, 1, START_US)
    leaves = (course.leaves_us(number) for number in range(1, calls + 1))
    by_day = Counter(datetime.fromtimestamp(at // SECOND_US, zone).date() for at in leaves)
    runs = list(course.days(zone))
    for run in runs:
        days = [run.first + timedelta(days=n) for n in range((run.last - run.first).days + 1)]
        counts = [by_day[day] for day in days]
        assert (run.calls, run.least, run.most) == (sum(counts), min(counts), max(counts))
        assert run.least > 0
        assert run.most - run.least <= 1
    assert sum(run.calls for run in runs) == calls
    for run, later in pairwise(runs):
        is_alike = max(run.most, by_day[later.first]) - min(run.least, by_day[later.first]) <= 1
        assert (later.first - run.last).days > 1 or not is_alike


def test_time_advances_during_a_plan_so_that_windows_stay_small():
    clock = ManualClock()
    course = PlannedDepartures(Policy("10/s; 20/min", clock=clock), 500, 1, 0)
    assert clock.now_us() == course.leaves_us(500) == 24 * 60_000_000 + 1_900_000


def test_more_than_can_be_played_is_refused():
    with pytest.raises(CommandError, match="each is simulated under several limits"):
        PlannedDepartures(Policy("10/s; 20/min", clock=ManualClock()), 1_000_001, 1, 0)


@pytest.mark.parametrize("policy", [{"rate": "1/week"}, {"rate": "1/week; 1/8d"}])
def test_a_plan_that_ends_after_generations_is_refused(policy):
    with pytest.raises(CommandError, match="more than 26,062 d"):
        PlannedDepartures(Policy(**policy, clock=ManualClock()), 10_000, 1, 0)


def planned(run, *args):
    result = run("plan", *args, "--start", "2026-03-01", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("args", "first", "last"),
    [
        (["10/s", "--calls", "5000"], 0, 499.9),
        (["10/s", "--calls", "5000", "--burst", "10"], 0, 499),
        (["10/s", "--calls", "5000", "--cost", "3"], 0, 1499.7),
        (["10/s; 1000/h", "--calls", "5000"], 0, 4 * 3600 + 99.9),
        (["10/s", "--calls", "1_000_000_000"], 0, 99_999_999.9),
        (["--quota", "100/day", "--calls", "201"], 0, 2 * 86_400),
    ],
)
def test_the_first_and_the_last_departure_are_shown(args, first, last, run):
    plan = planned(run, *args)
    assert plan["departures"][0] == {"call": 1, "after_s": first, "at": "2026-03-01T00:00:00.000+00:00"}
    assert plan["departures"][-1]["call"] == plan["calls"]
    assert plan["departures"][-1]["after_s"] == last


def test_the_marks_are_the_quarters_and_those_of_the_option(run):
    plan = planned(run, "10/s", "--calls", "1000", "--nth", "7", "--nth", "77")
    assert [mark["call"] for mark in plan["departures"]] == [1, 7, 77, 250, 500, 750, 1000]
    assert [mark["after_s"] for mark in plan["departures"]] == [0, 0.6, 7.6, 24.9, 49.9, 74.9, 99.9]


def test_the_curve_rises_from_the_first_to_the_last(run):
    curve = planned(run, "10/s; 100/min", "--calls", "500")["curve"]
    assert [point["after_s"] for point in curve] == pytest.approx(
        [249.9 * n / 12 for n in range(13)], abs=1e-6
    )
    shaper = Shaper("10/s; 100/min", clock=ManualClock())
    leaves = [shaper.reserve().delay for _ in range(500)]
    assert [point["calls"] for point in curve] == [
        sum(at <= point["after_s"] for at in leaves) for point in curve
    ]
    assert curve[-1]["calls"] == 500


def test_a_quota_shows_the_days_of_the_calls(run):
    plan = planned(run, "10/s", "--calls", "2500", "--quota", "1_000/month", "--tz", "Europe/Berlin")
    assert plan["start"] == "2026-03-01T00:00:00.000+01:00"
    assert plan["days"] == [
        {
            "from": f"2026-0{month}-01",
            "to": f"2026-0{month}-01",
            "calls": calls,
            "each_day": {"least": calls, "most": calls},
        }
        for month, calls in ((3, 1000), (4, 1000), (5, 500))
    ]
    assert plan["departures"][-1]["at"] == "2026-05-01T00:00:49.900+02:00"


@pytest.mark.parametrize("per", ["fixed:1d", "rolling:1d"])
def test_a_quota_without_a_calendar_is_printed_in_the_zone_of_the_option(per, run):
    plan = planned(run, "--calls", "3", "--quota", f"1/{per}", "--tz", "Europe/Berlin")
    first = "2026-03-01T01:00:00.000+01:00" if per == "fixed:1d" else "2026-03-02T00:00:00.000+01:00"
    assert plan["departures"][1]["at"] == first


def days_of(run, *args):
    return [
        (day["from"][-2:], day["to"][-2:], day["calls"], *day["each_day"].values())
        for day in planned(run, *args)["days"]
    ]


def test_a_daily_quota_fills_a_run_of_days(run):
    days = days_of(run, "10/s", "--calls", "450", "--quota", "100/day")
    assert days == [("01", "04", 400, 100, 100), ("05", "05", 50, 50, 50)]


def test_a_day_whose_end_is_repeated_after_midnight_is_over(run):
    started = ("--start", "2010-11-06T22:35", "--tz", "America/St_Johns")
    plan = json.loads(run("plan", "1/h", "--calls", "6", "--quota", "9/day", *started, "--json").stdout)
    assert [(day["from"], day["calls"]) for day in plan["days"]] == [("2010-11-06", 2), ("2010-11-07", 4)]


def test_days_that_an_even_pace_fills_are_alike(run):
    days = days_of(run, "10/7h", "--calls", "300", "--quota", "1000/month")
    assert days == [("01", "08", 275, 34, 35), ("09", "09", 25, 25, 25)]


def test_a_plan_is_shaped_where_shaping_is_switched_off(process):
    args = ("plan", "10/s; 100/min", "--calls", "200", "--start", "2026-11-21", "--json")
    assert process(*args, SHAPEKIT_OFF="1").stdout == process(*args).stdout != ""


def test_the_plan_is_printed(run):
    ran = run("plan", "10/s", "--calls", "250", "--quota", "100/day", "--start", "2026-03-01")
    assert (ran.exit_code, ran.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert lines[0] == "250 calls under 10/s and a quota of 100/day, from Sun 2026-03-01 00:00:00 UTC"
    assert "1st at once Sun 2026-03-01 00:00:00" in lines
    assert "125th 1 d 2 s Mon 2026-03-02 00:00:02" in lines
    assert "250th 2 d 4 s Tue 2026-03-03 00:00:04" in lines
    assert "from day to day calls each day together" in lines
    assert "Sun 2026-03-01 Mon 2026-03-02 100 200" in lines
    assert "Tue 2026-03-03 Tue 2026-03-03 50 50" in lines
    bars = [line.count("█") for line in ran.stdout.splitlines() if "%" in line]
    assert bars == sorted(bars)
    assert (bars[0], bars[-1], len(bars)) == (0, 50, 13)


def test_progress_goes_to_the_terminal_and_the_answer_to_stdout(terminal, tmp_path):
    page = tmp_path / "page"
    command = ("sh", "-c", 'exec "$0" -m shapekit.cli "$@" >"$PAGE"', sys.executable)
    code, shown = terminal(
        *("plan", "10/s", "--calls", "250", "--quota", "100/day"), command=command, PAGE=str(page)
    )
    assert code == 0
    assert "playing" in shown
    assert "250 calls" not in shown
    assert page.read_text("utf-8").lstrip(" ").startswith("250 calls under 10/s")


def test_a_plan_that_leaves_at_once_has_no_curve(run):
    ran = run("plan", "--quota", "100/day", "--calls", "5", "--start", "2026-03-01")
    assert ran.exit_code == 0
    assert "5th" in ran.stdout
    assert "%" not in ran.stdout


def test_the_start_is_now_if_not_given(run):
    before = datetime.now(UTC).replace(microsecond=0)
    ran = run("plan", "10/s", "--calls", "1", "--json")
    assert before <= datetime.fromisoformat(json.loads(ran.stdout)["start"]) <= datetime.now(UTC)


@pytest.mark.parametrize("start", ["2026-03-01T01:00+01:00", "20260301", "2026-03-01T00:00:00Z"])
def test_a_start_may_name_its_own_zone(start, run):
    ran = run("plan", "10/s", "--calls", "1", "--json", "--start", start)
    assert json.loads(ran.stdout)["start"] == "2026-03-01T00:00:00.000+00:00"


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["10/s"], "Missing option '--calls'"),
        (["--calls", "5"], "nothing is given to plan by"),
        (["10/s", "--calls", "0"], "calls=0 is not"),
        (["10/s", "--calls", "5", "--nth", "6"], "nth=6 is too large"),
        (["10/x", "--calls", "5"], "rate='x' is an unknown unit"),
        (["10/s", "--calls", "5", "--cost", "0"], "cost=0 is not"),
        (["10/s", "--calls", "5", "--burst", "0"], "burst=0 is not"),
        (["10/s", "--calls", "5", "--quota", "3/fortnight"], "per='fortnight' is not a period of a quota"),
        (["--calls", "5", "--quota", ""], "quota limit='' is not a budget"),
        (["10/s", "--calls", "5", "--quota", "3/day", "--cost", "4"], "cost=4 exceeds the limit of 3"),
        (["10/s", "--calls", "5", "--tz", "Mars/Base"], "tz='Mars/Base' is not a known time zone"),
        (["10/s", "--calls", "5", "--tz", "/etc"], "tz='/etc' is not a known time zone"),
        (["10/s", "--calls", "5", "--start", "soon"], "start='soon' is not an instant"),
        (["10/s", "--calls", "5", "--start", "1969-12-31"], "1970 and 2100"),
        (["10/s", "--calls", "5", "--start", "2101-01-01"], "1970 and 2100"),
    ],
)
def test_bad_input_is_refused(args, part, complaint):
    assert part in complaint("plan", *args)


@given(st.integers(0, 10**12))
def test_a_span_in_words_is_as_close_as_its_last_unit(span_us):
    sizes = {"d": 86_400_000_000, "h": 3_600_000_000, "min": 60_000_000, "s": 10**6, "ms": 1_000, "µs": 1}
    words = span_words(span_us).replace(",", "").split()
    described_us = sum(float(n) * sizes[unit] for n, unit in zip(words[::2], words[1::2], strict=True))
    units = [sizes[unit] for unit in words[1::2]]
    assert units == sorted(units, reverse=True)
    if span_us >= sizes["min"]:
        assert 0 <= span_us - described_us < (sizes["min"] if span_us >= sizes["d"] else sizes["s"])
    else:
        assert abs(described_us - span_us) <= units[0] / 2000


def test_spans_are_described_in_words():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 101, 111, 1_002)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "101st", "111th", "1,002nd"]
    )
    assert (counted(1, "call"), counted(0, "call"), counted(2_000, "call")) == (
        "1 call",
        "0 calls",
        "2,000 calls",
    )
    assert (window_words(10**6), window_words(86_400 * 10**6), window_words(90 * 10**6)) == (
        "second",
        "24 hours",
        "1 min 30 s",
    )
    assert instant_words(START_US, BERLIN) == "Sun 2026-03-01 01:00:00"


def test_a_plan_uses_the_limits_that_operators_have_set(run, tmp_path):
    where = str(tmp_path / "limits.db")
    SQLiteStore(where).close()
    for args in (
        ("20/s",),
        ("50/s; 100/min", "--key", "gold-*"),
        ("--hold", "--key", "acme"),
        ("--off", "--key", "free"),
    ):
        run("set", "stripe", *args, "--store", where, "--by", "ann")

    def leaves(*args):
        by_set = ("--policy", "stripe", "--store", where)
        return planned(run, *args, *by_set)["departures"][-1]["after_s"]

    assert leaves("5/s", "--calls", "101") == 5.0
    assert leaves("--calls", "101") == 5.0
    assert leaves("5/s", "--calls", "101", "--key", "gold-1") == 60.0
    assert leaves("5/s", "--calls", "101", "--key", "free") < 1e-3
    # A quota in code stays.
    assert leaves("5/s", "--calls", "101", "--quota", "100/day") == 86_400.0
    held = run("plan", "5/s", "--calls", "1", "--policy", "stripe", "--key", "acme", "--store", where)
    assert (held.exit_code, held.stdout) == (2, "")
    assert "'stripe' is held" in held.stderr
    assert "add --policy" in run("plan", "5/s", "--calls", "1", "--key", "acme").stderr
    page = run("plan", "5/s", "--calls", "1", "--policy", "stripe", "--store", where)
    assert "set by ann: rate 20/s" in page.stdout
    # These limits could not have the set value.
    run("set", "stripe", "--quota", "10/day", "--key", "daily", "--store", where)
    daily = run("plan", "5/s", "--calls", "6", "--policy", "stripe", "--key", "daily", "--store", where)
    assert (daily.exit_code, daily.stdout) == (2, "")
    assert "quota" in daily.stderr
    assert leaves("5/s", "--calls", "20", "--quota", "99/day", "--key", "daily") == 86_400 + 9 / 5
    # No value is set for it.
    other = run("plan", "5/s", "--calls", "6", "--policy", "other", "--store", where, "--json")
    assert json.loads(other.stdout)["set"] is None
