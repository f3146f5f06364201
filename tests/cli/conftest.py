"""The `shapekit` command in this process, as a process, and as a process on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from shapekit import RedisStore, SQLiteStore
from shapekit.cli.main import cli

from ..redis_server import shared_server
from .screen import Screen

COMMAND = (sys.executable, "-m", "shapekit.cli")
SILENT = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "SHAPEKIT_STORE", "PYTHONIOENCODING"}


def environment(**more: str) -> dict[str, str]:
    """The environment of a process: only what the test sets can change what the process prints."""
    kept = {name: value for name, value in os.environ.items() if name not in SILENT}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


class Seen(NamedTuple):
    """How a process on a terminal ended, and what the terminal showed."""

    code: int
    text: str


@pytest.fixture(params=[pytest.param("redis", marks=pytest.mark.long), "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RedisStore | SQLiteStore, str]]:
    """A store, and its URL or path."""
    if request.param == "redis":
        where = f"{shared_server().url.rsplit('/', 1)[0]}/7"
        store: RedisStore | SQLiteStore = RedisStore.from_url(where)
    else:
        where = str(tmp_path / "limits.db")
        store = SQLiteStore(where)
    yield store, where
    store.close()
    if request.param == "redis":
        with shared_server().client(db=7) as client:
            client.flushdb()  # also what the store remembers of names


@pytest.fixture
def screens() -> Iterator[Callable[..., Screen]]:
    """Makes terminals, and ends what runs on them."""
    made: list[Screen] = []

    def make(*args: Any, **options: Any) -> Screen:
        made.append(Screen(*args, **options))
        return made[-1]

    yield make
    for screen in made:
        screen.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in this process; only its exit code may escape from it."""
    for name in SILENT:
        monkeypatch.delenv(name, raising=False)

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(cli, args)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def complaint(run: Callable[..., Result]) -> Callable[..., str]:
    """Run the command, expect exit code 2 and a single line on stderr; returns the line."""

    def invoke(*args: str) -> str:
        result = run(*args)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        [line] = result.stderr.splitlines()
        assert line.startswith("shapekit: ")
        return line

    return invoke


@pytest.fixture
def process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command as a process whose output is no terminal."""

    def start(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *args],
            capture_output=True,
            encoding="utf-8",
            env=environment(**more),
            timeout=60,
            check=False,
        )

    return start


@pytest.fixture
def terminal() -> Iterator[Callable[..., Seen]]:
    """Run the command on a terminal of 100 columns.

    With `typed`, types its second text as soon as the first is shown.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *args: str, typed: tuple[str, str] | None = None, command: tuple[str, ...] = COMMAND, **more: str
    ) -> Seen:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        child = subprocess.Popen(
            [*command, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**more),
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads run while tests do
        )
        started.append(child)
        os.close(theirs)
        seen = b""
        try:
            while chunk := _read(ours):
                seen += chunk
                if typed is not None and typed[0].encode() in seen:
                    os.write(ours, typed[1].encode())
                    typed = None
        finally:
            os.close(ours)
        return Seen(child.wait(timeout=60), seen.decode("utf-8", "replace").replace("\r\n", "\n"))

    yield start
    for child in started:
        if child.poll() is None:
            child.kill()
            child.wait()


def _take_terminal() -> None:
    # Typed characters, Ctrl-C included, go here.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux raises this where the other side has ended
        return b""
