"""The README stays short, and its picture is what its command draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "pictures" / "unshaped-and-shaped.svg"

MOST_LINES = 150
MOST_BYTES = 40_000


def test_it_is_read_in_minutes() -> None:
    assert len(README.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("what", ["ShapedTransport(", "@shaped(", "ShapedTask,", 'store="redis:'])
def test_the_first_lines_show_what_most_users_write_and_eight_are_enough(what: str) -> None:
    assert what in "\n".join(README.splitlines()[:60])
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    first = next(block for block in blocks if what in block)
    assert len([line for line in first.splitlines() if line]) <= 8


def test_the_picture_is_of_the_command_beside_it() -> None:
    [command] = re.findall(r"`(shapekit simulate .*?)`", README)
    [arrivals] = re.findall(r'--arrivals "(.*?)"', command)
    [length] = re.findall(r"--for (\d+)s", command)
    [strategy] = re.findall(r"shaper:\S+", command)
    drawn = PICTURE.read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert any(f"arrivals {arrivals}," in text for text in texts)
    assert {length, "unshaped", f"left: {strategy}"} <= set(texts)


def test_the_picture_is_small_and_legible_on_any_ground() -> None:
    drawn = PICTURE.read_text(encoding="utf-8")
    assert len(drawn.encode()) < MOST_BYTES
    assert "fill: #ffffff" in drawn[: drawn.index('id="axes_1"')]  # it brings its own ground
