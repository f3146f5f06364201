"""The cost that a wrapper adds to a request.

Requests go to the least server there is, in a process of its own, and none ever waits for its slot. The bare
client and the shaped one take turns, pair by pair, so that a noisy moment falls on both.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import aiohttp
import httpx
import redis.asyncio
import requests

from shapekit import RedisStore
from shapekit.integrations.aiohttp import shaped_middleware
from shapekit.integrations.httpx import ShapedTransport

from ..redis_server import RedisServer
from .library import offering, words
from .progress import say
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "http"
FAR = "1_000_000/s"
CALLERS = 64
WARM_UP = 50
METHOD = f"""
A shaped client that never waits against the bare one, in turns, with a server on loopback that answers at
once. Ratios are of median requests, or of throughputs. Last, {CALLERS} requests at once in one aiohttp
session, and a rate on Redis.
"""
RATIO, BARE = "shaped / bare", "bare"
COLUMNS = [Column(RATIO, "×", 3), Column(BARE, "µs", 0)]
CROWD_COLUMNS = [Column(RATIO, "×", 3), Column(BARE, "", 0)]

Rounds: TypeAlias = dict[str, list[float]]


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server."""
    command = [sys.executable, str(Path(__file__).with_name("http_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        process.communicate()


class Pairs:
    """Two calls in turns, and the time of each."""

    def __init__(self, bare: Callable[[], Any], shaped: Callable[[], Any], effort: Effort) -> None:
        self._orders = ((bare, shaped), (shaped, bare))
        self._rounds = 2 * effort.rounds
        self._pairs = max(20, effort.of(300))
        self._taken: list[dict[Callable[[], Any], list[float]]] = []

    def turns(self) -> Iterator[tuple[Callable[[], Any], Callable[[float], None]]]:
        """The next call to make, and where to note its seconds."""
        for number in range(self._rounds + 1):
            gc.collect()
            taken: dict[Callable[[], Any], list[float]] = {call: [] for call in self._orders[0]}
            for pair in range(self._pairs if number else WARM_UP):
                for call in self._orders[pair % 2]:
                    yield call, taken[call].append
            if number:
                self._taken.append(taken)

    def summary(self) -> Rounds:
        """The ratio of each round, and the median µs of its bare requests."""
        bare, shaped = self._orders[0]
        return {
            RATIO: [median(taken[shaped]) / median(taken[bare]) for taken in self._taken],
            BARE: [median(taken[bare]) * 1e6 for taken in self._taken],
        }


def sync_pairs(bare: Callable[[], Any], shaped: Callable[[], Any], effort: Effort) -> Rounds:
    """The rounds of two calls."""
    both = Pairs(bare, shaped, effort)
    for call, note in both.turns():
        start = time.perf_counter()
        call()
        note(time.perf_counter() - start)
    return both.summary()


async def async_pairs(
    bare: Callable[[], Awaitable[Any]], shaped: Callable[[], Awaitable[Any]], effort: Effort
) -> Rounds:
    """`sync_pairs`, awaitable."""
    both = Pairs(bare, shaped, effort)
    for call, note in both.turns():
        start = time.perf_counter()
        await call()
        note(time.perf_counter() - start)
    return both.summary()


def httpx_sync(url: str, effort: Effort) -> Rounds:
    """One httpx.Client beside another."""
    with httpx.Client() as bare, httpx.Client(transport=ShapedTransport(rate=FAR)) as shaped:
        return sync_pairs(lambda: bare.get(url), lambda: shaped.get(url), effort)


async def httpx_async(url: str, make: Callable[[], httpx.AsyncBaseTransport], effort: Effort) -> Rounds:
    """One httpx.AsyncClient beside another."""
    async with httpx.AsyncClient() as bare, httpx.AsyncClient(transport=make()) as shaped:
        return await async_pairs(lambda: bare.get(url), lambda: shaped.get(url), effort)


def requests_sync(url: str, make: Callable[[], requests.adapters.BaseAdapter], effort: Effort) -> Rounds:
    """One requests.Session beside another."""
    with requests.Session() as bare, requests.Session() as shaped:
        shaped.mount("http://", make())
        return sync_pairs(lambda: bare.get(url), lambda: shaped.get(url), effort)


async def httpx_redis(url: str, redis_server: RedisServer, effort: Effort) -> list[Line]:
    """An httpx.AsyncClient shaped on Redis beside a bare one, and beside one that makes a trip to Redis."""
    store = RedisStore.from_url(redis_server.url)
    transport = ShapedTransport(rate=FAR, store=store, name="bench")
    trips = redis.asyncio.Redis(port=redis_server.port)
    async with httpx.AsyncClient() as bare, httpx.AsyncClient(transport=transport) as shaped:

        async def with_a_trip() -> None:
            await trips.ping()
            await bare.get(url)

        beside_bare = await async_pairs(lambda: bare.get(url), lambda: shaped.get(url), effort)
        beside_trip = await async_pairs(with_a_trip, lambda: shaped.get(url), effort)
    await trips.aclose()
    await store.aclose()
    return [
        Line("shapekit", "httpx.AsyncClient on Redis", beside_bare),
        Line("shapekit", "the same / bare client + bare PING", beside_trip),
    ]


async def aiohttp_pairs(url: str, effort: Effort) -> Rounds:
    """One aiohttp.ClientSession beside another."""

    async def get(session: aiohttp.ClientSession) -> None:
        async with session.get(url) as response:
            await response.read()

    async with (
        aiohttp.ClientSession() as bare,
        aiohttp.ClientSession(middlewares=[shaped_middleware(rate=FAR)]) as shaped,
    ):
        return await async_pairs(lambda: get(bare), lambda: get(shaped), effort)


async def aiohttp_crowd(url: str, effort: Effort) -> list[Line]:
    """Many requests at once in one aiohttp.ClientSession beside another.

    Throughput suffers from other work of the machine; what a request costs this thread hardly does.
    """
    each = max(1, effort.of(8 * 300) // CALLERS)

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in range(each):
            async with session.get(url) as response:
                await response.read()

    async def crowd(session: aiohttp.ClientSession) -> tuple[float, float]:
        gc.collect()
        start, start_cpu = time.perf_counter(), time.thread_time()
        await asyncio.gather(*[work(session) for _ in range(CALLERS)])
        calls = each * CALLERS
        return calls / (time.perf_counter() - start), (time.thread_time() - start_cpu) / calls * 1e6

    async with (
        aiohttp.ClientSession() as bare,
        aiohttp.ClientSession(middlewares=[shaped_middleware(rate=FAR)]) as shaped,
    ):
        seen = []
        for number in range(2 * effort.rounds + 1):
            order = (bare, shaped) if number % 2 else (shaped, bare)
            seen.append({session: await crowd(session) for session in order})
    del seen[0]  # that one opened the connections
    names = ("requests a second", "processor time of a request, µs")
    return [
        Line(
            "shapekit",
            f"aiohttp, {CALLERS} at once, {name}",
            {
                RATIO: [done[shaped][part] / done[bare][part] for done in seen],
                BARE: [done[bare][part] for done in seen],
            },
        )
        for part, name in enumerate(names)
    ]


def attempted(library: str, name: str, run: Callable[[], Rounds]) -> Line:
    """A line, or the reason why it is none."""
    say(f"{library} {name}")
    try:
        return Line(library, name, run())
    except Exception as error:
        if library == "shapekit":
            raise
        return Line(library, name, failed=words(error))


def measure(effort: Effort) -> Group:
    """Every wrapper."""
    with RedisServer() as redis_server, server() as url:
        lines = [attempted("shapekit", "httpx.Client", lambda: httpx_sync(url, effort))]
        over_httpx, no_httpx = offering("httpx_transports")
        for library, module in over_httpx:
            for name, make in module.httpx_transports().items():
                lines.append(
                    attempted(
                        library.name,
                        f"httpx.AsyncClient, {name}",
                        lambda make=make: asyncio.run(httpx_async(url, make, effort)),
                    )
                )
        over_requests, no_requests = offering("requests_adapters")
        for library, module in over_requests:
            for name, make in module.requests_adapters().items():
                lines.append(
                    attempted(
                        library.name,
                        f"requests.Session, {name}",
                        lambda make=make: requests_sync(url, make, effort),
                    )
                )
        lines.append(
            attempted(
                "shapekit", "aiohttp, shaped_middleware", lambda: asyncio.run(aiohttp_pairs(url, effort))
            )
        )
        able = {line.library for line in lines}
        lines += {
            line.library: line for line in (*no_httpx, *no_requests) if line.library not in able
        }.values()
        say("aiohttp")
        crowds = asyncio.run(aiohttp_crowd(url, effort))
        say("httpx on Redis")
        shared = asyncio.run(httpx_redis(url, redis_server, effort))
    tables = [
        Table("A request", COLUMNS, lines, drawn=RATIO),
        Table(f"{CALLERS} requests at once", CROWD_COLUMNS, crowds),
        Table("A request, its rate on Redis", COLUMNS, shared),
    ]
    return Group(NAME, "HTTP clients", METHOD, tables, goals(tables[0]))


def goals(table: Table) -> list[Goal]:
    """Each goal, and what was measured."""
    names = (
        "httpx.Client",
        "httpx.AsyncClient, ShapedTransport",
        "aiohttp, shaped_middleware",
        "requests.Session, ShapedAdapter",
    )
    return [
        Goal(f"{name}, median request, shaped / bare", table.line("shapekit", name).median(RATIO), 1.03)
        for name in names
    ]
