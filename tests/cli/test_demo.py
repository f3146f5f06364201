"""`shapekit demo`: its API keeps its limit, its figures match the log, and no file stays behind."""

import io
import json
import math
import os
import re
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from shapekit.cli import demo
from shapekit.cli.demo import (
    ACCEPTED,
    FINE,
    LIMIT,
    PENALTY_S,
    REFUSED,
    ROWS,
    UNIT,
    Call,
    Limit,
    Log,
    chart,
    page,
)
from shapekit.cli.main import CommandError

from .screen import PATIENCE_S, complaint, shapekit

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SECONDS = "1"
GAPS = st.lists(
    st.sampled_from((0, 1 / 128, 1 / 64, 1 / 2, 1)) | st.integers(0, 64).map(lambda n: n / 1024), max_size=200
)
"""Crowded and sparse, exact as floats, and such that some calls are exactly a second apart."""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where the demo puts its files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def workers(monkeypatch):
    """The processes that the demo starts."""
    started, start = [], subprocess.Popen

    def remember(*args, **options):
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(demo.subprocess, "Popen", remember)
    return started


# the whole


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Two demos at once, because each takes seconds: what they printed, and where their files were."""
    options = {"json": ("--json",), "plain": ()}
    folders = {name: tmp_path_factory.mktemp(name) for name in options}
    with ThreadPoolExecutor() as pool:
        running = {
            name: pool.submit(shapekit, "demo", "--seconds", SECONDS, *args, TMPDIR=str(folders[name]))
            for name, args in options.items()
        }
        results = {name: future.result() for name, future in running.items()}
    for name, result in results.items():
        assert (result.returncode, result.stderr) == (0, ""), name
    return {name: (result.stdout, folders[name]) for name, result in results.items()}


def test_its_figures_agree_and_no_file_stays(demos):
    printed, folder = demos["json"]
    figures = json.loads(printed)
    assert (figures["workers"], figures["limit_per_second"], figures["penalty_s"]) == (3, LIMIT, PENALTY_S)
    for run in (figures["unshaped"], figures["shaped"]):
        answered, refused = run["per_100_ms"]["answered"], run["per_100_ms"]["refused"]
        assert len(answered) == len(refused) == figures["seconds"] * 10
        assert (sum(answered), sum(refused)) == (run["answered"], run["refused"])
        assert 0 < run["answered"] <= LIMIT * (figures["seconds"] + 1)
        assert (run["penalties_s"] > 0) == (run["refused"] > 0)
        assert 0 <= run["penalties_s"] <= figures["seconds"]
        assert 0 <= run["median_wait_s"] <= run["longest_wait_s"]
    assert figures["unshaped"]["refused"] > figures["shaped"]["refused"], (
        "twelve threads want more than is allowed"
    )
    assert list(folder.iterdir()) == []


def test_without_a_terminal_it_prints_plain_text_once(demos):
    printed, _ = demos["plain"]
    assert "\x1b" not in printed
    first, *lines = printed.splitlines()
    assert first == "Calls an API without shapekit and then with it; takes about 8 seconds."
    assert sum(line.startswith("With shapekit  ") for line in lines) == 1
    assert lines[next(at for at, line in enumerate(lines) if line.startswith("in the same")) - 1] == ""
    assert max(map(len, lines)) <= 80


def test_its_end_shows_the_gain_and_what_to_read(demos):
    printed, _ = demos["plain"]
    end = printed[printed.index("in the same 1 s") :]
    figures = {
        row: re.search(rf"^{row} +(\d+)(?: \(\d+%\))? +(\d+)(?: \(\d+%\))?$", end, re.MULTILINE).groups()
        for row in ("calls answered", "calls wasted on a 429")
    }
    (before, after), (wasted, still) = ([int(each) for each in pair] for pair in figures.values())
    gain = f"{after / before - 1:+.0%} work done, {still - wasted:+} calls wasted"
    assert f"What you gain: {gain}" in end
    assert re.search(r"^lost in penalties +[\d.]+ s \(\d+%\) +[\d.]+ s \(\d+%\)$", end, re.MULTILINE)
    for row in ("median wait", "longest wait"):
        assert re.search(rf"^{row} +[\d.]+ s +[\d.]+ s$", end, re.MULTILINE)
    assert 'Shaper("50/s", headroom=0.1, name="demo", store="limits.db")' in end
    assert ("refused, too" in end) == (still > 0)


def test_the_pages_to_read_next_exist():
    pages = re.findall(r"^  (\S+\.md)", demo.CLOSING, re.MULTILINE)
    assert len(pages) == 3
    assert all((ROOT / page).is_file() for page in pages)
    assert "Which do I need?" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_on_a_terminal_it_draws_and_every_frame_has_the_limit(screens):
    screen = screens("demo", "--seconds", SECONDS, rows=24, columns=80)
    assert screen.end() == 0
    drawing, _, _ = screen.text.partition("in the same")
    frames = re.split(r"(?=Without shapekit  \d)", drawing.replace("\r", ""))[1:]
    assert len(frames) >= 6
    for frame in frames:
        assert frame.count("\n" + "─" * 10 + "\n") == 2
    assert "…" not in drawing, "it fits the terminal"
    assert all(glyph in frames[-1] for glyph in "█▒")
    assert re.search(
        r"Without shapekit  \d+ calls answered  \d+ × 429  [\d.]+ s lost in penalties", frames[-1]
    )
    assert all(len(line.rstrip()) <= 80 for line in screen.text.splitlines())


def test_ctrl_c_ends_it_and_no_file_stays(screens, temporary):
    screen = screens("demo", "--seconds", "30")
    screen.until("▒▒▒▒▒▒")
    assert list(temporary.iterdir())
    screen.press("\x03")
    assert screen.end() == 130
    assert "Traceback" not in screen.text
    assert list(temporary.iterdir()) == []


def test_no_process_outlives_an_interruption(workers):
    def interrupted():
        with closing(demo.run(30, "")) as logs:
            next(logs)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(workers) == 3
    assert None not in [worker.returncode for worker in workers]


KILLED = """
from shapekit.cli import demo
started, start = [], demo.subprocess.Popen
demo.subprocess.Popen = lambda *args, **more: started.append(start(*args, **more)) or started[-1]
for log in demo.run(30, ""):
    if log.calls:
        print(*[process.pid for process in started], flush=True)
"""


def test_no_process_outlives_a_demo_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as killed:
        workers = [os.pidfd_open(int(pid)) for pid in killed.stdout.readline().split()]
        killed.kill()
    assert len(workers) == 3
    for worker in workers:
        ended, _, _ = select.select([worker], [], [], PATIENCE_S)
        os.close(worker)
        assert ended


# what goes wrong


@pytest.mark.parametrize(("seconds", "words"), [("0", "0.5"), ("nan", "nan is not"), ("soon", "'soon'")])
def test_bad_input_is_one_line(seconds, words, temporary):
    assert words in complaint(shapekit("demo", "--seconds", seconds))
    assert list(temporary.iterdir()) == []


def test_a_worker_that_ends_is_reported(tmp_path):
    (tmp_path / "limits.db").write_text("no database " * 100)
    with pytest.raises(CommandError, match=r"a process of the demo ended: .*limits.db"):
        list(demo.run(30, str(tmp_path / "limits.db")))


# the log, the limit and the picture, by what they mean


@given(GAPS)
@example([0] * 51 + [1 - 1 / 1024, 1 / 1024])
@example([1 / 128] * 200)
def test_the_api_allows_its_limit_in_any_second_and_then_punishes(gaps):
    limit, accepted, closed_until = Limit(), [], 0
    for now in accumulate(gaps):
        recent = [then for then in accepted if then > now - 1]
        fits = now >= closed_until and len(recent) < LIMIT
        assert limit.admits(now) == fits
        if fits:
            accepted.append(now)
        elif now >= closed_until:
            closed_until = now + PENALTY_S


@given(GAPS)
@example([0, 1 / 2, 1 / 2])
@example([0] * 60)
@example([1 / 128] * 200)
def test_the_figures_are_those_of_the_log(gaps):
    limit = Limit()
    calls = [Call(now, now % 0.375, limit.admits(now)) for now in accumulate(gaps)]
    log = Log(calls, sum(gaps) + 1 / 16)
    answered, refused, lost, middle, longest = log.figures()
    assert (answered, refused) == (sum(c.accepted for c in calls), sum(not c.accepted for c in calls))
    waits = [call.waited for call in calls if call.accepted]
    assert longest == max(waits, default=0)
    assert sum(wait <= middle for wait in waits) >= len(waits) / 2 <= sum(wait >= middle for wait in waits)
    # In steps of a 1,024th of a second: whether any refusal of the second before closes the API.
    steps = math.ceil(log.lasted * 1024)
    api_limit = Limit()
    begun = []
    for call in calls:
        if not api_limit.admits(call.arrived) and (not begun or call.arrived >= begun[-1] + PENALTY_S):
            begun.append(call.arrived)
    assert lost * 1024 == sum(
        any(then <= step / 1024 < then + PENALTY_S for then in begun) for step in range(steps)
    )
    columns = log.columns()
    assert len(columns) == math.ceil(log.lasted * 10)
    assert (sum(good for good, _ in columns), sum(bad for _, bad in columns)) == (answered, refused)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60))
def test_bars_are_as_high_as_their_numbers(columns):
    eighths, refused_cell, limit = FINE
    rows = list(reversed(chart(columns, 100, FINE)))
    assert rows.pop(1).plain == limit * 100
    assert len(rows) == ROWS
    for place, (accepted, refused) in enumerate(columns):
        cells = [row.plain[place] for row in rows]
        drawn = sum(eighths.index(cell) + 1 for cell in cells if cell in eighths) / 8 * UNIT
        assert abs(drawn - accepted) <= (UNIT / 2 if refused else 0) + UNIT / 16 + 1e-9
        above = cells.count(refused_cell)
        # The cell that both share shows one of them, and the uppermost is rounded.
        assert abs(above * UNIT - refused) <= 17 / 16 * UNIT + 1e-9
        assert "".join(cells) == "".join(
            sorted(cells, key=lambda cell: 0 if cell in eighths else 1 if cell == refused_cell else 2)
        ), "accepted below, refused on top"


def test_a_picture_is_readable_without_colour_and_unicode():
    calls = [Call(number / 200, 0, number % 2 == 0) for number in range(200)]
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    out = Console(file=stream, width=80, height=24)
    out.print(page(out, [Log(calls, 2)], 2))
    stream.seek(0)
    first, *picture, last = (line.rstrip() for line in stream.read().splitlines())
    assert first == "Without shapekit  100 calls answered  100 ? 429  1.0 s lost in penalties"
    assert picture[:6] == ["", "x" * 10, "x" * 10, "#" * 10, "-" * 20, "#" * 10]
    assert picture[6:] == [
        "With shapekit  0 calls answered  0 ? 429  0.0 s lost in penalties",
        *[""] * 4,
        "-" * 20,
        "",
    ]
    assert last == "# answered  x refused with 429  -- the limit, 50 a second  a column: 0.1 s"


def test_its_colours_differ_for_colour_blind_readers():
    """By their brightness alone, and blue against yellow, which nearly all people can distinguish."""

    def light(colour):
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert light(REFUSED) - light(ACCEPTED) > 60
    assert int(ACCEPTED[5:], 16) - int(REFUSED[5:], 16) > 120


def test_a_narrow_terminal_shows_the_newest_calls():
    *_, second, limit, lowest = chart([(5, 0)] * 90 + [(10, 0)] * 10, 40, FINE)
    assert second.plain == " " * 30 + "█" * 10
    assert limit.plain == "─" * 40
    assert lowest.plain == "█" * 40
