"""A worker of the demo: four threads that call the API as fast as they are let, one call after the other.

Shaped and unshaped differ in one line. It says when it is ready, begins at the first line on its standard
input, and ends when that ends.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPConnection, HTTPException
from typing import Any

from shapekit.cli.demo_log import ASKED_AT, WORKER
from shapekit.errors import StoreUnavailableError
from shapekit.shaper import Shaper

THREADS = 4
PAUSE_S = 0.1
"""How long a refused call rests before it is tried again."""
RATE = "50/s"
HEADROOM = 0.05
NAME = "demo"


class Worker:
    """Calls until it is stopped."""

    def __init__(self, number: int, port: int, turn: AbstractContextManager[Any]) -> None:
        self._port = port
        self._turn = turn
        self._number = str(number)
        self._stopped = threading.Event()
        self._begin = threading.Event()
        self.trouble: Exception | None = None
        self._threads = [threading.Thread(target=self._work) for _ in range(THREADS)]

    def start(self) -> None:
        """Connect, and be ready."""
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Call from now on."""
        self._begin.set()

    def stop(self) -> None:
        """Begin no more calls."""
        self._stopped.set()
        self._begin.set()

    def join(self) -> None:
        """Wait for the last answers."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        api = HTTPConnection("127.0.0.1", self._port, timeout=10)
        api.connect()
        self._begin.wait()
        try:
            while not self._stopped.is_set():
                self._call(api)
        except (StoreUnavailableError, HTTPException, OSError) as error:
            # Who is stopped in a wait hears that the store is closed.
            if not self._stopped.is_set():
                self.trouble = error
        finally:
            api.close()

    def _call(self, api: HTTPConnection) -> None:
        """One call, until it is accepted."""
        asked_ns = str(time.monotonic_ns())
        while not self._stopped.is_set():
            with self._turn:
                api.request("GET", "/", headers={ASKED_AT: asked_ns, WORKER: self._number})
            answer = api.getresponse()
            answer.read()
            if answer.status == 200:
                return
            self._stopped.wait(PAUSE_S)


def main() -> None:
    """Arguments: the worker's number, the port, and for shaping the store and its prefix."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's to hear, and it tells us
    number, port, *where = sys.argv[1:]
    shaper = Shaper(RATE, headroom=HEADROOM, name=NAME, store=store_at(*where)) if where else None
    worker = Worker(int(number), int(port), shaper or nullcontext())
    worker.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if sys.stdin.readline():
        worker.begin()
        sys.stdin.read()
    worker.stop()
    if shaper is not None:
        shaper.close()
    worker.join()
    if worker.trouble is not None:
        sys.exit(str(worker.trouble))


def store_at(where: str, prefix: str) -> Any:
    """The store that all workers share."""
    if "://" in where:
        from shapekit.stores.redis import RedisStore  # noqa: PLC0415 - only where it is asked for

        return RedisStore.from_url(where, prefix=prefix)
    from shapekit.stores.sqlite import SQLiteStore  # noqa: PLC0415 - only where it is asked for

    return SQLiteStore(where)


if __name__ == "__main__":
    main()
