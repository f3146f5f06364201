"""Policies from a TOML file; an error names the file, the table and the field."""

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


def test_a_table_configures_feedback(write):
    text = '[a]\nrate = 1\nfeedback = {dialect = "ietf", max_hold = "5m"}\nrefund_on = ["ConnectionError"]\n'
    path = write(text + "[b]\nrate = 1\nfeedback = false\n")
    configured, deaf = Policy.from_toml(path, "a"), Policy.from_toml(path, "b")
    assert (configured.feedback.dialect, configured.feedback.max_hold_s) == ("ietf", 300)
    assert configured.refund_on(ConnectionResetError())
    assert not configured.refund_on(TimeoutError())
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
def test_an_argument_that_is_no_path_is_refused(refused, path):
    refused(lambda: Policy.from_toml(path, "a"), "path")


def test_a_file_descriptor_is_no_path(refused, write):
    number = os.open(write(FILE), os.O_RDONLY)
    try:
        refused(lambda: Policy.from_toml(number, "stripe"), "path")
        os.fstat(number)  # still open: it belongs to the caller
    finally:
        with contextlib.suppress(OSError):
            os.close(number)


def test_a_byte_order_mark_is_skipped(write):
    path = write(b"\xef\xbb\xbf" + FILE.replace("\n", "\r\n").encode())
    assert repr(Policy.from_toml(path, "stripe")) == repr(Policy.from_toml(write(FILE), "stripe"))


@pytest.mark.parametrize(
    "text", ["[stripe\nrate = 1", "rate = 1/s", b"\xff\xfe", "[a]\n[a]", "a = " + "[" * 20_000]
)
def test_the_error_about_malformed_toml_names_the_file(refused, write, text):
    error = refused(lambda: Policy.from_toml(write(text), "stripe"), "path")
    assert "limits.toml" in error.value
    assert "is not TOML" in error.bound


@pytest.mark.parametrize("name", ["title", "gone", "", 5, None, ["stripe"], {}])
def test_the_error_about_an_unknown_table_lists_the_known_ones(refused, write, name):
    error = refused(lambda: Policy.from_toml(write(FILE), name), "name")
    assert "limits.toml" in error.bound
    assert "stripe, openai" in error.fix


def test_a_file_without_tables_is_refused(refused, write):
    assert refused(lambda: Policy.from_toml(write("a = 1"), "a"), "name").fix == "write [a]"
    assert refused(lambda: Policy.from_toml(write("a = 1"), "a.b"), "name").fix == 'write ["a.b"]'
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
def test_a_fix_is_valid_in_a_file(refused, write, text, field, fix):
    path = write(f"[api]\n{text}")
    assert refused(lambda: Policy.from_toml(path, "api"), f"{path} [api] {field}").fix == fix


def test_the_fixes_work(write):
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
def test_a_wrong_field_is_named_by_file_and_table_and_field(refused, write, lines, field):
    path = write(f"[api]\n{lines}\n")
    refused(lambda: Policy.from_toml(path, "api"), f"{path} [api] {field}")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=30) | st.text(alphabet='[a]="{}\n.0/s ', max_size=25).map("[a]\n{}".format))
def test_any_file_makes_a_policy_or_a_config_error(outcome, write, content):
    made, error = outcome(lambda: Policy.from_toml(write(content), "a"))
    assert made.name == "a" if error is None else "limits.toml" in str(error)
