"""Many slots in one transaction are the same slots that come one right after the other."""

from hypothesis import given
from hypothesis import strategies as st

from shapekit import Quota
from shapekit.algorithms.queue.slots import Grant
from shapekit.testing.timelines import queue, queues

SECOND = 1_000_000
QUEUES = st.sampled_from([trial.program for trial in queues()])
NONCES = st.integers(0, 2**51)
CALLS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([None, 0, 300_000, 5 * SECOND]), NONCES), max_size=4
)
FURTHER = st.tuples(st.integers(0, 6), st.integers(0, 2 * SECOND), NONCES)
NOISE = st.lists(
    st.tuples(st.sampled_from(["reserve", "cancel", "hold", "wait"]), st.integers(0, 800_000)), max_size=12
)


def after(program, noise, start):
    """The state that a short history leaves, and the time then."""
    state, now, grants = None, start, []
    for what, number in noise:
        if what == "reserve":
            state, granted, _, _ = program.reserve(state, now, (1 + number % 2, None, 5))
            grants.append(Grant(*granted))
        elif what == "cancel" and grants:
            grant = grants[number % len(grants)]
            if grant.accepted:
                state, *_ = program.cancel(state, now, grant)
        elif what == "hold":
            state, *_ = program.hold(state, now, number + 1, 5)
        else:
            now += number
    return state, now


def one_by_one(program, state, now, calls, further):
    """What callers get one after the other, and then further ones that want one each, near the first."""
    most, span, nonce = further
    answers, first_us = [], None
    for one in calls:
        new, granted, _, persists = program.reserve(state, now, one)
        state = new if persists else state
        answers.append(granted)
    for _ in range(most):
        bound = None if first_us is None else first_us + span
        new, granted, _, persists = program.reserve(state, now, (1, bound, nonce))
        if not granted[0]:
            break
        state = new if persists else state
        first_us = granted[1] if first_us is None else first_us
        answers.append(granted)
    return state, answers


@given(QUEUES, NOISE, CALLS, FURTHER, st.integers(10**9, 10**15))
def test_slots_taken_together_are_the_slots_of_calls_one_by_one(program, noise, calls, further, start):
    before, now = after(program, noise, start)
    expected_state, expected = one_by_one(program, before, now, calls, further)
    state, (standing, answers), life, persists = program.reserve_many(before, now, calls, further)
    assert list(answers) == expected
    assert persists is any(granted[0] for granted in expected)
    if persists:
        assert state == expected_state
        assert life >= max(granted[1] for granted in expected if granted[0])
    else:
        assert state is before
    assert standing == program.confirm(expected_state if persists else before, now)


@given(QUEUES, NOISE, FURTHER, st.integers(0, 2 * SECOND), st.integers(10**9, 10**15))
def test_slots_given_back_together_go_one_by_one_from_the_last_to_the_first(
    program, noise, further, later_us, start
):
    before, now = after(program, noise, start)
    state, (_, taken), _, _ = program.reserve_many(before, now, (), further)
    grants = [Grant(*granted) for granted in taken]
    now += later_us
    expected, count = state, 0
    for grant in reversed(grants):
        new, is_back, _, persists = program.cancel(expected, now, grant)
        if not is_back:
            new, is_back, _, persists = program.settle(expected, now, (grant, 0, 0))
        expected = new if persists else expected
        count += bool(is_back)
    assert program.cancel_many(state, now, grants)[:2] == (expected, count)


@given(QUEUES, FURTHER, st.integers(10**9, 10**15))
def test_slots_given_back_at_once_leave_no_trace(program, further, start):
    before, _ = program.reserve(None, start, (1, None, 5))[:2]
    state, (_, taken), _, _ = program.reserve_many(before, start, (), further)
    after_all, *_ = program.cancel_many(state, start, [Grant(*granted) for granted in taken])
    calls = [(1, None, 9)] * 3
    expected = program.reserve_many(before, start, calls, (0, 0, 0))[1][1]
    assert [granted[1] for granted in program.reserve_many(after_all, start, calls, (0, 0, 0))[1][1]] == [
        granted[1] for granted in expected
    ]


@given(QUEUES, NOISE, st.integers(1, 6), st.integers(10**9, 10**15))
def test_the_further_slots_lie_within_their_span_and_cost_one(program, noise, most, start):
    state, now = after(program, noise, start)
    _, (_, taken), _, _ = program.reserve_many(state, now, (), (most, 400_000, 3))
    assert all(granted[5] == 1 for granted in taken)
    assert all(granted[1] - taken[0][1] <= 400_000 for granted in taken)


def test_a_spent_quota_ends_the_further_slots_and_refuses_no_later_call_because_of_them():
    """All of nine in ten seconds are taken, and the tenth waits until the first comes back."""
    program = queue("100/s", gates=(Quota("9/rolling:10s"),))
    state, (_, taken), _, _ = program.reserve_many(None, 10**12, (), (20, SECOND, 3))
    assert len(taken) == 9
    state, count, _, _ = program.cancel_many(state, 10**12, [Grant(*granted) for granted in taken])
    assert count == 9
    assert program.reserve(state, 10**12, (1, None, 3))[1][0]
