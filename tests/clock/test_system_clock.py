"""SystemClock: monotonic since its making, whatever happens to the system's date."""

import threading
import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import GCRA, Clock, Gate, Quota, SystemClock
from shapekit import clock as clock_module
from shapekit._runtime.drivers import AsyncAlarm

SECOND_US = 1_000_000
DAY_NS = 86_400 * 10**9
EPOCH_NS = 1_700_000_000 * 10**9


class Machine:
    """A stand-in for `time`: a date that can be set, and a monotonic clock that cannot."""

    def __init__(self):
        self.date_ns = EPOCH_NS
        self.uptime_ns = 5 * 10**9

    def time_ns(self):
        return self.date_ns

    def monotonic_ns(self):
        return self.uptime_ns

    def shown(self, patch):
        patch.setattr(clock_module, "time", self)
        patch.setattr(SystemClock, "_ticks_ns", self.monotonic_ns)
        return self

    def run(self, ns):
        self.date_ns += ns
        self.uptime_ns += ns


@pytest.fixture
def machine(monkeypatch):
    return Machine().shown(monkeypatch)


def test_a_system_clock_starts_at_the_date_and_runs_on(machine):
    clock = SystemClock()
    assert clock.now_us() == clock.wall_us() == EPOCH_NS // 1_000
    machine.run(1_500)
    assert clock.now_us() == clock.wall_us() == EPOCH_NS // 1_000 + 1
    assert isinstance(clock, Clock)
    assert repr(clock) == "SystemClock()"


@given(st.lists(st.tuples(st.integers(-30 * DAY_NS, 30 * DAY_NS), st.integers(0, 10**12)), max_size=20))
def test_setting_the_date_moves_the_wall_alone(steps):
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine().shown(patch)
        clock = SystemClock()
        start, run = clock.now_us(), 0
        for step_ns, run_ns in steps:
            machine.date_ns += step_ns
            machine.run(run_ns)
            run += run_ns
            # The offset is whole microseconds, and so is each reading: one may be lost between them.
            assert 0 <= start + (run + 1_000) // 1_000 - clock.now_us() <= 1
            assert clock.wall_us() == machine.date_ns // 1_000


@pytest.mark.parametrize("step_ns", [DAY_NS, -DAY_NS])
def test_setting_the_date_neither_mints_nor_locks_out(machine, step_ns):
    gate = Gate(GCRA("10/s", burst=3), clock=SystemClock())
    assert [gate.check().allowed for _ in range(4)] == [True, True, True, False]
    machine.date_ns += step_ns
    denied = gate.check()
    assert (denied.allowed, denied.retry_after_us) == (False, 100_000)
    machine.run(100_000_000)
    assert gate.check().allowed


def test_a_quota_follows_the_date(machine):
    gate = Gate(Quota("2/day"), clock=SystemClock())
    assert [gate.check().allowed for _ in range(3)] == [True, True, False]
    machine.date_ns += DAY_NS
    assert [gate.check().allowed for _ in range(3)] == [True, True, False]


def test_the_real_one_never_runs_backwards():
    clock = SystemClock()
    readings = [clock.now_us() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert abs(clock.now_us() - time.time_ns() // 1_000) < 60 * SECOND_US


def test_an_alarm_ends_a_sleep(crew):
    alarm, asleep = threading.Event(), threading.Event()

    class Announcing:
        """An alarm that sets an event once a sleeper waits for it."""

        def wait(self, seconds):
            asleep.set()
            assert alarm.wait(seconds)

    crew.at_once(lambda: SystemClock().sleep(3_600, Announcing()))
    assert asleep.wait(20)
    alarm.set()
    crew.join()


def test_a_sleep_ends_by_itself():
    clock = SystemClock()
    start = time.monotonic_ns()
    clock.sleep(0.002, threading.Event())
    assert time.monotonic_ns() - start >= 1_000_000


@pytest.mark.anyio
async def test_a_task_s_sleep_ends_by_itself_or_by_its_alarm():
    clock, alarm = SystemClock(), AsyncAlarm()
    await clock.asleep(0.002, AsyncAlarm())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.asleep, 3_600, alarm)
        await anyio.lowlevel.checkpoint()
        alarm.set()
    assert alarm.is_set()


def test_where_the_modules_clock_is_stopped_and_set_time_goes_on(monkeypatch):
    clock = SystemClock()
    start_us = clock.now_us()
    # As freezegun does.
    monkeypatch.setattr(time, "monotonic_ns", lambda: EPOCH_NS)
    ticks, per_us, offset_us = clock.ticks()
    for now_us in (clock.now_us(), ticks() // per_us + offset_us, SystemClock().now_us()):
        assert 0 <= now_us - start_us < 60 * SECOND_US
