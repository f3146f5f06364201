"""Rate: human notation becomes exact integers, or a ConfigError that shows what to write."""

import pickle
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import ConfigError, Rate
from shapekit.rate import (
    MAX_COUNT,
    MAX_PER_SECOND,
    MAX_SPAN_US,
    SECOND_US,
    duration_us,
    parse_rates,
    whole,
)

MINUTE_US, HOUR_US, DAY_US = 60 * SECOND_US, 3_600 * SECOND_US, 86_400 * SECOND_US


@pytest.mark.parametrize(
    ("text", "limit", "period_us", "burst"),
    [
        (10, 10, SECOND_US, None),
        ("10/s", 10, SECOND_US, None),
        ("100/min", 100, MINUTE_US, None),
        ("100/minute", 100, MINUTE_US, None),
        ("100/m", 100, MINUTE_US, None),
        ("5 per 10 seconds", 5, 10 * SECOND_US, None),
        ("1_000_000/day", 1_000_000, DAY_US, None),
        ("100/min burst 20", 100, MINUTE_US, 20),
        ("1000/h burst 1_000", 1_000, HOUR_US, 1_000),
        ("7/w", 7, 7 * DAY_US, None),
        ("3/250ms", 3, 250_000, None),
        ("3 / 250 ms", 3, 250_000, None),
        ("3/250µs", 3, 250, None),
        ("  10/s  ", 10, SECOND_US, None),
        ("10 PER Hour BURST 2", 10, HOUR_US, 2),
        ("10/1.5s", 10, 1_500_000, None),
        ("0.5/s", 1, 2 * SECOND_US, None),
        ("2.5/s", 5, 2 * SECOND_US, None),
        (0.1, 1, 10 * SECOND_US, None),
        (2.5, 5, 2 * SECOND_US, None),
        (1e-3, 1, 1_000 * SECOND_US, None),
        ("1000/30d", 1_000, 30 * DAY_US, None),
        ("90k/min", 90_000, MINUTE_US, None),
        ("90K per minute", 90_000, MINUTE_US, None),
        ("2M/day", 2_000_000, DAY_US, None),
        ("1.5k/min", 1_500, MINUTE_US, None),
        ("1_000k/h burst 20k", 1_000_000, HOUR_US, 20_000),
        ("1.0005k/min burst 1.5k", 2_001, 2 * MINUTE_US, 1_500),
    ],
)
def test_notations(text, limit, period_us, burst):
    rate = Rate.parse(text)
    assert (rate.limit, rate.period_us, rate.burst) == (limit, period_us, burst)


@pytest.mark.parametrize("unit", ["s", "sec", "secs", "second", "seconds", "S", "Seconds"])
def test_every_spelling_of_a_unit_is_the_same(unit):
    assert Rate.parse(f"10/{unit}") == Rate(10, 1)


def test_several_rates_are_joined_by_semicolons():
    assert parse_rates("10/s; 100/min burst 20") == (Rate(10, 1), Rate(100, 60, burst=20))
    assert parse_rates("10/s;100/min;5000/h") == (Rate(10), Rate(100, "1m"), Rate(5_000, "1h"))
    assert parse_rates(10) == (Rate(10),)


def test_several_rates_where_one_is_meant_are_refused(refused):
    assert "several" in refused(lambda: Rate.parse("10/s; 100/min"), "rate").bound


@pytest.mark.parametrize(
    ("period", "period_us"),
    [
        (1, SECOND_US),
        (0.25, 250_000),
        (1e-6, 1),
        (0.1, 100_000),
        (1 / 3, 333_333),
        (timedelta(hours=1), HOUR_US),
        (timedelta(microseconds=7), 7),
        ("250ms", 250_000),
        ("1h30m", 5_400 * SECOND_US),
        ("1h 30m 5s", 5_405 * SECOND_US),
        ("1.5h", 5_400 * SECOND_US),
        ("2 days", 2 * DAY_US),
        ("1w", 7 * DAY_US),
    ],
)
def test_durations(period, period_us):
    assert Rate(3, period).period_us == period_us


@given(st.integers(1, MAX_SPAN_US))
def test_microseconds_survive_conversion_to_float_seconds(period_us):
    assert Rate(1, period_us / SECOND_US).period_us == period_us
    assert Rate(1, timedelta(microseconds=period_us)).period_us == period_us


@given(st.floats(1e-6, 1e9))
def test_seconds_become_the_nearest_microsecond(seconds):
    distance = abs(Rate(1, seconds).period_us - Fraction(seconds) * SECOND_US)
    assert distance <= Fraction(1, 2)


@given(
    st.integers(1, MAX_COUNT),
    st.integers(1, MAX_SPAN_US),
    st.none() | st.integers(1, MAX_COUNT),
)
def test_a_rate_survives_its_own_text_and_pickling(limit, period_us, burst):
    if limit * SECOND_US > MAX_PER_SECOND * period_us:
        with pytest.raises(ConfigError):
            Rate.of(limit, period_us, burst)
        return
    rate = Rate.of(limit, period_us, burst)
    assert Rate.parse(str(rate)) == rate
    assert Rate.parse(rate) is rate
    assert pickle.loads(pickle.dumps(rate)) == rate


@given(st.decimals("0.001", "999999", places=3), st.sampled_from(["s", "min", "day"]))
def test_decimal_counts_keep_their_value(count, unit):
    rate = Rate.parse(f"{count}/{unit}")
    assert Fraction(rate.limit, rate.period_us) == Fraction(count) / Rate.parse(f"1/{unit}").period_us


@given(st.decimals("0.001", "999", places=3), st.sampled_from([("k", 1_000), ("K", 1_000), ("M", 10**6)]))
def test_thousands_and_millions_are_exact(count, suffix):
    letter, factor = suffix
    exact = Fraction(count) * factor / MINUTE_US
    rate = Rate.parse(f"{count}{letter}/min")
    assert Fraction(rate.limit, rate.period_us) == exact


def test_rates_are_values():
    assert {Rate(10), Rate.parse("10/s"), Rate.parse("10/s")} == {Rate(10, timedelta(seconds=1))}
    assert Rate(10, 1) != Rate(20, 2)
    with pytest.raises(AttributeError):
        Rate(10).limit = 11


BAD_TEXTS = [
    "",
    " ",
    "fast",
    "10",
    "10/",
    "/s",
    "10/s/s",
    "-10/s",
    "+10/s",
    "10/-1s",
    "0/s",
    "0.0/s",
    "10/0s",
    "1e3/s",
    "10,5/s",
    "10/s burst",
    "10/s burst 0",
    "10/s burst -1",
    "10/s burst 1.5",
    "10/s burst 1.0005k",
    "10m/s",
    "10 k/s",
    "10kk/s",
    "10G/s",
    "k/s",
    "10/ks",
    "10/1ks",
    "10/s burst 9999999999999",
    "10/fortnight",
    "10/month",
    "10/year",
    "10/quarter",
    "10 per",
    "nan/s",
    "inf/s",
    "1__0/s",
    "_1/s",
    "10/s;",
    "١٠/s",
    "10/s\x00",
    "9999999999999/s",
    "10/9999999999999w",
    "2000000000/s",
    "0.0000001/week",
    "1/0.1us",
    "1" * 5_000 + "/s",
    "10/" + "s" * 5_000,
]


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_malformed_texts(refused, text):
    refused(lambda: Rate.parse(text), "rate")
    refused(lambda: Rate.parse(text, "speed"), "speed")
    refused(lambda: parse_rates(f"1/s; {text}"), "rate")


def test_the_error_about_a_calendar_unit_points_to_quotas(refused):
    error = refused(lambda: Rate.parse("1000/month"), "rate")
    assert error.fix == 'budget it with a Quota("1000/month"), or name the days: "1000/30d"'
    assert str(Rate.parse("1000/30d")) == "1000 per 2592000 s"


@pytest.mark.parametrize(("period", "days"), [("month", 30), ("quarter", 90), ("year", 365), ("years", 365)])
def test_the_error_about_a_calendar_unit_points_to_days(refused, period, days):
    fix = refused(lambda: Rate.parse(f"10 per {period}"), "rate").fix
    assert fix.endswith(f'name the days: "1000/{days}d"')
    assert refused(lambda: duration_us("wait", f"1 {period}"), "wait").fix == f'name the days: "{days}d"'


BAD_VALUES = [
    None,
    True,
    False,
    0,
    -1,
    0.0,
    -0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    Decimal(10),
    10**400,
    10**5_000,
    1e300,
    5e-324,
    b"10/s",
    [10],
    (10, 1),
    {},
    object(),
    timedelta(seconds=1),
    1j,
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: type(value).__name__)
def test_wrong_values_of_a_rate(refused, value):
    refused(lambda: Rate.parse(value), "rate")


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 1.0, "10", float("nan"), MAX_COUNT + 1, 10**400, 10**5_000, Decimal(1)],
    ids=lambda value: type(value).__name__,
)
def test_wrong_limits_and_bursts(refused, value):
    refused(lambda: Rate(value), "limit")
    refused(lambda: Rate.of(value, SECOND_US), "limit")
    if value != MAX_COUNT + 1:
        refused(lambda: Rate.of(1, value), "period_us")
    if value is not None:
        refused(lambda: Rate(1, burst=value), "burst")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        0.0,
        1e-7,
        -0.5,
        float("nan"),
        float("inf"),
        Decimal(1),
        10**10,
        10**400,
        10**5_000,
        "",
        " ",
        "30",
        "-5s",
        "1e3s",
        "5 parsecs",
        "1month",
        "s",
        "1s 2",
        "1s,2s",
        "9" * 5_000 + "s",
        timedelta(0),
        timedelta(seconds=-1),
        timedelta.max,
        b"1s",
        [1],
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_durations(refused, value):
    refused(lambda: Rate(1, value), "period")


def test_rates_out_of_bounds(refused):
    refused(lambda: Rate(MAX_COUNT, 1), "rate")
    refused(lambda: Rate.of(1, MAX_SPAN_US + 1), "period_us")
    assert Rate(MAX_PER_SECOND).limit == MAX_PER_SECOND
    refused(lambda: Rate(MAX_PER_SECOND + 1), "rate")


def test_a_number_of_a_subclass_counts_by_its_value():
    class Reading(float):
        def __repr__(self):
            return f"Reading({float(self)})"

    assert Rate.parse(Reading(2.5)) == Rate(5, 2)


TEXT_PIECES = st.sampled_from(
    [
        *"0123456789_./; \t-+eE",
        "s",
        "ms",
        "min",
        "day",
        "month",
        "per",
        "burst",
        " per ",
        "nan",
        "µ",
        "μ",
        "²",
    ]
)
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**308, 10**310)
    | st.floats()
    | st.text()
    | st.lists(TEXT_PIECES, max_size=12).map("".join)
    | st.binary()
    | st.decimals()
    | st.fractions()
    | st.timedeltas()
    | st.complex_numbers()
    | st.lists(st.integers())
)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_nothing_but_config_error_is_ever_raised(refused, value, period, burst):
    # Accepted values are within bounds and survive their own text; others raise an error with the reason.
    for make in (
        lambda: Rate.parse(value),
        lambda: parse_rates(value)[0],
        lambda: Rate(value, period, burst=burst),
        lambda: Rate(1, value),
        lambda: Rate.of(value, period, burst),
    ):
        try:
            rate = make()
        except ConfigError:
            refused(make, "rate", "limit", "period", "period_us", "burst")
        else:
            assert 1 <= rate.limit <= MAX_COUNT
            assert 1 <= rate.period_us <= MAX_SPAN_US
            assert Rate.parse(str(rate)) == rate


@given(st.integers(-(10**20), 10**20), st.integers(0, 100), st.integers(100, 10**6))
def test_an_error_about_a_whole_number_names_its_bounds(refused, value, least, most):
    if least <= value <= most:
        assert whole("n", value, least=least, most=most) == value
    else:
        error = refused(lambda: whole("n", value, least=least, most=most), "n")
        assert str(value) in error.value
        assert f"{least}" in error.bound if value < least else f"{most:,}" in error.fix


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ("10", 'write "10/s", or another unit of time'),
        ("0.5", 'write "0.5/s", or another unit of time'),
        ("10 s", '"1 per 10 s", or "10/s"'),
        ("10 requests/s", 'write "10/s"'),
        ("1 MB/s", 'write "1M/s"'),  # "1/s" would be a millionth of it
        ("1MB/s", 'write "1M/s"'),
        ("64 KiB per min", 'write "64K per min"'),
        ("10 calls per 2 s", 'write "10 per 2 s"'),
        ("10/s, 100/min", 'write "10/s; 100/min"'),
        ("10/s and 100/min burst 5", 'write "10/s; 100/min burst 5"'),
        (["10/s", "100/min"], 'write "10/s; 100/min"'),
        (("10/s", 5), 'write "10/s; 5/s"'),
        ("100/M", 'write "100/min"'),
        ("1.5M/M", 'write "1.5M/min"'),
        ("10/s; 5 per 2M", 'write "5 per 2min"'),
        ("10/s;", 'write "10/s"'),
        ("; 10/s;; 5/min", 'write "10/s; 5/min"'),
    ],
)
def test_the_error_about_a_wrong_spelling_shows_the_right_one(wrong, fix):
    with pytest.raises(ConfigError) as caught:
        parse_rates(wrong)
    assert caught.value.fix.endswith(fix)
    right = caught.value.fix.rpartition("write ")[2].split('"')[1]
    assert parse_rates(right)


@pytest.mark.parametrize("wrong", ["10m/s", "1 mb/s", "10/s,", "10/", "x", "", [], "10rps", "k" * 300])
def test_the_error_about_other_text_shows_examples(wrong):
    with pytest.raises(ConfigError, match='such as 10, "10/s"'):
        parse_rates(wrong)


@pytest.mark.parametrize("zero", [0, 0.0, "0/s", "0.00/min", "10/s; 0/min"])
def test_a_rate_of_nothing_is_answered_by_how_to_stop_calls(zero):
    with pytest.raises(ConfigError, match=r'lets no call leave; .*hold\(\).*state="held"'):
        parse_rates(zero)


def test_one_rate_where_several_are_written():
    for several in ("10/s; 100/min", "10/s, 100/min"):
        with pytest.raises(ConfigError, match="holds several rates where one is meant"):
            Rate.parse(several)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "is negative"),
        (0, "is shorter than 1 µs"),
        (1e12, "is longer than 71 years"),
        ("5M", 'write "5min"'),
        ("1h 5 M", 'write "1h 5 min"'),
    ],
)
def test_the_error_about_an_impossible_duration_shows_only_the_fix(value, message):
    with pytest.raises(ConfigError) as caught:
        duration_us("period", value)
    assert message in str(caught.value)
    assert "2251799813" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "burst=-1 is not a whole number of at least 1; pass an int, such as 1"),
        (2.5, "burst=2.5 is not a whole number of at least 1; pass an int, such as 1"),
        (10**6 + 1, "burst=1000001 is too large; pass at most 1,000,000"),
    ],
)
def test_the_error_about_a_count_names_the_broken_bound(value, message):
    with pytest.raises(ConfigError) as caught:
        whole("burst", value, most=10**6)
    assert str(caught.value) == message
