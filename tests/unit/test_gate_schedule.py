"""Gate.schedule: first come first served, one sleep each, and a refusal that costs nothing."""

from datetime import timedelta

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    LeakyBucket,
    ManualClock,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
)
from shapekit.testing import check_pace, check_window

SECOND_US = 1_000_000
STRATEGIES = [
    GCRA("2/s", burst=3),
    TokenBucket("2/s", 3),
    LeakyBucket("2/s", 3),
    FixedWindow("3/s"),
    SlidingWindow("3/s"),
    SlidingWindow("3/s", conservative=True),
    SlidingWindowLog("3/s"),
    Quota("3/fixed:1s"),
    Quota("3/rolling:1s"),
    all_of(a=GCRA("2/s", burst=3), b=SlidingWindowLog("3/s")),
]
EACH = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.kind)
COSTS = st.lists(st.integers(1, 3), min_size=1, max_size=15)


async def departures(gate, clock, costs):
    """Lets a task for each cost ask in turn; returns when each has left, with its cost, in that order."""
    left = [None] * len(costs)

    async def leave(who, cost):
        await gate.aschedule(cost=cost, max_wait="1h")
        left[who] = (clock.now(), cost)

    async with anyio.create_task_group() as tasks:
        for who, cost in enumerate(costs):
            tasks.start_soon(leave, who, cost)
            # On trio the tasks of one tick start in any order: each asks before the next is made.
            await anyio.wait_all_tasks_blocked()
        await clock.aadvance(600)
    return left


@pytest.mark.anyio
@EACH
async def test_first_come_is_first_served_whatever_the_costs(recording_clock, strategy):
    clock = recording_clock(autojump=False)
    costs = [1, 3, 1, 2, 1, 1, 3, 3, 1, 2]
    left = await departures(Gate(strategy, clock=clock), clock, costs)
    assert [at for at, _ in left] == sorted(at for at, _ in left)
    assert left[-1][0] > 0
    assert len(clock.slept) <= len(costs)


@given(COSTS, st.sampled_from(["asyncio", "trio"]))
def test_departures_keep_the_pace_and_waste_none_of_it(costs, backend):
    clock = ManualClock()
    gate = Gate(GCRA("3/s", burst=4), clock=clock)
    left = anyio.run(departures, gate, clock, costs, backend=backend)
    assert [at for at, _ in left] == sorted(at for at, _ in left)
    check_pace(left, "3/s", burst=4, tolerance="1us")
    # Everybody asked at once, so the last leaves when all that was asked for fits, to the microsecond.
    least_us = max(0, -(-(sum(costs) - 4) * SECOND_US // 3))
    assert left[-1][0] * SECOND_US == pytest.approx(least_us, abs=1e-3)


@given(COSTS, st.sampled_from(["asyncio", "trio"]))
def test_departures_never_overfill_a_window(costs, backend):
    clock = ManualClock()
    gate = Gate(SlidingWindowLog("4/s"), clock=clock)
    left = anyio.run(departures, gate, clock, costs, backend=backend)
    assert [at for at, _ in left] == sorted(at for at, _ in left)
    check_window(left, "4/s")


@EACH
def test_one_sleep_for_each_wait(recording_clock, strategy):
    clock = recording_clock()
    gate = Gate(strategy, clock=clock)
    waits = []
    for cost in [3, 1, 1, 2, 3, 1]:
        before = clock.now_us()
        turn = gate.schedule(cost=cost, max_wait="1h")
        assert turn.allowed
        assert clock.now_us() - before == turn.delay_us
        if turn.delay_us:
            waits.append(turn.delay)
    assert waits
    assert clock.slept == waits


@pytest.mark.anyio
async def test_one_sleep_for_each_task_s_wait(recording_clock):
    clock = recording_clock(autojump=False)
    await departures(Gate(GCRA("1/s", burst=1), clock=clock), clock, [1] * 10)
    assert clock.slept == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_threads_leave_at_their_own_instants(crew, until_asleep, patient_settling):
    clock = ManualClock()
    gate = Gate(GCRA("1/s", burst=1), clock=clock)
    left = []

    def leave():
        turn = gate.schedule()
        left.append((clock.now(), turn.delay))

    crew.start(*[leave] * 8)
    until_asleep(clock, 7)
    clock.advance(10)
    crew.join()
    assert sorted(left) == [(float(n), float(n)) for n in range(8)]
    check_pace([at for at, _ in left], "1/s")


@pytest.mark.anyio
@pytest.mark.parametrize("max_wait", [1, 1.0, "1s", timedelta(seconds=1), "999.999ms", 0, "0s", 1e-6])
async def test_past_max_wait_it_is_refused_and_nothing_is_consumed(ask, recording_clock, max_wait):
    clock = recording_clock()
    gate = Gate(GCRA("1/s", burst=2), clock=clock)
    await ask(gate, "check", "key", cost=2)
    clock.advance(0.000001)
    await ask(gate, "debit", "key")
    before = gate.peek("key"), gate.forecast("key"), len(gate._store)
    with pytest.raises(QueueFullError) as caught:
        await ask(gate, "schedule", "key", max_wait=max_wait)
    error = caught.value
    assert (error.delay, error.key) == (1.999999, "key")
    assert error.retry_after == error.delay
    assert (gate.peek("key"), gate.forecast("key"), len(gate._store)) == before
    assert clock.slept == []


@pytest.mark.parametrize(
    ("max_wait", "seconds"),
    [("250ms", 0.25), (0.25, 0.25), (timedelta(milliseconds=250), 0.25), (0, 0.0)],
)
def test_the_refusal_names_max_wait_in_seconds(max_wait, seconds):
    gate = Gate(GCRA("1/s", burst=1), clock=ManualClock())
    gate.check("key")
    with pytest.raises(QueueFullError) as caught:
        gate.schedule("key", max_wait=max_wait)
    assert (caught.value.max_wait, caught.value.delay) == (seconds, 1.0)


@EACH
def test_max_wait_is_exact_to_the_microsecond(strategy):
    clock = ManualClock(autojump=True)
    gate = Gate(strategy, clock=clock)
    while gate.check("key"):
        pass
    wait_us = gate.peek("key").retry_after_us
    assert wait_us > 1
    with pytest.raises((QueueFullError, QuotaExhaustedError)):
        gate.schedule("key", max_wait=timedelta(microseconds=wait_us - 1))
    turn = gate.schedule("key", max_wait=timedelta(microseconds=wait_us))
    assert turn.delay_us == clock.now_us() == wait_us


def test_a_spent_quota_is_not_waited_for_unless_max_wait_covers_it():
    # Nobody means to sleep until next month by accident.
    clock = ManualClock(autojump=True)
    gate = Gate(all_of(second=GCRA("5/s"), month=Quota("2/month")), clock=clock)
    assert gate.schedule("key", cost=2).delay_us == 0
    before = gate.peek("key")
    for max_wait in (None, "1d"):
        with pytest.raises(QuotaExhaustedError) as caught:
            gate.schedule("key", max_wait=max_wait)
        assert caught.value.decision.binding == "month"
        assert clock.now() == 0
        assert gate.peek("key") == before
    assert gate.schedule("key", max_wait="31d").delay == clock.now() == 31 * 86_400


def test_parts_with_keys_of_their_own_wait_for_the_slowest():
    clock = ManualClock(autojump=True)
    gate = Gate(all_of(ip=GCRA("1/s", burst=1), user=GCRA("1/min", burst=1)), clock=clock)
    gate.check({"ip": "1", "user": "alice"})
    assert gate.schedule({"ip": "1", "user": "bob"}).delay == 1
    assert gate.schedule({"ip": "2", "user": "alice"}).delay == 59


# long waits


def test_thirty_days_are_slept_in_steps_of_a_minute(recording_clock):
    clock = recording_clock()
    gate = Gate(GCRA("1 per 30 d", burst=1), clock=clock)
    gate.check()
    assert gate.schedule().delay == clock.now() == 30 * 86_400
    assert max(clock.slept) <= 60
    assert sum(clock.slept) == 30 * 86_400
    assert len(clock.slept) <= 30 * 1_440


@pytest.mark.anyio
async def test_a_task_s_long_wait_is_slept_in_steps_of_a_minute(recording_clock):
    clock = recording_clock()
    gate = Gate(GCRA("1/day", burst=1), clock=clock)
    await gate.acheck()
    assert (await gate.aschedule()).delay == clock.now() == 86_400
    assert max(clock.slept) <= 60
    assert sum(clock.slept) == 86_400


class OddSleeper(ManualClock):
    """Sleeps `factor` times as long as it was asked to."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.sleeps = factor, 0

    def sleep(self, seconds, alarm):
        self.sleeps += 1
        self.advance(max(seconds * self.factor, 1e-6))

    async def asleep(self, seconds, alarm):
        self.sleep(seconds, None)


@pytest.mark.anyio
async def test_who_is_woken_early_sleeps_on(ask):
    clock = OddSleeper(0.5)
    gate = Gate(GCRA("1/min", burst=1), clock=clock)
    gate.check("key")
    await ask(gate, "schedule", "key")
    assert clock.now() >= 60
    assert 1 < clock.sleeps < 100


@pytest.mark.anyio
async def test_a_machine_that_was_suspended_notices_when_it_wakes(ask):
    clock = OddSleeper(1_440)
    gate = Gate(GCRA("1/day", burst=1), clock=clock)
    gate.check("key")
    await ask(gate, "schedule", "key")
    assert clock.now() == 86_400
    assert clock.sleeps == 1
