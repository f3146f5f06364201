"""Library: one of those that are measured side by side, and what it offers.

Each has a module in `libraries/`, which uses it as its documentation says and names what it cannot do. A
library that is not installed, or fails, keeps its line in every table, with the reason in place of figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from .tables import Line

MODULES = {
    "shapekit": "ours",
    "aiolimiter": "aiolimiter",
    "asynciolimiter": "asynciolimiter",
    "pyrate-limiter": "pyrate",
    "limits": "limits",
    "throttled-py": "throttled",
    "steindamm": "steindamm",
    "requests-ratelimiter": "requests_ratelimiter",
    "httpx-limiter": "httpx_limiter",
}
"""The module of each, by the name it is installed under."""


class Library(NamedTuple):
    """Its name, and its module, or why there is none."""

    name: str
    module: ModuleType | None
    failed: str = ""

    def reason(self, offer: str) -> str:
        """Why it does not offer that; nothing if it does."""
        if self.module is None:
            return self.failed
        return "" if hasattr(self.module, offer) else str(self.module.CANNOT[offer])

    def without(self, offer: str) -> Line:
        """The line of a library that does not offer that."""
        return Line(self.name, "–", failed=self.reason(offer))


def libraries() -> Iterator[Library]:
    """All of them, ours first."""
    for name, module in MODULES.items():
        try:
            yield Library(name, import_module(f".libraries.{module}", __package__))
        except Exception as error:
            if name == "shapekit":
                raise
            yield Library(name, None, words(error))


def offering(offer: str) -> tuple[list[tuple[Library, ModuleType]], list[Line]]:
    """The libraries that offer something, with their modules, and the lines of those that do not."""
    able, unable = [], []
    for library in libraries():
        if library.module is None or library.reason(offer):
            unable.append(library.without(offer))
        else:
            able.append((library, library.module))
    return able, unable


class Cannot(Exception):
    """Why a library has no figure here, in words for the table."""


def words(error: BaseException) -> str:
    """An error, in one line."""
    if isinstance(error, Cannot):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160].rstrip(": ")
