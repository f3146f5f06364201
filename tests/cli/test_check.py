"""`shapekit check` describes what is right in words, and names what is wrong by table and field."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    ConfigError,
    FixedWindow,
    LeakyBucket,
    Policy,
    Quota,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
)
from shapekit.cli.check import limit_words, meaning

GOOD = """
[stripe]
rate = "25/s; 1000/min; 50_000/day burst 20"
burst = 5
headroom = 0.02
max_wait = "2s"

[openai]
rate = "500/min"
quota = {limit = "1_000_000/month", tz = "Europe/Berlin"}
key = "{user}"
cost = 3
enforce = false

[[openai.gates]]
strategy = "gcra"
rate = "90_000/min"
"""

PROBLEMS = {
    'rate = "10/fortnight"': "[bad] rate='fortnight' is an unknown unit of time",
    'rat = "10/s"': "[bad] field='rat' is unknown",
    "burst = 3": "[bad] rate=None is missing",
    'rate = "10/s"\nburst = 0': "[bad] burst=0 is not a whole number",
    'rate = "10/s"\nmax_wait = "soon"': "[bad] max_wait='soon' is not a duration",
    'rate = "10/s"\nmax_wait = true': "[bad] max_wait=True is not a duration",
    'rate = "10/s"\nquota = "3/fortnight"': "[bad] quota per='fortnight' is not a period of a quota",
    'rate = "10/s"\nquota = {limit = 5}': "[bad] quota per=None",
    'gates = [{strategy = "gcrra"}]': "[bad] gates[0].strategy='gcrra' is unknown",
    'gates = [{strategy = "gcra"}]': "[bad] gates[0].rate=None is missing",
    'rate = "10/s"\nenforce = "no"': "[bad] enforce='no' is neither True nor False",
    'rate = "10/s"\nkey = "{"': "[bad] key='{' is not a template",
    'rate = "10/s"\n[bad.deeper]\nrate = "1/s"': (
        "[bad] field='deeper' is unknown; put a name with dots in quotes, such as [\"a.b\"]"
    ),
}


@pytest.fixture
def checked(tmp_path, run):
    """Check a text; returns the result and the lines on stderr."""

    def check(text, *args):
        file = tmp_path / "shapekit.toml"
        file.write_text(text, encoding="utf-8")
        result = run("check", str(file), *args)
        return result, result.stderr.splitlines()

    return check


def test_each_policy_is_described_in_words(checked):
    result, complaints = checked(GOOD)
    assert (result.exit_code, complaints) == (0, [])
    assert result.stdout.splitlines() == [
        "[stripe]",
        "  25 per second, evenly spaced: one every 40 ms; after idling, 5 may leave at once",
        "  at most 1,000 calls in any minute",
        "  50,000 per day, 20 of them at once after idling",
        "  shapes 2 % below the stated rates",
        "  a call waits at most 2 s; a longer wait is refused at once",
        "[openai]",
        "  500 per minute, evenly spaced: one every 120 ms",
        "  gcra: 90,000 per minute, 90,000 of them at once after idling",
        "  quota: 1,000,000 units per month, reset at midnight Europe/Berlin",
        "  a call waits as long as it takes; a spent quota refuses at once",
        "  counted apart for each {user}",
        "  each call costs 3",
        "  only measured: everything leaves at once, and the log says what would have happened",
    ]


def test_json_has_the_words_and_the_problems(checked):
    result, complaints = checked('[a]\nrate = "1/s"\n[b]\nrate = "x"\n', "--json")
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert report["ok"] is False
    good, bad = report["tables"]
    assert (good["table"], good["problem"]) == ("a", None)
    assert good["means"] == ["1 per second, evenly spaced: one every 1 s", "a call waits as long as it takes"]
    assert (bad["table"], bad["means"]) == ("b", [])
    assert complaints == [f"shapekit: {bad['problem']}"]
    assert json.loads(checked('[a]\nrate = "1/s"\n', "--json")[0].stdout)["ok"] is True


@pytest.mark.parametrize("table", PROBLEMS)
def test_each_problem_is_named_by_table_and_field(table, checked):
    result, complaints = checked(f'[good]\nrate = "1/s"\n[bad]\n{table}\n')
    assert result.exit_code == 2
    [line] = complaints
    assert line.startswith("shapekit: ")
    assert f"shapekit.toml {PROBLEMS[table]}" in line
    assert "; " in line
    assert result.stdout.startswith("[good]\n")
    assert "[bad]" not in result.stdout


def test_every_problem_is_reported(checked):
    result, complaints = checked('stray = "10/s"\n[a]\nrate = "x"\n[b]\nrate = "1/s"\n[[c]]\nrate = "1/s"\n')
    assert result.exit_code == 2
    assert len(complaints) == 3
    assert "stray='10/s' is outside of any table; put it under one such as [stripe]" in complaints[0]
    assert "[a] rate='x'" in complaints[1]
    assert "c=[{'rate': '1/s'}] is outside of any table" in complaints[2]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "holds no policy; write a table such as [stripe]"),
        (b"# nothing\n", "holds no policy"),
        (b"[a\n", "is not TOML: "),
        (b"\xff\xfe", "is not TOML: "),
        (b"[a]\nrate = 1\n[a]\n", "is not TOML: "),
        (b"[a]\nrate = " + b"[" * 20_000, "is not TOML: "),
    ],
)
def test_a_malformed_file_is_refused(content, part, tmp_path, complaint):
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    line = complaint("check", str(file))
    assert part in line
    assert str(file) in line


def test_a_missing_file_is_refused(tmp_path, complaint):
    assert "x.toml cannot be read: No such file or directory; name a TOML file" in complaint(
        "check", str(tmp_path / "x.toml")
    )
    assert "cannot be read: Is a directory" in complaint("check", str(tmp_path))


def test_a_pipe_is_read_once(run):
    read, write = os.pipe()
    os.write(write, b'[a]\nrate = "1/s"\n[b]\nrate = "2/s"\n')
    os.close(write)
    result = run("check", f"/dev/fd/{read}")
    os.close(read)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line for line in result.stdout.splitlines() if line.startswith("[")] == ["[a]", "[b]"]


def test_the_names_of_tables_do_not_control_the_terminal(checked):
    name = "\\u001b[2J\\u009b31m" + "x" * 200
    result, complaints = checked(f'["{name}"]\nrate = "1/s"\n["\\u001b[2J"]\nrate = "x"\n')
    assert result.stdout.splitlines()[0] == "[\\x1b[2J\\x9b31m" + "x" * 200 + "]"
    [line] = complaints
    assert "[\\x1b[2J] rate='x'" in line
    assert result.output.replace("\n", "").isprintable()


def test_a_byte_order_mark_is_skipped(run, tmp_path):
    file = tmp_path / "shapekit.toml"
    file.write_text(GOOD, encoding="utf-8-sig", newline="\r\n")
    assert run("check", str(file)).stdout.startswith("[stripe]\n")


def test_the_command_works_as_a_process(process, tmp_path):
    file = tmp_path / "shapekit.toml"
    file.write_text(GOOD, encoding="utf-8")
    result = process("check", str(file))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("[stripe]\n")
    file.write_text('[a]\nrate = "x"\n', encoding="utf-8")
    result = process("check", str(file))
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


WORDS = {
    GCRA("10/s", 20): "gcra: 10 per second, 20 of them at once after idling",
    TokenBucket("10/min"): "token_bucket: 10 per minute, 10 of them at once after idling",
    LeakyBucket("5/10s", 2): "leaky_bucket: 5 per 10 s, 2 of them at once after idling",
    FixedWindow("600/min"): "fixed_window: at most 600 in each minute by the clock, twice that over a seam",
    SlidingWindowLog("60/day"): "sliding_log: at most 60 in any 24 hours, exactly",
    SlidingWindow("60/h"): "sliding_window: about 60 in any hour, counted in 10 buckets",
    SlidingWindow("60/h", conservative=True, buckets=4): (
        "sliding_window: at most 60 in any hour, counted in 4 buckets"
    ),
    Quota("5/rolling:30d"): "quota: 5 units in any 30d",
    Quota("5/fixed:30d"): "quota: 5 units in each 30d since 1970",
    Quota("5/week"): "quota: 5 units per week that begins on monday, reset at midnight UTC",
    Quota("1/month", anchor_day=3): "quota: 1 unit per month that begins on the 3rd, reset at midnight UTC",
    Quota("5/day", spread=True): (
        "quota: 5 units per day, reset at midnight UTC, spent evenly over what is left of it"
    ),
    Quota("5/day", offset_minutes=-90): "quota: 5 units per day, reset at midnight UTC-01:30",
    all_of(a=GCRA("1/s"), b=GCRA("9/min")): "all_of",
}


@pytest.mark.parametrize("limit", WORDS, ids=str)
def test_a_limit_is_described_in_words(limit):
    assert limit_words(limit) == WORDS[limit]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rate": "10/s; 100/min", "pace": "burst"}, "as fast as that allows, not evenly spaced"),
        ({"rate": "10/s; 100/min", "pace": "burst"}, "at most 10 calls in any second"),
        ({"rate": "10/s", "max_wait": 0}, "never waits: what cannot leave at once is refused"),
        ({"rate": "10/s", "key": "me"}, "counted under the key 'me'"),
        ({"rate": "1/day"}, "1 per day, evenly spaced: one every 1 d"),
    ],
)
def test_a_policy_is_described_in_words(fields, words):
    policy = Policy.from_dict(fields)
    bound = fields.get("max_wait")
    assert words in meaning(policy, None if bound is None else bound * 1_000_000)


plain = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5)
values = plain | st.sampled_from(["10/s", "10/s; 100/min burst 3", "5/month", "burst", "smooth", "2s", "{a}"])
gates = st.lists(
    st.dictionaries(
        st.sampled_from(["strategy", "rate", "burst", "capacity", "limit", "window", "per", "tz"]),
        values | st.sampled_from(["gcra", "sliding_log", "quota", "fixed_window", "UTC"]),
    ),
    max_size=2,
)
tables = st.dictionaries(
    st.sampled_from(["rate", "burst", "pace", "quota", "gates", "key", "cost", "max_wait", "headroom", "x"]),
    values | gates,
)


@given(tables)
def test_any_table_is_a_policy_with_a_description_or_a_problem_with_a_field(table):
    try:
        words = meaning(Policy.from_dict(table), None)
    except ConfigError as error:
        words = [error.field, error.fix]
    assert words
    assert all(words)
