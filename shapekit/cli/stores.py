"""Stores: which store an operator means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from shapekit.cli.complaint import Complaint
from shapekit.stores.base import Store

__all__ = ["open_store", "store_option"]

Command = TypeVar("Command", bound=Callable[..., Any])

VARIABLE = "SHAPEKIT_STORE"
_REDIS = ("redis://", "rediss://", "unix://")
_FIX = f"give --store redis://HOST or --store FILE, or set {VARIABLE}"


def store_option(command: Command) -> Command:
    """The option `--store`, which a command is given as `store`: text for `open_store`, or None."""
    return click.option(
        "--store",
        metavar="URL|FILE",
        envvar=VARIABLE,
        show_envvar=True,
        help="redis://…, rediss://… or unix://… for Redis, anything else is the file of a SQLiteStore.",
    )(command)


def open_store(where: str | None, *, create: bool = False) -> Store:
    """The store at a URL or in a file. A file that is not there is a mistake, unless it may be made."""
    if not where:
        raise Complaint(f"no store is given; {_FIX}")
    if where.startswith(_REDIS):
        from shapekit.stores.redis import RedisStore  # noqa: PLC0415 - redis is an extra

        return RedisStore.from_url(where)
    scheme, separator, _ = where.partition("://")
    if separator:
        # What follows may hold a password.
        raise Complaint(f"store='{scheme}://…' has an unknown scheme; {_FIX}")
    if not create and not Path(where).is_file():
        told = "(not shown)" if "@" in where else repr(where)
        raise Complaint(f"store={told} is not a file; {_FIX}")
    from shapekit.stores.sqlite import SQLiteStore  # noqa: PLC0415 - who asks Redis need not load sqlite3

    return SQLiteStore(where)
