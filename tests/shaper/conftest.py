"""What the shaper's tests share: clocks that note their sleeps, threads that are waited for."""

import threading

import pytest

from shapekit import ManualClock

from .stage import Stage

PATIENCE_S = 20.0
"""Longer than any event takes: reached only where a test fails."""


class RecordingClock(ManualClock):
    """Notes each sleep that is asked of it, and calls `on_sleep` in the sleeper before it lies down."""

    def __init__(self, start=1_000.0, *, autojump=True):
        super().__init__(start, autojump=autojump)
        self.naps = []
        self.on_sleep = lambda: None

    def sleep(self, seconds, alarm):
        self.naps.append(seconds)
        self.on_sleep()
        super().sleep(seconds, alarm)

    async def asleep(self, seconds, alarm):
        self.naps.append(seconds)
        self.on_sleep()
        await super().asleep(seconds, alarm)


class Crew:
    """Threads; what one of them raises is kept in `raised`, and none may hang."""

    def __init__(self):
        self._threads = []
        self.raised = []

    def start(self, job, *args):
        def work():
            try:
                job(*args)
            except Exception as error:
                self.raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self):
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread hangs"


@pytest.fixture
def clock():
    """Jumps by itself as soon as everybody sleeps."""
    return RecordingClock()


@pytest.fixture
def by_hand(monkeypatch):
    """A clock that only `advance` moves, and that gives a woken thread all the time it needs."""
    monkeypatch.setattr("shapekit.manual_clock._SETTLE_S", PATIENCE_S)
    return RecordingClock(autojump=False)


@pytest.fixture
def crew():
    crew = Crew()
    yield crew
    crew.join()


@pytest.fixture(scope="session")
def until_asleep():
    """Waits until just so many sleepers lie in a ManualClock."""

    def wait(clock, sleepers):
        with clock._changed:
            assert clock._changed.wait_for(lambda: len(clock._sleepers) == sleepers, PATIENCE_S)

    return wait


@pytest.fixture
def stage(anyio_backend, clock):
    """Tasks on either event loop, on `clock`."""
    return Stage(anyio_backend, clock)
