"""What windows promise about any window, counted from what they admitted and nothing else."""

from fractions import Fraction
from math import ceil

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import FixedWindow, Quota, SlidingWindow, SlidingWindowLog
from shapekit.algorithms import rows
from shapekit.rate import MAX_COUNT, SECOND_US

from .limits import exactly, few, fixed_windows, logs, sliding_windows, spans_us
from .stories import Event, Story, stories

crowded = {"whats": ("check",), "back": False, "most_events": 40}


def admitted(story):
    """(instant, cost) of each admission; (instant, cost, admissions before it) of each denial."""
    state, now, charges, denials = None, story.start, [], []
    for _, step_us, cost in story.events:
        now += step_us
        outcome = story.limit.check(state, now, cost, story.skew)
        if outcome.persist:
            state = outcome.state
            charges.append((now, cost))
        else:
            denials.append((now, cost, tuple(charges)))
    return charges, denials


def units(charges, after, until):
    """Units in the half-open span from just after one instant to another."""
    return sum(cost for at, cost in charges if after < at <= until)


@given(stories(logs(), **crowded))
def test_a_log_never_exceeds_its_limit_in_any_window_and_denies_for_nothing_else(story):
    log = story.limit
    charges, denials = admitted(story)
    for at, _ in charges:
        assert units(charges, at - log.window_us, at) <= log.limit
    for at, cost, before in denials:
        assert units(before, at - log.window_us, at) + cost > log.limit


@given(
    stories(
        st.builds(
            lambda n, span: Quota(n, f"rolling:{span}us"), st.integers(990, 1_010), st.integers(10, 10**7)
        ),
        **crowded,
    )
)
def test_a_rolling_quota_never_exceeds_its_limit_above_and_below_the_exact_bound(story):
    span_us = int(story.limit.per.removeprefix("rolling:").removesuffix("us"))
    charges, _ = admitted(story)
    for at, _ in charges:
        assert units(charges, at - span_us, at) <= story.limit.limit


@given(stories(sliding_windows().filter(lambda window: window.conservative), **crowded))
@example(
    Story(
        SlidingWindow(2, exactly(7), buckets=3, conservative=True),
        8,
        tuple(Event("check", 1, 1) for _ in range(20)),
    )
)
def test_a_conservative_window_is_never_over_and_at_most_a_bucket_under(story):
    window = story.limit
    tick = ceil(Fraction(window.window_us, window.buckets))
    charges, denials = admitted(story)
    for at, _ in charges:
        assert units(charges, at - window.window_us, at) <= window.limit
    for at, cost, before in denials:
        held_us = (window.buckets + 1) * tick
        assert units(before, at - held_us, at) + cost > window.limit


@given(stories(sliding_windows().filter(lambda window: not window.conservative), **crowded))
@example(
    Story(
        SlidingWindow(10, exactly(10**6), buckets=1),
        999_999,
        (*[Event("check", 0, 1)] * 10, Event("check", 10**6, 9)),
    )
)
def test_a_sliding_window_errs_by_at_most_its_oldest_bucket(story):
    window = story.limit
    tick = ceil(Fraction(window.window_us, window.buckets))
    span_us = tick * window.buckets
    charges, denials = admitted(story)

    def oldest(at):
        place = at // tick - window.buckets
        return sum(cost for charge_at, cost in charges if charge_at // tick == place)

    for at, _ in charges:
        assert units(charges, at - span_us, at) <= window.limit + oldest(at)
    for at, cost, before in denials:
        assert units(before, at - span_us, at) + cost > window.limit - oldest(at)


@given(stories(fixed_windows(), **crowded))
def test_a_fixed_window_admits_its_limit_in_each_window_and_denies_for_nothing_else(story):
    window = story.limit
    charges, denials = admitted(story)
    for at, _ in charges:
        start = at - at % window.window_us
        assert units(charges, start - 1, start + window.window_us - 1) <= window.limit
    for at, cost, before in denials:
        assert units(before, at - at % window.window_us - 1, at) + cost > window.limit


@given(few, st.integers(2, 10**7), st.integers(0, 10**6))
def test_twice_the_limit_of_a_fixed_window_fits_around_an_edge_and_no_more(limit, span_us, number):
    window, edge = FixedWindow(limit, exactly(span_us)), (number + 1) * span_us
    before = window.check(None, edge - 1, limit)
    assert not window.check(before.state, edge - 1, 1).decision.allowed
    after = window.check(before.state, edge, limit)
    assert after.decision.allowed
    assert not window.check(after.state, edge + span_us - 1, 1).decision.allowed


@given(st.integers(0, 60_000_000 - 1), st.integers(0, 42), st.integers(0, 18))
@example(15_000_000, 42, 18)
def test_two_counters_agree_with_the_published_example(elapsed_us, previous, current):
    """50 a minute, 42 in the last minute, 18 in the first quarter of this one: 42 * 0.75 + 18 = 49.5."""
    window = SlidingWindow(50, "1m", buckets=1)
    state = None
    for at, cost in ((0, previous), (60_000_000 + elapsed_us, current)):
        state = window.debit(state, at, cost).state if cost else state
    now = 60_000_000 + elapsed_us
    estimate = previous * (1 - Fraction(elapsed_us, 60_000_000)) + current
    assert window.peek(state, now).current == ceil(estimate)
    assert window.peek(state, now).allowed == (estimate + 1 <= 50)


@given(few, spans_us)
def test_a_log_frees_each_unit_exactly_as_it_leaves_the_window(limit, span_us):
    log, state, begins = SlidingWindowLog(limit, exactly(span_us + limit)), None, 10**12
    for n in range(limit):
        state = log.check(state, begins + n, 1).state
    for units in range(1, limit + 1):
        assert log.earliest(state, begins + limit, units) == begins + units - 1 + span_us + limit


def test_a_log_that_has_dropped_expired_units_is_read_as_one_that_counts_from_there():
    """On Redis totals go on where they were, and what has left is stored beside them."""
    sent = [1, 7, rows.text([(10, 8), (20, 10), (30, 11)])]
    assert SlidingWindowLog("9/s").state_received(sent) == ((10,), (1,), (20, 30), (3, 4))


def test_no_more_is_given_back_of_an_instant_than_was_charged_there():
    log = SlidingWindowLog("10/s")
    state = None
    for now, cost in ((100, 2), (200, 3), (300, 4)):
        state = log.check(state, now, cost).state
    state = log.refund_many(state, 300, ((200, 9),))
    assert log.peek(state, 300).current == 6


def test_a_debt_that_no_waiting_repays_is_counted_no_further():
    """The twin's sums stay exact in a double: no more units are owed, and no fewer."""
    window = SlidingWindow(1, "10s")
    state = None
    for _ in range(1_000):
        state = window.debit(state, 0, MAX_COUNT).state
    owed = sum(state[1:])
    assert owed == 1_000 * MAX_COUNT
    assert sum(window.debit(state, 0, 7).state[1:]) == owed


@given(gaps=st.lists(st.integers(0, 9), min_size=8, max_size=30))
def test_a_sliding_window_keeps_no_tick_that_has_left_it(gaps):
    window, now, state = SlidingWindow("1000/5s", buckets=5), 10**15, None
    for gap in gaps:
        now += gap * SECOND_US
        state = window.check(state, now, 1).state
        assert len(state) <= 1 + window.buckets + 1
