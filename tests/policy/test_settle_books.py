"""The books balance: after settling, no call gets more than if the true cost had been charged at once.

The true costs are kept beside the policy, limit by limit: each call charged with its actual cost at the
instant it left. Two laws: later callers can always get at most that; and where no call came between a call
and its settlement, they get exactly that.
"""

from fractions import Fraction
from heapq import heappop, heappush

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, ManualClock, Policy, Quota, SlidingWindow, SlidingWindowLog

SECOND_US = 1_000_000
RATE = "50/s"
INTERVAL_US = Fraction(SECOND_US, 50)
BURST = 4
PARTS = {
    "rate alone": (),
    "gcra": (GCRA("20/s", burst=12),),
    "window": (FixedWindow(15, "1s"),),
    "log": (SlidingWindowLog(15, "1s"),),
    "ring": (SlidingWindow(15, "1s", buckets=3, conservative=True),),
    "quota": (Quota(20, "fixed:2s"),),
    "all": (GCRA("20/s", burst=12), FixedWindow(15, "1s"), SlidingWindowLog(20, "2s"), Quota(30, "fixed:3s")),
}


class Truth:
    """The actual cost of every call, charged when it left, without a decision."""

    def __init__(self, limits):
        self.limits = limits
        self.states = [None] * len(limits)
        self.tail = Fraction(0)

    def left(self, at, cost):
        if cost:
            pairs = zip(self.limits, self.states, strict=True)
            self.states = [limit.debit(state, at, cost).state for limit, state in pairs]
        self.tail = max(self.tail, Fraction(at)) + INTERVAL_US * cost

    def first(self, now, cost):
        """The first instant from `now` on at which another call could leave."""
        ready = self.tail - INTERVAL_US * max(0, BURST - cost)
        at = max(now, -(-ready.numerator // ready.denominator))
        while True:
            later = at
            for limit, state in zip(self.limits, self.states, strict=True):
                later = limit.earliest(state, later, cost)
            if later == at:
                return at
            at = later


def played(parts, calls, clock):
    """Plays calls of (gap, estimate, (time until, actual), ...); returns the policy and the truth.

    Each call takes its slot, leaves in it, and is settled some time later, perhaps more than once, while
    other calls come and go. The last settlement is the truth.
    """
    policy = Policy(RATE, burst=BURST, gates=parts, clock=clock, enforce=False)
    agenda, left = [], []
    at = 0
    for number, (gap, estimate, *words) in enumerate(calls):
        at += gap
        heappush(agenda, (at, number, 0, (estimate, words)))
    while agenda:
        at, number, step, event = heappop(agenda)
        clock.advance((at - clock.now_us()) / SECOND_US)
        if step == 0:
            estimate, words = event
            with policy.admit(cost=estimate, max_wait="1h") as admission:
                due = at + round(admission.delay * SECOND_US)
            left.append((due, number, words[-1][1]))
            settles_at = due
            for version, (until, actual) in enumerate(words, start=1):
                settles_at += until
                heappush(agenda, (settles_at, number, version, (admission, actual)))
        else:
            admission, actual = event
            admission.settle(actual)
    truth = Truth(parts)
    for due, _, actual in sorted(left):
        truth.left(due, actual)
    return policy, truth


GAP = st.sampled_from([0, 0, 1, 50_000, 200_000, 500_000, 1_000_000])
ESTIMATE = st.integers(1, 12)
WORD = st.tuples(st.sampled_from([0, 1, 70_000, 300_000, 600_000, 1_000_000, 1_500_000]), st.integers(0, 18))
CALL = st.tuples(GAP, ESTIMATE, WORD) | st.tuples(GAP, ESTIMATE, WORD, WORD, WORD)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@settings(max_examples=80)
@given(
    calls=st.lists(CALL, min_size=1, max_size=8),
    gap=st.sampled_from([0, 0, 1, 30_000, 200_000, 600_000]),
    cost=st.sampled_from([1, 5, 12, 12]),
)
# A call with others waiting behind it was given back, and with it time in which they had not yet left.
@example(calls=[(0, 3, (1, 0)), (0, 2, (0, 2))], gap=0, cost=12)
@example(calls=[(0, 3, (1, 0)), (0, 1, (0, 0), (0, 1), (0, 0)), (0, 1, (0, 3))], gap=0, cost=12)
def test_settling_never_admits_more_than_charging_the_true_cost_at_once(parts, calls, gap, cost):
    clock = ManualClock()
    policy, truth = played(parts, calls, clock)
    clock.advance(gap / SECOND_US)
    now = clock.now_us()
    due = now + round(policy.shaper.reserve(cost=cost, max_wait="1h").delay * SECOND_US)
    assert due >= truth.first(now, cost)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@settings(max_examples=60)
@given(
    calls=st.lists(st.tuples(st.integers(0, 1_500_000), ESTIMATE, st.integers(0, 18)), max_size=8),
    data=st.data(),
    cost=st.integers(1, 12),
)
def test_settling_equals_charging_the_true_cost_where_no_call_came_between(parts, calls, data, cost):
    """One call after the other; an excess is settled at once, a remainder at any time."""
    clock = ManualClock(autojump=True)
    policy = Policy(RATE, burst=BURST, gates=parts, clock=clock)
    truth = Truth(parts)
    for gap, estimate, actual in calls:
        clock.advance(gap / SECOND_US)
        due = truth.first(clock.now_us(), estimate)
        with policy.admit(cost=estimate, max_wait="1h") as admission:
            assert clock.now_us() == due
            if actual < estimate:
                clock.advance(data.draw(st.sampled_from([0, 0.05, 0.7, 3])))
            admission.settle(actual)
        truth.left(due, actual)
    now = clock.now_us()
    due = now + round(policy.shaper.reserve(cost=cost, max_wait="1h").delay * SECOND_US)
    assert due == truth.first(now, cost)
