"""The import rule: seven lines of rooms, each of which builds on those above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .conftest import PLUGIN

LINES = (
    ("errors", "rate", "decision", "clock", "events", "keys", "_runtime"),
    ("algorithms", "feedback"),
    ("stores",),
    ("_queue",),
    ("gate", "shaper", "policy", "config", "decorator"),
    ("_adapters", "llm", "progress"),
    ("integrations", "cli", "testing", ""),
)
"""The rooms. A module imports from its own line and from those above it; the last room is shapekit itself."""

PURE = {
    *(
        "__future__",
        "abc",
        "bisect",
        "collections",
        "dataclasses",
        "datetime",
        "enum",
        "fractions",
        "functools",
    ),
    *("itertools", "json", "math", "operator", "re", "typing", "zoneinfo"),
}
"""All of the standard library that the mathematics may use: nothing here waits, and nothing does I/O
(but for zoneinfo, which reads its tables)."""

CLOCK_READERS = {"now", "today", "utcnow"}
"""Methods of datetime that read a clock."""


def imports(name: str, source: str, known: Mapping[str, object]) -> Iterator[str]:
    """What a module imports when it runs: a type checker's own imports do not count."""
    is_package = any(other.startswith(f"{name}.") for other in known)
    package = name if is_package else name.rpartition(".")[0]
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                yield inside if inside in known else base


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The imported module, also if it is written with dots."""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def ours(module: str) -> bool:
    return module.partition(".")[0] in ("shapekit", "integrations", PLUGIN)


def line_of(module: str) -> int | None:
    """The line of a module; None if its room stands in none."""
    room = module.partition(".")[2].partition(".")[0]
    return next((number for number, line in enumerate(LINES) if room in line), None)


def violations(sources: Mapping[str, str]) -> list[str]:
    """Every import of a lower line, and every module whose room stands in none."""
    found = [f"{name} has no place in LINES" for name in sources if line_of(name) is None]
    for name, source in sources.items():
        line = line_of(name) or 0
        targets = [target for target in imports(name, source, sources) if ours(target)]
        found += [f"{name} imports {target}" for target in targets if (line_of(target) or 0) > line]
    return found


def impurities(sources: Mapping[str, str]) -> list[str]:
    """Impure modules that the algorithms reach, directly or through other modules of shapekit."""
    found = []
    pending = [name for name in sources if name.startswith("shapekit.algorithms")]
    seen = set(pending)
    while pending:
        name = pending.pop()
        for target in imports(name, sources[name], sources):
            if not ours(target):
                if target.partition(".")[0] not in PURE:
                    found.append(f"{name} imports {target}")
            elif target in sources and target not in seen:
                seen.add(target)
                pending.append(target)
        attributes = [node for node in ast.walk(ast.parse(sources[name])) if isinstance(node, ast.Attribute)]
        found += [f"{name}:{node.lineno} .{node.attr}" for node in attributes if node.attr in CLOCK_READERS]
    return found


@pytest.fixture(scope="module")
def sources(modules: dict[str, Path]) -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in modules.items()}


def test_every_module_has_a_place_and_imports_from_no_lower_line(sources: dict[str, str]) -> None:
    assert len(sources) > 20
    assert violations(sources) == []


def test_the_mathematics_is_pure(sources: dict[str, str]) -> None:
    assert impurities(sources) == []


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("shapekit.clock", "from shapekit.gate import Gate", "shapekit.clock imports shapekit.gate"),
        ("shapekit.clock", "import shapekit.gate", "shapekit.clock imports shapekit.gate"),
        (
            "shapekit.clock",
            "def late():\n    from shapekit import gate",
            "shapekit.clock imports shapekit.gate",
        ),
        ("shapekit.clock", "from . import gate", "shapekit.clock imports shapekit.gate"),
        ("shapekit.clock", "from .gate import Gate", "shapekit.clock imports shapekit.gate"),
        ("shapekit.clock", "from shapekit import GCRA", "shapekit.clock imports shapekit"),
        (
            "shapekit._runtime.drivers",
            "from shapekit.stores import base",
            "shapekit._runtime.drivers imports shapekit.stores",
        ),
        ("shapekit.gate", "import shapekit.cli", "shapekit.gate imports shapekit.cli"),
        (
            "shapekit.algorithms.gcra",
            "from ..gate import Gate",
            "shapekit.algorithms.gcra imports shapekit.gate",
        ),
        ("shapekit.news", "", "shapekit.news has no place in LINES"),
    ],
)
def test_an_import_that_leads_down_is_found(module: str, source: str, found: str) -> None:
    made_up = {"shapekit": "", "shapekit.algorithms": "", "shapekit.gate": ""}
    assert found in violations({**made_up, module: source})


@pytest.mark.parametrize(
    "source",
    [
        "from shapekit.errors import ConfigError",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shapekit.gate import Gate",
        "import time",
    ],
)
def test_an_import_that_leads_up_is_allowed(source: str) -> None:
    assert violations({"shapekit.errors": "", "shapekit.gate": "", "shapekit.rate": source}) == []


@pytest.mark.parametrize(
    ("algorithm", "rate"),
    [
        ("import time", ""),
        ("from asyncio import sleep", ""),
        ("import threading", ""),
        ("import anyio.lowlevel", ""),
        ("from shapekit.rate import Rate", "import time"),
        ("from datetime import datetime\nstart = datetime.now()", ""),
    ],
)
def test_an_algorithm_that_is_not_pure_is_found(algorithm: str, rate: str) -> None:
    assert len(impurities({"shapekit.algorithms.base": algorithm, "shapekit.rate": rate})) == 1
