"""The store has a clock of its own and is gone: no call leaves at another time for that."""

import asyncio

import pytest

from shapekit import ManualClock, ResilientStore, Shaper, StoreUnavailableError
from shapekit._queue.waiter import PendingWait
from shapekit._runtime.drivers import run

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
    coming = run(shaper.core.coming, slot, 1.0)
    assert (coming.remaining_s, coming.reservation.departs_at) == (1.5, slot.departs_at)
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


def test_a_call_with_a_local_slot_has_waited_since_it_asked(far):
    """Its bounds count from there, whatever the store's clock shows."""
    shaper, clock = resilient(far, "local"), far.clock

    async def main():
        await shaper.areserve()
        await shaper.aremaining(await shaper.areserve())
        lose(far)
        await clock.aadvance(0.5)
        bounds = ({}, {"timeout": 30}, {"max_wait": 30})
        waiting = [asyncio.create_task(shaper.aschedule(**bound)) for bound in bounds]
        await clock.aadvance(3.999_999)
        assert [one.done() for one in waiting] == [True, True, False]
        await clock.aadvance(0.000_001)
        assert [one.result().delay for one in waiting] == [0.0, 2.0, 4.0]

    asyncio.run(main())


def test_a_call_that_exchanges_its_slot_for_one_of_the_other_side_sleeps_by_that_sides_clock(far):
    shaper = resilient(far, "local")
    slots = [shaper.reserve() for _ in range(2)]
    shaper.remaining(slots[-1])
    lead_us = shaper.core.status.store_clock.lead_us
    assert lead_us == -FarStore.ahead_s * 1_000_000
    lose(far)
    far.clock.advance(0.5)
    own, local = slots[-1].grant, [shaper.reserve() for _ in range(2)][-1].grant
    pending = PendingWait(slots[-1], lead_us, None, None)
    pending.exchange(local)
    assert pending.due_us == local.departs_at_us
    pending.exchange(own)
    assert pending.due_us == own.departs_at_us + lead_us


def test_answers_in_an_outage_are_no_quick_trips():
    far = FarStore(ManualClock(10_000.0, autojump=True), 0.05)
    store = ResilientStore(far, on_outage="open", timeout=20)
    shaper = Shaper("100/s", store=store, name="far", prefetch="1s")
    for _ in range(3):
        shaper.schedule()
    lose(far)
    for _ in range(3):
        shaper.schedule(cost=2)
    assert store.is_lost
    assert shaper.core.status.store_clock.trip_us == 50_000
    shaper.close()
