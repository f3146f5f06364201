"""What a process learns of others, how long its permits are its own, the cost of a lost reply or a reset."""

import threading
import time

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit import Concurrency, ManualClock, MemoryStore, Policy, QueueFullError, StoreUnavailableError
from shapekit._queue.inflight import Heartbeat, Permit
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS
from shapekit.algorithms.inflight import ENTER, KEEP
from shapekit.algorithms.queue.wire import LOOK
from shapekit.rate import SECOND_US
from shapekit.stores.sqlite import SQLiteStore
from shapekit.testing import FaultyStore

from .rooms import PATIENCE_S, seconds, standing

LONG = "300d"
"""A lease for tests where time jumps while a file is read."""


@pytest.mark.anyio
async def test_calls_that_wait_on_a_shared_store_share_one_look_for_all(clock):
    # Two policies on one store: what the one does, the other learns only when it looks.
    truth = MemoryStore(clock)
    store, left = FaultyStore(truth), []
    mine, theirs = (Policy(concurrency=1, name="api", store=one) for one in (store, truth))

    async def call(number):
        async with mine.aadmit():
            left.append((number, seconds(clock, began_us)))
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        theirs_in = theirs.admit()
        theirs_in.__enter__()
        began_us = clock.now_us()
        for number in range(10):
            tasks.start_soon(call, number)
        while standing(theirs)[1] < 10:
            await checkpoint()
        before = store.calls
        await mine.shaper.core.sleepers.asleep(began_us + 3_000_000)
        looks = store.calls - before
        theirs_in.leave()
    assert 20 <= looks <= 40, "one for ten who wait, and the longer it is quiet, the fewer"
    assert sorted(number for number, _ in left) == list(range(10))
    assert left[0][1] <= 3.0 + 0.25 * 9 / 8
    assert {after_s for _, after_s in left} == {left[0][1]}, "among themselves they need no look"
    assert standing(theirs) == (0, 0)


def test_a_crashed_worker_keeps_its_permit_until_its_lease_is_over(tmp_path):
    clock = ManualClock(1_000.0)
    store, other = (SQLiteStore(tmp_path / "limits.db", clock=clock) for _ in range(2))
    limit = Concurrency(1, "1s")
    policy, permitted_at = Policy(concurrency=limit, name="api", store=store), []
    # A process that takes a permit and is never heard of again.
    assert other.bind("api.permits", limit, ENTER)("default", 4711, 1, 0)[0] == 0

    def wait():
        with policy.admit():
            permitted_at.append(clock.now())

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while standing(policy) != (1, 1):
        pass
    for _ in range(10_000):
        if thread.is_alive():
            clock.advance(0.02)
    assert not thread.is_alive()
    assert permitted_at[0] >= 1_001.0
    assert standing(policy) == (0, 0)
    store.close()
    other.close()


def until_renewed(store, limit, left_s, name="api"):
    """Wait until the keeper, a thread of its own, has come by: the lease lasts so long from now."""
    look = store.bind(f"{name}.permits", limit, LOOK)
    gives_up = time.monotonic() + PATIENCE_S
    while True:
        (_, owners, _, _), now, _ = look("default")
        if owners[0][1] - now >= left_s * SECOND_US:
            return
        assert time.monotonic() < gives_up


def test_a_living_worker_keeps_its_permit_for_ever(tmp_path):
    clock = ManualClock(1_000.0)
    store, other = (SQLiteStore(tmp_path / "limits.db", clock=clock) for _ in range(2))
    limit = Concurrency(1, "30s")
    policy = Policy(concurrency=limit, name="api", store=store)
    enter = other.bind("api.permits", limit, ENTER)
    with policy.admit():
        for _ in range(40):
            clock.advance(5.0)
            # It renews every 10 s: so there are always 20 s left, and a little less only while it does.
            until_renewed(other, limit, 20)
            assert enter("default", 4711, 1, 0)[0] == -1
    assert enter("default", 4711, 1, 0)[0] == 0
    store.close()
    other.close()


def test_one_heartbeat_renews_all_that_is_in_flight_at_a_store(tmp_path):
    clock = ManualClock(1_000.0)
    store = SQLiteStore(tmp_path / "limits.db", clock=clock)
    limit = Concurrency(1, "30s")
    one, other = (Policy(concurrency=limit, name=name, store=store) for name in ("one", "other"))
    with one.admit():
        clock.advance(5.0)
        # The keeper sleeps by now, and has more to do when it wakes up.
        with other.admit():
            for _ in range(12):
                clock.advance(5.0)
                until_renewed(store, limit, 20, "one")
                until_renewed(store, limit, 20, "other")
    store.close()


class OddStore(SQLiteStore):
    """Raises, at the first renewal, what no store should."""

    has_failed = False

    def bind_many(self, name, program, operation):
        apply = super().bind_many(name, program, operation)

        def odd(*args):
            if operation is KEEP and not self.has_failed:
                self.has_failed = True
                raise OSError("odd")
            return apply(*args)

        return odd


def test_an_error_that_no_store_should_raise_does_not_end_the_renewals(tmp_path, caplog):
    clock = ManualClock(1_000.0)
    store, other = (kind(tmp_path / "limits.db", clock=clock) for kind in (OddStore, SQLiteStore))
    limit = Concurrency(1, "30s")
    with Policy(concurrency=limit, name="api", store=store).admit():
        clock.advance(10.0)
        for _ in range(10):
            clock.advance(5.0)
            until_renewed(other, limit, 20)
    assert store.has_failed
    assert [record.exc_info[0] for record in caplog.records] == [OSError]
    store.close()
    other.close()


def test_an_answer_that_comes_late_does_not_put_off_the_next_renewal(tmp_path):
    clock = ManualClock(1_000.0)
    inner = SQLiteStore(tmp_path / "limits.db", clock=clock)
    store = FaultyStore(inner)
    with Policy(concurrency=Concurrency(1, "30s"), name="api", store=store).admit():
        store.slow, before = 4, store.calls
        for _ in range(20):
            clock.advance(5.0)
            # The keeper, a thread of its own, may have something to do.
            with clock._changed:
                assert clock._changed.wait_for(lambda: clock._sleepers, PATIENCE_S)
        calls = store.calls - before
        store.mend()
    assert calls == 10
    inner.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_where_no_thread_is_left_no_call_gets_a_permit(tmp_path, monkeypatch, is_shared):
    store = SQLiteStore(tmp_path / "limits.db") if is_shared else MemoryStore()
    policy = Policy(concurrency=1, name="api", store=store)

    def full(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        if not is_shared:  # the thread for what finalizers leave has not been started yet
            patch.setattr(process, "_here", process._Afterwards())
        with pytest.raises(StoreUnavailableError, match="no thread is left"):
            policy.admit().__enter__()
    assert standing(policy) == (0, 0)
    with policy.admit():
        assert standing(policy) == (1, 0)
    store.close()


def test_leases_are_renewed_when_a_lost_store_is_back(tmp_path):
    clock = ManualClock(1_000.0)
    store = FaultyStore(SQLiteStore(tmp_path / "limits.db", clock=clock))
    other = SQLiteStore(tmp_path / "limits.db", clock=clock)
    limit = Concurrency(1, "30s")
    policy = Policy(concurrency=limit, name="api", store=store)
    enter = other.bind("api.permits", limit, ENTER)
    with policy.admit():
        store.down = True
        clock.advance(25.0)
        store.down = False
        clock.advance(4.0)
        # Renewed within a twelfth of the lease: so it outlives the one that it came with.
        until_renewed(other, limit, 26)
        clock.advance(20.0)
        assert enter("default", 4711, 1, 0)[0] == -1
        store.down = True
        clock.advance(40.0)
        assert enter("default", 4711, 1, 0)[0] == 0, "the bound: unheard of for longer than the lease"
        store.down = False
        clock.advance(20.0)
    assert standing(policy) == (1, 0), "what it left was not its own any more"
    store.close()
    other.close()


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["memory", "file"])
async def test_a_lost_reply_costs_no_permit(where, clock, file):
    store = FaultyStore(MemoryStore(clock) if where == "memory" else file())
    policy = Policy(concurrency=Concurrency(1, LONG), name="api", store=store)
    for is_entering in (True, False):
        if is_entering:
            store.loses_replies = True
            with pytest.raises(StoreUnavailableError):
                await policy.aadmit().__aenter__()
        else:
            admission = await policy.aadmit().__aenter__()
            store.down = True
            await admission.aleave()
        store.mend()
        async with policy.aadmit(max_wait=0):
            assert standing(policy) == (1, 0)
        assert standing(policy) == (0, 0)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:concurrency=1 is used up")  # by the task that starts the waiting ones
async def test_calls_that_wait_when_the_key_is_reset_keep_waiting(clock):
    store = MemoryStore(clock)
    policy, left = Policy(concurrency=1, name="api", store=store), []

    async def call():
        async with policy.aadmit():
            left.append(True)

    async with anyio.create_task_group() as tasks, policy.aadmit():
        for _ in range(3):
            tasks.start_soon(call)
        while standing(policy)[1] < 3:
            await checkpoint()
        store.reset_all()
    assert len(left) == 3
    assert standing(policy) == (0, 0)


@pytest.mark.anyio
async def test_after_a_change_of_limits_questions_keep_a_pause_while_a_permit_is_unsure(clock):
    truth, questions = MemoryStore(clock), []
    mine, theirs = (Policy(concurrency=1, name="api", store=one) for one in (FaultyStore(truth), truth))

    async def heal(*_):
        questions.append(clock.now_us())
        assert len(questions) < 100

    async def call():
        async with mine.aadmit():
            pass

    theirs_in = theirs.admit()
    theirs_in.__enter__()
    mine.permits._heal = heal
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        while standing(theirs)[1] < 1:
            await checkpoint()
        # As where a fallback answers, and what has become of a permit stays unknown.
        at_key = mine.permits.registry._keys["default"]
        at_key.unsure_until_us = clock.now_us() + 10 * SECOND_US
        mine.permits.registry.limits_changed()
        await mine.shaper.core.sleepers.asleep(clock.now_us() + SECOND_US)
        at_key.unsure_until_us = 0
        theirs_in.leave()
    assert 1 <= len(questions) <= 40


def test_a_forgotten_waiter_stays_lost_when_an_earlier_one_is_back_before_it_looks(clock):
    registry = Policy(concurrency=1, name="api", store=MemoryStore(clock)).permits.registry
    call = Permit(None, "default")
    registry.admit(call)
    waiter = registry.join(call, came_with=1)
    registry.hear("default", (0,))
    registry.hear("default", (1,))
    assert waiter.is_lost
    waiter.came_with = 1
    registry.hear("default", (1,))
    assert not waiter.is_lost


def test_in_one_process_no_lease_ends(clock):
    policy = Policy(concurrency=Concurrency(1, "1s"), clock=clock, max_wait=0)
    with policy.admit():
        clock.advance(86_400)
        with pytest.raises(QueueFullError):
            policy.admit().__enter__()
    assert standing(policy) == (0, 0)


@pytest.mark.anyio
async def test_when_the_call_that_looks_is_cancelled_another_one_looks(clock):
    truth = MemoryStore(clock)
    mine, theirs = (Policy(concurrency=1, name="api", store=one) for one in (FaultyStore(truth), truth))
    permitted_after_s = []

    async def call():
        async with mine.aadmit():
            permitted_after_s.append(seconds(clock, left_us))

    theirs_in = theirs.admit().__enter__()
    async with anyio.create_task_group() as tasks:
        first = anyio.CancelScope()

        async def first_call():
            with first:
                await call()

        tasks.start_soon(first_call)
        while standing(theirs)[1] < 1:
            await checkpoint()
        tasks.start_soon(call)
        await mine.shaper.core.sleepers.asleep(clock.now_us() + 100_000)
        assert standing(theirs) == (1, 2)
        first.cancel()
        await mine.shaper.core.sleepers.asleep(clock.now_us() + 100_000)
        assert standing(theirs) == (1, 1)
        left_us = clock.now_us()
        theirs_in.leave()
    assert len(permitted_after_s) == 1
    assert permitted_after_s[0] <= 0.03 * 9 / 8


@pytest.mark.anyio
async def test_a_heartbeat_that_cannot_begin_leaves_room_for_the_next(monkeypatch):
    def no_more_threads():
        raise RuntimeError("can't start new thread")

    heartbeat = Heartbeat(MemoryStore())
    heartbeat._runs = True
    monkeypatch.setattr(process, "background_ready", no_more_threads)
    with pytest.raises(RuntimeError):
        await heartbeat._run(TASKS)
    assert not heartbeat._runs
