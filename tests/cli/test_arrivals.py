"""Arrivals of `shapekit simulate`: made up as they say, or read from a trace."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import pytest

from shapekit.cli.simulate import Arrivals, Columns
from shapekit.rate import SECOND_US


def test_uniform_arrivals_are_evenly_spaced():
    arrivals = Arrivals.parse("uniform:3/s", "2s", 0)
    assert arrivals.instants_us == [0, 333_333, 666_666, 1_000_000, 1_333_333, 1_666_666]
    assert (arrivals.start_us, arrivals.length_us) == (0, 2_000_000)


@pytest.mark.parametrize("text", ["burst:3 every 10s", "burst:3every10s", "burst: 3 every 10 s"])
def test_bursts_come_at_once(text):
    assert Arrivals.parse(text, "20s", 0).instants_us == [0, 0, 0, *[10 * SECOND_US] * 3]


def test_poisson_arrivals_are_those_of_the_seed():
    once = Arrivals.parse("poisson:20/s", None, 7)
    assert once == Arrivals.parse("poisson:20/s", "60s", 7)
    assert once.instants_us != Arrivals.parse("poisson:20/s", None, 8).instants_us
    assert once.instants_us == sorted(once.instants_us)
    assert once.instants_us[-1] < 60 * SECOND_US


@pytest.mark.parametrize("seed", range(3))
def test_poisson_arrivals_are_independent(seed):
    # Of a Poisson process, counts have the mean as their variance, and gaps are exponential.
    arrivals = Arrivals.parse("poisson:20/s", "1000s", seed).instants_us
    counts = Columns(SECOND_US, 1000).counts(arrivals, 0)
    mean = sum(counts) / 1000
    variance = sum((count - mean) ** 2 for count in counts) / 1000
    assert abs(mean - 20) < 4 * math.sqrt(20 / 1000)
    assert abs(variance / mean - 1) < 4 * math.sqrt(2 / 1000)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    beyond = sum(gap > 50_000 for gap in gaps) / len(gaps)
    assert abs(beyond - math.exp(-1)) < 4 * math.sqrt(0.25 / len(gaps))


def test_the_first_poisson_arrival_is_as_much_by_chance_as_any():
    firsts = [Arrivals.parse("poisson:20/s", "60s", seed).instants_us[0] for seed in range(400)]
    beyond = sum(first > 50_000 for first in firsts) / 400
    assert abs(beyond - math.exp(-1)) < 4 * math.sqrt(0.25 / 400)


def test_an_instant_without_a_zone_is_utc_wherever_we_are(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("1970-01-01T00:00:05\n", encoding="utf-8")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        told = Arrivals.parse(str(tmp_path / "a.csv"), None, 0)
    time.tzset()
    assert told.instants_us == [5_000_000]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "5\n3.5\n4\n"),
        ("a.csv", "who,at\nx,5\ny,3.5\nz,4\n"),
        (
            "a.csv",
            'time,w\n1970-01-01T00:00:05Z,"a,b"\n1970-01-01T00:00:03.5,x\n\n1970-01-01 01:00:04+01:00,\n',
        ),
        ("a.csv", "when\n5\n3.5\n4"),
        ("a.CSV", "5\r\n3.5\r\n4\r\n"),
        ("a.jsonl", '5\n"1970-01-01T00:00:03.5Z"\n\n{"who": "x", "ts": 4.0}\n'),
        ("a.jsonl", '{"t": "5"}\n{"time": 3.5}\n{"at": 4, "t": 9}'),
    ],
)
def test_a_trace_is_read(name, text, tmp_path):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8", newline="")
    arrivals = Arrivals.parse(str(file), None, 0)
    assert arrivals == (name, [3_500_000, 4_000_000, 5_000_000], 3_500_000, 1_500_001)
    assert Arrivals.parse(str(file), "0.5s", 0) == (name, [3_500_000], 3_500_000, 500_000)


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.csv", "1\nsoon\n", "line 2: 'soon' is not an instant"),
        ("a.csv", "who,at\nx\n", "line 2: '' is not an instant"),
        ("a.csv", "1795255210000\n1795255211000\n", "is not an instant; write epoch seconds"),
        ("a.csv", "1\n-1\n", "line 2: '-1' is not"),
        ("a.csv", "1\nnan\n", "line 2: 'nan' is not"),
        ("a.csv", "", "holds no instant"),
        ("a.csv", "at\n", "holds no instant"),
        ("a.jsonl", "1\n{\n", "line 2 is not JSON"),
        ("a.jsonl", "1\ntrue\n", "line 2: True is not an instant"),
        ("a.jsonl", '{"when": 1}\n', "line 1 has no instant; name it one of at, time"),
        ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_a_trace_that_cannot_be_read_is_told_by_file_and_line(name, text, part, tmp_path, complaint):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    line = complaint("simulate", "--arrivals", str(file), "gcra:1/s")
    assert part in line
    assert name in line


def test_a_trace_that_is_no_text(tmp_path, complaint):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe1\n")
    assert "is not UTF-8" in complaint("simulate", "--arrivals", str(tmp_path / "a.csv"), "gcra:1/s")


@pytest.mark.parametrize(("name", "text"), [("a.csv", "5\n3.5\n4\n"), ("a.jsonl", "5\n3.5\n4\n")])
def test_a_mark_before_the_first_letter_is_no_part_of_it(name, text, tmp_path):
    # Programs for spreadsheets write it. The first call of a CSV passed for a heading.
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert len(Arrivals.parse(str(tmp_path / name), None, 0).instants_us) == 3
