"""A description names the program that wrote a state. A server may evict it: then the state counts as lost.

This raises no error: the charges of the other calls go with their state, once, as with a key that is itself
evicted.
"""

import random

import anyio
import pytest

from shapekit import (
    GCRA,
    ConfigError,
    Decision,
    Gate,
    MemoryStore,
    Quota,
    RedisStore,
    ResilientStore,
    Shaper,
    SlidingWindowLog,
    all_of,
)
from shapekit.stores.encoding import describe, tag
from shapekit.stores.redis import protocol as redis_program
from shapekit.testing import ManualClock

from ..redis_server import RedisServer

KEYS = {"a": "one", "b": "two"}
LIMITS = {
    "gcra": [GCRA("10/d"), GCRA("20/d", burst=10), GCRA("12/d", burst=7)],
    "month": [Quota(limit, "month", tz="Europe/Berlin") for limit in (20, 30, 25)],
    "log": [SlidingWindowLog(f"{limit}/d") for limit in (20, 30, 25)],
    "both": [all_of(a=GCRA("10/d", burst=burst), b=Quota(30, "month")) for burst in (9, 8, 7)],
    "apart": [all_of(a=GCRA("10/d", burst=burst), b=Quota(10 * burst, "month")) for burst in (9, 8, 7)],
    "queue": ["1/min", "2/min", "1/s; 3/min"],
}
MODES = ("plain", "raise", "open", "closed", "local")


@pytest.fixture(scope="module")
def flushed():
    """A server of this file, which is emptied as its tests like."""
    with RedisServer() as server, server.client() as client:
        yield server, client


@pytest.fixture(autouse=True)
def introduced_once(monkeypatch):
    """However long a test takes, a program leaves its description once by itself."""
    monkeypatch.setattr(redis_program, "INTRODUCED_FOR_S", 1e9)


class Process:
    """One configuration on a store of its own."""

    def __init__(self, store, limit, key):
        self.store = store
        self._key = key
        if isinstance(limit, str):
            self._limiter = Shaper(limit, name="shared", store=store)
            self._call, self._acall = self._limiter.reserve, self._limiter.areserve
            wrote = [self._limiter.core.queue]
        else:
            self._limiter = Gate(limit, name="shared", store=store)
            self._call, self._acall = self._limiter.check, self._limiter.acheck
            wrote = [limit] if key == "k" else limit.parts
        self.tags = {tag(describe(part)) for part in wrote}

    def reset(self):
        self._limiter.reset(self._key)

    async def call(self, *, awaited=False):
        """Whether the call was charged, and all that its caller gets."""
        answer = await self._acall(self._key) if awaited else self._call(self._key)
        if isinstance(answer, Decision):
            return answer.allowed, answer
        return answer.accepted, (answer.delay, answer.departs_at)


class Worlds:
    """The same calls twice: once descriptions are lost, once a key is reset when one is looked up."""

    def __init__(self, flushed, kind, mode, count, chance):
        self.server, self.client = flushed
        self.client.flushall()
        self.chance = chance
        self.clock = ManualClock(1_700_000_000.0)
        self.limits = LIMITS[kind][:count]
        self.key = KEYS if kind == "apart" else "k"
        self.mode = mode
        memory = MemoryStore(clock=self.clock)
        # In a memory store nothing is ever lost, but for what is reset.
        self.twins = [Process(memory, limit, self.key) for limit in self.limits]
        self.processes = [self.started(limit) for limit in self.limits]
        self.knows = [set(process.tags) for process in self.processes]
        self.introduced = [False] * count
        self.described = set()
        self.wrote = set()
        self.losses = 0

    def started(self, limit):
        store = RedisStore.from_url(self.server.url, clock=self.clock, prefix="lossy")
        if self.mode != "plain":
            share = 0.5 if self.mode == "local" else None
            # On a busy machine an answer may take a second: that is no outage here.
            store = ResilientStore(store, on_outage=self.mode, share=share, timeout="60s")
        return Process(store, limit, self.key)

    async def call(self, number, *, awaited):
        process, knows = self.processes[number], self.knows[number]
        unknown = self.wrote - knows
        if unknown or not self.introduced[number]:
            self.introduced[number] = True
            self.described |= process.tags
        knows |= unknown & self.described
        if unknown - knows:
            self.losses += 1
            self.twins[number].reset()
        is_charged, answer = await process.call(awaited=awaited)
        assert (is_charged, answer) == await self.twins[number].call()
        assert not getattr(process.store, "is_lost", False)
        if is_charged:
            self.wrote = process.tags

    def forget_descriptions(self):
        self.client.delete("lossy:program:shared")
        self.described.clear()

    def forget_scripts(self):
        self.client.script_flush()

    def forget_all(self):
        self.client.flushall()
        self.twins[0].reset()
        self.described.clear()
        self.wrote = set()

    async def restart(self):
        number = self.chance.randrange(len(self.limits))
        await self.processes[number].store.aclose()
        self.processes[number] = self.started(self.limits[number])
        self.knows[number] = set(self.processes[number].tags)
        self.introduced[number] = False

    async def aclose(self):
        for process in self.processes:
            await process.store.aclose()


HOW = [(how, mode) for how in ("sync", "asyncio") for mode in MODES] + [("trio", "plain"), ("trio", "open")]


@pytest.mark.parametrize(("how", "mode"), HOW)
@pytest.mark.parametrize("kind", LIMITS)
def test_a_state_of_an_unknown_writer_is_cold_and_every_call_is_decided(kind, how, mode, flushed):
    chance = random.Random(f"{kind} {how} {mode}")

    async def story(count):
        worlds = Worlds(flushed, kind, mode, count, chance)
        for _ in range(60):
            worlds.clock.advance(chance.choice([0, 0, 0.001, 60]))
            match chance.randrange(12):
                case 0 | 1:
                    worlds.forget_descriptions()
                case 2:
                    worlds.forget_scripts()
                case 3:
                    worlds.forget_all()
                case 4 | 5:
                    await worlds.restart()
                case _:
                    await worlds.call(chance.randrange(count), awaited=how != "sync")
        await worlds.aclose()
        return worlds.losses

    backend = "trio" if how == "trio" else "asyncio"
    assert sum(anyio.run(story, count, backend=backend) for count in (2, 3)) > 0


@pytest.fixture
def opened(flushed):
    """Opens a gate in a process of its own."""
    server, client = flushed
    client.flushall()
    stores = []

    def open_gate(strategy, url=server.url):
        stores.append(RedisStore.from_url(url))
        return Gate(strategy, name="shared", store=stores[-1])

    yield open_gate
    for store in stores:
        store.close()


def test_any_number_of_lost_keys_are_logged_once(opened, flushed, caplog, afterwards):
    keys = [f"key {number}" for number in range(50)]
    opened(GCRA("10/d")).check_many(keys)
    flushed[1].delete("shapekit:program:shared")
    other = opened(GCRA("20/d", burst=10))
    assert [decision.current for decision in other.check_many(keys)] == [1] * 50
    assert other.peek("key 1").current == 1
    afterwards()
    [record] = [record for record in caplog.records if record.name == "shapekit.store"]
    assert record.levelname == "WARNING"
    assert "'shared'" in record.getMessage()


def test_a_changed_rate_continues_on_any_number_of_keys_in_a_few_trips(opened, flushed):
    keys = [f"key {number}" for number in range(50)]
    opened(GCRA("10/d")).check_many(keys)
    changed = opened(GCRA("20/d", burst=10))
    flushed[1].config_resetstat()
    # One call at the old rate counts as two at the new one.
    assert [decision.current for decision in changed.check_many(keys)] == [2 + 1] * 50
    commands = flushed[1].info("commandstats")
    # The descriptions are sent and read; the keys checked, looked up, continued; a new script costs two.
    assert sum(commands[f"cmdstat_{name}"]["calls"] for name in ("eval", "evalsha")) <= 6


def test_another_kind_is_still_refused_where_its_description_is_known(opened, flushed):
    opened(GCRA("10/d")).check()
    with pytest.raises(
        ConfigError, match=r"cannot continue the state of a gcra \(policy 'shared', key 'default'\)"
    ):
        opened(SlidingWindowLog("10/d")).check()


def test_a_description_of_another_program_is_ignored(opened, flushed):
    # Its tag would not be the one that is looked up.
    opened(GCRA("10/d")).check()
    [field] = flushed[1].hkeys("shapekit:program:shared")
    flushed[1].hset("shapekit:program:shared", field, describe(GCRA("1000/d")))
    assert opened(GCRA("20/d", burst=10)).check().current == 1
