"""A busy key with callers of two versions of the numbers, as in a rolling deployment."""

import asyncio
from itertools import count

import pytest

from shapekit import GCRA, ConfigError, Gate, RedisStore, Shaper, StoreUnavailableError
from shapekit.stores.redis.connections import Link

from ..redis_server import shared_server

BURST = 1_000
_fresh = count()


@pytest.fixture
def stores():
    """The stores of two processes."""
    prefix = f"overtaken{next(_fresh)}"
    both = [RedisStore.from_url(shared_server().url, prefix=prefix) for _ in range(2)]
    yield both
    for store in both:
        store.close()


class Overtaken:
    """A process of which each command comes behind a call of another one."""

    def __init__(self, store, call):
        self.trips = 0
        self._call = call
        self._original_say = store._link.say
        store._link.say = self.say

    def say(self, command):
        self.trips += 1
        self._call()
        return self._original_say(command)


def test_a_call_that_others_always_overtake_is_decided_by_their_numbers(stores):
    busy = Gate(GCRA("2/h", BURST), name="api", store=stores[0])
    busy.check()
    slow = Overtaken(stores[1], busy.check)
    gate = Gate(GCRA("1/h", BURST // 2), name="api", store=stores[1])
    for _ in range(3):
        assert gate.check().limit == BURST
    assert slow.trips <= 3 * 6
    assert busy.peek().remaining == BURST - 1 - 3 - slow.trips  # all are charged, once


def test_slots_of_a_call_that_others_overtake_are_given_by_their_numbers(stores):
    busy = Shaper("20/min", name="api", store=stores[0])
    busy.reserve()
    slow = Overtaken(stores[1], busy.reserve)
    reservation = Shaper("10/min", name="api", store=stores[1]).reserve()
    assert reservation.delay == pytest.approx(3 * (1 + slow.trips), abs=2)
    assert busy.reserve().delay == pytest.approx(3 * (2 + slow.trips), abs=2)


def test_each_of_many_keys_is_charged_once(stores):
    keys = ["one", "two"]
    busy = Gate(GCRA("2/h", BURST), name="api", store=stores[0])
    busy.check_many(keys)
    slow = Overtaken(stores[1], lambda: busy.check_many(keys))
    gate = Gate(GCRA("1/h", BURST // 2), name="api", store=stores[1])
    assert all(gate.check_many(keys))
    assert [busy.peek(key).remaining for key in keys] == [BURST - 2 - slow.trips] * 2


def test_a_cost_that_their_numbers_never_admit_is_not_decided_by_them(stores):
    busy = Gate(GCRA("2/h", BURST), name="api", store=stores[0])
    busy.check()
    Overtaken(stores[1], busy.check)
    gate = Gate(GCRA("1/h", 2 * BURST), name="api", store=stores[1])
    with pytest.raises(ConfigError, match="programs of different numbers"):
        gate.check(cost=BURST + 1)
    assert gate.check().limit == BURST


def test_tasks_that_share_a_trip_are_all_decided(stores, monkeypatch):
    busy = Gate(GCRA("2/h", BURST), name="api", store=stores[0])
    busy.check()
    trips, original_asay = [], Link.asay

    async def overtaken(link, command):
        trips.append(busy.check())
        return await original_asay(link, command)

    monkeypatch.setattr(Link, "asay", overtaken)
    gate = Gate(GCRA("1/h", BURST // 2), name="api", store=stores[1])

    async def check_all():
        decisions = await asyncio.gather(*[gate.acheck() for _ in range(5)])
        await stores[1].aclose()
        return decisions

    assert all(decision.limit == BURST for decision in asyncio.run(check_all()))
    assert busy.peek().remaining == BURST - 1 - 5 - len(trips)


def test_the_store_may_close_while_a_call_is_overtaken(stores):
    busy = Gate(GCRA("2/h", BURST), name="api", store=stores[0])
    busy.check()
    slow = Overtaken(stores[1], lambda: busy.check() and slow.trips == 4 and stores[1].close())
    gate = Gate(GCRA("1/h", BURST // 2), name="api", store=stores[1])
    with pytest.raises(StoreUnavailableError, match="closed"):
        gate.check()
