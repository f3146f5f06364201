"""Calls that cost more than an operator's limit ever admits, or more than the limit in the code."""

import asyncio
import math
from collections import Counter

import pytest

from shapekit import (
    GCRA,
    CostExceedsLimitError,
    FixedWindow,
    Gate,
    Override,
    Policy,
    Quota,
    Shaper,
    SlidingWindowLog,
    SQLiteStore,
    any_of,
    shaped,
)
from shapekit.stores.redis import RedisStore

from ..redis_server import shared_server
from .conftest import put

FEWER = [
    (FixedWindow("100/min"), Override(rate="10/min")),
    (SlidingWindowLog("100/min"), Override(rate="10/min")),
    (Quota("100/day"), Override(quota="10/day")),
]


def test_a_call_dearer_than_the_limit_that_is_set_is_an_error_and_takes_nothing(store):
    shaper = Shaper("10/s; 100/min", name="api", store=store)
    put(store, "api", Override(rate="10/s; 20/min"))
    for ask in (shaper.reserve, lambda **how: shaper.reserve(max_wait="1h", **how), shaper.schedule):
        with pytest.raises(CostExceedsLimitError) as caught:
            ask(cost=50)
        assert (caught.value.cost, caught.value.limit, caught.value.policy) == (50, 20, "api")
    assert shaper.reserve(cost=20, max_wait=0)


def of_another_process(store, path):
    if isinstance(store, RedisStore):
        return RedisStore.from_url(shared_server().url, clock=store.clock, prefix=store.prefix)
    return SQLiteStore(path, clock=store.clock) if isinstance(store, SQLiteStore) else store


async def awaited(shaper, store, cost):
    reservation = await shaper.areserve(cost=cost)
    await store.aclose()
    return reservation


CALLS = {
    "reserve": lambda store, shaper, gate: shaper.reserve(cost=50),
    "areserve": lambda store, shaper, gate: asyncio.run(awaited(shaper, store, 50)),
    "check": lambda store, shaper, gate: gate.check(cost=50),
    "check_many": lambda store, shaper, gate: all(gate.check_many(["a", "b"], cost=50)),
}


@pytest.mark.parametrize("until", [None, 1_000_000_010.0], ids=["removed", "over"])
@pytest.mark.parametrize("ask", CALLS.values(), ids=CALLS)
def test_a_dear_call_is_admitted_once_the_lower_limit_has_ended(store, tmp_path, ask, until):
    other = of_another_process(store, tmp_path / "limits.db")
    shaper = Shaper("10/s; 100/min", name="api", store=store)
    gate = Gate(FixedWindow("100/min"), name="gate", store=store)
    put(other, "api", Override(rate="10/s; 20/min", until=until))
    put(other, "gate", Override(rate="10/min", until=until))
    with pytest.raises(CostExceedsLimitError):
        shaper.reserve(cost=50)
    with pytest.raises(CostExceedsLimitError):
        gate.check(cost=50)
    store.clock.advance(11)
    if until is None:
        put(other, "api")
        put(other, "gate")
    assert ask(store, shaper, gate)
    if other is not store:
        other.close()


def test_the_forecast_of_a_dear_call_is_an_error_too(store):
    shaper = Shaper("10/s; 100/min", name="api", store=store)
    put(store, "api", Override(rate="10/s; 20/min"))
    with pytest.raises(CostExceedsLimitError):
        shaper.forecast(3, cost=50)


async def tasks_together(shaper, store, *costs):
    """The answer to each of the calls: the first ones learn of the change with their answer."""
    answers = []
    for _ in range(2):
        calls = [shaper.areserve(cost=cost) for cost in costs]
        answers += await asyncio.gather(*calls, return_exceptions=True)
    await shaper.aclose()
    await store.aclose()
    return answers


def check_answers(answers):
    for one, dear, other in (answers[:3], answers[3:]):
        assert one
        assert other
        assert isinstance(dear, CostExceedsLimitError)


def test_calls_that_come_together_with_a_dear_one_get_their_slots(store):
    shaper = Shaper("10/s; 100/min", name="api", store=store)
    put(store, "api", Override(rate="10/s; 20/min"))
    check_answers(asyncio.run(tasks_together(shaper, store, 1, 50, 1)))


@pytest.mark.parametrize(("limit", "fewer"), FEWER)
def test_a_gate_admits_no_call_dearer_than_the_limit_that_is_set(store, limit, fewer):
    gate = Gate(limit, name="gate", store=store)
    put(store, "gate", fewer)
    for ask in (gate.check, gate.forecast):
        with pytest.raises(CostExceedsLimitError):
            ask(cost=50)
    assert gate.peek().remaining == 10
    assert gate.check(cost=10)


def test_none_of_many_keys_is_charged_if_one_can_never_be_admitted(store):
    gate = Gate(FixedWindow("100/min"), name="gate", store=store)
    put(store, "gate", Override("small", rate="10/min"))
    with pytest.raises(CostExceedsLimitError):
        gate.check_many(["large", "small"], cost=50)
    assert gate.peek("large").remaining == 100


def test_where_nothing_is_enforced_a_dear_call_is_measured(store):
    policy = Policy("10/s", quota="100/day", name="api", store=store, enforce=False)
    put(store, "api", Override(quota="10/day"))
    events = []
    with policy.listen(events.append), policy.admit(cost=50) as admission:
        assert not admission.decision.allowed
    assert [(one.delay, one.code) for one in events] == [(math.inf, "cost_exceeds_limit")]


def test_calls_that_are_fetched_together_with_a_dear_one_get_their_slots(tmp_path):
    store = SQLiteStore(tmp_path / "limits.db")
    shaper = Shaper("1000/s; 100/min", name="api", store=store, prefetch="1s")
    put(store, "api", Override(rate="1000/s; 20/min"))
    check_answers(asyncio.run(tasks_together(shaper, store, 1, 50, 1)))


# dearer than the limit in the code

MORE = [
    (FixedWindow("100/min"), Override(rate="1000/min")),
    (GCRA("100/min"), Override(burst=1000)),
    (Quota("100/day"), Override(quota="1000/day")),
    (any_of(day=Quota("100/day"), minute=GCRA("50/min")), Override(quota="1000/day")),
    (SlidingWindowLog("100/min"), Override(state="off")),
]
RAISED = {"raised": Override(quota="1000/day"), "off": Override(state="off")}


async def closing(call, store):
    answer = await call
    await store.aclose()
    return answer


@pytest.fixture
def other(store, tmp_path):
    """The same store as another process has it, so that this process does not notice what is set there."""
    other = of_another_process(store, tmp_path / "limits.db")
    yield other
    if other is not store:
        other.close()


DEAR = {
    "reserve": lambda policy: policy.shaper.reserve(cost=500, max_wait=0),
    "areserve": lambda policy: asyncio.run(
        closing(policy.shaper.areserve(cost=500, max_wait=0), policy.shaper.core.store)
    ),
    "schedule": lambda policy: policy.shaper.schedule(cost=500, max_wait=0),
    "admit": lambda policy: policy.admit(cost=500, max_wait=0).__enter__().reservation,
    "forecast": lambda policy: policy.forecast(cost=500).last_in == 0,
}


@pytest.mark.parametrize("change", RAISED.values(), ids=RAISED)
@pytest.mark.parametrize("ask", DEAR.values(), ids=DEAR)
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["plain", "permits"])
def test_a_call_dearer_than_the_limit_in_the_code_leaves_by_the_one_that_is_set(
    store, other, change, ask, options
):
    policy = Policy("1000/s", quota="100/day", name="api", store=store, **options)
    put(other, "api", change)
    assert ask(policy)


@pytest.mark.parametrize(("limit", "more"), MORE)
def test_a_gate_admits_and_refunds_a_dear_call_by_the_limit_that_is_set(store, other, limit, more):
    gate = Gate(limit, name="gate", store=store)
    put(other, "gate", more)
    assert gate.forecast(cost=500).fits_now
    decision = gate.check(cost=500)
    assert decision
    before = gate.peek().remaining
    assert gate.refund("default", decision, cost=500).remaining == min(before + 500, gate.peek().limit)
    assert all(gate.check_many(["a", "b"], cost=500))


@pytest.mark.parametrize("ask", ["acheck", "aforecast", "acheck_many"])
def test_an_awaited_gate_admits_a_dear_call_by_the_limit_that_is_set(store, other, ask):
    gate = Gate(FixedWindow("100/min"), name="gate", store=store)
    put(other, "gate", Override(rate="1000/min"))
    assert asyncio.run(closing(getattr(gate, ask)(["a"] if ask == "acheck_many" else "a", cost=500), store))


def test_the_error_names_the_limit_that_is_set(store, other):
    policy = Policy(quota="100/day", name="api", store=store)
    gate = Gate(Quota("100/day"), name="gate", store=store)
    put(other, "api", Override(quota="1000/day"))
    put(other, "gate", Override(quota="1000/day"))
    for ask in (policy.shaper.reserve, gate.check, policy.forecast):
        with pytest.raises(CostExceedsLimitError) as caught:
            ask(cost=1001)
        assert (caught.value.cost, caught.value.limit) == (1001, 1000)


def test_a_limit_of_one_key_allows_no_other_key_more(store, other):
    shaper = Policy(quota="100/day", name="api", store=store).shaper
    put(other, "api", Override("gold", quota="1000/day"))
    assert shaper.reserve("gold", cost=500)
    with pytest.raises(CostExceedsLimitError):
        shaper.reserve("acme", cost=500)


@pytest.mark.parametrize("until", [None, 1_000_000_010.0], ids=["removed", "over"])
def test_a_dear_call_is_an_error_again_once_the_higher_limit_has_ended(store, other, until):
    shaper = Policy("1000/s", quota="100/day", name="api", store=store).shaper
    gate = Gate(FixedWindow("100/min"), name="gate", store=store)
    put(other, "api", Override(state="off", until=until))
    put(other, "gate", Override(state="off", until=until))
    assert shaper.reserve(cost=50)
    assert gate.check(cost=50)
    store.clock.advance(11)
    if until is None:
        put(other, "api")
        put(other, "gate")
    for _ in range(2):
        for ask in (shaper.reserve, gate.check):
            with pytest.raises(CostExceedsLimitError) as caught:
                ask(cost=101)
            assert caught.value.limit == 100
    assert gate.check_many(["a", "b"], cost=100)
    assert shaper.reserve(cost=50, max_wait=0)


def test_calls_that_come_together_with_a_dear_one_get_their_slots_after_the_limit_has_ended(store, other):
    shaper = Policy("1000/s", quota="100/day", name="api", store=store).shaper
    put(other, "api", Override(state="off"))
    assert shaper.reserve()
    put(other, "api")
    check_answers(asyncio.run(tasks_together(shaper, store, 1, 500, 1)))


def test_a_call_that_leaves_at_once_reads_no_overrides(store, monkeypatch):
    reads, read = Counter(), type(store).read_overrides

    def counted(self, name):
        reads[name] += 1
        return read(self, name)

    policy = Policy(quota="100/day", name="api", store=store)
    policy.configure(quota="1000/day")
    monkeypatch.setattr(type(store), "read_overrides", counted)
    assert policy.shaper.reserve(cost=500, max_wait=0)
    assert not reads


def test_a_shaped_function_with_dear_calls_is_called(store, other):
    put(other, "api", Override(state="off"))

    @shaped(quota="100/day", cost=500, name="api", store=store)
    def call():
        return "called"

    assert call() == "called"
