"""A server on loopback that logs when requests arrive, and answers as the test sets it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

PATIENCE_S = 20.0


class Arrival(NamedTuple):
    """A request, as the server received it."""

    at: float
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: int
    """The port it came from: one for each connection."""


class Reply(NamedTuple):
    """An answer."""

    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: bytes = b"ok"


SILENCE = Reply(0)
"""No answer, while the connection stays open."""


class Server:
    """HTTP/1.1, keep-alive, in a thread of its own. `answer` is called in the order of arrival."""

    def __init__(self, answer: Callable[[Arrival], Reply] = lambda _: Reply()) -> None:
        self.answer = answer
        self.arrivals: list[Arrival] = []
        self.replies: list[Reply] = []
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> Server:
        self._thread.start()
        assert self._listening.wait(PATIENCE_S)
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[tuple[float, int]]:
        """When each request arrived, and how it was answered; without those to /warm."""
        both = zip(self.arrivals, self.replies, strict=True)
        return [(arrival.at, reply.status) for arrival, reply in both if arrival.path != "/warm"]

    @property
    def statuses(self) -> list[int]:
        return [reply.status for reply in self.replies]

    def wait_for(self, enough: Callable[[Server], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait until enough requests have arrived and were answered."""
        with self._news:
            assert self._news.wait_for(lambda: enough(self), patience_s), self.statuses

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _stop(self) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()
        self._done.set()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        self._listening.set()
        await self._done.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        at = time.monotonic()
        first, *lines = head.rstrip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self._body(reader, headers)
        arrival = Arrival(at, method, path, headers, body, writer.get_extra_info("peername")[1])
        with self._news:
            reply = self.answer(arrival)
            self.arrivals.append(arrival)
            self.replies.append(reply)
            self._news.notify_all()
        if reply is SILENCE:
            await self._done.wait()
            return False
        sent = {"Content-Length": str(len(reply.body)), **reply.headers}
        fields = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        writer.write(f"HTTP/1.1 {reply.status} Told\r\n{fields}\r\n".encode() + reply.body)
        await writer.drain()
        return headers.get("connection") != "close"

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", 0)))
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body


class Limit:
    """Admits `most` requests in any half-open second, and answers 429 to those beyond it; /warm is free."""

    def __init__(self, most: int, **headers: str) -> None:
        self.most = most
        self.headers = headers
        self._admitted: list[float] = []

    def __call__(self, arrival: Arrival) -> Reply:
        if arrival.path == "/warm":
            return Reply()
        self._admitted = [at for at in self._admitted if arrival.at - at < 1.0]
        if len(self._admitted) >= self.most:
            return Reply(429, {name.replace("_", "-"): value for name, value in self.headers.items()}, b"")
        self._admitted.append(arrival.at)
        return Reply()
