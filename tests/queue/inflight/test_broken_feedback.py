"""Where reading the answer fails, the caller still gets the answer, and the permit is free afterwards."""

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
        return client.get(url).status_code


def by_httpx_on_a_loop(url, policy):
    async def work():
        async with httpx.AsyncClient(transport=shaped_httpx.ShapedTransport(policy=policy)) as client:
            return (await client.get(url)).status_code

    return anyio.run(work)


def by_requests(url, policy):
    with shaped_requests.shape(requests.Session(), policy=policy) as session:
        return session.get(url).status_code


def by_aiohttp(url, policy):
    async def work():
        middleware = shaped_aiohttp.shaped_middleware(policy=policy)
        async with aiohttp.ClientSession(middlewares=[middleware]) as session, session.get(url) as response:
            await response.read()
            return response.status

    return asyncio.run(work())


@pytest.mark.parametrize("call", [by_httpx, by_httpx_on_a_loop, by_requests, by_aiohttp])
def test_the_permit_is_free_again(call, server, policy, caplog):
    for _ in range(2):
        assert call(f"{server.url}/plain", policy) == 200
        assert caplog.records[-1].exc_info[0] is LookupError
    assert standing(policy) == (0, 0)
