"""The store has a clock of its own and is gone: no call leaves at another time for that."""

import asyncio

import pytest

from shapekit import ManualClock, ResilientStore, Shaper, StoreUnavailableError

from .slow_store import FarStore

HOUR = 3_600
MODES = {"raise": {}, "open": {}, "closed": {}, "local": {"share": 0.5}}


@pytest.fixture(params=[HOUR, -HOUR], ids=["store ahead", "workers ahead"])
def far(request, monkeypatch):
    monkeypatch.setattr(FarStore, "ahead_s", request.param)
    return FarStore(ManualClock(10_000.0), 0)


def lose(far):
    far.broken = StoreUnavailableError("gone")


def resilient(far, mode):
    return Shaper("1/s", store=ResilientStore(far, on_outage=mode, timeout=20, **MODES[mode]), name="api")


@pytest.mark.parametrize("mode", MODES)
def test_what_remains_until_a_slot_of_the_store_is_the_same(far, mode):
    shaper = resilient(far, mode)
    slot = [shaper.reserve() for _ in range(3)][-1]
    assert shaper.remaining(slot) == 2.0
    lose(far)
    far.clock.advance(0.5)
    assert shaper.remaining(slot) == 1.5
    if mode in ("open", "local"):
        assert shaper.reserve()
        far.clock.advance(0.5)
        assert shaper.remaining(slot) == 1.0


def test_what_remains_until_a_local_slot_is_the_same_after_the_outage(far):
    shaper = resilient(far, "local")
    shaper.reserve()
    lose(far)
    slots = [shaper.reserve() for _ in range(10)]
    assert slots[-1].delay == 18.0
    assert shaper.remaining(slots[-1]) == 18.0
    far.broken = None
    far.clock.advance(10)
    assert shaper.reserve()
    assert shaper.remaining(slots[-1]) == 8.0


@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_comes_and_goes_lets_no_call_leave_early_or_late(far, mode):
    """The second time, the waiting call does not learn the store's time before it leaves."""
    shaper, clock = resilient(far, mode), far.clock

    async def main():
        slot = [await shaper.areserve() for _ in range(2)][-1]
        assert await shaper.aremaining(slot) == 1.0
        lose(far)
        await clock.aadvance(0.5)
        assert await shaper.aremaining(slot) == 0.5
        far.broken = None
        await clock.aadvance(10)
        assert (await shaper.areserve()).delay == 0.0
        waiting = asyncio.create_task(shaper.aschedule())
        await clock.aadvance(0.5)
        lose(far)
        await clock.aadvance(0.499_999)
        assert not waiting.done()
        await clock.aadvance(0.000_001)
        assert waiting.done()

    asyncio.run(main())
