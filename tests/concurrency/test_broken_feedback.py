"""What reads the answers fails: the caller is told, the answer is closed, and the seat is free."""

import asyncio

import aiohttp
import anyio
import httpx
import pytest
import requests

from shapekit import Policy
from shapekit.integrations import aiohttp as shaped_aiohttp
from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import requests as shaped_requests

from .bodies import Bodies
from .rooms import PATIENCE_S, standing


def reader(answer):
    raise LookupError("no such header")


@pytest.fixture
def server():
    server = Bodies(1, 1)
    yield server
    server.close()


@pytest.fixture
def policy():
    return Policy(concurrency=1, feedback=reader, max_wait=PATIENCE_S)


def by_httpx(url, policy):
    with httpx.Client(transport=shaped_httpx.ShapedTransport(policy=policy)) as client:
        client.get(url)


def by_httpx_on_a_loop(url, policy):
    async def work():
        async with httpx.AsyncClient(transport=shaped_httpx.ShapedTransport(policy=policy)) as client:
            await client.get(url)

    anyio.run(work)


def by_requests(url, policy):
    with shaped_requests.shape(requests.Session(), policy=policy) as session:
        session.get(url)


def by_aiohttp(url, policy):
    async def work():
        middleware = shaped_aiohttp.shaped_middleware(policy=policy)
        async with aiohttp.ClientSession(middlewares=[middleware]) as session, session.get(url):
            raise AssertionError("nobody could read the answer")

    asyncio.run(work())


@pytest.mark.parametrize("call", [by_httpx, by_httpx_on_a_loop, by_requests, by_aiohttp])
def test_the_seat_is_free_again(call, server, policy):
    for _ in range(2):
        with pytest.raises(LookupError, match="no such header"):
            call(f"{server.url}/plain", policy)
    assert standing(policy) == (0, 0)
