"""An error of ours is an error of the library, too, whatever subclass of ours it is."""

import ast
import asyncio
import pickle
from pathlib import Path

import aiohttp
import httpx
import httpx2
import pytest
import requests

from shapekit import (
    AccountExhaustedError,
    Decision,
    MemoryStore,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
)
from shapekit._adapters.http import translated
from shapekit.integrations import aiohttp as shaped_aiohttp
from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import httpx2 as shaped_httpx2
from shapekit.integrations import requests as shaped_requests
from shapekit.testing import FaultyStore

DENIED = Decision(False, 1, 1, 0, 0, 1_000_000)


class Fuller(QueueFullError):
    pass


class Spent(QuotaExhaustedError):
    pass


class Partitioned(StoreUnavailableError):
    """A more exact error of a custom store."""


class Further(Partitioned):
    pass


ERRORS = [
    (QueueFullError(DENIED, "key", 2.0, 1.0), "QueueFullError"),
    (Fuller(DENIED, "key", 2.0, 1.0), "QueueFullError"),
    (QuotaExhaustedError(DENIED, "key"), "QuotaExhaustedError"),
    (Spent(DENIED, "key"), "QuotaExhaustedError"),
    (AccountExhaustedError(DENIED, "key"), "AccountExhaustedError"),
    (StoreUnavailableError("gone"), "StoreUnavailableError"),
    (Partitioned("gone"), "StoreUnavailableError"),
    (Further("gone", 7), "StoreUnavailableError"),
]
WRAPPERS = {
    "httpx": (shaped_httpx, shaped_httpx.ShapedTransport.refusals, httpx.TransportError),
    "httpx2": (shaped_httpx2, shaped_httpx2.ShapedTransport.refusals, httpx2.TransportError),
    "requests": (shaped_requests, shaped_requests._REFUSALS, requests.RequestException),
    "aiohttp": (shaped_aiohttp, shaped_aiohttp._REFUSALS, aiohttp.ClientError),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(("error", "name"), ERRORS)
def test_the_nearest_twin_is_taken(wrapper, error, name):
    module, refusals, root = WRAPPERS[wrapper]
    cause = OSError("the network")
    error.__cause__ = cause
    twin = translated(error, refusals)
    assert type(twin) is getattr(module, name)
    assert isinstance(twin, root)
    assert (twin.args, twin.code, str(twin), twin.__cause__) == (error.args, error.code, str(error), cause)
    assert pickle.loads(pickle.dumps(twin)).args == error.args


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_error_without_a_twin_stays_unchanged(wrapper):
    error = RateLimitedError(DENIED, "key")
    assert translated(error, WRAPPERS[wrapper][1]) is error


def twins(path):
    """The errors that a wrapper translates into, from its source: its library may not be installed."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [
        {ast.unparse(name) for name in call.args} for call in calls if ast.unparse(call.func) == "twins_of"
    ]


@pytest.mark.parametrize(
    "path", sorted(Path(shaped_httpx.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_every_wrapper_has_a_twin_of_every_refusal(path):
    for translated_into in twins(path):
        assert translated_into >= {name for _, name in ERRORS}


class Cut(FaultyStore):
    def _check_up(self):
        raise Partitioned("cut off")


def by_httpx(store, library=httpx, module=shaped_httpx):
    with library.Client(transport=module.ShapedTransport(rate=1, store=store)) as client:
        client.get("http://server/")


def by_httpx2(store):
    by_httpx(store, httpx2, shaped_httpx2)


def by_requests(store):
    with shaped_requests.shape(requests.Session(), rate=1, store=store) as session:
        session.get("http://server/")


def by_aiohttp(store):
    async def work():
        shaped = shaped_aiohttp.shaped_middleware(rate=1, store=store)
        async with aiohttp.ClientSession(middlewares=[shaped]) as session, session.get("http://server/"):
            pass

    asyncio.run(work())


@pytest.mark.parametrize(
    ("call", "wrapper"),
    [(by_httpx, "httpx"), (by_httpx2, "httpx2"), (by_requests, "requests"), (by_aiohttp, "aiohttp")],
)
def test_a_custom_store_may_raise_a_subclass(call, wrapper):
    module, _, root = WRAPPERS[wrapper]
    with pytest.raises(root, match="cut off") as caught:
        call(Cut(MemoryStore()))
    assert type(caught.value) is module.StoreUnavailableError
