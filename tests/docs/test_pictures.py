"""The pictures are those that the scripts beside them draw, and the pages show the commands."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from .test_markdown import PAGES, ROOT

FOLDER = ROOT / "docs" / "pictures"
SHOWN = re.compile(r"!\[([^\]]+)\]\(([^)]+\.svg)\)")
MOST_BYTES = 40_000


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    """The script beside the pictures."""
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(svg: Path) -> list[str]:
    """All text in a picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8"))


def lines(svg: Path) -> list[int]:
    """The number of points of each line, whichever matplotlib drew it, and wherever it put it."""
    return [path.count("L") for path in re.findall(r'<path d="([^"]*)"', svg.read_text(encoding="utf-8"))]


def test_every_picture_has_its_command_and_every_command_its_picture(draw: ModuleType) -> None:
    names = {*draw.PICTURES, draw.SHAPING["NAME"], *draw.SCALE["FIGURES"]}
    assert {f"{name}.svg" for name in names} == {path.name for path in FOLDER.glob("*.svg")}


def test_the_pictures_are_what_their_commands_draw(draw: ModuleType, tmp_path: Path) -> None:
    draw.draw(tmp_path)
    for path in FOLDER.glob("*.svg"):
        anew = tmp_path / path.name
        assert words(path) == words(anew), f"{path.name}: python docs/pictures/draw.py"
        assert lines(path) == lines(anew), f"{path.name}: python docs/pictures/draw.py"
        assert path.stat().st_size < MOST_BYTES


def test_the_picture_of_the_demo_draws_and_counts_every_call(draw: ModuleType, tmp_path: Path) -> None:
    name = f"{draw.SHAPING['NAME']}.svg"
    draw.SHAPING["draw"](tmp_path)
    drawn = (FOLDER / name).read_text(encoding="utf-8")
    assert drawn == (tmp_path / name).read_text(encoding="utf-8"), "python docs/pictures/draw.py"
    shape = re.compile(r'<path class="(answered|refused)" d="([^"]*)"')
    calls = [(kind, sum(map(int, re.findall(r"v(\d+)z", path))) // 4) for kind, path in shape.findall(drawn)]
    titles = re.findall(r"(\d+) calls answered, (\d+) refused, (\d) s lost", drawn)
    assert calls == [("answered", 250), ("refused", 600), ("answered", 270)]
    assert titles == [("250", "600", "5"), ("270", "0", "0")]
    assert drawn.count(">429</text>") == 5  # one a penalty
    assert drawn.count('class="limit"') == 3  # in both charts, and in the legend


def test_pages_describe_their_pictures_and_name_the_command(draw: ModuleType) -> None:
    shown = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for alternative, target in SHOWN.findall(text):
            path = (page.parent / target).resolve()
            assert path.is_file(), f"{page.name}: {target}"
            assert len(alternative) > 40, (
                f"{page.name}: {alternative!r} does not describe a picture to a reader who cannot see it"
            )
            if path.parent == FOLDER:
                shown.add(path.stem)
                arguments = draw.PICTURES.get(path.stem)
                command = f"shapekit simulate {arguments}" if arguments else "python docs/pictures/draw.py"
                command = "shapekit demo" if path.stem == draw.SHAPING["NAME"] else command
                assert command in text or page.name == "index.md", f"{page.name}: show {command!r}"
    assert shown == {*draw.PICTURES, draw.SHAPING["NAME"], *draw.SCALE["FIGURES"]}
