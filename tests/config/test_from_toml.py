"""Policies from a TOML file; what is wrong is named by file, table and field."""

import contextlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapekit import GCRA, MemoryStore, Policy, Quota

FILE = """
title = "upstreams"

[stripe]
rate = "25/s"
burst = 5
headroom = 0.02
max_wait = "2s"
key = "account"

[openai]
rate = "500/min; 10_000/day"
quota = {limit = "1_000_000/month", tz = "Europe/Berlin"}

[[openai.gates]]
strategy = "gcra"
rate = "90_000/min"

[[openai.gates]]
strategy = "fixed_window"
limit = 100
window = "10s"
"""


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "limits.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def test_a_table_is_a_policy(write):
    path = write(FILE)
    stripe = Policy.from_toml(path, "stripe")
    assert stripe.shaper.core.queue == Policy("25/s", burst=5, headroom=0.02).shaper.core.queue
    assert (stripe.name, stripe.key) == ("stripe", "account")
    openai = Policy.from_toml(str(path), "openai").shaper.core.queue
    assert [str(rate) for rate in openai.rates] == ["500/min", "10000/day"]
    assert openai.gates[0] == GCRA("90_000/min")
    assert openai.gates[2] == Quota("1_000_000/month", tz="Europe/Berlin")


def test_a_table_says_what_is_heard_of_answers(write):
    text = '[a]\nrate = 1\nfeedback = {dialect = "ietf", max_hold = "5m"}\nrefund_on = ["ConnectionError"]\n'
    path = write(text + "[b]\nrate = 1\nfeedback = false\n")
    told, deaf = Policy.from_toml(path, "a"), Policy.from_toml(path, "b")
    assert (told.feedback.dialect, told.feedback.max_hold_s) == ("ietf", 300)
    assert told.refund_on(ConnectionResetError())
    assert not told.refund_on(TimeoutError())
    assert deaf.feedback is None


def test_the_store_is_passed_on(write, clock):
    store = MemoryStore(clock)
    with Policy.from_toml(write(FILE), "stripe", store=store).admit():
        pass
    assert list(store.keys()) == ["stripe:account"]


def test_a_file_that_cannot_be_read_is_named(refused, tmp_path):
    missing = tmp_path / "gone.toml"
    assert "No such file" in refused(lambda: Policy.from_toml(missing, "a"), "path").bound
    refused(lambda: Policy.from_toml(tmp_path, "a"), "path")


@pytest.mark.parametrize("path", [None, "\0", ["a"], 1.5, b"\0"])
def test_what_is_no_path_is_refused(refused, path):
    refused(lambda: Policy.from_toml(path, "a"), "path")


def test_a_number_is_no_path_although_the_system_takes_it_for_an_open_file(refused, write):
    number = os.open(write(FILE), os.O_RDONLY)
    try:
        refused(lambda: Policy.from_toml(number, "stripe"), "path")
        os.fstat(number)  # still open: it is somebody else's
    finally:
        with contextlib.suppress(OSError):
            os.close(number)


def test_a_file_that_an_editor_on_windows_has_saved(write):
    path = write(b"\xef\xbb\xbf" + FILE.replace("\n", "\r\n").encode())
    assert repr(Policy.from_toml(path, "stripe")) == repr(Policy.from_toml(write(FILE), "stripe"))


@pytest.mark.parametrize(
    "text", ["[stripe\nrate = 1", "rate = 1/s", b"\xff\xfe", "[a]\n[a]", "a = " + "[" * 20_000]
)
def test_what_is_no_toml_is_named_with_its_file(refused, write, text):
    error = refused(lambda: Policy.from_toml(write(text), "stripe"), "path")
    assert "limits.toml" in error.value
    assert "is not TOML" in error.bound


@pytest.mark.parametrize("name", ["title", "gone", "", 5, None, ["stripe"], {}])
def test_an_unknown_table_is_answered_with_those_there_are(refused, write, name):
    error = refused(lambda: Policy.from_toml(write(FILE), name), "name")
    assert "limits.toml" in error.bound
    assert "stripe, openai" in error.fix


def test_a_file_without_tables_says_so(refused, write):
    assert refused(lambda: Policy.from_toml(write("a = 1"), "a"), "name").fix == "write [a]"
    assert refused(lambda: Policy.from_toml(write("a = 1"), None), "name").fix == "pass its name as text"


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("", "rate", 'write rate = "10/s"'),
        ("burst = 5\ngates = []", "rate", 'write rate = "10/s"'),
        ('rate = 1\nfeedback = "github"', "feedback", 'write "hold", false, or {dialect = "github"}'),
        ("rate = 1\nfeedback = true", "feedback", 'write "hold", false, or {dialect = "github"}'),
    ],
)
def test_a_fix_is_what_a_file_can_say(refused, write, text, field, fix):
    path = write(f"[api]\n{text}")
    assert refused(lambda: Policy.from_toml(path, "api"), f"{path} [api] {field}").fix == fix


def test_what_those_fixes_say_is_right(write):
    for line in ('rate = "10/s"', 'rate = 1\nfeedback = {dialect = "github"}', "rate = 1\nfeedback = false"):
        Policy.from_toml(write(f"[api]\n{line}"), "api")


WRONG = [
    ('rat = "10/s"', "field"),
    ("", "rate"),
    ("rate = 2024-01-01", "rate"),
    ('rate = "10/fortnight"', "rate"),
    ("rate = 1\nburst = 1.5", "burst"),
    ("rate = 1\nenforce = 'no'", "enforce"),
    ("rate = 1\nkey = '{'", "key"),
    ("gates = [{strategy = 'gcra'}]", "gates[0].rate"),
    ("gates = [{strategy = 'gcra', rate = 1}, {strategy = 'sieve'}]", "gates[1].strategy"),
    ("gates = [{strategy = 'gcra', rate = 'x'}]", "gates[0] rate"),
    ("quota = {limit = 5}", "quota per"),
    ("quota = '5/fortnight'", "quota per"),
    ("[api.inner]\nrate = 1", "field"),
]


@pytest.mark.parametrize(("lines", "field"), WRONG, ids=[lines[:40] for lines, _ in WRONG])
def test_what_is_wrong_is_named_by_file_table_and_field(refused, write, lines, field):
    path = write(f"[api]\n{lines}\n")
    refused(lambda: Policy.from_toml(path, "api"), f"{path} [api] {field}")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=30) | st.text(alphabet='[a]="{}\n.0/s ', max_size=25).map("[a]\n{}".format))
def test_any_file_makes_a_policy_or_a_config_error(outcome, write, content):
    made, error = outcome(lambda: Policy.from_toml(write(content), "a"))
    assert made.name == "a" if error is None else "limits.toml" in str(error)
