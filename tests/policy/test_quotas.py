"""`quotas()` shows what is left of a policy's quotas: exactly, on every store, and without consuming any."""

from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count
from zoneinfo import ZoneInfo

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    ManualClock,
    MemoryStore,
    Policy,
    Quota,
    QuotaExhaustedError,
    QuotaUsage,
    RedisStore,
    ResilientStore,
    SQLiteStore,
    StoreUnavailableError,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.quota import quotas_of

from ..redis_server import shared_server

DAY = 86_400
START = 10 * DAY + 3_600
"""One o'clock on the eleventh of January 1970."""
_fresh = count()

STORES = {
    "memory": lambda clock, path, _: MemoryStore(clock),
    "SQLite": lambda clock, path, _: SQLiteStore(path / "limits.db", clock=clock),
    "Redis": lambda clock, path, client: RedisStore(client, clock=clock, prefix=f"quotas{next(_fresh)}"),
    "resilient": lambda clock, path, _: ResilientStore(MemoryStore(clock)),
}


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture(params=STORES)
def store(request, clock, tmp_path):
    with ExitStack() as opened:
        client = opened.enter_context(shared_server().client()) if request.param == "Redis" else None
        store = STORES[request.param](clock, tmp_path, client)
        opened.callback(store.close)
        yield store


def named(policy, key=None):
    return {usage.name: usage for usage in policy.quotas(key)}


def test_quotas_returns_every_field_of_a_quota(store, clock):
    policy = Policy("100/s", name="api", quota="5/month", store=store)
    cold = policy.quotas()
    assert cold == [QuotaUsage("quota", "month", 5, 0, 5, 31 * DAY, 31 * DAY - START)]
    policy.shaper.reserve(cost=3)
    clock.advance(100)
    (usage,) = policy.quotas()
    assert usage == ("quota", "month", 5, 3, 2, 31 * DAY, 31 * DAY - START - 100)
    assert type(usage) is QuotaUsage
    assert policy.quotas("another key")[0].used == 0


def test_quotas_consumes_nothing(store):
    policy = Policy("100/s", name="api", quota="3/month", store=store)
    for used in range(3):
        read = [policy.quotas() for _ in range(5)]
        assert read == [read[0]] * 5
        assert (read[0][0].used, read[0][0].remaining) == (used, 3 - used)
        assert policy.shaper.reserve()
    with pytest.raises(QuotaExhaustedError), policy.admit():
        pytest.fail("left")
    assert policy.quotas()[0][3:5] == (3, 0)


def test_quotas_in_composites_have_the_names_that_refusals_give_them(store):
    gates = (
        all_of(second=GCRA("50/s"), deep=all_of(day=Quota("9/day"), week=Quota("8/week"))),
        first_of(main=Quota("2/fixed:2h"), spare=Quota("7/rolling:30d")),
        any_of(a=Quota("20/day"), b=GCRA("50/s")),
    )
    policy = Policy("100/s", name="api", gates=gates, quota="6/month", store=store)
    assert [*named(policy)] == ["deep.day", "deep.week", "main", "spare", "a", "quota"]
    for _ in range(5):
        assert policy.shaper.reserve(max_wait=1)
    used = {name: (usage.used, usage.remaining, usage.limit) for name, usage in named(policy).items()}
    assert used == {
        "deep.day": (5, 4, 9),
        "deep.week": (5, 3, 8),
        "main": (2, 0, 2),
        "spare": (3, 4, 7),
        "a": (5, 15, 20),
        "quota": (5, 1, 6),
    }
    resets = {name: usage.resets_at for name, usage in named(policy).items()}
    assert resets["deep.day"] == resets["a"] == 11 * DAY
    # The first Monday was the fifth of January.
    assert resets["deep.week"] == 11 * DAY
    assert resets["main"] == 10 * DAY + 7_200
    assert resets["spare"] == pytest.approx(START + 30 * DAY, abs=1)
    assert policy.shaper.reserve()
    with pytest.raises(QuotaExhaustedError) as caught, policy.admit():
        pytest.fail("left")
    assert named(policy)[caught.value.decision.binding].remaining == 0


def test_a_policy_without_quotas_returns_none_and_makes_no_call_to_the_store(clock):
    policy = Policy("1/s", name="api", gates=(all_of(a=GCRA("1/s"), b=GCRA("2/s")),), clock=clock)
    policy.close()
    assert policy.quotas() == []
    assert anyio.run(policy.aquotas) == []
    policy = Policy("1/s", name="api", quota="1/month", clock=clock)
    policy.close()
    with pytest.raises(StoreUnavailableError):
        policy.quotas()


def test_quotas_is_awaitable(store, anyio_backend):
    policy = Policy("100/s", name="api", quota="5/month", store=store)
    policy.shaper.reserve("alice", cost=3)
    assert anyio.run(policy.aquotas, "alice", backend=anyio_backend) == policy.quotas("alice")
    assert policy.quotas("alice")[0].used == 3


def test_the_key_is_that_of_the_policy_or_an_argument(clock, refused):
    assert Policy(quota="2/day", key="alice", clock=clock).quotas()[0].used == 0
    policy = Policy(quota="2/day", key="{user}", clock=clock)
    refused(policy.quotas, "key")
    refused(lambda: policy.quotas(5), "key")
    with policy.admit("bob"):
        pass
    assert policy.quotas("bob")[0].used == 1


def test_a_new_period_begins_with_nothing_used(store, clock):
    policy = Policy("100/s", name="api", quota="3/day", store=store)
    policy.shaper.reserve(cost=3)
    clock.advance(23 * 3_600 - 0.000001)
    assert policy.quotas()[0][3:6] == (3, 0, 11 * DAY)
    clock.advance(0.000001)
    assert policy.quotas()[0][3:6] == (0, 3, 12 * DAY)


def test_slots_of_the_next_period_are_used_in_that_one(store, clock):
    """No call overtakes them, although this period has some left."""
    policy = Policy("100/s", name="api", quota="3/day", store=store)
    policy.shaper.reserve(cost=2)
    assert policy.shaper.reserve(cost=3, max_wait="1d").delay > 3_600
    assert policy.quotas()[0][3:6] == (2, 1, 11 * DAY)
    assert not policy.shaper.reserve(max_wait="1d")
    clock.advance(DAY)
    assert policy.quotas()[0][3:6] == (3, 0, 12 * DAY)


def test_slots_of_waiting_calls_are_used(store, clock):
    policy = Policy("1/min", name="api", quota="9/day", gates=(Quota("9/rolling:1d"),), store=store)
    for used in range(1, 5):
        policy.shaper.reserve()
        assert [usage[3:5] for usage in policy.quotas()] == [(used, 9 - used)] * 2


def test_a_settled_call_counts_its_settled_cost(store):
    policy = Policy("100/s burst 9", name="api", quota="5/month", store=store)
    for cost, actual, used in ((2, 4, 4), (1, 0, 4), (1, 4, 8)):
        with policy.admit(cost=cost) as admission:
            admission.settle(actual)
        assert policy.quotas()[0][3:5] == (used, max(0, 5 - used))


def test_a_slot_that_was_given_back_is_not_used(store, clock):
    """Be it the last, or one in the middle that no call has used yet, or can use any more."""
    policy = Policy("1/min", name="api", quota="5/day", store=store)
    reservations = [policy.shaper.reserve() for _ in range(4)]
    assert reservations[3].cancel()
    assert policy.quotas()[0].used == 3
    assert reservations[1].cancel()
    assert policy.quotas()[0].used == 2
    clock.advance(61)
    assert policy.quotas()[0].used == 2
    assert policy.shaper.reserve()
    assert policy.quotas()[0].used == 3


def test_the_quotas_of_a_held_key_are_those_at_the_end_of_the_hold(store, clock):
    policy = Policy("100/s", name="api", quota="3/day", gates=(Quota("9/rolling:1h"),), store=store)
    policy.shaper.reserve(cost=3)
    clock.advance(22.5 * 3_600)
    rolling, day = policy.quotas()
    assert (rolling.used, day.used) == (0, 3)
    policy.shaper.hold("20min")
    assert policy.quotas()[1] == day
    policy.shaper.hold("40min")
    assert policy.quotas()[1][3:6] == (0, 3, 12 * DAY)
    assert policy.quotas()[1].resets_in == 12 * DAY - clock.now()


def test_a_zone_s_boundaries_are_instants(clock):
    """The month of March 2026 ends in summer time."""
    berlin = ZoneInfo("Europe/Berlin")
    clock.set(datetime(2026, 3, 15, 12, tzinfo=berlin).timestamp())
    policy = Policy(quota=Quota("3/month", tz="Europe/Berlin"), clock=clock)
    (usage,) = policy.quotas()
    assert usage.resets_at == datetime(2026, 4, 1, tzinfo=berlin).timestamp()
    assert usage.resets_in == usage.resets_at - clock.now()


def test_on_a_server_its_own_clock_decides_the_month():
    def month_ends():
        today = datetime.now(UTC)
        return datetime(today.year + today.month // 12, today.month % 12 + 1, 1, tzinfo=UTC).timestamp()

    before = month_ends()
    with shared_server().client() as client:
        policy = Policy("100/s", quota="5/month", name=f"q{next(_fresh)}", store=RedisStore(client))
        policy.shaper.reserve(cost=2)
        (usage,) = policy.quotas()
    assert usage[3:5] == (2, 3)
    assert usage.resets_at in (before, month_ends())
    assert 0 < usage.resets_in <= 31 * DAY


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, 600, 3_600, 5 * 3_600, DAY, 3 * DAY]),
            st.integers(1, 4),
            st.none() | st.integers(0, 6),
        ),
        max_size=15,
    )
)
def test_remaining_is_the_most_that_a_call_may_still_cost(story):
    """The usage is what the calls of each period have cost, at their settled costs."""
    clock = ManualClock(START)
    gates = (Quota("7/day"), Quota("30/fixed:5d"), all_of(a=Quota("6/rolling:6h"), b=Quota("12/week")))
    policy, costs = Policy(gates=gates, clock=clock), []
    for span, cost, actual in story:
        clock.advance(span)
        usages = named(policy)
        day = next(usage for usage in policy.quotas() if usage.per == "day")
        left = min(usage.remaining for usage in policy.quotas())
        today = clock.now() // DAY
        assert day.used == sum(units for at, units in costs if at // DAY == today)
        assert usages["b"].used == sum(
            units
            for at, units in costs
            if (at - 4 * DAY) // (7 * DAY) == (clock.now() - 4 * DAY) // (7 * DAY)
        )
        assert usages["a"].used >= sum(units for at, units in costs if at > clock.now() - 6 * 3_600)
        if cost <= policy.shaper.core.queue.max_cost:
            reservation = policy.shaper.reserve(cost=cost, max_wait=0)
            assert reservation.accepted is (cost <= left)
            if reservation:
                units = cost if actual is None else actual
                if units != cost:
                    assert policy.shaper.settle(reservation, units)
                costs.append((clock.now(), units))


def test_the_quotas_in_a_gates_program_can_be_read_too():
    """A program that a survey finds in a store need not belong to a policy."""
    limit = all_of(second=GCRA("1/s"), month=Quota("5/month"))
    state = limit.check(None, START * 10**6, 1).state
    (usage,) = quotas_of(limit, state, START * 10**6, 0)
    assert (usage.name, usage.used, usage.resets_at) == ("month", 1, 31 * DAY)
    assert quotas_of(Quota("5/month"), None, 0, 0)[0].name == "quota"
