"""Workers with different clocks share a rate on Redis as exactly as with equal ones: its clock decides."""

from collections import Counter
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from shapekit.rate import SECOND_US

from ..redis_server import shared_server

pytestmark = pytest.mark.long

DAY_S = 86_400
SKEWED = """
import json, sys, time

skew_s, url, prefix = map(json.loads, sys.argv[1:])
true_ns, true_monotonic_ns = time.time_ns, time.monotonic_ns
time.time_ns = lambda: true_ns() + skew_s * 10**9
time.time = lambda: time.time_ns() / 10**9
time.monotonic_ns = lambda: true_monotonic_ns() + skew_s * 10**9

from shapekit import *
from shapekit.stores.redis import RedisStore

store = RedisStore.from_url(url, prefix=prefix)
# So much for its own idea of the time.
assert abs(store.clock.wall_us() - true_ns() // 1_000 - skew_s * 10**6) < 10**6

paced = Shaper("10/s; 500/h", name="paced", store=store)
waited = Shaper("40/s", name="waited", store=store)
quotas = [
    Quota(10, "day", tz="Europe/Berlin"), Quota(10, "week", tz="America/New_York"),
    Quota(10, "month", offset_minutes=-300), Quota(10, "fixed:1d"), Quota(10, "rolling:1d"),
    all_of(a=Quota(10, "day", tz="Europe/Berlin"), b=Quota(11, "month")),
]
quotas = [Gate(quota, name=f"quota{n}", store=store) for n, quota in enumerate(quotas)]
bursts = Gate(GCRA("1/h", 10), name="burst", store=store)
print("ready", flush=True)
sys.stdin.readline()

slots, waits, decisions = [], [], []
for _ in range(25):
    before = true_ns() // 1_000
    reservation = paced.reserve()
    wait_us = reservation.grant.wait_us
    slots.append((reservation.grant.departs_at_us, before + wait_us, true_ns() // 1_000 + wait_us))
for _ in range(10):
    reservation = waited.schedule()
    waits.append(true_ns() // 1_000 - reservation.grant.departs_at_us)
for _ in range(20):
    for n, quota in enumerate(quotas):
        decision = quota.check()
        decisions.append((n, decision.reset_at_us, decision.allowed))
print(json.dumps({
    "slots": slots, "waits": waits, "decisions": decisions,
    "burst": sum(bool(bursts.check()) for _ in range(20)),
}))
"""


@pytest.mark.parametrize("skew_s", [0, 2, DAY_S], ids=["equal", "two seconds", "a day"])
def test_workers_with_different_clocks_share_as_exactly_as_with_equal_ones(crew, prefix, skew_s):
    """On Redis, whose clock decides: one is ahead, one behind, and one is right."""
    outputs = crew(SKEWED, [(skew, shared_server().url, prefix) for skew in (0, skew_s, -skew_s)])

    slots = sorted(tuple(slot) for each in outputs for slot in each["slots"])
    start = slots[0][0]
    assert [due - start for due, _, _ in slots] == [n * SECOND_US // 10 for n in range(75)]
    # A call that sleeps for its delay wakes around the slot, whatever the date here.
    assert all(soonest <= due <= latest for due, soonest, latest in slots)

    waits = [late for each in outputs for late in each["waits"]]
    assert len(waits) == 30
    assert 0 <= min(waits) <= max(waits) < 2 * SECOND_US

    assert sum(each["burst"] for each in outputs) == 10
    decisions = [tuple(one) for each in outputs for one in each["decisions"]]
    for number in range(6):
        # Where the period ends while we look, each has its own limit.
        periods = Counter(reset for n, reset, _ in decisions if n == number)
        if number == 4:
            # A rolling one is full again later with each call.
            assert sum(allowed for n, _, allowed in decisions if n == number) == 10
            continue
        assert len(periods) <= 2
        for reset, calls in periods.items():
            admitted = sum(allowed for n, at, allowed in decisions if (n, at) == (number, reset))
            assert admitted == min(10, calls), (number, reset)
    berlin = datetime.now(ZoneInfo("Europe/Berlin"))
    midnight = datetime(berlin.year, berlin.month, berlin.day, tzinfo=berlin.tzinfo)
    ends = {(midnight + timedelta(days=ahead)).timestamp() * SECOND_US for ahead in (0, 1)}
    assert {reset for n, reset, _ in decisions if n == 0} <= ends
