"""Page: docs/internals/benchmarks.md, made of the figures of a run."""

from __future__ import annotations

import re
from typing import Any

from . import report
from .pictures import drawn
from .tables import Course, Table, from_json

HEAD = """
# Benchmarks

What shapekit costs next to other limiters. Each figure is the median of interleaved rounds on one machine,
with the lowest and the highest round in brackets. {kind}

Ratios carry over to other machines, absolute figures do not. "× ours" is relative to the row of shapekit
that has 1.00. Each library is used as its documentation describes. Calls in one process are measured in
processor time of their thread, calls on Redis in wall time.

`python tests/benchmarks/run.py --page` writes this page. To measure on your machine:

```sh
pip install -e ".[bench,all,dev]"
python tests/benchmarks/run.py --quick          # five minutes, to try it
python tests/benchmarks/run.py                  # an hour, on an idle machine
python tests/benchmarks/run.py --only redis     # one group
```

Measured on {date} with {machine}; [all rounds](../pictures/benchmarks/figures.json).
"""
TRIAL = "**This is a short trial, too rough to be quoted.**"
FULL = "This is a full run of at least {rounds} rounds."


def page(figures: dict[str, Any]) -> str:
    """The page, in Markdown."""
    kind = TRIAL if figures["quick"] else FULL.format(rounds=figures["rounds"])
    machine = ", ".join(f"{name} {value}" for name, value in figures["machine"].items())
    parts = [flowing(HEAD).format(kind=kind, date=figures["date"], machine=machine)]
    for group in from_json(figures["groups"]):
        parts += [f"## {group.title}", flowing(group.method)]
        for name, each in drawn(group).items():
            parts.append(f"![{alternative(each)}](../pictures/benchmarks/{name}.svg)")
        parts.append(unpadded(report.group(group)))
    return "\n\n".join(parts) + "\n"


def flowing(text: str) -> str:
    """Every paragraph on a line of its own, as the other pages have them."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(each if each.startswith("```") else " ".join(each.split()) for each in paragraphs)


def unpadded(text: str) -> str:
    """Tables without the spaces that align them in a terminal: a wider figure changes its own row alone."""
    lines = (re.sub(r" *\| *", "|", line) if line.startswith("|") else line for line in text.splitlines())
    return re.sub(r"-{3,}(?=:?\|)", "---", "\n".join(lines))


def alternative(each: Table | Course) -> str:
    """The text for readers who see no pictures."""
    if isinstance(each, Course):
        most = max(map(sum, zip(*each.counts.values(), strict=True)))
        return (
            f"{each.title}: calls in each {each.step_s * 1_000:.0f} ms, at most {most}; limit {each.limit:g}"
        )
    column = f", {each.drawn}" if len(each.columns) > 1 else ""
    return f"Bar chart of the table below, shapekit in blue: {each.title}{column}"
