"""Holds: no call leaves before their end, then the rate goes on from its grid, in order, without a burst."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    ManualClock,
    QueueFullError,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
)
from shapekit.algorithms.queue.constraints import timeline
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.rate import Rate

from ..algorithms.queue.model import Model
from ..queue.stage import Stage

SECOND = 1_000_000


@pytest.fixture
def shaper(clock):
    return Shaper("10/s", clock=clock, name="api")


@pytest.fixture
def other(shaper):
    """Another worker's shaper of the same name on the same store."""
    return Shaper("10/s", store=shaper.core.store, name="api")


def spaced(first, count, step=0.1):
    return pytest.approx([first + n * step for n in range(count)], abs=1e-6)


def test_a_hold_by_another_shaper_moves_all_waiting_calls(stage, shaper, other):
    for name in range(10):
        stage.wait_for(shaper, name)
    stage.at(0.25, lambda: other.hold(2))
    stage.run()
    assert stage.names == list(range(10))
    assert stage.times[:3] == spaced(0, 3)
    assert stage.times[3:] == spaced(2.3, 7)


def test_new_calls_queue_behind_held_calls(stage, shaper, other):
    for name in range(5):
        stage.wait_for(shaper, name)
    stage.at(0.15, lambda: other.hold(1))
    stage.wait_for(shaper, "during", at=0.5)
    stage.wait_for(other, "at the end", at=1.15)
    stage.run()
    assert stage.names == [0, 1, 2, 3, 4, "during", "at the end"]
    assert stage.times[2:] == spaced(1.2, 5)


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_a_hold_on_an_idle_key_ends_without_a_burst(stage, clock, burst):
    shaper = Shaper("10/s", burst=burst, clock=clock)
    stage.at(0, lambda: shaper.hold(1))
    for name in range(8):
        stage.wait_for(shaper, name, at=0.1 + name / 20)
    stage.run()
    assert stage.names == list(range(8))
    assert stage.times == spaced(1, 8)


def test_calls_right_after_a_hold_find_no_burst(stage, clock):
    shaper = Shaper("10/s", burst=5, clock=clock)
    stage.at(0, lambda: shaper.hold(1))
    for name in range(4):
        stage.wait_for(shaper, name, at=1.0)
    stage.run()
    assert stage.times == spaced(1, 4)


def test_a_burst_is_saved_up_again_after_a_hold(clock):
    shaper = Shaper("10/s", burst=5, clock=clock)
    shaper.hold(1)
    clock.advance(1 + 4 * 0.1)
    assert [shaper.reserve().delay for _ in range(7)] == [0, 0, 0, 0, 0, 0.1, 0.2]


def test_a_hold_with_a_burst_in_the_queue_moves_it_as_it_is(stage, clock):
    shaper = Shaper("10/s", burst=3, clock=clock)
    for name in range(6):
        stage.wait_for(shaper, name)
    stage.at(0.05, lambda: shaper.hold(1))
    stage.run()
    assert stage.times == pytest.approx([0, 0, 0, 1.1, 1.2, 1.3])


def test_the_longest_hold_counts(stage, shaper, other):
    for name in range(3):
        stage.wait_for(shaper, name)
    lengths = []
    stage.at(0.05, lambda: lengths.append(shaper.hold(1)))
    stage.at(0.06, lambda: lengths.append(other.hold(0.5)))
    stage.at(0.55, lambda: lengths.append(other.hold(2)))
    stage.at(0.65, lambda: lengths.append(shaper.hold(1.9)))
    stage.run()
    assert lengths == pytest.approx([1, 0.99, 2, 1.9], abs=1e-6)
    assert stage.times == pytest.approx([0, 2.6, 2.7], abs=1e-6)


def test_one_hold_after_another(stage, shaper):
    for name in range(4):
        stage.wait_for(shaper, name)
    stage.at(0.05, lambda: shaper.hold(1))
    stage.at(1.15, lambda: shaper.hold(1))
    stage.run()
    assert stage.times == pytest.approx([0, 1.1, 2.2, 2.3], abs=1e-6)


def test_a_lifted_hold_releases_all_calls_in_order_a_quarter_of_a_second_later(stage, shaper, other):
    for name in range(3):
        stage.wait_for(shaper, name)
    stage.at(0.05, lambda: shaper.hold(30))
    for name in range(3, 6):
        stage.wait_for(other, name, at=name / 10)
    left = []
    stage.at(1, lambda: left.append(other.resume()))
    stage.run()
    assert left == [0.25]
    assert stage.names == list(range(6))
    assert stage.times == pytest.approx([0, 1.3, 1.4, 1.5, 1.6, 1.7], abs=1e-6)


def test_a_lifted_hold_moves_calls_with_distant_slots_too(stage, clock):
    shaper = Shaper("1/min", clock=clock)
    for name in range(3):
        stage.wait_for(shaper, name)
    stage.at(59, lambda: shaper.hold("20s"))
    stage.at(70, shaper.resume)
    stage.run()
    assert stage.times == pytest.approx([0, 71.25, 131.25], abs=1e-6)


def test_a_hold_that_ends_soon_anyway_is_not_prolonged_by_lifting_it(stage, shaper):
    left = []
    stage.at(0, lambda: shaper.hold(1))
    stage.at(0.9, lambda: left.append(shaper.resume()))
    stage.wait_for(shaper, "held", at=0.5)
    stage.run()
    assert left == pytest.approx([0.1], abs=1e-6)
    assert stage.times == [1.0]


def test_there_is_nothing_to_lift_where_nothing_is_held(shaper):
    assert shaper.resume() == 0.0
    shaper.reserve()
    assert shaper.resume() == 0.0
    assert shaper.reserve().delay == 0.1


def test_a_hold_that_has_ended_cannot_be_lifted(clock, shaper):
    shaper.hold(1)
    clock.advance(2)
    assert shaper.resume() == 0.0
    assert shaper.reserve().delay == 0.0


def test_other_keys_are_not_held(stage, shaper):
    stage.at(0, lambda: shaper.hold(10))
    stage.wait_for(shaper, "other", at=0.1, key="other")
    stage.wait_for(shaper, "held", at=0.1)
    stage.run()
    assert stage.left == [("other", 0.1), ("held", 10.0)]


def test_a_call_that_may_not_wait_is_refused_while_held(clock, shaper):
    shaper.hold(1)
    refused = shaper.reserve(max_wait=0)
    assert not refused
    assert refused.delay == 1.0
    clock.advance(1)
    assert shaper.reserve(max_wait=0)


def test_a_call_that_cannot_wait_through_a_hold_gives_its_slot_back(stage, shaper):
    """It raises when it learns of the hold: at the moment its slot would have come."""
    for name in range(3):
        stage.wait_for(shaper, name)
    stage.wait_for(shaper, "hurried", max_wait=1.0)
    stage.wait_for(shaper, "patient", max_wait=10.0)
    stage.at(0.15, lambda: shaper.hold(5))
    stage.wait_for(shaper, "newcomer", at=2)
    stage.run()
    at, error = stage.errors["hurried"]
    assert isinstance(error, QueueFullError)
    assert (error.key, error.max_wait, error.held) == ("default", 1.0, True)
    assert error.delay == pytest.approx(5.3)
    assert error.retry_after == pytest.approx(4.3)
    assert at == pytest.approx(0.3)
    assert stage.names == [0, 1, 2, "newcomer", "patient"]
    assert stage.times[2:] == pytest.approx([5.2, 5.3, 5.4], abs=1e-6)


def test_a_hold_within_max_wait_is_waited_through(stage, shaper):
    stage.wait_for(shaper, 0)
    stage.wait_for(shaper, 1, max_wait=1.0)
    stage.at(0.05, lambda: shaper.hold(0.9))
    stage.run()
    assert stage.errors == {}
    assert stage.times == [0, 1.0]


def test_a_call_with_a_timeout_times_out_in_the_middle_of_a_hold(stage, shaper):
    stage.wait_for(shaper, 0)
    stage.wait_for(shaper, "gives up", timeout=2.0)
    stage.wait_for(shaper, "stays")
    stage.at(0.05, lambda: shaper.hold(5))
    stage.wait_for(shaper, "newcomer", at=3)
    stage.run()
    at, error = stage.errors["gives up"]
    assert isinstance(error, TimeoutError)
    assert at == 2.0
    assert stage.names == [0, "newcomer", "stays"]
    assert stage.times == pytest.approx([0, 5.1, 5.2], abs=1e-6)


def test_threads_are_held_and_let_go_too(crew, by_hand, until_asleep):
    shaper = Shaper("10/s", clock=by_hand, name="api")
    other = Shaper("10/s", store=shaper.core.store, name="api")
    shaper.reserve()
    left = []

    def wait(name):
        shaper.schedule()
        left.append((name, round(by_hand.now() - 1_000, 6)))

    for name in range(4):
        crew.start(wait, name)
        until_asleep(by_hand, name + 1)
    by_hand.advance(0.15)
    other.hold(30)
    by_hand.advance(10)
    assert left == [(0, 0.1)]
    other.resume()
    by_hand.advance(3)
    crew.join()
    assert left == [(0, 0.1), (1, 10.45), (2, 10.55), (3, 10.65)]


@pytest.mark.parametrize("length", [0, -1, float("nan"), float("inf"), True, None, "", "soon", "1 month"])
def test_wrong_lengths_of_a_hold_are_refused(shaper, refused, length):
    refused(lambda: shaper.hold(length), "length", "unit")
    assert shaper.reserve().delay == 0.0


def test_the_awaitable_forms_do_the_same(stage, shaper):
    lengths = []

    async def hold_and_lift():
        lengths.append(await shaper.ahold(10))
        lengths.append(await shaper.ahold(1))
        lengths.append(await shaper.aresume())

    stage.at(0, hold_and_lift)
    stage.wait_for(shaper, "held")
    stage.run()
    assert lengths == [10, 10, 0.25]
    assert stage.left == [("held", 0.25)]


events = st.tuples(
    st.integers(0, 300),
    st.one_of(
        st.tuples(st.just("hold"), st.integers(1, 200)),
        st.tuples(st.just("resume"), st.just(0)),
        st.tuples(st.just("come"), st.integers(1, 3)),
        st.tuples(st.just("come"), st.just(1)),
    ),
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=120)
@given(st.integers(1, 4), st.lists(events, min_size=2, max_size=14))
def test_waiting_calls_leave_when_the_model_expects(backend, burst, events):
    """Instants in hundredths of a second; each event some microseconds beside, so that none coincide."""
    clock = ManualClock(1_000, autojump=True)
    shaper = Shaper("10/s", burst=burst, clock=clock)
    model = Model(10, SECOND, burst, clock.now_us())
    stage, expected = Stage(backend, clock), {}
    for number, (hundredth, (what, size)) in enumerate(sorted(events)):
        at_us = hundredth * 10_000 + 13 * number + 1
        model.advance(1_000 * SECOND + at_us - model.now)
        if what == "hold":
            model.hold(size * 10_000)
            stage.at(at_us / SECOND, lambda size=size: shaper.hold(size / 100))
        elif what == "resume":
            model.resume()
            stage.at(at_us / SECOND, shaper.resume)
        else:
            expected[number] = model.reserve(size, None)[0]
            stage.wait_for(shaper, number, at=at_us / SECOND, cost=size)
    model.advance(10_000 * SECOND)
    stage.run()
    assert dict(stage.left) == {
        name: (call.left_at - 1_000 * SECOND) / SECOND for name, call in expected.items()
    }
    assert stage.names == sorted(expected)


@pytest.mark.parametrize(
    "gate",
    [SlidingWindowLog(3, "10s"), FixedWindow(3, "10s"), SlidingWindow(3, "10s"), GCRA("3/10s", burst=3)],
)
def test_after_a_hold_a_state_lives_until_its_limits_are_as_good_as_cold_and_no_longer(gate):
    queue = LeakyQueue([Rate.of(5, SECOND)], None, "smooth", [gate])
    state, *_ = queue.reserve(None, 1_000 * SECOND, (1, None, 7))
    state, *_ = queue.hold(state, 1_001 * SECOND, 20 * SECOND, 7)
    now = 1_030 * SECOND
    for _ in range(3):
        state, _, life, _ = queue.reserve(state, now, (1, None, 7))
        shift = state[5]
        # No call waits, and only limits that save up a burst stand still.
        assert shift == (20 * SECOND if isinstance(gate, GCRA) else 0)
        real, skew = timeline(gate, (shift, 0, now))
        full_at_us = gate.forecast(state[7][0], now - shift + real, 1, skew).full_at_us - real
        assert now + life == full_at_us + shift
        assert life == queue.constraints.lasts(state[7], now - shift, (shift, 0, now))
