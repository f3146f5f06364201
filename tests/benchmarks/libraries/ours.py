"""shapekit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import httpx
import requests.adapters

from shapekit import GCRA, Gate, MemoryStore, RedisStore, Shaper
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.requests import ShapedAdapter

from ..subjects import Subject, gates
from ..waits import Wait, Waiting, fresh

MODULE = "shapekit"
FAR = "1_000_000/s"


def decisions() -> list[Subject]:
    return gates()


@asynccontextmanager
async def _in_memory(rate: int, _: str) -> AsyncIterator[Wait]:
    yield Shaper(f"{rate}/s").aschedule


@asynccontextmanager
async def _on_redis(rate: int, url: str) -> AsyncIterator[Wait]:
    async with aclosing(RedisStore.from_url(url)) as store:
        yield Shaper(f"{rate}/s", store=store, name=fresh("shaper")).aschedule


def waits() -> list[Waiting]:
    return [Waiting("Shaper", _in_memory), Waiting("Shaper, Redis", _on_redis, on_redis=True)]


@contextmanager
def keyed(limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    rate = f"{limit}/{seconds}s"
    yield {
        "Shaper": Shaper(rate, store=MemoryStore(), burst=limit).reserve,
        "Gate(GCRA)": Gate(GCRA(rate), store=MemoryStore()).check,
    }


@contextmanager
def redis_calls(url: str, limit: int, seconds: int) -> Iterator[dict[str, Callable[[str], Any]]]:
    rate = f"{limit}/{seconds}s"
    with closing(RedisStore.from_url(url)) as store:
        yield {
            "Gate(GCRA).check": Gate(GCRA(rate), store=store, name="g").check,
            "Shaper.reserve": Shaper(rate, burst=limit, store=store, name="s").reserve,
        }


@asynccontextmanager
async def redis_acalls(url: str, limit: int, seconds: int) -> AsyncIterator[dict[str, Callable[[str], Any]]]:
    rate = f"{limit}/{seconds}s"
    async with aclosing(RedisStore.from_url(url)) as store:
        yield {
            "Gate(GCRA).acheck": Gate(GCRA(rate), store=store, name=fresh("gate")).acheck,
            "Shaper.areserve": Shaper(rate, burst=limit, store=store, name=fresh("shaper")).areserve,
        }


def httpx_transports() -> dict[str, Callable[[], httpx.AsyncBaseTransport]]:
    return {"ShapedTransport": partial(ShapedTransport, rate=FAR)}


def requests_adapters() -> dict[str, Callable[[], requests.adapters.BaseAdapter]]:
    return {"ShapedAdapter": partial(ShapedAdapter, rate=FAR)}
