"""CONTRIBUTING shows where things go on one screen, with the rooms that exist."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from ..packaging.test_layers import LINES

ROOT = Path(__file__).parents[2]
SCREEN = (45, 110)
"""Lines, and characters in each line."""


def section() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition("\n## Where things go\n")[2].partition("\n## ")[0]


def test_where_things_go_fits_on_a_screen() -> None:
    most, width = SCREEN
    shown = [row for line in section().splitlines() for row in textwrap.wrap(line, width) or [""]]
    assert 0 < len(shown) <= most


def test_the_table_of_rooms_matches_the_tested_one() -> None:
    rows = re.findall(r"^\| (\d) \| (.*?) \|", section(), re.MULTILINE)
    listed = [(number, {*re.findall(r"`(\w+)/?`", rooms)}) for number, rooms in rows]
    held = [(str(number), {room or "__init__" for room in line}) for number, line in enumerate(LINES, 1)]
    assert listed == held
