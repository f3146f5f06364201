"""Gate: every wrong argument is a ConfigError that names the mistake, and nothing is consumed."""

import time
from decimal import Decimal

import pytest

from shapekit import (
    GCRA,
    ConfigError,
    CostExceedsLimitError,
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Quota,
    Rate,
    SlidingWindowLog,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)

pytestmark = pytest.mark.anyio

COSTED = ["check", "require", "forecast", "debit"]
KEYED = [*COSTED, "peek", "reset"]
BAD_COSTS = [
    0,
    -1,
    -(10**400),
    -(10**5_000),
    1.0,
    2.5,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    "1",
    "",
]
BAD_KEYS = [None, 5, 0.5, True, b"key", ["key"], ("key",), {"key"}, object(), float("nan")]


def name(value):
    return (
        f"{type(value).__name__}-{repr(value)[:10]}" if not isinstance(value, int) else type(value).__name__
    )


@pytest.fixture
def gate():
    gate = Gate(GCRA("1/s", burst=5), clock=ManualClock())
    gate.check("key", cost=2)
    return gate


async def refused_async(call, field):
    with pytest.raises(ConfigError) as caught:
        await call
    assert caught.value.field == field
    assert field in str(caught.value)


# making one


@pytest.mark.parametrize("strategy", [None, "10/s", 10, GCRA, Rate(10), [GCRA("1/s")], {}, ""], ids=name)
def test_a_strategy_is_a_strategy(refused, strategy):
    refused(lambda: Gate(strategy), "strategy")


@pytest.mark.parametrize("store", ["memory://", 5, {}, MemoryStore, ManualClock(), object(), False], ids=name)
def test_a_store_is_a_store(refused, store):
    refused(lambda: Gate(GCRA("1/s"), store=store), "store")


@pytest.mark.parametrize("clock", ["now", 0, 1.5, time, MemoryStore(), object(), False], ids=name)
def test_a_clock_is_a_clock(refused, clock):
    refused(lambda: Gate(GCRA("1/s"), clock=clock), "clock")


def test_a_clock_beside_a_store_is_one_too_many(refused):
    refused(lambda: Gate(GCRA("1/s"), store=MemoryStore(), clock=ManualClock()), "clock")


@pytest.mark.parametrize("bad", ["", 5, b"api", True, ["api"], object()], ids=name)
def test_a_name_is_a_text(refused, bad):
    refused(lambda: Gate(GCRA("1/s"), name=bad), "name")


# using one


@pytest.mark.parametrize("key", BAD_KEYS, ids=name)
async def test_a_key_is_a_text(refused, gate, key):
    charged = gate.check("other")
    for method in KEYED:
        refused(lambda method=method: getattr(gate, method)(key), "key")
        await refused_async(getattr(gate, f"a{method}")(key), "key")
    refused(lambda: gate.refund(key, charged), "key")
    await refused_async(gate.arefund(key, charged), "key")
    refused(lambda: gate.check_many(["key", key]), "key")
    await refused_async(gate.acheck_many(["key", key]), "key")
    assert gate.peek("key").remaining == 3


@pytest.mark.parametrize("cost", [*BAD_COSTS, Decimal(1)], ids=name)
async def test_a_cost_is_a_whole_number_from_one_on(refused, gate, cost):
    charged = gate.check("other")
    for method in COSTED:
        refused(lambda method=method: getattr(gate, method)("key", cost=cost), "cost")
        await refused_async(getattr(gate, f"a{method}")("key", cost=cost), "cost")
    refused(lambda: gate.refund("other", charged, cost=cost), "cost")
    await refused_async(gate.arefund("other", charged, cost=cost), "cost")
    refused(lambda: gate.check_many(["key"], cost=cost), "cost")
    await refused_async(gate.acheck_many(["key"], cost=cost), "cost")
    assert gate.peek("key").remaining == 3
    assert gate.peek("other").remaining == 4


@pytest.mark.parametrize("keys", [None, 5, True, "key", b"key", {"ip": "1"}], ids=name)
async def test_keys_are_a_series_of_keys(refused, gate, keys):
    # A text is a series of texts to Python; but a caller that passes one means one key.
    refused(lambda: gate.check_many(keys), "keys", "key")
    with pytest.raises(ConfigError):
        await gate.acheck_many(keys)
    assert [*gate._store.keys()] == [f"{gate.name}:key"]


@pytest.mark.parametrize("decision", [None, 5, True, "yes", (), {}, object()], ids=name)
async def test_only_the_decision_of_a_charge_can_be_refunded(refused, gate, decision):
    refused(lambda: gate.refund("key", decision), "decision")
    await refused_async(gate.arefund("key", decision), "decision")
    assert gate.peek("key").remaining == 3


async def test_a_decision_that_charged_nothing_is_not_refunded(refused, gate):
    gate.check("key", cost=3)
    for decision in (gate.check("key"), gate.peek("key")):
        refused(lambda decision=decision: gate.refund("key", decision), "decision")
        await refused_async(gate.arefund("key", decision), "decision")
    assert gate.peek("key").remaining == 0


@pytest.mark.parametrize("decision", [5, True, "yes", (), {}, object()], ids=name)
async def test_a_debit_goes_by_a_decision_or_none(refused, gate, decision):
    refused(lambda: gate.debit("key", decision), "decision")
    await refused_async(gate.adebit("key", decision), "decision")
    assert gate.peek("key").remaining == 3


@pytest.mark.parametrize("make", [all_of, any_of, first_of])
async def test_the_decision_of_another_kind_of_gate_is_refused(refused, gate, make):
    one = GCRA("1/s", burst=2)
    pair = Gate(make(a=one, b=one), clock=ManualClock())
    three = Gate(make(a=one, b=one, c=one), clock=ManualClock())
    pair.check("key")
    for foreign in (three.check("key"), gate.check("other")):
        refused(lambda foreign=foreign: pair.refund("key", foreign), "decision")
        await refused_async(pair.arefund("key", foreign), "decision")
        refused(lambda foreign=foreign: pair.debit("key", foreign), "decision")
    refused(lambda: gate.refund("key", pair.check("other")), "decision")
    assert gate.peek("key").remaining == 3


# costs that no wait would admit


class UntouchableStore(MemoryStore):
    """Raises as soon as an operation is called."""

    def bind(self, name, program, operation):
        def touched(*args):
            raise AssertionError("the store was touched")

        return touched

    bind_many = bind


@pytest.mark.parametrize(
    ("strategy", "most", "what"),
    [
        (GCRA("10/s", burst=3), 3, "burst"),
        (GCRA("10/s"), 10, "burst"),
        (TokenBucket("10/s", 4), 4, "capacity"),
        (FixedWindow("5/s"), 5, "limit"),
        (SlidingWindowLog("5/s"), 5, "limit"),
        (Quota("7/month"), 7, "limit"),
        (all_of(a=GCRA("10/s", burst=3), b=Quota("7/month")), 3, "limit"),
        (any_of(a=GCRA("10/s", burst=3), b=Quota("7/month")), 7, "limit"),
        (first_of(a=GCRA("10/s", burst=3), b=Quota("7/month")), 7, "limit"),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
async def test_a_cost_above_the_limit_is_refused_before_the_store_is_touched(ask, strategy, most, what):
    gate = Gate(strategy, store=UntouchableStore(ManualClock()), name="api")
    for cost in (most + 1, 10**400):
        # A debit is of a call that has happened: it goes into debt, whatever it cost.
        for method in COSTED[:-1]:
            with pytest.raises(CostExceedsLimitError) as caught:
                await ask(gate, method, "stripe", cost=cost)
            error = caught.value
            assert (error.cost, error.limit, error.key, error.what) == (cost, most, "stripe", what)
        with pytest.raises(CostExceedsLimitError):
            await ask(gate, "check_many", ["stripe"], cost=cost)
    with pytest.raises(AssertionError, match="touched"):
        await ask(gate, "check", "stripe", cost=most)
