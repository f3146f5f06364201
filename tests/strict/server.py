"""A server that keeps to its limit strictly, in a process of its own: `python -m tests.strict.server LIMIT`.

It answers 429 with `Retry-After: 1` to each call that is one too many among those of the last second,
wherever that begins, by the instants at which they arrive. Calls that it has refused count like the others,
as they do for the strictest servers: a client that goes on calling is refused for longer. It prints its port,
ends with its input, and then prints all arrivals.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20.0
PAUSE_S = 1
"""The Retry-After of a refusal."""
_END = b"\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %d\r\nContent-Length: 0\r\n\r\n" % PAUSE_S


class Arrival(NamedTuple):
    """One call, as the server saw it."""

    at: float
    """When, on this machine's monotonic clock, in seconds."""
    refused: bool


class Log:
    """All arrivals so far, and whether the next one is one too many."""

    def __init__(self, limit: int) -> None:
        self.arrivals: list[Arrival] = []
        self._limit = limit
        self._second: deque[float] = deque()

    def refuses(self, at: float) -> bool:
        """Note a call that arrives, and return whether it is refused."""
        second = self._second
        while second and second[0] <= at - 1:
            second.popleft()
        second.append(at)
        refused = len(second) > self._limit
        self.arrivals.append(Arrival(at, refused))
        return refused


class Strict(asyncio.Protocol):
    """Answers once for each end of a request head; requests here have no body."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *heads, self._tail = (self._tail + data).split(_END)
        for _ in heads:
            self._transport.write(_REFUSED if self._log.refuses(time.monotonic()) else _OK)


class StrictServer:
    """The process, from the side that started it."""

    def __init__(self, limit: int) -> None:
        self._command = [sys.executable, "-m", "tests.strict.server", str(limit)]

    def __enter__(self) -> Self:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(self._command, cwd=ROOT, **pipes)
        self.pid = self._process.pid
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}/"
        return self

    def arrivals(self) -> list[Arrival]:
        """All arrivals; ends the server."""
        printed, _ = self._process.communicate(timeout=PATIENCE_S)
        return [Arrival(*arrival) for arrival in json.loads(printed)]

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


async def main(limit: int) -> None:
    log = Log(limit)
    server = await asyncio.get_running_loop().create_server(lambda: Strict(log), "127.0.0.1", 0)
    # The server makes no garbage, and a collection would delay arrivals.
    gc.disable()
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    json.dump(log.arrivals, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
