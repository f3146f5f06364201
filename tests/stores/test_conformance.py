"""Our own stores are the first users of the kit.

`SHAPEKIT_TIMELINES` sets how many timelines each algorithm gets on each store in a long run.
"""

import os
from itertools import count

import pytest

from shapekit import MemoryStore, SQLiteStore
from shapekit.testing import StoreConformance

TIMELINES = 200
AT_LENGTH = int(os.environ.get("SHAPEKIT_TIMELINES", "2000"))


class TestMemoryStore(StoreConformance):
    timelines = TIMELINES

    def make_store(self, clock):
        return MemoryStore(clock)


class OnThreads(MemoryStore):
    """A store whose awaited calls take the default way of a store with I/O: worker threads."""

    instant = False


class TestAwaitedOnThreads(StoreConformance):
    timelines = 5

    def make_store(self, clock):
        return OnThreads(clock)


class TestSQLiteStore(StoreConformance):
    timelines = TIMELINES

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.paths = (tmp_path / f"{number}.db" for number in count())
        self.path_of = {}

    def make_store(self, clock):
        path = next(self.paths)
        store = SQLiteStore(path, clock=clock)
        self.path_of[store] = path
        return store

    def same_store(self, store, clock):
        return SQLiteStore(self.path_of[store], clock=clock)


@pytest.mark.long
class TestMemoryStoreAtLength(TestMemoryStore):
    timelines = AT_LENGTH


@pytest.mark.long
class TestSQLiteStoreAtLength(TestSQLiteStore):
    timelines = AT_LENGTH
