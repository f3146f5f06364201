"""A process of callers, until its standard input ends: `python callers.py CLIENT STORE URL RATE CALLERS`.

STORE is a Redis URL or the path of a SQLite file. Prints "ready" first, and calls after it has read a line.

Before that every kind of call is made once: a first call loads modules for longer than the margin between the
rate and the server's limit, and so does opening many connections.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from shapekit import Policy, RedisStore, SQLiteStore, Store, StoreUnavailableError

START_S = 0.01
WARM_KEY = f"warm {os.getpid()}"
"""Each caller warms up on a key of its own, so that no caller waits for another."""


def store_at(place: str) -> Store:
    return RedisStore.from_url(place) if place.startswith("redis://") else SQLiteStore(place)


async def httpx_callers(url: str, rate: str, callers: int, store: Store) -> None:
    import httpx  # noqa: PLC0415 - a process loads the one client that it is for

    from shapekit.integrations.httpx import ShapedTransport  # noqa: PLC0415

    limits = httpx.Limits(max_connections=callers, max_keepalive_connections=callers)
    transport = ShapedTransport(rate=rate, store=store, name="api", limits=limits)
    async with httpx.AsyncClient(transport=transport) as client:

        async def get(path: str, **options: object) -> None:
            await client.get(url + path, extensions={"shapekit": options})

        await tasks_until_input_ends(get, callers)


async def aiohttp_callers(url: str, rate: str, callers: int, store: Store) -> None:
    import aiohttp  # noqa: PLC0415

    from shapekit.integrations.aiohttp import request_options, shaped_middleware  # noqa: PLC0415

    shaped = shaped_middleware(rate=rate, store=store, name="api")
    connector = aiohttp.TCPConnector(limit=callers)
    async with aiohttp.ClientSession(middlewares=[shaped], connector=connector) as session:

        async def get(path: str, **options: object) -> None:
            with request_options(**options):
                async with session.get(url + path) as response:
                    await response.read()

        await tasks_until_input_ends(get, callers)


async def tasks_until_input_ends(get: Callable[..., Awaitable[None]], callers: int) -> None:
    """Tasks that are cancelled in the end, in the middle of their waits."""

    async def call() -> None:
        while True:
            await get("/")

    async def warm_up(number: int) -> None:
        for _ in range(2):  # the second has to wait for its slot
            await get("/warm", key=f"{WARM_KEY} {number}")

    await asyncio.gather(*map(warm_up, range(callers)))
    await asyncio.to_thread(ready)
    tasks = []
    for _ in range(callers):
        # Twenty tasks that start in one step of the loop keep the first from sending for all that time.
        tasks.append(asyncio.create_task(call()))
        await asyncio.sleep(START_S)
    await asyncio.to_thread(sys.stdin.readline)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError), result


async def requests_callers(url: str, rate: str, callers: int, store: Store) -> None:
    import requests  # noqa: PLC0415

    from shapekit.integrations.requests import ShapedAdapter, request_options  # noqa: PLC0415

    policy = Policy(rate, store=store, name="api")
    with requests.Session() as session:
        session.mount("http://", ShapedAdapter(policy=policy, pool_maxsize=callers, pool_block=True))

        def get(path: str, **options: object) -> None:
            with request_options(**options):
                session.get(url + path)

        await asyncio.to_thread(threads_until_input_ends, get, callers, policy)


def threads_until_input_ends(get: Callable[..., None], callers: int, policy: Policy) -> None:
    """Threads that wake up in the end, because their policy is closed."""
    ended = []

    def warm_up(number: int) -> None:
        for _ in range(2):
            get("/warm", key=f"{WARM_KEY} {number}")

    def call() -> None:
        try:
            while True:
                get("/")
        except StoreUnavailableError as error:
            ended.append(error)

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(warm_up, range(callers)))
    ready()
    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
        time.sleep(START_S)
    sys.stdin.readline()
    policy.close()
    for thread in threads:
        thread.join()
    assert len(ended) == callers


def ready() -> None:
    """Print "ready", and wait for a line. The collector skips all objects that exist by now."""
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    sys.stdin.readline()


CLIENTS = {"httpx": httpx_callers, "aiohttp": aiohttp_callers, "requests": requests_callers}

if __name__ == "__main__":
    client, place, url, rate, callers = sys.argv[1:]

    async def main() -> None:
        store = store_at(place)
        try:
            await CLIENTS[client](url, rate, int(callers), store)
        finally:
            await store.aclose()

    asyncio.run(main())
