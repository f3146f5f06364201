"""One word for each thing: those that were retired stand on no page, and in no public docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_reference import PUBLIC, public_names

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
SAID = re.compile(r"^Words that were retired: (.*)\.$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def retired() -> list[str]:
    """As the glossary lists them: words, and in brackets what is said instead."""
    match = SAID.search(GLOSSARY.read_text("utf-8"))
    assert match is not None, "the glossary says nothing of words that were retired"
    return [word.strip() for group in match[1].split(";") for word in group.split("(")[0].split(",")]


def found(text: str) -> list[str]:
    words = "|".join(map(re.escape, retired()))
    return [match[0] for match in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE)]


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def docstrings(module: str) -> Iterator[tuple[str, str]]:
    """Those of what a module exports, and of its public methods."""
    exported = importlib.import_module(module)
    for name in public_names(exported):
        thing = getattr(exported, name)
        yield name, inspect.getdoc(thing) or ""
        if inspect.isclass(thing):
            for method, what in vars(thing).items():
                if not method.startswith("_"):
                    yield f"{name}.{method}", inspect.getdoc(what) or ""


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_says_none_of_them(page: Path) -> None:
    text = CODE.sub("", page.read_text("utf-8"))
    assert found(SAID.sub("", text)) == []


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_docstring_says_none_of_them(module: str) -> None:
    assert {name: words for name, text in docstrings(module) if (words := found(text))} == {}


def test_they_are_found_where_they_stand() -> None:
    assert retired()[0] in found(f"They take {retired()[0]} of theirs.")
