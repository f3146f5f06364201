"""ResilientStore: what happens when the store is gone."""

from shapekit.stores.resilient.store import ResilientStore

__all__ = ["ResilientStore"]
