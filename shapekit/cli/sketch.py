"""Sketch: arrivals against departures, in the letters of a terminal."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from shapekit.cli.race import Columns, Race
from shapekit.cli.words import counted, span_words

__all__ = ["sketch"]

HEIGHT = 4
_EIGHTHS = "▁▂▃▄▅▆▇█"
_LEFT, _WAITING = "█", "░"
_PLAIN_LEFT, _PLAIN_WAITING = "#", "."


def sketch(race: Race, width: int, *, plain: bool) -> list[Text]:
    """One drawing for each run, all on one scale, and what the letters mean."""
    margin = 9
    columns = Columns.over(race.length_us, max(10, width - margin))
    arrivals = race.counts(race.runs[0], columns)
    drawn = [(run, race.counts(run, columns)) for run in race.runs]
    most = max(1, *arrivals, *(max(left) for _, left in drawn))
    lines = []
    for run, left in drawn:
        lines.append(Text(run.name, style="bold"))
        for row in reversed(range(HEIGHT)):
            label = f"{most:>{margin - 2},}" if row == HEIGHT - 1 else " " * (margin - 2)
            line = Text(label + (" |" if plain else " ┤" if row == HEIGHT - 1 else " │"))
            cells = (
                _cell(left_here * HEIGHT / most - row, came_here * HEIGHT / most - row, plain)
                for left_here, came_here in zip(left, arrivals, strict=True)
            )
            for waiting, run_of_cells in groupby(cells, (_WAITING, _PLAIN_WAITING).__contains__):
                line.append("".join(run_of_cells), "dim" if waiting else "cyan")
            lines.append(line)
        lines.append(_axis(columns, margin, plain))
    solid, shade = (_PLAIN_LEFT, _PLAIN_WAITING) if plain else (_LEFT, _WAITING)
    each = f"column: {span_words(columns.width_us)}  full height: {counted(most, 'call')}"
    return [*lines, Text(f"{solid} left  {shade} came, did not leave then  {each}")]


def _cell(left: float, came: float, plain: bool) -> str:
    """What stands in a cell that departures fill to `left`, and arrivals to `came`."""
    if plain:
        return _PLAIN_LEFT if left >= 0.5 else _PLAIN_WAITING if came >= 0.5 else " "
    if left >= 1 / 16:
        return _EIGHTHS[min(7, max(0, round(left * 8) - 1))]
    return _WAITING if came >= 0.5 else " "


def _axis(columns: Columns, margin: int, plain: bool) -> Text:
    end = span_words(columns.width_us * columns.number)
    corner, dash = ("+", "-") if plain else ("└", "─")
    line = dash * columns.number
    return Text(f"{0:>{margin - 2}} {corner}{line} {end}")
