"""`shapekit demo`: the main job, on a machine with nothing but Python.

An API that allows so many calls in any second and answers 429 to the others; its log, the only source of
figures, on the host's monotonic clock, which all processes share; workers, processes whose threads call as
fast as they are let, one call after another; and the page on which arrivals are drawn in tenths of a second,
accepted below, refused on top. What is refused is told by its pattern as well as by its colour.

Shaped and unshaped differ in one line. A worker says when it is ready, begins at the first line on its
standard input, and ends when that ends: so also when the demo is killed.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, TypeAlias, cast
from uuid import uuid4

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shapekit.cli.main import Complaint
from shapekit.cli.output import console, is_plain, json_option, print_json, table
from shapekit.errors import StoreUnavailableError
from shapekit.shaper import Shaper

ASKED_AT = "X-Asked-At"
"""The header in which a worker says since when it has wanted this call."""
SECOND_NS = 1_000_000_000
LIMIT = 50
WORK_S = 0.05
"""How long an accepted call takes, as it would elsewhere."""


class Call(NamedTuple):
    """A call that arrived at the API; an accepted retry was asked for at its first attempt."""

    arrived_ns: int
    asked_ns: int
    accepted: bool


class Summary(NamedTuple):
    """What the log says of one run; waits, in seconds, end when the call arrives and is accepted."""

    calls: int
    accepted: int
    refused: int
    rate: float
    """Accepted calls a second."""
    worst_second: int
    """The most calls that arrived in any one second."""
    wait_p50: float
    wait_p99: float


class Log(NamedTuple):
    """The calls of one run, in the order in which they arrived, and how long it has lasted so far."""

    calls: Sequence[Call]
    began_ns: int
    lasted_ns: int

    def columns(self, count: int) -> list[tuple[int, int]]:
        """How many were accepted and refused in each of the first tenths of a second."""
        columns = [[0, 0] for _ in range(count)]
        for call in self.calls:
            place = (call.arrived_ns - self.began_ns) * 10 // SECOND_NS
            if 0 <= place < count:
                columns[place][not call.accepted] += 1
        return [(accepted, refused) for accepted, refused in columns]

    def summary(self) -> Summary:
        """The figures so far."""
        waits = sorted(call.arrived_ns - call.asked_ns for call in self.calls if call.accepted)
        recent: deque[int] = deque()
        worst = 0
        for call in self.calls:
            recent.append(call.arrived_ns)
            while recent[0] <= call.arrived_ns - SECOND_NS:
                recent.popleft()
            worst = max(worst, len(recent))
        rate = len(waits) * SECOND_NS / max(self.lasted_ns, 1)
        refused = len(self.calls) - len(waits)
        quantiles = (_quantile(waits, part) / SECOND_NS for part in (0.5, 0.99))
        return Summary(len(self.calls), len(waits), refused, rate, worst, *quantiles)


def _quantile(ordered: Sequence[int], part: float) -> int:
    """The least value that at least this part of all does not exceed."""
    return ordered[math.ceil(part * len(ordered)) - 1] if ordered else 0


class Window:
    """At most `LIMIT` accepted calls in any second, exactly: what many APIs promise to enforce."""

    def __init__(self) -> None:
        self._accepted: deque[int] = deque(maxlen=LIMIT)

    def admits(self, now_ns: int) -> bool:
        """Whether a call that arrives now is accepted; one that is refused does not count."""
        is_full = len(self._accepted) == LIMIT and self._accepted[0] > now_ns - SECOND_NS
        if not is_full:
            self._accepted.append(now_ns)
        return not is_full


class Api(ThreadingHTTPServer):
    """Answers on a free port of the loopback, on threads of this process."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._window = Window()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, asked_ns: int) -> bool:
        """Log a call that arrives now, and say whether it is accepted."""
        with self._lock:  # the order of the log is the order of the decisions
            now_ns = time.monotonic_ns()
            accepted = self._window.admits(now_ns)
            self.calls.append(Call(now_ns, asked_ns, accepted))
        return accepted

    def handle_error(self, request: object, client_address: object) -> None:
        """A worker that ends in the middle of a call is no news."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a worker, which is kept open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        accepted = cast("Api", self.server).answer(int(self.headers[ASKED_AT]))
        if accepted:
            time.sleep(WORK_S)
        self.send_response(200 if accepted else 429)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base names it so
        """The log is ours."""


WORKERS = 3
THREADS = 4
PAUSE_S = 0.1
"""How long a refused call rests before it is tried again."""
RATE = "50/s"
HEADROOM = 0.05
NAME = "demo"
FRAME_S = 0.1
PATIENCE_S = 5.0
"""How long a process may take to end by itself."""


class Crew:
    """The API, and the processes that call it."""

    def __init__(self) -> None:
        self._api = Api()
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            _ended(process)
        self._api.shutdown()
        self._api.server_close()

    def run(self, seconds: float, where: Sequence[str]) -> Iterator[Log]:
        """Let the workers call, shaped on the store at `where` or unshaped; yields the log so far."""
        workers = [self._started(where) for _ in range(WORKERS)]
        for worker in workers:
            if not cast("IO[str]", worker.stdout).readline():
                raise Complaint(_ended(worker))
        first, began_ns = len(self._api.calls), time.monotonic_ns()
        ends_ns = began_ns + round(seconds * SECOND_NS)
        for worker in workers:
            with suppress(OSError):
                cast("IO[str]", worker.stdin).write("go\n")
        while (left_ns := ends_ns - time.monotonic_ns()) > 0:
            time.sleep(min(FRAME_S, left_ns / SECOND_NS))
            yield Log(self._api.calls[first:], began_ns, time.monotonic_ns() - began_ns)
        for worker in workers:
            if trouble := _ended(worker):
                raise Complaint(trouble)
        calls = [call for call in self._api.calls[first:] if call.arrived_ns < ends_ns]
        yield Log(calls, began_ns, ends_ns - began_ns)

    def _started(self, where: Sequence[str]) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", __name__, str(self._api.server_port), *where]
        ours: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        # In a session of their own: Ctrl-C is the demo's to hear, and it tells them.
        ours |= {"encoding": "utf-8", "bufsize": 1, "start_new_session": True}
        process: subprocess.Popen[str] = subprocess.Popen(words, **ours)  # noqa: S603 - ourselves
        self._processes.append(process)
        return process


def _ended(process: subprocess.Popen[str]) -> str:
    """End a process, unless it has ended; gives what is wrong with it, if anything is."""
    try:
        _, trouble = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, trouble = process.communicate()
    if not process.returncode:
        return ""
    return f"a process of the demo ended: {(trouble.strip() or 'without a word').splitlines()[-1]}"


def work(
    port: int, shaper: AbstractContextManager[Any], begin: threading.Event, stop: threading.Event
) -> None:
    """One thread: calls until it is stopped."""
    api = HTTPConnection("127.0.0.1", port, timeout=10)
    api.connect()
    begin.wait()
    try:
        while not stop.is_set():
            asked_ns, status = str(time.monotonic_ns()), 0
            while status != 200 and not stop.wait(PAUSE_S if status else 0):
                with shaper:
                    api.request("GET", "/", headers={ASKED_AT: asked_ns})
                answer = api.getresponse()
                answer.read()
                status = answer.status
    except (StoreUnavailableError, HTTPException, OSError):
        if not stop.is_set():  # a thread that is stopped in a wait hears that the store is closed
            raise
    finally:
        api.close()


ACCEPTED = "#0072b2"
REFUSED = "#e69f00"
FINE = ("▁▂▃▄▅▆▇█", "▒", "┄")
PLAIN = ("    ####", "x", "-")
"""What a chart is made of: eighths of a cell that was accepted, a refused one, and the limit."""
TITLES = ("Without shapekit", "With shapekit")
FIGURES = ("calls", "refused with 429", "accepted a second", "worst second", "wait p50", "wait p99")
OPENING = f"""\
An API allows {LIMIT} calls a second. {WORKERS} processes with {THREADS} threads each want more: first as \
they like, and whoever gets a 429 tries again after {PAUSE_S:g} s; then shaped, through one {{}}.
"""
BUSY = """\
{} shaped calls were still refused: on a machine this busy, calls are late on their way by more than the \
headroom covers."""
CLOSING = f"""\
The workers differ in one line, `with shaper:` around the call, where
    shaper = Shaper("{RATE}", headroom={HEADROOM:g}, name="{NAME}", store={{}})
Headroom shapes {HEADROOM:.0%} below the limit: shapekit spaces departures, the API counts arrivals, and a \
call that is late on its way comes closer to those behind it.
Wait: from when a thread wants a call until it arrives and is accepted. All figures are from the API's log."""
_PER_COLUMN = LIMIT / 10

Columns: TypeAlias = Sequence[tuple[int, int]]
Glyphs: TypeAlias = tuple[str, str, str]
Show: TypeAlias = Callable[[Sequence[Log]], None]
"""Shows the runs so far, the last of which may still go on."""


def chart(columns: Columns, unit: float, size: tuple[int, int], glyphs: Glyphs) -> list[Text]:
    """Rows of cells, the lowest last, each for `unit` calls; only the newest columns if not all fit."""
    eighths, refused, limit = glyphs
    (width, height), rows = size, []
    for row in reversed(range(height)):
        line = Text(no_wrap=True)
        for good, bad in columns[-width:]:
            # A cell that both would share goes to whichever has more of it.
            low = 8 * (round(good / unit) - row) if bad else round(8 * good / unit) - 8 * row
            if low > 0:
                line.append(eighths[min(low, 8) - 1], ACCEPTED)
            elif round((good + bad) / unit) > row:
                line.append(refused, REFUSED)
            else:
                line.append(limit if row == int(_PER_COLUMN / unit) else " ", "dim")
        rows.append(line)
    return rows


def page(out: Console, logs: Sequence[Log], count: int) -> Group:
    """Both runs of `count` tenths of a second, one above the other, on one scale."""
    rows, glyphs = max(3, min(8, (out.height - 10) // 2)), PLAIN if is_plain(out) else FINE
    most = max([sum(column) for log in logs for column in log.columns(count)], default=0)
    unit = max(1, math.ceil(max(most, 2 * _PER_COLUMN) / rows))
    lines = []
    for title, log in zip(TITLES, [*logs, *[Log([], 0, 0)] * 2], strict=False):
        past = log.columns(min(count, log.lasted_ns * 10 // SECOND_NS))
        lines += [
            Text.assemble((title, "bold"), ("   arrivals at the API per 100 ms", "dim")),
            *chart(past, unit, (out.width, rows), glyphs),
            _figures(log.summary()) if log.calls else Text(),
        ]
    eighths, refused, limit = glyphs
    legend = Text.assemble(
        *((eighths[-1], ACCEPTED), " accepted   ", (refused, REFUSED), " refused with 429   "),
        *((limit * 2, "dim"), f" the limit, spread evenly   a row: {unit} calls"),
    )
    return Group(*lines, legend)


def _figures(seen: Summary) -> Text:
    refused = f"{seen.refused} × 429", f"bold {REFUSED}" if seen.refused else ""
    rest = f"  {seen.rate:.1f} accepted/s  worst second {seen.worst_second}  wait p99 {seen.wait_p99:.2f} s"
    return Text.assemble(f"{seen.calls} calls  ", refused, rest)


@click.command()
@click.option("--redis", "url", metavar="URL", help="Share the rate through Redis instead of a file.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 60),
    default=6,
    show_default=True,
    help="How long each of the two runs lasts.",
)
@json_option
def demo(url: str | None, seconds: float, as_json: bool) -> None:
    """See it work: three processes, one limit, with and without shaping.

    Starts a small API on this machine that allows 50 calls in any second and answers 429 to the others,
    and three worker processes that want more. First they call as they like, then shaped to one rate that
    they share through a file. All figures come from the API's log. Ends by itself; nothing stays behind.
    """
    out, count = console(), round(seconds * 10)
    with _place(url) as where, Crew() as crew:
        if as_json:
            runs = _both(crew, seconds, where, lambda logs: None)
            print_json(_told(runs, seconds, "sqlite" if url is None else "redis"))
            return
        out.print(OPENING.format("SQLite file" if url is None else "Redis"))
        if out.is_terminal:
            with Live(page(out, [], count), console=out) as live:
                runs = _both(crew, seconds, where, lambda logs: live.update(page(out, logs, count)))
        else:
            runs = _both(crew, seconds, where, _lines(out))
    seen = [log.summary() for log in runs]
    titles = [title.lower() for title in TITLES]
    rows = zip(FIGURES, *map(_column, seen), strict=True)
    out.print("", table(("", *titles), rows, numbers=titles), "", sep="\n")
    if seen[1].refused:
        out.print(BUSY.format(seen[1].refused))
    out.print(CLOSING.format("SQLiteStore(…)" if url is None else "RedisStore.from_url(…)"))


def _both(crew: Crew, seconds: float, where: tuple[str, str], show: Show) -> list[Log]:
    """First unshaped, then shaped; a run ends with all of its calls."""
    runs: list[Log] = []
    for place in ((), where):
        if runs:
            time.sleep(1)  # the API still remembers its last second: both runs begin with a clean slate
        log = None
        for log in crew.run(seconds, place):
            show([*runs, log])
        if log is None or not log.calls:
            raise Complaint(f"no call arrived within {seconds:g} s; give it more with --seconds")
        runs.append(log)
    return runs


@contextmanager
def _place(url: str | None) -> Iterator[tuple[str, str]]:
    """Where to share, and the prefix of keys: a new file, or a corner of a Redis, swept afterwards."""
    prefix = f"shapekit-demo-{uuid4().hex[:12]}"
    if url is None:
        with tempfile.TemporaryDirectory(prefix="shapekit-demo-") as folder:
            yield str(Path(folder) / "limits.db"), prefix
        return
    from shapekit.stores.redis import RedisStore  # noqa: PLC0415 - redis is an extra

    store = RedisStore.from_url(url, prefix=prefix)
    list(store.keys())  # one that does not answer is told now
    try:
        yield url, prefix
    finally:
        store.reset_all()
        store.evaluate("return redis.call('DEL', KEYS[1])", [f"{prefix}:program:{NAME}"], [])
        store.close()


def _lines(out: Console) -> Show:
    """A line for each second of a run."""
    told = set()

    def show(logs: Sequence[Log]) -> None:
        title, second = TITLES[len(logs) - 1], logs[-1].lasted_ns // SECOND_NS
        if second and (title, second) not in told:
            told.add((title, second))
            seen = logs[-1].summary()
            out.print(f"{title}, {second} s: {seen.calls} calls, {seen.refused} refused")

    return show


def _column(seen: Summary) -> tuple[str, ...]:
    share = f" ({seen.refused / seen.calls:.0%})" if seen.refused else ""
    waits = f"{seen.wait_p50:.2f} s", f"{seen.wait_p99:.2f} s"
    return f"{seen.calls}", f"{seen.refused}{share}", f"{seen.rate:.1f}", f"{seen.worst_second} calls", *waits


def _told(runs: Sequence[Log], seconds: float, store: str) -> dict[str, Any]:
    told: dict[str, Any] = {"limit_per_second": LIMIT, "seconds": seconds, "workers": WORKERS}
    told |= {"threads": THREADS, "store": store, "rate": RATE, "headroom": HEADROOM}
    for name, log in zip(("unshaped", "shaped"), runs, strict=True):
        accepted, refused = zip(*log.columns(round(seconds * 10)), strict=True)
        per_100_ms = {"accepted": accepted, "refused": refused}
        told[name] = {**log.summary()._asdict(), "arrivals_per_100_ms": per_100_ms}
    return told


def main() -> None:
    """Arguments: the port, and for shaping the store and its prefix."""
    port, *where = sys.argv[1:]
    shaper = Shaper(RATE, headroom=HEADROOM, name=NAME, store=_store(*where)) if where else None
    begin, stop = threading.Event(), threading.Event()
    with ThreadPoolExecutor(THREADS) as pool:
        threads = [pool.submit(work, int(port), shaper or nullcontext(), begin, stop) for _ in range(THREADS)]
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            stop.set()
        begin.set()
        sys.stdin.read()
        stop.set()
        if shaper is not None:
            shaper.close()
    for error in filter(None, [thread.exception() for thread in threads]):
        sys.exit(str(error))


def _store(where: str, prefix: str) -> Any:
    if "://" not in where:
        return where
    from shapekit.stores.redis import RedisStore  # noqa: PLC0415 - redis is an extra

    return RedisStore.from_url(where, prefix=prefix)


if __name__ == "__main__":
    main()
