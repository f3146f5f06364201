"""ManualClock that moves by itself: it jumps once all threads and tasks sleep; none waits in real time."""

import asyncio
import gc
import threading
import weakref
from functools import partial

import anyio
import pytest
import trio
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from shapekit import ManualClock
from shapekit import clock as clock_module
from shapekit._runtime.drivers import AsyncAlarm

from ..crew import PATIENCE_S

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


class Slow:
    """A sleeper is woken, and continues only when it is let go: the machine is busy."""

    def __init__(self):
        super().__init__()
        self.woken, self.lets_go, self.has_continued = threading.Event(), threading.Event(), threading.Event()

    def let_go(self, count):
        if count == 10:
            self.lets_go.set()
            assert self.has_continued.wait(PATIENCE_S)


class SlowAlarm(Slow, threading.Event):
    sleeper = None

    def is_set(self):
        is_set = super().is_set()
        if is_set and threading.current_thread() is self.sleeper:
            self.woken.set()
            assert self.lets_go.wait(PATIENCE_S)
        return is_set


class SlowAsyncAlarm(Slow, AsyncAlarm):
    async def wait(self, seconds=None):
        await super().wait(seconds)
        self.woken.set()
        assert self.lets_go.wait(PATIENCE_S)


@pytest.fixture
def looks(monkeypatch):
    """Looks whether time may jump: each calls `at_look`, and takes no real time."""

    class Looks(threading.Event):
        count = 0
        at_look = staticmethod(lambda count: None)

        def wait(self, timeout=None):
            self.count += 1
            self.at_look(self.count)
            return super().wait(0)

        async def sleep(self, seconds):
            self.wait()
            await anyio.lowlevel.checkpoint()

    looks = Looks()
    monkeypatch.setattr(clock_module, "_real_sleep", looks.sleep)
    return looks


def sleep_in(kind, clock, looks, seconds):
    if kind == "thread":
        clock.sleep(seconds, looks)
        return

    async def sleep():
        await clock.asleep(seconds, AsyncAlarm())

    anyio.run(sleep, backend=kind)


@pytest.mark.parametrize("waits", ["thread", "asyncio", "trio"])
@pytest.mark.parametrize("is_early", [False, True])
def test_time_waits_for_a_thread_that_was_woken(crew, looks, waits, is_early):
    clock, slow, seen = ManualClock(autojump=True), SlowAlarm(), []
    if is_early:
        slow.set()

    def sleeps():
        slow.sleeper = threading.current_thread()
        clock.sleep(1, slow)
        seen.append(clock.now())
        slow.has_continued.set()

    crew.start(sleeps)
    assert slow.woken.wait(PATIENCE_S)
    looks.at_look = slow.let_go
    sleep_in(waits, clock, looks, 10)
    slow.lets_go.set()
    crew.join()
    assert seen == ([0] if is_early else [1])
    assert clock.now() == seen[0] + 10


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_time_waits_for_a_task_that_was_woken(crew, looks, backend):
    clock, slow, seen = ManualClock(autojump=True), [], []
    begun = threading.Event()

    async def sleeps():
        slow.append(SlowAsyncAlarm())
        begun.set()
        await clock.asleep(1, slow[0])
        seen.append(clock.now())
        slow[0].has_continued.set()

    crew.start(partial(anyio.run, sleeps, backend=backend))
    assert begun.wait(PATIENCE_S)
    assert slow[0].woken.wait(PATIENCE_S)
    looks.at_look = slow[0].let_go
    clock.sleep(10, looks)
    slow[0].lets_go.set()
    crew.join()
    assert seen == [1]
    assert clock.now() == 11


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_lets_an_awake_thread_sleep_first(crew, looks, backend):
    clock, seen = ManualClock(autojump=True), []
    woken, act, again, done = [threading.Event() for _ in range(4)]

    class Again(threading.Event):
        def wait(self, timeout=None):
            again.set()
            return super().wait(timeout)

    def sleeps_twice():
        clock.sleep(1, threading.Event())
        woken.set()
        assert act.wait(PATIENCE_S)
        clock.sleep(1, Again())
        seen.append(clock.now())
        done.set()

    def lets_act(count):
        act.set()
        assert (again if count == 1 else done).wait(PATIENCE_S)

    crew.start(sleeps_twice)
    assert woken.wait(PATIENCE_S)
    looks.at_look = lets_act
    sleep_in(backend, clock, looks, 10)
    act.set()
    crew.join()
    assert looks.count > 0
    assert seen == [2]
    assert clock.now() == 11


@pytest.mark.parametrize("waits", ["thread", "asyncio", "trio"])
def test_a_sleeper_that_never_continues_does_not_stop_time(crew, looks, waits):
    # A task continues only if its loop does.
    clock, slow = ManualClock(autojump=True), SlowAlarm()

    def sleeps():
        slow.sleeper = threading.current_thread()
        clock.sleep(1, slow)

    crew.start(sleeps)
    assert slow.woken.wait(PATIENCE_S)
    sleep_in(waits, clock, looks, 10)
    assert clock.now() == 11
    slow.lets_go.set()
    crew.join()


def test_an_interrupted_sleep_leaves_no_sleeper_behind(monkeypatch):
    clock = ManualClock(autojump=True)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "_end_wait", interrupted)
    was_interrupted = False
    try:
        clock.sleep(1, threading.Event())
    except KeyboardInterrupt:
        was_interrupted = True
    assert was_interrupted
    assert len(clock._sleepers) == 0


def test_time_jumps_also_where_a_test_has_replaced_asyncio_sleep(monkeypatch):
    clock = ManualClock(autojump=True)

    async def asleep(*_):
        pass

    async def main():
        for _ in range(3):
            await clock.asleep(1, AsyncAlarm())

    monkeypatch.setattr(asyncio, "sleep", asleep)
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert clock.now() == 3


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
