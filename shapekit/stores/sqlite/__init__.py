"""SQLiteStore: the truth of one host, in a file, without a server."""

from shapekit.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
