"""The hands in Python: configure, configured, unconfigure, and their twins."""

import json
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum

import pytest

from shapekit import (
    GCRA,
    Adaptive,
    ConfigError,
    ManualClock,
    MemoryStore,
    Override,
    Policy,
    QueueFullError,
    Quota,
    ResilientStore,
    Shaper,
    Store,
    all_of,
)
from shapekit.algorithms.queue.wire import LOOK
from shapekit.shaper import received, sent
from shapekit.testing import FaultyStore

from .conftest import put


@pytest.fixture
def policy(store):
    return Policy("5/s", name="stripe", store=store)


def test_configured_overrides_have_their_author_and_reason(policy):
    until = datetime.fromtimestamp(1_000_000_000, UTC) + timedelta(hours=2)
    override = policy.configure("20/s", key="gold-*", reason="plan", until=until)
    assert policy.configured() == [override]
    assert (override.key, override.rate, override.reason, override.until) == (
        "gold-*",
        "20/s",
        "plan",
        1_000_007_200.0,
    )
    assert override.set_at == 1_000_000_000.0
    assert "@" in override.by
    assert override.words == "rate 20/s"


def test_a_key_has_one_override(policy):
    policy.configure("20/s")
    policy.configure("10/s")
    policy.configure("1/s", key="acme")
    assert [(one.key, one.rate) for one in policy.configured()] == [(None, "10/s"), ("acme", "1/s")]
    assert policy.unconfigure("acme")
    assert not policy.unconfigure("acme")
    assert policy.unconfigure()
    assert policy.configured() == []


class Text(str):
    __slots__ = ()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "key",
    [StrEnum("Tenant", {"ACME": "acme"}).ACME, Enum("Tenant", {"ACME": "acme"}, type=str).ACME, Text("acme")],
    ids=["StrEnum", "str and Enum", "subclass"],
)
async def test_an_override_is_for_any_key_that_is_equal_to_its_own(store, key):
    policy = Policy("1000/s", name="stripe", burst=100, max_wait=0, store=store)
    policy.configure("1/h", burst=1, key="acme")
    shaper = policy.shaper
    assert shaper.reserve(key)
    assert not any([shaper.reserve(key), await shaper.areserve(key), shaper.reserve("acme")])
    assert shaper.forecast(key=key) == policy.forecast(key=key) == shaper.forecast(key="acme")
    with pytest.raises(QueueFullError) as raised, policy.admit(key):
        pass
    assert (raised.value.key, type(raised.value.key)) == ("acme", str)
    shaper.hold("30s", key=key)
    assert shaper.held(key="acme") == shaper.held(key=key) == 30
    # It is found under its text, whichever of the two came first.
    assert list(store.keys()) == ["stripe:acme"]
    shaper.reset(key)
    assert shaper.reserve("acme")
    assert store.reset_all("stripe:acme") == 1
    await store.aclose()


def test_a_name_is_the_text_that_it_is_equal_to(store):
    policy = Policy("5/s", name=Enum("Server", {"STRIPE": "stripe"}, type=str).STRIPE, store=store)
    put(store, "stripe", Override(rate="1/h"))
    assert policy.shaper.reserve()
    assert policy.shaper.reserve().delay == 3_600
    assert list(store.keys()) == ["stripe:default"]


@pytest.mark.anyio
async def test_the_awaitable_forms_do_the_same(policy):
    await policy.aconfigure("20/s", reason="sale")
    assert [one.rate for one in await policy.aconfigured()] == ["20/s"]
    assert await policy.aunconfigure()
    assert await policy.aconfigured() == []


def test_used_units_of_a_quota_in_a_composite_stay_used(store):
    both = all_of(day=Quota(100, "day"), burst=GCRA("5/s"))
    policy = Policy("10/s", gates=(both,), name="stripe", store=store)
    with policy.admit(cost=4):
        pass
    policy.configure(quota="200/day")
    assert [(day.name, day.limit, day.used) for day in policy.quotas()] == [("day", 200, 4)]


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({}, {"rate": "x"}, "rate='x' is not a rate"),
        ({}, {"concurrency": 5}, "needs a policy with concurrency="),
        ({}, {"quota": "5/month"}, "changes no quota, as the code has none with this period"),
        ({}, {}, "changes nothing"),
        ({"pace": "burst"}, {"burst": 5}, "has no paced rate to apply to"),
        ({"rate": None, "gates": (GCRA("5/s"),)}, {"headroom": 0.5}, "has no rate to apply to"),
        ({"rate": None, "concurrency": 3}, {"headroom": 0.5}, "has no rate to apply to"),
    ],
)
def test_options_that_the_policy_could_not_have_are_refused_before_they_are_stored(
    store, options, change, words
):
    policy = Policy(**{"rate": "5/s", "name": "stripe", "store": store, **options})
    with pytest.raises(ConfigError) as raised:
        policy.configure(**change)
    assert words in str(raised.value)
    assert policy.configured() == []


@pytest.mark.parametrize("option", ["colour", "by", "set_at"])
def test_an_unknown_option_is_a_type_error(policy, option):
    message = rf"^configure\(\) got an unexpected keyword argument '{option}'$"
    with pytest.raises(TypeError, match=message):
        policy.configure("5/s", **{option: "red"})
    assert policy.configured() == []


def test_an_adaptive_rate_gets_another_highest_and_its_waiting_calls_move():
    clock = ManualClock(1_000)
    shaper = Policy(adaptive=Adaptive("1/s", "4/s"), name="api", store=MemoryStore(clock)).shaper
    waiting = [shaper.reserve() for _ in range(5)]
    rate = shaper.adaptive.rate()
    policy = Policy(adaptive=Adaptive("1/s", "4/s"), name="api", store=shaper.core.store)
    policy.configure(f"{rate / 2:g}/s" if rate >= 2 else "1 per 2 seconds")
    assert shaper.remaining(waiting[4]) > waiting[4].delay


class Forgetful(MemoryStore):
    """A store of one's own, that keeps nothing of the kind."""

    read_overrides = Store.read_overrides
    write_overrides = Store.write_overrides


def test_a_store_that_keeps_no_overrides_refuses_them():
    policy = Policy("5/s", store=Forgetful(), name="api")
    assert policy.configured() == []
    with pytest.raises(ConfigError, match="keeps no overrides"):
        policy.configure("20/s")


def test_overrides_work_through_a_resilient_store():
    store = ResilientStore(FaultyStore(MemoryStore(ManualClock(1_000))), on_outage="open")
    policy = Policy("5/s", store=store, name="api")
    policy.configure("1/s")
    assert [policy.shaper.reserve().delay for _ in range(3)] == [0, 1, 2]
    assert [one.rate for one in policy.configured()] == ["1/s"]


@pytest.mark.parametrize(
    "limits",
    [
        {"rate": "5/s"},
        {"rate": "5/s; 100/min"},
        {"rate": "5/s", "pace": "burst"},
        {"rate": "5/s", "quota": "100/day"},
        {"adaptive": Adaptive("5/s", "10/s")},
    ],
    ids=str,
)
def test_under_an_operators_hold_the_forecast_is_the_delay_of_a_call(store, limits):
    policy = Policy(**limits, store=store, name="api")
    put(store, "api", Override(state="held"))
    for _ in range(2):
        delay = policy.shaper.reserve(max_wait=0).delay
        assert policy.shaper.forecast().first_in == delay > 2_000_000
        put(store, "api")
        policy.shaper.reserve()
        put(store, "api", Override(state="held"))


@pytest.mark.parametrize("mode", ["closed", "local"])
def test_in_an_outage_the_forecast_goes_by_the_numbers_that_are_set(mode):
    faulty = FaultyStore(MemoryStore(ManualClock(1_700_000_000)))
    store = ResilientStore(faulty, on_outage=mode, share=1 / 2 if mode == "local" else None)
    policy = Policy("3/s", quota="100/day", store=store, name="api")
    policy.configure("20/s")
    look_at_many = store.bind_many("api", policy.shaper.core.queue, LOOK)
    faulty.down = True
    policy.shaper.reserve()
    outlook = policy.shaper.forecast(calls=3)
    assert 0 < outlook.first_in < 1
    assert outlook.last_in - outlook.first_in == pytest.approx(2 / 20, abs=1e-5)
    [looked] = look_at_many(["default"], ())
    assert policy.shaper.core.outlook("default", looked, 3, 1) == outlook


def test_a_reservation_goes_by_the_new_numbers_in_another_process(store):
    policy = Policy("5/s", name="stripe", store=store)
    policy.configure("7 per 3 seconds")
    policy.shaper.reserve()
    reservation = policy.shaper.reserve()

    there = received(
        Shaper("5/s", name="stripe", store=store).core, json.loads(json.dumps(sent(reservation)))
    )
    assert there.grant == reservation.grant
    assert there.decision == reservation.decision
    assert there.cancel()


@pytest.mark.parametrize("ago", [0, 1, 10**9 - 5], ids=str)
def test_an_instant_that_has_passed_is_no_end(policy, refused, ago):
    now = policy.shaper.core.clock.now_us() / 1e6
    refused(lambda: policy.configure("20/s", until=now - ago), "until")
    assert policy.configured() == []
    assert policy.configure("20/s", until=now + 1).until == now + 1
