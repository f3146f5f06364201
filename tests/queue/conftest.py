"""What the tests of waiting share: clocks that note their sleeps, and tasks on them."""

import pytest

from shapekit import ManualClock

from ..crew import PATIENCE_S
from .stage import Stage


class RecordingClock(ManualClock):
    """Notes each sleep, and calls `on_sleep` in the sleeper before it falls asleep."""

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


@pytest.fixture
def clock():
    """Jumps by itself as soon as all threads and tasks sleep."""
    return RecordingClock()


@pytest.fixture
def by_hand(monkeypatch):
    """A clock that only `advance` moves, and that gives a woken thread all the time it needs."""
    monkeypatch.setattr("shapekit.clock._SETTLE_S", PATIENCE_S)
    return RecordingClock(autojump=False)


@pytest.fixture
def stage(anyio_backend, clock):
    """Tasks on either event loop, on `clock`."""
    return Stage(anyio_backend, clock)
