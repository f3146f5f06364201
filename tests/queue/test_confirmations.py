"""A call that has waited asks again before leaving: one question a key, at most 10 ms old, shared by all."""

import threading
import time

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, MemoryStore, Shaper, StoreUnavailableError
from shapekit._queue import waiter as module
from shapekit._queue.waiter import FRESH_US, KeyStatus
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Twin, own_copy, run
from shapekit.algorithms.queue.wire import CONFIRM, HOLD, RESERVE, UNKNOWN

from .slow_store import FarStore, NotingStore, SlowStore, in_another_process
from .stage import Stage

PATIENCE_S = 20.0


def in_order_of_slots(stage):
    """The names in the order of their slots, which is that of the replies."""
    return sorted(stage.reservations, key=lambda name: stage.reservations[name].departs_at)


def shaper_on(store, rate="10/s", **options):
    return Shaper(rate, store=store, name="api", **options)


def confirmations_on(store):
    shaper = shaper_on(store)
    return shaper, KeyStatus(store, shaper.name, shaper.core.queue)


@pytest.mark.parametrize("kind", [SlowStore, FarStore])
def test_an_immediate_call_is_one_trip_and_a_delayed_one_two(stage, clock, kind):
    store = kind(clock, 0.01)
    shaper = shaper_on(store, "20/s")
    for name in range(5):
        stage.wait_for(shaper, name, at=name / 50)
    stage.run()
    assert store.trips == {RESERVE: 5, CONFIRM: 4}
    assert stage.names == list(range(5))


@pytest.mark.parametrize("kind", [SlowStore, FarStore])
def test_a_delayed_call_of_a_thread_is_two_trips(clock, kind):
    store = kind(clock, 0.01)
    shaper = shaper_on(store)
    for _ in range(5):
        shaper.schedule()
    assert store.trips == {RESERVE: 5, CONFIRM: 4}


@pytest.mark.parametrize("kind", [SlowStore, FarStore])
def test_a_hundred_calls_that_leave_close_together_ask_few_questions(stage, clock, kind):
    """Five that leave within 10 ms share one; no call is early, and none later than a trip explains."""
    store = kind(clock, 0.01)
    shaper = shaper_on(store, "500/s")
    for name in range(100):
        stage.wait_for(shaper, name)
    stage.run()
    assert store.trips[RESERVE] == 100
    assert 5 <= store.trips[CONFIRM] <= 100 / 500 / 0.01 + 1
    assert stage.names == in_order_of_slots(stage)
    promised = [stage.reservations[name].departs_at - 1_000 - store.ahead_s for name in stage.names]
    # The answer to the reservation took half a trip, and so does what a far store's time may be off by.
    assert all(
        due - 1e-9 <= left <= max(due, 0.01) + 0.02 for due, left in zip(promised, stage.times, strict=True)
    )


@pytest.mark.parametrize("crowd", [4, 40])
def test_calls_whose_replies_come_late_and_at_once_leave_in_order(anyio_backend, crowd):
    """All their slots have come by then, and trio wakes them in any order: often enough."""
    for _ in range(20):
        clock = ManualClock(1_000, autojump=True)
        shaper, stage = shaper_on(SlowStore(clock, 0.006), "5000/s"), Stage(anyio_backend, clock)
        shaper.reserve()
        for name in range(crowd):
            stage.wait_for(shaper, name)
        stage.run()
        assert stage.names == in_order_of_slots(stage)


def test_each_key_has_its_own_question(stage, clock):
    store = SlowStore(clock, 0.01)
    shaper = shaper_on(store)
    for name in range(6):
        stage.wait_for(shaper, name, key=f"key {name % 3}")
    stage.run()
    assert store.trips[CONFIRM] == 3
    assert len(stage.left) == 6


def test_a_store_that_answers_at_once_gets_every_question(stage, clock):
    store = NotingStore(clock)
    shaper = shaper_on(store, "1000/s")
    for name in range(10):
        stage.wait_for(shaper, name)
    stage.run()
    assert store.operations.count(CONFIRM) == 9


@pytest.mark.parametrize("kind", [SlowStore, FarStore])
@pytest.mark.parametrize("trip", [0.002, 0.01, 0.03])
def test_a_hold_by_another_process_takes_effect_within_fifty_milliseconds(stage, clock, kind, trip):
    store = kind(clock, trip)
    shaper, other = shaper_on(store, "200/s"), shaper_on(in_another_process(store), "200/s")
    for name in range(60):
        stage.wait_for(shaper, name)
    stage.at(0.1, lambda: other.ahold(1))
    stage.run()
    assert stage.names == in_order_of_slots(stage)
    assert len(stage.names) == 60
    placed = 0.1 + trip / 2
    assert [left for left in stage.times if placed + 0.05 < left < placed + 1] == []
    after = [left for left in stage.times if left >= placed + 1]
    assert len(after) > 20
    assert max(after) <= placed + 1 + len(after) / 200 + 0.03 + 2 * trip


class Scope:
    """Cancels a task from beside it."""

    def __init__(self, job):
        self._job = job

    async def run(self):
        with anyio.CancelScope() as self._scope:
            await self._job()

    def cancel(self):
        self._scope.cancel()


def test_a_cancelled_question_is_repeated_for_the_others(stage, clock):
    """The next caller asks again, for all that had relied on the first."""
    store = SlowStore(clock, 0.01)
    store.clock = clock
    shaper, confirmations = confirmations_on(store)
    shaper.hold(60)
    answers, begun = [], stage.now

    async def ask():
        answers.append((await confirmations.ask(TASKS, "default")).until_us)

    asker = Scope(ask)
    stage.at(begun, asker.run)
    for number in range(4):
        stage.at(begun + 0.001 * (number + 1), ask)
    stage.at(begun + 0.007, asker.cancel)
    stage.run()
    assert len(answers) == 4
    assert len(set(answers)) == 1
    assert store.trips[CONFIRM] == 2


def test_a_store_that_fails_fails_all_that_share_the_question_and_no_others(stage, clock):
    store = SlowStore(clock, 0.01)
    _, confirmations = confirmations_on(store)
    store.broken = StoreUnavailableError("away")
    failed, answers = [], []

    async def ask():
        try:
            answers.append(await confirmations.ask(TASKS, "default"))
        except StoreUnavailableError as error:
            failed.append(error)

    def mend():
        store.broken = None

    for number in range(5):
        stage.at(0.001 * number, ask)
    stage.at(0.0055, mend)
    stage.at(0.006, ask)
    stage.run()
    # Each has its own: one that is shared would collect the tracebacks of all.
    assert len({id(error) for error in failed}) == 5
    assert len(answers) == 1
    assert store.trips[CONFIRM] == 2


class TornError(Exception):
    def __init__(self, where, why):
        super().__init__(f"{where}: {why}")


def test_an_error_that_cannot_be_copied_is_shared():
    error = TornError("here", "that is why")
    assert own_copy(error) is error


class Wire:
    """Lets a question wait for its answer until the test allows it, in real time."""

    def __init__(self, twin):
        self.questions = 0
        self.answer = threading.Event()
        self._twin = twin

    def __call__(self, key):
        self.questions += 1
        assert self.answer.wait(PATIENCE_S)
        return self._twin.call(key)

    async def awaited(self, key):
        self.questions += 1
        return await self._twin.acall(key)


@pytest.fixture
def wired():
    store = SlowStore(ManualClock(1_000), 0)
    _, confirmations = confirmations_on(store)
    wire = Wire(confirmations._confirm)
    confirmations._confirm = Twin(wire, wire.awaited)
    return confirmations, wire


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def sharers(confirmations):
    question = confirmations._questions._by_key.get("key")
    return -1 if question is None else len(question._alarms)


def test_threads_and_loops_share_one_question(crew, wired):
    confirmations, wire = wired
    answers = []

    async def on_loop():
        answers.append(await confirmations.ask(TASKS, "key"))

    def in_thread():
        answers.append(run(confirmations.ask, "key"))

    crew.start(in_thread)
    until(lambda: wire.questions)
    for _ in range(3):
        crew.start(in_thread)
    for backend in ("asyncio", "trio"):
        crew.start(lambda backend=backend: anyio.run(on_loop, backend=backend))
    until(lambda: sharers(confirmations) == 5)
    assert answers == []
    wire.answer.set()
    crew.join()
    assert (len(answers), wire.questions) == (6, 1)


def test_an_answer_serves_twenty_milliseconds_from_its_question(wired):
    confirmations, wire = wired
    wire.answer.set()
    for advance_us, questions in ((0, 1), (FRESH_US, 1), (1, 2), (FRESH_US // 2, 2), (FRESH_US // 2 + 1, 3)):
        confirmations._clock.advance(advance_us / 1e6)
        run(confirmations.ask, "key")
        assert wire.questions == questions


def test_a_clock_that_goes_back_makes_no_answer_last_longer(wired):
    confirmations, wire = wired
    wire.answer.set()
    run(confirmations.ask, "key")
    confirmations._clock.set(500)
    run(confirmations.ask, "key")
    assert wire.questions == 2


def test_a_question_of_a_caller_that_never_goes_on_delays_no_other(monkeypatch, wired, crew, anyio_backend):
    confirmations, wire = wired
    monkeypatch.setattr(module, "STUCK_S", 0.01)
    wire.answer.set()
    question, is_mine = confirmations._questions.shared("key", confirmations._queue)
    assert is_mine
    crew.start(run, confirmations.ask, "key")
    crew.join()
    assert wire.questions == 1
    assert question.is_open
    confirmations._questions.shared("other", confirmations._queue)

    async def main():
        with anyio.fail_after(PATIENCE_S):
            assert (await confirmations.ask(TASKS, "other")).generation == UNKNOWN

    anyio.run(main, backend=anyio_backend)


@pytest.mark.anyio
async def test_a_question_that_cannot_be_sent_is_not_left_open(monkeypatch, wired):
    """Nor do those that come meanwhile wait for its answer, where no thread can be started for it."""

    def no_more_threads():
        raise RuntimeError("can't start new thread")

    confirmations, wire = wired
    wire.answer.set()
    with monkeypatch.context() as patch:
        patch.setattr(process, "background_ready", no_more_threads)
        with pytest.raises(RuntimeError):
            await confirmations.ask(TASKS, "key")
    _, is_mine = confirmations._questions.shared("key", confirmations._queue)
    assert is_mine


def test_keys_that_come_and_go_are_forgotten(wired):
    confirmations, wire = wired
    wire.answer.set()
    most = 0
    for number in range(5_000):
        run(confirmations.ask, f"key {number}")
        confirmations._clock.advance(0.001)
        most = max(most, len(confirmations._questions._by_key))
    assert wire.questions == 5_000
    assert most <= 2 * FRESH_US / 1_000 + 2


@settings(max_examples=60)
@given(
    st.sampled_from(["asyncio", "trio"]),
    st.sampled_from([0.001, 0.01, 0.03, 0.1]),
    st.lists(st.tuples(st.integers(0, 200), st.booleans()), min_size=1, max_size=25),
)
def test_an_answer_is_true_at_most_twenty_milliseconds_before_its_question(backend, trip, events):
    """Holds get longer and longer, so that each can be recognized by its end."""
    clock = ManualClock(1_000, autojump=True)
    store, local = SlowStore(clock, trip), MemoryStore.bind
    shaper, confirmations = confirmations_on(store)
    hold = local(store, shaper.name, shaper.core.queue, HOLD)
    stage, ends, answers = Stage(backend, clock), [(0, 0)], []

    async def ask():
        sent_us = clock.now_us()
        standing = await confirmations.ask(TASKS, "default")
        answers.append((sent_us, clock.now_us(), standing.until_us))

    def place():
        length = 10_000_000 + len(ends) * 1_000_000
        hold("default", length, 7)
        ends.append((clock.now_us(), clock.now_us() + length))

    for number, (at, is_question) in enumerate(events):
        # Some microseconds beside, so that none coincide.
        stage.at(at / 1_000 + (13 * number + 1) / 1e6, ask if is_question else place)
    stage.run()
    assert len(answers) == sum(is_question for _, is_question in events)
    for sent_us, answered, until_us in answers:
        index = [end for _, end in ends].index(until_us)
        assert ends[index][0] <= answered
        if index + 1 < len(ends):
            assert ends[index + 1][0] >= sent_us - FRESH_US, "older than it may be"
