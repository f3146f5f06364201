"""Every wrong argument of a policy is a ConfigError that names the field, the bound and the fix."""

from datetime import date
from decimal import Decimal
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    ConfigError,
    CostExceedsLimitError,
    Gate,
    ManualClock,
    MemoryStore,
    Policy,
    QueueFullError,
    Quota,
    Shaper,
    shaped,
)
from shapekit.config import PolicyOptions

NAN, INF = float("nan"), float("inf")
NOT_RATES = (True, 0, -1, NAN, INF, "", "10", "10/fortnight", "0/s", b"10/s", [], (10,), {}, 10j)
NOT_COUNTS = (0, -1, True, 1.0, 1.5, NAN, "1", 10**13, [], b"1")
NOT_DURATIONS = (-1, True, NAN, INF, "soon", "", 1e12, [], b"1s")
NOT_KEYS = (None, 5, b"x", [], "{", "}", "{}", "{0}", "{a}{b}", "{a!r}", "{a:>3}", "{a[}", "{a.}", "{a b}")

WRONG = [
    *(("rate", value, {}) for value in NOT_RATES),
    *(("burst", value, {"rate": 10}) for value in NOT_COUNTS),
    *(("pace", value, {"rate": 10}) for value in ("fast", "", None, 1, ["smooth"])),
    *(("quota", value, {"rate": 10}) for value in ("x", "", "0/month", "5/fortnight", 5, True, [], {})),
    *(("spread", value, {"rate": 10, "quota": "5/day"}) for value in (1, 0, None, "yes")),
    *(("gates", value, {"rate": 10}) for value in (GCRA(1), "abc", 5, None, [5], {GCRA(1)}, {})),
    ("gates", (Gate(GCRA(1)),), {}),
    ("gates", (Shaper(1),), {}),
    ("gates", ("10/s",), {}),
    *(("key", value, {"rate": 10}) for value in NOT_KEYS),
    *(("cost", value, {"rate": 10}) for value in (*NOT_COUNTS, None)),
    *(("max_wait", value, {"rate": 10}) for value in NOT_DURATIONS),
    *(("headroom", value, {"rate": 10}) for value in (-0.1, 1, 1.5, NAN, INF, "2%", True, None, 10)),
    *(("headroom", value, {"rate": 10}) for value in (0.99999999, 1 - 2**-53)),
    *(("enforce", value, {"rate": 10}) for value in (1, 0, None, "yes")),
    *(("refund_on", value, {"rate": 10}) for value in (5, "OSError", [OSError], (OSError, 5), OSError())),
    *(("refund_on", value, {"rate": 10}) for value in (int, str, (OSError, int))),
    *(("store", value, {"rate": 10}) for value in (5, {}, MemoryStore, "memcached://localhost")),
    *(("clock", value, {"rate": 10}) for value in (5, "now", object())),
    *(("name", value, {"rate": 10}) for value in ("", 5, b"x", [])),
    *(("feedback", value, {"rate": 10}) for value in (5, True, "github", "", [], object(), StringIO())),
]


@pytest.mark.parametrize(
    ("field", "value", "rest"), WRONG, ids=[f"{field}={value!r:.20}" for field, value, _ in WRONG]
)
def test_a_wrong_argument_is_named(refused, field, value, rest):
    # An error inside a quota names the quota, as the errors of files do.
    inner = ("quota limit", "quota per") if field == "quota" else ()
    refused(lambda: Policy(**rest, **{field: value}), field, *inner)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("rate", {}),
        ("rate", {"key": "x", "max_wait": 1}),
        ("spread", {"rate": 10, "spread": True}),
        ("spread", {"quota": Quota("5/day"), "spread": True}),
        ("quota spread", {"quota": "5/rolling:1d", "spread": True}),
        ("burst", {"rate": "10/s burst 2", "burst": 2}),
        ("burst", {"rate": "10/s", "pace": "burst", "burst": 2}),
        ("burst", {"gates": (GCRA(1),), "burst": 2}),
        ("headroom", {"gates": (GCRA(1),), "headroom": 0.5}),
        ("headroom", {"quota": "5/day", "headroom": 0.5}),
        ("headroom", {"concurrency": 3, "headroom": 0.5}),
        ("pace", {"gates": (GCRA(1),), "pace": "burst"}),
        ("pace", {"quota": "5/day", "pace": "burst"}),
        ("pace", {"concurrency": 3, "pace": "burst"}),
        ("clock", {"rate": 1, "store": MemoryStore(), "clock": MemoryStore().clock}),
    ],
)
def test_a_wrong_combination_is_named(refused, field, arguments):
    refused(lambda: Policy(**arguments), field)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["10/s", "1h", "5/month", "{a}", "smooth", "burst", "{", "OSError", OSError, int, len]),
    st.binary(max_size=3),
    st.just(date(2024, 1, 1)),
    st.just(Decimal("0.5")),
    st.recursive(
        st.none() | st.integers(),
        lambda inner: st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(st.text(), inner),
        max_leaves=3,
    ),
)
FIELDS = ("rate", *PolicyOptions.__annotations__)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JUNK)))
def test_any_arguments_make_a_policy_or_a_config_error(outcome, arguments):
    made, error = outcome(lambda: Policy(**arguments))
    if error is None:
        assert made.enforce is arguments.get("enforce", True)
    else:
        assert error.bound
        assert error.fix
        # The error is about an argument, or about the rate, which was missing.
        assert error.field.split()[0] in {*arguments, "rate"}


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("key", "cost", "max_wait", "timeout"), JUNK)))
def test_a_call_that_does_not_leave_costs_nothing_with_any_arguments(arguments):
    clock = ManualClock(autojump=True)
    policy = Policy("1/s", clock=clock)
    key = arguments.get("key")
    keys = ["default", key] if isinstance(key, str) else ["default"]
    policy.shaper.reserve()
    before = [policy.forecast(key=key).first_in for key in keys]
    left = False
    try:
        with policy.admit(**arguments):
            left = True
    except (ConfigError, CostExceedsLimitError, QueueFullError, TimeoutError):
        pass
    if not left:
        after = [policy.forecast(key=key).first_in for key in keys]
        assert after == pytest.approx([max(0, first - clock.now()) for first in before], abs=1e-6)


@pytest.mark.parametrize("enforce", [True, False])
@pytest.mark.parametrize("busy", [False, True])
def test_a_wrong_timeout_is_refused_whether_or_not_there_is_a_wait(refused, world, policy, busy, enforce):
    one = policy("1/s", enforce=enforce)
    for timeout in NOT_DURATIONS:
        key = repr(timeout)
        if busy:
            one.shaper.reserve(key)
        before = one.forecast(key=key)
        refused(lambda: world.enter(one.admit(key, timeout=timeout)), "timeout")  # noqa: B023 - called at once
        assert one.forecast(key=key) == before


WRONG_CALLS = [
    ("max_wait", NOT_DURATIONS),
    ("cost", [value for value in NOT_COUNTS if value != 10**13]),
    ("key", [5, b"x", ["a"], True]),
]


@pytest.mark.parametrize(("field", "values"), WRONG_CALLS, ids=[field for field, _ in WRONG_CALLS])
def test_a_wrong_argument_of_a_call_is_refused_and_consumes_nothing(refused, world, policy, field, values):
    one = policy("1/s")
    for value in values:
        refused(lambda: world.enter(one.admit(**{field: value})), field)  # noqa: B023 - called at once
    assert one.forecast().first_in == 0


def test_a_wrong_settlement_is_refused_and_changes_nothing(refused, world, policy):
    one = policy("1/s")
    admission = one.admit()
    world.enter(admission)
    for actual in (-1, 10**13, False, "3", None, 0.5, True, 1.0):
        refused(lambda: world.settle(admission, actual), "actual")  # noqa: B023 - called at once
        assert one.forecast().first_in == 1


def test_a_cost_that_can_never_be_admitted_raises_before_anything_is_consumed(world, policy, fits):
    one = policy("100/s", gates=(GCRA("5/s"),))
    with pytest.raises(CostExceedsLimitError, match="raise the limit, or split the call"):
        world.enter(one.admit(cost=6))
    assert fits(one) == 1


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (Policy, 'write Policy("10/s")'),
        (Shaper, 'write Shaper("10/s")'),
        (lambda: Policy(GCRA("10/s")), "write Policy(gates=(GCRA(…),)), or ask a Gate(GCRA(…))"),
        (lambda: Shaper(GCRA("10/s")), "write Shaper(gates=(GCRA(…),)), or ask a Gate(GCRA(…))"),
        (lambda: shaped(GCRA("10/s")), "write @shaped(gates=(GCRA(…),)), or ask a Gate(GCRA(…))"),
        (lambda: shaped("10"), 'write "10/s", or another unit of time'),
    ],
)
def test_a_missing_or_mistaken_rate_is_answered_by_the_right_call(refused, make, fix):
    assert refused(make, "rate").fix == fix
