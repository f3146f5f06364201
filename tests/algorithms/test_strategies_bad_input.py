"""Every constructor of every strategy, given every wrong kind of argument: ConfigError and nothing else."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    Algorithm,
    ConfigError,
    FixedWindow,
    LeakyBucket,
    Quota,
    Rate,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)

NAN, INF = float("nan"), float("inf")
NO_NUMBERS = [
    True,
    False,
    "",
    " ",
    "x",
    "1",
    b"1",
    [],
    [1],
    (1,),
    {},
    object(),
    1j,
    NAN,
    INF,
    -INF,
    Decimal(1),
]
NO_COUNTS = [*NO_NUMBERS, 0, -1, 0.0, 1.0, 2.5, Fraction(1, 2), 10**13, 10**400, 10**5_000, -(10**5_000)]
NO_DURATIONS = [*NO_NUMBERS, 0, -1, 0.0, 1e-9, 1e300, 10**400, 10**5_000, timedelta(0), -timedelta(1)]
NO_RATES = [None, *NO_NUMBERS, 0, -1, 0.0, 1e300, 10**400, 10**5_000, "10", "10/month", "0/s", "1/s burst 0"]
NO_TEXTS = [5, 1.5, True, b"x", [], {}, object(), NAN, 10**5_000]

METERS = pytest.mark.parametrize(
    ("meter", "size"), [(GCRA, "burst"), (TokenBucket, "capacity"), (LeakyBucket, "capacity")]
)
WINDOWS = pytest.mark.parametrize("window", [FixedWindow, SlidingWindow, SlidingWindowLog])


def name(value):
    return (
        f"{type(value).__name__}-{repr(value)[:10]}" if not isinstance(value, int) else type(value).__name__
    )


def wrong(values):
    return pytest.mark.parametrize("bad", values, ids=name)


@METERS
@wrong(NO_RATES)
def test_rates_of_meters(refused, meter, size, bad):
    refused(lambda: meter(bad), "rate")
    refused(lambda: meter(bad, **{size: 5}), "rate")


@METERS
@wrong(NO_COUNTS)
def test_bursts_of_meters(refused, meter, size, bad):
    refused(lambda: meter("10/s", **{size: bad}), size)
    refused(lambda: meter("10/s", bad), size)


@METERS
def test_a_burst_is_given_once_and_refills_in_a_lifetime(refused, meter, size):
    refused(lambda: meter("10/s burst 5", **{size: 5}), size)
    refused(lambda: meter("1/day", **{size: 10**9}), size)


@WINDOWS
@wrong(NO_COUNTS)
def test_limits_of_windows(refused, window, bad):
    refused(lambda: window(bad, 1), "limit", "window")
    if not isinstance(bad, str):
        refused(lambda: window(bad), "limit", "window")


@WINDOWS
@wrong(NO_DURATIONS)
def test_lengths_of_windows(refused, window, bad):
    refused(lambda: window(10, bad), "window")


@WINDOWS
@wrong(["", " ", "10", "x", "10/month", "0/s", "10/s burst 5", "-1/s", "10/s; 100/min", "1" * 5_000])
def test_texts_of_windows(refused, window, bad):
    refused(lambda: window(bad), "limit")


@WINDOWS
def test_a_window_is_given_once(refused, window):
    refused(lambda: window("10/s", "1m"), "window")
    refused(lambda: window(Rate(10), 1), "window")
    refused(lambda: window(10), "window")
    refused(lambda: window(Rate(10, burst=5)), "limit")


@wrong([None, *NO_COUNTS, 1_001])
def test_buckets_of_sliding_windows(refused, bad):
    refused(lambda: SlidingWindow("10/s", buckets=bad), "buckets")


@wrong([None, 0, 1, "", "yes", [], NAN, object()])
def test_conservative_is_true_or_false(refused, bad):
    refused(lambda: SlidingWindow("10/s", conservative=bad), "conservative")


def test_bounds_between_arguments(refused):
    refused(lambda: SlidingWindow(10, timedelta(microseconds=9), buckets=10), "buckets")
    refused(lambda: SlidingWindowLog("10001/s"), "limit")
    refused(lambda: SlidingWindowLog(10_001, 1), "limit")


@wrong(NO_COUNTS)
def test_limits_of_quotas(refused, bad):
    refused(lambda: Quota(bad, "month"), "limit", "per")
    if not isinstance(bad, str):
        refused(lambda: Quota(bad), "limit", "per")


@wrong(
    [
        "",
        "10",
        "10/",
        "/day",
        "x/day",
        "1.5/day",
        "-1/day",
        "0/day",
        "1e3/day",
        "9" * 50 + "/day",
        "9" * 5_000,
    ]
)
def test_texts_of_quotas(refused, bad):
    refused(lambda: Quota(bad), "limit")


@wrong([*NO_TEXTS, "", " ", "x", "Month", "months", "year", "hour", "30d", "fixed", "fixed:", "rolling:0s"])
def test_cadences_of_quotas(refused, bad):
    refused(lambda: Quota(10, bad), "per")


@wrong(["year", "fixed:", "fixed:x", "rolling:-1s", "rolling:99999w", "fixed:0.1us", "day:1", ":1s"])
def test_cadences_in_texts_of_quotas(refused, bad):
    refused(lambda: Quota(f"10/{bad}"), "per")


@wrong([None, *NO_NUMBERS, 841, -841, 1.0, 0.0, 10**400, -(10**5_000), timedelta(hours=1)])
def test_offsets_of_quotas(refused, bad):
    refused(lambda: Quota("10/day", offset_minutes=bad), "offset_minutes")


@wrong(
    [*NO_TEXTS, "", " ", "Berlin", "europe/", "Europe", "../Europe/Berlin", "/etc/passwd", "\0", "x" * 5_000]
)
def test_zones_of_quotas(refused, bad):
    refused(lambda: Quota("10/day", tz=bad), "tz")


@wrong([None, *NO_TEXTS, "", "Monday", "mon", "someday"])
def test_week_starts_of_quotas(refused, bad):
    refused(lambda: Quota("10/week", week_start=bad), "week_start")


@wrong([None, *NO_COUNTS, 32])
def test_anchor_days_of_quotas(refused, bad):
    refused(lambda: Quota("10/month", anchor_day=bad), "anchor_day")


@pytest.mark.parametrize("per", ["day", "week", "fixed:30d", "rolling:30d"])
def test_only_months_begin_on_a_day_of_the_month(refused, per):
    refused(lambda: Quota(10, per, anchor_day=5), "anchor_day")
    assert Quota(10, per, anchor_day=1) == Quota(10, per)


@pytest.mark.parametrize("per", ["day", "month", "fixed:7d", "rolling:7d"])
def test_only_weeks_begin_on_a_day_of_the_week(refused, per):
    refused(lambda: Quota(10, per, week_start="sunday"), "week_start")
    assert Quota(10, per, week_start="monday") == Quota(10, per)


def test_arguments_of_quotas_that_contradict_each_other(refused):
    refused(lambda: Quota("10/day", "month"), "per")
    refused(lambda: Quota(10), "per")
    refused(lambda: Quota("10/day", tz="Europe/Berlin", offset_minutes=60), "offset_minutes")
    refused(lambda: Quota("10/fixed:1d", tz="Europe/Berlin"), "tz")
    refused(lambda: Quota("10/rolling:1d", tz="Europe/Berlin"), "tz")
    refused(lambda: Quota("10/rolling:1d", offset_minutes=60), "offset_minutes")
    refused(lambda: Quota("10/rolling:1d", spread=True), "spread")
    refused(lambda: Quota("10/day", spread=1), "spread")


@pytest.mark.parametrize("make", [all_of, any_of, first_of])
def test_composites(refused, make):
    one = GCRA("1/s")
    refused(make, make.__name__)
    refused(lambda: make(a=one), make.__name__)
    for bad in (None, "10/s", 10, GCRA, Rate(10), [one], {}):
        refused(lambda bad=bad: make(a=one, b=bad), "b")
    for label in ("", "a b", "a.b", "1a", "a:b"):
        refused(lambda label=label: make(**{"a": one, label: one}), "name")


SCALED = [
    GCRA("10/s"),
    TokenBucket("10/s"),
    LeakyBucket("10/s"),
    FixedWindow("10/s"),
    SlidingWindow("10/s"),
    SlidingWindowLog("10/s"),
    Quota("10/month"),
    all_of(a=GCRA("10/s"), b=Quota("10/month")),
]


@pytest.mark.parametrize("strategy", SCALED, ids=lambda strategy: strategy.kind)
@wrong([None, *NO_NUMBERS, 0, 0.0, -0.5, 1.0000001, 2, 1e-9, 10**400, Fraction(10**400), 10**5_000])
def test_shares(refused, strategy, bad):
    refused(lambda: strategy.scaled(bad), "share")


def test_a_share_that_leaves_nothing_of_a_quota(refused):
    refused(lambda: Quota("10/month").scaled(0.01), "share")


@pytest.mark.parametrize(
    "strategy",
    [
        GCRA("100/day"),
        GCRA(10**9),
        TokenBucket("1_000_000/day", 5),
        FixedWindow(1, "1d"),
        SlidingWindow("10/h"),
        SlidingWindowLog("10/h"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("share", [1, 0.5, 1 / 3, 0.123457, Fraction(2, 7)], ids=str)
def test_every_share_that_leaves_something_is_taken(strategy, share):
    assert isinstance(strategy.scaled(share), Algorithm)


def test_a_share_that_leaves_a_call_in_a_lifetime_is_refused(refused):
    for strategy in (FixedWindow(1, "3650d"), SlidingWindow(1, "3650d"), SlidingWindowLog(1, "3650d")):
        refused(lambda strategy=strategy: strategy.scaled(1e-6), "share")


OPTIONS = {
    SlidingWindow: ("buckets", "conservative"),
    Quota: ("offset_minutes", "tz", "week_start", "anchor_day"),
}
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(10**308, 10**310),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=5),
    st.decimals(),
    st.fractions(),
    st.timedeltas(),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(
        ["10/s", "month", "rolling:1d", "1m", "Europe/Berlin", "monday", Rate(10), Rate(10, burst=2)]
    ),
)


@given(
    st.sampled_from([GCRA, TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingWindowLog, Quota]),
    ANYTHING,
    ANYTHING,
    st.dictionaries(st.sampled_from([*OPTIONS[SlidingWindow], *OPTIONS[Quota]]), ANYTHING, max_size=2),
)
def test_anything_makes_a_strategy_or_a_config_error(refused, strategy, first, second, options):
    options = {option: value for option, value in options.items() if option in OPTIONS.get(strategy, ())}

    def make():
        return strategy(first, second, **options)

    try:
        made = make()
    except ConfigError:
        refused(make, "rate", "burst", "capacity", "limit", "window", "per", *options)
    else:
        assert made.max_cost >= 1
        assert made.check(None, 0, 1).decision.allowed
        assert made == make()
