"""AsyncAlarm: set from its own loop, from another thread or loop, and after its loop has gone.

ThreadAlarm: set from another thread. Both: set by a signal handler, on the very thread that waits.
"""

import asyncio
import signal
import sys
import threading

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from shapekit._runtime import drivers
from shapekit._runtime.drivers import THREADS, AsyncAlarm

from ..crew import PATIENCE_S

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@pytest.mark.anyio
async def test_an_alarm_wakes_all_waiting_tasks():
    alarm, woken = AsyncAlarm(), []

    async def wait(name):
        await alarm.wait()
        woken.append(name)

    async with anyio.create_task_group() as tasks:
        for name in range(3):
            tasks.start_soon(wait, name)
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        assert not alarm.is_set()
        alarm.set()
    assert sorted(woken) == [0, 1, 2]
    assert alarm.is_set()


@pytest.mark.anyio
async def test_once_set_it_stays_set():
    alarm = AsyncAlarm()
    alarm.set()
    alarm.set()
    await alarm.wait()
    await alarm.wait(3_600)


@pytest.mark.anyio
async def test_waiting_with_a_bound_ends_without_it():
    alarm = AsyncAlarm()
    await alarm.wait(0.001)
    await alarm.wait(0)
    assert not alarm.is_set()


@pytest.mark.anyio
async def test_a_wait_can_be_cancelled_and_waited_again():
    alarm = AsyncAlarm()
    with anyio.move_on_after(0) as scope:
        await alarm.wait(3_600)
    assert scope.cancelled_caught
    alarm.set()
    await alarm.wait(3_600)


@pytest.mark.anyio
async def test_another_thread_wakes_it():
    alarm = AsyncAlarm()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alarm.wait)
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(alarm.set)


@BACKENDS
@pytest.mark.parametrize("other", ["asyncio", "trio"])
def test_another_loop_wakes_it(crew, backend, other):
    alarms, made, woken = [], threading.Event(), []

    async def sleeper():
        alarms.append(AsyncAlarm())
        made.set()
        with anyio.fail_after(PATIENCE_S):
            await alarms[0].wait()
        woken.append(backend)

    async def waker():
        alarms[0].set()

    crew.at_once(lambda: anyio.run(sleeper, backend=backend))
    assert made.wait(PATIENCE_S)
    anyio.run(waker, backend=other)
    crew.join()
    assert woken == [backend]


async def make_alarm():
    return AsyncAlarm()


@BACKENDS
def test_setting_it_after_its_loop_has_gone_does_nothing(crew, backend):
    alarm = anyio.run(make_alarm, backend=backend)
    crew.at_once(alarm.set)
    crew.join()
    alarm.set()


@BACKENDS
def test_a_later_loop_of_the_thread_may_set_it(backend):
    alarm = anyio.run(make_alarm, backend=backend)

    async def later():
        alarm.set()

    anyio.run(later, backend="asyncio")
    anyio.run(later, backend="trio")
    assert alarm.is_set()


@pytest.mark.anyio
async def test_many_threads_may_set_it_at_once(crew):
    alarm = AsyncAlarm()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alarm.wait)
            crew.at_once(*[alarm.set] * 8)
            await alarm.wait()
    assert alarm.is_set()


def test_an_alarm_is_made_on_a_loop():
    with pytest.raises(RuntimeError):
        AsyncAlarm()


@pytest.fixture
def on_signal():
    """Sets what SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda action: signal.signal(signal.SIGUSR1, lambda *_: action())
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_wakes_a_loop_that_falls_asleep(on_signal):
    woken = []

    async def main():
        alarm = AsyncAlarm()
        on_signal(alarm.set)
        selector = asyncio.get_running_loop()._selector
        select = selector.select

        def struck(timeout):
            if timeout is None:
                selector.select = select
                signal.raise_signal(signal.SIGUSR1)
                woken.extend(select(0))
            return woken

        selector.select = struck
        await alarm.wait()

    asyncio.run(main())
    assert woken


def struck_at(at):
    """What a wait returns if its alarm is set at this line of it, and how many lines there were."""
    alarm, files, lines = THREADS.alarm(), (threading.__file__, drivers.__file__), []

    def traced(frame, event, arg):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == at:
                alarm.set()
        return traced

    sys.settrace(traced)
    try:
        return alarm.wait(PATIENCE_S if at else 0), len(lines)
    finally:
        sys.settrace(None)


def test_a_signal_handler_may_strike_a_thread_at_each_line_of_its_wait(crew):
    _, lines = struck_at(0)
    crew.start(lambda: [struck_at(at)[0] for at in range(1, lines)])
    assert crew.join() == [[True] * (lines - 1)]


def test_all_threads_that_wait_are_woken(crew):
    for _ in range(50):
        alarm = THREADS.alarm()
        crew.at_once(*[alarm.wait] * 4, *[alarm.set] * 4)
        assert crew.join().count(True) == 4


def test_a_thread_waits_no_longer_than_it_may():
    alarm = THREADS.alarm()
    assert [alarm.wait(seconds) for seconds in (0.001, 0, -1)] == [False] * 3
    alarm.set()
    assert alarm.is_set()
    assert alarm.wait()
