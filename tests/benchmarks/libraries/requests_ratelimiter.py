"""requests-ratelimiter: sessions of requests that wait, by pyrate-limiter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import requests.adapters
from requests_ratelimiter import LimiterAdapter, LimiterMixin

from ..waits import Wait, Waiting

MODULE = "requests_ratelimiter"
CANNOT = {
    "decisions": "as pyrate-limiter",
    "keyed": "as pyrate-limiter",
    "redis_calls": "as pyrate-limiter",
    "redis_acalls": "as pyrate-limiter",
    "httpx_transports": "is for requests",
}
THREADS = 100


class Answering(requests.adapters.BaseAdapter):
    """Answers from memory."""

    def send(self, *_: Any, **__: Any) -> requests.Response:
        response = requests.Response()
        response.status_code = 200
        return response


class Shaped(LimiterMixin, Answering):
    """What its adapter is, over one that sends nothing: what is timed is its waiting."""


@asynccontextmanager
async def _threads(rate: int, _: str) -> AsyncIterator[Wait]:
    adapter = Shaped(per_second=rate)
    request = requests.Request("GET", "http://host/").prepare()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(THREADS) as pool:
        yield partial(loop.run_in_executor, pool, adapter.send, request)


def waits() -> list[Waiting]:
    return [Waiting("LimiterAdapter, in threads", _threads, in_threads=True, bursts=True)]


def requests_adapters() -> dict[str, Callable[[], requests.adapters.BaseAdapter]]:
    return {"LimiterAdapter": partial(LimiterAdapter, per_second=1_000_000)}
