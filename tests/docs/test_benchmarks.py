"""The page of benchmarks and its pictures are what the generator makes of the committed figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..benchmarks.groups import GROUPS
from ..benchmarks.library import MODULES
from ..benchmarks.page import page
from ..benchmarks.pictures import draw
from ..benchmarks.tables import from_json
from .test_markdown import ROOT
from .test_pictures import MOST_BYTES, lines, words

FOLDER = ROOT / "docs" / "pictures" / "benchmarks"
AGAIN = "python tests/benchmarks/run.py --from docs/pictures/benchmarks/figures.json --page"


@pytest.fixture(scope="module")
def figures() -> dict[str, object]:
    """The measured figures."""
    read: dict[str, object] = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))
    return read


def test_the_page_is_made_of_the_figures(figures: dict[str, object]) -> None:
    written = (ROOT / "docs" / "internals" / "benchmarks.md").read_text(encoding="utf-8")
    assert written == page(figures), AGAIN


def test_the_pictures_are_made_of_the_figures(figures: dict[str, object], tmp_path: Path) -> None:
    draw(figures, tmp_path)
    names = {path.name for path in FOLDER.glob("*.svg")}
    assert names == {path.name for path in tmp_path.glob("*.svg")}, AGAIN
    for name in names:
        assert words(FOLDER / name) == words(tmp_path / name), f"{name}: {AGAIN}"
        assert lines(FOLDER / name) == lines(tmp_path / name), f"{name}: {AGAIN}"
        assert (FOLDER / name).stat().st_size < MOST_BYTES


def test_every_group_was_measured_and_every_library_is_in_its_tables(figures: dict[str, object]) -> None:
    groups = from_json(figures["groups"])
    assert [group.name for group in groups] == list(GROUPS)
    assert [group.failed for group in groups if group.failed] == []
    beside = {
        table.title: {line.library for line in table.lines}
        for group in groups
        for table in group.tables
        if table.drawn
    }
    missing = {title: set(MODULES) - there for title, there in beside.items() if set(MODULES) - there}
    assert missing == {}


def test_the_page_names_the_machine_and_the_versions_and_the_date(figures: dict[str, object]) -> None:
    machine = figures["machine"]
    assert isinstance(machine, dict)
    assert {"cpu", "system", "python", "Redis", *MODULES} <= machine.keys()
    written = (ROOT / "docs" / "internals" / "benchmarks.md").read_text(encoding="utf-8")
    for word in (*machine.values(), str(figures["date"])):
        assert word in written
