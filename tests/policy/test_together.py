"""A rate, gates and a quota: a call leaves when all of them let it, and is charged to all or to none.

The judge is brute force: the limits one by one, each checked at single instants, and the first instant of
them all found by bisection. That works because a limit that admits goes on admitting until charged.
"""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    ManualClock,
    Policy,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    RateLimitedError,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
)
from shapekit.testing import check_pace

SECOND_US = 1_000_000
GATES = [
    GCRA("3/s", burst=4),
    TokenBucket("2/s", 5),
    FixedWindow(6, "3s"),
    SlidingWindowLog(5, "2s"),
    SlidingWindow(8, "4s", buckets=4, conservative=True),
]
QUOTAS = [Quota(7, "fixed:5s"), Quota(6, "rolling:4s")]


class Books:
    """The same limits, kept one by one; `interval` is that of the paced rate, in µs, 0 without one."""

    def __init__(self, interval, burst, gates, quotas):
        self.interval = interval
        self.burst = burst
        self.limits = [*gates, *quotas]
        self.quotas = quotas
        self.states = [None] * len(self.limits)
        self.tail = Fraction(0)
        self.newest = 0

    def ready(self, cost):
        """When the queue alone lets a call leave."""
        return self.tail - self.interval * max(0, self.burst - cost)

    def first(self, start, limits, cost):
        """The first instant from `start` on at which all of these admit, in order of asking."""

        def admitted(at):
            if at < max(self.ready(cost), self.newest):
                return False
            pairs = zip(self.limits, self.states, strict=True)
            return all(limit.check(state, at, cost).decision for limit, state in pairs if limit in limits)

        late = 1
        while not admitted(start + late):
            late *= 2
        early = -1
        while late - early > 1:
            middle = (early + late) // 2
            early, late = (early, middle) if admitted(start + middle) else (middle, late)
        return start + late

    def ask(self, now, cost, max_wait):
        """The departure, or None for a refusal, which changes nothing."""
        due = self.first(now, self.limits, cost)
        if max_wait is not None:
            if due - now > max_wait:
                return None
        elif any(self._spent(quota, now, cost) for quota in self.quotas):
            return None
        pairs = zip(self.limits, self.states, strict=True)
        self.states = [limit.charge(state, now, due, cost)[0] for limit, state in pairs]
        # A call that its limits delayed stands where it left; otherwise where it asked.
        stands = due if due > max(now, ceil(self.ready(cost))) else now
        self.tail = max(self.tail, Fraction(stands)) + self.interval * cost
        self.newest = due
        return due

    def _spent(self, quota, now, cost):
        """Whether this quota, and not the others before it, makes the call wait."""
        unspent = self.first(now, [limit for limit in self.limits if limit not in self.quotas], cost)
        state = self.states[self.limits.index(quota)]
        return not quota.check(state, unspent, cost).decision


CALLS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 100_000, 250_000, 333_333, 1_000_000, 2_500_000]),
        st.integers(1, 4),
        st.sampled_from([None, None, 0, 200_000, 1_000_000, 5_000_000]),
    ),
    min_size=1,
    max_size=14,
)
PACES = st.sampled_from([("4/s", 1), ("4/s", 3), ("3/s", 1), ("3/s", 4), ("10/s", 2)])
PARTS = st.tuples(
    st.lists(st.sampled_from(GATES), max_size=2, unique=True),
    st.lists(st.sampled_from(QUOTAS), max_size=1),
)


def reserved_in_order(policy, clock, books, calls):
    """Asks without waiting, so that the queue grows; compares each answer, and returns the departures."""
    left = []
    for gap, cost, max_wait in calls:
        clock.advance(gap / SECOND_US)
        now = clock.now_us()
        due = books.ask(now, cost, max_wait)
        waits = {} if max_wait is None else {"max_wait": max_wait / SECOND_US}
        with policy.admit(cost=cost, **waits) as admission:
            assert admission.decision.allowed is (due is not None)
            if due is not None:
                assert now + round(admission.delay * SECOND_US) == due
                left.append((due / SECOND_US, cost))
    assert left == sorted(left, key=lambda departure: departure[0])
    return left


def limits(pace, parts):
    """The arguments of a policy, and its limits one by one."""
    (rate, burst), (gates, quotas) = pace, parts
    interval = Fraction(SECOND_US, int(rate.removesuffix("/s")))
    arguments = {"rate": rate, "burst": burst, "gates": gates, "quota": next(iter(quotas), None)}
    return arguments, Books(interval, burst, gates, quotas)


@settings(max_examples=100)
@given(PACES, PARTS, CALLS)
def test_a_call_leaves_at_the_first_instant_that_all_admit(pace, parts, calls):
    arguments, books = limits(pace, parts)
    clock = ManualClock()
    left = reserved_in_order(Policy(**arguments, clock=clock, enforce=False), clock, books, calls)
    rate, burst = pace
    if all(cost <= burst for _, cost in left):
        check_pace(left, rate, burst, tolerance="1us")


@settings(max_examples=50)
@given(st.none() | st.sampled_from([4, 5]), PARTS, CALLS)
def test_a_policy_without_a_pace_is_held_up_by_its_limits_alone(limit, parts, calls):
    gates, quotas = parts
    windows = [] if limit is None else [SlidingWindowLog(limit, "1s")]
    arguments = {} if limit is None else {"rate": f"{limit}/s", "pace": "burst"}
    if not (windows or gates or quotas):
        gates = [GATES[0]]
    clock = ManualClock()
    policy = Policy(**arguments, gates=gates, quota=next(iter(quotas), None), clock=clock, enforce=False)
    reserved_in_order(policy, clock, Books(0, 1, [*windows, *gates], quotas), calls)


@settings(max_examples=50)
@given(PACES, PARTS, CALLS)
def test_an_enforced_policy_admits_and_refuses_like_its_limits(pace, parts, calls):
    arguments, books = limits(pace, parts)
    clock = ManualClock(autojump=True)
    policy = Policy(**arguments, clock=clock)
    for gap, cost, max_wait in calls:
        clock.advance(gap / SECOND_US)
        due = books.ask(clock.now_us(), cost, max_wait)
        waits = {} if max_wait is None else {"max_wait": max_wait / SECOND_US}
        if due is None:
            with pytest.raises(RateLimitedError), policy.admit(cost=cost, **waits):
                pytest.fail("left")
        else:
            with policy.admit(cost=cost, **waits):
                assert clock.now_us() == due


def test_a_call_that_one_limit_refuses_is_charged_to_none(policy, fits):
    one = policy("100/s burst 50", gates=(FixedWindow(10, "1h"),), quota="6/day")
    with one.admit(cost=5):
        pass
    for _ in range(3):
        # The quota has 1 left, the window 5: neither admits a call without charging it.
        with pytest.raises(QuotaExhaustedError), one.admit(cost=4):
            pytest.fail("left")
        with pytest.raises(RateLimitedError), one.admit(cost=6, max_wait="1s"):
            pytest.fail("left")
    assert fits(one, 1) == 1


def test_the_error_names_the_limit_that_refuses(policy):
    one = policy("1/s", gates=(FixedWindow(2, "1min"),), quota="3/day")
    for _ in range(2):
        with one.admit():
            pass
    with pytest.raises(QueueFullError) as full, one.admit(max_wait="5s"):
        pytest.fail("left")
    assert full.value.delay == 59.0
    with one.admit():
        pass
    with pytest.raises(QuotaExhaustedError, match="3 of 3 used"), one.admit():
        pytest.fail("left")


def test_several_rates_bind_together(policy, clock):
    one = policy("10/s; 20/min")
    left = []
    for _ in range(41):
        with one.admit():
            left.append(clock.now())
    assert left[19] == 1.9
    # After 20 the minute binds, and the queue goes on as those in the window leave it.
    assert left[20:22] == [60.0, 60.1]
    assert left[40] == 120.0
