"""A task that waits for a worker thread may go away at any moment, and never waits for the thread then."""

import threading
import time

import anyio
import pytest

from shapekit._runtime.drivers import GIVING_BACK, ThreadCall, Workers

PATIENCE_S = 20.0


class Giver:
    """Gives back what was taken, when the store lets it."""

    def __init__(self):
        self.may = threading.Event()
        self.given = []
        self.has_given = threading.Event()

    def __call__(self, answer):
        assert self.may.wait(PATIENCE_S)
        self.given.append((answer, threading.current_thread().name))
        self.has_given.set()


@pytest.fixture
def giver():
    giver = Giver()
    yield giver
    giver.may.set()


@pytest.mark.anyio
async def test_a_cancelled_task_does_not_wait_until_its_answer_is_given_back(giver):
    """The store may hang by now: a Redis that was stopped held the task up for as long as it was."""
    has_begun, may_answer = threading.Event(), threading.Event()

    def call():
        has_begun.set()
        assert may_answer.wait(PATIENCE_S)
        return 7

    thread_call = ThreadCall(call, giver)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(thread_call.run, Workers())
            assert await anyio.to_thread.run_sync(has_begun.wait, PATIENCE_S)
            # From here on the loop does nothing else, so the answer cannot reach the task.
            may_answer.set()
            give_up = time.monotonic() + PATIENCE_S
            while not thread_call._done:
                assert time.monotonic() < give_up
            scope.cancel()
    assert giver.given == []
    giver.may.set()
    assert await anyio.to_thread.run_sync(giver.has_given.wait, PATIENCE_S)
    assert giver.given == [(7, GIVING_BACK)]


@pytest.mark.anyio
async def test_a_thread_that_ends_after_its_task_gives_the_answer_back_itself(giver):
    has_begun, may_answer = threading.Event(), threading.Event()

    def call():
        has_begun.set()
        assert may_answer.wait(PATIENCE_S)
        return 7

    giver.may.set()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ThreadCall(call, giver).run, Workers())
            assert await anyio.to_thread.run_sync(has_begun.wait, PATIENCE_S)
            scope.cancel()
    assert giver.given == []
    may_answer.set()
    assert await anyio.to_thread.run_sync(giver.has_given.wait, PATIENCE_S)
    ((answer, thread),) = giver.given
    assert answer == 7
    assert thread != GIVING_BACK


@pytest.mark.anyio
async def test_an_answer_that_reached_its_task_is_kept(giver):
    assert await ThreadCall(lambda: 7, giver).run(Workers()) == 7
    assert giver.given == []
