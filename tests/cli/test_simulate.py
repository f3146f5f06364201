"""`shapekit simulate`: each row is what the real gate or shaper does, and the pictures show the rows."""

from __future__ import annotations

import json
import math
import re
import sys
from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    LeakyBucket,
    ManualClock,
    Quota,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
)
from shapekit.cli.simulate import (
    COLOURS,
    HEIGHT,
    STYLES,
    Arrivals,
    Columns,
    Contender,
    Race,
    Run,
    compact,
    figure,
    save,
    sketch,
)
from shapekit.rate import SECOND_US

GATES = {
    "gcra:10/s+3": GCRA("10/s", burst=3),
    "gcra:7/s": GCRA("7/s"),
    "token:10/s+4": TokenBucket("10/s", 4),
    "leaky:10/s+2": LeakyBucket("10/s", 2),
    "fixed:5/s": FixedWindow("5/s"),
    "sliding:5/s": SlidingWindow("5/s"),
    "log:5/s": SlidingWindowLog("5/s"),
    "quota:6/day": Quota("6/day"),
    "quota:6/rolling:2s": Quota("6/rolling:2s"),
}
SHAPERS = {
    "shaper:10/s": {"rate": "10/s"},
    "shaper:10/s+3": {"rate": "10/s", "burst": 3},
    "shaper:10/s; 12/2s+2": {"rate": "10/s; 12/2s", "burst": 2},
}
instants = st.lists(st.integers(0, 4 * SECOND_US), max_size=60).map(sorted)
runs = st.lists(st.integers(0, 50), min_size=1, max_size=40).map(sorted)


@pytest.mark.parametrize("text", GATES)
@given(instants)
def test_a_gate_admits_what_the_real_one_admits(text, arrivals):
    clock = ManualClock()
    gate = Gate(GATES[text], clock=clock)
    admitted = []
    for at in arrivals:
        clock.set(at / SECOND_US)
        if gate.check():
            admitted.append(at)
    run = Contender.parse(text).run(arrivals, None)
    assert run == Run(text, admitted, [0] * len(admitted), len(arrivals) - len(admitted))


@pytest.mark.parametrize("text", SHAPERS)
@given(instants, st.none() | st.sampled_from([0, 250_000, 1_000_000]))
def test_a_shaper_delays_and_refuses_as_the_real_one_does(text, arrivals, max_wait_us):
    clock = ManualClock()
    max_wait = None if max_wait_us is None else max_wait_us / SECOND_US
    shaper = Shaper(**SHAPERS[text], max_wait=max_wait, clock=clock)
    reservations = []
    for at in arrivals:
        clock.set(at / SECOND_US)
        reservations.append(shaper.reserve())
    left = [reservation.grant for reservation in reservations if reservation]
    run = Contender.parse(text).run(arrivals, max_wait_us)
    assert run.departures_us == [grant.departs_at_us for grant in left]
    assert run.waits_us == [grant.wait_us for grant in left]
    assert run.refused == len(reservations) - len(left)


@given(runs, st.integers(1, 20))
def test_the_worst_window_is_the_fullest_of_all(departures, window):
    fullest = max(
        sum(begin <= at < begin + window for at in departures) for begin in range(-window, departures[-1] + 1)
    )
    assert Run("x", departures, [], 0).worst(window) == fullest


def test_a_run_without_departures_has_no_window_and_no_wait():
    run = Run("x", [], [], 3)
    assert (run.worst(1), run.wait_us(0.5)) == (0, None)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.sampled_from([0.01, 0.5, 0.99, 1]))
def test_a_percentile_is_the_least_wait_that_so_many_did_not_exceed(waits, share):
    enough = [wait for wait in waits if sum(other <= wait for other in waits) >= share * len(waits)]
    assert Run("x", list(range(len(waits))), waits, 0).wait_us(share) == min(enough)


@given(st.integers(1, 10**14), st.integers(10, 200))
def test_columns_cover_the_time_and_not_much_more(length, most):
    columns = Columns.over(length, most)
    assert columns.number <= most
    assert columns.number * columns.width_us >= length > (columns.number - 1) * columns.width_us
    assert columns.width_us == 1 or columns.number > most / 2.5 - 1


@given(runs, st.integers(1, 60))
def test_columns_count_every_instant_once(departures, most):
    columns = Columns.over(departures[-1] - departures[0] + 1, most)
    counts = columns.counts(departures, departures[0])
    for index, count in enumerate(counts):
        begin = departures[0] + index * columns.width_us
        assert count == sum(begin <= at < begin + columns.width_us for at in departures)
    assert sum(counts) == len(departures)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["gcrra:1/s"], "strategy='gcrra:1/s' is unknown; write NAME:RATE with one of gcra, token"),
        (["gcra"], "strategy 'gcra': rate='' is not a rate"),
        (["gcra:1/x"], "strategy 'gcra:1/x': rate='x' is an unknown unit"),
        (["gcra:1/s+0"], "burst=0 is not a whole number"),
        (["gcra:1/s+x"], "burst='x' is not a whole number; end with it"),
        (["gcra:1/s+" + "9" * 5000], "is not a whole number"),
        (["gcra:1/s; 2/s"], "is several rates; give gcra one"),
        (["fixed:1/s+3"], "burst=3 is not an option of fixed"),
        (["log:20000/s"], "limit=20000 is more entries than a log may hold"),
        (["quota:3/fortnight"], "per='fortnight' is not a period of a quota"),
        (["gcra:1/s", "--for", "0s"], "for='0s' is shorter than 1 µs"),
        (["gcra:1/s", "--max-wait", "x"], "max_wait='x' is not a duration"),
        (["gcra:1/s", "--arrivals", "poisson:1/x"], "arrivals 'poisson:1/x': rate='x'"),
        (["gcra:1/s", "--arrivals", "poisson:1/week"], "bring no call"),
        (["gcra:1/s", "--arrivals", "uniform:100000/s"], "are more than 1000000; lower the rate"),
        (
            ["gcra:1/s", "--arrivals", "burst:3"],
            "arrivals='burst:3' is not understood; write \"burst:50 every",
        ),
        (["gcra:1/s", "--arrivals", "burst:0 every 1us"], "burst=0 is not a whole number"),
        (["gcra:1/s", "--arrivals", "nope"], "arrivals='nope' is not understood; write poisson:20/s"),
        (["gcra:1/s", "--arrivals", "nope.csv"], "nope.csv: No such file or directory; check the path"),
        (["gcra:1/s", "--out", "x.gif"], "end it in .svg or .png"),
        (["gcra:1/s", "--out", "/nope/x.svg"], "is in a folder that does not exist; make /nope first"),
    ],
)
def test_bad_input_is_refused(args, part, complaint):
    arrivals = [] if "--arrivals" in args else ["--arrivals", "uniform:1/s"]
    assert part in complaint("simulate", *arrivals, *args)


def test_a_plain_number_is_seconds(run):
    plain, spelled = (
        json.loads(
            run("simulate", "--arrivals", f"burst:5 every {options[0]}", *options[1:], "--json").stdout
        )["runs"]
        for options in (
            ("2", "--for", "6", "--max-wait", "0.5", "shaper:5/s"),
            ("2s", "--for", "6s", "--max-wait", "500ms", "shaper:5/s"),
        )
    )
    assert plain == spelled
    assert run("simulate", *SCENE, "--max-wait", "0", "--json").stdout


def test_a_picture_without_matplotlib_names_the_line_that_installs_it(complaint, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = str(tmp_path / "x.svg")
    line = complaint("simulate", "--arrivals", "uniform:1/s", "gcra:1/s", "--out", out)
    assert 'pip install "shapekit[plot]"' in line


SCENE = ("--arrivals", "burst:50 every 5s", "--for", "20s", "gcra:10/s+20", "fixed:120/m", "shaper:5/s")


def test_the_table_and_json_say_the_same(run):
    result = run("simulate", *SCENE)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "200 calls in 20 s: burst:50 every 5s"
    head = lines.index("most in most in wait wait")
    assert lines[head + 1] == "strategy left refused 1 s 1 min p50 p99"
    rows = lines[head + 3 :]
    assert rows == [
        "unshaped 200 0 50 200 0 s 0 s",
        "gcra:10/s+20 80 120 20 80 0 s 0 s",
        "fixed:120/m 120 80 50 120 0 s 0 s",
        "shaper:5/s 200 0 5 200 12.4 s 24.4 s",
    ]
    result = json.loads(run("simulate", *SCENE, "--json").stdout)
    assert (result["calls"], result["for_s"], result["seed"]) == (200, 20, 0)
    shaped = result["runs"][3]
    assert (shaped["strategy"], shaped["left"], shaped["refused"]) == ("shaper:5/s", 200, 0)
    assert shaped["worst_windows"] == [{"window_s": 1, "calls": 5}, {"window_s": 60, "calls": 200}]
    assert shaped["wait_s"] == {"p50": 12.4, "p99": 24.4, "longest": 24.8}
    assert [row["strategy"] for row in result["runs"]] == ["unshaped", *SCENE[4:]]


@pytest.mark.parametrize("columns", [52, 60, 80, 132])
def test_a_narrow_terminal_still_shows_every_number(columns, terminal):
    code, text = terminal("simulate", *SCENE, COLUMNS=str(columns), NO_COLOR="1")
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
    assert max(map(len, lines)) <= columns
    assert any(re.search(r"200 +0 +5 +200 +12\.4 s +24\.4 s$", line) for line in lines)


def test_max_wait_refuses_calls_that_would_wait_longer(run):
    report = json.loads(run("simulate", *SCENE, "--max-wait", "2s", "--json").stdout)
    assert report["runs"][3]["wait_s"]["longest"] == 2
    assert report["runs"][3]["refused"] == 200 - 4 * 11


def test_a_run_that_refuses_every_wait_shows_waits_of_zero(run):
    result = run("simulate", "--arrivals", "uniform:1/s", "shaper:1/h", "--max-wait", "0s", "--for", "2s")
    assert " ".join(result.stdout.splitlines()[-1].split()) == "shaper:1/h 1 1 1 0 s 0 s"


def test_the_seed_decides(run):
    scene = ("simulate", "--arrivals", "poisson:20/s", "gcra:10/s+5", "shaper:10/s")
    assert run(*scene, "--seed", "3").stdout == run(*scene, "--seed", "3").stdout
    assert run(*scene, "--seed", "3").stdout != run(*scene, "--seed", "4").stdout
    assert run(*scene).stdout == run(*scene, "--seed", "0").stdout


def raced(*texts, arrivals="burst:8 every 2s", length="4s", seed=0):
    contenders = [Contender.parse(text) for text in texts]
    return Race.run(Arrivals.parse(arrivals, length, seed), contenders, None)


def test_a_sketch_shows_arrivals_and_departures():
    lines = [line.plain.rstrip() for line in sketch(raced("shaper:2/s"), 19, plain=True)]
    assert lines == [
        "unshaped",
        "      8 |#.#".replace(".", " "),
        "        |# #",
        "        |# #",
        "        |# #",
        "      0 +-------- 8 s",
        "shaper:2/s",
        "      8 |. .",
        "        |. .",
        "        |. .",
        "        |########",
        "      0 +-------- 8 s",
        "# left  . came, did not leave then  column: 1 s  full height: 8 calls",
    ]


@given(instants.filter(bool), st.integers(30, 120))
def test_a_sketch_is_as_high_as_its_data(arrivals, width):
    came = Arrivals("made up", arrivals, 0, 4 * SECOND_US + 1)
    race = Race.run(came, [Contender.parse("shaper:4/s")], None)
    lines = [line.plain for line in sketch(race, width, plain=False)]
    columns = Columns.over(race.length_us, width - 9)
    drawn = [race.counts(run, columns) for run in race.runs]
    most = max(map(max, drawn))
    for index, left in enumerate(drawn):
        rows = lines[index * (HEIGHT + 2) + 1 :][:HEIGHT]
        for column, count in enumerate(left):
            cells = [row[9 + column] for row in rows]
            eighths = sum("▁▂▃▄▅▆▇█".find(cell) + 1 for cell in cells)
            assert abs(eighths - 8 * HEIGHT * count / most) <= 1


def heights(stairs, edges):
    """The height of the stairs in each column."""
    data = stairs.get_data()
    assert (data.edges[0], data.edges[-1]) == (edges[0], edges[-1])
    return [int(data.values[bisect_right(data.edges, edge) - 1]) for edge in edges[:-1]]


def test_the_picture_has_the_data_of_the_runs():
    race = raced("gcra:2/s+3", "shaper:2/s", "fixed:5/s")
    drawn = figure(race)
    columns = Columns.over(race.length_us, 120)
    edges = [index * columns.width_us / SECOND_US for index in range(columns.number + 1)]
    came = race.counts(race.runs[0], columns)
    *rows, total = drawn.axes
    assert len(rows) == len(race.runs) == 4
    for row, run in zip(rows, race.runs, strict=True):
        behind, front = row.patches
        assert heights(behind, edges) == came
        assert heights(front, edges) == race.counts(run, columns)
        assert [text.get_text() for text in row.get_legend().get_texts()] == ["arrivals", f"left: {run.name}"]
        assert row.get_ylabel() == "calls per\n100 ms"
        assert row.get_ylim()[1] > max(came)
    for line, run in zip(total.lines, race.runs, strict=True):
        assert list(line.get_xdata()) == edges
        assert list(line.get_ydata()) == [0, *accumulate(race.counts(run, columns))]
    assert [text.get_text() for text in total.get_legend().get_texts()] == [run.name for run in race.runs]
    assert total.get_xlabel() == "time since the start (s)"
    assert total.get_ylabel() == "calls that have left"


@pytest.mark.parametrize(
    ("length", "unit"), [("2min", "s"), ("10min", "minutes"), ("5h", "hours"), ("9d", "days")]
)
def test_time_is_shown_in_a_fitting_unit(length, unit):
    total = figure(raced("quota:3/day", arrivals="burst:1 every 30s", length=length)).axes[-1]
    assert total.get_xlabel() == f"time since the start ({unit})"
    assert 1 < total.get_xlim()[1] <= 180


def test_lines_differ_in_style_as_well_as_in_colour():
    race = raced(*[f"gcra:{n}/s" for n in range(1, 12)])
    lines = figure(race).axes[-1].lines
    looks = {(line.get_color(), str(style)) for line, style in zip(lines, STYLES * 2, strict=False)}
    assert len(looks) == len(lines) == 12
    assert len(set(map(str, STYLES))) == len(STYLES)
    assert math.lcm(len(COLOURS), len(STYLES)) == len(COLOURS) * len(STYLES)


@pytest.mark.parametrize("texts", [["gcra:1/s"], ["shaper:10/s; 1000/min; 100000/day+3", *["fixed:5/s"] * 8]])
def test_nothing_is_cut_off(texts):
    drawn = figure(raced(*texts))
    drawn.draw_without_rendering()
    inside = drawn.get_tightbbox()
    assert inside.x0 >= 0
    assert inside.y0 >= 0
    assert inside.x1 <= drawn.get_figwidth()
    assert inside.y1 <= drawn.get_figheight()


@pytest.mark.parametrize(
    ("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.PNG", b"\x89PNG")]
)
def test_a_picture_is_the_same_each_time(name, begins, tmp_path, run):
    first, second = tmp_path / name, tmp_path / f"again-{name}"
    result = run("simulate", *SCENE, "--out", str(first))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == f"drawn: {first}"
    assert first.read_bytes().startswith(begins)
    save(raced(*SCENE[4:], arrivals=SCENE[1], length="20s"), str(second))
    assert first.read_bytes() == second.read_bytes()


def test_a_picture_of_three_strategies_is_small_and_has_letters(tmp_path):
    save(
        raced("gcra:10/s+20", "shaper:10/s", arrivals="poisson:12.75/s", length="60s"),
        str(tmp_path / "a.svg"),
    )
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert len(svg) < 40_000
    assert ">left: shaper:10/s</text>" in svg
    assert ">arrivals poisson:12.75/s, and when the calls leave</text>" in svg


@given(st.lists(st.floats(0, 1e4).map("{:.6f}".format), min_size=2, max_size=20))
def test_compacting_moves_nothing_by_more_than_a_tenth(numbers):
    points = " \nL ".join(f"{x} {y}" for x, y in zip(numbers[::2], numbers[1::2], strict=False))
    svg = f'<g>\n    <path d="M {points} \nz\n"/>\n    <text>0.125  {numbers[0]}</text>\n</g>'
    path, text = re.findall(r"<(?:path|text).*?(?:/>|</text>)", compact(svg), re.DOTALL)
    kept = [float(number) for number in re.findall(r"[\d.]+", path)]
    assert kept == pytest.approx([float(number) for number in re.findall(r"[\d.]+", points)], abs=0.1)
    assert path.count("L") == points.count("L")
    assert text == f"<text>0.125  {numbers[0]}</text>"


def test_json_and_a_picture_go_together(tmp_path, run):
    result = run("simulate", *SCENE, "--json", "--out", str(tmp_path / "a.svg"))
    assert json.loads(result.stdout)["calls"] == 200
    assert (tmp_path / "a.svg").exists()
