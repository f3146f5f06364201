"""`shapekit demo`: processes call an API that enforces its limit, first without shapekit and then with it.

The API runs in this process and keeps the log from which all figures come. The workers are processes whose
threads make one call after another until the API is gone, so that they end even if the demo is killed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, nullcontext
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple, cast

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shapekit.cli.main import CommandError
from shapekit.cli.output import console, json_option, print_json, table
from shapekit.shaper import Shaper

LIMIT, PENALTY_S, WORK_S = 50, 1, 0.05
"""Calls in any second; how long the API refuses everything after a call too many; how long a call takes."""
WORKERS, THREADS, PAUSE_S = 3, 4, 0.1
"""Processes, threads of each, and how long an unshaped thread waits before it repeats a refused call."""
RATE, HEADROOM = "50/s", 0.1
FRAME_S = 0.2


class Call(NamedTuple):
    """A call: seconds after the first one that it arrived, and how long its thread had waited to make it."""

    arrived: float
    waited: float
    accepted: bool


class Figures(NamedTuple):
    """The result of a run; the waits are those of the answered calls."""

    answered: int
    refused: int
    penalties_s: float
    median_wait_s: float
    longest_wait_s: float


class Log(NamedTuple):
    """The calls of one run in the order of their arrival, and how long it has lasted so far."""

    calls: Sequence[Call]
    lasted: float

    def columns(self) -> list[tuple[int, int]]:
        """How many calls were answered and refused in each tenth of a second."""
        counts = Counter((int(call.arrived * 10), call.accepted) for call in self.calls)
        return [(counts[place, True], counts[place, False]) for place in range(ceil(self.lasted * 10))]

    def figures(self) -> Figures:
        """The result of the run so far."""
        lost = ends = 0.0
        for call in self.calls:
            if not call.accepted and call.arrived >= ends:
                ends = call.arrived + PENALTY_S
                lost += min(ends, self.lasted) - call.arrived
        waits = [call.waited for call in self.calls if call.accepted]
        refused = len(self.calls) - len(waits)
        return Figures(len(waits), refused, lost, median(waits or [0]), max(waits, default=0))


class Limit:
    """At most `LIMIT` accepted calls in any second; after one too many, none is for `PENALTY_S`."""

    def __init__(self) -> None:
        self._accepted: deque[float] = deque(maxlen=LIMIT)
        self._closed_until = 0.0

    def admits(self, now: float) -> bool:
        """Whether a call that arrives now is accepted."""
        if now < self._closed_until:
            return False
        if len(self._accepted) == LIMIT and self._accepted[0] > now - 1:
            self._closed_until = now + PENALTY_S
            return False
        self._accepted.append(now)
        return True


class Api(ThreadingHTTPServer):
    """The API: a server on a free port of the loopback, with threads in this process."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.began = 0.0
        self._limit, self._lock = Limit(), threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, wanted_at: float) -> bool:
        """Log a call that arrives now, and say whether it is accepted."""
        with self._lock:  # the order of the log is the order of the decisions
            now = time.monotonic()
            self.began = self.began or now
            accepted = self._limit.admits(now - self.began)
            self.calls.append(Call(now - self.began, now - wanted_at, accepted))
        return accepted

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: workers are killed in the middle of their calls."""


class _Handler(BaseHTTPRequestHandler):
    """A connection of a worker; the path says since when the worker has wanted the call."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        accepted = cast("Api", self.server).answer(float(self.path[1:]))
        if accepted:
            time.sleep(WORK_S)
        self.send_response(200 if accepted else 429)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base names it so
        """Print nothing: the API keeps its own log."""


def run(seconds: float, store: str) -> Generator[Log]:
    """Let the workers call, shaped by a store if its path is given; yields the log so far."""
    with ExitStack() as stack:
        api = stack.enter_context(Api())
        stack.callback(api.shutdown)
        command, workers = [sys.executable, "-m", __name__, str(api.server_port), store], []
        for _ in range(WORKERS):
            # In a separate session: only the demo gets Ctrl-C, and it ends its workers.
            worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)  # noqa: S603
            workers.append(stack.enter_context(worker))
            stack.callback(worker.kill)
        lasted = 0.0
        while lasted < seconds:
            time.sleep(FRAME_S)
            for worker in workers:
                if worker.poll() is not None:
                    lines = cast("IO[str]", worker.stderr).read().splitlines()
                    raise CommandError(f"a process of the demo ended: {(lines or ['without a word'])[-1]}")
            if api.calls:
                lasted = min(time.monotonic() - api.began, seconds)
                yield Log([call for call in api.calls if call.arrived < lasted], lasted)


def work(port: int, shaper: Shaper | None) -> None:
    """One thread of a worker."""
    api = HTTPConnection("127.0.0.1", port)
    while True:
        wanted_at, status = time.monotonic(), 0
        while status != 200:
            with shaper or nullcontext():
                api.request("GET", f"/{wanted_at}")
                answer = api.getresponse()
                answer.read()
            status = answer.status
            if status == 429 and shaper:
                shaper.hold(PENALTY_S)
            elif status == 429:
                time.sleep(PAUSE_S)


def main(port: str, store: str) -> None:
    """One worker."""
    shaper = Shaper(RATE, headroom=HEADROOM, name="demo", store=store) if store else None
    for _ in range(THREADS):
        threading.Thread(target=work, args=(int(port), shaper)).start()


ACCEPTED, REFUSED = "#0072b2", "#e69f00"
FINE, PLAIN = ("▁▂▃▄▅▆▇█", "▒", "─"), ("    ####", "x", "-")
"""The glyphs of a chart: eighths of a cell of answered calls, a refused cell, and the limit."""
UNIT, ROWS = LIMIT // 10, 5
"""Calls a row, and rows: a thread makes at most two calls in a tenth of a second, so all of them fit."""
TITLES = ("Without shapekit", "With shapekit")
NAMES = ("calls answered", "calls wasted on a 429", "lost in penalties", "median wait", "longest wait")
OPENING = f"""\
Calls an API without shapekit and then with it; takes about {{:.0f}} seconds.

The API allows {LIMIT} calls a second. A call too many gets a 429, and so do all
calls of the next second. {WORKERS} processes with {THREADS} threads each want more than that;
without shapekit they repeat a refused call after {PAUSE_S:g} s.
"""
BUSY = "Shaped calls were refused, too: this machine is too busy for the headroom.\n"
CLOSING = f"""\
What you gain: {{:+.0%}} work done, {{:+}} calls wasted, {{:+.1f}} s lost in penalties.
What it costs: a call waits for its slot, and these lines in the workers:

    shaper = Shaper("{RATE}", headroom={HEADROOM:g}, name="demo", store="limits.db")
    with shaper:  # waits for the slot
        answer = call()
    if answer.status == 429:
        shaper.hold({PENALTY_S})  # the calls of all processes wait

Read next:
  README.md, "Which do I need?"   what to take for your calls
  docs/tutorial/index.md          from one script to a fleet of workers
  docs/how-to/httpx.md            the same for httpx, in one line"""


def chart(columns: Sequence[tuple[int, int]], width: int, glyphs: tuple[str, str, str]) -> list[Text]:
    """Rows of cells, the highest first, with the limit between them; the newest columns if not all fit."""
    eighths, refused, limit = glyphs
    rows = [Text(no_wrap=True) for _ in range(ROWS)]
    for row, cells in enumerate(rows):
        for good, bad in columns[-width:]:
            # A cell that both kinds of calls share goes to the kind that fills more of it.
            low = 8 * (round(good / UNIT) - row) if bad else round(8 * good / UNIT) - 8 * row
            if low > 0:
                cells.append(eighths[min(low, 8) - 1], ACCEPTED)
            else:
                cells.append(refused if round((good + bad) / UNIT) > row else " ", REFUSED)
    rows.insert(1, Text(limit * width, "bold"))
    return rows[::-1]


def page(out: Console, logs: Sequence[Log], seconds: float) -> Group:
    """Both runs, one above the other, on one scale."""
    glyphs, lines = PLAIN if out.options.ascii_only else FINE, []
    for title, log in zip(TITLES, [*logs, *[Log([], 0)] * 2], strict=False):
        answered, refused, lost, *_ = log.figures()
        text = f"  {answered} calls answered  {refused} × 429  {lost:.1f} s lost in penalties"
        lines += [Text.assemble((title, "bold"), text)]
        lines += chart(log.columns(), min(out.width, ceil(seconds * 10)), glyphs)
    cells = ((glyphs[0][-1], ACCEPTED), " answered  ", (glyphs[1], REFUSED), " refused with 429  ")
    text = f"{glyphs[2] * 2} the limit, {LIMIT} a second  a column: 0.1 s"
    return Group(*lines, Text.assemble(*cells, text))


@click.command()
@click.option(
    "--seconds",
    type=float,
    default=7.2,
    show_default=True,
    help="How long each of the two runs lasts, from 0.5 to 60.",
)
@json_option
def demo(seconds: float, as_json: bool) -> None:
    """Show what shaping gains: three processes call an API that enforces its limit.

    Starts an API on this machine that allows 50 calls in any second, and refuses all calls of the second
    after one too many. Three processes call it as they like, and then at one rate that they share through a
    file. It ends by itself, and nothing stays behind.
    """
    if not 0.5 <= seconds <= 60:
        raise CommandError(f"seconds={seconds:g} is not from 0.5 to 60; give --seconds 7.2")
    if as_json:
        runs = _both(seconds, lambda logs: None)
        figures = {name: _plain(log) for name, log in zip(("unshaped", "shaped"), runs, strict=True)}
        settings = {"limit_per_second": LIMIT, "penalty_s": PENALTY_S, "seconds": seconds, "workers": WORKERS}
        print_json({**settings, "threads": THREADS, "rate": RATE, "headroom": HEADROOM, **figures})
        return
    out = console()
    out.print(OPENING.format(2 * seconds + 6))
    with Live(page(out, [], seconds), console=out, auto_refresh=False) as live:
        runs = _both(seconds, lambda logs: live.update(page(out, logs, seconds), refresh=out.is_terminal))
    before, after = [log.figures() for log in runs]
    titles = [title.lower() for title in TITLES]
    rows = zip(NAMES, _cells(before, seconds), _cells(after, seconds), strict=True)
    begun = "" if out.is_terminal else "\n"  # rich leaves the last line of a plain page open
    out.print(begun, table((f"in the same {seconds:g} s", *titles), rows, numbers=titles), "", sep="\n")
    if after.refused:
        out.print(BUSY)
    wasted, lost = after.refused - before.refused, after.penalties_s - before.penalties_s
    out.print(CLOSING.format(after.answered / before.answered - 1, wasted, lost))


def _both(seconds: float, show: Callable[[Sequence[Log]], None]) -> list[Log]:
    """Run unshaped, and then shaped with a store in a temporary file."""
    runs: list[Log] = []
    with tempfile.TemporaryDirectory(prefix="shapekit-demo-") as folder:
        for store in ("", str(Path(folder) / "limits.db")):
            log = Log([], 0)
            with closing(run(seconds, store)) as logs:
                for log in logs:
                    show([*runs, log])
            runs.append(log)
    return runs


def _cells(seen: Figures, seconds: float) -> tuple[str, ...]:
    wasted = f"{seen.refused} ({seen.refused / (seen.answered + seen.refused):.0%})"
    lost = f"{seen.penalties_s:.1f} s ({seen.penalties_s / seconds:.0%})"
    return f"{seen.answered}", wasted, lost, f"{seen.median_wait_s:.2f} s", f"{seen.longest_wait_s:.2f} s"


def _plain(log: Log) -> dict[str, object]:
    answered, refused = zip(*log.columns(), strict=True)
    return {**log.figures()._asdict(), "per_100_ms": {"answered": answered, "refused": refused}}


if __name__ == "__main__":
    main(*sys.argv[1:])
