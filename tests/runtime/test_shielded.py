"""What a cancelled task still does comes to its end; what cancels it meanwhile takes effect afterwards."""

import asyncio

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, THREADS, hidden_tasks, run, shielded
from shapekit.testing import ManualClock

PASSES = 5


async def work(done, error=None):
    for _ in range(PASSES):
        await checkpoint()
    done.append(True)
    if error is not None:
        raise error
    return 7


async def cleaning_up(done):
    try:
        await asyncio.Event().wait()
    finally:
        await shielded(lambda: work(done))


@pytest.mark.anyio
async def test_a_shielded_call_returns_the_answer_or_raises_the_error():
    done = []
    assert await shielded(lambda: work(done)) == 7
    with pytest.raises(KeyError):
        await TASKS.shielded(lambda: work(done, KeyError()))
    assert done == [True, True]


def test_a_shielded_call_in_a_thread_is_a_plain_call():
    async def flow(driver):
        return await driver.shielded(lambda: THREADS.shielded(lambda: TASKS.shielded(now)))

    async def now():
        return 7

    assert run(flow) == 7


@pytest.mark.anyio
async def test_a_shielded_call_in_a_cancelled_scope_goes_on():
    done = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await shielded(lambda: work(done))
        assert done == [True]
        await checkpoint()
    assert scope.cancelled_caught


@pytest.mark.parametrize("passes", range(PASSES))
def test_a_shielded_call_goes_on_however_often_asyncio_cancels(passes):
    async def main():
        done = []
        task = asyncio.ensure_future(cleaning_up(done))
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            for _ in range(passes + 1):
                await asyncio.sleep(0)
        assert task.cancelled()
        assert done == [True]

    asyncio.run(main())


def test_a_cancellation_strikes_when_the_shielded_call_has_ended():
    async def main():
        done = []
        task = asyncio.ensure_future(shielded(lambda: work(done)))
        await asyncio.sleep(0)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        assert done == [True]

    asyncio.run(main())


def test_what_never_ends_is_ended_when_it_was_cancelled_again(monkeypatch):
    monkeypatch.setattr(process, "LAST_S", 0.01)
    ended = []

    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main():
        task = asyncio.ensure_future(shielded(endless))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert ended == [True]

    asyncio.run(main())


def test_an_error_does_not_hide_that_it_was_cancelled():
    async def main():
        task = asyncio.ensure_future(shielded(lambda: work([], KeyError())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert isinstance(caught.value.__context__, KeyError)

    asyncio.run(main())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_timeout_around_it_and_a_cancelled_task_raise_different_errors(is_cancelled):
    async def main():
        done = []

        async def call():
            async with asyncio.timeout(0):
                await cleaning_up(done)

        task = asyncio.ensure_future(call())
        for _ in range(PASSES):
            await asyncio.sleep(0)
        assert task.cancelling()
        assert not task.done()
        if is_cancelled:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else TimeoutError):
            await task
        assert done == [True]

    asyncio.run(main())


def test_a_scope_of_anyio_does_not_hide_that_asyncio_cancels():
    async def main():
        done, scopes = [], []

        async def call():
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await cleaning_up(done)

        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        scopes[0].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert done == [True]

    asyncio.run(main())


def test_a_loop_ends_when_it_has_ended():
    """`asyncio.run` cancels what main has left: whatever tasks it finds."""
    done = []

    async def main():
        tasks.append(asyncio.ensure_future(cleaning_up(done)))
        await asyncio.sleep(0)
        tasks[0].cancel()

    tasks = []
    asyncio.run(main())
    assert done == [True]
    assert tasks[0].cancelled()


def test_a_task_that_is_discarded_with_its_loop_raises_nothing():
    loop = asyncio.new_event_loop()
    # It complains of every task that is collected before it is done.
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(shielded(asyncio.Event().wait))

    async def at_work():
        await asyncio.sleep(0)
        return hidden_tasks()

    (working,) = loop.run_until_complete(at_work())
    loop.close()
    # In whatever order the collector does it.
    working.get_coro().close()
    task.get_coro().close()


def test_virtual_time_stands_still_meanwhile():
    clock = ManualClock(1_000, autojump=True)

    async def main():
        done = []
        sleeper = asyncio.ensure_future(clock.asleep(60, TASKS.alarm()))
        await shielded(lambda: work(done))
        assert clock.now() == 1_000
        await sleeper
        assert clock.now() == 1_060

    asyncio.run(main())
