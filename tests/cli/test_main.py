"""The command as a whole: its subcommands, its messages about mistakes, and how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from io import StringIO

import click
import pytest
from rich.console import Console

from shapekit import GCRA, ConfigError, Gate, SQLiteStore, StoreUnavailableError
from shapekit.cli.main import COMMANDS, CommandError, cli, command_error
from shapekit.cli.output import bar, table
from shapekit.errors import missing

from .conftest import COMMAND, environment

COLOUR = re.compile(r"\x1b\[(?:\d+;)*3\d")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONG = ("plan", "10/s; 1000/h", "--calls", "1000000")
"""Takes so long that it has to be interrupted."""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60, check=False
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_is_in_the_module_that_the_table_names(name, run):
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert "--json" in [option for parameter in command.params for option in parameter.opts]
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"shapekit {name}" in result.stdout or f" {name} [OPTIONS]" in result.stdout


def test_help_lists_all_and_loads_none():
    code = (
        "import sys\nfrom shapekit.cli.main import cli\n"
        "try:\n    cli(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'rich', 'matplotlib', 'redis', 'sqlite3'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = python(code)
    assert result.stderr == ""
    assert result.returncode == 0
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", result.stdout, re.MULTILINE)


def test_the_command_is_a_process(process):
    version = process("--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.startswith("shapekit, version ")
    unknown = process("plann")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr == "shapekit: No such command 'plann'; see shapekit --help\n"


def test_a_missing_subcommand_is_a_mistake_that_shows_the_help(run):
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--nope"], "No such option"),
        (["plan", "--nope"], "see shapekit plan --help"),
        (["plan", "10/s", "--calls", "many"], "'many' is not a valid integer"),
        (["check"], "Missing argument"),
    ],
)
def test_a_mistake_is_reported_in_one_line(args, part, complaint):
    assert part in complaint(*args)


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_package_is_named_with_the_line_that_installs_it(package):
    result = python(
        f"import sys; sys.modules[{package!r}] = None\n"
        "sys.argv = ['shapekit', 'plan', '1/s', '--calls', '1']\n"
        "from shapekit.cli.__main__ import main; main()"
    )
    assert result.returncode == 2
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("shapekit: ")
    assert 'pip install "shapekit[cli]"' in line


@pytest.mark.parametrize("name", COMMANDS)
def test_no_subcommand_needs_redis_before_it_is_given_one(name):
    result = python(
        f"import sys; sys.modules['redis'] = None; sys.argv = ['shapekit', {name!r}, '--help']\n"
        "from shapekit.cli.__main__ import main; main()"
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_missing_redis_is_named_with_the_line_that_installs_it():
    result = python(
        "import sys; sys.modules['redis'] = None\n"
        "sys.argv = ['shapekit', 'top', '--store', 'redis://localhost']\n"
        "from shapekit.cli.__main__ import main; main()"
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"shapekit: {missing('RedisStore', 'redis')}\n"


def test_a_subcommand_of_ours_that_does_not_load_is_no_mistake_of_the_user():
    result = python(
        "import sys; sys.modules['shapekit.cli.plan'] = None; sys.argv = ['shapekit', 'plan']\n"
        "from shapekit.cli.__main__ import main; main()"
    )
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CommandError("two\n  lines"), "two lines"),
        (ConfigError("rate", "x", "is bad", "mend it"), "rate='x' is bad; mend it"),
        (StoreUnavailableError("gone"), "gone"),
        (
            missing("--out", "plot"),
            '--out needs a package that is not installed: pip install "shapekit[plot]"',
        ),
        (
            FileNotFoundError(2, "No such file or directory", "x.csv"),
            "x.csv: No such file or directory; check the path and who may use it",
        ),
        (OSError("no room"), "no room"),
    ],
)
def test_an_error_that_the_user_can_mend_is_a_complaint(error, line, capsys):
    complaint = command_error(error)
    assert complaint is not None
    assert complaint.exit_code == 2
    complaint.show()
    assert capsys.readouterr() == ("", f"shapekit: {line}\n")


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), ImportError("x", name="shapekit.rate")])
def test_an_internal_error_is_no_complaint(error):
    assert command_error(error) is None


def test_an_internal_error_has_a_traceback(run, monkeypatch):
    monkeypatch.setattr("shapekit.cli.plan.PlannedDepartures", None)
    with pytest.raises(TypeError):
        run("plan", "1/s", "--calls", "1")


def test_ctrl_c_ends_it_quietly(terminal):
    code, text = terminal(*LONG, typed=("playing", "\x03"))
    assert code == 130
    assert "Traceback" not in text
    assert "leaves after" not in text


def test_a_terminal_has_colours_unless_they_are_not_wanted(terminal):
    simulation = ("simulate", "--arrivals", "uniform:5/s", "--for", "2s", "gcra:1/s")
    code, coloured = terminal(*simulation)
    assert code == 0
    assert COLOUR.search(coloured)
    code, bare = terminal(*simulation, NO_COLOR="1")
    assert code == 0
    assert not COLOUR.search(bare)
    assert "█" in bare


def test_json_is_json_on_a_terminal_too(terminal):
    code, text = terminal("plan", "10/s", "--calls", "3", "--json")
    assert code == 0
    assert json.loads(text)["calls"] == 3


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_json_has_each_key_whole_and_escapes_control_characters(encoding, tmp_path):
    file = tmp_path / "limits.db"
    keys = {"\x9b2J", "\u202e", "\udc80", "\N{SNOWMAN}", "\N{GREEK SMALL LETTER PI}"}
    with closing(SQLiteStore(file)) as store:
        gate = Gate(GCRA("1/h"), store=store, name="odd")
        for key in keys:
            gate.check(key)
    result = subprocess.run(
        [*COMMAND, "top", "--store", file, "--json"],
        env=environment(PYTHONIOENCODING=encoding),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert {row["key"] for row in json.loads(result.stdout)} == {f"odd:{key}" for key in keys}
    assert result.stdout.decode("ascii").replace("\n", "").isprintable()


def test_a_pipe_has_no_colours(process):
    result = process("simulate", "--arrivals", "uniform:5/s", "--for", "2s", "gcra:1/s")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "█" in result.stdout


def test_characters_outside_the_encoding_of_the_output_are_replaced(process):
    result = process(
        "simulate", "--arrivals", "uniform:5/s", "--for", "2s", "gcra:1/s", PYTHONIOENCODING="ascii"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    assert "#" in result.stdout


def test_a_name_outside_the_encoding_of_the_output_is_replaced(process, tmp_path):
    file = tmp_path / "shapekit.toml"
    file.write_text('["café"]\nrate = "1/s"\n', encoding="utf-8")
    result = process("check", str(file), PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("[caf?]\n")


@pytest.mark.parametrize("columns", [40, 60, 100, 200])
def test_no_line_is_longer_than_the_terminal(columns, terminal):
    code, text = terminal("plan", "10/s", "--calls", "5000", COLUMNS=str(columns))
    assert code == 0
    assert max(len(line) for line in ESCAPE.sub("", text).splitlines()) <= columns


def test_a_reader_that_closes_the_pipe_causes_no_traceback():
    result = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m shapekit.cli plan 10/s --calls 5 | true; exit ${{PIPESTATUS[0]}}",
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        ("plan 10/s --calls 5 >&-", 0, ""),
        ("plan 10/s --calls 5 2>&- >/dev/null", 0, ""),
        ("plan 10/x --calls 5 2>&-", 2, ""),
        ("reset key --store limits.db <&-", 2, "shapekit: "),
    ],
)
def test_a_standard_stream_may_be_closed(tmp_path, command, code, complaint):
    Gate(GCRA("1/s"), store=SQLiteStore(tmp_path / "limits.db"), name="key").check()
    done = subprocess.run(
        f"{sys.executable} -m shapekit.cli {command}",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr[:10] == complaint


@pytest.mark.parametrize(("part", "text", "letters"), [(0, "", ""), (0.5, "██", "##"), (1, "████", "####")])
def test_a_bar_is_as_long_as_its_part(part, text, letters):
    assert bar(part, 4) == text
    assert bar(part, 4, plain=True) == letters


def test_a_bar_counts_in_eighths_and_never_leaves_its_place():
    assert [bar(eighth / 8, 1) for eighth in range(9)] == ["", *"▏▎▍▌▋▊▉█"]
    assert (bar(-1, 4), bar(7, 4)) == ("", "████")


def test_on_a_narrow_terminal_names_fold_and_numbers_stay_whole():
    page = Console(file=StringIO(), width=20)
    page.print(table(("name", "wait"), [("alice", "12 min 30 s 5 ms")], numbers=("wait",)))
    lines = [line.strip() for line in page.file.getvalue().splitlines()]
    assert lines[-3:] == ["al  12 min 30 s 5 ms", "ic", "e"]
