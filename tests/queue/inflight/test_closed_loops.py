"""A loop closed under a call on its way to a permit keeps none, however the next call asks for it."""

import asyncio
import gc
import threading
from itertools import count

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

from shapekit import ManualClock, MemoryStore, Policy, RedisStore
from shapekit.stores.sqlite import SQLiteStore

from ...redis_server import shared_server
from .rooms import PATIENCE_S, is_forgotten, standing

_names = count()


def over_redis():
    store = RedisStore.from_url(shared_server().url, prefix=f"closed{next(_names)}")
    # On threads: redis-py warns of connections that end with their loop without having been closed.
    store._loops = None
    return store


@pytest.fixture(params=["memory", "file", "redis"])
def store(request, tmp_path):
    store = {
        "memory": MemoryStore,
        "file": lambda: SQLiteStore(tmp_path / "limits.db"),
        "redis": over_redis,
    }[request.param]()
    yield store
    store.close()


@pytest.fixture
def policy(store):
    # None of its leases ends, and none is renewed, before the test has ended.
    return Policy(concurrency=1, name="api", store=store)


class Left:
    """A loop with a task that stands in line, or has a permit that it does not know of."""

    def __init__(self, policy):
        self.loop = asyncio.new_event_loop()
        # asyncio complains of each task that is collected before it is done.
        self.loop.set_exception_handler(lambda *_: None)
        self.task = self.loop.create_task(policy.aadmit().__aenter__())
        self.policy = policy

    def run_until_in_line(self):
        async def in_line():
            while standing(self.policy) != (1, 1):
                await checkpoint()

        self.loop.run_until_complete(in_line())

    def close(self, *, is_dropped):
        self.loop.close()
        if is_dropped:
            self.loop = self.task = None
            gc.collect()


def in_line(policy):
    """A thread that waits for a permit; what to wait for until it had one."""
    has_permit = threading.Event()

    def wait():
        with policy.admit():
            has_permit.set()

    threading.Thread(target=wait, daemon=True).start()
    return has_permit


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_newcomer_has_the_permit(policy, is_dropped):
    left = Left(policy)
    with policy.admit():
        left.run_until_in_line()
        left.close(is_dropped=is_dropped)
    with policy.admit(max_wait=0):
        pass
    assert standing(policy) == (0, 0)
    assert is_forgotten(policy)


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_call_waiting_behind_has_the_permit(policy, is_dropped):
    left = Left(policy)
    with policy.admit():
        left.run_until_in_line()
        has_permit = in_line(policy)
        while standing(policy) != (1, 2):
            pass
        left.close(is_dropped=is_dropped)
        assert not has_permit.is_set()
    assert has_permit.wait(PATIENCE_S)


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_permit_that_was_given_before_the_loop_was_closed_comes_free(policy, is_dropped):
    left = Left(policy)
    with policy.admit():
        left.run_until_in_line()
    assert standing(policy) == (1, 0)
    left.close(is_dropped=is_dropped)
    with policy.admit(max_wait=0):
        pass


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_call_waiting_behind_such_a_permit_finds_out(is_dropped):
    """In one process no lease is renewed: waiting calls check whether the loops of others are still there."""
    clock = ManualClock(1_000.0, autojump=True)
    policy = Policy(concurrency=1, name="api", clock=clock)
    left = Left(policy)
    with policy.admit():
        for _ in range(9):
            left.loop.run_until_complete(asyncio.sleep(0))
        has_permit = in_line(policy)
        while standing(policy) != (1, 2):
            pass
    left.close(is_dropped=is_dropped)
    assert has_permit.wait(PATIENCE_S)


def test_a_renewal_gives_back_a_permit_that_no_call_waits_for(policy):
    left = Left(policy)
    with policy.admit():
        left.run_until_in_line()
        left.close(is_dropped=False)
    permits = policy.permits
    owner, newest, alive = permits.registry.alive(["default"], permits.clock.now_us())
    assert alive == ()
    if policy.shaper.core.store.shared:
        permits.registry.renewed("default", permits._keep.call("default", owner, newest, alive), 0, 0)
        assert standing(policy) == (0, 0)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_that_ends_with_a_call_in_line_takes_it_along(policy, backend):
    async def main():
        # A wait without a bound, inside of the call that it waits for, would be warned about.
        enter = policy.aadmit(max_wait="1d").__aenter__
        if backend == "trio":
            trio.lowlevel.spawn_system_task(enter)
        else:
            asyncio.get_running_loop().create_task(enter())
        while standing(policy) != (1, 1):
            await checkpoint()

    with policy.admit():
        anyio.run(main, backend=backend)
    with policy.admit(max_wait=0):
        pass
    assert standing(policy) == (0, 0)


def test_a_run_of_trio_that_has_finished_keeps_no_permit():
    policy = Policy(concurrency=1, name="api", clock=ManualClock(1_000.0))
    left = policy.aadmit(max_wait="1d").__aenter__()

    async def main():
        left.send(None)

    with policy.admit():
        trio.run(main)
        assert standing(policy) == (1, 1)
    with policy.admit(max_wait=0):
        pass
    left.close()
