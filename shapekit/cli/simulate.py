"""`shapekit simulate`: compares strategies on the same arrivals.

Arrivals are when calls come, generated or from a real trace. A race runs them against several contenders,
each in the syntax of the command line (`gcra:10/s+20`). A sketch and a picture show arrivals and departures.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, cycle, groupby, islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.text import Text

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA, LeakyBucket, TokenBucket
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.cli.main import CommandError, spelled
from shapekit.cli.output import console, counted, json_option, print_json, table
from shapekit.errors import ConfigError, missing, span_words
from shapekit.rate import MAX_COUNT, SECOND_US, Rate, duration_us, exactly, max_wait_us, parse_rates, whole
from shapekit.shaper import Shaper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST = 1_000_000
FORMS = 'write poisson:20/s, uniform:20/s, "burst:50 every 10s", or the name of a .csv or .jsonl file'
FIELDS = ("at", "time", "timestamp", "ts", "t")
"""The possible names of the instant in a file; in a CSV without such a heading, it is the first column."""
DEFAULT_LENGTH = "60s"
_BURST = re.compile(r"([0-9]{1,12})\s*every\s*(.+)", re.ASCII)
_LATEST_S = 2**32


class Arrivals(NamedTuple):
    """Instants in ascending order, and the span of time that they are from."""

    text: str
    instants_us: list[int]
    start_us: int
    length_us: int

    @classmethod
    def parse(cls, text: str, length: str | None, seed: int) -> Arrivals:
        """Parse `--arrivals` and `--for`."""
        kind, _, rest = text.partition(":")
        if kind in _KINDS:
            length_us = duration_us("for", spelled(length or DEFAULT_LENGTH))
            chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
            try:
                instants = _taken(text, _KINDS[kind](rest, length_us, chance))
            except ConfigError as error:
                raise error.within(f"arrivals {text!r}:") from None
            if not instants:
                raise CommandError(f"arrivals={text!r} bring no call; raise the rate, or give a longer --for")
            return cls(text, instants, 0, length_us)
        path = Path(text)
        read = _READERS.get(path.suffix.lower())
        if read is None:
            raise CommandError(f"arrivals={text!r} is not understood; {FORMS}")
        instants = sorted(_taken(text, _instants(path, read)))
        if not instants:
            raise CommandError(f"{text} holds no instant; write one a line")
        start = instants[0]
        if length is not None:
            end = start + duration_us("for", spelled(length))
            return cls(path.name, [at for at in instants if at < end], start, end - start)
        return cls(path.name, instants, start, instants[-1] - start + 1)


def _taken(text: str, instants: Iterator[int]) -> list[int]:
    taken = list(islice(instants, MOST + 1))
    if len(taken) > MOST:
        raise CommandError(f"arrivals={text!r} are more than {MOST}; lower the rate, or give a shorter --for")
    return taken


def _poisson(text: str, length_us: int, chance: random.Random) -> Iterator[int]:
    rate = Rate.parse(text)
    mean_us = rate.period_us / rate.limit
    at = -mean_us * math.log(1 - chance.random())
    while at < length_us:
        yield int(at)
        at -= mean_us * math.log(1 - chance.random())


def _uniform(text: str, length_us: int, _: random.Random) -> Iterator[int]:
    rate = Rate.parse(text)
    number = 0
    while (at := number * rate.period_us // rate.limit) < length_us:
        yield at
        number += 1


def _burst(text: str, length_us: int, _: random.Random) -> Iterator[int]:
    match = _BURST.fullmatch(text.strip())
    if match is None:
        raise CommandError(f'arrivals={f"burst:{text}"!r} is not understood; write "burst:50 every 10s"')
    calls, every_us = whole("burst", int(match[1])), duration_us("every", spelled(match[2]))
    for at in range(0, length_us, every_us):
        for _call in range(calls):
            yield at


_KINDS: dict[str, Callable[[str, int, random.Random], Iterator[int]]] = {
    "poisson": _poisson,
    "uniform": _uniform,
    "burst": _burst,
}


def _instants(path: Path, read: Callable[[Any], Iterator[tuple[int, Any]]]) -> Iterator[int]:
    try:
        # Spreadsheet programs write a byte order mark, which is not part of the text.
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for line, value in read(lines):
                instant = _instant_us(value)
                if instant is None:
                    fix = "write epoch seconds from 0 to 2**32, or 2026-11-21T09:00:00Z"
                    raise CommandError(f"{path} line {line}: {value!r} is not an instant; {fix}")
                yield instant
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8 text ({error.reason}); save it as such") from None


def _of_csv(lines: Any) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(lines)
    column = 0
    try:
        for row in reader:
            if not row:
                continue
            if reader.line_num == 1 and _instant_us(row[0]) is None:
                heads = [head.strip().lower() for head in row]
                column = next((heads.index(field) for field in FIELDS if field in heads), 0)
                continue
            yield reader.line_num, row[column] if column < len(row) else ""
    except csv.Error as error:
        raise CommandError(
            f"{lines.name} line {reader.line_num} is not CSV: {error}; mend that line"
        ) from None


def _of_jsonl(lines: Any) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{lines.name} line {number} is not JSON: {error}; mend that line") from None
        if isinstance(value, dict):
            field = next((field for field in FIELDS if field in value), None)
            if field is None:
                fields = ", ".join(FIELDS)
                raise CommandError(f"{lines.name} line {number} has no instant; name it one of {fields}")
            value = value[field]
        yield number, value


_READERS = {".csv": _of_csv, ".jsonl": _of_jsonl}


def _instant_us(value: Any) -> int | None:
    """Microseconds from epoch seconds or ISO 8601 (UTC if it names no zone); None for anything else."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text)
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
                value = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                return None
    seconds = exactly(value)
    return None if seconds is None or not 0 <= seconds <= _LATEST_S else round(seconds * SECOND_US)


_METERS: dict[str, Callable[[str, int | None], Algorithm[Any]]] = {
    "gcra": GCRA,
    "token": TokenBucket,
    "leaky": LeakyBucket,
}
_WINDOWS: dict[str, Callable[[str], Algorithm[Any]]] = {
    "fixed": FixedWindow,
    "sliding": SlidingWindow,
    "log": SlidingWindowLog,
    "quota": Quota,
}
NAMES = (*_METERS, *_WINDOWS, "shaper")
UNSHAPED = "unshaped"


class Run(NamedTuple):
    """The result of one contender."""

    name: str
    departures_us: list[int]
    """The departures of the calls that left, in order."""
    waits_us: list[int]
    """How long these calls waited, in the same order."""
    refused: int

    def worst(self, window_us: int) -> int:
        """The most departures in any half-open window of this length."""
        left, most = self.departures_us, 0
        first = 0
        for last, at in enumerate(left):
            while at - left[first] >= window_us:
                first += 1
            most = max(most, last - first + 1)
        return most

    def wait_us(self, share: float) -> int | None:
        """The wait that a `share` of the calls that left did not exceed; None if none left."""
        waits = sorted(self.waits_us)
        return waits[max(0, ceil(share * len(waits)) - 1)] if waits else None


class Contender(NamedTuple):
    """A strategy, by its text on the command line."""

    name: str
    program: Algorithm[Any] | LeakyQueue | None
    """None for no limiter: every call leaves when it comes."""
    periods_us: tuple[int, ...]
    """The periods of its rates; empty for a quota."""

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Parse a contender such as `gcra:10/s+20`."""
        kind, _, limit = text.partition(":")
        if kind not in NAMES:
            raise CommandError(
                f"strategy={text!r} is unknown; write NAME:RATE with one of {', '.join(NAMES)}"
            )
        try:
            return cls(text, *_strategy(kind, limit))
        except ConfigError as error:
            raise error.within(f"strategy {text!r}:") from None

    def run(self, arrivals_us: Sequence[int], max_wait_us: int | None) -> Run:
        """Decide about all arrivals, on virtual time."""
        program, state = self.program, None
        left, waits = [], []
        for now in arrivals_us:
            accepted, wait, at = True, 0, now
            if program is not None:
                if isinstance(program, LeakyQueue):
                    after, granted, _, persist = program.reserve(state, now, (1, max_wait_us, 0))
                    accepted, wait, at, *_ = granted
                else:
                    after, decision, _, persist = program.decide(state, now, 1)
                    accepted = decision.allowed
                state = after if persist else state
            if accepted:
                left.append(at)
                waits.append(wait)
        return Run(self.name, left, waits, len(arrivals_us) - len(left))


def _strategy(kind: str, limit: str) -> tuple[Algorithm[Any] | LeakyQueue, tuple[int, ...]]:
    """The program, and the periods of its rates."""
    if kind == "quota":
        return Quota(limit), ()
    rate_text, plus, more = limit.partition("+")
    if plus and not (more.isascii() and more.isdigit() and len(more) <= len(str(MAX_COUNT))):
        raise ConfigError("burst", more, "is not a whole number", "end with it: gcra:10/s+20")
    burst = int(more) if plus else None
    rates = parse_rates(rate_text)
    periods = tuple(rate.period_us for rate in rates)
    if kind == "shaper":
        shaper = Shaper(rate_text, burst=burst)
        shaper.close()
        return shaper.core.queue, periods
    if len(rates) > 1:
        raise ConfigError("rate", rate_text, "is several rates", f"give {kind} one; shaper takes several")
    if kind in _METERS:
        return _METERS[kind](rate_text, burst), periods
    if burst is not None:
        raise ConfigError("burst", burst, f"is not an option of {kind}", "leave the + out")
    return _WINDOWS[kind](rate_text), periods


_DAY_S = 86_400
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, _DAY_S)


class Columns(NamedTuple):
    """Equal pieces of time, of a round width such as 5 s or 1 min."""

    width_us: int
    number: int

    @classmethod
    def over(cls, length_us: int, most: int) -> Columns:
        """At most `most` columns that cover `length_us`."""
        width = next(width for width in _widths() if width * most >= length_us)
        return cls(width, max(1, -(-length_us // width)))

    def counts(self, instants_us: Iterable[int], start_us: int) -> list[int]:
        """How many instants fall into each column."""
        counts = [0] * self.number
        for at in instants_us:
            counts[(at - start_us) // self.width_us] += 1
        return counts


class Race(NamedTuple):
    """The results of all contenders; the first one is no limiter, which lets every call leave."""

    arrivals: Arrivals
    runs: list[Run]
    windows_us: list[int]
    """The periods of all rates: the most departures in any window of each are compared."""

    @classmethod
    def run(cls, arrivals: Arrivals, contenders: Sequence[Contender], max_wait_us: int | None) -> Race:
        """Run every contender on the same arrivals."""
        runs = [
            entry.run(arrivals.instants_us, max_wait_us)
            for entry in (Contender(UNSHAPED, None, ()), *contenders)
        ]
        periods = {period for contender in contenders for period in contender.periods_us}
        return cls(arrivals, runs, sorted(periods) or [SECOND_US])

    @property
    def length_us(self) -> int:
        """From the first instant until all calls have come, and all that were admitted have left."""
        last = max((run.departures_us[-1] for run in self.runs if run.departures_us), default=0)
        return max(self.arrivals.length_us, last - self.arrivals.start_us + 1)

    def counts(self, run: Run, columns: Columns) -> list[int]:
        """How many calls of a run left in each column."""
        return columns.counts(run.departures_us, self.arrivals.start_us)


def _widths() -> Iterator[int]:
    size = 1
    while size < SECOND_US:
        yield from (size, 2 * size, 5 * size)
        size *= 10
    yield from (seconds * SECOND_US for seconds in _STEPS_S)
    days = 2
    while True:
        yield days * _DAY_S * SECOND_US
        days *= 2


HEIGHT = 4
_EIGHTHS = "▁▂▃▄▅▆▇█"
_LEFT, _WAITING = "█", "░"
_PLAIN_LEFT, _PLAIN_WAITING = "#", "."


def sketch(race: Race, width: int, *, plain: bool) -> list[Text]:
    """One drawing for each run, all on one scale, and a legend."""
    margin = 9
    columns = Columns.over(race.length_us, max(10, width - margin))
    arrivals = race.counts(race.runs[0], columns)
    drawn = [(run, race.counts(run, columns)) for run in race.runs]
    most = max(1, *arrivals, *(max(left) for _, left in drawn))
    end = span_words(columns.width_us * columns.number)
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
        axis = "+" + "-" * columns.number if plain else "└" + "─" * columns.number
        lines.append(Text(f"{0:>{margin - 2}} {axis} {end}"))
    solid, shade = (_PLAIN_LEFT, _PLAIN_WAITING) if plain else (_LEFT, _WAITING)
    each = f"column: {span_words(columns.width_us)}  full height: {counted(most, 'call')}"
    return [*lines, Text(f"{solid} left  {shade} came, did not leave then  {each}")]


def _cell(left: float, came: float, plain: bool) -> str:
    """The character of a cell that departures fill to `left`, and arrivals to `came`."""
    if plain:
        return _PLAIN_LEFT if left >= 0.5 else _PLAIN_WAITING if came >= 0.5 else " "
    if left >= 1 / 16:
        return _EIGHTHS[min(7, max(0, round(left * 8) - 1))]
    return _WAITING if came >= 0.5 else " "


FORMATS = (".svg", ".png")
# Okabe and Ito's colours, without those too pale for a line: they are distinct for every kind of colour
# blindness. The line styles are distinct even without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00")
STYLES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
ARRIVALS = "#D9D9D9"
_COLUMNS = 120
_UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (180, 60, "minutes"), (0, 1, "s"))


def check_target(out: str) -> None:
    """Raise CommandError for a picture that cannot be drawn, before anything is computed."""
    if Path(out).suffix.lower() not in FORMATS:
        raise CommandError(f"out={out!r} is not a format that can be drawn; end it in .svg or .png")
    if not Path(out).parent.is_dir():
        raise CommandError(f"out={out!r} is in a folder that does not exist; make {Path(out).parent} first")
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra, and slow to load
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise missing("--out", "plot") from None


def save(race: Race, out: str) -> None:
    """Draw the race into a file; the same race gives the same bytes."""
    if Path(out).suffix.lower() != ".svg":
        figure(race).savefig(out, dpi=120)
        return
    import matplotlib as mpl  # noqa: PLC0415

    # Text is kept as text: as outlines it would be a third of the file. DejaVu is wide, so that what fits
    # in it also fits in the reader's own sans-serif font.
    style: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "shapekit"}
    with mpl.rc_context(style), io.StringIO() as drawn:
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure(race).savefig(drawn, format="svg", metadata=nothing)
        Path(out).write_text(compact(drawn.getvalue()), encoding="utf-8", newline="\n")


def compact(svg: str) -> str:
    """The same SVG, rounded to a tenth of a point and without indentation."""
    svg = re.sub(r"\n +", "\n", svg)
    return re.sub(
        r"<[^>]*>", lambda tag: re.sub(r" \n(?=[Lz\"])", "", re.sub(r"(\.\d)\d+", r"\1", tag[0])), svg
    )


def figure(race: Race) -> Figure:
    """For each run a row of calls per column of time, and below them how many calls have left in total."""
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
    beside: Any = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
    beside |= {"fontsize": "small", "handlelength": 4}
    top = 1.08 * max(1, *(max(race.counts(run, columns)) for run in race.runs))
    for row, (run, colour, style) in zip(axes[:-1], lines, strict=True):
        left = race.counts(run, columns)
        row.stairs(*_steps(came, edges), fill=True, color=ARRIVALS, label="arrivals")
        row.stairs(
            *_steps(left, edges), color=colour, linestyle=style, linewidth=2, label=f"left: {run.name}"
        )
        row.set_ylabel(f"calls per\n{span_words(columns.width_us)}")
        row.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, steps=[1, 2, 5, 10]))
        row.set_ylim(0, top)
        row.legend(**beside)
        row.grid(axis="y", alpha=0.3)
        row.tick_params(axis="x", length=0)
        total.plot(edges, [0, *accumulate(left)], color=colour, linestyle=style, linewidth=2, label=run.name)
    drawn.suptitle(f"arrivals {race.arrivals.text}, and when the calls leave")
    total.set_ylabel("calls that have left")
    total.set_xlabel(f"time since the start ({unit})")
    total.set_xlim(0, edges[-1])
    total.set_ylim(bottom=0)
    total.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    total.legend(**beside)
    total.grid(alpha=0.3)
    return drawn


def _steps(counts: list[int], edges: list[float]) -> tuple[list[int], list[float]]:
    """The same stairs, with neighbouring columns of one height joined into one step."""
    heights, ends, done = [], [edges[0]], 0
    for height, columns in groupby(counts):
        done += len(list(columns))
        heights.append(height)
        ends.append(edges[done])
    return heights, ends


@click.command
@click.argument("strategies", nargs=-1, required=True, metavar="STRATEGY...")
@click.option(
    "--arrivals", required=True, metavar="HOW|FILE", help='poisson:20/s, "burst:50 every 10s", or trace.csv.'
)
@click.option(
    "--for", "length", metavar="TIME", help="How long calls arrive. Default: 60s, or the whole file."
)
@click.option(
    "--max-wait", metavar="TIME", help="The shaper refuses calls that would wait longer. Default: no bound."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same arrivals.")
@click.option("--out", metavar="FILE.svg|png", help='Draw a picture (pip install "shapekit[plot]").')
@json_option
def simulate(
    strategies: tuple[str, ...],
    arrivals: str,
    length: str | None,
    max_wait: str | None,
    seed: int,
    out: str | None,
    as_json: bool,
) -> None:
    """Send the same calls to each STRATEGY, on virtual time, and compare the results.

    \b
    A STRATEGY is NAME:RATE, or NAME:RATE+BURST with the burst at the end:
      gcra:10/s+20    token:10/s+20   leaky:10/s+20    admits or refuses at once
      fixed:600/m     sliding:600/m   log:600/m        windows; they take no burst
      quota:1000/day  a budget for each month, week or day
      shaper:10/s+5   "shaper:10/s; 600/m+5"           delays; the default burst is 1

    \b
    Arrivals:
      poisson:20/s           independent of each other, 20 a second on average
      uniform:20/s           evenly spaced
      "burst:50 every 10s"   50 at once, again and again
      trace.csv trace.jsonl  real ones: epoch seconds or ISO 8601 (UTC if it names no zone), one a line;
                             in a column or field "at", "time", "timestamp", "ts" or "t"

    Generated arrivals begin at 1970-01-01 00:00 UTC, where windows and days begin too. The row "unshaped"
    shows what happens without any limit.

    \b
    shapekit simulate --arrivals poisson:20/s --for 60s gcra:10/s+20 fixed:600/m shaper:10/s
    """
    if out is not None:
        check_target(out)
    contenders = [Contender.parse(text) for text in strategies]
    bound_us = None if max_wait is None else max_wait_us(spelled(max_wait))
    race = Race.run(Arrivals.parse(arrivals, length, seed), contenders, bound_us)
    if as_json:
        print_json(
            {
                "arrivals": arrivals,
                "calls": len(race.arrivals.instants_us),
                "for_s": race.arrivals.length_us / SECOND_US,
                "seed": seed,
                "runs": [
                    {
                        "strategy": run.name,
                        "left": len(run.departures_us),
                        "refused": run.refused,
                        "worst_windows": [
                            {"window_s": window / SECOND_US, "calls": run.worst(window)}
                            for window in race.windows_us
                        ],
                        "wait_s": {
                            name: None if (wait := run.wait_us(share)) is None else wait / SECOND_US
                            for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1))
                        },
                    }
                    for run in race.runs
                ],
            }
        )
    else:
        _print(race)
    if out is not None:
        save(race, out)
        if not as_json:
            click.echo(f"drawn: {out}")


def _print(race: Race) -> None:
    page = console()
    calls, length = counted(len(race.arrivals.instants_us), "call"), span_words(race.arrivals.length_us)
    page.print(f"{calls} in {length}: {race.arrivals.text}\n")
    for line in sketch(race, page.width - 14, plain=page.options.ascii_only):
        page.print(line)
    worst = [f"most in\n{span_words(window)}" for window in race.windows_us]
    columns = ("strategy", "left", "refused", *worst, "wait\np50", "wait\np99")
    rows = [
        (
            run.name,
            f"{len(run.departures_us):,}",
            f"{run.refused:,}",
            *(f"{run.worst(window):,}" for window in race.windows_us),
            *("-" if wait is None else span_words(wait) for wait in (run.wait_us(0.5), run.wait_us(0.99))),
        )
        for run in race.runs
    ]
    page.print()
    page.print(table(columns, rows, numbers=columns[1:]))
