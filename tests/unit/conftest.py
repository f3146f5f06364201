"""Helpers of the unit tests: clocks that note their sleeps, and threads that are waited for."""

import threading

import pytest

from shapekit import ManualClock

PATIENCE_S = 20.0
"""Longer than any event takes: reached only where a test fails."""


class RecordingClock(ManualClock):
    """A ManualClock that notes each sleep that is asked of it."""

    def __init__(self, start=0.0, *, autojump=True):
        super().__init__(start, autojump=autojump)
        self.slept = []

    def sleep(self, seconds, alarm):
        self.slept.append(seconds)
        super().sleep(seconds, alarm)

    async def asleep(self, seconds, alarm):
        self.slept.append(seconds)
        await super().asleep(seconds, alarm)


class Crew:
    """Threads that start together behind a barrier; an exception in one fails the test."""

    def __init__(self):
        self._threads = []

    def start(self, *jobs):
        barrier = threading.Barrier(len(jobs))

        def work(job):
            barrier.wait(PATIENCE_S)
            job()

        threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
        self._threads += threads
        for thread in threads:
            thread.start()

    def join(self):
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread hangs"


@pytest.fixture(scope="session")
def recording_clock():
    """The class, so that hypothesis can make a new clock for each example."""
    return RecordingClock


@pytest.fixture
def crew():
    crew = Crew()
    yield crew
    crew.join()


@pytest.fixture(scope="session")
def until_asleep():
    """Waits until so many sleepers lie in a ManualClock."""

    def wait(clock, sleepers):
        with clock._changed:
            assert clock._changed.wait_for(lambda: len(clock._sleepers) >= sleepers, PATIENCE_S)

    return wait


@pytest.fixture
def patient_settling(monkeypatch):
    """`advance` gives a woken thread all the time it needs, also on a machine that stalls."""
    monkeypatch.setattr("shapekit.manual_clock._SETTLE_S", PATIENCE_S)


@pytest.fixture(params=["sync", "async"])
def ask(request):
    """Calls a method of a gate, or its awaitable twin: one test for both."""

    async def call(gate, method, *args, **kwargs):
        if request.param == "sync":
            return getattr(gate, method)(*args, **kwargs)
        return await getattr(gate, f"a{method}")(*args, **kwargs)

    return call
