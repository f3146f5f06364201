"""How long the state of a queue is kept: until it is no different from a cold one, and no longer."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, Quota, SlidingWindowLog, any_of, first_of
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.rate import parse_rates

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
PLAIN = {
    "even": LeakyQueue(parse_rates("5/s"), 1, "smooth", ()),
    "an odd interval": LeakyQueue(parse_rates("7/s"), 1, "smooth", ()),
    "a burst": LeakyQueue(parse_rates("7/s"), 4, "smooth", ()),
    "hours": LeakyQueue(parse_rates("3/h"), 2, "smooth", ()),
}
FURTHER = {
    "two rates": LeakyQueue(parse_rates("7/s; 11/min"), 2, "smooth", ()),
    "in bursts": LeakyQueue(parse_rates("7/s"), None, "burst", ()),
    "beside a meter": LeakyQueue(parse_rates("7/s"), 2, "smooth", (GCRA("11/min", burst=3),)),
    "beside a window": LeakyQueue(parse_rates("7/s"), 2, "smooth", (FixedWindow("5/min"),)),
    "beside a log": LeakyQueue(parse_rates("7/s"), 2, "smooth", (SlidingWindowLog("5/min"),)),
    "beside a faster meter": LeakyQueue(parse_rates("7/min"), 3, "smooth", (GCRA("11/s", burst=3),)),
    "beside a quota": LeakyQueue(parse_rates("7/s"), 2, "smooth", (Quota("5/day"),)),
    "one after another": LeakyQueue(
        parse_rates("7/s"), 2, "smooth", (first_of(Quota("5/day"), GCRA("11/min", burst=3)),)
    ),
    "one of two": LeakyQueue(
        parse_rates("7/s"), 2, "smooth", (any_of(Quota("2/day"), GCRA("5/min", burst=3)),)
    ),
}
steps = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 3 * SECOND), st.integers(0, 3_600 * SECOND))
acts = st.sampled_from(["reserve", "reserve", "reserve", "cancel", "settle", "hold", "resume"])
stories = st.lists(st.tuples(steps, acts, st.integers(0, 30), st.integers(0, 3)), max_size=12)


def lived(queue, story):
    """The state after a story, the instant at its end, and until when the state is kept."""
    state, now, expires, grants = None, START, START, []
    for step, what, pick, number in story:
        now += step
        if now >= expires:
            state, grants = None, []
        if what == "reserve":
            cost = min(1 + number % 2, queue.max_cost)
            after, granted, ttl, persist = queue.reserve(state, now, (cost, None, now))
            grants += [Grant(*granted)] if granted[0] else []
        elif what == "hold":
            after, _, ttl, persist = queue.hold(state, now, number * SECOND, now)
        elif what == "resume":
            after, _, ttl, persist = queue.resume(state, now, SECOND // 2)
        elif not grants:
            continue
        elif what == "cancel":
            after, _, ttl, persist = queue.cancel(state, now, grants[pick % len(grants)])
        else:
            after, _, ttl, persist = queue.settle(state, now, (grants[pick % len(grants)], number, now))
        if persist:
            state, expires = after, now + ttl
    return state, now, expires


def taken(queue, state, now, calls):
    """The answers to so many calls in a row."""
    for _ in range(calls):
        state, granted, _, _ = queue.reserve(state, now, (1, None, now))
        yield granted[:6]


@pytest.mark.parametrize("queue", [*PLAIN.values(), *FURTHER.values()], ids=[*PLAIN, *FURTHER])
@given(story=stories, later=st.sampled_from([0, 0, 1, 1_000]))
@example(story=[(0, "hold", 0, 1), (0, "reserve", 0, 0), (0, "resume", 0, 0)], later=0)
def test_a_forgotten_state_is_no_different_from_a_cold_key(queue, story, later):
    state, now, expires = lived(queue, story)
    at = max(now, expires) + later
    assert [*taken(queue, state, at, 6)] == [*taken(queue, None, at, 6)]


@pytest.mark.parametrize("queue", PLAIN.values(), ids=PLAIN)
@given(story=stories)
def test_a_state_is_kept_until_all_of_the_burst_is_there(queue, story):
    state, now, _ = lived(queue, story)
    _, granted, ttl, _ = queue.reserve(state, now, (1, None, now))
    assert now + ttl <= queue.decision(granted).reset_at_us


@pytest.mark.parametrize("queue", FURTHER.values(), ids=FURTHER)
@given(story=stories)
def test_beside_other_limits_a_state_is_kept_no_longer_than_what_it_holds(queue, story):
    state, now, _ = lived(queue, story)
    after, _, ttl, _ = queue.reserve(state, now, (1, None, now))
    assert ttl <= queue._life(after, now, 0)
