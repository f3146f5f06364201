"""Pictures: a bar for each line of a table, drawn by matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from shapekit.cli.simulate import compact

from .report import figure
from .tables import Column, Table, from_json

OURS, THEIRS = "#0072B2", "#BBBBBB"
WIDEST = 100.0
"""Where the longest bar is more than so many times as long as the shortest, the axis is logarithmic."""


def drawn_tables(figures: dict[str, Any]) -> dict[str, Table]:
    """Those that become pictures, by the names of the files."""
    found = {}
    for group in from_json(figures["groups"]):
        tables = [table for table in group.tables if table.drawn]
        for number, table in enumerate(tables):
            found[group.name if number == 0 else f"{group.name}-{number + 1}"] = table
    return found


def draw(figures: dict[str, Any], folder: Path) -> None:
    """Draw all of them into a folder, and take away what no table asks for any more."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = drawn_tables(figures)
    for stale in folder.glob("*.svg"):
        if stale.stem not in tables:
            stale.unlink()
    for name, table in tables.items():
        # Letters stay letters, and the same figures give the same bytes.
        style: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "shapekit"}
        with mpl.rc_context(style), io.StringIO() as drawn:
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            bars(table).savefig(drawn, format="svg", metadata=nothing)
            svg = compact(drawn.getvalue())
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8", newline="\n")


def bars(table: Table) -> Figure:
    """One bar for each line, the shortest above, ours in a colour; the figure stands beside each."""
    column = next(column for column in table.columns if column.name == table.drawn)
    found = [(line, line.median(column.name)) for line in table.lines]
    lines = sorted(
        ((line, value) for line, value in found if value is not None), key=lambda each: each[1], reverse=True
    )
    values = [value for _, value in lines]
    drawn = Figure(figsize=(9, 0.26 * len(lines) + 1.2), layout="constrained")
    axes = drawn.subplots()
    colours = [OURS if line.library == "shapekit" else THEIRS for line, _ in lines]
    axes.barh(range(len(lines)), values, color=colours, height=0.7)
    axes.set_yticks(range(len(lines)), [f"{line.library} · {line.name}" for line, _ in lines], fontsize=8)
    least = min((value for value in values if value > 0), default=0.0)
    if least and min(values) > 0 and max(values) > WIDEST * least:
        axes.set_xscale("log")
        axes.set_xlim(left=least / 2)
    for place, value in enumerate(values):
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(figure(value, column.digits), (max(value, 0), place), **beside)
    axes.set_title(table.title, fontsize=10)
    axes.set_xlabel(label(column), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12, y=0.01)
    return drawn


def label(column: Column) -> str:
    """What the axis counts."""
    return f"{column.name} ({column.unit})" if column.unit else column.name
