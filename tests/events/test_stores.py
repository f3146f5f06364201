"""On every store the same is told: what a store answers is what is compared to tell it."""

import pytest

from shapekit import MemoryStore, Policy, RedisStore, SQLiteStore
from shapekit.events import Cancelled, Departed, Held, Refused, Reserved, Resumed, Settled

from ..redis_server import shared_server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request, clock, tmp_path):
    match request.param:
        case "memory":
            store = MemoryStore(clock)
        case "sqlite":
            store = SQLiteStore(tmp_path / "limits.db", clock=clock)
        case "redis":
            url = shared_server().url
            store = RedisStore.from_url(url, clock=clock, prefix=f"events-{tmp_path.name}")
    yield store
    store.close()


def test_a_whole_story(store, clock, heard):
    policy = Policy("10/s", name="stripe", max_wait=5, store=store)
    shaper = policy.shaper
    with policy.admit("alice", cost=2) as admission:
        pass
    with policy.admit("alice"):
        pass
    assert admission.settle(3)
    turn = shaper.reserve("alice")
    assert turn.cancel()
    assert not turn.cancel()
    assert not shaper.reserve("alice", max_wait=0)
    assert shaper.hold("30s", key="alice") == 30.0
    assert shaper.hold("1s", key="alice") == 30.0
    assert shaper.resume(key="alice") == 0.25
    assert shaper.resume(key="bob") == 0.0
    assert heard == [
        Reserved("stripe", "alice", 2, 0.0),
        Departed("stripe", "alice", 2, 0.0, 0.0),
        Reserved("stripe", "alice", 1, 0.2),
        Departed("stripe", "alice", 1, 0.2, 0.0),
        Settled("stripe", "alice", 2, 3),
        Reserved("stripe", "alice", 1, 0.2),
        Cancelled("stripe", "alice", 1, True),
        Refused("stripe", "alice", 1, "queue_full", 0.2, False),
        Held("stripe", "alice", 30.0, 30.0),
        Resumed("stripe", "alice", 0.25),
    ]
