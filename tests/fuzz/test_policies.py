"""Policies from files and tables: a policy, or a ConfigError that says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import ConfigError, CostExceedsLimitError, Policy
from shapekit.config import FIELDS, STRATEGIES
from shapekit.stores.encoding import describe, revived

from ..algorithms.limits import limits
from .near import anything, tables, texts, values
from .test_rates import check_complete

STRATEGY_FIELDS: dict[str, list[Any]] = {
    "strategy": list(STRATEGIES),
    "rate": ["10/s", "100/min burst 5", 7, 0.5],
    "limit": [5, "100/min"],
    "window": ["1m", 60, 0.25],
    "burst": [1, 20],
    "capacity": [1, 20],
    "buckets": [1, 10],
    "conservative": [True, False],
    "per": ["month", "week", "day", "fixed:30d", "rolling:7h"],
    "tz": ["Europe/Berlin", "UTC", "America/New_York"],
    "offset_minutes": [0, 330, -840],
    "week_start": ["monday", "sunday"],
    "anchor_day": [1, 31],
}
gates = tables(STRATEGY_FIELDS, ["share", "fields", "__class__", "self", "kind"])
GOOD_GATES = [
    [],
    [{"strategy": "gcra", "rate": "10/s", "burst": 20}],
    [{"strategy": "fixed_window", "rate": "100/min"}, {"strategy": "quota", "limit": "5/day"}],
]
POLICY_FIELDS: dict[str, list[Any]] = {
    "rate": ["10/s", "25/s; 1000/min", 5, 0.5],
    "burst": [1, 5],
    "pace": ["smooth", "burst"],
    "quota": ["1_000_000/month", {"limit": 5, "per": "day", "tz": "Europe/Berlin"}],
    "gates": GOOD_GATES,
    "key": ["default", "{user}", "{account.region}:{path[0]}"],
    "cost": [1, 3],
    "max_wait": ["2s", 0, 0.5, "1h30m"],
    "headroom": [0.0, 0.02, 0.5],
    "enforce": [True, False],
    "name": ["stripe"],
}
policies = tables({**POLICY_FIELDS, "gates": GOOD_GATES}, ["store", "clock", "feedback", "refund_on", "self"])
GOOD_FILE = """
[stripe]
rate = "25/s; 1000/min"
burst = 5
max_wait = "2s"
headroom = 0.02
key = "{account.region}:{user}"
quota = {limit = "1_000_000/month", tz = "Europe/Berlin"}

[[stripe.gates]]
strategy = "gcra"
rate = "100/min"
burst = 20

[[stripe.gates]]
strategy = "sliding_window"
limit = 50
window = "10s"
buckets = 5
"""
descriptions = limits.map(describe)


def check_usable(policy: Policy) -> None:
    """A policy that was accepted can be called, and every call has a slot or a documented error."""
    key = None if policy.key == "default" else "somebody"
    try:
        policy.forecast(key=key)
        reservation = policy.shaper.reserve("somebody", max_wait=0)
    except CostExceedsLimitError as error:
        assert error.cost >= error.limit
    else:
        assert reservation.delay >= 0
    assert len(repr(policy)) < 5_000


def made(make: Callable[[], Policy]) -> Policy | None:
    try:
        return make()
    except ConfigError as error:
        check_complete(error)
        return None


@given(policies, st.none() | st.lists(gates | values, max_size=3))
def test_a_policy_from_a_table_or_a_config_error(table: dict[str, Any], more: list[Any] | None) -> None:
    if more is not None:
        table["gates"] = more
    policy = made(lambda: Policy.from_dict(table))
    if policy is not None:
        assert set(table) <= set(FIELDS)
        check_usable(policy)
        policy.close()


@given(st.sampled_from(["a" * 4_000, "stripe", ""]), st.integers(1, 3))
def test_long_names_make_no_long_errors(file: Path, name: str, times: int) -> None:
    text = "".join(f'["{name}{number}"]\nrate = 0\n' for number in range(times))
    file.write_text(text)
    for wanted in ("other", f"{name}0"):
        assert made(lambda wanted=wanted: Policy.from_toml(file, wanted)) is None
    assert made(lambda: Policy.from_dict({"gates": [{"strategy": "gcra", "rate": "1/s", name: 1}]})) is None


@given(values)
def test_a_policy_from_no_table_at_all(value: object) -> None:
    policy = made(lambda: Policy.from_dict(value))  # type: ignore[arg-type]
    assert policy is None or value == {}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "limits.toml"


@given(text=texts([GOOD_FILE, GOOD_FILE, '[stripe]\nrate = "10/s"\n', '[a.b]\nx = 1\n[[c]]\n"" = 0x10\n']))
def test_a_policy_from_a_file_that_is_nearly_right(file: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    for name in ("stripe", "a", "c", ""):
        policy = made(lambda name=name: Policy.from_toml(file, name))
        if policy is not None:
            check_usable(policy)
            policy.close()


@given(data=st.binary(max_size=60))
def test_a_policy_from_any_bytes(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    made(lambda: Policy.from_toml(file, "stripe"))


@given(values, values)
def test_a_policy_from_no_file(path: object, name: object) -> None:
    # A number would be the descriptor of a file that is open already.
    assert made(lambda: Policy.from_toml(path, name)) is None  # type: ignore[arg-type]


@given(descriptions)
def test_the_description_of_a_limit_is_read_as_that_limit(text: str) -> None:
    assert describe(revived(text)) == text


@st.composite
def misdescribed(draw: st.DrawFn) -> str:
    """A description with a wrong value somewhere, or wrong letters."""
    text = draw(descriptions)
    if draw(st.booleans()):
        return draw(texts([text]))
    plain = json.loads(text)
    place: Any = plain
    while True:
        index = draw(st.integers(0, len(place) - 1))
        if isinstance(place[index], list) and place[index] and draw(st.booleans()):
            place = place[index]
        else:
            place[index] = draw(st.sampled_from([None, True, -1, 0, 1, 2**80, 0.5, "", "gcra", [], [[]], {}]))
            return json.dumps(plain, separators=(",", ":"))


@given(misdescribed() | anything(['["gcra",[10,1000000],2]']))
@example('["all_of",[null,"b"],[["fixed_window",5,1000000],["fixed_window",5,1000000]]]')
def test_a_text_that_describes_no_limit_is_a_config_error(text: str) -> None:
    try:
        program = revived(text)
    except ConfigError as error:
        check_complete(error)
    else:
        assert describe(program) == text
