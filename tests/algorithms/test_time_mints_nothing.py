"""Time that goes back, stands still or alternates between instants mints no capacity.

Two statements, for any timeline:
- calls of one size: never more are admitted than by an observer that sees the highest time so far;
- calls of any size: what was admitted could have been admitted in order, each call at a time not
  later than the highest that had been seen.
Alternatives (`any_of`, `first_of`) may be pushed from one part to another by time that went back, so
there the second statement is about each part and what it was charged.
"""

from contextlib import closing

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    LeakyBucket,
    ManualClock,
    MemoryStore,
    Quota,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
)
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.ledger import ledgered

from .limits import DAY_US, SECOND_US, composites, exactly, leaves, limits, scales_us
from .stories import Event, Story, stories

timelines = {"whats": ("check",), "back": True, "most_events": 40}


def admitted_by(limit, instants, cost=1, skew=0):
    state, admitted = None, 0
    for now in instants:
        outcome = limit.check(state, now, cost, skew)
        if outcome.persist:
            state, admitted = outcome.state, admitted + 1
    return admitted


def monotone(instants):
    highest = 0
    return [highest := max(highest, now) for now in instants]


def instants_of(story):
    now = story.start
    return [now := max(0, now + event.step_us) for event in story.events]


def charged(limit, receipt, at, cost, highest):
    """What one admission charged, as (path of the part, its limit, (instant, cost, highest time))."""
    if not isinstance(limit, Composite):
        return [((), limit, (at, cost, highest))]
    return [
        ((name, *path), leaf, charge)
        for name, part, own in zip(limit.names, limit.parts, receipt, strict=True)
        if own is not None
        for path, leaf, charge in charged(part, own, at, cost, highest)
    ]


def assert_possible_in_order(limit, charges, skew=0):
    state, now = None, 0
    for number, (at, cost, highest) in enumerate(charges):
        now = limit.earliest(state, max(now, at), cost, skew)
        assert now <= highest, f"admission {number} at {at} was due at {now}, and time had come to {highest}"
        state = limit.check(state, now, cost, skew).state


@given(
    stories(st.one_of(leaves, composites(leaves).filter(lambda limit: limit.kind == "all_of")), **timelines)
)
@example(Story(GCRA("10/s", burst=5), 0, tuple(Event("check", (-1) ** i * 400_000, 1) for i in range(200))))
def test_no_more_than_a_monotone_observer_admits(story):
    instants = instants_of(story)
    admitted = admitted_by(story.limit, instants, story.cost, story.skew)
    assert admitted <= admitted_by(story.limit, monotone(instants), story.cost, story.skew)


@given(stories(limits, **timelines))
def test_admitted_calls_were_due_by_the_highest_time(story):
    limit, skew = story.limit, story.skew
    state, charges, highest = None, {}, 0
    for now, (_, _, cost) in zip(instants_of(story), story.events, strict=True):
        highest = max(highest, now)
        outcome = limit.check(state, now, cost, skew)
        if outcome.persist:
            state = outcome.state
            for path, leaf, charge in charged(limit, outcome.decision.receipt, now, cost, highest):
                charges.setdefault(path, (leaf, []))[1].append(charge)
    for leaf, made in charges.values():
        assert_possible_in_order(leaf, made, skew)


@given(stories(leaves, ("check",), back=False), st.integers(1, 2 * DAY_US), st.integers(1, 9))
@example(Story(FixedWindow("5/s"), 10**12, (Event("check", 0, 1),)), 1, 3)
def test_a_debit_weighs_no_less_where_time_went_back(story, back_us, units):
    limit, state, _, cost, skew, charges = story.played()
    assume(charges)
    now = charges[-1].at
    then = limit.debit(state, max(0, now - back_us), units, None, skew).state
    in_time = limit.debit(state, now, units, None, skew).state
    for scale in scales_us(limit):
        for at in (now, now + scale // 2, now + scale):
            assert limit.earliest(then, at, cost, skew) >= limit.earliest(in_time, at, cost, skew)


short_lived = st.one_of(
    st.builds(GCRA, st.just("5/s"), st.integers(1, 5)),
    st.builds(lambda limit: FixedWindow(limit, exactly(SECOND_US)), st.integers(1, 5)),
    st.builds(lambda limit: SlidingWindow(limit, exactly(SECOND_US), buckets=2), st.integers(1, 5)),
    st.builds(lambda limit: SlidingWindowLog(limit, exactly(SECOND_US)), st.integers(1, 5)),
    st.builds(
        lambda limit, spread: Quota(limit, "fixed:1s", spread=spread), st.integers(1, 5), st.booleans()
    ),
)


@settings(max_examples=200)
@given(
    short_lived,
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc"), st.integers(1, 5)), max_size=60),
)
@example(GCRA("5/s", burst=1), [(0, "a", 1), (60, "b", 1), (60, "c", 1), (1, "a", 1), (2, "a", 1)])
def test_a_store_that_forgets_idle_keys_mints_nothing(limit, calls):
    """The clock is set to any tenth of a second; keys live about a second and are swept by each other."""
    clock = ManualClock()
    with closing(Gate(limit, clock=clock)) as gate:
        charges, highest = {}, 0
        for tenths, key, cost in calls:
            clock.set(tenths * 0.1 * 5)
            highest = max(highest, clock.now_us())
            units = min(cost, limit.max_cost)
            if gate.check(key, cost=units):
                charges.setdefault(key, []).append((clock.now_us(), units, highest))
    for made in charges.values():
        assert_possible_in_order(limit, made)


@settings(max_examples=400)
@given(
    short_lived,
    st.lists(st.tuples(st.integers(0, 40), st.one_of(st.integers(1, 5), st.integers(-5, -1))), max_size=40),
)
@example(FixedWindow("3/s"), [(9, 3), (10, 1), (9, -1), (9, 3)])
@example(SlidingWindow("2/s", buckets=2), [(0, 1), (15, 1), (0, -1), (0, 2), (13, 1)])
@example(Quota("1/fixed:1s"), [(10, 1), (30, 1), (0, -1), (0, 1), (10, 1), (20, 1)])
@example(Quota("1/fixed:1s", spread=True), [(10, 1), (30, 1), (0, -1), (0, 1), (10, 1), (20, 1)])
def test_charges_that_stay_could_have_been_admitted_in_order(limit, acts):
    """Calls, and refunds of one of the last calls, at any tenths of a second; until the key is forgotten."""
    gate, state, highest, kept = ledgered(limit), None, 0, []
    for tenths, act in acts:
        now = tenths * SECOND_US // 10
        highest = max(highest, now)
        if act > 0:
            units = min(act, limit.max_cost)
            outcome = gate.check(state, now, units)
            if outcome.persist:
                state = outcome.state
                kept.append((now, units, highest, outcome.decision.receipt))
        elif -act <= len(kept):
            _, units, _, receipt = kept[act]
            outcome = gate.refund(state, now, units, receipt)
            if outcome.persist:
                state = outcome.state
                del kept[act]
                if not outcome.ttl_us:
                    break  # from then on the store makes sure that the key begins no earlier
    assert_possible_in_order(limit, [charge[:3] for charge in kept])


def test_idle_keys_are_forgotten_and_a_clock_set_back_does_not_revive_them():
    """A key that was swept at 100 s begins anew there, even for a call at 0.5 s."""
    clock = ManualClock()
    store = MemoryStore(clock)
    gate = Gate(GCRA("5/s", burst=2), store=store, name="swept")
    assert [gate.check("a").allowed for _ in range(3)] == [True, True, False]
    clock.set(100)
    gate.check("b")
    assert len(store) == 1
    admitted = []
    for now in (0.5, 99.9, 100):
        clock.set(now)
        admitted.append(sum(gate.check("a").allowed for _ in range(3)))
    assert admitted == [1, 0, 1]


TWO_INSTANTS = [
    (TokenBucket("10/s"), 0, 500_000, 15),
    (LeakyBucket("10/s"), 0, 500_000, 15),
    (GCRA("10/s", burst=5), 0, 400_000, 9),
    (TokenBucket("10/s", capacity=5), 0, 400_000, 9),
    (FixedWindow("10/s"), 999_999, 1_000_000, 20),
    (SlidingWindow("10/s"), 500_000, 1_499_999, 10),
    (SlidingWindow("10/s"), 500_000, 1_550_000, 15),
    (SlidingWindow("10/s", buckets=1), 999_999, 1_999_999, 19),
    (SlidingWindowLog("10/s"), 0, 999_999, 10),
    (Quota("10/day"), 20 * DAY_US - 1, 20 * DAY_US, 20),
    (Quota("10/day", spread=True), 20 * DAY_US - 1, 20 * DAY_US, 2),
    (Quota("10/month", tz="Europe/Berlin"), 29 * DAY_US, 32 * DAY_US, 20),
    (all_of(rate=TokenBucket("10/s"), day=Quota("12/day")), 0, 500_000, 12),
]


@pytest.mark.parametrize(("limit", "one", "other", "due"), TWO_INSTANTS)
def test_two_thousand_calls_at_two_alternating_instants(limit, one, other, due):
    """The seeds' limiters believe each instant and admit every call from the second instant on."""
    instants = [one] * 20 + [other, one] * 1_000
    assert admitted_by(limit, instants) == due == admitted_by(limit, monotone(instants))
    clock = ManualClock()
    with closing(Gate(limit, clock=clock)) as gate:
        admitted = 0
        for now in instants:
            clock.set(now / SECOND_US)
            admitted += gate.check().allowed
    assert admitted == due


@pytest.mark.parametrize(("limit", "one", "other", "due"), TWO_INSTANTS)
@pytest.mark.parametrize(("number", "goes_back"), [(1, False), (1, True), (2, True)])
def test_units_given_back_at_either_instant_bring_back_nothing_of_the_earlier(
    limit, one, other, due, number, goes_back
):
    with closing(Gate(limit, clock=(clock := ManualClock()))) as gate:

        def taken(instant):
            clock.set(instant / SECOND_US)
            return gate.check("a")

        first = sum(taken(one).allowed for _ in range(20))
        given_back = again = 0
        for _ in range(20):
            later = [decision for _ in range(number) if (decision := taken(other)).allowed]
            if goes_back:
                clock.set(one / SECOND_US)
            for decision in later:
                gate.refund("a", decision)
                given_back += 1
                again += goes_back and taken(one).allowed
            again += taken(one).allowed
        assert given_back >= (1 if goes_back else 20) or first == due
        assert again == 0 < first


def test_two_hundred_calls_at_two_instants_of_which_nine_are_due():
    for limit in (GCRA("10/s", burst=5), TokenBucket("10/s", capacity=5)):
        for instants in ([0, 400_000] * 100, [400_000, 0] * 100, [0] * 100 + [400_000] * 100):
            assert admitted_by(limit, instants) <= 9
        assert admitted_by(limit, instants) == 9


class Forgetful:
    """What the seeds' token bucket and fixed window do: the last instant seen is rolled back."""

    def __init__(self, window_us=None):
        self.window_us, self.tokens, self.last = window_us, 10.0, 0

    def admits(self, now):
        if self.window_us is None:
            self.tokens = min(10.0, self.tokens + max(0, now - self.last) * 10 / SECOND_US)
            self.last = now
        elif now // self.window_us != self.last:
            self.tokens, self.last = 10.0, now // self.window_us
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@pytest.mark.parametrize(("window_us", "one", "other"), [(None, 0, 500_000), (SECOND_US, 999_999, 1_000_000)])
def test_the_bound_can_be_broken(window_us, one, other):
    forgetful = Forgetful(window_us)
    assert sum(forgetful.admits(now) for now in [one, other] * 1_000) == 2_000
