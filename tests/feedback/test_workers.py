"""Several workers on one shaper, in virtual time: refusals of one incident make one hold, not their sum."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, MemoryStore, Shaper
from shapekit.feedback import Feedback


class Workers:
    """Processes that share nothing but the store: each has a Feedback of its own."""

    def __init__(self, count):
        self.clock = ManualClock(1_780_056_000.0)
        store = MemoryStore(clock=self.clock)
        self.shapers = [Shaper("100/s", store=store, name="api") for _ in range(count)]
        self.feedbacks = [Feedback() for _ in range(count)]

    def answered(self, worker, status, headers, *, sent_at):
        """An answer arrives now, and its hint is placed. Returns when the current hold ends."""
        now = self.clock.now()
        hint = self.feedbacks[worker].read(status, headers, sent_at=sent_at, received_at=now)
        if hint is not None and hint.hold_s > 0:
            return now + self.shapers[worker].hold(hint.hold_s)
        return now

    def departs_in(self):
        """How long the next call waits, on any worker; takes no slot."""
        reservation = self.shapers[0].reserve()
        reservation.cancel()
        return reservation.delay


@pytest.fixture
def workers():
    return Workers(4)


def test_a_refusal_of_one_worker_holds_all(workers):
    workers.answered(0, 429, {"Retry-After": "2"}, sent_at=workers.clock.now())
    assert [shaper.reserve().delay for shaper in workers.shapers] == pytest.approx([2.0, 2.01, 2.02, 2.03])


def test_refusals_of_all_workers_make_one_hold(workers):
    start = workers.clock.now()
    for number in range(80):
        workers.answered(number % 4, 429, {}, sent_at=start)
        workers.clock.advance(0.001)
    # Worker 3 was the last to read its refusal: 3 ms after the first.
    assert workers.departs_in() == pytest.approx(1.003 - 0.080)


def test_late_answers_do_not_start_another_hold(workers):
    start = workers.clock.now()
    workers.answered(0, 429, {}, sent_at=start)
    workers.clock.advance(5.0)
    workers.answered(0, 429, {}, sent_at=start)
    assert workers.departs_in() == 0


def test_a_worker_without_earlier_refusals_takes_its_own_first_step(workers):
    """A limit of the promise: each process doubles on its own, so the second step may come later."""
    clock, taken = workers.clock, []
    for worker in (0, 1, 0, 1, 2, 3, 2):
        clock.advance(workers.departs_in())
        workers.answered(worker, 429, {}, sent_at=clock.now())
        taken.append(round(workers.departs_in(), 6))
    assert taken == [1, 1, 2, 2, 1, 1, 2]


answers = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.floats(0, 0.5),
        st.floats(0, 3),
        st.sampled_from([(429, {}), (429, {"Retry-After": "2"}), (503, {"Retry-After": "1"}), (200, {})]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(answers)
def test_no_answer_in_any_order_shortens_a_hold_and_none_adds_to_it(story):
    workers = Workers(4)
    end = workers.clock.now()
    for worker, passes, took, (status, headers) in story:
        workers.clock.advance(passes)
        now = workers.clock.now()
        workers.answered(worker, status, headers, sent_at=now - took)
        ends = now + workers.departs_in()
        wait_s = float(headers.get("Retry-After", 0)) or (16.0 if status == 429 else 0.0)
        assert ends >= max(end, now) - 2e-6
        assert ends <= max(end, now + wait_s) + 2e-6
        end = max(end, ends)
