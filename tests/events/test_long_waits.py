"""A wait of more than a minute without a bound is logged as a warning, once for each key."""

import logging
from functools import partial

import anyio
import pytest

from shapekit import ManualClock, Policy, QueueFullError, Shaper

LONG = "1 per 61 s"


@pytest.fixture
def warned(caplog):
    """The messages at WARNING."""
    caplog.set_level(logging.WARNING, "shapekit")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def shaper():
    return Shaper(LONG, name="api", clock=ManualClock(autojump=True))


def test_a_long_wait_is_logged_once_for_each_key(shaper, warned):
    for _ in range(4):
        shaper.schedule("one")
    for _ in range(2):
        shaper.schedule("other")
    message = (
        "api: key {!r} waits 1 min 01 s, and nothing bounds that: max_wait= refuses longer waits at once"
    )
    assert warned() == [message.format("one"), message.format("other")]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_long_wait_of_a_task_is_logged_too(shaper, warned, backend):
    async def main():
        await shaper.aschedule()
        await shaper.aschedule()

    anyio.run(main, backend=backend)
    assert len(warned()) == 1


def test_a_minute_is_not_long(warned):
    shaper = Shaper("1/min", clock=ManualClock(autojump=True))
    shaper.schedule()
    shaper.schedule()
    assert warned() == []


@pytest.mark.parametrize(
    "bounds", [{"max_wait": "2h"}, {"timeout": "2h"}, {"max_wait": "2h", "timeout": "3h"}], ids=str
)
def test_a_call_with_a_bound_is_not_warned_of(shaper, warned, bounds):
    schedule = partial(shaper.schedule, **bounds)
    schedule()
    schedule()
    assert warned() == []


def test_a_policy_with_a_max_wait_is_not_warned_of(warned):
    policy = Policy(LONG, max_wait="70s", clock=ManualClock(autojump=True))
    for _ in range(2):
        with policy.admit():
            pass
    assert warned() == []
    with pytest.raises(QueueFullError):
        policy.shaper.schedule(cost=1, max_wait=0)


def test_the_memory_of_warned_keys_is_bounded(shaper, warned, monkeypatch):
    monkeypatch.setattr("shapekit._queue.reporter.MOST_KEYS", 2)
    for key in ("one", "two", "three"):
        shaper.schedule(key)
        shaper.schedule(key)
    assert len(warned()) == 2
