"""Leases of many keys, far away and in parts that are lost: those that the store answers for never end."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from shapekit import Concurrency, ManualClock, Policy, StoreUnavailableError
from shapekit._queue.inflight import MOST_KEYS, RENEWALS
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.algorithms.inflight import KEEP
from shapekit.algorithms.queue.wire import LOOK

from ..slow_store import SlowStore

TRIP_S, TIMEOUT_S, LEASE_S = 0.03, 1.0, 6


class Far(SlowStore):
    """A store behind an event loop, parts of which can be lost; `is_lost(key)` tells which do not answer."""

    awaited_only = True

    def __init__(self):
        super().__init__(ManualClock(1_000, autojump=True), TRIP_S)
        self.is_lost = lambda _: False
        self.refuses = lambda _: False
        self.renewed = []

    def shard(self, name, program, key):
        return key.partition(":")[0]

    def abind_many(self, name, program, operation):
        apply = super().bind_many(name, program, operation)

        async def slow(keys, args):
            assert operation is KEEP
            self.renewed.append(len(keys))
            if any(map(self.is_lost, keys)):
                await self.clock.asleep(TIMEOUT_S, AsyncAlarm())
                raise StoreUnavailableError("timeout")
            await self.clock.asleep(TRIP_S, AsyncAlarm())
            if any(map(self.refuses, keys)):
                raise StoreUnavailableError("the state of a key is damaged")
            return apply(keys, args)

        return slow


class InFlight:
    """One call in flight at each key; whether the store has their permits, as time goes by."""

    def __init__(self, store, keys, lease_s=LEASE_S):
        self.store, self._keys = store, keys
        limit = Concurrency(1, f"{lease_s}s")
        self._policy = Policy("100000/s", burst=10_000, name="api", concurrency=limit, store=store)
        self._look = store._bind_there("api.permits", limit, LOOK)
        self._limit = limit

    def run(self, story):
        async def main():
            async with AsyncExitStack() as calls:
                await asyncio.gather(
                    *[calls.enter_async_context(self._policy.aadmit(key)) for key in self._keys]
                )
                await story(self)

        asyncio.run(main())

    async def stay(self, seconds, keys=None):
        """Let time pass, in which no lease at these keys ends."""
        step_s = self._limit.lease_us / 24e6
        for _ in range(round(seconds / step_s)):
            await self.store.clock.asleep(step_s, AsyncAlarm())
            assert self.left(keys) == []

    def left(self, keys=None):
        """The keys at which the store has no call any more."""
        return [key for key in keys or self._keys if not self._has_call(key)]

    def _has_call(self, key):
        state, now, _ = self._look(key)
        return state is not None and self._limit.standing(state, now) == (1, 0)


def names(shard, number):
    return [f"{shard}:{at}" for at in range(number)]


def test_hundreds_of_keys_share_trips():
    store = Far()

    async def story(calls):
        await calls.stay(5 * LEASE_S)
        rounds = 5 * RENEWALS
        assert sum(store.renewed) <= 400 * (rounds + 1)
        assert len(store.renewed) <= 400 / MOST_KEYS * (rounds + 1)

    InFlight(store, names("one", 400)).run(story)


@pytest.mark.parametrize(("shards", "lease_s"), [(1, LEASE_S), (3, LEASE_S), (20, 60)])
def test_a_lost_shard_takes_no_lease_of_another(shards, lease_s, caplog):
    store = Far()
    lost = [key for shard in range(shards) for key in names(f"lost {shard}", 10)]
    well = names("well", 150)

    async def story(calls):
        store.is_lost = lambda key: key.startswith("lost")
        await calls.stay(5 * lease_s, well)
        assert calls.left() == lost
        store.is_lost = lambda _: False
        await calls.stay(2 * lease_s, well)

    InFlight(store, [*lost, *well], lease_s).run(story)
    assert "and 9 more could not be renewed" in caplog.text


def test_a_key_that_cannot_be_renewed_takes_no_lease_of_another(caplog):
    store = Far()
    damaged, *well = names("one", 300)

    async def story(calls):
        await calls.stay(LEASE_S)
        store.refuses = lambda key: key == damaged
        await calls.stay(5 * LEASE_S, well)
        assert calls.left() == [damaged]
        before = len(store.renewed)
        await calls.stay(LEASE_S, well)
        assert len(store.renewed) - before < len(well) / 4, "it is renewed by itself, and the others together"

    InFlight(store, [*well, damaged]).run(story)
    assert damaged in caplog.text


def test_when_the_store_is_back_the_leases_that_last_are_renewed():
    store = Far()

    async def story(calls):
        await calls.stay(LEASE_S)
        store.is_lost = lambda _: True
        await calls.stay(LEASE_S / 2 - TIMEOUT_S)
        store.is_lost = lambda _: False
        await calls.stay(3 * LEASE_S)

    InFlight(store, names("one", 400)).run(story)


def test_calls_that_begin_while_others_are_renewed_are_renewed_too():
    store = Far()
    first, *later = names("one", 30)

    async def story(calls):
        async with AsyncExitStack() as more:
            for at, key in enumerate(later):
                await more.enter_async_context(calls._policy.aadmit(key))
                await calls.stay(0.75, [first, *later[: at + 1]])

    InFlight(store, [first]).run(story)
