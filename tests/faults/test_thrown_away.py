"""A coroutine that is thrown away with its loop, at any await of any public coroutine, takes no lock.

The collector ends it in the midst of anything, on a thread that may already hold any lock that its end would
take, and so would wait for it for ever. Nor is there a loop to wait on, or a caller to raise an error to.
"""

import asyncio
import gc
import re
import sys
import threading
import time
import traceback
import types
import warnings
from queue import SimpleQueue
from typing import ClassVar

import pytest
import trio
from anyio.lowlevel import checkpoint
from redis.asyncio import Redis as AsyncRedis

from shapekit import (
    GCRA,
    Gate,
    MemoryStore,
    RedisStore,
    ResilientStore,
)
from shapekit.stores.redis.store import Loop

from ..redis_server import shared_server
from .awaited import LISTENING, OF_GENERATORS, SCENARIOS

PATIENCE_S = 20.0
MOST_AWAITS = 12
"""The most awaits of a scenario, which is left at one await further each time; some would go on for ever."""


class Jumping:
    """A clock without locks: every sleep is over by the next step of the loop."""

    def __init__(self):
        self._us = 1_000_000_000

    def now_us(self):
        return self._us

    wall_us = now_us

    def sleep(self, seconds, alarm):
        alarm.wait(0.02)

    async def asleep(self, seconds, alarm):
        await checkpoint()
        self._us += round(seconds * 1_000_000)


class Threaded(MemoryStore):
    """A store whose awaited calls are made on threads, as those of SQLite are."""

    shared = True
    instant = False


STORES = {
    "memory": lambda: MemoryStore(Jumping()),
    "threads": lambda: Threaded(Jumping()),
    "resilient": lambda: ResilientStore(Threaded(Jumping()), on_outage="local", share=1),
    "redis": lambda: RedisStore.from_url(
        shared_server().url, clock=Jumping(), prefix=f"thrown{time.monotonic_ns()}"
    ),
    "redis, awaited only": lambda: RedisStore(
        aclient=AsyncRedis.from_url(shared_server().url),
        clock=Jumping(),
        prefix=f"thrown{time.monotonic_ns()}",
    ),
}


CASES = [
    *(("asyncio", where, scenario) for where in STORES for scenario in SCENARIOS),
    # A test cannot close an asynchronous generator as trio does, or end a run whose task is gone in a shield.
    *(("trio", "memory", scenario) for scenario in SCENARIOS if scenario not in OF_GENERATORS),
]

NEVER_BEGUN = re.compile(
    r"coroutine '(Line\._run|Loop\.ask_each\.<locals>\.serve|_finished\S+|Heartbeat\._run"
    r"|AbstractConnection\.\w+)' was never awaited"
)

# throwing away


class Guarded:
    """A lock that records who takes it on the thread where none may be taken."""

    forbidden_to = None
    taken: ClassVar = []

    def __init__(self, lock):
        self._lock = lock

    def acquire(self, *args, **options):
        if threading.get_ident() == Guarded.forbidden_to:
            frames = traceback.extract_stack()[:-1]
            Guarded.taken.append([f"{frame.filename}:{frame.lineno}" for frame in frames[-6:]])
        return self._lock.acquire(*args, **options)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self._lock.release()

    def __getattr__(self, name):
        return getattr(self._lock, name)


@pytest.fixture
def looked_at(monkeypatch):
    """What goes wrong where no lock may be taken: locks, warnings, and errors that reach no caller."""
    lock, rlock = threading.Lock, threading.RLock
    monkeypatch.setattr(threading, "Lock", lambda: Guarded(lock()))
    monkeypatch.setattr(threading, "RLock", lambda: Guarded(rlock()))
    monkeypatch.setattr(Guarded, "taken", [])
    unraisable = []

    def note(failure):
        # Loops complain of every asynchronous generator that was not closed; these cannot be closed.
        if (
            not isinstance(failure.object, types.AsyncGeneratorType)
            and failure.exc_type is not ResourceWarning
        ):
            unraisable.append(repr(failure.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", note)

    def looked_at(throw_away):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            Guarded.forbidden_to = threading.get_ident()
            try:
                throw_away()
            finally:
                Guarded.forbidden_to = None
        # redis-py warns of every connection that its loop took along that it was not closed, and asyncio of
        # every task that its loop never began: ours, and those of redis-py.
        warned = [
            str(one.message)
            for one in warned
            if one.category is not ResourceWarning and not NEVER_BEGUN.search(str(one.message))
        ]
        assert (Guarded.taken, unraisable, warned) == ([], [], [])

    return looked_at


@types.coroutine
def counted(coroutine, leave_at, leave):
    """The coroutine, which is left at its await of this number."""
    awaits, step, value = 0, coroutine.send, None
    while True:
        try:
            what = step(value)
        except StopIteration as end:
            return end.value
        awaits += 1
        if awaits == leave_at:
            leave()
        try:
            step, value = coroutine.send, (yield what)
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            step, value = coroutine.throw, error


def on_asyncio(make, leave_at, looked_at):
    """Run a scenario up to this await; returns whether it got that far, and so was discarded there."""
    loop = asyncio.new_event_loop()
    # asyncio complains of each task that is collected before it is done.
    loop.set_exception_handler(lambda *_: None)
    coroutine = make()

    task = loop.create_task(_awaited(counted(coroutine, leave_at, loop.stop)))
    task.add_done_callback(lambda _: loop.stop())
    loop.call_later(PATIENCE_S, loop.stop)
    loop.run_forever()
    if task.done():
        task.result()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        return False
    loop.close()
    looked_at(coroutine.close)
    del coroutine, task
    loop = None
    # Whatever the store had begun on that loop goes, too.
    looked_at(gc.collect)
    return True


def on_trio(make, leave_at, looked_at):
    ticks, ended, left = SimpleQueue(), [], []
    coroutine = make()
    scope = token = None

    async def main():
        nonlocal scope, token
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:
            await counted(coroutine, leave_at, lambda: left.append(True))

    def pump(stops):
        while not ended and not (stops and left):
            ticks.get(timeout=PATIENCE_S)()

    trio.lowlevel.start_guest_run(main, run_sync_soon_threadsafe=ticks.put, done_callback=ended.append)
    pump(stops=True)
    if left:
        looked_at(coroutine.close)
        looked_at(gc.collect)
        # The rest of the run would go on for ever; how it ends without its task is not tested here.
        token.run_sync_soon(scope.cancel)
        pump(stops=False)
    elif ended:
        ended[0].unwrap()
    return bool(left)


async def _awaited(awaitable):
    await awaitable


DRIVERS = {"asyncio": on_asyncio, "trio": on_trio}


@pytest.fixture
def no_ears_left():
    yield
    while LISTENING:
        LISTENING.pop().close()


@pytest.mark.usefixtures("no_ears_left")
@pytest.mark.parametrize(("backend", "where", "scenario"), CASES)
def test_a_discarded_coroutine_takes_no_lock_and_warns_of_nothing(backend, where, scenario, looked_at):
    for leave_at in range(1, MOST_AWAITS + 1):
        store = STORES[where]()
        make = lambda store=store: scenario(store)  # noqa: E731
        was_left = DRIVERS[backend](make, leave_at, looked_at)
        store.close()
        if not was_left:
            break


@pytest.mark.parametrize(("method", "keys"), [("acheck", "a"), ("acheck_many", ["a", "b"])])
def test_an_error_of_a_connection_at_its_end_is_not_raised(method, keys, monkeypatch, looked_at):
    async def talk(*_):
        asyncio.get_running_loop().stop()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            raise RuntimeError("its loop is closed")

    monkeypatch.setattr(Loop, "talk", talk)
    store = STORES["redis, awaited only"]()
    gate = Gate(GCRA("10/s"), name="gate", store=store)
    assert on_asyncio(lambda: getattr(gate, method)(keys), MOST_AWAITS, looked_at)
    store.close()
