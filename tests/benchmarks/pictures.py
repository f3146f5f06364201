"""Pictures: a bar for each line of a table, and for each step of a course; drawn by matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from shapekit.cli.simulate import COLOURS, compact

from .report import figure
from .tables import Column, Course, Group, Table, from_json

OURS, THEIRS = "#0072B2", "#BBBBBB"
WIDEST = 100.0
"""Where the longest bar is more than so many times as long as the shortest, the axis is logarithmic."""


def drawn(group: Group) -> dict[str, Table | Course]:
    """The tables that become pictures, by the names of the files."""
    found: list[Table | Course] = [
        *group.courses,
        *(table for table in group.tables if table.drawn),
    ]
    return {
        group.name if number == 0 else f"{group.name}-{number + 1}": each for number, each in enumerate(found)
    }


def draw(figures: dict[str, Any], folder: Path) -> None:
    """Draw all of them into a folder, and delete those without a table."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {name: each for group in from_json(figures["groups"]) for name, each in drawn(group).items()}
    for stale in folder.glob("*.svg"):
        if stale.stem not in pictures:
            stale.unlink()
    for name, each in pictures.items():
        # Letters stay letters, and the same figures give the same bytes.
        style: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "shapekit"}
        with mpl.rc_context(style), io.StringIO() as text:
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            picture = bars(each) if isinstance(each, Table) else steps(each)
            picture.savefig(text, format="svg", metadata=nothing)
            svg = compact(text.getvalue())
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


def steps(course: Course) -> Figure:
    """The calls of each step, those of each caller on top of the others', and the limit."""
    drawn = Figure(figsize=(9, 3.0), layout="constrained")
    axes = drawn.subplots()
    below = [0] * max(map(len, course.counts.values()))
    edges = [number * course.step_s for number in range(len(below) + 1)]
    for (name, counts), colour in zip(course.counts.items(), COLOURS, strict=False):
        above = [under + count for under, count in zip(below, counts, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=colour, label=name)
        below = above
    axes.axhline(course.limit, color="black", linestyle="--", linewidth=1, label="the server's limit")
    axes.set_xlim(0, len(below) * course.step_s)
    axes.set_xlabel("time since the first call (s)", fontsize=9)
    axes.set_ylabel(f"calls in {course.step_s * 1_000:.0f} ms", fontsize=9)
    axes.set_title(course.title, fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return drawn


def label(column: Column) -> str:
    """The label of the axis."""
    return f"{column.name} ({column.unit})" if column.unit else column.name
