"""Stores: which store an operator means.

Surveys: a store as somebody sees it who only looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import click

from shapekit import stores
from shapekit.cli.group import Complaint
from shapekit.stores import REDIS
from shapekit.stores.base import Store
from shapekit.stores.encoding import Sighting

if TYPE_CHECKING:
    from shapekit.stores.redis import RedisStore

__all__ = ["Survey", "open_store", "open_survey", "place_of", "store_option"]

Command = TypeVar("Command", bound=Callable[..., Any])

VARIABLE = "SHAPEKIT_STORE"
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
    scheme, separator, _ = where.partition("://")
    if separator and not where.startswith(REDIS):
        # What follows may hold a password.
        raise Complaint(f"store='{scheme}://…' has an unknown scheme; {_FIX}")
    if not separator and not create and not Path(where).is_file():
        told = "(not shown)" if "@" in where else repr(where)
        raise Complaint(f"store={told} is not a file; {_FIX}")
    return stores.open_store(where)[0]


Survey: TypeAlias = Callable[[str], Iterator[Sighting]]
"""The live keys whose `name:key` begins with a text; it may be asked again and again."""


@contextmanager
def open_survey(where: str | None) -> Iterator[Survey]:
    """Looks at the store of a URL or a file, and leaves it exactly as it is."""
    if where and Path(where).is_file():
        # A SQLiteStore would queue with those who decide; to look, nobody has to.
        from shapekit.stores.sqlite.store import SqliteSurvey  # noqa: PLC0415 - who asks Redis need not load it

        yield SqliteSurvey(where).sightings
        return
    # All that is left: a Redis, or nothing that could be opened.
    with closing(cast("RedisStore", open_store(where))) as store:
        yield store.survey


def place_of(where: str) -> str:
    """The store in the words of a headline: without a password."""
    parts = urlsplit(where)
    if not parts.hostname:
        return Path(parts.path).name
    return f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}{parts.path}"
