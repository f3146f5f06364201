"""The demo's workers: processes whose threads call the API as fast as they are let, one call after another.

Shaped and unshaped differ in one line. A worker says when it is ready, begins at the first line on its
standard input, and ends when that ends: so also when the demo is killed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from http.client import HTTPConnection, HTTPException
from typing import IO, Any, Self, cast

from shapekit.cli.demo.server import ASKED_AT, SECOND_NS, Api, Log
from shapekit.cli.group import Complaint
from shapekit.errors import StoreUnavailableError
from shapekit.shaper import Shaper

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
        self._api.close()

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
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", __name__, str(self._api.server_port), *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            bufsize=1,
            start_new_session=True,  # Ctrl-C is the demo's to hear, and it tells them
        )
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
