"""Checked by mypy and pyright, never run: a watched loop keeps the type of its items."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import assert_type

from shapekit import Policy, Shaper, shaped
from shapekit.integrations.httpx import ShapedTransport
from shapekit.progress import aprogress, progress


@shaped(rate=10)
def fetch(url: str) -> bytes:
    return url.encode()


class Client:
    policy = Policy("10/s")


def watches(urls: list[str], policy: Policy) -> None:
    assert_type(progress(urls, policy), Generator[str, None, None])
    for _ in progress(urls, Shaper("10/s"), total=3, key="acme", cost=2):
        pass
    for url in progress(urls, fetch):
        assert_type(url, str)
    for url in progress(urls, Client()):
        assert_type(url, str)
    for url in progress(urls, ShapedTransport(rate="10/s"), key="api.example.com"):
        assert_type(url, str)


async def awaits(urls: list[str], pages: AsyncIterator[int], policy: Policy) -> None:
    assert_type(aprogress(pages, policy), AsyncGenerator[int, None])
    async for url in aprogress(urls, policy):
        assert_type(url, str)
