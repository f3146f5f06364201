"""Slots of tasks: near ones are waited for, distant ones travel with the task, and none is taken twice."""

import heapq
import json
from contextlib import closing
from math import inf

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    ConfigError,
    CostExceedsLimitError,
    ManualClock,
    MemoryStore,
    Policy,
    QueueFullError,
    QuotaExhaustedError,
    SQLiteStore,
)
from shapekit._adapters.tasks import AGAIN_S, PutBack, ShapedTasks, refusal_of, told_of
from shapekit._runtime.drivers import TASKS, AsyncAlarm, run
from shapekit.events import Measured
from shapekit.policy import Admission
from shapekit.testing import FaultyStore

NEAR_S = 0.5


def job(account="anna"):
    return account


@pytest.fixture
def clock():
    return ManualClock(autojump=True)


@pytest.fixture
def store(clock, tmp_path):
    with closing(SQLiteStore(tmp_path / "limits.db", clock=clock)) as store:
        yield FaultyStore(store)


@pytest.fixture
def shaped(store):
    def shaped(**shape):
        return ShapedTasks(job, "jobs", shape, NEAR_S, store)

    return shaped


def admit(tasks, slot_header=None, *args):
    return run(tasks.admit, slot_header, args, {})


def test_a_near_slot_is_waited_for_and_a_far_one_is_not(shaped, clock):
    tasks = shaped(rate="4/s")
    began = clock.now()
    for number in range(3):
        assert isinstance(admit(tasks), Admission)
        assert clock.now() - began == pytest.approx(number / 4)
    tasks = shaped(rate="1/s", name="slow")
    admit(tasks)
    began = clock.now()
    assert [admit(tasks).delay_s for _ in range(3)] == pytest.approx([1, 2, 3])
    assert clock.now() == began


@pytest.mark.parametrize("cost", [0, -1])
def test_a_cost_below_one_is_refused(shaped, cost):
    with pytest.raises(ConfigError, match=f"cost={cost}"):
        admit(shaped(rate="1/s", cost=lambda account: cost), None, "anna")


def test_a_cost_above_the_limit_fails_or_is_only_measured(shaped):
    shape = {"rate": "10/s", "gates": (GCRA("10/s", burst=5),), "cost": lambda account: 6}
    with pytest.raises(CostExceedsLimitError):
        admit(shaped(**shape), None, "anna")
    tasks, told = shaped(**shape, enforce=False), []
    with tasks.policy.listen(told.append):
        assert not admit(tasks, None, "anna").decision
    assert told == [Measured("jobs", "default", 6, inf, "cost_exceeds_limit")]


def test_a_task_that_comes_back_takes_no_second_slot(shaped, clock):
    tasks = shaped(rate="1/s")
    admit(tasks)
    later = admit(tasks)
    clock.advance(0.2)
    # Too early, the task goes once more with the same slot; from then on it waits for that slot.
    assert admit(tasks, later.slot_header) == (pytest.approx(0.8), later.slot_header)
    clock.advance(0.6)
    began = clock.now()
    admission = admit(tasks, later.slot_header)
    assert isinstance(admission, Admission)
    assert clock.now() - began == pytest.approx(0.2)
    assert admit(tasks).delay_s == pytest.approx(1.0)


def test_tasks_that_come_back_behind_much_other_work_miss_their_slots_only_once(store, clock):
    ahead_s, queued_s = 0.4, 10.0
    tasks = ShapedTasks(job, "jobs", {"rate": "1/2s"}, NEAR_S, store, ahead_s)
    began, starts = clock.now(), []
    queue = [(began, number, None) for number in range(15)]
    while queue:
        at, number, slot_header = heapq.heappop(queue)
        clock.advance(max(0.0, at - clock.now()))
        outcome = admit(tasks, slot_header)
        if isinstance(outcome, Admission):
            starts.append(clock.now() - began)
            continue
        back_at = clock.now() + outcome.delay_s + queued_s
        assert back_at - began < 100
        heapq.heappush(queue, (back_at, number, outcome.slot_header))
    # The tasks that were put back first, before the delay of the queue was known; then one by one.
    assert starts[1:] == pytest.approx([starts[1] + 2 * number for number in range(14)], abs=0.01)
    # Once the queue holds nothing else, they come back as late as before.
    tasks.policy.shaper.hold("1min")
    later = admit(tasks)
    clock.advance(later.delay_s)
    assert admit(tasks, later.slot_header).delay_s == pytest.approx(queued_s, abs=0.01)


@given(
    late_s=st.floats(0, 3), grace=st.sampled_from([None, 0, 0.5, 2]), rate=st.sampled_from(["1/s", "1/20s"])
)
def test_a_task_that_comes_late_uses_its_slot_within_the_grace_alone(tmp_path_factory, late_s, grace, rate):
    clock = ManualClock(autojump=True)
    with closing(SQLiteStore(tmp_path_factory.mktemp("late") / "limits.db", clock=clock)) as store:
        shape = {"rate": rate} if grace is None else {"rate": rate, "grace": grace}
        tasks = ShapedTasks(job, "jobs", shape, NEAR_S, store)
        admit(tasks)
        later = admit(tasks)
        clock.advance(later.delay_s + late_s)
        outcome = admit(tasks, later.slot_header)
        bound_s = grace if grace is not None else {"1/s": 0.75, "1/20s": 5.0}[rate]
        next_s = tasks.policy.forecast().first_in
        slot_s = later.delay_s
        if abs(late_s - bound_s) < 1e-5:
            return
        if late_s < bound_s:
            assert isinstance(outcome, Admission)
            assert next_s == pytest.approx(max(0.0, slot_s - late_s), abs=1e-5)
        else:
            # The missed slot has passed: a whole distance lies between the other one and the next.
            # It comes back earlier by as much as it was late.
            wait_s = outcome.delay_s + late_s if isinstance(outcome, PutBack) else 0.0
            assert next_s == pytest.approx(wait_s + slot_s, abs=1e-5)


def test_a_quota_gets_a_slot_back_that_a_worker_has_missed(shaped, store):
    tasks = shaped(rate="4/s", quota="10/day")
    tasks.policy.shaper.hold("3.4s")
    # The slot is near when the delay is known, and has long passed when the worker has confirmed it.
    store.slow = 3.0
    assert isinstance(admit(tasks), Admission)
    store.mend()
    assert [quota.used for quota in tasks.policy.quotas()] == [1]


def test_a_hold_moves_a_task_that_was_put_back(shaped, clock):
    tasks = shaped(rate="1/s")
    admit(tasks)
    later = admit(tasks)
    tasks.policy.shaper.hold("10s")
    clock.advance(1.0)
    moved = admit(tasks, later.slot_header)
    assert moved.delay_s == pytest.approx(10.0)
    clock.advance(10.0)
    admission = admit(tasks, moved.slot_header)
    assert isinstance(admission, Admission)
    assert admission.delay == pytest.approx(11.0)
    assert admit(tasks).delay_s == pytest.approx(1.0)


def test_a_refused_task_fails_or_comes_back(shaped, clock):
    tasks = shaped(rate="1/s", max_wait=0)
    admit(tasks)
    with pytest.raises(QueueFullError) as caught:
        admit(tasks)
    assert str(refusal_of(json.loads(json.dumps(told_of(caught.value))))) == str(caught.value)
    tasks = shaped(rate="1/s", max_wait=0, on_reject="retry", name="patient")
    admit(tasks)
    assert admit(tasks) == (pytest.approx(1.0), None)
    tasks = shaped(rate="1/s", quota="1/day", name="spent")
    admit(tasks)
    with pytest.raises(QuotaExhaustedError):
        admit(tasks)


@pytest.mark.parametrize("slot_header", ["", "[]", "null", "{", '[0.4, "default"]', '[0.4, "default", true]'])
def test_a_malformed_slot_counts_as_none(shaped, slot_header):
    tasks = shaped(rate="1/s")
    assert isinstance(admit(tasks, slot_header), Admission)


@pytest.mark.parametrize("ahead_s", ["soon", [], {}])
def test_a_slot_with_a_malformed_advance_counts_as_none(shaped, ahead_s):
    tasks = shaped(rate="1/10s")
    admit(tasks)
    _, *slot = json.loads(admit(tasks).slot_header)
    later = admit(tasks, json.dumps([ahead_s, *slot]))
    assert later.delay_s == pytest.approx(20)


def test_a_task_comes_back_with_its_slot_while_the_store_is_gone(shaped, store, clock):
    tasks = shaped(rate="1/s")
    admit(tasks)
    later = admit(tasks)
    store.down = True
    assert admit(tasks) == (AGAIN_S, None)
    again = admit(tasks, later.slot_header)
    assert again.delay_s == AGAIN_S
    store.mend()
    clock.advance(1.0)
    assert isinstance(admit(tasks, again.slot_header), Admission)


def test_the_time_for_which_the_store_is_gone_is_not_spent_in_the_queue(shaped, store, clock):
    tasks = shaped(rate="1/10s")
    admit(tasks)
    later = admit(tasks)
    clock.advance(later.delay_s)
    store.down = True
    again = admit(tasks, later.slot_header)
    store.mend()
    clock.advance(again.delay_s)
    assert isinstance(admit(tasks, again.slot_header), Admission)
    assert admit(tasks).delay_s == pytest.approx(10.0 - again.delay_s)


@pytest.mark.anyio
async def test_a_task_that_is_cancelled_while_it_waits_gives_its_slot_back(tmp_path):
    with closing(SQLiteStore(tmp_path / "limits.db")) as store:
        tasks = ShapedTasks(job, "jobs", {"rate": "1/s"}, 5.0, store)
        await tasks.admit(TASKS, None, (), {})
        with anyio.move_on_after(0.05) as scope:
            await tasks.admit(TASKS, None, (), {})
        assert scope.cancelled_caught
        assert (await tasks.policy.aforecast()).first_in <= 1.0


@pytest.mark.anyio
@pytest.mark.parametrize("after_s", [59.5, 60.5])
async def test_a_quota_gets_a_slot_back_that_passes_while_its_task_is_cancelled(clock, after_s):
    store = FaultyStore(MemoryStore(clock))
    store.shared = True
    tasks = ShapedTasks(job, "jobs", {"rate": "1/min", "quota": "10/day"}, 120.0, store)
    await tasks.admit(TASKS, None, (), {})
    store.slow = 1.0
    async with anyio.create_task_group() as group:
        group.start_soon(tasks.admit, TASKS, None, (), {})
        await clock.asleep(after_s, AsyncAlarm())
        group.cancel_scope.cancel()
    store.mend()
    assert [quota.used for quota in tasks.policy.quotas()] == [1]


def test_each_key_has_its_own_line(shaped):
    tasks = shaped(rate="1/s", key="{account}")
    assert isinstance(admit(tasks, None, "anna"), Admission)
    assert isinstance(admit(tasks, None, "ben"), Admission)
    assert isinstance(admit(tasks, None, "ben"), PutBack)


def test_a_task_that_is_only_measured_does_not_wait(shaped, clock):
    tasks, began = shaped(rate="1/s", enforce=False), clock.now()
    assert all(isinstance(admit(tasks), Admission) for _ in range(3))
    assert clock.now() == began


def test_a_call_that_never_counted_gives_its_slot_back(shaped):
    tasks = shaped(rate="1/s", refund_on=ConnectionError)
    with pytest.raises(ConnectionError), admit(tasks):
        raise ConnectionError
    assert isinstance(admit(tasks), Admission)


@pytest.mark.parametrize(
    ("shape", "field"),
    [
        ({"rate": "1/s", "on_reject": "reject"}, "on_reject"),
        ({"rate": "1/s", "grace": -1}, "grace"),
        ({"rate": "1/s", "concurrency": 3}, "concurrency"),
        ({"rate": "1/s", "burts": 3}, "burts"),
        ({"policy": "10/s"}, "policy"),
        ({"policy": Policy("10/s")}, "store"),
        ("10/s", "shape"),
    ],
)
def test_mistakes_are_refused_when_the_task_is_defined(store, shape, field):
    with pytest.raises(ConfigError, match=field):
        ShapedTasks(job, "jobs", shape, NEAR_S, store)
