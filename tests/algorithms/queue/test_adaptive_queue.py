"""The queue on a clock of variable speed: order, bounds and books, under any changes of its rate."""

from fractions import Fraction
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit.algorithms.queue.adaptive import FULL, KEPT_US, LEAST, THROTTLED, AdaptiveQueue, real
from shapekit.algorithms.queue.slots import Grant
from shapekit.rate import Rate

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
QUEUES = st.builds(
    AdaptiveQueue,
    st.sampled_from([Rate.of(1, SECOND), Rate.of(3, 7_000_003)]),
    st.sampled_from([Rate.of(50, SECOND), Rate.of(7, 999_983)]),
    st.sampled_from([None, 4]),
)

STEPS = st.one_of(
    st.tuples(st.just("reserve"), st.integers(1, 3)),
    st.tuples(st.just("reserve"), st.just(1)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("hold"), st.integers(1, 5 * SECOND)),
    st.tuples(st.just("resume"), st.integers(0, SECOND)),
    st.tuples(st.just("throttled"), st.integers(0, 2 * SECOND), st.integers(0, 2 * SECOND)),
    st.tuples(st.just("succeeded"), st.integers(0, 20), st.integers(0, 2 * SECOND)),
    st.tuples(st.just("stated"), st.integers(FULL // 100, FULL), st.integers(0, 2 * SECOND)),
)
FORWARD = st.lists(st.tuples(st.integers(0, 3 * SECOND), STEPS), max_size=40)
ANYHOW = st.lists(st.tuples(st.integers(-SECOND // 2, 3 * SECOND), STEPS), max_size=40)


class Step(NamedTuple):
    now: int
    step: tuple
    state: object
    answer: object


def played(queue, story):
    """The time, step, state and answer after each step."""
    state, now, grants = None, START, []
    for move, step in story:
        now += move
        match step:
            case "reserve", cost:
                after, answer, _, persist = queue.reserve(state, now, (cost, None, 7))
                grants.append(Grant(*answer))
            case "cancel", number:
                if number >= len(grants):
                    continue
                after, answer, _, persist = queue.cancel(state, now, grants[number])
            case "settle", number, actual:
                if number >= len(grants):
                    continue
                after, answer, _, persist = queue.settle(state, now, (grants[number], actual, 7))
            case "resume", notice:
                after, answer, _, persist = queue.resume(state, now, notice)
            case name, *args:
                after, answer, _, persist = getattr(queue, name)(state, now, *args, 7)
        state = after if persist else state
        yield Step(now, step, state, answer)


def leaves(queue, state, now, due):
    """When a slot is due, as a waiting call computes it."""
    _, _, until, _, _, *clock = queue.confirm(state, now)
    return real(until, *clock, due)


@given(QUEUES, ANYHOW)
def test_waiting_calls_keep_their_order_whatever_becomes_of_the_rate(queue, story):
    dues = []
    for now, step, state, answer in played(queue, story):
        if step[0] == "reserve":
            dues.append(answer[10])
            assert now + answer[1] == answer[2] == max(now, leaves(queue, state, now, answer[10]))
        if dues:
            instants = [leaves(queue, state, now, due) for due in sorted(dues)]
            assert instants == sorted(instants)


@example(
    AdaptiveQueue(Rate.of(1, SECOND), Rate.of(50, SECOND), None),
    [(0, ("reserve", 1)), (0, ("reserve", 1)), (0, ("cancel", 0)), (0, ("reserve", 1))],
)
@given(QUEUES, FORWARD)
def test_the_whole_burst_is_there_at_reset_at_and_not_before(queue, story):
    """As of a gate: `reset_at` is when all of it may leave at once, if no other call comes."""
    for now, step, state, answer in played(queue, story):
        if step[0] != "reserve":
            continue
        decision = queue.decision(Grant(*answer))
        assert decision.remaining == max(0, queue.burst - decision.current)
        clock = queue.confirm(state, now)[5:]
        rounded = 1 + -(-FULL // clock[1]) if clock else 1
        for at, is_there in ((decision.reset_at_us + rounded, True), (decision.reset_at_us - rounded, False)):
            if at >= now:
                assert queue.reserve(state, at, (queue.burst, 0, 7))[1][0] is is_there


@given(QUEUES, ANYHOW)
def test_a_lower_rate_moves_no_call_forward_and_a_higher_one_none_back(queue, story):
    """But for a microsecond of the clock, which is lost where it begins to run at another speed."""
    before, dues = None, []
    for now, step, state, answer in played(queue, story):
        if before is not None and step[0] in ("throttled", "succeeded", "stated", "hold", "resume"):
            clock = queue.confirm(before, now)[5:]
            rounded = 1 + -(-FULL // clock[1]) if clock else 1
            for due in dues:
                was = max(now, leaves(queue, before, now, due))
                is_now = max(now, leaves(queue, state, now, due))
                match step[0]:
                    case "resume":
                        assert is_now <= was
                    case "hold":
                        held = [max(now, queue.confirm(of, now)[2]) for of in (before, state)]
                        if was > now:
                            assert abs(is_now - was - (held[1] - held[0])) <= rounded
                    case "throttled":
                        assert is_now >= was - rounded
                    case "succeeded":
                        assert is_now <= was + rounded
        if step[0] == "reserve":
            dues.append(answer[10])
        before = state


@example(
    AdaptiveQueue(Rate.of(1, SECOND), Rate.of(50, SECOND), None),
    [(0, ("reserve", 1)), (0, ("reserve", 1)), (SECOND // 2, ("succeeded", 5, 0))],
)
@example(
    AdaptiveQueue(Rate.of(1, SECOND), Rate.of(50, SECOND), None),
    [
        (0, ("reserve", 1)),
        (0, ("reserve", 1)),
        (SECOND // 4, ("hold", SECOND)),
        (9, ("stated", FULL // 100, 0)),
    ],
)
@given(QUEUES, FORWARD)
def test_what_a_call_has_waited_for_at_one_rate_counts_at_the_next(queue, story):
    """The time that the clock shows is the sum of all shares that it has run at, without the holds."""
    sum_us, share, last, held_until, changes, dues = None, 0, 0, 0, 0, []
    for now, step, state, answer in played(queue, story):
        if sum_us is None and state is not None:
            sum_us = Fraction(now)
        elif sum_us is not None:
            sum_us += Fraction(max(0, now - max(last, held_until)) * share, FULL)
        match step[0]:
            case "reserve":
                dues.append(answer[10])
            case "hold" | "resume":
                held_until = now + answer
            case "throttled":
                held_until = now + answer[2]
        changes += step[0] not in ("reserve", "cancel", "settle")
        if state is None:
            continue
        last, share = now, queue.confirm(state, now)[6]
        rounded = (changes + 2) * (1 + -(-FULL // share))
        for due in dues:
            if due > sum_us + 1:
                expected = max(now, held_until) + (due - sum_us) * FULL / share
                assert abs(leaves(queue, state, now, due) - expected) <= rounded


@given(QUEUES, FORWARD)
def test_no_more_calls_leave_than_the_rate_allows(queue, story):
    """In any span as many units as the rate of each moment adds up to, and the burst: a hold is a rate of 0.

    The sum is computed here, from the shares and holds in the answers of the queue.
    """
    spans = []  # from, to, share
    waiting, gone = {}, []
    now, share, held_until = START, queue.least, START
    for number, (at, step, state, answer) in enumerate(played(queue, story)):
        if held_until > now:
            spans.append((now, min(at, held_until), 0))
        spans.append((min(at, max(now, held_until)), at, share))
        _leave(waiting, gone, at)
        now = at
        _, _, until, _, _, *clock = queue.confirm(state, at)
        share, held_until = (clock[1], until) if clock else (queue.least, at)
        if step[0] == "reserve":
            waiting[number] = (answer[10], answer[5], None)
        if step[0] in ("cancel", "settle"):
            return  # other calls may take what is given back: only the state of the queue has that
        for place, (due, cost, _) in waiting.items():
            waiting[place] = (due, cost, leaves(queue, state, at, due))
    spans.append((min(now + 100 * SECOND, max(now, held_until)), now + 100 * SECOND, share))
    _leave(waiting, gone, now + 100 * SECOND)
    gone.sort()
    per_us = Fraction(queue.highest.limit, queue.highest.period_us)
    for first in range(len(gone)):
        for last in range(first + 1, len(gone)):
            units = sum(cost for _, cost in gone[first:last])
            room = sum(
                Fraction(max(0, min(end, gone[last][0]) - max(start, gone[first][0])) * part, FULL)
                for start, end, part in spans
            )
            most = max(queue.burst, gone[last][1])
            # Each change of the rate rounds to the microsecond.
            assert units + gone[last][1] <= most + (room + len(story) + 2) * per_us


def _leave(waiting, gone, until):
    for place, (_, cost, instant) in list(waiting.items()):
        if instant is not None and instant <= until:
            gone.append((instant, cost))
            del waiting[place]


@given(QUEUES, ANYHOW)
def test_the_rate_is_within_its_bounds(queue, story):
    for now, step, state, answer in played(queue, story):
        if step[0] in ("throttled", "succeeded", "stated"):
            before, after, held = answer
            assert after == queue.confirm(state, now)[6]
            assert before <= FULL
            assert held >= 0
        clock = queue.confirm(state, now)[5:]
        if clock:
            cap = state[7][7]
            assert min(queue.least, cap) <= clock[1] <= cap


@given(QUEUES, FORWARD, st.integers(0, 30 * SECOND))
def test_a_wait_that_is_too_long_is_refused_and_changes_nothing(queue, story, max_wait):
    for now, _, state, _ in played(queue, story):
        unbounded = queue.reserve(state, now, (1, None, 7))
        bounded = queue.reserve(state, now, (1, max_wait, 7))
        assert bounded[1][0] is (unbounded[1][1] <= max_wait)
        assert bounded[1][1] == unbounded[1][1]
        exactly = unbounded[1][1]
        assert queue.reserve(state, now, (1, exactly, 7))[:2] == unbounded[:2]
        assert not exactly or not queue.reserve(state, now, (1, exactly - 1, 7))[1][0]
        if not bounded[1][0]:
            assert (bounded[0], bounded[3]) == (state, False)
            denied = bounded[1][4].retry_after_us
            assert denied == unbounded[1][1] - max_wait


@given(QUEUES, ANYHOW)
def test_the_learned_rate_outlives_the_last_call_by_an_hour_and_no_more(queue, story):
    for now, _, state, _ in played(queue, story):
        if state is None:
            continue
        tail = -(-state[0] // queue.q)
        ends = max(now, leaves(queue, state, now, tail)) if queue.confirm(state, now)[5:] else now
        assert queue.confirm(state, ends + KEPT_US - 1)[0] == state[2] or ends == now
        assert queue.confirm(state, ends + KEPT_US)[0] == -1
        assert (
            queue.reserve(state, ends + KEPT_US, (1, None, 9))[:2]
            == queue.reserve(None, ends + KEPT_US, (1, None, 9))[:2]
        )


@given(QUEUES, ANYHOW)
def test_a_state_comes_back_from_the_twin_as_it_was(queue, story):
    for _, _, state, _ in played(queue, story):
        if state is not None:
            assert queue.state_received(queue.state_sent(state)) == state


@given(QUEUES, QUEUES, FORWARD)
def test_other_bounds_continue_at_the_rate_that_was_found(queue, other, story):
    for now, _, state, _ in played(queue, story):
        if state is None or not queue.confirm(state, now)[5:]:
            continue
        after = other.adopt(state, queue, now)
        _, _, until, _, _, _, share = queue.confirm(state, now)
        rate, adopted = queue.per_second(share), other.per_second(other.confirm(after, now)[6])
        wished = min(max(rate, other.lowest.per_second), other.highest.per_second)
        if state[7][7] == FULL:
            assert abs(adopted / wished - 1) < 0.01
        held = max(0, other.confirm(after, now)[2] - now)
        assert held == max(0, until - now)
        ends = leaves(queue, state, now, -(-state[0] // queue.q))
        kept = leaves(other, after, now, -(-after[0] // other.q))
        if ends > max(now, until) and adopted == rate:
            assert kept >= ends - 1


def test_a_hold_ends_without_a_burst():
    """The burst of an idle queue is not saved up while the key is held."""
    queue = AdaptiveQueue(Rate.of(1, SECOND), Rate.of(50, SECOND), 4)
    state, waits = queue.hold(None, START, 5 * SECOND, 7)[0], []
    for _ in range(3):
        state, granted, _, _ = queue.reserve(state, START, (1, None, 7))
        waits.append(round(granted[1] / SECOND, 4))
    assert waits == [5, 6, 7]


def test_a_slot_that_was_given_back_changes_nothing_again():
    queue = AdaptiveQueue(Rate.of(1, SECOND), Rate.of(50, SECOND), None)
    state, answer, _, _ = queue.reserve(None, START, (1, None, 7))
    grant = Grant(*answer)
    state, given_back, _, is_new = queue.cancel(state, START - 1, grant)
    assert (given_back, is_new) == (True, True)
    assert queue.cancel(state, START - 1, grant) == (state, False, 0, False)


def test_the_smallest_share_there_is_still_moves():
    queue = AdaptiveQueue(Rate.of(1, 10**6 * SECOND), Rate.of(1, SECOND), None)
    assert queue.least >= LEAST
    state = queue.reserve(None, START, (1, None, 7))[0]
    assert 0.99e12 < queue.reserve(state, START, (1, None, 7))[1][1] <= 1e12


def test_the_share_learned_by_a_part_is_converted_to_shares_of_the_whole():
    whole, part = (AdaptiveQueue(Rate.of(1, SECOND), Rate.of(most, SECOND), None) for most in (100, 25))
    assert THROTTLED.given(whole, part, (8, 6, 3)) == (2, 2, 3)
