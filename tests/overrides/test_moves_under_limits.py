"""Further limits when an operator changes the rate: waiting calls and those that come later keep them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    ManualClock,
    Override,
    Policy,
    Quota,
    Rate,
    SlidingWindow,
    SlidingWindowLog,
    all_of,
)
from shapekit.algorithms.overrides import effective, overridden
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import NOTICE_US, Grant, followed

START = 10**15
SECOND = 1_000_000
LIMIT = 10


def rolling(window_us):
    return lambda at: at - window_us + 1


def aligned(window_us):
    return lambda at: at - at % window_us


GATES = {
    "log": (SlidingWindowLog(LIMIT, 10), rolling(10 * SECOND)),
    "ring": (SlidingWindow(LIMIT, 10, buckets=4, conservative=True), rolling(10 * SECOND)),
    "window": (FixedWindow(LIMIT, 10), aligned(10 * SECOND)),
    "rolling quota": (Quota(LIMIT, "rolling:10s"), rolling(10 * SECOND)),
    "meter": (GCRA(Rate(LIMIT, 10), burst=1), rolling(10 * SECOND)),
    "log in a composite": (all_of(SlidingWindowLog(LIMIT, 10), GCRA("9/s")), rolling(10 * SECOND)),
}
"""Limits, each with the beginning of the window in which a departure is the last."""
RATES = ("1/s", "2/s", "3/s", "5/s", "20/s", "7 per 3 seconds", "10/min")
CALLS = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 3)), min_size=1, max_size=25)
"""Calls: how long after the one before, and at what cost."""


@pytest.mark.parametrize("gate", GATES)
@given(
    st.lists(
        st.tuples(st.sampled_from(RATES), CALLS, st.lists(st.integers(0, 80), max_size=10)),
        min_size=2,
        max_size=4,
    )
)
def test_no_window_of_a_further_limit_holds_more_after_a_change(gate, parts):
    limit, begins = GATES[gate]
    state, now, line = None, START, None
    departures = []
    for rate, calls, given_back in parts:
        queue = LeakyQueue((Rate.parse(rate),), 1, "smooth", (limit,))
        if line is not None:
            queue = overridden(queue)
            state = queue.adopt(state, line, now)
            _, standing, *_ = queue.follow(state, now)
            departures = [
                followed(one, standing[-2], queue.constraints)
                if one.due_us > now and one.generation != standing[0]
                else one
                for one in departures
            ]
        line = queue
        for place in given_back:
            if departures:
                one = departures[place % len(departures)]
                state, is_back, *_ = queue.cancel(state, now, one)
                if is_back:
                    departures.remove(one)
        for gap_us, cost in calls:
            now += gap_us
            call = (min(cost, limit.max_cost), 2**51, 1)
            state, granted, _, is_taken = line.reserve(state, now, call)
            assert is_taken
            departures.append(Grant(*granted))
    # Waiting calls that move together into one aligned window are not moved again.
    since = len(departures) - len(calls) if gate == "window" else 0
    for last in departures[since:]:
        counted = [one.cost for one in departures if begins(last.due_us) <= one.due_us <= last.due_us]
        assert sum(counted) <= LIMIT


@pytest.mark.parametrize("gate", ["log", "log in a composite"])
@pytest.mark.parametrize("rates", [("5/s", "1/s"), ("2/s", "10/min"), ("3/s", "2/s")], ids=" to ".join)
@given(calls=CALLS, is_changed_back=st.booleans(), chance=st.randoms(use_true_random=False))
def test_a_call_that_was_moved_gives_back_all_that_it_took(gate, rates, calls, is_changed_back, chance):
    limit, _ = GATES[gate]
    before, since = (LeakyQueue((Rate.parse(rate),), 1, "smooth", (limit,)) for rate in rates)
    state, taken = None, []
    for _, cost in calls:
        state, granted, *_ = before.reserve(state, START, (cost, 2**51, 1))
        taken.append(Grant(*granted))
    queue = before
    for to in (overridden(since), before)[: 1 + is_changed_back]:
        state, queue = to.adopt(state, queue, START), to
    _, standing, *_ = queue.follow(state, START)
    first, *waiting = taken
    chance.shuffle(waiting)
    for one in waiting:
        state, is_back, *_ = queue.cancel(state, START, followed(one, standing[-2], before.constraints))
        assert is_back
    counts = [leaf.peek().current for leaf in queue.leaves(state, START, 0) if leaf.limit.kind != "gcra"]
    assert counts == [first.cost]


COUNTED = {
    **{name: gate for name, gate in GATES.items() if name != "meter"},
    "calendar": (Quota(LIMIT, "fixed:10s"), aligned(10 * SECOND)),
    "spread": (Quota(LIMIT, "fixed:10s", spread=True), aligned(10 * SECOND)),
}
"""A lifted meter owes next to nothing for a call."""


@pytest.mark.parametrize("gate", COUNTED)
@given(CALLS, CALLS, CALLS)
def test_while_limits_are_off_no_call_waits_and_all_are_counted(gate, before, during, since):
    limit, begins = COUNTED[gate]
    queue = LeakyQueue((Rate.parse("5/s"),), 1, "smooth", (limit,))
    off = effective(queue, Override(state="off"))
    state, now, line = None, START, queue
    departures = []

    def reserve(calls):
        nonlocal state, now
        for gap_us, cost in calls:
            now += gap_us
            state, granted, _, is_taken = line.reserve(state, now, (cost, 2**51, 1))
            assert is_taken
            yield Grant(*granted)

    waiting = [*reserve(before)]
    line, state = off, off.adopt(state, queue, now)
    _, standing, *_ = off.follow(state, now)
    for one in waiting:
        if one.due_us > now and one.generation != standing[0]:
            assert followed(one, standing[-2], queue.constraints).due_us <= now + NOTICE_US + 1
        departures.append((min(one.due_us, now), one.cost))
    lifted = [*reserve(during)]
    assert not any(one.wait_us for one in lifted)
    line, state = queue, queue.adopt(state, off, now)
    departures += [(one.due_us, one.cost) for one in (*lifted, *reserve(since))]
    for last, _ in departures[-len(since) :]:
        assert sum(cost for due, cost in departures if begins(last) <= due <= last) <= LIMIT


BESIDE = {
    "meter": GCRA("1/s", burst=3),
    "log": SlidingWindowLog(3, 3),
    "ring": SlidingWindow(3, 3),
    "window": FixedWindow(3, 3),
    "rolling quota": Quota("3/rolling:3s"),
    "quota": Quota("3/fixed:3s"),
    "spread quota": Quota("3/fixed:3s", spread=True),
}


def waits_after(gate, rate, waiting):
    """How long newcomers wait at a rate that an operator sets, once the waiting calls are all cancelled."""
    own = LeakyQueue((Rate.parse("4/s"),), 1, "smooth", (gate,))
    state, grants = None, []
    for _ in range(1 + waiting):
        state, granted, *_ = own.reserve(state, START, (1, 2**51, 5))
        grants.append(Grant(*granted))
    queue = overridden(own, rates=(Rate.parse(rate),))
    state = queue.adopt(state, own, START)
    _, standing, *_ = queue.follow(state, START + 1)
    for grant in reversed(grants[1:]):
        state, is_back, *_ = queue.cancel(state, START + 1, followed(grant, standing[-2], own.constraints))
        assert is_back
    return [Grant(*queue.reserve(state, START + 1, (cost, 2**51, 5))[1]).wait_us for cost in (1, 2, 3)]


@pytest.mark.parametrize("rate", ["4/s", "8/s"])
@pytest.mark.parametrize("gate", BESIDE.values(), ids=BESIDE)
def test_a_cancelled_call_leaves_no_trace_where_no_call_was_moved(gate, rate):
    assert waits_after(gate, rate, 7) == waits_after(gate, rate, 0)


@pytest.mark.parametrize(
    "limit", [FixedWindow(LIMIT, 60), Quota(LIMIT, "fixed:60s")], ids=["window", "quota"]
)
@pytest.mark.parametrize("then", ["unset", "more", "off"])
def test_waiting_calls_leave_where_there_is_room_when_an_operators_hold_is_removed(limit, then):
    """Eight calls have left in this minute; five more came in the hold, and were put off by thirty days."""
    own = LeakyQueue((Rate.parse("1/s"),), 1, "smooth", (limit,))
    held = effective(own, Override(state="held"))
    more = overridden(own, gates=(type(limit)(20, "60s" if isinstance(limit, FixedWindow) else limit.per),))
    after = {"unset": own, "more": more, "off": effective(own, Override(state="off"))}[then]
    minute = 60 * SECOND
    now, state, grants = START - START % minute, None, []
    for line, calls in ((own, 8), (held, 5)):
        state = state and line.adopt(state, own, now)
        for _ in range(calls):
            state, granted, *_ = line.reserve(state, now, (1, 2**51, 5))
            grants.append(Grant(*granted))
        now += 20 * SECOND
    state = after.adopt(state, held, now)
    _, (_, shift, until, _, _, moves, _), *_ = after.follow(state, now)
    waiting = [followed(one, moves, own.constraints).due_us + shift for one in grants[8:]]
    leaves = {max(at, until) // minute - now // minute for at in waiting}
    assert leaves == ({1} if then == "unset" else {0})


@pytest.mark.parametrize("rates", [("5/s",), ("500/s",), ("5/s", "50/s", "1/s")])
@pytest.mark.parametrize("limit", [Quota("10/day"), FixedWindow(10, "1d")], ids=["quota", "window"])
def test_calls_that_wait_for_the_next_day_leave_when_it_begins(limit, rates):
    """By the ratio of the rates, they would leave in ten days, or in the day that is spent."""
    day = 86_400
    clock = ManualClock(day / 2)
    policy = Policy("100/s", gates=(limit,), clock=clock)
    for _ in range(10):
        policy.shaper.reserve()
    clock.advance(60)
    waiting = [policy.shaper.reserve(max_wait="2d") for _ in range(5)]
    for rate in rates:
        policy.configure(rate)
        leaves = [clock.now() + policy.shaper.remaining(slot) for slot in waiting]
        waiting.append(policy.shaper.reserve(max_wait="2d"))
        clock.advance(1)
    interval = 1 / int(rates[-1].removesuffix("/s"))
    assert leaves[0] == pytest.approx(day)
    assert all(after - before > interval - 2e-6 for before, after in pairwise(leaves[:5]))
