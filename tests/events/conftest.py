"""Fixtures of the tests of events: virtual time, a listener, and all ways of making a call."""

import pytest

from shapekit import MemoryStore, Policy, RedisStore, SQLiteStore, listen

from ..redis_server import shared_server
from .calls import WORLDS


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


@pytest.fixture
def recorded():
    """All events of this process."""
    events = []
    with listen(events.append):
        yield events


@pytest.fixture(params=WORLDS, ids=lambda world: world.name)
def world(request):
    return request.param


@pytest.fixture
def policy(clock):
    """Ten a second."""
    return Policy("10/s", name="stripe", clock=clock)
