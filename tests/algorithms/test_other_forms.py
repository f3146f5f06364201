"""A limit that goes on in another form counts all that it counted, and nothing for too short a time."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import FixedWindow, Quota, SlidingWindow, SlidingWindowLog
from shapekit.algorithms.base import Algorithm
from shapekit.rate import Rate
from shapekit.testing.timelines import queue

FAR = 10_000
WINDOW_S = 60
FORMS = st.sampled_from(
    [SlidingWindowLog(FAR, WINDOW_S), *(SlidingWindow(FAR, WINDOW_S, buckets=n) for n in (1, 2, 3, 7, 60))]
)
CHARGES = st.lists(
    st.tuples(st.integers(0, 15_000_000), st.integers(0, 150_000_000), st.integers(1, 9)),
    min_size=1,
    max_size=30,
)
"""Calls: how long after the one before, how far ahead, and at what cost."""


@given(FORMS, FORMS, CHARGES)
@example(
    SlidingWindow(FAR, WINDOW_S, buckets=1),
    SlidingWindow(FAR, WINDOW_S, buckets=7),
    [(0, 0, 2), (0, 95_000_000, 1)],
)
@example(
    SlidingWindowLog(FAR, WINDOW_S),
    SlidingWindow(FAR, WINDOW_S, buckets=1),
    [(0, 95_000_000, 1), (0, 1_212_616, 1), (5_000_000, 2, 1), (15_000_000, 97_463_871, 9)],
)
@example(SlidingWindowLog(FAR, WINDOW_S), SlidingWindow(FAR, WINDOW_S, buckets=7), [(1_000, 0, 1)] * 70)
def test_nothing_is_forgotten_and_nothing_ends_sooner(old, new, charges):
    """Calls that leave at once, and slots ahead, in their order."""
    state, now, slot = None, 1_000_000_000, 0
    admitted = []
    for gap_us, ahead_us, cost in charges:
        now += gap_us
        slot = max(slot, now + max(0, ahead_us - 75_000_000))
        state = old.charge(state, now, slot, cost)[0]
        admitted.append((slot, cost))
    before = list(old.entries(state, slot))
    adopted = new.adopt(state, old, slot)
    after = list(new.entries(adopted, slot))
    assert sum(count for _, count in after) == sum(count for _, count in before)
    # By every instant, no more units have been released than were admitted.
    for at, _ in admitted:
        assert sum(count for when, count in after if when <= at) <= sum(
            count for when, count in admitted if when <= at
        )
    # What the old form counts as admitted last counts in full.
    assert new.peek(adopted, slot).current >= sum(count for when, count in before if when == slot)


class Form(NamedTuple):
    """A way to count in windows of some length, which are aligned, or end with each call."""

    text: str
    window_us: int
    of: Callable[[Rate], Algorithm]
    is_aligned: bool = False

    def begins(self, at):
        """The first instant of the window in which a call at this instant is the latest."""
        return at - at % self.window_us if self.is_aligned else at - self.window_us + 1

    def __repr__(self):
        return f"{self.text} per {self.window_us}"


def log(span):
    return Form("log", span, SlidingWindowLog)


def ring(span, buckets):
    return Form(f"ring of {buckets}", span, partial(SlidingWindow, buckets=buckets, conservative=True))


def fixed(span):
    return Form("window", span, FixedWindow, is_aligned=True)


def budget(span, *, spread):
    def of(rate):
        return Quota(int(rate.limit), f"fixed:{span}us", spread=spread)

    return Form("spread budget" if spread else "budget", span, of, is_aligned=True)


def budget_rolling(span):
    return Form("rolling budget", span, lambda rate: Quota(int(rate.limit), f"rolling:{span}us"))


KINDS = st.sampled_from(
    [
        [log(20), log(60), ring(20, 1), ring(60, 1), ring(60, 7), ring(61, 60)],
        [fixed(20), fixed(30), fixed(60), fixed(7)],
        [budget(span, spread=spread) for span in (7, 20, 30, 60) for spread in (False, True)],
        [budget_rolling(20), budget_rolling(60)],
    ]
)
CALLS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=12)
"""Calls: how long after the one before, and at what cost."""


@given(
    KINDS.flatmap(lambda kind: st.tuples(*[st.sampled_from(kind)] * 2)),
    st.integers(5, 9),
    st.tuples(st.integers(1, 15), st.integers(1, 15)),
    CALLS,
    CALLS,
)
@example((ring(60, 1), log(60)), 5, (10, 1), [(22, 1), *[(0, 1)] * 4], [(0, 1)] * 2)
@example((fixed(60), fixed(30)), 5, (10, 1), [(22, 1), *[(0, 1)] * 4], [(0, 1)] * 4)
@example(
    (budget(60, spread=False), budget(30, spread=False)), 5, (10, 1), [(22, 1), *[(0, 1)] * 4], [(0, 1)] * 4
)
def test_calls_that_follow_waiting_ones_keep_the_new_limit(forms, limit, paces_us, before, after):
    """The windows of the new form in which they leave hold no more than its limit, with all the calls that
    counted at the change or were waiting then.
    """
    old, new = (
        queue(Rate.of(1, pace_us), gates=(form.of(Rate.of(limit, form.window_us)),))
        for form, pace_us in zip(forms, paces_us, strict=True)
    )
    state, now = None, 1_000
    departures, counted = [], 0
    for line, calls in ((old, before), (new, after)):
        if line is new:
            state = new.adopt(state, old, now)
            counted = forms[0].begins(now)
        for gap_us, cost in calls:
            now += gap_us
            state, granted, *_ = line.reserve(state, now, (cost, 10**9, 7))
            departures.append((granted[2], cost))
            if line is new:
                begun = max(counted, forms[1].begins(granted[2]))
                assert sum(cost for at, cost in departures if at >= begun) <= limit
