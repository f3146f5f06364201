"""`shapekit demo`: its API keeps its word, its figures are those of the log, and nothing stays behind."""

import io
import json
import math
import os
import re
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from shapekit.cli.demo import ACCEPTED, FINE, LIMIT, REFUSED, SECOND_NS, Call, Crew, Log, Window, chart, page
from shapekit.cli.main import Complaint

from ..redis_server import RedisServer, shared_server
from .screen import PATIENCE_S, complaint, shapekit

pytestmark = pytest.mark.long

SECONDS = "1"
GAPS_NS = st.lists(
    st.sampled_from((0, 1, SECOND_NS // 100, SECOND_NS // 50, SECOND_NS // 2))
    | st.integers(0, SECOND_NS // 20),
    max_size=200,
)
"""Crowded and sparse, and such that some calls are a second apart to the nanosecond."""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where the demo puts its files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def agree(told):
    """What has to be so in any demo, however busy the machine is."""
    for run in (told["unshaped"], told["shaped"]):
        accepted, refused = run["arrivals_per_100_ms"]["accepted"], run["arrivals_per_100_ms"]["refused"]
        assert len(accepted) == len(refused) == told["seconds"] * 10
        assert (sum(accepted), sum(refused)) == (run["accepted"], run["refused"])
        assert run["calls"] == run["accepted"] + run["refused"]
        assert 0 < run["accepted"] <= LIMIT * (told["seconds"] + 1)
        assert run["rate"] == pytest.approx(run["accepted"] / told["seconds"])
        assert 0 <= run["wait_p50"] <= run["wait_p99"]
        assert max(map(sum, zip(accepted, refused, strict=True))) <= run["worst_second"] <= run["calls"]
    assert told["unshaped"]["refused"] > 0, "twelve threads want more than is allowed"
    assert told["shaped"]["worst_second"] < told["unshaped"]["worst_second"]


# the whole


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Three at once, for each takes seconds: what they printed, and where their files were."""
    asked = {
        "sqlite": ("--json",),
        "redis": ("--json", "--redis", shared_server().url),
        "plain": (),
    }
    folders = {name: tmp_path_factory.mktemp(name) for name in asked}
    with ThreadPoolExecutor() as pool:
        running = {
            name: pool.submit(shapekit, "demo", "--seconds", SECONDS, *args, TMPDIR=str(folders[name]))
            for name, args in asked.items()
        }
        results = {name: future.result() for name, future in running.items()}
    for name, result in results.items():
        assert (result.returncode, result.stderr) == (0, ""), name
    return {name: (result.stdout, folders[name]) for name, result in results.items()}


def test_its_figures_agree_and_no_file_stays(demos):
    printed, folder = demos["sqlite"]
    told = json.loads(printed)
    assert (told["store"], told["workers"], told["limit_per_second"]) == ("sqlite", 3, LIMIT)
    agree(told)
    assert list(folder.iterdir()) == []


def test_it_shares_through_redis_and_sweeps_it(demos):
    printed, folder = demos["redis"]
    told = json.loads(printed)
    assert told["store"] == "redis"
    agree(told)
    with shared_server().client() as client:
        assert list(client.scan_iter("shapekit-demo*")) == []
    assert list(folder.iterdir()) == []


def test_without_a_terminal_it_prints_plain_lines(demos):
    printed, _ = demos["plain"]
    assert "\x1b" not in printed
    lines = printed.splitlines()
    assert any(re.fullmatch(r"Without shapekit, 1 s: \d+ calls, [1-9]\d* refused", line) for line in lines)
    assert any(re.fullmatch(r"With shapekit, 1 s: \d+ calls, \d+ refused", line) for line in lines)
    for row in ("calls", "refused with 429", "accepted a second", "worst second", "wait p50", "wait p99"):
        assert any(re.match(rf"{row} .*\d", line) for line in lines), row
    assert 'Shaper("50/s", headroom=0.05, name="demo", store=SQLiteStore(…))' in printed


def test_on_a_terminal_it_draws(screens):
    screen = screens("demo", "--seconds", SECONDS, rows=24, columns=80)
    assert screen.end() == 0
    last = screen.text[screen.text.rindex("Without shapekit   arrivals") :]
    page, _, _ = last.partition("The workers differ")
    assert "…" not in page, "it fits the terminal"
    assert all(glyph in page for glyph in "█▒┄")
    assert "a row: " in page
    assert "With shapekit   arrivals at the API per 100 ms" in page
    assert re.search(r"\d+ calls  \d+ × 429  [\d.]+ accepted/s  worst second \d+  wait p99 [\d.]+ s", page)
    assert re.search(r"without shapekit +with shapekit", page)
    assert "Headroom shapes 5% below the limit" in last
    assert all(len(line.rstrip()) <= 80 for line in last.splitlines())


def test_ctrl_c_ends_it_and_no_file_stays(screens, temporary):
    screen = screens("demo", "--seconds", "30")
    screen.until(" × 429")
    assert list(temporary.iterdir())
    screen.press("\x03")
    assert screen.end() == 130
    assert "Traceback" not in screen.text
    assert list(temporary.iterdir()) == []


def test_no_process_outlives_an_interruption():
    crew = Crew()

    def interrupted():
        with crew:
            for log in crew.run(30, ()):
                if log.calls:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [process.returncode for process in crew._processes] == [0] * 3


KILLED = """
from shapekit.cli.demo import Crew
with Crew() as crew:
    for log in crew.run(30, ()):
        if log.calls:
            print(*[process.pid for process in crew._processes], flush=True)
"""


def test_no_process_outlives_a_demo_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as demo:
        workers = [os.pidfd_open(int(pid)) for pid in demo.stdout.readline().split()]
        demo.kill()
    assert len(workers) == 3
    for worker in workers:
        ended, _, _ = select.select([worker], [], [], PATIENCE_S)
        os.close(worker)
        assert ended


# what goes wrong


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--redis", "redis://127.0.0.1:1"), "Redis does not answer"),
        (("--redis", "nonsense"), "is not a Redis URL"),
        (("--seconds", "0"), "0.5"),
        (("--seconds", "soon"), "'soon'"),
    ],
)
def test_bad_input_is_one_line(args, words, temporary):
    assert words in complaint(shapekit("demo", *args))
    assert list(temporary.iterdir()) == []


def test_a_store_that_goes_away_is_told():
    server = RedisServer().start()
    with Crew() as crew:
        running = crew.run(1, (server.url, "demo"))
        next(running)
        server.close()
        with pytest.raises(Complaint, match="a process of the demo ended: Redis does not answer"):
            list(running)


def test_a_worker_that_cannot_begin_is_told(tmp_path):
    (tmp_path / "limits.db").write_text("no database " * 100)
    with Crew() as crew, pytest.raises(Complaint, match=r"a process of the demo ended: .*limits.db"):
        list(crew.run(1, (str(tmp_path / "limits.db"), "demo")))


# the log, the window and the picture, by what they mean


@given(GAPS_NS)
@example([0] * 51)
@example([SECOND_NS // 100] * 200)
def test_the_api_allows_so_many_in_any_second_and_refuses_no_other(gaps):
    window, accepted, now = Window(), [], 0
    for gap in gaps:
        now += gap
        recent = [then for then in accepted if then > now - SECOND_NS]
        assert window.admits(now) == (len(recent) < LIMIT)
        if len(recent) < LIMIT:
            accepted.append(now)


@given(GAPS_NS)
@example([0, SECOND_NS // 2, SECOND_NS // 2])
def test_the_figures_are_those_of_the_log(gaps):
    calls, now = [], 0
    for gap in gaps:
        now += gap
        calls.append(Call(now, now - gap * 7_919 % SECOND_NS, gap % 3 != 1))
    summary = Log(calls, 0, now or 1).summary()
    good = [call for call in calls if call.accepted]
    assert (summary.calls, summary.accepted) == (len(calls), len(good))
    assert summary.refused == len(calls) - len(good)
    arrivals = [call.arrived_ns for call in calls]
    assert summary.worst_second == max(
        [sum(start <= other < start + SECOND_NS for other in arrivals) for start in arrivals], default=0
    )
    waits = sorted((call.arrived_ns - call.asked_ns) / SECOND_NS for call in good)
    for told, part in ((summary.wait_p50, 0.5), (summary.wait_p99, 0.99)):
        assert sum(wait <= told for wait in waits) >= part * len(waits)
        assert sum(wait < told for wait in waits) < max(part * len(waits), 1e-9) or not waits
    columns = Log(calls, 0, now or 1).columns(math.ceil((now + 1) / SECOND_NS * 10))
    assert (sum(good for good, _ in columns), sum(bad for _, bad in columns)) == summary[1:3]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60), st.integers(3, 8)
)
def test_bars_are_as_high_as_their_numbers(columns, height):
    unit = -(-max(*map(sum, columns), 10) // height)
    eighths, refused_cell, _ = FINE
    rows = list(reversed(chart(columns, unit, (100, height), FINE)))
    assert len(rows) == height
    for place, (accepted, refused) in enumerate(columns):
        cells = [row.plain[place] for row in rows]
        drawn = sum(eighths.index(cell) + 1 for cell in cells if cell in eighths) / 8 * unit
        assert abs(drawn - accepted) <= (unit / 2 if refused else 0) + unit / 16 + 1e-9
        above = cells.count(refused_cell)
        # The cell that both share shows one of them, and the uppermost is rounded.
        assert abs(above * unit - refused) <= 17 / 16 * unit + 1e-9
        assert "".join(cells) == "".join(
            sorted(cells, key=lambda cell: 0 if cell in eighths else 1 if cell == refused_cell else 2)
        ), "accepted below, refused on top"


def test_a_picture_is_readable_without_colour_and_unicode():
    calls = [Call(number * SECOND_NS // 200, 0, number % 2 == 0) for number in range(200)]
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    out = Console(file=stream, width=80, height=24)
    out.print(page(out, [Log(calls, 0, 2 * SECOND_NS)], 20))
    stream.seek(0)
    lines = stream.read().splitlines()
    picture = lines[1 : lines.index("With shapekit   arrivals at the API per 100 ms") - 1]
    beside = ["", "", "", "", "", "-" * 10, ""]
    cells = ["x" * 10] * 4 + ["#" * 10] * 3
    assert [line.rstrip() for line in picture] == [
        cell + more for cell, more in zip(cells, beside, strict=True)
    ]
    assert lines[-1] == "# accepted   x refused with 429   -- the limit, spread evenly   a row: 3 calls"


def test_its_colours_can_be_told_apart_by_those_who_see_no_red_or_green():
    """By their brightness alone, and blue against yellow, which nearly everybody can tell."""

    def light(colour):
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert light(REFUSED) - light(ACCEPTED) > 60
    assert int(ACCEPTED[5:], 16) - int(REFUSED[5:], 16) > 120


def test_a_narrow_terminal_shows_what_is_newest():
    top, *_, lowest = chart([(1, 0)] * 90 + [(8, 0)] * 10, 1, (40, 8), FINE)
    assert top.plain == " " * 30 + "█" * 10
    assert lowest.plain == "█" * 40
