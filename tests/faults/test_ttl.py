"""Every key has a TTL: at least the life of its state, at most twice that and a second."""

import pytest

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    LeakyBucket,
    Policy,
    Quota,
    RedisStore,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.queue.wire import LOOK
from shapekit.testing import ManualClock

from ..redis_server import shared_server

STRATEGIES = {
    "gcra": GCRA("10/min"),
    "fast gcra": GCRA("1000/s"),
    "token bucket": TokenBucket("10/min"),
    "leaky bucket": LeakyBucket("10/min", capacity=5),
    "fixed window": FixedWindow("10/h"),
    "sliding window": SlidingWindow("10/min"),
    "two counters": SlidingWindow("10/min", buckets=1),
    "log": SlidingWindowLog("10/min"),
    "day": Quota(10, "day"),
    "rolling": Quota(10, "rolling:2h"),
    "month in Berlin": Quota(10, "month", tz="Europe/Berlin"),
    "all_of": all_of(fast=GCRA("10/s", burst=5), slow=FixedWindow("100/h")),
    "any_of": any_of(a=GCRA("10/min"), b=GCRA("10/h")),
    "first_of": first_of(a=GCRA("1/min"), b=SlidingWindow("10/min")),
}
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)

HOUR_MS = 3_600_000


@pytest.fixture
def server():
    with shared_server().client() as client:
        yield client


@pytest.fixture
def ttls(server, prefix):
    """The TTLs of all keys of this test that hold states, in ms; none may have none."""

    def ttls():
        found = {key: server.pttl(key) for key in server.scan_iter(match=f"{prefix}:*", count=1_000)}
        assert found
        assert min(found.values()) > 0
        descriptions = f"{prefix}:program:".encode()
        assert any(key.startswith(descriptions) for key in found)
        return [ttl for key, ttl in found.items() if not key.startswith(descriptions)]

    return ttls


@pytest.fixture
def store(prefix):
    store = RedisStore.from_url(shared_server().url, prefix=prefix)
    yield store
    store.close()


def now_us(server):
    seconds, micros = server.time()
    return seconds * 1_000_000 + micros


def ends_us(gate, strategy):
    """When the state of a gate's default key is as good as none."""
    state, now, skew = gate._store.bind(gate.name, strategy, LOOK)("default")
    return now + strategy.life(state, now, skew)


def check_ttl(ttl_ms, end_us, before_us, after_us):
    """Life was counted from some instant before the TTL was read."""
    assert ttl_ms * 1_000 >= end_us - after_us
    assert ttl_ms * 1_000 <= 2 * max(0, end_us - before_us) + 1_001_000


@each_strategy
def test_a_key_lives_as_long_as_its_state_and_not_much_longer(strategy, store, server, ttls):
    gate = Gate(strategy, store=store, name="gate")
    for cost in (1, 1, 2):
        before_us = now_us(server)
        gate.check(cost=cost if cost <= strategy.max_cost else 1)
        (ttl_ms,) = ttls()
        check_ttl(ttl_ms, ends_us(gate, strategy), before_us, now_us(server))


PLACES = (
    *({}, {"tz": "Europe/Berlin"}, {"tz": "America/New_York"}, {"offset_minutes": 840}, {"spread": True}),
    *({"anchor_day": 31}, {"anchor_day": 15, "tz": "Australia/Lord_Howe"}, {"week_start": "sunday"}),
)


def fits(per, place):
    return (per == "month" or "anchor_day" not in place) and (per == "week" or "week_start" not in place)


PERIODS = [
    *((per, place) for per in ("month", "week", "day") for place in PLACES if fits(per, place)),
    *((per, place) for per in ("fixed:30d", "fixed:365d") for place in ({}, {"offset_minutes": -330})),
]


@pytest.mark.parametrize(("per", "place"), PERIODS, ids=str)
def test_a_quota_lives_until_its_period_has_passed_twice(per, place, store, server, ttls):
    quota = Quota(10, per, **place)
    before_us = now_us(server)
    decision = Gate(quota, store=store, name="gate").check()
    (ttl_ms,) = ttls()
    start, end = quota.counter.periods.bounds(decision.reset_at_us - 1)
    assert end == decision.reset_at_us
    check_just(ttl_ms, end + (end - start), before_us, now_us(server))


@pytest.mark.parametrize(("per", "days"), [("rolling:1d", 1), ("rolling:30d", 30), ("rolling:365d", 365)])
@pytest.mark.parametrize("limit", [10, 5_000], ids=["log", "ring"])
def test_a_rolling_quota_lives_until_its_span_has_passed(limit, per, days, store, server, ttls):
    quota = Quota(limit, per)
    before_us = now_us(server)
    decision = Gate(quota, store=store, name="gate").check()
    (ttl_ms,) = ttls()
    width_us = 0 if limit == 10 else days * 86_400_000_000 // 10
    assert before_us <= decision.reset_at_us - days * 86_400_000_000 <= now_us(server) + width_us
    check_just(ttl_ms, decision.reset_at_us, before_us, now_us(server))


def test_a_description_outlives_the_state_of_a_years_quota(store, server, prefix):
    Gate(Quota(10, "fixed:366d"), store=store, name="gate").check()
    # At the beginning of its year that would be two years.
    assert server.ttl(f"{prefix}:program:gate") > 2 * 366 * 86_400


def check_just(ttl_ms, end_us, before_us, after_us):
    """A second longer than until then."""
    assert end_us - after_us <= ttl_ms * 1_000 <= end_us - before_us + 1_001_000


@pytest.mark.parametrize("name", ["all_of", "any_of", "first_of"])
def test_the_key_of_each_part_lives_as_long_as_its_state(name, store, server, ttls):
    strategy = STRATEGIES[name]
    gate = Gate(strategy, store=store, name="gate")
    before_us = now_us(server)
    gate.check({part: f"key of {part}" for part in strategy.names})
    found = sorted(ttls())
    charged = 1 if name == "first_of" else 2
    assert len(found) == charged
    # Each part alone, on a store of its own, has the same life.
    alone = []
    for part in strategy.parts[:charged]:
        gate = Gate(part, store=store, name=f"alone {len(alone)}")
        gate.check()
        alone.append(ends_us(gate, part))
    for ttl_ms, end_us in zip(found, sorted(alone), strict=True):
        # What was alone began a little later.
        passed_us = now_us(server) - before_us
        check_ttl(ttl_ms, end_us, before_us, now_us(server) + passed_us)


@pytest.mark.parametrize("rates", ["10/min", "10/s; 100/min; 1000/h"])
def test_the_key_of_a_queue_lives_as_long_as_its_state(rates, store, server, ttls):
    shaper = Shaper(rates, store=store, name="shaper")
    before_us = now_us(server)
    reservations = [shaper.reserve() for _ in range(3)]
    (ttl_ms,) = ttls()
    last = before_us + reservations[-1].delay * 1e6
    assert ttl_ms * 1_000 >= last - now_us(server)
    longest_us = max(rate.period_us for rate in shaper.core.queue.rates)
    assert ttl_ms * 1_000 <= 2 * (last + longest_us - before_us) + 1_001_000


def test_a_held_key_lives_as_long_as_the_hold(store, ttls):
    shaper = Shaper("10/s", store=store, name="shaper")
    shaper.hold("2h")
    (ttl_ms,) = ttls()
    assert 2 * HOUR_MS - 10_000 <= ttl_ms <= 4 * HOUR_MS + 2_000


@each_strategy
def test_under_an_injected_clock_a_key_lives_an_hour_at_least(strategy, prefix, ttls):
    clock = ManualClock(1_700_000_000.0)
    store = RedisStore.from_url(shared_server().url, prefix=prefix, clock=clock)
    gate = Gate(strategy, store=store, name="gate")
    gate.check()
    life_ms = (ends_us(gate, strategy) - clock.now_us()) / 1_000
    (ttl_ms,) = ttls()
    # Ten seconds are more than the server needs to answer.
    assert max(HOUR_MS, life_ms) - 10_000 <= ttl_ms <= 2 * max(HOUR_MS, life_ms) + 1_000
    store.close()


def test_no_key_is_without_a_ttl_after_all_kinds_of_calls(store, ttls):
    for number, strategy in enumerate(STRATEGIES.values()):
        gate = Gate(strategy, store=store, name=f"gate {number}")
        decision = gate.check()
        gate.debit("default", cost=2)
        gate.refund("default", decision)
        gate.check_many(["one", "two", "one"])
        gate.peek("cold")
        gate.forecast("cold")
    for pace in ("smooth", "burst"):
        shaper = Shaper("100/s; 1000/min", pace=pace, store=store, name=pace)
        reservations = [shaper.reserve() for _ in range(4)]
        reservations[1].cancel()
        shaper.hold("1s")
        shaper.settle(reservations[0], 3)
        shaper.resume()
        shaper.reserve("other").cancel()
    policy = Policy("10/s", quota="1000/day", name="policy", store=store)
    with policy.admit():
        pass
    assert len(ttls()) > 40
