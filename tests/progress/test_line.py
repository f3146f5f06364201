"""The text of a line of the log."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.progress import Report, in_log

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
MINUTE, HOUR, DAY = 60, 3_600, 86_400

spans = st.floats(0, 1e10)
all_reports = st.builds(
    Report,
    done=st.integers(0, 10**13),
    total=st.none() | st.integers(0, 10**13),
    elapsed=spans,
    eta=st.none() | spans,
    held=spans,
    continues=spans,
    at=st.floats(0, 4e9),
    ending=st.none() | st.sampled_from(["", "stopped", "stopped in item 1,000"]),
)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def report(**more):
    fields = {
        "done": 370,
        "total": 1_000,
        "elapsed": 37.0,
        "eta": None,
        "held": 0.0,
        "continues": 0.0,
        "at": NOON,
    }
    return Report(**{**fields, **more})


@given(all_reports)
def test_every_line_is_plain(report):
    assert in_log(report).isascii()
    assert in_log(report).isprintable()


@pytest.mark.parametrize(
    ("eta", "text"),
    [
        (0.0, "ETA 0 s"),
        (0.001, "ETA 1 s"),
        (60.0, "ETA 1 min"),
        (59.000001, "ETA 1 min"),
        (23 * HOUR + 59 * MINUTE, "ETA 23 h 59 min"),
        (float(DAY), "ETA 23 Nov 12:00"),
        (8.5 * DAY, "ETA 1 Dec 00:00"),
        (400 * DAY, "ETA 27 Dec 2027 12:00"),
        (1e10, "ETA in more than a century"),
    ],
)
def test_the_end_as_a_span_or_a_date(eta, text):
    assert in_log(report(eta=eta)) == f"370/1,000 (37%), 37 s, 10.0/s, {text}"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"held": 0.25}, "held 1 s"),
        ({"continues": 35.0}, "continues in 35 s"),
        ({"continues": 3_600.0}, "continues 13:00"),
        ({"continues": 8.5 * DAY}, "continues 1 Dec 00:00"),
        ({"continues": 35.0, "held": 12.0}, "continues in 35 s"),
        ({"continues": 35.0, "held": 36.0}, "held 36 s"),
    ],
)
def test_the_line_names_the_longest_wait(more, text):
    assert in_log(report(**more)) == f"370/1,000 (37%), 37 s, 10.0/s, {text}"


@pytest.mark.parametrize(
    ("elapsed", "rate"),
    [(0.1, "3,700.0/s"), (370.0, "1.0/s"), (371.0, "59.8/min"), (22_201.0, "60.0/h"), (1e7, "3.2/d")],
)
def test_the_rate_in_the_unit_that_suits_it(elapsed, rate):
    assert in_log(report(elapsed=elapsed)).split(", ")[2] == rate


def test_no_rate_without_time_or_items():
    assert in_log(report(elapsed=0.0)) == "370/1,000 (37%), 0 s"
    assert in_log(report(done=0)) == "0/1,000 (0%), 37 s"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"ending": ""}, "370/1,000 (37%), in 37 s, 10.0/s"),
        ({"ending": "stopped in item 371"}, "370/1,000 (37%), in 37 s, 10.0/s, stopped in item 371"),
        ({"ending": "", "total": None}, "370 done, in 37 s, 10.0/s"),
        ({"ending": "", "done": 0, "total": 0, "elapsed": 0.0}, "0/0, in 0 s"),
        (
            {"ending": "stopped", "eta": 5.0, "held": 5.0, "continues": 9.0},
            "370/1,000 (37%), in 37 s, 10.0/s, stopped",
        ),
    ],
)
def test_the_last_line_looks_back(more, text):
    assert in_log(report(**more)) == text
