"""The README stays short, and its picture is legible and described in words."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "pictures" / "unshaped-and-shaped.svg"

MOST_LINES = 150
MOST_BYTES = 8_000
SVG = "{http://www.w3.org/2000/svg}"


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("what", ["ShapedTransport(", "@shaped(", "ShapedTask,", 'store="redis:'])
def test_the_first_lines_show_common_uses_in_at_most_eight_lines(what: str) -> None:
    assert what in "\n".join(README.splitlines()[:60])
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    first = next(block for block in blocks if what in block)
    assert len([line for line in first.splitlines() if line]) <= 8


def colours(style: str) -> dict[str, str]:
    """The fill of each class."""
    return dict(re.findall(r"\.(\w+)\{fill:(#\w{6})\}", style))


def light(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_pages_contain_the_numbers_of_the_picture() -> None:
    titles = re.findall(r"([0-9]+) calls answered, ([0-9]+) refused", PICTURE.read_text(encoding="utf-8"))
    [(before, wasted), (after, none)] = titles
    assert none == "0"
    for page in (README, (ROOT / "docs" / "index.md").read_text(encoding="utf-8")):
        [alternative] = re.findall(r"!\[([^\]]+)\]\(\S*unshaped-and-shaped\.svg\)", page)
        assert f"{before} calls answered and {wasted} refused" in alternative
        assert f"{after} answered and none refused" in alternative


def test_the_picture_is_small_and_legible_on_any_ground() -> None:
    drawn = PICTURE.read_text(encoding="utf-8")
    assert len(drawn.encode()) < MOST_BYTES
    svg = ET.fromstring(drawn)
    texts = {name for text in svg.iter(f"{SVG}text") for name in text.get("class", "").split()}
    style = svg.findtext(f"{SVG}style") or ""
    bright, _, dark = style.partition("@media(prefers-color-scheme:dark)")
    assert svg.find(f"{SVG}rect[@class='ground']") is not None  # the picture has its own background
    for filled in (colours(bright), colours(dark)):
        shown = texts & filled.keys()
        assert shown == {"ink", "faint", "refused"}
        for name in shown:
            low, high = sorted((light(filled[name]), light(filled["ground"])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, name
