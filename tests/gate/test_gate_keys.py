"""Gate: one key, or a key for each part of a composite; all of them change together or not at all."""

import types
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    ConfigError,
    CostExceedsLimitError,
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Quota,
    RateLimitedError,
    all_of,
    any_of,
    first_of,
)

pytestmark = pytest.mark.anyio

BOTH = all_of(ip=GCRA("1/s", burst=2), user=GCRA("1/s", burst=3))


@pytest.fixture
def gate():
    return Gate(BOTH, clock=ManualClock())


def at(ip, user):
    return {"ip": ip, "user": user}


async def test_parts_with_keys_of_their_own_are_counted_apart(ask, gate):
    assert (await ask(gate, "check", at("1", "alice"))).binding == "ip"
    assert (await ask(gate, "check", at("2", "alice"))).remaining == 1
    third = await ask(gate, "check", at("3", "alice"))
    assert (third.allowed, third.binding, third.remaining) == (True, "user", 0)
    denied = await ask(gate, "check", at("4", "alice"))
    assert (denied.allowed, denied.binding, denied.retry_after_us) == (False, "user", 1_000_000)
    # A denial has charged no part: the fourth address is untouched.
    assert (await ask(gate, "check", at("4", "bob"), cost=2)).allowed


async def test_a_key_is_the_text_that_it_is_equal_to(ask):
    store, acme = MemoryStore(ManualClock()), Enum("Tenant", {"ACME": "acme"}, type=str).ACME
    await ask(Gate(BOTH, name="parts", store=store), "check", at(acme, acme))
    gate = Gate(GCRA("1/s", burst=1), name="whole", store=store)
    await ask(gate, "check", acme)
    assert sorted(store.keys()) == ["parts:ip:acme", "parts:user:acme", "whole:acme"]
    assert not await ask(gate, "check", "acme")
    for error, cost in ((RateLimitedError, 1), (CostExceedsLimitError, 2)):
        with pytest.raises(error) as raised:
            await ask(gate, "require", acme, cost=cost)
        assert type(raised.value.key) is str
        assert raised.value.key == "acme"


async def test_the_order_and_the_kind_of_the_mapping_do_not_matter(ask, gate):
    await ask(gate, "check", {"user": "alice", "ip": "1"})
    seen = await ask(gate, "peek", types.MappingProxyType(at("1", "alice")))
    assert (seen.remaining, seen.binding) == (1, "ip")


async def test_the_same_text_in_two_parts_is_two_keys(ask, gate):
    await ask(gate, "check", at("same", "same"), cost=2)
    assert (await ask(gate, "peek", at("other", "same"))).binding == "user"
    assert (await ask(gate, "peek", at("other", "same"))).remaining == 1


async def test_one_text_for_the_whole_composite_is_another_key(ask, gate):
    await ask(gate, "check", at("1", "alice"), cost=2)
    assert (await ask(gate, "check", "alice", cost=2)).allowed
    assert not await ask(gate, "check", "alice")


async def test_every_method_takes_a_mapping(ask, gate):
    keys = at("1", "alice")
    charged = await ask(gate, "require", keys, cost=2)
    assert not (await ask(gate, "check_many", [keys]))[0]
    assert (await ask(gate, "forecast", keys)).admits_at_us == 1_000_000
    assert (await ask(gate, "refund", keys, charged)).remaining == 1
    assert await ask(gate, "check", keys)
    assert not (await ask(gate, "debit", keys))
    await ask(gate, "reset", keys)
    assert (await ask(gate, "peek", keys)).remaining == 2


@pytest.mark.parametrize("make", [all_of, any_of, first_of])
async def test_all_kinds_of_composites_take_mappings(ask, make):
    gate = Gate(make(ip=FixedWindow("2/s"), user=Quota("3/day")), clock=ManualClock())
    decision = await ask(gate, "check", at("1", "alice"))
    assert decision.allowed
    assert (await ask(gate, "check", at("2", "alice"))).allowed


async def test_a_nested_composite_takes_one_key_for_the_whole_part(ask):
    gate = Gate(all_of(ip=GCRA("1/s", burst=9), user=all_of(a=GCRA("1/s"), b=BOTH)), clock=ManualClock())
    assert (await ask(gate, "check", at("1", "alice"))).binding == "user.a"
    assert not await ask(gate, "check", at("2", "alice"))
    assert await ask(gate, "check", at("2", "bob"))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"ip": "1"},
        {"user": "alice"},
        {"ip": "1", "user": "alice", "more": "x"},
        {"ip": "1", "uesr": "alice"},
        {"ip": "1", "user": None},
        {"ip": 1, "user": "alice"},
        {"ip": ["1"], "user": "alice"},
        {"ip": {"ip": "1"}, "user": "alice"},
        {1: "1", "user": "alice"},
        {None: "1"},
        ["1", "alice"],
        ("1", "alice"),
        {"ip"},
        5,
    ],
    ids=repr,
)
async def test_a_mapping_gives_one_text_for_each_part(ask, gate, keys):
    for method in ("check", "require", "peek", "forecast", "debit", "reset"):
        with pytest.raises(ConfigError) as caught:
            await ask(gate, method, keys)
        assert caught.value.field == "key"
    with pytest.raises(ConfigError):
        await ask(gate, "check_many", [at("1", "alice"), keys])
    assert gate.peek(at("1", "alice")).remaining == 2


def test_the_error_names_the_parts(refused, gate):
    assert "ip=…, user=…" in refused(lambda: gate.check({"ip": "1"}), "key").fix


def test_a_mapping_is_no_key_of_a_strategy_without_parts(refused):
    gate = Gate(GCRA("1/s"), clock=ManualClock())
    refused(lambda: gate.check({"ip": "1"}), "key")
    refused(lambda: gate.check({}), "key")


@given(st.lists(st.tuples(st.sampled_from("12"), st.sampled_from("ab"), st.integers(1, 2)), max_size=30))
def test_none_or_all_against_two_gates_that_are_checked_in_turn(calls):
    clock = ManualClock()
    together = Gate(BOTH, clock=clock)
    ips, users = (Gate(part, clock=clock) for part in BOTH.parts)
    for ip, user, cost in calls:
        both = ips.peek(ip).remaining >= cost and users.peek(user).remaining >= cost
        assert together.check(at(ip, user), cost=cost).allowed == both
        if both:
            assert ips.check(ip, cost=cost)
            assert users.check(user, cost=cost)
        clock.advance(0.25)
