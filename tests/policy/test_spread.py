"""A spread quota of a policy: its calls wait, and only a spent budget refuses."""

import httpx
import pytest

from shapekit import (
    ConfigError,
    Gate,
    Policy,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    RateLimitedError,
    Shaper,
    SQLiteStore,
    first_of,
    shaped,
)
from shapekit.integrations.httpx import ShapedTransport
from shapekit.stores.encoding import describe, revived

DAY_S = 86_400


def departures(policy, clock, calls, **options):
    left = []
    for _ in range(calls):
        with policy.admit(**options):
            left.append(clock.now())
    return left


def test_a_full_budget_is_spaced_evenly_and_a_spent_one_refuses(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, clock=clock)
    assert departures(policy, clock, 10) == [10.0 * n for n in range(10)]
    with pytest.raises(QuotaExhaustedError) as refused:
        policy.shaper.schedule()
    assert refused.value.retry_after == 10.0
    with policy.admit(max_wait="10s"):
        assert clock.now() == 100.0


def test_after_an_idle_time_the_rest_of_the_budget_is_spread_over_the_rest_of_the_period(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, clock=clock)
    assert departures(policy, clock, 2) == [0.0, 10.0]
    clock.set(60)
    assert departures(policy, clock, 8) == [60.0 + 5 * n for n in range(8)]


def test_a_paced_call_waits_no_longer_than_its_max_wait(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, max_wait="5s", clock=clock)
    with policy.admit():
        pass
    with pytest.raises(QueueFullError) as refused:
        policy.shaper.schedule()
    assert refused.value.delay == 10.0


def test_a_call_of_a_higher_cost_leaves_at_once_and_the_next_waits_for_it(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, clock=clock)
    assert departures(policy, clock, 2, cost=4) == [0.0, 40.0]
    assert departures(policy, clock, 2) == [80.0, 90.0]


def test_the_rate_beside_it_bounds_the_catching_up(clock):
    policy = Policy("1/s", quota="10/fixed:100s", spread=True, clock=clock)
    clock.set(95)
    assert departures(policy, clock, 5) == [95.0, 96.0, 97.0, 98.0, 99.0]
    assert departures(policy, clock, 2, max_wait="1m") == [100.0, 110.0]


def test_a_slot_that_was_given_back_goes_to_another_call(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, clock=clock)
    reservations = [policy.shaper.reserve() for _ in range(4)]
    assert [reservation.delay for reservation in reservations] == [0.0, 10.0, 20.0, 30.0]
    assert reservations[3].cancel()
    assert reservations[1].cancel()
    assert [policy.shaper.reserve().delay for _ in range(3)] == [10.0, 30.0, 40.0]


def test_a_refund_is_spread_over_the_rest(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, clock=clock)
    with policy.admit(cost=5) as admission:
        pass
    assert admission.settle(2)
    assert departures(policy, clock, 8) == [20.0 + 10 * n for n in range(8)]


def test_the_next_call_waits_for_a_debit(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, clock=clock)
    with policy.admit(cost=2) as admission:
        pass
    assert admission.settle(5)
    assert departures(policy, clock, 5) == [50.0 + 10 * n for n in range(5)]


def test_after_a_hold_the_rest_is_spread_over_the_remaining_time(clock):
    policy = Policy(quota="10/fixed:100s", spread=True, clock=clock)
    assert departures(policy, clock, 2) == [0.0, 10.0]
    policy.shaper.hold("45s")
    left = departures(policy, clock, 8)
    assert left == [60.0 + 5 * n for n in range(8)]
    with pytest.raises(QuotaExhaustedError):
        policy.shaper.schedule()


def test_a_clock_that_is_set_back_makes_the_rest_take_longer(clock):
    policy = Policy(quota="10/day", spread=True, clock=clock)
    clock.set(DAY_S / 2)
    with policy.admit():
        pass
    clock.step_wall(-DAY_S / 4)
    assert policy.forecast().first_in == pytest.approx(0.75 * DAY_S / 10)


def test_a_gate_spreads_a_quota_alike(clock):
    gate = Gate(Quota("10/fixed:100s", spread=True), clock=clock)
    first = gate.check()
    assert (first.allowed, first.current, first.remaining, first.limit) == (True, 1, 0, 10)
    assert gate.check().retry_after == 10.0
    assert gate.forecast().fits_now == 0
    gate.refund("default", first)
    assert gate.peek().remaining == 1


def test_an_alternative_avoids_the_wait(clock):
    keys = first_of(main=Quota("10/fixed:100s", spread=True), overflow=Quota("2/fixed:100s"))
    shaper = Shaper(gates=(keys,), clock=clock)
    assert [shaper.schedule().delay for _ in range(4)] == [0.0, 0.0, 0.0, 10.0]


def test_a_changed_limit_and_a_changed_spread_keep_the_usage(clock, tmp_path):
    store = SQLiteStore(tmp_path / "limits.db", clock=clock)

    def policy(limit, *, spread=True):
        return Policy(quota=f"{limit}/fixed:100s", spread=spread, name="api", store=store)

    assert departures(policy(10), clock, 2) == [0.0, 10.0]
    # Twenty: of the nineteen that were left at 10 s, the rest is spread over ninety seconds.
    assert policy(20).forecast().first_in == pytest.approx(90 / 19, abs=1e-6)
    assert policy(2).forecast().first_in == 90.0
    assert policy(10, spread=False).forecast(8).last_in == 0.0
    assert departures(policy(10, spread=False), clock, 3) == [10.0] * 3
    assert departures(policy(10), clock, 5) == [10.0 + 18 * n for n in range(5)]
    store.close()


def test_spread_is_an_option_of_functions_and_tables_and_clients(clock):
    left = []

    @shaped(quota="10/fixed:100s", spread=True, clock=clock)
    def call():
        left.append(clock.now())

    call(), call()
    assert left == [0.0, 10.0]
    table = Policy.from_dict({"quota": "10/fixed:100s", "spread": True})
    inner = Policy.from_dict({"quota": {"limit": 10, "per": "fixed:100s", "spread": True}})
    assert table.shaper.core.queue == inner.shaper.core.queue == call.policy.shaper.core.queue
    answering = httpx.MockTransport(lambda request: httpx.Response(200))
    transport = ShapedTransport(answering, quota="10/fixed:100s", spread=True, clock=clock)
    with httpx.Client(transport=transport) as client:
        begun = clock.now()
        client.get("https://api.example/")
        client.get("https://api.example/")
        assert clock.now() > begun


def test_a_rolling_quota_cannot_be_spread():
    with pytest.raises(ConfigError) as refused:
        Quota("100/rolling:30d", spread=True)
    assert (refused.value.field, refused.value.fix) == ("spread", 'use the rate "100 per 2592000 s"')
    with pytest.raises(ConfigError, match=r"write Quota\(…, spread=True\)"):
        Policy(quota=Quota("5/day"), spread=True)
    with pytest.raises(ConfigError, match='write quota="1_000_000/month"'):
        Policy("10/s", spread=True)


def test_a_quota_that_is_not_spread_has_its_usual_description():
    assert describe(Quota("5/day")) == '["quota",5,"day",0,null,"monday",1]'
    text = describe(Quota("5/day", spread=True))
    assert text == '["quota",5,"day",0,null,"monday",1,true]'
    assert revived(text) == Quota("5/day", spread=True)
    for wrong in (text.replace("true", "false"), text.replace("true", "1"), text.replace("true", "true,1")):
        with pytest.raises(ConfigError):
            revived(wrong)


def test_a_gate_distinguishes_an_early_call_from_a_spent_quota(clock):
    gate = Gate(Quota("3/fixed:30s", spread=True), clock=clock)
    gate.require(cost=2)
    with pytest.raises(RateLimitedError) as early:
        gate.require()
    assert (early.value.code, early.value.retry_after) == ("rate_limit_exceeded", 20.0)
    with pytest.raises(QuotaExhaustedError):
        gate.require(cost=2)
