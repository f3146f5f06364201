"""Every limit decides, field for field, as its model in exact rationals does."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, Quota, Rate, SlidingWindow, SlidingWindowLog

from .limits import (
    calendar_quotas,
    fixed_windows,
    logs,
    meters,
    sliding_windows,
    span_quotas,
    spread_calendar_quotas,
    spread_quotas,
)
from .reference import model_of
from .stories import Event, Story, stories


def calls(limits):
    return stories(limits, ("check",), back=False, most_events=25)


def follow(story: Story) -> None:
    """Make the calls of a story on the limit and on its model, and compare every answer."""
    limit, now = story.limit, story.start
    model = model_of(limit, story.skew)
    state = None
    for number, (_, step_us, cost) in enumerate(story.events):
        now += step_us
        outcome = limit.check(state, now, cost, story.skew)
        assert tuple(outcome.decision[:6]) == tuple(model.check(now, cost)), f"call {number} at {now}"
        if outcome.persist:
            state = outcome.state
    now += story.later_us
    assert tuple(limit.peek(state, now, story.skew)[:6]) == tuple(model.look(now, 1))
    wait = model.wait(now, story.cost)
    assert limit.earliest(state, now, story.cost, story.skew) == now + wait


@given(calls(meters()))
@example(Story(GCRA("3/s"), 1, (Event("check", 0, 2), Event("check", 333_333, 2)), 1, 3))
def test_a_meter_is_a_fluid_that_drains_at_the_rate(story):
    follow(story)


@given(calls(fixed_windows()))
@example(Story(FixedWindow("2/s"), 999_999, (Event("check", 0, 2), Event("check", 1, 2))))
def test_a_fixed_window_counts_what_came_since_its_start(story):
    follow(story)


@given(calls(sliding_windows()))
@example(Story(SlidingWindow(5, "1s", buckets=1), 0, (Event("check", 0, 5), Event("check", 1_000_001, 1)), 1))
@example(Story(SlidingWindow(3, "7us", buckets=3), 0, tuple(Event("check", 1, 1) for _ in range(20))))
def test_a_sliding_window_weighs_the_tick_that_leaves_it(story):
    follow(story)


@given(calls(logs()))
def test_a_log_counts_the_last_window(story):
    follow(story)


@settings(max_examples=20)
@given(
    st.integers(65, 150),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=8),
)
@example(65, [(1, 1)])
@example(150, [(3, 1)])
@example(100, [(12, 1)])
@example(120, [(0, 1), (30, 2), (1, 1)])
def test_a_log_with_many_entries_counts_the_last_window(limit, rhythm):
    """Some two hundred calls in a rhythm: entries move into the old part, and fade there."""
    log = SlidingWindowLog(limit, 0.001)
    calls = rhythm * (200 // len(rhythm))
    follow(Story(log, 0, tuple(Event("check", *call) for call in calls)))


@given(calls(span_quotas()))
def test_a_quota_of_equal_spans_counts_its_span(story):
    follow(story)


@given(calls(calendar_quotas))
@example(
    Story(
        Quota(1, "day", tz="Europe/Berlin"), 1_711_753_200_000_000, (Event("check", 0, 1),), 23 * 3600 * 10**6
    )
)
@example(Story(Quota(1, "month", anchor_day=31), 1_709_121_600_000_000, (Event("check", 0, 1),), 0))
def test_a_quota_counts_what_came_since_the_last_boundary_of_the_calendar(story):
    follow(story)


@given(calls(st.one_of(spread_quotas(), spread_calendar_quotas)))
@example(Story(Quota(12, "fixed:7us", spread=True), 0, tuple(Event("check", 1, 1) for _ in range(9)), 0))
@example(
    Story(Quota(3, "fixed:10000000us", spread=True), 0, (Event("check", 0, 2), Event("check", 6_666_667, 1)))
)
def test_a_spread_quota_gives_each_call_its_part_of_the_time_that_is_left(story):
    follow(story)


@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(1, 10**4), st.data())
def test_a_meter_of_any_rate_agrees_with_the_fluid(limit, period_us, burst, data):
    limit = min(limit, 1_000 * period_us)
    gcra = GCRA(Rate.of(limit, period_us), burst)
    interval_us = period_us // limit + 1
    moves = st.tuples(st.integers(0, 3 * interval_us), st.integers(1, burst))
    events = tuple(Event("check", *move) for move in data.draw(st.lists(moves, max_size=25)))
    follow(Story(gcra, data.draw(st.integers(0, 4 * 10**15)), events, 0, burst))
