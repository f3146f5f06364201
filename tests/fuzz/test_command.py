"""The command does what its words say, or prints one line on stderr that says why not; never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from shapekit import GCRA, Gate, Shaper, SQLiteStore
from shapekit.cli.main import COMMANDS, cli

from .near import SPLINTERS, anything, texts
from .test_policies import GOOD_FILE
from .test_rates import DURATIONS, RATES

NUMBERS = ("1", "7", "120", "0", "-1", "1.5", "999999999999999999999", "١", "1e3", "")
TIMES = (
    "2026-11-21T09:00",
    "2026-11-21",
    "1999-01-01T00:00:00+02:00",
    "9999-12-31T23:59:59",
    "0001-01-01",
    "",
)
ZONES = ("Europe/Berlin", "UTC", "America/New_York", "Europe", "/etc/passwd", "../UTC", "posixrules", "")
QUOTAS = ("1_000_000/month", "5/day", "7/week", "5/fixed:30d", "9/rolling:10s", "0/day", "5/blue")
COMPETITORS = ("shaper:10/s", "gcra:4/s+10", "fixed:50/10s", "log:50/10s", "bucket:3/s", "shaper:5/s; 20/min")
ARRIVALS = ("poisson:20/s", "uniform:7/s", "burst:5 every 2s", "trace.csv", "trace.jsonl", "burst:0 every 0s")
# `demo` starts processes, whatever its options are; tests/cli has those.
PLACES = {
    "plan": (RATES, ("--calls", NUMBERS), ("--nth", NUMBERS), ("--quota", QUOTAS), ("--burst", NUMBERS),
             ("--cost", NUMBERS), ("--start", TIMES), ("--tz", ZONES)),
    "simulate": (COMPETITORS, ("--arrivals", ARRIVALS), ("--for", ("1s", "30s", "5 us", "2min", "0", "71y")),
                 ("--max-wait", DURATIONS), ("--seed", NUMBERS), ("--out", ("a.gif", "missing/a.svg", ""))),
    "check": (("{good}", "{store}", "{missing}", "{folder}"),),
    "top": ((), ("--store", ("{store}", "{good}", "{missing}", "{folder}", "ftp://x")),
            ("--sort", ("wait", "key", "colour")), ("--filter", ("gate", "", "{"))),
    "hold": (("shaper:somebody", "gate:somebody", "nobody", "30s", "shaper:"),
             ("--store", ("{store}", "{good}"))),
    "resume": (("shaper:somebody", "nobody"), ("--store", ("{store}", "{missing}"))),
    "reset": (("gate:somebody", "shaper:somebody"), ("--store", ("{store}", "{folder}"))),
}  # fmt: skip


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """A subcommand with some of its arguments and options, nearly right."""
    name = draw(st.sampled_from([*PLACES, "plan", "simulate"]))
    positional, *options = PLACES[name]
    words = [name]
    if positional:
        words += draw(st.lists(near(positional), max_size=3))
    for option, valid in options:
        if draw(st.booleans()) or option in ("--calls", "--arrivals", "--store"):
            words += [option, draw(near(valid))]
    if draw(st.booleans()):
        words.append("--json")
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from(SPLINTERS) | st.just("--blue")))
    # What an operating system can hand over.
    return [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]


def near(valid: tuple[str, ...]) -> st.SearchStrategy[str]:
    right = st.sampled_from(valid)
    return st.one_of(right, right, right, anything(valid))


class World:
    """A folder with a store, a good file, and the command."""

    def __init__(self, folder: Path) -> None:
        self.places = {
            "{good}": str(folder / "good.toml"),
            "{store}": str(folder / "limits.db"),
            "{missing}": str(folder / "missing.db"),
            "{folder}": str(folder),
        }
        (folder / "good.toml").write_text(GOOD_FILE)

    def run(self, words: list[str]) -> Result:
        for name, place in self.places.items():
            words = [word.replace(name, place) for word in words]
        return CliRunner(env={"SHAPEKIT_STORE": "", "COLUMNS": "100"}).invoke(cli, words)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("command"))
    store = SQLiteStore(world.places["{store}"])
    Gate(GCRA("1/day", burst=5), name="gate", store=store).check("somebody")
    Shaper("1/min", name="shaper", store=store).reserve("somebody")
    store.close()
    return world


def check_ended(result: Result, words: list[Any]) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
    assert result.exit_code in (0, 2), (words, result.output)
    if result.exit_code == 2:
        lines = result.stderr.splitlines()
        assert lines, words
        assert all(line.startswith("shapekit: ") for line in lines if "check" in words or len(lines) == 1)
        assert "Traceback" not in result.output
        assert len(result.output) < 100_000
    elif "--json" in words and not {"-h", "--help", "--version"} & set(words):
        json.loads(result.stdout)


@given(words=commands())
def test_a_command_is_done_or_explained_in_one_line(world: World, words: list[str]) -> None:
    check_ended(world.run(words), words)


@given(
    words=st.lists(st.sampled_from([*COMMANDS, "--json", "-h", "--version", "--", "-"]) | st.text(max_size=6))
)
def test_words_that_are_no_command(world: World, words: list[str]) -> None:
    if "demo" not in words or "-h" in words:
        check_ended(world.run(words), words)


@given(text=texts([GOOD_FILE, '[a]\nrate = "10/s"\n[b]\nrate = 0\n']))
def test_files_of_policies(world: World, text: str) -> None:
    path = Path(world.places["{folder}"]) / "fuzzed.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for words in (["check", str(path)], ["check", str(path), "--json"]):
        result = world.run(words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code in (0, 2)
        assert bool(result.exit_code) == bool(result.stderr)
        assert all(line.startswith("shapekit: ") for line in result.stderr.splitlines())


@given(text=anything(["1.5\n2\n", "at\n2026-11-21T09:00:00Z\n3\n", "time,x\n1,2\n", '{"at": 5}\n7\n"9"\n']))
def test_traces(world: World, text: str) -> None:
    for kind in ("csv", "jsonl"):
        path = Path(world.places["{folder}"]) / f"trace.{kind}"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        words = ["simulate", "--arrivals", str(path), "shaper:10/s", "--for", "10s"]
        check_ended(world.run(words), words)
