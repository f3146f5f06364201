"""ManualClock that moves by itself: it jumps once all threads and tasks sleep; none waits in real time."""

import asyncio
import gc
import threading
import weakref

import anyio
import pytest
import trio
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from shapekit import ManualClock
from shapekit._runtime.drivers import AsyncAlarm

HOUR = 3_600
NAPS = st.lists(st.integers(0, 50), max_size=5)


class CountingAlarm(threading.Event):
    """An alarm that notes how long it was waited for, in real time."""

    def __init__(self):
        super().__init__()
        self.waited = []

    def wait(self, timeout=None):
        self.waited.append(timeout)
        return super().wait(timeout)


def test_a_thread_alone_sleeps_for_an_hour_without_waiting():
    clock, waited = ManualClock(autojump=True), []
    for second in range(1, HOUR + 1):
        alarm = CountingAlarm()
        clock.sleep(1, alarm)
        waited += alarm.waited
        assert clock.now() == second
    assert waited == []


def test_asyncio_sleeps_for_an_hour_without_a_timer(monkeypatch):
    clock, timers = ManualClock(autojump=True), []

    async def main():
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_at", lambda *args, **kwargs: timers.append(args))
        for second in range(1, HOUR + 1):
            await clock.asleep(1, AsyncAlarm())
            assert clock.now() == second
        return clock.now()

    assert asyncio.run(main()) == HOUR
    assert timers == []


class IoWaits(trio.abc.Instrument):
    """Notes how long trio means to sleep in real time, each time it has nothing to do."""

    def __init__(self):
        self.timeouts = []

    def before_io_wait(self, timeout):
        self.timeouts.append(timeout)


def test_trio_sleeps_for_an_hour_without_a_timer():
    clock, waits = ManualClock(autojump=True), IoWaits()

    async def main():
        for second in range(1, HOUR + 1):
            await clock.asleep(1, AsyncAlarm())
            assert clock.now() == second
        # Before trio itself waits, at its end, for its helpers.
        return set(waits.timeouts)

    assert trio.run(main, instruments=[waits]) == {0}


def expected(crew_naps):
    """When each sleeper wakes, in order."""
    wakes = []
    for name, naps in enumerate(crew_naps):
        wakes += [(sum(naps[: n + 1]), name) for n in range(len(naps))]
    return sorted(wakes)


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking a hang would take for ever
@given(st.lists(NAPS, max_size=4), st.sampled_from(["asyncio", "trio"]))
@example([[1, 2], [1, 1, 1]], "asyncio")
@example([[1, 1, 1], [1, 0, 1]], "asyncio")
def test_tasks_wake_at_their_own_instants_in_order(crew_naps, backend):
    clock, log = ManualClock(autojump=True), []

    async def pause(name, naps):
        for seconds in naps:
            await clock.asleep(seconds, AsyncAlarm())
            log.append((clock.now(), name))

    async def main():
        with anyio.fail_after(3):
            async with anyio.create_task_group() as tasks:
                for name, naps in enumerate(crew_naps):
                    tasks.start_soon(pause, name, naps)

    anyio.run(main, backend=backend)
    assert sorted(log) == expected(crew_naps)
    assert [at for at, _ in log] == sorted(at for at, _ in log)


@pytest.mark.anyio
async def test_time_does_not_jump_while_a_task_is_awake():
    clock, seen = ManualClock(autojump=True), []

    async def work():
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
            seen.append(clock.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.asleep, 5, AsyncAlarm())
        tasks.start_soon(work)
    assert set(seen) == {0.0}
    assert clock.now() == 5


@pytest.mark.anyio
async def test_an_alarm_keeps_it_from_jumping():
    clock, alarm = ManualClock(autojump=True), AsyncAlarm()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.asleep, 3_600, alarm)
        await anyio.lowlevel.checkpoint()
        alarm.set()
    assert clock.now() == 0


@pytest.mark.anyio
async def test_a_cancelled_sleeper_is_not_jumped_to():
    clock = ManualClock(autojump=True)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await clock.asleep(100, AsyncAlarm())
    await clock.asleep(5, AsyncAlarm())
    assert clock.now() == 5


@pytest.mark.anyio
async def test_two_clocks_on_one_loop_do_not_wait_for_each_other():
    clocks = [ManualClock(autojump=True), ManualClock(autojump=True)]
    with anyio.fail_after(3):
        async with anyio.create_task_group() as tasks:
            for seconds, clock in zip((5, 7), clocks, strict=True):
                tasks.start_soon(clock.asleep, seconds, AsyncAlarm())
    assert [clock.now() for clock in clocks] == [5, 7]


@pytest.mark.anyio
async def test_a_clock_serves_one_loop_after_another():
    clock = ManualClock(autojump=True)

    async def main():
        await clock.asleep(1, AsyncAlarm())

    await main()
    assert clock.now() == 1
    for n, backend in enumerate(["asyncio", "trio", "asyncio"]):
        await anyio.to_thread.run_sync(lambda backend=backend: anyio.run(main, backend=backend))
        assert clock.now() == n + 2


def test_several_threads_all_arrive_and_none_too_early(crew):
    # Which threads the clock knows to be awake depends on which of them have slept before; this always holds.
    clock, early, wakes = ManualClock(autojump=True), [], []

    def pause(length):
        def job():
            for _ in range(20):
                due = clock.now() + length
                clock.sleep(length, threading.Event())
                wakes.append(length)
                if clock.now() < due:
                    early.append((length, due, clock.now()))

        return job

    crew.at_once(*[pause(length) for length in (1, 2, 3, 5)])
    crew.join()
    assert early == []
    assert sorted(wakes) == [1] * 20 + [2] * 20 + [3] * 20 + [5] * 20
    assert clock.now() >= 100


@pytest.mark.parametrize("autojump", [1, "yes", None])
def test_autojump_is_true_or_false(refused, autojump):
    refused(lambda: ManualClock(autojump=autojump), "autojump")


def test_threads_that_have_ended_are_forgotten():
    clock = ManualClock(autojump=True)
    ended = weakref.WeakSet()
    for _ in range(20):
        sleeper = threading.Thread(target=clock.sleep, args=(1, threading.Event()))
        ended.add(sleeper)
        sleeper.start()
        sleeper.join()
    del sleeper
    gc.collect()
    assert len(ended) <= 1
