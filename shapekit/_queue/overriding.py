"""Overriding: how operators set limits for a name in the store, from a policy or from the command line."""

from __future__ import annotations

from collections.abc import Callable

from shapekit._runtime.drivers import Driver, Twin
from shapekit.algorithms.overrides import Override, Overrides, read, written
from shapekit.errors import ConfigError
from shapekit.stores.base import Store
from shapekit.stores.settings import Stored

__all__ = ["changed", "in_force", "legible", "placed", "set_by", "without"]


async def in_force(driver: Driver, store: Store, name: str) -> Overrides:
    """The overrides of a name."""
    return legible(store, await driver.ask(Twin(store.read_overrides, store.aread_overrides), name))


async def changed(
    driver: Driver, store: Store, name: str, change: Callable[[Overrides], Overrides]
) -> tuple[Overrides, Overrides]:
    """Change the overrides of a name in one step; returns those before and since."""
    look, write = (
        Twin(store.read_overrides, store.aread_overrides),
        Twin(store.write_overrides, store.awrite_overrides),
    )
    while True:
        known = await driver.ask(look, name)
        before = legible(store, known)
        after = change(before)
        if written(after) == known.text or await driver.ask(write, name, written(after), known):
            return before, after


def legible(store: Store, stored: Stored) -> Overrides:
    """What is said, without what has ended; nothing where it is illegible, as for decisions."""
    try:
        found = read(stored.text)
    except ConfigError:
        return ()
    now = store.clock.now_us()
    return tuple([one for one in found if not one.is_over(now)])


def without(overrides: Overrides, key: str | None) -> Overrides:
    """The overrides of other keys."""
    return tuple([one for one in overrides if one.key != key])


def set_by() -> str:
    """Who runs this process, and where."""
    import getpass  # noqa: PLC0415 - only who sets something asks
    import socket  # noqa: PLC0415 - likewise

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def placed(override: Override) -> Callable[[Overrides], Overrides]:
    """The change that sets an override, instead of any of the same key."""
    return lambda overrides: (*without(overrides, override.key), override)
