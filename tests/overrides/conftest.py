"""Stores on which overrides are set, and the function that sets them."""

import itertools

import pytest

from shapekit import ManualClock, MemoryStore, SQLiteStore
from shapekit._runtime.drivers import run
from shapekit.stores.base import changed
from shapekit.stores.redis import RedisStore

from ..redis_server import shared_server

_numbers = itertools.count()


def fresh_redis(clock=None):
    return RedisStore.from_url(shared_server().url, clock=clock, prefix=f"overrides{next(_numbers)}")


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request, tmp_path):
    """One of each kind, in virtual time that stands still."""
    clock = ManualClock(1_000_000_000)
    made = {
        "memory": lambda: MemoryStore(clock),
        "sqlite": lambda: SQLiteStore(tmp_path / "limits.db", clock=clock),
        "redis": lambda: fresh_redis(clock),
    }[request.param]()
    yield made
    made.close()


def put(store, name, *overrides):
    """Set exactly these, as an operator's command does."""
    run(changed, store, name, lambda _: tuple(overrides))
