"""Picture: arrivals against departures, drawn by matplotlib.

Sketch: arrivals against departures, in the letters of a terminal.
"""

from __future__ import annotations

import io
import re
from itertools import accumulate, cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from shapekit.cli.group import Complaint
from shapekit.cli.output import counted, span_words
from shapekit.cli.race import Columns, Race
from shapekit.errors import missing
from shapekit.rate import SECOND_US

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_target", "compact", "figure", "save", "sketch"]

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


FORMATS = (".svg", ".png")
# Okabe and Ito's colours, without those too pale for a line: they stay apart for every kind of colour
# blindness. The styles of the lines tell them apart without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00")
STYLES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
ARRIVALS = "#D9D9D9"
_COLUMNS = 120
_UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (180, 60, "minutes"), (0, 1, "s"))


def check_target(out: str) -> None:
    """Complain before anything is computed for a picture that cannot be drawn."""
    if Path(out).suffix.lower() not in FORMATS:
        raise Complaint(f"out={out!r} is no kind of picture that can be drawn; end it in .svg or .png")
    if not Path(out).parent.is_dir():
        raise Complaint(f"out={out!r} lies in no folder; make {Path(out).parent} first")
    _matplotlib()


def save(race: Race, out: str) -> None:
    """Draw the race into a file; the same race gives the same bytes."""
    if Path(out).suffix.lower() != ".svg":
        figure(race).savefig(out, dpi=120)
        return
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to load

    # Letters stay letters: as outlines they are a third of a picture. DejaVu is wide, so that what fits
    # in it fits in the sans-serif that a reader has instead.
    style: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "shapekit"}
    with mpl.rc_context(style), io.StringIO() as drawn:
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure(race).savefig(drawn, format="svg", metadata=nothing)
        Path(out).write_text(compact(drawn.getvalue()), encoding="utf-8", newline="\n")


def compact(svg: str) -> str:
    """The same SVG to a tenth of a point, without indentation."""
    svg = re.sub(r"\n +", "\n", svg)
    return re.sub(
        r"<[^>]*>", lambda tag: re.sub(r" \n(?=[Lz\"])", "", re.sub(r"(\.\d)\d+", r"\1", tag[0])), svg
    )


def figure(race: Race) -> Figure:
    """A row of calls per column of time for each run, and below them how many have left in total."""
    _matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    rows = len(race.runs)
    drawn = Figure(figsize=(9, 1.4 * rows + 3.6), layout="constrained")
    axes = drawn.subplots(
        rows + 1, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [1] * rows + [2]}
    )[:, 0]
    unit_s, unit = next((size, name) for least, size, name in _UNITS if race.length_us >= least * SECOND_US)
    columns = Columns.over(race.length_us, _COLUMNS)
    edges = [number * columns.width_us / SECOND_US / unit_s for number in range(columns.number + 1)]
    came = race.counts(race.runs[0], columns)
    lines = zip(race.runs, cycle(COLOURS), cycle(STYLES), strict=False)
    total: Axes = axes[-1]
    for row, (run, colour, style) in zip(axes[:-1], lines, strict=True):
        left = race.counts(run, columns)
        row.stairs(*_steps(came, edges), fill=True, color=ARRIVALS, label="arrivals")
        row.stairs(
            *_steps(left, edges), color=colour, linestyle=style, linewidth=2, label=f"left: {run.name}"
        )
        row.set_ylabel(f"calls per\n{span_words(columns.width_us)}")
        row.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, steps=[1, 2, 5, 10]))
        row.set_ylim(0, _top(race, columns))
        row.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small", handlelength=4
        )
        row.grid(axis="y", alpha=0.3)
        row.tick_params(axis="x", length=0)
        total.plot(edges, [0, *accumulate(left)], color=colour, linestyle=style, linewidth=2, label=run.name)
    drawn.suptitle(f"arrivals {race.arrivals.told}, and when the calls leave")
    total.set_ylabel("calls that have left")
    total.set_xlabel(f"time since the start ({unit})")
    total.set_xlim(0, edges[-1])
    total.set_ylim(bottom=0)
    total.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    total.legend(
        loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small", handlelength=4
    )
    total.grid(alpha=0.3)
    return drawn


def _steps(counts: list[int], edges: list[float]) -> tuple[list[int], list[float]]:
    """The same stairs with one step for columns of a height."""
    heights, ends, done = [], [edges[0]], 0
    for height, columns in groupby(counts):
        done += len(list(columns))
        heights.append(height)
        ends.append(edges[done])
    return heights, ends


def _top(race: Race, columns: Columns) -> float:
    return 1.08 * max(1, *(max(race.counts(run, columns)) for run in race.runs))


def _matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise missing("--out", "plot") from None
