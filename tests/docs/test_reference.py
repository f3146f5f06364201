"""The reference names everything that is public, with docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shapekit import errors

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
ABSENT = [path.name for path in (ROOT / "tests" / "heavy").iterdir() if find_spec(path.name) is None]
"""Integrations whose packages may be absent: where they are installed, their names are checked, too."""
PUBLIC = [
    *("shapekit", "shapekit.events", "shapekit.feedback", "shapekit.llm", "shapekit.progress"),
    *(f"shapekit.stores.{name}" for name in ("base", "encoding", "memory", "redis", "resilient", "sqlite")),
    "shapekit.testing",
    *(
        f"shapekit.integrations.{path.stem}"
        for path in sorted((ROOT / "integrations").glob("*"))
        if not path.name.startswith("_") and path.stem not in ABSENT
    ),
]
LOADED_ON_DEMAND = {"shapekit": ["RedisStore"]}

NAMED = re.compile(r"^::: (\S+)$", re.MULTILINE)
"""The directives that put docstrings into a page."""


def named() -> set[str]:
    names = {name for page in REFERENCE.glob("*.md") for name in NAMED.findall(page.read_text("utf-8"))}
    return {name for name in names if name.split(".")[:3][-1] not in ABSENT}


def public_names(module: ModuleType) -> list[str]:
    names = [*module.__all__, *LOADED_ON_DEMAND.get(module.__name__, ())]
    return [name for name in names if f"{module.__name__}.{name}" not in PUBLIC]


def undocumented(module: ModuleType, name: str) -> list[str]:
    """The public things, methods and properties under this name that have no docstring."""
    thing: Any = getattr(module, name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return []  # a constant or an alias: a docstring below it in the source, for readers of that
    # A NamedTuple or dataclass without a docstring has its signature as one.
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    found = [name] if not own or own.startswith(f"{name}(") else []
    for base in thing.__mro__ if inspect.isclass(thing) else ():
        if not base.__module__.startswith("shapekit"):
            continue
        found += [
            f"{name}.{attribute}"
            for attribute, value in vars(base).items()
            if not attribute.startswith(("_", "test_"))
            and (callable(value) or isinstance(value, (property, classmethod, staticmethod)))
            and not (inspect.getdoc(getattr(thing, attribute)) or described_by_the_clock(thing, attribute))
        ]
    return found


def described_by_the_clock(thing: type, attribute: str) -> bool:
    """The methods of a clock are those of the protocol `Clock`, which describes them."""
    return thing.__name__.endswith("Clock") and bool(
        inspect.getdoc(getattr(importlib.import_module("shapekit").Clock, attribute, None))
    )


def resolved(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    there = importlib.import_module(module)
    shown = named()
    things = [resolved(name) for name in shown]
    # What has two names is shown under one of them.
    missing = [
        name
        for name in public_names(there)
        if f"{module}.{name}" not in shown and not any(getattr(there, name) is thing for thing in things)
    ]
    assert missing == []


@pytest.mark.parametrize("module", [name for name in PUBLIC if "integrations" not in name])
def test_the_index_leads_to_every_public_name(module: str) -> None:
    index = (REFERENCE / "index.md").read_text("utf-8")
    names = public_names(importlib.import_module(module))
    assert [name for name in names if not re.search(rf"`@?{name}`", index)] == []


@pytest.mark.parametrize("module", [name for name in PUBLIC if "integrations" in name])
def test_the_index_leads_to_every_integration(module: str) -> None:
    assert f"`{module.rpartition('.')[2]}`" in (REFERENCE / "index.md").read_text("utf-8")


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    there = importlib.import_module(module)
    assert [found for name in public_names(there) for found in undocumented(there, name)] == []


def test_the_reference_names_only_what_is_public() -> None:
    public = {
        f"{module}.{name}" for module in PUBLIC for name in public_names(importlib.import_module(module))
    }
    assert named() - public == set()


def test_a_missing_docstring_is_found() -> None:
    module = ModuleType("made_up")

    class Silent:
        __module__ = "shapekit.made_up"

        def quiet(self) -> None: ...

        def told(self) -> None:
            """Told."""

    module.Silent = Silent  # type: ignore[attr-defined]
    assert undocumented(module, "Silent") == ["Silent", "Silent.quiet"]


def test_the_table_of_errors_is_the_tree_of_errors() -> None:
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    classes = [getattr(errors, name) for name in errors.__all__]
    own = {each.__name__: (each.__bases__[-1].__name__, each.code) for each in classes}
    assert {name: (base, code) for name, base, code in rows} == own
    assert len({code for _, code in own.values()}) == len(own)
