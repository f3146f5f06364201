"""Stores: where the states of limits are kept. `open_store` makes one from a URL or a path."""

from __future__ import annotations

import os
import re
from os import PathLike
from typing import TypeAlias

from shapekit.clock import Clock
from shapekit.errors import UNSHOWN, ConfigError
from shapekit.stores.base import Store
from shapekit.stores.memory import MemoryStore

__all__ = ["StoreLike", "open_store"]

StoreLike: TypeAlias = "Store | str | PathLike[str]"
"""A store, the URL of a Redis ("redis://…", "rediss://…", "unix://…"), or the path of a SQLite file."""

REDIS = ("redis://", "rediss://", "unix://")
_NO_PATH = re.compile(r"[^/\\:]{2,}:|\[.*\]:|(redis|memory|sqlite|localhost)$")
"""Matches a host with a port, a URL without its slashes, or a kind of store, but no drive of Windows and no
folder."""
_FIX = 'pass a store such as RedisStore(client), a URL ("redis://localhost"), or a path ("limits.db")'


def open_store(
    store: StoreLike | None, clock: Clock | None = None, field: str = "store"
) -> tuple[Store, bool]:
    """The store, and whether this function made it: then the caller has to close it."""
    if store is None:
        return MemoryStore(clock), True
    if isinstance(store, Store):
        if clock is not None:
            fix = "give the store the clock"
            raise ConfigError("clock", clock, "conflicts with store=, which has its own clock", fix)
        return store, False
    if not isinstance(store, str | PathLike):
        raise ConfigError(field, store, "is not a store", _FIX)
    where = os.fspath(store)
    if where.startswith(REDIS):
        from shapekit.stores.redis import RedisStore  # noqa: PLC0415 - redis is an extra

        return RedisStore.from_url(where, clock=clock), True
    if not where:
        raise ConfigError(field, where, "is empty", _FIX)
    if "://" in where:
        # The text after the scheme may contain a password.
        raise ConfigError(field, where.partition("://")[0], "is an unknown scheme", _FIX)
    if isinstance(store, str) and _NO_PATH.match(where):
        # This would become a file, and share nothing. It may contain a password.
        shown = UNSHOWN if "@" in where else where
        fix = 'write "redis://localhost:6379", "./name" for a file of that name, or nothing for memory'
        raise ConfigError(field, shown, "is neither a URL nor a path", fix)
    from shapekit.stores.sqlite import SQLiteStore  # noqa: PLC0415 - with Redis, sqlite3 need not be loaded

    return SQLiteStore(where, clock=clock), True
