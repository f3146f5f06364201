"""Awaited calls of a store take none of the threads that the rest of the program shares."""

import os
import subprocess
import sys
import threading
from itertools import count

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from shapekit import GCRA, Gate, RedisStore, Shaper
from shapekit._runtime.drivers import MOST_THREADS, ThreadCall, Workers
from shapekit.stores.sqlite import SQLiteStore

from ..redis_server import shared_server

PATIENCE_S = 20.0
WAITING = 60
_names = count()


def sqlite(tmp_path):
    return SQLiteStore(tmp_path / "limits.db")


def redis_without_async(tmp_path):
    import redis  # noqa: PLC0415

    return RedisStore(
        redis.Redis.from_url(shared_server().url), prefix=f"threads{os.getpid()}.{next(_names)}"
    )


@pytest.fixture(params=[sqlite, redis_without_async])
def stalled(request, tmp_path, monkeypatch):
    """A store whose calls on worker threads return only once they may, and how many are inside."""
    store = request.param(tmp_path)
    may, inside = threading.Event(), threading.Semaphore(0)
    work = ThreadCall.work

    def stalled(thread_call):
        inside.release()
        assert may.wait(PATIENCE_S)
        work(thread_call)

    monkeypatch.setattr(ThreadCall, "work", stalled)
    yield store, may, inside
    may.set()
    store.close()


@pytest.mark.anyio
async def test_a_thread_of_another_library_is_free_however_many_calls_wait(stalled):
    store, may, inside = stalled
    gate = Gate(GCRA("60/s", burst=WAITING), store=store, name="n")
    limiter = anyio.to_thread.current_default_thread_limiter()
    answers = []

    async def check():
        answers.append(bool(await gate.acheck()))

    async with anyio.create_task_group() as tasks:
        for _ in range(WAITING):
            tasks.start_soon(check)
        for _ in range(MOST_THREADS):
            while not inside.acquire(blocking=False):
                await checkpoint()
        assert limiter.borrowed_tokens == 0
        assert await anyio.to_thread.run_sync(lambda: 7) == 7
        assert answers == []
        assert not inside.acquire(blocking=False)
        may.set()
    assert answers == [True] * WAITING


@pytest.mark.anyio
async def test_closing_a_shaper_that_prefetches_takes_no_shared_thread_either(stalled):
    store, may, _ = stalled
    may.set()
    shaper = Shaper("9/s", store=store, name="n", prefetch="1s")
    await shaper.aschedule()
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    async with limiter:
        await shaper.aclose()
    limiter.total_tokens = 40


def test_a_store_that_hangs_takes_no_thread_from_another(tmp_path):
    one, other = Workers(), Workers()
    may, done = threading.Event(), threading.Event()
    for _ in range(2 * MOST_THREADS):
        one.start(may.wait, PATIENCE_S)
    other.start(done.set)
    assert done.wait(PATIENCE_S)
    may.set()


def test_worker_threads_end_with_their_store():
    def ours():
        return [thread for thread in threading.enumerate() if thread.name.startswith("shapekit-store")]

    before, ran = set(ours()), threading.Event()
    workers = Workers()
    workers.start(ran.set)
    assert ran.wait(PATIENCE_S)
    (made,) = set(ours()) - before
    workers.close()
    made.join(PATIENCE_S)
    assert not made.is_alive()


def test_the_child_of_a_fork_has_threads_of_its_own():
    workers, ran = Workers(), threading.Event()
    workers.start(ran.set)
    assert ran.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        ran = threading.Event()
        workers.start(ran.set)
        os._exit(0 if ran.wait(PATIENCE_S) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


MAIN_ENDS = """
import sys, threading
import anyio
from shapekit import GCRA, Gate, SQLiteStore, StoreUnavailableError

path, backend, asks_before = sys.argv[1:]
gate = Gate(GCRA("60/s", burst=60), store=SQLiteStore(path), name="n")
may_end = threading.Event()

async def calls():
    if asks_before == "yes":
        assert await gate.acheck()
    may_end.set()
    threading.main_thread().join()
    try:
        await gate.acheck()
    except StoreUnavailableError as error:
        print(error)
    assert gate.check()

threading.Thread(target=lambda: anyio.run(calls, backend=backend)).start()
may_end.wait()
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("calls_before", ["yes", "no"])
def test_a_call_raises_where_the_main_thread_has_ended(tmp_path, backend, calls_before):
    """Python then starts no more of these threads, and ends those that there are."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN_ENDS, str(tmp_path / "limits.db"), backend, calls_before],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr
    assert "the main thread has ended" in done.stdout
