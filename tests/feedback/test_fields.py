"""The values of header fields: what is well-formed is read exactly, everything else is None."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.feedback import fields

NOW = 1_780_000_000.0  # in May 2026


def epoch(*civil):
    return datetime(*civil, tzinfo=UTC).timestamp()


def between(earliest, latest):
    return st.integers(int(earliest), int(latest)).map(lambda instant: datetime.fromtimestamp(instant, UTC))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("5", 5.0),
        (" 5\t", 5.0),
        ("1.5", 1.5),
        ("007", 7.0),
        ("60, 60", 60.0),
        ("100, 100;w=60", 100.0),
        ("999999999999999999", 999999999999999999.0),
        ("9" * 4_097, 1e18),
        ("1." + "3" * 400, 4 / 3),
    ],
)
def test_numbers(text, value):
    assert fields.number(text) == value


NO_NUMBERS = ["", " ", "-1", "+5", "1e3", "nan", "inf", "Infinity", "5s", "0x10", ".5", "5.", "1.2.3", "1 2"]
NO_NUMBERS += ["٣", "１２", "1_000", "5\n6", "five"]


@pytest.mark.parametrize("text", [None, *NO_NUMBERS])
def test_a_malformed_number_reads_as_none(text):
    assert fields.number(text) is None
    assert fields.whole(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10), ("10.0", 10), ("10, 20", 10), ("10;w=1", 10), ("1.5", None), ("9" * 19, None)],
)
def test_whole_numbers(text, value):
    assert fields.whole(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("core", "core"), (" core, core", "core"), ("a:b/c", "a:b/c"), ("", None), ("a b", None), ("ü", None)],
)
def test_labels(text, value):
    assert fields.label(text) == value


def test_a_label_is_short():
    assert fields.label("x" * 100) == "x" * 100
    assert fields.label("x" * 101) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6m0s", 360.0),
        ("12ms", 0.012),
        ("1s", 1.0),
        ("1h2m3.5s", 3723.5),
        ("1d", 86_400.0),
        ("250us", 0.00025),
        ("7", 7.0),
        ("1.5", 1.5),
        ("", None),
        ("6m0", None),
        ("m", None),
        ("-6m", None),
        ("6 m", None),
        ("1y", None),
        (None, None),
    ],
)
def test_durations(text, value):
    assert fields.duration(text) == (None if value is None else pytest.approx(value, rel=1e-12))


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59_999))
def test_a_duration_is_the_sum_of_its_parts(hours, minutes, ms):
    assert fields.duration(f"{hours}h{minutes}m{ms}ms") == pytest.approx(
        hours * 3600 + minutes * 60 + ms / 1000
    )


@given(between(0, epoch(9999, 12, 31)))
def test_the_three_forms_of_a_date_are_one_instant(moment):
    expected = moment.timestamp()
    assert fields.http_date(format_datetime(moment, usegmt=True), NOW) == expected
    assert (
        fields.http_date(
            moment.strftime("%a %b ")
            + f"{moment.day:2d}"
            + moment.strftime(" %H:%M:%S ")
            + f"{moment.year:04d}",
            NOW,
        )
        == expected
    )


@given(between(epoch(1977, 1, 1), epoch(2075, 12, 31)))
def test_a_year_of_two_digits_is_within_fifty_years(moment):
    written = moment.strftime("%A, %d-%b-%y %H:%M:%S GMT")
    assert fields.http_date(written, NOW) == moment.timestamp()


def test_a_year_that_seems_further_ahead_than_fifty_years_is_past():
    seventy_six = fields.http_date("Thursday, 01-Jan-76 00:00:00 GMT", NOW)
    assert seventy_six == epoch(2076, 1, 1)
    seventy_seven = fields.http_date("Saturday, 01-Jan-77 00:00:00 GMT", NOW)
    assert seventy_seven == epoch(1977, 1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "Wed, 21 Oct 0000 07:28:00 GMT",
        "Wed, 32 Oct 2026 07:28:00 GMT",
        "Wed, 30 Feb 2026 07:28:00 GMT",
        "Wed, 21 Foo 2026 07:28:00 GMT",
        "Wed, 21 anf 2026 07:28:00 GMT",
        "Wed, 21 Oct 2026 24:28:00 GMT",
        "Wed, 21 Oct 2026 07:28:61 GMT",
        "Wed, 21 Oct 2026 07:28:00 PST",
        "Wed, 21 Oct 2026 07:28:00 +2400",
        "Wed, 21 Oct 2026 07:28:00 +0260",
        "Wed, 21 Oct 2026 07:28:00 +02",
        "Wed, 021 Oct 2026 07:28:00 GMT",
        "Wed, 21 Oct 2026 07:28:00 GMTO",
        "Wed, 21 Oct 20266 07:28:00 GMT",
        "21 Oct 2026 07:28:00 GMT",
        "2026-10-21",
    ],
)
def test_a_malformed_date_reads_as_none(text):
    assert fields.http_date(text, NOW) is None


def test_a_leap_second_is_the_second_after():
    assert fields.http_date("Sat, 31 Dec 2016 23:59:60 GMT", NOW) == epoch(2017, 1, 1)


@given(between(86_400, epoch(9999, 12, 30)), st.integers(-1439, 1439), st.integers(0, 999_999))
def test_instants_of_rfc_3339(moment, offset, fraction):
    local = moment.astimezone(timezone(timedelta(minutes=offset))).replace(microsecond=fraction)
    assert fields.rfc3339(local.isoformat()) == pytest.approx(local.timestamp(), abs=1e-4)
    assert fields.rfc3339(f"{moment:%Y-%m-%dT%H:%M:%S}Z") == moment.timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-03-01",
        "2026-03-01T12:00:00",
        "2026-03-01T12:00",
        "2026-03-01T12Z",
        "2026-03-01T12:00.5Z",
        "2026-03-01T12:00:Z",
        "2026-13-01T12:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-03-01T12:00:00+24:00",
        "2026-03-01T12:00:00+01:60",
        "2026-03-01T12:00:00Zulu",
        "2026-03-01 12:00:00 PST",
        "2026-03-01 12:00:00 -07",
        "12026-03-01T12:00:00Z",
    ],
)
def test_a_malformed_instant_reads_as_none(text):
    assert fields.rfc3339(text) is None


def test_retry_after_in_its_forms():
    now = epoch(2026, 10, 21, 7, 28)
    assert fields.retry_after("120", now) == 120
    assert fields.retry_after("1m30s", now) == fields.retry_after("90s", now) == 90  # as of Groq
    assert fields.retry_after("370ms", now) == 0.37
    assert fields.retry_after("Wed, 21 Oct 2026 07:29:30 GMT", now) == 90
    assert fields.retry_after("Wed, 21 Oct 2026 07:29:30 GMT, Wed, 21 Oct 2026 07:40:00 GMT", now) == 90
    assert fields.retry_after("Wed, 21 Oct 2026 07:29:30 -0000", now) == 90  # as of slowapi
    assert fields.retry_after("Wed, 21 Oct 2026 07:29:30 +0000", now) == 90
    assert fields.retry_after("Wed, 21 Oct 2026 09:29:30 +0200", now) == 90  # as of Java
    assert fields.retry_after("Wed, 21 Oct 2026 02:59:30 -0430", now) == 90
    assert fields.retry_after("Thu, 1 Oct 2026 07:29:30 GMT", epoch(2026, 10, 1, 7, 28)) == 90  # as of Java
    assert fields.retry_after("Wed, 21 Oct 2026 07:27:30 GMT", now) == -30
    assert fields.retry_after("2026-10-21T07:29:30Z", now) == 90  # as of Zoom
    assert fields.retry_after("2026-10-21T09:29:30+02:00", now) == 90
    assert fields.retry_after("2026-10-21T07:29:30", now) is None  # of no zone
    assert fields.retry_after("soon", now) is None
    assert fields.retry_after(None, now) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        ("999999999", 999_999_999.0),
        ("1780000060", 60.0),
        ("1780000000.5", 0.5),
        ("1779999999", 0.0),
        ("1780000060500", 60.5),
        ("1779999999500", 0.0),
        ("1780000060000000", None),
        ("1m30s", 90.0),
        ("2026-05-28T20:27:40Z", 60.0),
        ("2026-05-28T20:28Z", 80.0),  # as of Jira
        ("2026-05-28T22:28+02:00", 80.0),
        ("2026-05-28 20:27:40 UTC", 60.0),
        ("2026-05-28 13:27:40 -0700", 60.0),  # as of Gusto
        ("Thu, 28 May 2026 20:27:40 GMT", 60.0),
        ("1970-01-01T00:00:00Z", 0.0),
        ("never", None),
        (None, None),
    ],
)
def test_a_reset_is_guessed_by_magnitude_and_form(text, seconds):
    assert fields.until(text, NOW) == seconds
