"""`shapekit demo`: the main job, on a machine with nothing but Python."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from shapekit.cli.complaint import Complaint
from shapekit.cli.demo_crew import WORKERS, Crew
from shapekit.cli.demo_log import COLUMN_NS, SECOND_NS, Log, Summary
from shapekit.cli.demo_picture import figures, legend, scale_of
from shapekit.cli.demo_server import LIMIT, WINDOW_NS
from shapekit.cli.demo_worker import HEADROOM, NAME, PAUSE_S, RATE, THREADS
from shapekit.cli.output import console, is_plain, json_option, print_json, table

__all__ = ["demo"]

SECONDS = 6.0
MANY_SECONDS = 60.0
TITLES = ("Without shapekit", "With shapekit")
_PER_COLUMN = LIMIT / 10

Show = Callable[[Sequence[Log]], None]
"""Shows the runs so far, the last of which may still go on."""


class Place(NamedTuple):
    """Where the workers share the truth."""

    words: str
    where: tuple[str, str]
    """The URL or the file, and the prefix of its keys."""


@click.command()
@click.option("--redis", "url", metavar="URL", help="Share the rate through Redis instead of a file.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, MANY_SECONDS),
    default=SECONDS,
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
    out = console()
    with (
        tempfile.TemporaryDirectory(prefix="shapekit-demo-") as folder,
        _place(url, folder) as place,
        Crew(Path(folder)) as crew,
    ):
        if as_json:
            runs = _both(crew, seconds, place, _nothing)
        elif out.is_terminal:
            runs = _live(out, crew, seconds, place)
        else:
            out.print(_opening(place))
            runs = _both(crew, seconds, place, _lines(out))
    summaries = [log.summary() for log in runs]
    if as_json:
        print_json(_told(runs, summaries, seconds, url))
    else:
        out.print(*_closing(summaries, place), sep="\n")


def _both(crew: Crew, seconds: float, place: Place, show: Show) -> list[Log]:
    """First unshaped, then shaped; a run ends with all of its calls."""
    runs: list[Log] = []
    for where in ((), place.where):
        if runs:
            # The API still remembers its last second: both runs begin with a clean slate.
            time.sleep(WINDOW_NS / 1e9)
        log = None
        for log in crew.run(seconds, where):
            show([*runs, log])
        if log is None or not log.calls:
            raise Complaint(f"no call arrived within {seconds:g} s; give it more with --seconds")
        runs.append(log)
    return runs


@contextmanager
def _place(url: str | None, folder: str) -> Iterator[Place]:
    """Where to share: a file in the folder, or a corner of a Redis, which is swept afterwards."""
    prefix = f"shapekit-demo-{uuid4().hex[:12]}"
    if url is None:
        yield Place("one SQLite file", (str(Path(folder) / "limits.db"), prefix))
        return
    from shapekit.stores.redis import RedisStore  # noqa: PLC0415 - redis is an extra

    store = RedisStore.from_url(url, prefix=prefix)
    list(store.keys())  # one that does not answer is told now
    try:
        yield Place("one Redis", (url, prefix))
    finally:
        store.reset_all()
        store.evaluate("return redis.call('DEL', KEYS[1])", [f"{prefix}:program:{NAME}"], [])
        store.close()


# what is shown


def _live(out: Console, crew: Crew, seconds: float, place: Place) -> list[Log]:
    out.print(_opening(place), "")
    picture = _Picture(out, round(seconds * 10))
    with Live(picture.page([]), console=out, refresh_per_second=10) as live:
        runs = _both(crew, seconds, place, lambda logs: live.update(picture.page(logs)))
        live.update(picture.page(runs), refresh=True)
    return runs


class _Picture:
    """Both runs, one above the other, on one scale."""

    def __init__(self, out: Console, count: int) -> None:
        """Of so many tenths of a second."""
        self._out = out
        self._count = count

    def page(self, logs: Sequence[Log]) -> RenderableType:
        fine = not is_plain(self._out)
        scale = scale_of(logs, self._count, _PER_COLUMN, self._out.size, fine=fine)
        parts: list[RenderableType] = []
        for title, log in zip_longest(TITLES, logs):
            parts += [
                Text.assemble((title, "bold"), ("   arrivals at the API per 100 ms", "dim")),
                scale.chart([] if log is None else log.columns(min(self._count, log.lasted_ns // COLUMN_NS))),
                Text() if log is None else figures(log.summary()),
                Text(),
            ]
        return Group(*parts, legend(scale.glyphs))


def _opening(place: Place) -> Text:
    return Text.assemble(
        (f"An API allows {LIMIT} calls a second. ", "bold"),
        f"{WORKERS} processes with {THREADS} threads each want more: first as they like, and whoever gets a "
        f"429 tries again after {PAUSE_S:g} s; then shaped, through {place.words}.",
    )


def _lines(out: Console) -> Show:
    """A line for each second of a run."""
    told: set[tuple[int, int]] = set()

    def show(logs: Sequence[Log]) -> None:
        number = len(logs)
        second = logs[-1].lasted_ns // SECOND_NS
        if second and (number, second) not in told:
            told.add((number, second))
            seen = logs[-1].summary()
            out.print(f"{TITLES[number - 1]}, {second} s: {seen.calls} calls, {seen.refused} refused")

    return show


def _nothing(logs: Sequence[Log]) -> None:
    """For machines, the figures at the end are all there is."""


def _closing(summaries: Sequence[Summary], place: Place) -> list[RenderableType]:
    before, after = summaries
    rows = [
        ("calls", f"{before.calls}", f"{after.calls}"),
        ("refused with 429", _share(before), _share(after)),
        ("accepted a second", f"{before.rate:.1f}", f"{after.rate:.1f}"),
        ("worst second", f"{before.worst_second} calls", f"{after.worst_second} calls"),
        ("wait, mean", f"{before.wait_mean:.2f} s", f"{after.wait_mean:.2f} s"),
        ("wait p50", f"{before.wait_p50:.2f} s", f"{after.wait_p50:.2f} s"),
        ("wait p99", f"{before.wait_p99:.2f} s", f"{after.wait_p99:.2f} s"),
    ]
    titles = [title.lower() for title in TITLES]
    lines: list[RenderableType] = [Text(), table(("", *titles), rows, numbers=titles), Text()]
    if after.refused:
        lines.append(
            Text(
                f"{after.refused} shaped calls were still refused: on a machine this busy, calls are late on "
                "their way by more than the headroom covers."
            )
        )
    store = "RedisStore.from_url(…)" if place.words == "one Redis" else "SQLiteStore(…)"
    lines += [
        Text("The workers differ in one line, `with shaper:` around the call, where"),
        Text(f'    shaper = Shaper("{RATE}", headroom={HEADROOM:g}, name="{NAME}", store={store})'),
        Text(
            f"Headroom shapes {HEADROOM:.0%} below the limit: shapekit spaces departures, the API counts "
            "arrivals, and a call that is late on its way comes closer to those behind it."
        ),
        Text(
            "Wait: from when a thread wants a call until it arrives and is accepted. All figures are from "
            "the API's log."
        ),
    ]
    return lines


def _share(summary: Summary) -> str:
    return f"{summary.refused} ({summary.refused / summary.calls:.0%})" if summary.refused else "0"


def _told(
    runs: Sequence[Log], summaries: Sequence[Summary], seconds: float, url: str | None
) -> dict[str, Any]:
    count = round(seconds * 10)
    told: dict[str, Any] = {
        "limit_per_second": LIMIT,
        "seconds": seconds,
        "workers": WORKERS,
        "threads": THREADS,
        "store": "sqlite" if url is None else "redis",
        "rate": RATE,
        "headroom": HEADROOM,
    }
    for name, log, summary in zip(("unshaped", "shaped"), runs, summaries, strict=True):
        accepted, refused = zip(*log.columns(count), strict=True)
        per_100_ms = {"accepted": accepted, "refused": refused}
        told[name] = {**summary._asdict(), "arrivals_per_100_ms": per_100_ms}
    return told
