"""The reference has an anchor for each public member of each public class, and for no internal member.

Public are the names without an underscore that a class of `__all__` has from shapekit's own classes: methods,
properties, attributes of the class, and attributes that its methods set. Such names that only the package's
own rooms use are listed in `INTERNAL`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from .test_reference import ABSENT, PUBLIC, ROOT, named, public_names

INTERNAL = {
    # A strategy and its parts, for gates, queues, stores and the Lua twin.
    "Value": "fields",
    "Algorithm": "aligned alone booked charge decide decision_received inspect leaves life limit_name"
    " moved_receipt refund_last"
    " owns receipt_received receipt_sent refund_many rescheduled resumed spent state_received state_sent"
    " together twin uncharged",
    "Quota": "counter",
    "FixedWindow": "entries",
    "SlidingWindow": "entries",
    "SlidingWindowLog": "entries",
    "Concurrency": "adopt civil enter inspect keep kind leave life scaled standing state_received"
    " state_sent twin unending watch",
    # Parts of a shaper and its policy, and calls of integrations to an admission.
    "Shaper": "core",
    "Policy": "is_plain permits scoped",
    "Admission": "enclosing holds_permit leave_soon policy taken target",
    "Reservation": "after_waiting core costing grant granted",
    "AdaptiveRate": "learn",
    # Arguments from which errors are rebuilt: in another process, in a message that names the file.
    "ConfigError": "within",
    "QueueFullError": "args",
    "QuotaExhaustedError": "args",
    "UnsentError": "args",
    "_Unsent": "args",
    # Operations of the package's own stores beyond the primitive, and their answers during an outage.
    "Store": "twin",
    "RedisStore": "evaluate programs",
    "SQLiteStore": "programs",
    "SystemClock": "ticks",
    "Operation": "closed cost follows given instead is_look locally most_cost needs_store nothing"
    " on_both_sides opened probes routed",
    # Attributes that fit one wrapper to several HTTP clients, and those of a task that Celery reads.
    "ShapedTransport": "around library refusals",
    "ShapedTask": "Strategy abstract on_bound",
    "Shaped": "admission_of calls grace_s on_reject run",
    # pytest collects these from a subclass.
    "StoreConformance": "test_*",
}
"""Members without an underscore that only the package uses, by the class that introduces them."""

HANDED_IN = {"AsyncAlarm"}
"""Classes of private rooms that a public method takes: `Clock.asleep` awaits its alarm."""


BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def public_classes() -> dict[type, set[str]]:
    """Every public class, and the names under which it is public."""
    found: dict[type, set[str]] = {}
    for module in PUBLIC:
        there = importlib.import_module(module)
        for name in public_names(there):
            thing = getattr(there, name)
            if inspect.isclass(thing) and thing.__module__.startswith("shapekit"):
                found.setdefault(thing, set()).add(f"{module}.{name}")
    return found


CLASSES = public_classes()


@cache
def body(cls: type) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node


def set_on_self(node: ast.AST) -> str | None:
    """The attribute that `self.attribute = …` sets."""
    is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return node.attr if is_set and isinstance(node.value, ast.Name) and node.value.id == "self" else None


def own_members(cls: type) -> set[str]:
    """The names that the body of a class binds or annotates, and those that its methods set on `self`."""
    bound = {*vars(cls), *vars(cls).get("__annotations__", ())}
    return bound | {name for node in ast.walk(body(cls)) if (name := set_on_self(node))}


def kinds_of(cls: type) -> Iterator[tuple[str, str]]:
    """Each member that the body of a class defines, with the names of the types in its signature."""
    top = body(cls).body
    for node in ast.walk(ast.Module(top, [])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            name, types = node.name, [node.returns, *(each.annotation for each in every)]
        elif isinstance(node, ast.AnnAssign) and (node in top or set_on_self(node.target)):
            name, types = set_on_self(node.target) or ast.unparse(node.target), [node.annotation]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name, types = set_on_self(node.targets[0]) or "", [node.value.func]
        else:
            continue
        for each in types:
            for word in re.findall(r"\w+", ast.unparse(each) if each else ""):
                yield name, word


def ours(cls: type) -> list[type]:
    """The class and its bases, as far as they belong to shapekit."""
    return [base for base in cls.__mro__ if base.__module__.startswith("shapekit")]


def is_internal(cls: type, name: str) -> bool:
    return any(
        fnmatchcase(name, pattern)
        for base in cls.__mro__
        for pattern in INTERNAL.get(base.__name__, "").split()
    )


@cache
def members(cls: type) -> set[str]:
    """All names of a class without an underscore."""
    return {name for base in ours(cls) for name in own_members(base) if not name.startswith("_")}


@cache
def public_members(cls: type) -> set[str]:
    return {name for name in members(cls) if not is_internal(cls, name)}


def shown_as(names: set[str]) -> str:
    """The public name under which a class is in the reference."""
    (name,) = names & named() or {min(names)}
    return name


class Anchors(HTMLParser):
    """The anchors of a page, and the targets of the links in its lists of shared anchors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.shared: list[tuple[str, str]] = []
        """The shared anchors, and the target of the link after each."""
        self._is_shared = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if attributes.get("id", "").startswith("shapekit."):
            self.ids.append(attributes["id"])
        if tag == "p":
            self._is_shared = "shared-anchors" in attributes.get("class", "")
        if self._is_shared and "href" in attributes:
            self.shared.append((self.ids[-1], attributes["href"]))

    def handle_endtag(self, tag: str) -> None:
        self._is_shared = self._is_shared and tag != "p"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert run.returncode == 0, run.stderr
    return site


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Anchors]:
    """The pages of the reference."""
    found = (site / "reference").rglob("index.html")
    return {path.parent.name: Anchors(path.read_text(encoding="utf-8")) for path in found}


@pytest.fixture(scope="module")
def anchors(pages: dict[str, Anchors]) -> list[str]:
    return [anchor for page in pages.values() for anchor in page.ids]


@pytest.mark.long
def test_every_public_member_has_an_anchor_and_nothing_else_has(anchors: list[str]) -> None:
    wanted = named() | {
        f"{shown_as(names)}.{member}" for cls, names in CLASSES.items() for member in public_members(cls)
    }
    here = {one for one in anchors if one.removeprefix("shapekit.integrations.").split(".")[0] not in ABSENT}
    assert {"missing": sorted(wanted - here), "too many": sorted(here - wanted)} == {
        "missing": [],
        "too many": [],
    }


@pytest.mark.long
def test_no_anchor_occurs_twice(anchors: list[str]) -> None:
    assert sorted({anchor for anchor in anchors if anchors.count(anchor) > 1}) == []


@pytest.mark.long
def test_every_anchor_can_be_linked_to_by_name(site: Path, anchors: list[str]) -> None:
    # `[text][shapekit.Store.keys]`, here and from the sites of others: four lines of header, then rows.
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode("utf-8")
    assert {*anchors} - {row.partition(" ")[0] for row in inventory.splitlines()} == set()


@pytest.mark.long
def test_a_shared_anchor_leads_to_a_description(pages: dict[str, Anchors]) -> None:
    shared = [(anchor, here, link) for here, page in pages.items() for anchor, link in page.shared]
    assert len(shared) > 100
    lost = []
    for anchor, here, link in shared:
        path, _, target = link.partition("#")
        page = pages[Path(path).name or here]
        if target not in page.ids or target in dict(page.shared):
            lost.append(f"{anchor} -> {link}")
    assert lost == []


def test_members_are_found_however_they_are_defined() -> None:
    class Made:
        __slots__ = ("slot",)
        annotated: int
        assigned = 1

        def __init__(self) -> None:
            self._private = self.slot = 1

        @property
        def asked(self) -> int:
            self.set_late: int = 2
            return self.set_late

        async def awaited(self) -> None: ...

    found = {name for name in own_members(Made) if not name.startswith("_")}
    assert found == {"slot", "annotated", "assigned", "asked", "set_late", "awaited"}


def test_internal_members_exist() -> None:
    by_name = {base.__name__: base for cls in CLASSES for base in ours(cls)}
    gone = [
        f"{name}.{pattern}"
        for name, patterns in INTERNAL.items()
        for pattern in patterns.split()
        if name not in by_name or not any(fnmatchcase(member, pattern) for member in members(by_name[name]))
    ]
    assert gone == []


def test_no_example_uses_internal_members() -> None:
    # By name alone, so only names that belong neither to a public member nor to `asyncio.run`.
    public = {name for cls in CLASSES for name in public_members(cls)} | {"run"}
    internal = {name for names in INTERNAL.values() for name in names.split()} - public
    assert len(internal) > 30
    texts = {path: path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        texts[page] = "\n".join(BLOCK.findall(page.read_text("utf-8")))
    used = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts.items()
        for name in {*re.findall(r"(?<!llama_index)(?<!azure)(?<=\w)\.(\w+)", text)}
        - {*re.findall(r"self\.(\w+) =", text)}
        if name in internal
    }
    assert used == set()


def test_no_public_member_has_a_private_class_in_its_signature() -> None:
    rooms = (path for room in (ROOT / "shapekit").glob("_*/") for path in room.rglob("*.py"))
    defined = {
        node.name
        for path in rooms
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    private = defined - {cls.__name__ for cls in CLASSES} - HANDED_IN
    assert len(private) > 10
    spoken = {
        f"{cls.__name__}.{name}: {word}"
        for cls in CLASSES
        for base in ours(cls)
        for name, word in kinds_of(base)
        if word in private and name in public_members(cls)
    }
    assert spoken == set()
