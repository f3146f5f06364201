"""A command on a terminal of its own: what it shows, and keys typed into it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

PATIENCE_S = 30.0
"""Longer than any event takes: only a failing test waits this long."""
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """The `shapekit` command with these arguments, on a terminal of this size."""

    def __init__(self, *args, rows=40, columns=100, **environment):
        self._terminal, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.first_modes = termios.tcgetattr(other)
        """How the terminal treated typed characters before the command began."""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "shapekit.cli", *map(str, args)],
            stdin=other,
            stdout=other,
            stderr=other,
            env=_environment(environment),
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads run yet
            start_new_session=True,
        )
        os.close(other)
        self.raw = ""

    @property
    def text(self):
        """All text ever shown, without control sequences."""
        return _STEERING.sub("", self.raw)

    def until(self, *words):
        """Wait until all of these were shown."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(word in self.text for word in words):
            assert self._read(deadline), f"ended without {words}: {self.text[-2000:]}"

    def press(self, keys):
        os.write(self._terminal, keys.encode())

    def modes(self):
        """How the terminal treats typed characters now."""
        return termios.tcgetattr(self._terminal)

    def end(self):
        """Wait until it ends; returns its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            """Wait until no process has the terminal any more."""
        return self.process.wait(PATIENCE_S)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def _read(self, deadline):
        ready, _, _ = select.select([self._terminal], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"nothing happens any more: {self.text[-2000:]}"
        try:
            data = os.read(self._terminal, 65_536)
        except OSError:
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


def shapekit(*args, **environment):
    """Run the command where there is no terminal."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "shapekit.cli", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        env=_environment(environment),
        check=False,
    )


def _environment(more):
    """The environment of a process: only what the test sets can change what the process prints."""
    silent = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "SHAPEKIT_STORE"}
    kept = {name: value for name, value in os.environ.items() if name not in silent}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


def complaint(result):
    """The one line of a command that ended because it could not do its work."""
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("shapekit: ")
    return line
