"""The table of the page on being off by one is what the page computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "off-by-one.md"


def test_the_table_shows_what_was_computed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*` \| `[^|]*`) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    shown = {way: [int(figure) for figure in figures] for way, *figures in rows}
    computed: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(code, computed)
    assert len(shown) == 4
    assert shown == computed["TABLE"]
    ours = computed["counted"](computed["shapekit_admits"](3_000_000))
    assert ours == list(shown.values())[-1]
