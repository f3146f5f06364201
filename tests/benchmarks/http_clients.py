"""What a wrapper adds to a request: `python tests/benchmarks/http_clients.py`.

Needs what `run.py` needs, and the clients: `pip install -e ".[bench,all]"`.

Requests go to the least server there is, in a process of its own, and nothing ever waits for its turn. The
bare client and the shaped one take turns, pair by pair, so that a noisy moment falls on both. Each round has
a ratio of its own: of the medians of its requests, or of its throughputs. Said are the median of the rounds
and how far they spread; a goal that is missed is printed like one that is met.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
import httpx
import redis.asyncio
import requests
from run import VERDICTS, machine

from shapekit import RedisStore
from shapekit.integrations.aiohttp import shaped_middleware
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.requests import ShapedAdapter

sys.path.insert(0, str(Path(__file__).parent.parent))
from redis_server import RedisServer

FAR = "1_000_000/s"
CALLERS = 64
WARM_UP = 50


class Row(NamedTuple):
    """A comparison: the ratio of each round, and what the bare client took or did."""

    name: str
    ratios: list[float]
    bare: float
    unit: str
    goal: float | None = None
    less: bool = True

    @property
    def ratio(self) -> float:
        """The median of the rounds."""
        return median(self.ratios)

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is; None where there is none."""
        if self.goal is None:
            return None
        return self.ratio <= self.goal if self.less else self.ratio >= self.goal


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server."""
    command = [sys.executable, str(Path(__file__).with_name("http_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        process.communicate()


class Pairs:
    """Two calls in turns, and what each took."""

    def __init__(self, bare: Callable[[], Any], shaped: Callable[[], Any], rounds: int, pairs: int) -> None:
        self._orders = ((bare, shaped), (shaped, bare))
        self._rounds = rounds
        self._pairs = pairs
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

    def told(self) -> tuple[list[float], float]:
        """The ratio of each round, and the median µs of a bare request."""
        bare, shaped = self._orders[0]
        ratios = [median(taken[shaped]) / median(taken[bare]) for taken in self._taken]
        return ratios, median(seconds for taken in self._taken for seconds in taken[bare]) * 1e6


def sync_pairs(
    bare: Callable[[], Any], shaped: Callable[[], Any], rounds: int, pairs: int
) -> tuple[list[float], float]:
    """The ratio of each round, and the median µs of a bare request."""
    both = Pairs(bare, shaped, rounds, pairs)
    for call, note in both.turns():
        start = time.perf_counter()
        call()
        note(time.perf_counter() - start)
    return both.told()


async def async_pairs(
    bare: Callable[[], Awaitable[Any]], shaped: Callable[[], Awaitable[Any]], rounds: int, pairs: int
) -> tuple[list[float], float]:
    """`sync_pairs`, awaitable."""
    both = Pairs(bare, shaped, rounds, pairs)
    for call, note in both.turns():
        start = time.perf_counter()
        await call()
        note(time.perf_counter() - start)
    return both.told()


def httpx_sync(url: str, rounds: int, pairs: int) -> Row:
    """One httpx.Client beside another."""
    with httpx.Client() as bare, httpx.Client(transport=ShapedTransport(rate=FAR)) as shaped:
        told = sync_pairs(lambda: bare.get(url), lambda: shaped.get(url), rounds, pairs)
    return Row("httpx.Client, median request", *told, "µs", 1.03)


async def httpx_async(url: str, rounds: int, pairs: int) -> Row:
    """One httpx.AsyncClient beside another."""
    async with (
        httpx.AsyncClient() as bare,
        httpx.AsyncClient(transport=ShapedTransport(rate=FAR)) as shaped,
    ):
        told = await async_pairs(lambda: bare.get(url), lambda: shaped.get(url), rounds, pairs)
    return Row("httpx.AsyncClient, median request", *told, "µs", 1.03)


def requests_sync(url: str, rounds: int, pairs: int) -> Row:
    """One requests.Session beside another."""
    with requests.Session() as bare, requests.Session() as shaped:
        shaped.mount("http://", ShapedAdapter(rate=FAR))
        told = sync_pairs(lambda: bare.get(url), lambda: shaped.get(url), rounds, pairs)
    return Row("requests.Session, median request", *told, "µs")


async def httpx_redis(url: str, redis_server: RedisServer, rounds: int, pairs: int) -> list[Row]:
    """An httpx.AsyncClient shaped on Redis beside a bare one, and beside one that makes a trip to Redis."""
    store = RedisStore.from_url(redis_server.url)
    transport = ShapedTransport(rate=FAR, store=store, name="bench")
    trips = redis.asyncio.Redis(port=redis_server.port)
    async with httpx.AsyncClient() as bare, httpx.AsyncClient(transport=transport) as shaped:

        async def with_a_trip() -> None:
            await trips.ping()
            await bare.get(url)

        beside_bare = await async_pairs(lambda: bare.get(url), lambda: shaped.get(url), rounds, pairs)
        beside_trip = await async_pairs(with_a_trip, lambda: shaped.get(url), rounds, pairs)
    await trips.aclose()
    await store.aclose()
    return [
        Row("httpx.AsyncClient on Redis, median request", *beside_bare, "µs"),
        Row("the same / bare client + bare PING", *beside_trip, "µs"),
    ]


async def aiohttp_crowd(url: str, rounds: int, pairs: int) -> list[Row]:
    """Many requests at once in one aiohttp.ClientSession beside another.

    Throughput suffers from whatever else the machine does; what a request costs this thread hardly does.
    """
    each = max(1, 8 * pairs // CALLERS)

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
        for number in range(rounds + 1):
            order = (bare, shaped) if number % 2 else (shaped, bare)
            seen.append({session: await crowd(session) for session in order})
    del seen[0]  # that one opened the connections
    speeds, costs = [
        ([done[shaped][part] / done[bare][part] for done in seen], median(done[bare][part] for done in seen))
        for part in (0, 1)
    ]
    return [
        Row(f"aiohttp, {CALLERS} at once, throughput", *speeds, "/s", 0.97, less=False),
        Row(f"aiohttp, {CALLERS} at once, processor time of a request", *costs, "µs"),
    ]


def measured(rounds: int, pairs: int) -> list[Row]:
    """All comparisons."""
    redis_server = RedisServer().start()
    try:
        with server() as url:
            return [
                httpx_sync(url, rounds, pairs),
                asyncio.run(httpx_async(url, rounds, pairs)),
                *asyncio.run(aiohttp_crowd(url, rounds, pairs)),
                requests_sync(url, rounds, pairs),
                *asyncio.run(httpx_redis(url, redis_server, rounds, pairs)),
            ]
    finally:
        redis_server.close()


def report(rows: list[Row], rounds: int, pairs: int) -> str:
    """The figures as Markdown."""
    lines = ["| shaped / bare | ratio | rounds, from – to | bare | goal | |", "|---|--:|--:|--:|---|---|"]
    for row in rows:
        spread = f"{min(row.ratios):.3f} – {max(row.ratios):.3f}"
        goal = "none set" if row.goal is None else f"{'≤' if row.less else '≥'} {row.goal}"
        lines.append(
            f"| {row.name} | {row.ratio:.3f} | {spread} | {row.bare:,.0f} {row.unit} | {goal} |"
            f" {VERDICTS[row.is_met]} |"
        )
    facts = " · ".join(f"{name} {value}" for name, value in machine().items())
    return "\n".join([*lines, "", f"{rounds} rounds of {pairs:,} pairs · {facts}"])


def main() -> None:
    """Measure, and print a report or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="at least 5")
    parser.add_argument("--pairs", type=int, default=300, help="of requests, in each round")
    parser.add_argument("--json", action="store_true", help="all figures, for programs")
    asked = parser.parse_args()
    if asked.rounds < 5:
        parser.error("fewer than 5 rounds say nothing")
    rows = measured(asked.rounds, asked.pairs)
    if asked.json:
        figures = [{**row._asdict(), "ratio": row.ratio, "met": row.is_met} for row in rows]
        json.dump({"machine": machine(), "rows": figures}, sys.stdout, indent=1)
    else:
        print(report(rows, asked.rounds, asked.pairs))


if __name__ == "__main__":
    main()
