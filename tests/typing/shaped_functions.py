"""Checked by mypy and pyright, never run: a shaped function keeps its signature."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from shapekit import Outlook, Policy, shaped


@shaped(rate=10)
def plain(path: str, retries: int = 3) -> bytes:
    return path.encode() * retries


@shaped("100/min", burst=5, max_wait=2.0, key="{user_id}")
async def awaited(user_id: int) -> str:
    return str(user_id)


@shaped(rate=1)
def numbers(up_to: int) -> Iterator[int]:
    yield from range(up_to)


@shaped(rate=1)
async def pages(url: str) -> AsyncIterator[str]:
    yield url


class Client:
    @shaped(rate=10)
    def get(self, path: str) -> int:
        return len(path)

    @shaped(rate=10)
    async def aget(self, path: str) -> int:
        return len(path)

    @staticmethod
    @shaped(rate=10)
    def join(left: str, right: str) -> str:
        return left + right

    @shaped(rate=10)
    @staticmethod
    def repeated(text: str) -> str:
        return text + text

    @classmethod
    @shaped(rate=10)
    def named(cls, number: int) -> str:
        return cls.__name__ * number

    @shaped(rate=10)
    @classmethod
    async def anamed(cls, number: int) -> str:
        return cls.__name__ * number


class Child(Client):
    pass


async def check() -> None:
    assert_type(plain("x", retries=2), bytes)
    assert_type(await awaited(7), str)
    assert_type(numbers(3), Iterator[int])
    assert_type(Client().get("x"), int)
    assert_type(await Client().aget("x"), int)
    assert_type(Client.get(Client(), "x"), int)
    assert_type(Client.get.policy, Policy)
    assert_type(Child.join("a", "b"), str)
    assert_type(Child.repeated("a"), str)
    for its in Client, Client(), Child, Child():
        assert_type(its.named(1), str)
        assert_type(await its.anamed(1), str)
    assert_type(plain.policy, Policy)
    assert_type(plain.forecast(10), Outlook)
    async for page in pages("u"):
        assert_type(page, str)
    plain(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Client().get()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Client.named("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
