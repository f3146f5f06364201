"""Making a wrapper for httpx and httpx2, and shaping a client that exists already."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from shapekit import ConfigError, ManualClock, Policy
from shapekit.integrations import httpx as first
from shapekit.integrations import httpx2 as second


def plain(library):
    return library.MockTransport(lambda _: library.Response(200))


@pytest.mark.parametrize(
    ("given", "options", "field"),
    [
        ("10/s", {}, "transport"),
        (10, {}, "transport"),
        (httpx.Client, {"rate": 1}, "transport"),
        (None, {"rate": 1, "http3": True}, "http3"),
        (first.ShapedTransport(rate=1), {"rate": 1, "http2": True}, "http2"),
        (None, {"verify": False}, "rate"),
    ],
)
def test_wrong_arguments_are_refused(both, given, options, field, refused):
    refused(lambda: both[1].ShapedTransport(given, **options), field)


@pytest.mark.parametrize(
    ("given", "fix"),
    [("10/s", "ShapedTransport(rate='10/s')"), (Policy("10/s"), "ShapedTransport(policy=…)")],
)
def test_the_error_about_a_positional_limit_shows_the_keyword(given, fix, refused):
    assert refused(lambda: first.ShapedTransport(given), "transport").fix == f"write {fix}"


def test_only_clients_are_shaped(both, refused):
    refused(lambda: both[1].shape(plain(both[0]), rate=1), "client")


def test_a_client_is_shaped_with_its_proxies_and_mounts(both):
    library, wrapper = both
    mounted = plain(library)
    client = library.Client(
        proxy="http://127.0.0.1:3128", mounts={"all://api.y": mounted, "all://api.z": None}
    )
    before = [client._transport, *client._mounts.values()]
    assert wrapper.shape(client, rate="10/s") is client
    after = [client._transport, *client._mounts.values()]
    assert [type(transport) for transport in after if transport is not None] == [wrapper.ShapedTransport] * 3
    assert [transport and transport._inner["HTTPTransport"] for transport in after] == before
    assert client.get("http://api.y/").extensions["shapekit"].key == "api.y"
    client.close()


def test_a_client_that_is_shaped_already_is_refused_and_left_as_it_was(both):
    library, wrapper = both
    for client in (
        wrapper.shape(library.Client(), rate="10/s"),
        library.Client(mounts={"all://api.y": wrapper.ShapedTransport(rate="10/s")}),
    ):
        before = [client._transport, *client._mounts.values()]
        with pytest.raises(ConfigError, match="is shaped already"):
            wrapper.shape(client, rate="10/s")
        assert [client._transport, *client._mounts.values()] == before
        client.close()


def test_the_mounts_of_a_client_share_its_limit(both):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    client = library.Client(transport=plain(library), mounts={"http://api.x:81": plain(library)})
    with wrapper.shape(client, rate="10/s", clock=clock):
        delays = [client.get(f"http://api.x:{port}/").extensions["shapekit"].delay for port in (80, 81, 80)]
    assert delays == [0.0, 0.1, 0.1]


def test_the_two_wrappers_have_the_same_source():
    one, other = (Path(module.__file__).read_text(encoding="utf-8") for module in (first, second))
    assert one.replace("httpx", "httpx2") == other


FIRST_REQUEST = """
import asyncio, sys
import {library} as library
from shapekit.integrations.{library} import ShapedTransport, shape

inner = library.AsyncHTTPTransport.handle_async_request
late = []

async def noted(*args):
    before = set(sys.modules)
    try:
        return await inner(*args)
    finally:
        late.extend(set(sys.modules) - before)

library.AsyncHTTPTransport.handle_async_request = noted

async def main():
    async with {client} as client:
        await client.get("{url}")

asyncio.run(main())
print(*late)
"""


@pytest.mark.parametrize(
    "client",
    [
        "library.AsyncClient(transport=ShapedTransport(rate=1))",
        "library.AsyncClient(transport=ShapedTransport(library.AsyncHTTPTransport(), rate=1))",
        "shape(library.AsyncClient(), rate=1)",
    ],
)
def test_nothing_is_loaded_between_a_slot_and_the_wire(both, server, client):
    # Loading takes longer than a slot of a fast rate: the first request would be late, the next ones too
    # close.
    program = FIRST_REQUEST.format(library=both[0].__name__, client=client, url=server.url)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"
