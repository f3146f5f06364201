"""Line: the sleeper that is due first goes first, in whatever order a loop wakes them."""

import random

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from shapekit import ManualClock
from shapekit.clock import Line, Sleepers

PATIENCE_S = 20


class Bell:
    def __init__(self):
        self.rung = 0

    def set(self):
        self.rung += 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3))), st.randoms(use_true_random=False))
def test_a_line_stays_sorted_while_sleepers_join_and_leave(dues, rng):
    line = Line()
    standing = [line.join(*due) for due in dues]
    while standing:
        first = min(standing)
        assert [line.is_first(place) for place in standing] == [place is first for place in standing]
        assert len(line) == len(standing)
        line.leave(standing.pop(rng.randrange(len(standing))))
    assert len(line) == 0


def test_sleepers_due_together_go_by_their_number_and_then_in_order_of_arrival():
    line = Line()
    places = [line.join(*due) for due in ((5, 1), (5, 0), (4, 9), (5, 0))]
    assert sorted(places) == [places[2], places[1], places[3], places[0]]


@pytest.mark.parametrize(("now", "rung"), [(9, 0), (10, 1), (11, 1)])
def test_only_the_first_is_called_and_only_when_due(now, rung):
    line, bells = Line(), [Bell(), Bell()]
    for due, bell in zip((10, 10), bells, strict=True):
        line.begin_wait(line.join(due, 0), bell)
    line.call_first(now)
    assert [bell.rung for bell in bells] == [rung, 0]


def test_a_clock_that_goes_back_leaves_no_sleeper_uncalled():
    line, bell = Line(), Bell()
    line.call_first(10)
    line.begin_wait(line.join(10, 0), bell)
    line.call_first(3)
    assert bell.rung == 1


class Shuffling(ManualClock):
    """Wakes no sleeper at the instant, and then all due ones in any order, some passes of the loop apart."""

    def __init__(self, seed):
        super().__init__(1_000)
        self._rng = random.Random(seed)

    async def asleep(self, seconds, alarm):
        due_us = self.now_us() + round(seconds * 1e6)
        while self.now_us() < due_us and not alarm.is_set():
            await checkpoint()
        for _ in range(self._rng.randrange(8)):
            if not alarm.is_set():
                await checkpoint()


@pytest.mark.parametrize("seed", range(5))
def test_sleepers_due_at_once_go_in_order(anyio_backend, seed):
    """Several due at each of several instants, after a stall in which all of them have passed."""
    clock, rng = Shuffling(seed), random.Random(seed)
    waiters, gone = Sleepers(clock, "test"), []
    start = clock.now_us()
    sleepers = [(start + due, number) for due in range(1, 6) for number in range(6)]

    async def member(due, number):
        await waiters.asleep(due, number)
        gone.append((due, number))

    async def main():
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for due in rng.sample(sleepers, len(sleepers)):
                    tasks.start_soon(member, *due)
                for _ in range(3):
                    await checkpoint()
                clock.advance(1)

    anyio.run(main, backend=anyio_backend)
    assert gone == sleepers
    assert waiters._lines == {}


def test_a_first_sleeper_that_is_cancelled_lets_the_next_one_go(anyio_backend):
    """The first has been called, and is cancelled before it runs: the next waits for it without a timer."""
    clock = ManualClock(1_000)
    waiters, gone, scope = Sleepers(clock, "test"), [], anyio.CancelScope
    start = clock.now_us()

    async def main():
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                quitter = scope()

                async def quits():
                    with quitter:
                        await waiters.asleep(start + 10, 0)
                        gone.append("quitter")

                async def stays():
                    await waiters.asleep(start + 10, 1)
                    gone.append("next")

                tasks.start_soon(quits)
                tasks.start_soon(stays)
                await anyio.wait_all_tasks_blocked()
                quitter.cancel()
                clock.advance(0.00001)

    anyio.run(main, backend=anyio_backend)
    assert gone == ["next"]
    assert waiters._lines == {}
