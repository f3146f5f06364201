"""A server may evict any key between any two commands: that key is cold then.

No call fails or waits for ever, and no more calls leave too early than the one burst of a cold key.
"""

from itertools import count

import pytest

from shapekit import GCRA, Adaptive, ManualClock, Policy, RedisStore, SlidingWindowLog
from shapekit.stores.redis.connections import Link

from ..redis_server import RedisServer

RATE, BURST, CALLS = 10, 2, 12
POLICIES = {
    "rate": {"rate": f"{RATE}/s", "burst": BURST},
    "further limits": {
        "rate": f"{RATE}/s; 300/min",
        "burst": BURST,
        "quota": "1000/day",
        "gates": (GCRA("10/s", burst=5), SlidingWindowLog("500/min")),
    },
    "permits": {"rate": f"{RATE}/s", "burst": BURST, "concurrency": 3},
    "set by an operator": {"rate": f"{RATE}/s", "burst": BURST},
    "of two versions": {"rate": f"{RATE}/s", "burst": BURST},
    "adaptive": {"adaptive": Adaptive("1/s", f"{RATE}/s")},
}
SLOW = ("permits", "set by an operator", "adaptive")
_fresh = count()


@pytest.fixture(scope="module")
def client():
    with RedisServer() as server, server.client() as client:
        yield client


class Evicting:
    """Before one command of the stores, removes the key at one place in the order of their names."""

    def __init__(self, client, monkeypatch):
        self._client, self._say = client, Link.say
        self.sent, self.before, self.place, self.prefix, self.evicted = 0, 0, 0, "", set()

        def say(link, command):
            self._evict()
            return self._say(link, command)

        monkeypatch.setattr(Link, "say", say)

    def begin(self, before, place):
        self.sent, self.before, self.place = 0, before, place
        self.prefix = f"evict{next(_fresh)}"

    def _evict(self):
        self.sent += 1
        if self.sent == self.before:
            keys = sorted(self._client.scan_iter(f"{self.prefix}:*"))
            for key in keys[self.place : self.place + 1]:
                self._client.delete(key)
                self.evicted.add(key.removeprefix(self.prefix.encode()))


@pytest.fixture
def evicting(client, monkeypatch):
    return Evicting(client, monkeypatch)


def departures(client, prefix, kind):
    """When the calls of two workers leave, one after the other."""
    options = POLICIES[kind]
    other = {"burst": 1} if kind == "of two versions" else {}
    clock = ManualClock(1_700_000_000.0, autojump=True)
    url = f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"
    stores = [RedisStore.from_url(url, clock=clock, prefix=prefix) for _ in range(2)]
    workers = [
        Policy(**options | changed, name="api", store=store)
        for store, changed in zip(stores, ({}, other), strict=True)
    ]
    if kind == "set by an operator":
        workers[0].configure(f"{RATE / 2:g}/s")
    left = []
    for number in range(CALLS):
        worker = workers[number % 2]
        if number == CALLS // 2:
            worker.shaper.hold("300ms")
        if number % 4 == 3:
            worker.shaper.reserve().cancel()
        with worker.admit():
            left.append(clock.now())
    for worker, store in zip(workers, stores, strict=True):
        worker.close()
        store.close()
    return left


def excess(left, burst):
    """By how many calls the worst stretch exceeds rate and burst."""
    return max(
        number - RATE * (end - begin) - burst
        for first, begin in enumerate(left)
        for number, end in enumerate(left[first:], 1)
    )


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.long] if kind in SLOW else []) for kind in POLICIES],
)
def test_no_key_that_is_evicted_at_any_moment_fails_a_call_or_admits_more_than_a_burst(
    kind, client, evicting
):
    burst = POLICIES[kind].get("burst", 1)
    evicting.begin(0, 0)
    assert excess(departures(client, evicting.prefix, kind), burst) < 1e-3
    for before in range(1, evicting.sent + 1):
        for place in range(4):
            evicting.begin(before, place)
            left = departures(client, evicting.prefix, kind)
            assert len(left) == CALLS
            assert left == sorted(left)
            assert excess(left, burst) < burst + 1e-3
    assert b":program:api" in evicting.evicted
    assert b":{api:default}" in evicting.evicted
    assert (b":setting:api" in evicting.evicted) is (kind == "set by an operator")
    assert (b":{api.permits:default}" in evicting.evicted) is (kind == "permits")
