"""FaultyStore: its faults are as documented, for threads and for tasks."""

import threading

import anyio
import pytest

from shapekit import GCRA, Gate, MemoryStore, Shaper, StoreUnavailableError
from shapekit.testing import FaultyStore, ManualClock

from ..stores.outages import PATIENCE_S


@pytest.fixture
def clock():
    return ManualClock(1_000.0)


@pytest.fixture
def faulty(clock):
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def gate(faulty):
    return Gate(GCRA("10/s"), store=faulty, name="gate")


def test_without_faults_it_is_its_inner_store(faulty, clock):
    plain = MemoryStore(clock)
    gates = [Gate(GCRA("10/s", burst=2), store=store, name="gate") for store in (faulty, plain)]
    first, second = (
        [gate.check("a"), gate.check_many(["a", "b"]), gate.forecast("a"), gate.peek("b")] for gate in gates
    )
    assert first == second
    assert list(faulty.keys()) == list(plain.keys()) == ["gate:a", "gate:b"]
    assert faulty.reset_all("gate:a") == 1
    gates[0].reset("b")
    assert list(faulty.inner.keys()) == []
    assert (faulty.clock, faulty.shared, faulty.clock_decides) == (clock, plain.shared, plain.clock_decides)


def test_down_raises_and_does_nothing(faulty, gate):
    faulty.down = True
    calls = [
        gate.check,
        lambda: gate.check_many(["a", "b"]),
        gate.reset,
        faulty.reset_all,
        lambda: list(faulty.keys()),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailableError, match="is down"):
            call()
    assert faulty.calls == len(calls)
    faulty.mend()
    assert list(faulty.keys()) == []


def test_a_lost_reply_is_a_call_that_was_done(faulty, gate):
    faulty.loses_replies = True
    with pytest.raises(StoreUnavailableError, match="lost the reply"):
        gate.check(cost=4)
    faulty.mend()
    assert gate.peek().remaining == 6


def test_a_slow_call_takes_its_time_on_the_stores_clock():
    clock = ManualClock(1_000.0, autojump=True)
    faulty = FaultyStore(MemoryStore(clock))
    gate = Gate(GCRA("10/s"), store=faulty, name="gate")
    faulty.slow = "2s"
    assert gate.check().reset_at_us == 1_002_100_000
    assert (clock.now(), faulty.slow, faulty.waiting) == (1_002.0, 2.0, 0)


def test_a_slow_store_that_is_down_too_fails_late():
    clock = ManualClock(1_000.0, autojump=True)
    faulty = FaultyStore(MemoryStore(clock))
    gate = Gate(GCRA("10/s"), store=faulty, name="gate")
    faulty.slow, faulty.down = 2, True
    with pytest.raises(StoreUnavailableError):
        gate.check()
    assert clock.now() == 1_002.0


@pytest.mark.parametrize("end", ["mend", "close"])
def test_slow_calls_go_on_when_it_is_mended_or_closed(faulty, gate, end):
    faulty.slow = 3_600
    outcomes = []
    asleep = threading.Event()
    inner_sleep = faulty.clock.sleep

    def sleep(seconds, alarm):
        asleep.set()
        inner_sleep(seconds, alarm)

    faulty.clock.sleep = sleep

    def call():
        try:
            outcomes.append(gate.check().allowed)
        except StoreUnavailableError:
            outcomes.append("closed")

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert asleep.wait(PATIENCE_S)
    getattr(faulty, end)()
    thread.join(PATIENCE_S)
    assert outcomes == [True if end == "mend" else "closed"]


@pytest.mark.anyio
async def test_tasks_meet_the_same_faults(faulty, gate):
    shaper = Shaper("10/s", store=faulty, name="shaper")
    faulty.down = True
    for call in (gate.acheck, shaper.areserve, gate.areset, lambda: gate.acheck_many(["a"])):
        with pytest.raises(StoreUnavailableError):
            await call()
    assert faulty.calls == 4
    faulty.mend()
    faulty.loses_replies = True
    with pytest.raises(StoreUnavailableError):
        await shaper.areserve()
    faulty.mend()
    assert (await shaper.areserve()).delay == 0.1
    faulty.slow = 3_600
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gate.acheck)
        await anyio.wait_all_tasks_blocked()
        assert faulty.waiting == 1
        faulty.mend()
    assert (await gate.apeek()).remaining == 9
    await faulty.aclose()
    with pytest.raises(StoreUnavailableError, match="closed"):
        gate.check()


def test_calls_of_many_threads_are_all_counted(faulty, gate):
    crew = [threading.Thread(target=lambda: [gate.check() for _ in range(500)]) for _ in range(4)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join(PATIENCE_S)
    assert faulty.calls == 2_000


def test_wrong_arguments_are_refused(refused, faulty):
    refused(lambda: FaultyStore("redis://"), "inner")
    refused(lambda: setattr(faulty, "slow", -1), "slow")
    refused(lambda: setattr(faulty, "slow", "soon"), "slow")
