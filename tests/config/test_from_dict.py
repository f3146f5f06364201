"""Policies from plain values: the same policy as from arguments, or an error that names the place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    ConfigError,
    FixedWindow,
    LeakyBucket,
    MemoryStore,
    Policy,
    Quota,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
)

GATE = {"strategy": "gcra", "rate": "10/s"}


def gates_of(policy):
    return policy.shaper.core.queue.gates


def test_every_field_arrives():
    made = Policy.from_dict(
        {
            "rate": "10/s",
            "burst": 3,
            "quota": "1_000/month",
            "gates": [{"strategy": "gcra", "rate": "100/min", "burst": 20}],
            "key": "{user}",
            "cost": 2,
            "max_wait": "5s",
            "headroom": 0.5,
            "enforce": False,
            "name": "stripe",
        }
    )
    queue = made.shaper.core.queue
    assert queue == Policy("10/s", burst=3, headroom=0.5, gates=gates_of(made)).shaper.core.queue
    assert gates_of(made) == (GCRA("100/min", burst=20), Quota("1_000/month"))
    assert (made.key.text, made.cost, made.enforce, made.name) == ("{user}", 2, False, "stripe")
    with made.admit("a") as admission:
        pass
    assert admission.delay == 0


def test_pace_and_max_wait_arrive():
    made = Policy.from_dict({"rate": "2/s", "pace": "burst", "max_wait": 0.25})
    assert made.shaper.core.queue.pace == "burst"
    taken = [bool(made.shaper.reserve()) for _ in range(3)]
    assert taken == [True, True, False]


STRATEGIES = [
    ({"strategy": "gcra", "rate": "10/s", "burst": 5}, GCRA("10/s", burst=5)),
    ({"strategy": "token_bucket", "rate": "10/s", "capacity": 5}, TokenBucket("10/s", 5)),
    ({"strategy": "leaky_bucket", "rate": "10/s", "capacity": 5}, LeakyBucket("10/s", 5)),
    ({"strategy": "fixed_window", "rate": "100/min"}, FixedWindow("100/min")),
    ({"strategy": "fixed_window", "limit": 100, "window": "1m"}, FixedWindow(100, "1m")),
    (
        {"strategy": "sliding_window", "limit": 9, "window": 60, "buckets": 3, "conservative": True},
        SlidingWindow(9, 60, buckets=3, conservative=True),
    ),
    ({"strategy": "sliding_log", "rate": "100/min"}, SlidingWindowLog("100/min")),
    ({"strategy": "quota", "limit": "9/week", "week_start": "sunday"}, Quota("9/week", week_start="sunday")),
    ({"strategy": "quota", "rate": "9/month", "anchor_day": 15}, Quota("9/month", anchor_day=15)),
]


@pytest.mark.parametrize(("table", "strategy"), STRATEGIES, ids=lambda case: str(case)[:40])
def test_a_gate_is_any_strategy_by_its_name(table, strategy):
    assert gates_of(Policy.from_dict({"gates": [table]})) == (strategy,)
    assert table["strategy"] == strategy.kind


def test_a_strategy_may_stand_among_plain_values():
    assert gates_of(Policy.from_dict({"gates": (GCRA(5), GATE)})) == (GCRA(5), GCRA("10/s"))


@pytest.mark.parametrize(
    "quota",
    [
        "9/week",
        {"limit": "9/week"},
        {"limit": 9, "per": "week"},
        {"rate": "9/week"},
        {"strategy": "quota", "limit": 9, "per": "week"},
        Quota("9/week"),
    ],
)
def test_a_quota_is_text_or_a_table(quota):
    assert gates_of(Policy.from_dict({"quota": quota})) == (Quota("9/week"),)


@pytest.mark.parametrize(
    ("value", "dialect"), [("hold", "auto"), ({}, "auto"), ({"dialect": "github"}, "github")]
)
def test_feedback_is_text_or_a_table(value, dialect):
    assert Policy.from_dict({"rate": 1, "feedback": value}).feedback.dialect == dialect


@pytest.mark.parametrize("value", [None, False])
def test_no_feedback_is_none_or_false_because_files_have_no_none(value):
    assert Policy.from_dict({"rate": 1, "feedback": value}).feedback is None


@pytest.mark.parametrize("value", ["OSError", ["OSError", "KeyError"], OSError, (OSError, KeyError)])
def test_exceptions_are_named_or_given(value):
    refund_on = Policy.from_dict({"rate": 1, "refund_on": value}).refund_on
    assert refund_on(ConnectionError()), "an OSError"
    assert not refund_on(ValueError())


def test_the_fields_are_left_as_they_were():
    fields = {"rate": "1/s", "quota": {"limit": "9/week"}, "gates": [dict(GATE)]}
    Policy.from_dict(fields)
    assert fields == {"rate": "1/s", "quota": {"limit": "9/week"}, "gates": [GATE]}


def test_the_name_comes_from_the_argument_or_the_table():
    assert Policy.from_dict({"rate": 1}, name="a").name == "a"
    assert Policy.from_dict({"rate": 1, "name": "b"}, name="a").name == "b"


def test_without_a_name_no_two_share_a_limit(tmp_path):
    assert Policy.from_dict({"rate": 1}).name != Policy.from_dict({"rate": 1}).name
    with pytest.raises(ConfigError, match="name=None is missing, and other processes share the store"):
        Policy.from_dict({"rate": 1}, store=tmp_path / "limits.db")


def test_the_store_is_passed_on(clock):
    store = MemoryStore(clock)
    with Policy.from_dict({"rate": 1}, name="a", store=store).admit():
        pass
    assert list(store.keys()) == ["a:default"]


class Elementwise:
    """A number that answers a comparison with an array, as those of numpy do."""

    def __eq__(self, other):
        raise ValueError("the truth value of an array is ambiguous")

    def __repr__(self):
        return "Elementwise()"

    __hash__ = None


WRONG = [
    ([], "fields"),
    (None, "fields"),
    ("rate", "fields"),
    ({"rat": 1}, "field"),
    ({1: "10/s"}, "field"),
    ({"rate": 1, "store": "memory"}, "field"),
    ({"rate": 1, "clock": "system"}, "field"),
    ({"rate": 1, "refund_on": "OsError"}, "refund_on"),
    ({"rate": 1, "refund_on": ["OSError", "print"]}, "refund_on"),
    ({"rate": 1, "refund_on": "httpx.ConnectError"}, "refund_on"),
    ({"rate": 1, "refund_on": [OSError]}, "refund_on"),
    ({"rate": 1, "feedback": "github"}, "feedback"),
    ({"rate": 1, "feedback": True}, "feedback"),
    ({"rate": 1, "feedback": {"max": "5m"}}, "feedback"),
    ({"rate": 1, "feedback": {"dialect": "gitlab"}}, "feedback dialect"),
    ({"rate": 1, "feedback": {"max_hold": 0}}, "feedback max_hold"),
    ({}, "rate"),
    ({"gates": []}, "rate"),
    ({"rate": Elementwise()}, "rate"),
    ({"rate": "10 per fortnight"}, "rate"),
    ({"rate": [1]}, "rate"),
    ({"rate": 1, "burst": 0}, "burst"),
    ({"rate": 1, "pace": "fast"}, "pace"),
    ({"rate": 1, "key": 5}, "key"),
    ({"rate": 1, "cost": 0}, "cost"),
    ({"rate": 1, "max_wait": "soon"}, "max_wait"),
    ({"rate": 1, "headroom": 2}, "headroom"),
    ({"rate": 1, "enforce": "no"}, "enforce"),
    ({"rate": 1, "name": ""}, "name"),
    ({"gates": "gcra"}, "gates"),
    ({"gates": GATE}, "gates"),
    ({"gates": [5]}, "gates[0]"),
    ({"gates": [GATE, {}]}, "gates[1].strategy"),
    ({"gates": [{"strategy": "leaky"}]}, "gates[0].strategy"),
    ({"gates": [{"strategy": ["gcra"]}]}, "gates[0].strategy"),
    ({"gates": [{"strategy": "gcra"}]}, "gates[0].rate"),
    ({"gates": [{"strategy": "token_bucket", "capacity": 5}]}, "gates[0].rate"),
    ({"gates": [{"strategy": "fixed_window", "window": "1s"}]}, "gates[0].limit"),
    ({"gates": [{"strategy": "fixed_window", "limit": 5}]}, "gates[0] window"),
    ({"gates": [{"strategy": "gcra", "rate": "x"}]}, "gates[0] rate"),
    ({"gates": [GATE, {"strategy": "gcra", "rate": 1, "capacity": 5}]}, "gates[1].capacity"),
    ({"gates": [{"strategy": "gcra", "rate": 1, "burst": 0}]}, "gates[0] burst"),
    ({"gates": [{"strategy": "fixed_window", "rate": "10/s", "limit": 5}]}, "gates[0].rate"),
    ({"quota": 5}, "quota"),
    ({"quota": {}}, "quota.limit"),
    ({"quota": {"limit": 5}}, "quota per"),
    ({"quota": {"limit": 5, "per": "fortnight"}}, "quota per"),
    ({"quota": {"limit": 5, "per": "month", "days": 3}}, "quota.days"),
    ({"quota": {"strategy": "gcra", "rate": 1}}, "quota"),
]


@pytest.mark.parametrize(("fields", "place"), WRONG, ids=[str(fields)[:60] for fields, _ in WRONG])
def test_a_wrong_field_is_named_with_its_place(refused, fields, place):
    refused(lambda: Policy.from_dict(fields), place)


@pytest.mark.parametrize("name", ["", 5])
def test_a_wrong_name_is_refused_and_not_replaced(refused, name):
    refused(lambda: Policy.from_dict({"rate": 1}, name=name), "name")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["10/s", "1m", "5/month", "gcra", "quota", "fixed_window", "smooth", "{a}"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["strategy", "rate", "limit", "window", "burst", "per", "tz"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)
TABLES = st.dictionaries(
    st.sampled_from(["rate", "burst", "quota", "gates", "key", "cost", "headroom", "enforce", "x"]), PLAIN
)


@given(TABLES | PLAIN)
def test_any_plain_values_make_a_policy_or_a_config_error(outcome, fields):
    made, error = outcome(lambda: Policy.from_dict(fields))
    if error is None:
        assert made.shaper.core.queue.rates or gates_of(made)
    else:
        assert error.field
        assert error.fix


@pytest.mark.parametrize(
    "option",
    ["name", "burst", "quota", "concurrency", "max_wait", "prefetch", "adaptive", "refund_on", "feedback"],
)
def test_none_means_the_same_as_in_an_argument(option):
    from_dict, from_arguments = (
        Policy.from_dict({"rate": "10/s", option: None}),
        Policy("10/s", **{option: None}),
    )
    assert from_dict.shaper.core.queue == from_arguments.shaper.core.queue
    assert (
        (from_dict.permits, from_dict.refund_on)
        == (from_arguments.permits, from_arguments.refund_on)
        == (None, None)
    )
    assert repr(from_dict.feedback) == repr(from_arguments.feedback)
