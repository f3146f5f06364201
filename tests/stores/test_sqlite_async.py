"""SQLiteStore on event loops: a worker thread does the work, and a cancelled call is not charged."""

import asyncio
import threading

import anyio
import anyio.lowlevel
import pytest

from shapekit import GCRA, Gate, ManualClock, Quota, Shaper, SlidingWindowLog, StoreUnavailableError, all_of
from shapekit._runtime.drivers import ThreadCall
from shapekit.algorithms.base import CHECK, DEBIT, PEEK, REFUND
from shapekit.algorithms.queue.wire import CANCEL, CONFIRM, HOLD, LOOK, MARK, RESERVE, RESUME, SETTLE
from shapekit.stores.sqlite import SQLiteStore

PATIENCE_S = 20.0
pytestmark = pytest.mark.anyio


class Stopped(ManualClock):
    """A thread that reads it inside a transaction waits there, while `stopping`, until it may go on."""

    stopping = False
    ticking = False

    def __init__(self):
        super().__init__(1_000.0, autojump=True)
        self.inside, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def now_us(self):
        if self.stopping and threading.current_thread() is not threading.main_thread():
            self.stopping = False
            self.inside.release()
            assert self.go_on.acquire(timeout=PATIENCE_S)
        if self.ticking:
            self.advance(0.001)
        return super().now_us()


@pytest.fixture
def clock():
    return Stopped()


@pytest.fixture
def store(path, clock):
    store = SQLiteStore(path, clock=clock)
    yield store
    store.close()


async def until(event):
    assert await anyio.to_thread.run_sync(lambda: event.acquire(timeout=PATIENCE_S))


async def test_every_awaitable_twin_does_the_same(store, clock):
    shaper = Shaper("1/s", name="shaper", store=store)
    gate = Gate(GCRA("1/s", burst=3), name="gate", store=store)
    slots = [await shaper.areserve() for _ in range(3)]
    assert [slot.delay for slot in slots] == [0, 1, 2]
    assert await slots[2].acancel()
    assert (await shaper.aforecast()).first_in == 2
    assert await shaper.ahold(5) == 5
    assert await shaper.aresume() == 1.5
    assert await gate.acheck()
    assert [bool(decision) for decision in await gate.acheck_many(["default"] * 3)] == [True, True, False]
    await gate.areset()
    assert (await gate.apeek()).remaining == 3
    await shaper.areset()
    await shaper.aschedule()
    before = clock.now()
    await shaper.aschedule()
    assert clock.now() == before + 1
    await store.aclose()
    with pytest.raises(StoreUnavailableError):
        await gate.acheck()


async def test_the_loop_goes_on_while_a_worker_waits(store, clock):
    gate = Gate(GCRA("1/s", burst=3), name="gate", store=store)
    clock.stopping = True
    ticks = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gate.acheck)
        await until(clock.inside)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
            ticks += 1
        clock.go_on.release()
    assert ticks == 100
    assert gate.peek().current == 1


HOUR = 3_600
BUCKET, LOG, QUOTA = GCRA("1/h", burst=4), SlidingWindowLog(4, HOUR), Quota("4/rolling:1h")
PARTS, BOTH = all_of(a=BUCKET, b=LOG), {"a": "x", "b": "y"}


def gate(store, strategy):
    return Gate(strategy, name="name", store=store)


def queue(store):
    return Shaper("1/h", burst=4, max_wait=0, name="name", store=store)


TAKING = {
    # Calls that take all there is; and calls that then take it again, if it was given back.
    "check": (lambda s: gate(s, BUCKET).acheck(cost=4), lambda s: gate(s, BUCKET).check(cost=4)),
    "check of parts": (
        lambda s: gate(s, PARTS).acheck(BOTH, cost=4),
        lambda s: gate(s, PARTS).check(BOTH, cost=4),
    ),
    "check of many": (
        lambda s: gate(s, QUOTA).acheck_many(["a", "b", "a"], cost=2),
        lambda s: all(gate(s, QUOTA).check_many(["a", "b"], cost=4)),
    ),
    "reserve": (lambda s: queue(s).areserve(cost=4), lambda s: queue(s).reserve(cost=4)),
}


@pytest.fixture
def given_back(monkeypatch):
    """Is released when a worker has given back what a call took."""
    seen = threading.Semaphore(0)
    give_back = SQLiteStore._give_back

    def watched(*args):
        give_back(*args)
        seen.release()

    monkeypatch.setattr(SQLiteStore, "_give_back", watched)
    return seen


@pytest.mark.parametrize(("taking", "again"), TAKING.values(), ids=TAKING)
async def test_a_call_cancelled_midway_gives_back_what_it_took(store, clock, given_back, taking, again):
    clock.stopping = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(taking, store)
        await until(clock.inside)
        tasks.cancel_scope.cancel()
    assert not given_back.acquire(blocking=False), "the task has not waited for its thread"
    clock.go_on.release()
    await until(given_back)
    assert again(store)
    assert not again(store)


async def test_a_slot_for_now_whose_instant_has_passed_is_given_back_too(store, clock, given_back):
    shaper = Shaper("1/day", name="n", store=store)
    clock.stopping = clock.ticking = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shaper.aschedule)
        await until(clock.inside)
        tasks.cancel_scope.cancel()
    clock.go_on.release()
    await until(given_back)
    assert shaper.reserve().delay == 0
    assert shaper.reserve().delay > 0


async def test_a_call_cancelled_before_it_begins_takes_nothing(store, clock):
    shaper = Shaper("1/day", name="n", store=store)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await shaper.areserve()
    assert shaper.reserve().delay == 0


def test_asyncio_cancels_a_task_whose_call_is_done_already(store, clock, given_back, monkeypatch):
    # The answer is on its way to the task, which is cancelled before it gets to see it.
    shaper = Shaper("1/day", max_wait=0, name="name", store=store)
    answered = threading.Event()
    work = ThreadCall.work

    def working(thread_call):
        try:
            return work(thread_call)
        finally:
            answered.set()

    async def main():
        monkeypatch.setattr(ThreadCall, "work", working)
        clock.stopping = True
        task = asyncio.ensure_future(shaper.areserve())
        assert await asyncio.to_thread(clock.inside.acquire, timeout=PATIENCE_S)
        clock.go_on.release()
        # This blocks the loop, so the answer cannot be delivered meanwhile.
        assert answered.wait(PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert given_back.acquire(timeout=PATIENCE_S)
    assert shaper.reserve().delay == 0


async def test_a_waiter_that_is_cancelled_gives_its_slot_back(store, clock):
    by_hand = ManualClock(1_000.0)
    store.clock = by_hand
    shaper = Shaper("1/day", name="n", store=store)
    assert shaper.reserve()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shaper.aschedule)
        while not by_hand._sleepers:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert shaper.reserve().delay == 86_400


async def test_an_error_in_a_worker_thread_is_raised(store):
    gate = Gate(GCRA("1/s"), name="n", store=store)
    assert await gate.acheck()
    store.close()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        await gate.acheck()


def test_only_calls_that_took_something_are_undone():
    limit = GCRA("1/s", burst=2)
    admitted = limit.check(None, 0, 2).decision
    denied = limit.check(limit.check(None, 0, 2).state, 0, 1).decision
    assert CHECK.undone((2,), admitted) == ((REFUND, (2, admitted.receipt)),)
    assert CHECK.undone((1,), denied) == ()
    shaper = Shaper("1/s", max_wait=1)
    now, soon, refused = shaper.reserve(), shaper.reserve(), shaper.reserve()
    for slot in (now, soon):
        assert RESERVE.undone(((1, 0, 7),), slot.grant) == (
            (CANCEL, (slot.grant,)),
            (SETTLE, ((slot.grant, 0, 7),)),
        )
    assert RESERVE.undone(((1, 0, 7),), refused.grant) == ()
    for operation in (DEBIT, PEEK, LOOK, HOLD, MARK, SETTLE, CONFIRM, RESUME, REFUND):
        assert operation.undone((2,), admitted) == ()
