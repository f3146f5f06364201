"""shapekit runs on a clock of the user's own, which is made of public names alone."""

from __future__ import annotations

import threading

import anyio
import pytest

import shapekit
from shapekit import AsyncAlarm, Clock, Policy, Shaper, StoreUnavailableError

from ..crew import PATIENCE_S


class Leaping(Clock):
    """Every sleep is over at once, and the time it would have taken has passed."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000_000

    def now_us(self) -> int:
        return self.now

    def wall_us(self) -> int:
        return self.now

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        self.now += round(seconds * 1_000_000)
        alarm.wait(0)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        self.now += round(seconds * 1_000_000)
        await alarm.wait(0)


class Standing(Leaping):
    """Time does not pass: only an alarm ends a sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep_now = threading.Event()

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        self.asleep_now.set()
        alarm.wait(PATIENCE_S)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        self.asleep_now.set()
        await alarm.wait(PATIENCE_S)


def test_its_names_are_public() -> None:
    assert {"AsyncAlarm", "Clock"} <= set(shapekit.__all__)


def test_threads_wait_by_it() -> None:
    clock = Leaping()
    start, shaper = clock.now, Shaper("10/s", clock=clock)
    left = [(shaper.schedule(), clock.now - start)[1] for _ in range(3)]
    assert left == [0, 100_000, 200_000]


@pytest.mark.anyio
async def test_tasks_wait_by_it() -> None:
    clock = Leaping()
    start, policy = clock.now, Policy("10/s", clock=clock)
    left = []
    for _ in range(3):
        async with policy.aadmit():
            left.append(clock.now - start)
    assert left == [0, 100_000, 200_000]


def test_a_thread_that_sleeps_by_it_is_woken() -> None:
    clock = Standing()
    shaper = Shaper("1/min", clock=clock)
    shaper.schedule()

    def close() -> None:
        clock.asleep_now.wait(PATIENCE_S)
        shaper.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(StoreUnavailableError):
        shaper.schedule()
    closer.join()


@pytest.mark.anyio
async def test_a_task_that_sleeps_by_it_is_woken_from_a_thread() -> None:
    clock = Standing()
    shaper = Shaper("1/min", clock=clock)
    await shaper.aschedule()

    def close() -> None:
        clock.asleep_now.wait(PATIENCE_S)
        shaper.close()

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, close)
        with pytest.raises(StoreUnavailableError):
            await shaper.aschedule()


@pytest.mark.parametrize("method", ["now_us", "wall_us", "sleep", "asleep"])
def test_a_clock_without_a_method_cannot_be_made(method: str) -> None:
    """The error comes at once, and not at its first sleep, which would take no time, again and again."""
    without = {name: value for name, value in vars(Leaping).items() if name != method}
    with pytest.raises(TypeError, match=method):
        type("Without", (Clock,), without)()
