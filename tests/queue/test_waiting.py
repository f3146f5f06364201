"""One sleep until the slot comes, in bounded steps; a call that stops waiting gives the slot back."""

import threading

import anyio
import pytest

from shapekit import ConfigError, ManualClock, MemoryStore, Shaper, StoreUnavailableError
from shapekit._runtime import process
from shapekit.algorithms.queue.wire import CANCEL

from ..crew import PATIENCE_S, held_elsewhere

DAY = 86_400


@pytest.fixture
def shaper(clock):
    """The next slot is a second away."""
    shaper = Shaper("1/s", clock=clock)
    shaper.reserve()
    return shaper


def test_thirty_days_are_slept_in_steps_of_a_minute(clock):
    shaper = Shaper("1 per 30d", clock=clock)
    shaper.reserve()
    reservation = shaper.schedule()
    assert reservation.delay == 30 * DAY
    assert clock.now() == 1_000 + 30 * DAY
    assert len(clock.naps) == 30 * DAY / 60
    assert set(clock.naps) == {60.0}


@pytest.mark.parametrize("step", [3_600, "1h", 86_400 * 7])
def test_the_longest_step_can_be_chosen(stage, clock, step):
    shaper = Shaper("1 per 30d", clock=clock, longest_sleep=step)
    stage.wait_for(shaper, 0)
    stage.wait_for(shaper, 1)
    stage.run()
    longest = 3_600 if step == "1h" else step
    assert stage.left == [(0, 0.0), (1, 30 * DAY)]
    assert max(clock.naps[1:]) == longest


@pytest.mark.parametrize("step", [0, -1, True, "", float("nan"), float("inf")])
def test_wrong_longest_steps_are_refused(refused, step):
    refused(lambda: Shaper("1/s", longest_sleep=step), "longest_sleep")


class Cancellable:
    """A scope that is entered on a loop and cancelled from elsewhere on it."""

    def scope(self):
        self._scope = anyio.CancelScope()
        return self._scope

    def cancel(self):
        self._scope.cancel()


class Fidgety(ManualClock):
    """Wakes its sleepers for nothing, the first times they lie down."""

    def __init__(self, wakes):
        super().__init__(1_000, autojump=True)
        self.wakes = wakes

    def sleep(self, seconds, alarm):
        self.wakes -= 1
        if self.wakes < 0:
            super().sleep(seconds, alarm)

    async def asleep(self, seconds, alarm):
        self.wakes -= 1
        if self.wakes < 0:
            await super().asleep(seconds, alarm)


def test_a_call_that_is_woken_for_nothing_does_not_leave_early(anyio_backend):
    clock = Fidgety(wakes=5)
    shaper = Shaper("1/s", clock=clock)
    shaper.reserve()
    shaper.schedule()
    assert clock.now() == 1_001
    clock.wakes = 5
    anyio.run(shaper.aschedule, backend=anyio_backend)
    assert clock.now() == 1_002


def test_a_call_with_an_immediate_slot_does_not_sleep(clock, anyio_backend):
    shaper = Shaper("1/s", clock=clock)
    assert shaper.schedule("a").delay == 0.0
    assert anyio.run(shaper.aschedule, "b", backend=anyio_backend).delay == 0.0
    with shaper:
        pass
    assert clock.naps == []


def test_with_takes_a_slot_of_the_default_key(clock):
    shaper = Shaper("1/s", clock=clock)
    entered = []
    for _ in range(3):
        with shaper as same:
            assert same is shaper
            entered.append(clock.now() - 1_000)
    assert entered == [0, 1, 2]
    assert shaper.reserve("default").delay == 1.0


def test_async_with_takes_a_slot_of_the_default_key(stage, clock):
    shaper = Shaper("1/s", clock=clock)
    entered = []

    async def act():
        for _ in range(3):
            async with shaper as same:
                assert same is shaper
                entered.append(stage.now)

    stage.at(0, act)
    stage.run()
    assert entered == [0, 1, 2]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
def test_a_thread_that_is_interrupted_in_its_sleep_gives_the_slot_back(shaper, clock, interruption):
    def interrupt():
        raise interruption

    clock.on_sleep = interrupt
    with pytest.raises(interruption):
        shaper.schedule()
    with pytest.raises(interruption), shaper:
        pytest.fail("entered")
    assert clock.now() == 1_000
    assert shaper.reserve().delay == 1.0


class InterruptingStore(MemoryStore):
    """The first time that a slot is given back, the thread is interrupted instead."""

    interruption = None

    def bind(self, name, program, operation):
        apply = super().bind(name, program, operation)

        def cancel(*args):
            interruption, self.interruption = self.interruption, None
            if interruption is not None:
                raise interruption
            return apply(*args)

        return cancel if operation is CANCEL else apply


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_a_thread_that_is_interrupted_again_as_it_gives_the_slot_back_loses_none(clock, interruption):
    """The background thread gives it back."""

    def interrupt():
        raise interruption

    store = InterruptingStore(clock)
    shaper = Shaper("1/s", store=store)
    shaper.reserve()
    clock.on_sleep, store.interruption = interrupt, interruption
    with pytest.raises(interruption):
        shaper.schedule()
    assert store.interruption is None
    is_done = threading.Event()
    process.in_background(is_done.set)
    assert is_done.wait(PATIENCE_S)
    assert shaper.reserve().delay == 1.0


def test_an_interruption_long_after_falling_asleep_gives_the_slot_to_the_next(clock):
    shaper = Shaper("1 per 10min", clock=clock)
    shaper.reserve()

    def interrupt():
        if len(clock.naps) == 4:
            behind.append(shaper.reserve())
            raise KeyboardInterrupt

    behind = []
    clock.on_sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        shaper.schedule()
    assert clock.now() == 1_000 + 180
    assert behind[0].delay == 1_200 - 180
    assert shaper.reserve().delay == 600 - 180


def test_a_cancelled_task_gives_the_slot_back(stage, shaper):
    cancelled = Cancellable()

    async def waiter():
        with cancelled.scope():
            await shaper.aschedule()
            pytest.fail("left")

    stage.at(0, waiter)
    stage.wait_for(shaper, "behind")
    stage.at(0.5, cancelled.cancel)
    stage.wait_for(shaper, "newcomer", at=0.6)
    stage.run()
    assert stage.left == [("newcomer", 1.0), ("behind", 2.0)]


def test_a_cancellation_in_the_instant_of_departure_gives_the_slot_back(stage, shaper):
    """Whether it has left already or not: both are possible, and in neither is the slot used twice."""
    cancelled, left = Cancellable(), []

    async def waiter():
        with cancelled.scope():
            await shaper.aschedule()
            left.append(stage.now)

    stage.at(0, waiter)
    stage.at(1.0, cancelled.cancel)
    stage.wait_for(shaper, "newcomer", at=1.0)
    stage.run()
    assert stage.times == ([2.0] if left else [1.0])


def test_a_timeout_ends_on_time_and_gives_the_slot_back(stage, shaper, clock):
    with pytest.raises(TimeoutError, match="key 'default': gave up waiting after 400 ms"):
        shaper.schedule(timeout=0.4)
    assert clock.now() == 1_000.4
    stage.wait_for(shaper, "gives up", at=0.5, timeout="100ms")
    stage.wait_for(shaper, "behind", at=0.5)
    stage.wait_for(shaper, "newcomer", at=0.7)
    stage.run()
    at, error = stage.errors["gives up"]
    assert (at, type(error)) == (pytest.approx(0.6), TimeoutError)
    assert stage.left == [("newcomer", 1.0), ("behind", 2.0)]


@pytest.mark.parametrize("timeout", [1.0, 2, "1h"])
def test_a_timeout_that_is_long_enough_changes_nothing(shaper, clock, timeout):
    assert shaper.schedule(timeout=timeout).delay == 1.0
    assert clock.now() == 1_001


def test_a_timeout_of_zero_is_enough_for_an_immediate_slot(clock):
    shaper = Shaper("1/s", clock=clock)
    assert shaper.schedule(timeout=0).delay == 0.0
    with pytest.raises(TimeoutError):
        shaper.schedule(timeout=0)
    assert clock.naps == []
    assert shaper.reserve().delay == 1.0


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), True, "", "soon", [1]])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_wrong_timeout_is_refused_before_a_slot_is_taken(clock, refused, anyio_backend, timeout, ahead):
    shaper = Shaper("1/s", clock=clock)
    for _ in range(ahead):
        shaper.reserve()
    refused(lambda: shaper.schedule(timeout=timeout), "timeout", "unit")

    async def aschedule():
        with pytest.raises(ConfigError):
            await shaper.aschedule(timeout=timeout)

    anyio.run(aschedule, backend=anyio_backend)
    assert shaper.reserve().delay == ahead


def test_closing_wakes_threads_and_gives_their_slots_back(crew, by_hand, until_asleep):
    store = MemoryStore(by_hand)
    shaper = Shaper("1/s", store=store, name="api")
    shaper.reserve()
    for name in range(3):
        crew.start(shaper.schedule)
        until_asleep(by_hand, name + 1)
    shaper.close()
    crew.join()
    assert [type(error) for error in crew.raised()] == [StoreUnavailableError] * 3
    assert Shaper("1/s", store=store, name="api").reserve().delay == 1.0


@pytest.mark.parametrize("how", ["close", "aclose"])
def test_closing_wakes_tasks(stage, clock, how):
    shaper = Shaper("1/s", store=MemoryStore(clock), name="api")
    for name in range(4):
        stage.wait_for(shaper, name)
    stage.at(0.5, getattr(shaper, how))
    stage.run()
    assert stage.left == [(0, 0.0)]
    assert {(at, type(error)) for at, error in stage.errors.values()} == {(0.5, StoreUnavailableError)}
    assert len(stage.errors) == 3


def test_closing_from_another_thread_wakes_tasks(crew, by_hand, until_asleep, anyio_backend):
    shaper = Shaper("1/s", clock=by_hand)
    shaper.reserve()

    def loop():
        anyio.run(shaper.aschedule, backend=anyio_backend)

    crew.start(loop)
    until_asleep(by_hand, 1)
    shaper.close()
    crew.join()
    assert [type(error) for error in crew.raised()] == [StoreUnavailableError]


def test_a_closed_shaper_makes_no_call_wait(clock):
    own, shared = Shaper("1/s", clock=clock), Shaper("1/s", store=MemoryStore(clock), name="api")
    for shaper in (own, shared):
        shaper.reserve()
        shaper.close()
        shaper.close()
        with pytest.raises(StoreUnavailableError):
            shaper.schedule()
    assert clock.naps == []
    with pytest.raises(StoreUnavailableError):
        own.reserve()


def test_calls_that_wait_through_a_reset_keep_their_slots(stage, shaper):
    for name in range(3):
        stage.wait_for(shaper, name)
    stage.at(0.5, shaper.reset)
    stage.wait_for(shaper, "newcomer", at=0.6)
    stage.run()
    assert stage.left == [("newcomer", 0.6), (0, 1.0), (1, 2.0), (2, 3.0)]


def test_a_call_cancelled_after_a_reset_gives_back_nothing_of_the_new_queue(stage, shaper):
    stage.wait_for(shaper, "gives up", timeout=0.8)
    stage.at(0.5, shaper.reset)
    for name in range(3):
        stage.wait_for(shaper, name, at=0.6)
    stage.wait_for(shaper, "late", at=0.9)
    stage.run()
    assert set(stage.errors) == {"gives up"}
    assert stage.left == [(0, 0.6), (1, 1.6), (2, 2.6), ("late", 3.6)]


def test_a_waiter_that_is_thrown_away_takes_no_lock(crew):
    """The collector may throw it away in the midst of anything, with a store's lock held by its thread."""
    clock = ManualClock(1_000)
    store = MemoryStore(clock)
    shaper = Shaper("1/s", store=store, name="api")
    shaper.reserve()

    async def main():
        waiter = shaper.aschedule()
        waiter.send(None)
        with held_elsewhere(store._lock):
            waiter.close()
            assert not store._lock.acquire(blocking=False)

    crew.start(anyio.run, main)
    crew.join()
    assert shaper.core.sleepers._lines == {}
    assert shaper.core.sleepers._alarms == set()
