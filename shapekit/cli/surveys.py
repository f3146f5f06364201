"""Surveys: a store as somebody sees it who only looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urlsplit

from shapekit.cli.stores import open_store
from shapekit.stores.sighting import Sighting

if TYPE_CHECKING:
    from shapekit.stores.redis import RedisStore

__all__ = ["Survey", "open_survey", "place_of"]

Survey: TypeAlias = Callable[[str], Iterator[Sighting]]
"""The live keys whose `name:key` begins with a text; it may be asked again and again."""


@contextmanager
def open_survey(where: str | None) -> Iterator[Survey]:
    """Looks at the store of a URL or a file, and leaves it exactly as it is."""
    if where and Path(where).is_file():
        # A SQLiteStore would queue with those who decide; to look, nobody has to.
        from shapekit.stores.sqlite_survey import SqliteSurvey  # noqa: PLC0415 - who asks Redis need not load it

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
