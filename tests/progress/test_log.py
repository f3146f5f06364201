"""Without a terminal: lines of the log at growing intervals, if its level is enabled."""

import logging
import sys
import threading
from contextlib import aclosing

import anyio
import pytest

from shapekit import ManualClock, MemoryStore, Policy
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.progress import aprogress, progress
from shapekit.testing import FaultyStore

from .conftest import Form

HOUR = 3_600


def test_lines_come_further_and_further_apart(form, listener, clock):
    policy = Policy("1/s", clock=clock)
    form.loop(range(2_001), policy, lambda item: policy.admit())
    assert [report["elapsed"] for report in listener.reports] == [
        0,
        10,
        20,
        40,
        80,
        160,
        320,
        640,
        1_240,
        1_840,
        2_000,
    ]
    assert listener.lines[4].partition(": ")[2] == "81/2,001 (4%), 1 min 20 s, 1.0/s, ETA 32 min"
    assert listener.lines[-1].partition(": ")[2] == "2,001/2,001 (100%), in 33 min 20 s, 1.0/s"


def test_a_line_waits_for_an_item(form, listener, clock):
    policy = Policy("1/h", clock=clock)
    form.loop(range(4), policy, lambda item: policy.admit())
    assert [report["elapsed"] for report in listener.reports] == [0, HOUR, 2 * HOUR, 3 * HOUR, 3 * HOUR]


def test_no_thread_is_started_for_the_log(listener, clock):
    for _ in progress(range(2), Policy("1/s", clock=clock)):
        assert "shapekit-progress" not in {thread.name for thread in threading.enumerate()}


def test_without_a_reader_of_the_log_no_forecast_is_made(form, clock):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("1/s", name="stripe", store=store)
    form.loop(range(100), policy, lambda item: clock.advance(10))
    assert store.calls == 0


def test_a_log_level_set_during_the_loop_takes_effect(form, listener, clock):
    policy = Policy("1/s", clock=clock)
    log = logging.getLogger("shapekit.progress")
    log.setLevel(logging.WARNING)

    def body(item):
        if item == 50:
            log.setLevel(logging.INFO)
        return policy.admit()

    form.loop(range(100), policy, body)
    # The forecast is made as often as it would be logged: after 10, 20, 40 and 80 s.
    assert [report["done"] for report in listener.reports] == [81, 100]


def test_a_shared_store_is_called_at_most_once_a_second(form, each, clock):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)
    form.loop(range(40), policy, lambda item: clock.advance(0.25))
    assert len(each.reports) == 42
    assert store.calls == 11
    # Each answer is counted down until the next one, which knows how long an item takes without waiting.
    assert [report["eta"] for report in each.reports[:6]] == [3.9, 3.65, 3.4, 3.15, 36 * 0.25, 35 * 0.25]


def test_a_store_that_is_gone_stops_no_loop_and_is_called_less_often(form, each, clock):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)

    def body(item):
        clock.advance(1)
        store.down = 10 <= item < 35

    form.loop(range(50), policy, body)
    assert len(each.reports) == 52
    # Once a second before and after the outage; during it, once in ten seconds.
    assert store.calls == 11 + 3 + 10
    assert [report["eta"] for report in each.reports[11:13]] == [39.0, 38.0]


@pytest.mark.parametrize("stream", [None, "closed"])
def test_without_a_stderr(listener, clock, monkeypatch, stream, tmp_path):
    if stream == "closed":
        stream = (tmp_path / "closed").open("w")
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    Form("sync").loop(range(3), Policy("1/s", clock=clock), lambda item: None)
    assert len(listener.reports) == 2


def test_time_that_goes_back_raises_nothing(form, each):
    clock = ManualClock(1_000.0)
    form.loop(range(3), Policy("1/s", clock=clock), lambda item: clock.set(900.0 - item))
    assert each.reports[-1]["elapsed"] == 0
    assert each.reports[-1]["done"] == 3


def test_a_forecast_does_not_block_the_event_loop(anyio_backend, listener, clock):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)
    store.slow = "5s"
    left = []

    async def loop():
        async with aclosing(aprogress(range(2), policy)) as watched:
            left.extend([clock.now() async for _ in watched])

    async def other():
        await clock.asleep(1, AsyncAlarm())
        left.append(clock.now())

    async def both():
        async with anyio.create_task_group() as group:
            group.start_soon(loop)
            group.start_soon(other)

    anyio.run(both, backend=anyio_backend)
    assert left == [1_001.0, 1_005.0, 1_005.0]
