"""ManualClock: reading it and moving it by hand, with sleepers in threads and on event loops."""

import threading

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import Clock, ManualClock
from shapekit._runtime.drivers import AsyncAlarm

SECOND_US = 1_000_000
BAD_SECONDS = [-1, -1e-9, float("nan"), float("inf"), -float("inf"), "1", None, True, b"1", 1e300, 10**400]


def brief(value):
    return repr(value)[:12]


def test_a_manual_clock_stands_still_until_it_is_moved():
    clock = ManualClock()
    assert [clock.now_us() for _ in range(3)] == [0, 0, 0]
    clock.advance(1.5)
    assert (clock.now(), clock.now_us(), clock.wall_us()) == (1.5, 1_500_000, 1_500_000)
    assert ManualClock(12.25).now() == 12.25
    assert isinstance(clock, Clock)
    assert repr(clock) == "ManualClock(1.5)"


@given(st.lists(st.integers(0, 10**9)))
def test_steps_add_up_exactly(steps_us):
    clock = ManualClock()
    for step in steps_us:
        clock.advance(step / SECOND_US)
    assert clock.now_us() == sum(steps_us)


def test_ten_tenths_are_one_second():
    clock = ManualClock()
    for _ in range(10):
        clock.advance(0.1)
    assert clock.now() == 1.0


def test_set_goes_both_ways_with_both_hands():
    clock = ManualClock(100)
    clock.set(250.5)
    assert (clock.now_us(), clock.wall_us()) == (250_500_000, 250_500_000)
    clock.set(3)
    assert (clock.now_us(), clock.wall_us()) == (3_000_000, 3_000_000)


def test_the_date_steps_alone():
    clock = ManualClock(100)
    clock.step_wall(50)
    assert (clock.now_us(), clock.wall_us()) == (100_000_000, 150_000_000)
    clock.step_wall(-75)
    clock.advance(1)
    assert (clock.now_us(), clock.wall_us()) == (101_000_000, 76_000_000)


@pytest.mark.parametrize("seconds", BAD_SECONDS, ids=brief)
def test_wrong_seconds_are_config_errors(refused, seconds):
    clock = ManualClock(10)
    refused(lambda: ManualClock(seconds), "start")
    refused(lambda: clock.advance(seconds), "seconds")
    refused(lambda: clock.set(seconds), "seconds")
    assert clock.now() == 10


@pytest.mark.parametrize(
    "seconds", [float("nan"), float("inf"), -float("inf"), "1", None, True, 1e300, 10**400], ids=brief
)
def test_wrong_steps_of_the_date_are_config_errors(refused, seconds):
    clock = ManualClock(10)
    refused(lambda: clock.step_wall(seconds), "seconds")
    assert clock.wall_us() == 10 * SECOND_US


@pytest.mark.anyio
async def test_wrong_seconds_of_aadvance_are_config_errors(refused):
    clock = ManualClock(10)
    for seconds in BAD_SECONDS:
        with pytest.raises(ValueError) as caught:
            await clock.aadvance(seconds)
        assert caught.value.field == "seconds"
    assert clock.now() == 10


# threads


def napper(clock, log, name, *naps):
    def pause():
        for seconds in naps:
            clock.sleep(seconds, threading.Event())
            log.append((name, clock.now()))

    return pause


@pytest.mark.usefixtures("patient_settling")
def test_advance_wakes_threads_at_their_own_instants_in_order(crew, until_asleep):
    clock, log = ManualClock(), []
    crew.at_once(napper(clock, log, "c", 3), napper(clock, log, "a", 1), napper(clock, log, "b", 2))
    until_asleep(clock, 3)
    clock.advance(10)
    crew.join()
    assert log == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    assert clock.now() == 10


@pytest.mark.usefixtures("patient_settling")
def test_a_thread_may_sleep_again_within_one_advance(crew, until_asleep):
    clock, log = ManualClock(), []
    crew.at_once(napper(clock, log, "slow", 2.5, 2.5, 2.5), napper(clock, log, "fast", *[1] * 7))
    until_asleep(clock, 2)
    clock.advance(7.5)
    crew.join()
    assert [at for name, at in log if name == "fast"] == [1, 2, 3, 4, 5, 6, 7]
    assert [at for name, at in log if name == "slow"] == [2.5, 5, 7.5]
    assert [at for _, at in log] == sorted(at for _, at in log)


@pytest.mark.usefixtures("patient_settling")
def test_advance_leaves_asleep_a_sleeper_that_is_not_due(crew, until_asleep):
    clock, log = ManualClock(), []
    crew.at_once(napper(clock, log, "early", 1), napper(clock, log, "late", 5))
    until_asleep(clock, 2)
    clock.advance(4.999999)
    assert log == [("early", 1.0)]
    clock.advance(0.000001)
    crew.join()
    assert log == [("early", 1.0), ("late", 5.0)]


@pytest.mark.usefixtures("patient_settling")
def test_set_wakes_due_sleepers_and_going_back_wakes_none(crew, until_asleep):
    clock, log = ManualClock(100), []
    crew.at_once(napper(clock, log, "sleeper", 10))
    until_asleep(clock, 1)
    clock.set(20)
    assert log == []
    clock.set(109)
    assert log == []
    clock.set(200)
    crew.join()
    assert log == [("sleeper", 110.0)]


@pytest.mark.usefixtures("patient_settling")
def test_a_thread_that_is_woken_may_wake_another_before_time_moves_on(crew, until_asleep):
    clock, log, bell, is_over = ManualClock(), [], threading.Event(), threading.Event()

    def ring():
        clock.sleep(1, threading.Event())
        bell.set()

    def answer():
        clock.sleep(60, bell)
        is_over.wait(0.05)  # in real time, all of which it is given
        log.append(clock.now())

    crew.at_once(ring, answer)
    until_asleep(clock, 2)
    clock.advance(5)
    is_over.set()
    crew.join()
    assert log == [1.0]


def test_an_alarm_ends_a_sleep_and_time_stands_still(crew, until_asleep):
    clock, alarm, log = ManualClock(), threading.Event(), []
    crew.at_once(lambda: log.append(clock.sleep(3_600, alarm)))
    until_asleep(clock, 1)
    alarm.set()
    crew.join()
    assert log == [None]
    assert clock.now() == 0


@pytest.mark.parametrize("autojump", [False, True])
def test_no_sleep_for_an_alarm_that_is_set_or_a_time_that_is_past(autojump):
    clock = ManualClock(5, autojump=autojump)
    rung = threading.Event()
    rung.set()
    clock.sleep(60, rung)
    clock.sleep(0, threading.Event())
    clock.sleep(-1, threading.Event())
    assert clock.now() == 5


# event loops


async def anap(clock, log, name, *naps):
    for seconds in naps:
        await clock.asleep(seconds, AsyncAlarm())
        log.append((name, clock.now()))


@pytest.mark.anyio
async def test_aadvance_wakes_tasks_at_their_own_instants_in_order():
    clock, log = ManualClock(), []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anap, clock, log, "c", 3)
        tasks.start_soon(anap, clock, log, "a", 1)
        tasks.start_soon(anap, clock, log, "b", 2)
        await clock.aadvance(2.5)
        assert log == [("a", 1.0), ("b", 2.0)]
        await clock.aadvance(7.5)
    assert log == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    assert clock.now() == 10


@pytest.mark.anyio
async def test_a_task_may_sleep_again_within_one_aadvance():
    clock, log = ManualClock(), []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anap, clock, log, "fast", *[1] * 7)
        tasks.start_soon(anap, clock, log, "slow", 2.5, 2.5, 2.5)
        await clock.aadvance(7.5)
    assert [at for name, at in log if name == "fast"] == [1, 2, 3, 4, 5, 6, 7]
    assert [at for name, at in log if name == "slow"] == [2.5, 5, 7.5]
    assert [at for _, at in log] == sorted(at for _, at in log)


@pytest.mark.anyio
async def test_a_task_that_is_woken_may_wake_another_before_time_moves_on():
    clock, log = ManualClock(), []
    bell = anyio.Event()

    async def ring():
        await clock.asleep(1, AsyncAlarm())
        bell.set()

    async def answer():
        await bell.wait()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        log.append(clock.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ring)
        tasks.start_soon(answer)
        tasks.start_soon(anap, clock, [], "later", 2)
        await clock.aadvance(5)
    assert log == [1.0]


@pytest.mark.anyio
async def test_an_alarm_ends_a_task_s_sleep_and_time_stands_still():
    clock, alarm = ManualClock(), AsyncAlarm()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.asleep, 3_600, alarm)
        await anyio.wait_all_tasks_blocked()
        alarm.set()
    assert clock.now() == 0


@pytest.mark.anyio
async def test_a_cancelled_task_is_no_longer_a_sleeper():
    clock, log = ManualClock(), []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anap, clock, log, "cancelled", 1)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    await clock.aadvance(5)
    assert log == []
    assert clock.now() == 5


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_advance_in_one_thread_wakes_a_loop_in_another(crew, until_asleep, backend):
    clock, log = ManualClock(), []
    crew.at_once(lambda: anyio.run(anap, clock, log, "task", 2, backend=backend))
    until_asleep(clock, 1)
    clock.advance(2)
    crew.join()
    assert log == [("task", 2.0)]
