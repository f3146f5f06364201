"""A store that hangs is given up in time, and nothing of it is left behind."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import deque
from queue import SimpleQueue

import anyio
import pytest

from shapekit import GCRA, ConfigError, Gate, MemoryStore, RedisStore, StoreUnavailableError
from shapekit._runtime import drivers
from shapekit.stores import resilient as module
from shapekit.stores.resilient import Deadline, ResilientStore
from shapekit.testing import FaultyStore

from ..redis_server import shared_server
from .outages import PATIENCE_S, Host, blocked_meanwhile, patient

QUICK_S = 0.05


@pytest.fixture
def deadline():
    deadline = Deadline(round(PATIENCE_S * 1e6))
    yield deadline
    deadline.close()


@pytest.fixture
def hanging():
    """A call that hangs until the test is over."""
    end = threading.Event()
    yield end.wait
    end.set()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "shapekit-store"]


def gone(thread):
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def test_a_call_gives_its_answer_and_raises_its_error(deadline):
    assert deadline.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ConfigError, match="is not a cost"):
        deadline.call(lambda: (_ for _ in ()).throw(ConfigError("cost", 0, "is not a cost", "pass 1")))
    with pytest.raises(KeyboardInterrupt):
        deadline.call(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_calls_one_after_another_share_a_thread(deadline):
    assert len({deadline.call(threading.get_ident) for _ in range(200)}) == 1


def test_calls_at_once_have_threads_of_their_own(deadline):
    together = threading.Barrier(4)
    crew = [threading.Thread(target=deadline.call, args=(together.wait, PATIENCE_S)) for _ in range(4)]
    for thread in crew:
        thread.start()
    assert all(gone(thread) for thread in crew)
    assert not together.broken


def test_a_hanging_call_is_given_up_in_time_and_its_thread_ends_with_it():
    deadline, end = Deadline(round(QUICK_S * 1e6)), threading.Event()
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"no answer within 50 ms"):
        deadline.call(end.wait)
    assert QUICK_S <= time.monotonic() - began < PATIENCE_S
    mine = [thread for thread in threads() if thread._target.__self__ is deadline]
    deadline.close()
    end.set()
    assert len(mine) == 1
    assert gone(mine[0])


def test_threads_end_when_no_call_needs_them(monkeypatch):
    monkeypatch.setattr(module, "_IDLE_S", 0.01)
    deadline = Deadline(round(PATIENCE_S * 1e6))
    worker = deadline.call(threading.current_thread)
    assert gone(worker)
    assert deadline.call(int, "7") == 7
    deadline.close()


def test_threads_end_when_it_is_closed(monkeypatch):
    monkeypatch.setattr(module, "_IDLE_S", 3_600)
    deadline = Deadline(round(PATIENCE_S * 1e6))
    worker = deadline.call(threading.current_thread)
    deadline.close()
    assert gone(worker)


def test_a_call_may_take_a_thread_that_is_about_to_be_let_go(deadline):
    class Taken(deque):
        def pop(self):
            self.clear()
            return super().pop()

    deadline._idle = Taken([SimpleQueue()])
    deadline.close()


def test_only_so_many_calls_may_hang(monkeypatch, hanging):
    monkeypatch.setattr(module, "_MOST_OVERDUE", 2)
    deadline = Deadline(1_000)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="no answer"):
            deadline.call(hanging)
    with pytest.raises(StoreUnavailableError, match="2 calls to the store still hang"):
        deadline.call(hanging)
    deadline.close()


def test_calls_that_ended_late_do_not_count_as_hanging(monkeypatch):
    monkeypatch.setattr(module, "_MOST_OVERDUE", 1)
    deadline, end = Deadline(1_000), threading.Event()
    with pytest.raises(StoreUnavailableError):
        deadline.call(end.wait)
    (job,) = deadline._overdue
    deadline.close()
    (mine,) = [thread for thread in threads() if thread._target.__self__ is deadline]
    end.set()
    assert gone(mine)
    assert job not in deadline._overdue


def test_without_threads_a_call_is_made_where_it_is(monkeypatch, deadline):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert deadline.call(threading.get_ident) == threading.get_ident()


FORK = """
import os, signal, warnings
from shapekit.stores.resilient import Deadline

deadline = Deadline(20_000_000)
deadline.call(int)
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(deadline.call(int, "7"))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_forked_child_has_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_primary_that_hangs_is_given_up_within_the_timeout():
    host = Host()
    store = host.worker("open", timeout=QUICK_S)
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    host.faulty.slow = 3_600  # on a clock that stands still
    began = time.monotonic()
    assert gate.check().allowed
    assert QUICK_S <= time.monotonic() - began < PATIENCE_S
    assert (store.is_lost, host.faulty.calls) == (True, 1)
    assert all(gate.check() for _ in range(50))
    assert host.faulty.calls == 1
    patient(store)
    host.recover()
    gate.check()
    assert (store.is_lost, host.faulty.calls) == (False, 2)
    store.close()


@pytest.mark.anyio
async def test_a_primary_that_hangs_is_given_up_within_the_timeout_by_tasks():
    host = Host()
    store = host.worker("open", timeout=QUICK_S)
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    host.faulty.slow = 3_600
    began = time.monotonic()
    assert (await gate.acheck()).allowed
    assert QUICK_S <= time.monotonic() - began < PATIENCE_S
    assert (store.is_lost, host.faulty.calls, host.faulty.waiting) == (True, 1, 0)
    for _ in range(50):
        assert await gate.acheck()
    assert host.faulty.calls == 1
    patient(store)
    host.faulty.mend()
    await host.clock.aadvance(10)
    await gate.acheck()
    assert (store.is_lost, host.faulty.calls) == (False, 2)
    await store.aclose()


def test_a_loop_that_is_blocked_is_no_outage(monkeypatch):
    """Wherever the answer is on its way."""
    monkeypatch.setattr(drivers, "LAST_CALL_S", PATIENCE_S)

    async def main():
        for rounds in range(30):
            primary = RedisStore.from_url(shared_server().url, prefix=f"blocked {rounds}")
            store = ResilientStore(primary, timeout=QUICK_S)
            question = Gate(GCRA("10/s"), name="gate", store=store).acheck()
            assert await blocked_meanwhile(question, rounds, 2 * QUICK_S)
            await store.aclose()

    asyncio.run(main())


@pytest.mark.anyio
async def test_a_cancelled_caller_is_no_outage_and_a_cancelled_probe_is_made_again():
    host = Host()
    store = host.worker("open")
    gate = Gate(GCRA("10/s"), store=store, name="gate")

    async def cancelled_call():
        host.faulty.slow = 3_600
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.acheck)
            await anyio.wait_all_tasks_blocked()
            assert host.faulty.waiting == 1
            tasks.cancel_scope.cancel()
        host.faulty.mend()

    await cancelled_call()
    assert not store.is_lost
    host.faulty.down = True
    await gate.acheck()
    assert store.is_lost
    host.clock.advance(1)
    await cancelled_call()
    calls = host.faulty.calls
    await gate.acheck()
    assert (store.is_lost, host.faulty.calls) == (False, calls + 1)


def test_an_instant_store_is_called_on_the_callers_own_thread():
    store = ResilientStore(MemoryStore())
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    before = threads()
    assert gate.check().remaining == 9
    assert threads() == before
    assert store.instant


def test_a_faulty_store_is_not_instant_and_neither_is_a_store_that_wraps_it():
    assert not ResilientStore(FaultyStore(MemoryStore())).instant
