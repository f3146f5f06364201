"""Rates and durations: a number, or a ConfigError; and what is printed is read as what it was."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from shapekit import ConfigError, Rate
from shapekit.rate import MAX_COUNT, MAX_SPAN_US, SECOND_US, duration_us, parse_rates, seconds_text

from .near import anything, values

RATES = (
    *("10/s", "100/min", "5 per 10 seconds", "10/s burst 20", "0.5/s", "1_000_000/d", "2.5 per 1.5 h"),
    *("10/s; 100/min burst 20; 1000/h", "1/week", "999/250ms", "7/µs", "1 PER 1 Minute BURST 1"),
)
DURATIONS = ("30s", "1h30m", "250ms", "1.5 days", "5 us", "1w 2d 3h 4min 5s 6ms 7µs", "0.000001 s")
LONGEST_MESSAGE = 600
"""In characters: a log line stays readable, whatever value was passed."""

rates = st.builds(
    lambda limit, period_us, burst: (limit, max(period_us, -(-limit * SECOND_US // 10**9)), burst),
    st.integers(1, MAX_COUNT) | st.integers(1, 100),
    st.integers(1, MAX_SPAN_US) | st.sampled_from([SECOND_US, 60 * SECOND_US, 86_400 * SECOND_US, 7]),
    st.none() | st.integers(1, MAX_COUNT),
).map(lambda numbers: Rate.of(*numbers))


def check_complete(error: ConfigError) -> None:
    assert error.field
    assert error.fix
    assert len(str(error)) < LONGEST_MESSAGE


@given(anything(RATES) | values)
def test_a_rate_or_a_config_error(value: object) -> None:
    try:
        rate = Rate.parse(value)  # type: ignore[arg-type]
    except ConfigError as error:
        check_complete(error)
    else:
        assert 1 <= rate.limit <= MAX_COUNT
        assert 1 <= rate.period_us <= MAX_SPAN_US
        assert Rate.parse(str(rate)) == rate


@given(anything(RATES) | values)
def test_several_rates_or_a_config_error(value: object) -> None:
    try:
        several = parse_rates(value)  # type: ignore[arg-type]
    except ConfigError as error:
        check_complete(error)
    else:
        assert parse_rates("; ".join(map(str, several)))[: len(several)] == several


@given(rates)
def test_a_printed_rate_is_read_as_that_rate(rate: Rate) -> None:
    assert Rate.parse(str(rate)) == rate


@given(anything(DURATIONS) | values | st.timedeltas())
def test_a_duration_or_a_config_error(value: object) -> None:
    try:
        span = duration_us("wait", value, least=0)
    except ConfigError as error:
        check_complete(error)
    else:
        assert type(span) is int
        assert 0 <= span <= MAX_SPAN_US


@given(st.integers(1, MAX_SPAN_US))
def test_a_printed_duration_is_read_as_that_duration(span: int) -> None:
    assert duration_us("wait", seconds_text(span)) == span
    assert duration_us("wait", timedelta(microseconds=span)) == span


@given(st.sampled_from(["9", "_9", "1s", " ", "1 per ", "/", "s;", "burst 1 ", "٣"]), st.integers(201, 5_000))
def test_long_texts_are_refused_unread(piece: str, length: int) -> None:
    text = (piece * length)[:length]
    for read in (Rate.parse, parse_rates, lambda span: duration_us("wait", span)):
        try:
            read(text)
        except ConfigError as error:
            check_complete(error)
        else:
            raise AssertionError(f"{text[:20]}… of {length} was taken")
