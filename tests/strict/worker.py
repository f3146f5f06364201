"""One process of a fleet: `python -m tests.strict.worker CLIENT JOB`, the job in JSON.

It prints a line when it has imported what it needs, reads until when it should call, and begins. All that
comes then is new to it: its store, its client, their connections and scripts. Each of its callers makes one
call after the other. At its end it prints when each call left the shaper: when it was handed to the code that
sends it.
"""

import asyncio
import gc
import http.client
import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import NamedTuple

from shapekit import RedisStore, shaped


class Job(NamedTuple):
    """What a worker does."""

    port: int
    redis: str
    prefix: str
    rate: str
    callers: int
    stall: str = ""
    """What stalls it for a while every two seconds: "blocked" or "collector", if anything."""


EVERY_S, STALL_S = 2.0, 0.3
GARBAGE = 3_000_000
"""So many objects keep the collector busy for about as long."""
left = []
"""When calls have left, on the monotonic clock."""


def shaping(job):
    return {"rate": job.rate, "name": "strict", "store": RedisStore.from_url(job.redis, prefix=job.prefix)}


def noting(kind, method):
    """Have each call of a method note that a call has left."""
    inner = getattr(kind, method)

    def noted(self, *args, **kwargs):
        left.append(time.monotonic())
        return inner(self, *args, **kwargs)

    setattr(kind, method, noted)


# clients: each yields a function that calls once, and returns the status


def httpx_sync(package, job):
    library, wrapper = import_module(package), import_module(f"shapekit.integrations.{package}")
    noting(library.HTTPTransport, "handle_request")

    @contextmanager
    def opened():
        # Not entered, as where a module makes one for its functions: then it is the first call that makes
        # the transport inside.
        client = library.Client(transport=wrapper.ShapedTransport(**shaping(job)), timeout=60)
        yield lambda: client.get(f"http://127.0.0.1:{job.port}/").status_code
        client.close()

    return opened


def httpx_async(package, job):
    library, wrapper = import_module(package), import_module(f"shapekit.integrations.{package}")
    noting(library.AsyncHTTPTransport, "handle_async_request")

    @asynccontextmanager
    async def opened():
        async def call():
            return (await client.get(f"http://127.0.0.1:{job.port}/")).status_code

        client = library.AsyncClient(transport=wrapper.ShapedTransport(**shaping(job)), timeout=60)
        yield call
        await client.aclose()

    return opened


def aiohttp_session(package, job):
    library, wrapper = import_module(package), import_module(f"shapekit.integrations.{package}")

    async def note(request, handler):
        left.append(time.monotonic())
        return await handler(request)

    @asynccontextmanager
    async def opened():
        async def call():
            async with session.get(f"http://127.0.0.1:{job.port}/") as response:
                await response.read()
                return response.status

        middlewares = [wrapper.shaped_middleware(**shaping(job)), note]
        async with library.ClientSession(middlewares=middlewares) as session:
            yield call

    return opened


def requests_session(package, job):
    library, wrapper = import_module(package), import_module(f"shapekit.integrations.{package}")
    noting(library.adapters.HTTPAdapter, "send")

    @contextmanager
    def opened():
        with wrapper.shape(library.Session(), **shaping(job)) as session:
            yield lambda: session.get(f"http://127.0.0.1:{job.port}/").status_code

    return opened


def shaped_function(_, job):
    @contextmanager
    def opened():
        mine = threading.local()

        @shaped(**shaping(job))
        def send():
            left.append(time.monotonic())
            mine.line.request("GET", "/")
            response = mine.line.getresponse()
            response.read()
            return response

        def call():
            if not hasattr(mine, "line"):
                mine.line = http.client.HTTPConnection("127.0.0.1", job.port)
            response = send()
            if response.status == 429:
                send.policy.shaper.hold(int(response.headers["Retry-After"]))
            return response.status

        yield call

    return opened


CLIENTS = {
    "httpx": (httpx_sync, "httpx"),
    "httpx async": (httpx_async, "httpx"),
    "httpx2": (httpx_sync, "httpx2"),
    "httpx2 async": (httpx_async, "httpx2"),
    "aiohttp": (aiohttp_session, "aiohttp"),
    "requests": (requests_session, "requests"),
    "@shaped": (shaped_function, ""),
}
"""How to open each, and the package that it is of."""


# calling


def in_threads(opened, job, until):
    statuses = Counter()

    def caller():
        while time.monotonic() < until:
            statuses[call()] += 1

    with opened() as call, ThreadPoolExecutor(job.callers) as threads:
        callers = [threads.submit(caller) for _ in range(job.callers)]
        while job.stall == "collector" and wait(callers, EVERY_S).not_done:
            gc.collect()
        for each in callers:
            each.result()
    return statuses


async def in_tasks(opened, job, until):
    statuses = Counter()

    async def caller():
        while time.monotonic() < until:
            statuses[await call()] += 1

    async def stalling():
        while True:
            await asyncio.sleep(EVERY_S)
            if job.stall == "blocked":
                time.sleep(STALL_S)  # noqa: ASYNC251 - on purpose
            if job.stall == "collector":
                gc.collect()

    async with opened() as call:
        stalls = asyncio.ensure_future(stalling())
        await asyncio.gather(*(caller() for _ in range(job.callers)))
        stalls.cancel()
    return statuses


def main(name, job):
    job = Job(*json.loads(job))
    make, package = CLIENTS[name]
    opened = make(package, job)
    kept = [[] for _ in range(GARBAGE)] if job.stall == "collector" else []
    print("ready", flush=True)
    until = float(sys.stdin.readline())
    if make in (httpx_async, aiohttp_session):
        statuses = asyncio.run(in_tasks(opened, job, until))
    else:
        statuses = in_threads(opened, job, until)
    del kept
    json.dump({"left": left, "statuses": statuses}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
