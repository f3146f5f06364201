"""The demo's processes: the API with its log, and the workers. None outlives the demo."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from shapekit.cli.complaint import Complaint
from shapekit.cli.demo_log import SECOND_NS, Call, Log

WORKERS = 3
FRAME_S = 0.1
PATIENCE_S = 5.0
"""How long a process may take to end by itself."""


class Crew:
    """Starts processes; each lives until its standard input ends, so also when this one is killed."""

    def __init__(self, folder: Path) -> None:
        """Their complaints are written into `folder`."""
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._calls: list[Call] = []
        self._port = ""
        self._follower: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            api = self._started("shapekit.cli.demo_server")
            self._port = self._said(api)
        except BaseException:
            self._end()
            raise
        self._follower = threading.Thread(target=self._follow, args=(api,), daemon=True)
        self._follower.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, seconds: float, where: Sequence[str]) -> Iterator[Log]:
        """Let the workers call, shaped on the store at `where` or unshaped; yields the log so far."""
        workers = [
            self._started("shapekit.cli.demo_worker", str(number + 1), self._port, *where)
            for number in range(WORKERS)
        ]
        for worker in workers:
            self._said(worker)
        first, began_ns = len(self._calls), time.monotonic_ns()
        ends_ns = began_ns + round(seconds * SECOND_NS)
        for worker in workers:
            _tell(worker, "go")
        while (left_ns := ends_ns - time.monotonic_ns()) > 0:
            time.sleep(min(FRAME_S, left_ns / SECOND_NS))
            yield Log(self._calls[first:], began_ns, time.monotonic_ns() - began_ns)
        for worker in workers:
            _hang_up(worker)
        for worker in workers:
            if worker.wait(PATIENCE_S):
                raise self._trouble(worker)
        calls = [call for call in self._calls[first:] if call.arrived_ns < ends_ns]
        yield Log(calls, began_ns, ends_ns - began_ns)

    def _started(self, module: str, *args: str) -> subprocess.Popen[str]:
        with (self._folder / f"{len(self._processes)}.txt").open("w") as complaints:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", module, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                encoding="utf-8",
            )
        self._processes.append(process)
        return process

    def _said(self, process: subprocess.Popen[str]) -> str:
        """The first line of a process: that it is ready."""
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        line = process.stdout.readline().strip()
        if not line:
            process.wait(PATIENCE_S)
            raise self._trouble(process)
        return line

    def _follow(self, api: subprocess.Popen[str]) -> None:
        for line in api.stdout or ():
            self._calls.append(Call.parse(line))

    def _trouble(self, process: subprocess.Popen[str]) -> Complaint:
        text = (self._folder / f"{self._processes.index(process)}.txt").read_text().strip()
        return Complaint(
            f"a process of the demo ended: {text.splitlines()[-1] if text else 'without a word'}"
        )

    def _end(self) -> None:
        for process in self._processes:
            _hang_up(process)
        for process in self._processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._follower is not None:
            self._follower.join(PATIENCE_S)
        for process in self._processes:
            if process.stdout is not None:
                process.stdout.close()


def _tell(process: subprocess.Popen[str], word: str) -> None:
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.write(f"{word}\n")
            process.stdin.flush()


def _hang_up(process: subprocess.Popen[str]) -> None:
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
