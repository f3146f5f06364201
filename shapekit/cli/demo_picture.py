"""The demo's picture: arrivals at the API in tenths of a second, accepted below, refused on top.

What is refused is told by its pattern as well as by its colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from shapekit.cli.demo_log import Log, Summary

ACCEPTED = "#0072b2"
REFUSED = "#e69f00"
MARGIN = 7
"""The cells in front of a chart, where its scale stands."""


class Glyphs(NamedTuple):
    """What a picture is made of."""

    eighths: str
    refused: str
    limit: str
    corner: str
    axis: str
    side: str


FINE = Glyphs(" ▁▂▃▄▅▆▇█", "▒", "┄", "└", "─", "┤")
PLAIN = Glyphs("    #####", "x", "-", "+", "-", "|")
"""For terminals that know no more than ASCII."""

Columns = Sequence[tuple[int, int]]


class Scale(NamedTuple):
    """How a chart is drawn: both are drawn alike, or nobody could compare them."""

    height: int
    width: int
    top: int
    """The calls in a tenth of a second that reach the upper edge."""
    limit: float
    glyphs: Glyphs

    def chart(self, columns: Columns) -> Group:
        """The columns that fit, the newest if they do not all."""
        shown = columns[-self.width :]
        first = len(columns) - len(shown)
        lines = [self._row(row, shown) for row in reversed(range(self.height))]
        return Group(*lines, *self._seconds(first, len(shown)))

    def _row(self, row: int, columns: Columns) -> Text:
        unit = self.top / self.height
        is_limit = row == int(self.limit / unit)
        edge = f"{self.top:>4} " if row == self.height - 1 else f"{self.limit:>4g} " if is_limit else "     "
        line = Text(no_wrap=True, overflow="crop")
        line.append(f"{edge}{self.glyphs.side} ", style="dim")
        cells = (self._cell(row, 8 * good / unit, 8 * (good + bad) / unit, is_limit) for good, bad in columns)
        for style, run in groupby(cells, key=itemgetter(1)):
            line.append("".join(glyph for glyph, _ in run), style=style)
        return line

    def _cell(self, row: int, accepted: float, both: float, is_limit: bool) -> tuple[str, str]:
        fill, above = accepted - 8 * row, both - 8 * row
        eighths = max(0, min(8, round(fill)))
        if above >= 8 > eighths:
            # One cell for both: it goes to whoever has more of it.
            eighths = 8 if eighths > 4 else 0
        if eighths:
            return self.glyphs.eighths[eighths], ACCEPTED
        if above >= 4:
            return self.glyphs.refused, REFUSED
        return (self.glyphs.limit, "dim") if is_limit else (" ", "")

    def _seconds(self, first: int, count: int) -> tuple[Text, Text]:
        axis = " " * (MARGIN - 2) + self.glyphs.corner + self.glyphs.axis * (count + 1)
        ticks = " " * MARGIN
        for column in range(count):
            if (first + column) % 10 == 0:
                ticks = ticks.ljust(MARGIN + column) + f"{(first + column) // 10} s"
        return Text(axis, style="dim"), Text(ticks, style="dim")


def scale_of(logs: Sequence[Log], count: int, limit: float, size: tuple[int, int], *, fine: bool) -> Scale:
    """A scale on which everything fits into a screen of this width and height."""
    most = max([sum(column) for log in logs for column in log.columns(count)], default=0)
    width, height = size
    rows = max(3, min(8, (height - 12) // 2))
    # A whole number of calls per row, and never so few rows below the limit that nobody sees it.
    top = rows * max(1, -(-max(most, round(2 * limit)) // rows))
    return Scale(rows, max(10, width - MARGIN - 2), top, limit, FINE if fine else PLAIN)


def figures(summary: Summary) -> Text:
    """The figures of a run, in a line."""
    line = Text(" " * MARGIN)
    line.append(f"{summary.calls} calls  ")
    line.append(f"{summary.refused} × 429", style=f"bold {REFUSED}" if summary.refused else "")
    line.append(f"  {summary.rate:.1f} accepted/s  worst second {summary.worst_second}")
    line.append(f"  wait p99 {summary.wait_p99:.2f} s")
    return line


def legend(glyphs: Glyphs) -> Text:
    """What the colours and patterns mean."""
    line = Text(" " * MARGIN)
    line.append(glyphs.eighths[8], style=ACCEPTED)
    line.append(" accepted   ")
    line.append(glyphs.refused, style=REFUSED)
    line.append(" refused with 429   ")
    line.append(glyphs.limit * 2, style="dim")
    line.append(" the limit, spread evenly")
    return line
