"""Page: docs/internals/benchmarks.md, made of the figures of a run."""

from __future__ import annotations

from typing import Any

from . import report
from .tables import Table, from_json

HEAD = """
# Benchmarks

What shapekit costs, beside other libraries that limit calls: one run on one machine, every figure the
median of several rounds in which all take turns. {kind}

Ratios stand first, since they carry over to other machines and absolute figures do not. "× ours" is a
figure as a multiple of shapekit's, so more than 1 is more than ours, and less than 1 less. A row in which
we lose stands there like one in which we win, and a goal that we missed is called missed. Each library is
used as its documentation tells. Who cannot do what a table is about stands below it, with the reason.

This page is made by `python tests/benchmarks/run.py --page`; nothing on it is written by hand. To measure
on your machine:

```sh
pip install -e ".[bench,all,dev]"
python tests/benchmarks/run.py --quick          # five minutes, to see that it works
python tests/benchmarks/run.py                  # some forty minutes, on a machine that does nothing else
python tests/benchmarks/run.py --only redis     # one group
```

## The machine

Measured on {date}; [all figures of all rounds](../pictures/benchmarks/figures.json).

{machine}
"""
TRIAL = "**These are of a short trial, which is too rough to be quoted.**"
FULL = "These are of a full run, of at least {rounds} rounds."


def page(figures: dict[str, Any]) -> str:
    """The page, in Markdown."""
    kind = TRIAL if figures["quick"] else FULL.format(rounds=figures["rounds"])
    machine = report.markdown(["", ""], [[name, value] for name, value in figures["machine"].items()], left=2)
    parts = [flowing(HEAD).format(kind=kind, date=figures["date"], machine=machine)]
    for group in from_json(figures["groups"]):
        parts += [f"## {group.title}", flowing(group.method)]
        drawn = [table for table in group.tables if table.drawn]
        for number, table in enumerate(drawn):
            name = group.name if number == 0 else f"{group.name}-{number + 1}"
            parts.append(f"![{alternative(table)}](../pictures/benchmarks/{name}.svg)")
        parts.append(report.group(group))
    return "\n\n".join(parts) + "\n"


def flowing(text: str) -> str:
    """Every paragraph on a line of its own, as the other pages have them."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(each if each.startswith("```") else " ".join(each.split()) for each in paragraphs)


def alternative(table: Table) -> str:
    """What a reader is told who sees no pictures."""
    return f"A bar for each line of the table below, ours in blue: {table.title}, {table.drawn}"
