"""RedisStore while a shard of the cluster fails: the others' keys are untouched, its own come back."""

import threading
import time
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
import redis

from shapekit import GCRA, Gate, ResilientStore, StoreUnavailableError

from ...redis_cluster import slot_of, wait_until
from .stores import PATIENCE_S, TIMEOUT_S, store_on

pytestmark = pytest.mark.long

KEEPS_CONNECTIONS = (7, 2)
"""The release of redis-py whose asynchronous client lets calls end that are under way to other shards when it
reads the map of the cluster again; before, their replies are lost."""


class Callers:
    """Each calls one key again and again, on a thread or on an event loop, until all are stopped."""

    def __init__(self):
        self.stop = threading.Event()
        self._threads = []
        self._outcomes = {}

    def start(self, caller, check):
        """A thread of its own."""
        outcomes = self._outcomes[caller] = []

        def work():
            while not self.stop.is_set():
                start = time.monotonic()
                try:
                    check()
                except StoreUnavailableError:
                    outcomes.append((False, time.monotonic() - start))
                    # A call that fails at once is not repeated all the time.
                    self.stop.wait(0.01)
                else:
                    outcomes.append((True, time.monotonic() - start))

        self._run(work)

    def start_loop(self, backend, make_checks):
        """A thread with an event loop; `make_checks` is an asynchronous context, of checks by caller."""

        async def work(caller, check):
            outcomes = self._outcomes[caller] = []
            while not self.stop.is_set():
                start = time.monotonic()
                try:
                    await check()
                except StoreUnavailableError:
                    outcomes.append((False, time.monotonic() - start))
                    await anyio.sleep(0.01)
                else:
                    outcomes.append((True, time.monotonic() - start))

        async def main():
            async with make_checks() as checks, anyio.create_task_group() as tasks:
                for caller, check in checks.items():
                    tasks.start_soon(work, caller, check)

        self._run(partial(anyio.run, main, backend=backend))

    def _run(self, work):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def end(self):
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a caller hangs"

    @property
    def names(self):
        return list(self._outcomes)

    def answers(self, caller):
        return [ok for ok, _ in self._outcomes.get(caller, ())]

    def slowest(self, caller):
        return max(took for _, took in self._outcomes[caller])

    def are_served(self, callers, count=20):
        """Whether each caller has had so many answers since its last failure."""
        return all(self.answers(caller)[-count:] == [True] * count for caller in callers)

    def have_failed(self, callers):
        return all(False in self.answers(caller) for caller in callers)


@pytest.fixture
def callers():
    callers = Callers()
    yield callers
    callers.end()


def in_step(servers, master):
    """Wait until the replica of a master has all its data."""
    wait_until(lambda: servers.command(master, "WAIT", 1, 100) == 1)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_shard_that_fails_in_mid_load(servers, store, name, keys, callers, how):
    """Its keys raise until the replica has taken over; the others' callers see nothing of it."""
    spent = Gate(GCRA("1/h"), name=name, store=store)
    assert all(spent.check_many(keys))
    master = servers.owner_of(slot_of(name, keys[0]))
    in_step(servers, master)
    for key in keys:
        callers.start(("thread", key), lambda key=key: denied(spent.check(key)))

    @asynccontextmanager
    async def on_a_loop(backend):
        async with store_on(servers, backend) as store:
            gate = Gate(GCRA("1/h"), name=name, store=store)

            async def check(key):
                denied(await gate.acheck(key))

            yield {(backend, key): partial(check, key) for key in keys}

    for backend in ("asyncio", "trio"):
        callers.start_loop(backend, partial(on_a_loop, backend))
    wait_until(lambda: len(callers.names) == 9 and callers.are_served(callers.names))
    touched = [caller for caller in callers.names if caller[1] == keys[0]]
    with servers.outage(master, how):
        wait_until(lambda: callers.have_failed(touched))
        wait_until(lambda: callers.are_served(touched))
        callers.end()
    assert servers.owner_of(slot_of(name, keys[0])) not in (None, master)
    for caller in set(callers.names) - set(touched):
        if caller[0] == "asyncio" and redis.VERSION < KEEPS_CONNECTIONS:
            assert callers.are_served([caller]), caller
            continue
        assert all(callers.answers(caller)), caller
        assert callers.slowest(caller) < TIMEOUT_S, caller


def denied(decision):
    assert not decision, "a spent key admits"


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_keys_of_a_shard_that_fails_follow_the_outage_mode(servers, store, name, keys, mode):
    resilient = ResilientStore(store, on_outage=mode, timeout=TIMEOUT_S)
    spent = Gate(GCRA("1/h"), name=name, store=resilient)
    fresh = Gate(GCRA("1/h", 100_000), name=f"{name}-fresh", store=resilient)
    key = keys[0]
    fresh_key = servers.key_of(0, fresh.name)
    assert spent.check(key)
    assert fresh.check(fresh_key)
    master = servers.owner_of(slot_of(name, key))
    in_step(servers, master)
    with servers.outage(master, "killed"):
        assert bool(spent.check(key)) is bool(fresh.check(fresh_key)) is (mode == "open")
        assert resilient.is_lost
        wait_until(lambda: spent.check(key).allowed is False and fresh.check(fresh_key).allowed is True)
        assert not resilient.is_lost


def test_an_outage_of_one_shard_does_not_affect_the_others(servers, store, name, keys):
    """Also with a ResilientStore: what the others' servers know is what decides there."""
    resilient = ResilientStore(store, on_outage="open", timeout=TIMEOUT_S)
    spent = Gate(GCRA("1/h"), name=name, store=resilient)
    assert all(spent.check_many(keys))
    master = servers.owner_of(slot_of(name, keys[0]))
    in_step(servers, master)
    with servers.outage(master, "killed"):
        assert spent.check(keys[0]), "its own keys are open"
        assert [bool(spent.check(key)) for key in keys[1:]] == [False, False]


def test_a_shard_that_was_replaced_is_no_longer_lost(servers, client, store, name, keys):
    """Also where no probe has read the new map; no call goes to the old server again."""
    resilient = ResilientStore(store, on_outage="open", timeout=TIMEOUT_S)
    spent = Gate(GCRA("1/h"), name=name, store=resilient)
    assert spent.check(keys[0])
    slot = slot_of(name, keys[0])
    master = servers.owner_of(slot)
    in_step(servers, master)
    with servers.outage(master, "killed"):
        assert spent.check(keys[0])
        assert resilient.is_lost
        wait_until(lambda: servers.owner_of(slot) not in (None, master))
        client.nodes_manager.initialize()
        wait_until(lambda: not spent.check(keys[0]))
        assert not resilient.is_lost
