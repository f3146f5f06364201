"""Gate.schedule: a waiter that is cancelled, interrupted or closed upon gives its turn back."""

import threading

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    LeakyBucket,
    ManualClock,
    MemoryStore,
    Quota,
    SlidingWindow,
    SlidingWindowLog,
    StoreUnavailableError,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit.testing import check_pace

PATIENCE_S = 20
ONE = GCRA("1/s", burst=1)
STRATEGIES = [
    ONE,
    GCRA("3/s", burst=2),
    TokenBucket("1/s", 1),
    LeakyBucket("1/s", 1),
    FixedWindow("1/s"),
    SlidingWindow("2/s"),
    SlidingWindow("2/s", conservative=True),
    SlidingWindowLog("2/s"),
    Quota("2/rolling:1s"),
    Quota("2/fixed:1s"),
    all_of(a=GCRA("1/s", burst=1), b=SlidingWindowLog("2/s")),
    any_of(a=GCRA("1/s", burst=1), b=GCRA("1 per 3 s", burst=1)),
    first_of(a=GCRA("1/s", burst=1), b=GCRA("1 per 3 s", burst=1)),
]
EACH = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.kind)


def full(strategy, clock):
    gate = Gate(strategy, clock=clock)
    while gate.check():
        pass
    return gate


class InterruptedClock(ManualClock):
    """Somebody presses control-C while a thread sleeps."""

    def __init__(self, error=KeyboardInterrupt):
        super().__init__()
        self.error, self.interrupting = error, True

    def sleep(self, seconds, alarm):
        if self.interrupting:
            raise self.error
        self.advance(seconds)


@EACH
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_an_interrupted_thread_gives_its_turn_back(strategy, error):
    clock = InterruptedClock(error)
    gate = full(strategy, clock)
    wait_us = gate.peek().retry_after_us
    for _ in range(10):
        with pytest.raises(error):
            gate.schedule(max_wait="1h")
    clock.interrupting = False
    assert gate.schedule(max_wait="1h").delay_us == clock.now_us() == wait_us


async def waiters(gate, clock, number):
    """Starts waiters in order; returns their scopes, and where each writes when it leaves."""
    scopes, left = [anyio.CancelScope() for _ in range(number)], {}

    async def leave(who):
        with scopes[who]:
            await gate.aschedule(max_wait="1h")
            left[who] = clock.now()

    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    for who in range(number):
        tasks.start_soon(leave, who)
        await anyio.wait_all_tasks_blocked()
    return tasks, scopes, left


@pytest.mark.anyio
@EACH
async def test_cancelled_tasks_give_their_turns_back(strategy):
    clock = ManualClock()
    gate = full(strategy, clock)
    wait_us = gate.peek().retry_after_us
    tasks, scopes, left = await waiters(gate, clock, 10)
    for scope in reversed(scopes):
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
    await tasks.__aexit__(None, None, None)
    assert (clock.now(), left) == (0, {})
    assert gate.peek().retry_after_us == wait_us


@pytest.mark.anyio
@pytest.mark.parametrize("strategy", [ONE, FixedWindow("1/s"), SlidingWindowLog("1/s")], ids=repr)
async def test_a_cancelled_group_of_tasks_leaves_no_turn_behind(strategy):
    # A task group cancels in the order of starting: all but the last are in the middle when they go.
    clock = ManualClock()
    gate = full(strategy, clock)
    tasks, _, left = await waiters(gate, clock, 10)
    tasks.cancel_scope.cancel()
    await tasks.__aexit__(None, None, None)
    assert (clock.now(), left) == (0, {})
    assert gate.peek().retry_after_us == 1_000_000


@pytest.mark.anyio
async def test_a_cancelled_tail_is_taken_by_the_next_who_asks():
    clock = ManualClock()
    gate = full(ONE, clock)
    tasks, scopes, left = await waiters(gate, clock, 3)
    scopes[2].cancel()
    await anyio.wait_all_tasks_blocked()
    assert gate.peek().retry_after == 3
    tasks.start_soon(gate.aschedule)
    await anyio.wait_all_tasks_blocked()
    assert gate.peek().retry_after == 4
    await clock.aadvance(10)
    await tasks.__aexit__(None, None, None)
    assert left == {0: 1.0, 1: 2.0}


@pytest.mark.anyio
async def test_a_cancelled_waiter_moves_none_of_the_others():
    clock = ManualClock()
    gate = full(ONE, clock)
    tasks, scopes, left = await waiters(gate, clock, 4)
    scopes[1].cancel()
    await clock.aadvance(10)
    await tasks.__aexit__(None, None, None)
    assert left == {0: 1.0, 2: 3.0, 3: 4.0}


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "cancel", "wait"]), st.integers(0, 9)), max_size=25
)


@given(STEPS, st.integers(1, 3), st.sampled_from(["asyncio", "trio"]))
@example([("ask", 0)] * 4 + [("cancel", 0), ("ask", 0)], 1, "asyncio")
def test_who_comes_after_cancelled_waiters_never_breaks_the_pace(steps, burst, backend):
    clock = ManualClock()
    gate = Gate(GCRA("3/s", burst=burst), clock=clock)

    async def main():
        left, waiting = [], []

        async def leave(scope):
            waiting.append(scope)
            with scope:
                await gate.aschedule()
                left.append(clock.now())
            waiting.remove(scope)

        async with anyio.create_task_group() as tasks:
            for step, which in steps:
                if step == "ask":
                    tasks.start_soon(leave, anyio.CancelScope())
                elif step == "cancel" and waiting:
                    waiting[which % len(waiting)].cancel()
                else:
                    await clock.aadvance(0.3)
                await anyio.wait_all_tasks_blocked()
            await clock.aadvance(60)
        return left

    check_pace(anyio.run(main, backend=backend), "3/s", burst, tolerance="1us")


@pytest.mark.anyio
async def test_a_waiter_cancelled_late_gives_back_no_more_than_is_left():
    clock = ManualClock()
    gate = full(ONE, clock)
    tasks, scopes, left = await waiters(gate, clock, 2)
    await clock.aadvance(1.5)
    scopes[1].cancel()
    await anyio.wait_all_tasks_blocked()
    await tasks.__aexit__(None, None, None)
    assert left == {0: 1.0}
    assert gate.peek().retry_after == 0.5


@pytest.mark.anyio
async def test_a_timeout_gives_the_turn_back():
    clock = ManualClock()
    gate = full(ONE, clock)
    before = gate.peek()
    with anyio.move_on_after(0.001) as scope:
        await gate.aschedule()
    assert scope.cancelled_caught
    assert gate.peek() == before


# close


def refusals(errors, wait):
    def job():
        try:
            wait()
        except StoreUnavailableError as error:
            errors.append(error)

    return job


@pytest.mark.parametrize("owned", [True, False])
def test_close_wakes_waiting_threads(crew, until_asleep, owned):
    clock, errors = ManualClock(), []
    store = MemoryStore(clock)
    gate = Gate(ONE, clock=clock) if owned else Gate(ONE, store=store, name="api")
    assert gate.check()
    crew.start(*[refusals(errors, gate.schedule)] * 5)
    until_asleep(clock, 5)
    gate.close()
    crew.join()
    assert len(errors) == 5
    assert clock.now() == 0


@pytest.mark.anyio
@pytest.mark.parametrize("owned", [True, False])
async def test_close_wakes_waiting_tasks(ask, owned):
    clock, errors = ManualClock(), []
    store = MemoryStore(clock)
    gate = Gate(ONE, clock=clock) if owned else Gate(ONE, store=store, name="api")
    assert gate.check()

    async def wait():
        try:
            await gate.aschedule()
        except StoreUnavailableError as error:
            errors.append(error)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await ask(gate, "close")
    assert len(errors) == 5
    assert clock.now() == 0


def test_close_gives_the_turn_back_to_those_who_share_the_store(crew, until_asleep):
    clock, errors = ManualClock(), []
    store = MemoryStore(clock)
    gate = Gate(ONE, store=store, name="api")
    assert gate.check()
    crew.start(refusals(errors, gate.schedule))
    until_asleep(clock, 1)
    gate.close()
    crew.join()
    assert Gate(ONE, store=store, name="api").peek().retry_after == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_close_in_one_thread_wakes_a_task_in_another(crew, until_asleep, backend):
    clock, errors = ManualClock(), []
    gate = full(ONE, clock)
    crew.start(refusals(errors, lambda: anyio.run(gate.aschedule, backend=backend)))
    until_asleep(clock, 1)
    gate.close()
    crew.join()
    assert len(errors) == 1


def test_close_wakes_waiters_of_its_own_gate_alone(crew, until_asleep):
    clock, errors, left = ManualClock(), [], []
    store = MemoryStore(clock)
    closed, open_ = (Gate(ONE, store=store, name=name) for name in ("closed", "open"))
    for gate in (closed, open_):
        assert gate.check()
    crew.start(refusals(errors, closed.schedule), lambda: left.append(open_.schedule().delay))
    until_asleep(clock, 2)
    closed.close()
    clock.advance(1)
    crew.join()
    assert (len(errors), left) == (1, [1.0])


@pytest.mark.anyio
async def test_who_comes_after_close_does_not_wait(ask):
    clock = ManualClock()
    gate = Gate(ONE, store=MemoryStore(clock), name="api")
    await ask(gate, "check")
    await ask(gate, "close")
    with pytest.raises(StoreUnavailableError, match="closed"):
        await ask(gate, "schedule")
    assert gate.peek().retry_after == 1


def test_a_waiter_woken_by_the_clock_is_not_woken_again_by_close(crew, until_asleep):
    clock = ManualClock()
    gate = full(ONE, clock)
    done = threading.Event()

    def job():
        gate.schedule()
        done.set()

    crew.start(job)
    until_asleep(clock, 1)
    clock.advance(1)
    assert done.wait(PATIENCE_S)
    gate.close()
