"""RedisStore proves itself with the kit, on a real server."""

import os
from itertools import count

import pytest

from shapekit import RedisStore
from shapekit.testing import StoreConformance

from ..redis_server import shared_server

TIMELINES = 200
AT_LENGTH = int(os.environ.get("SHAPEKIT_TIMELINES", "2000"))
_fresh = count()


class TestRedisStore(StoreConformance):
    timelines = TIMELINES

    def make_store(self, clock):
        return RedisStore.from_url(shared_server().url, clock=clock, prefix=f"test{next(_fresh)}")

    def same_store(self, store, clock):
        return RedisStore.from_url(shared_server().url, clock=clock, prefix=store.prefix)


@pytest.mark.long
class TestRedisStoreAtLength(TestRedisStore):
    timelines = AT_LENGTH
