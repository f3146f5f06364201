"""One word for each thing: no page and no public docstring contains a retired word."""

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
RETIRED = re.compile(r"^Words that were retired: (.*)\.$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def retired() -> list[str]:
    """The retired words as the glossary lists them, each with its replacement in brackets."""
    match = RETIRED.search(GLOSSARY.read_text("utf-8"))
    assert match is not None, "the glossary says nothing of words that were retired"
    return [word.strip() for group in match[1].split(";") for word in group.split("(")[0].split(",")]


def found(text: str) -> list[str]:
    words = "|".join(map(re.escape, retired()))
    return [match[0] for match in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE)]


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def docstrings(module: str) -> Iterator[tuple[str, str]]:
    """The docstrings of what a module exports, and of its public methods."""
    exported = importlib.import_module(module)
    for name in public_names(exported):
        thing = getattr(exported, name)
        yield name, inspect.getdoc(thing) or ""
        if inspect.isclass(thing):
            for method, what in vars(thing).items():
                if not method.startswith("_"):
                    yield f"{name}.{method}", inspect.getdoc(what) or ""


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_contains_no_retired_word(page: Path) -> None:
    text = CODE.sub("", page.read_text("utf-8"))
    assert found(RETIRED.sub("", text)) == []


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_docstring_contains_no_retired_word(module: str) -> None:
    assert {name: words for name, text in docstrings(module) if (words := found(text))} == {}


def test_a_retired_word_is_found() -> None:
    assert retired()[0] in found(f"They take {retired()[0]} of theirs.")
