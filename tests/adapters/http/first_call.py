"""The first call of a process: `python first_call.py CALLER STORE URL`. It has to wait for its slot.

Prints what is loaded, opened, connected or made between the grant of the slot by the store and the departure,
and "left" in the end. STORE is "memory", a Redis URL or the path of a SQLite file.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from shapekit import Policy, shaped

SLOW = ("import", "open", "compile", "exec", "socket.connect", "socket.getaddrinfo")
"""Events of the interpreter's audit that take time."""


class Watch:
    """Events between the slot and the departure."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(lambda event, args: self.note(f"{event} {args[0]}") if event in SLOW else None)

    def note(self, what: str) -> None:
        if self.is_on:
            self.seen.append(what)

    def granting(self, policy: Policy) -> None:
        """Begin as soon as the store has answered."""
        shaper = policy.shaper
        grant, agrant = shaper._grant, shaper._agrant

        def granted(*args: Any) -> Any:
            answer = grant(*args)
            self.is_on = True
            return answer

        async def agranted(*args: Any) -> Any:
            answer = await agrant(*args)
            self.is_on = True
            return answer

        shaper._grant, shaper._agrant = granted, agranted
        shaper.core.grant = shaper.core.grant._replace(call=granted, acall=agranted)

    def departing(self, bearer: Any, method: str) -> None:
        """End as soon as a request reaches the code that sends it."""
        send = getattr(bearer, method)

        def sent(*args: Any, **named: Any) -> Any:
            self.left()
            return send(*args, **named)

        setattr(bearer, method, sent)

    def making(self, kind: type) -> None:
        """Note whether one is made meanwhile."""
        make: Any = kind.__init__

        def made(this: Any, *args: Any, **named: Any) -> None:
            self.note(f"made {kind.__name__}")
            make(this, *args, **named)

        kind.__init__ = made  # type: ignore[misc]

    def left(self) -> None:
        self.is_on = False
        self.seen.append("left")


def httpx_call(library: str, url: str, policy: Policy, watch: Watch, behind: Callable[[], None]) -> None:
    client, wrapper = import_module(library), import_module(f"shapekit.integrations.{library}")
    watch.making(client.HTTPTransport)
    watch.departing(client.HTTPTransport, "handle_request")
    transport = wrapper.ShapedTransport(policy=policy, key="host")
    behind()
    client.Client(transport=transport).get(url)


async def ahttpx_call(
    library: str, url: str, policy: Policy, watch: Watch, behind: Callable[[], None]
) -> None:
    client, wrapper = import_module(library), import_module(f"shapekit.integrations.{library}")
    watch.making(client.AsyncHTTPTransport)
    watch.departing(client.AsyncHTTPTransport, "handle_async_request")
    transport = wrapper.ShapedTransport(policy=policy, key="host")
    behind()
    await client.AsyncClient(transport=transport).get(url)


async def aiohttp_call(url: str, policy: Policy, watch: Watch, behind: Callable[[], None]) -> None:
    import aiohttp  # noqa: PLC0415 - a process loads the one client that it is for

    from shapekit.integrations.aiohttp import shaped_middleware  # noqa: PLC0415

    async def last(request: Any, handler: Any) -> Any:
        watch.left()
        return await handler(request)

    middlewares = [shaped_middleware(policy=policy, key="host"), last]
    async with aiohttp.ClientSession(middlewares=middlewares) as session:
        behind()
        async with session.get(url):
            pass


def requests_call(url: str, policy: Policy, watch: Watch, behind: Callable[[], None]) -> None:
    import requests  # noqa: PLC0415

    from shapekit.integrations.requests import ShapedAdapter  # noqa: PLC0415

    watch.making(requests.adapters.HTTPAdapter)
    watch.departing(requests.adapters.HTTPAdapter, "send")
    with requests.Session() as session:
        session.mount("http://", ShapedAdapter(policy=policy, key="host"))
        behind()
        session.get(url)


def decorated_call(policy: Policy, watch: Watch, behind: Callable[[], None]) -> None:
    call = shaped(policy=policy, key=urlsplit(URL).hostname)(watch.left)
    behind()
    call()


async def adecorated_call(policy: Policy, watch: Watch, behind: Callable[[], None]) -> None:
    @shaped(policy=policy, key=urlsplit(URL).hostname)
    async def call() -> None:
        watch.left()

    behind()
    await call()


def main(caller: str, policy: Policy, url: str) -> None:
    watch = Watch()
    watch.granting(policy)

    def behind() -> None:
        """Other calls have taken the next slots."""
        for _ in range(2):
            policy.shaper.reserve(urlsplit(url).hostname or "")
        watch.is_on = False

    match caller:
        case "httpx" | "httpx2":
            httpx_call(caller, url, policy, watch, behind)
        case "httpx async" | "httpx2 async":
            asyncio.run(ahttpx_call(caller.split(maxsplit=1)[0], url, policy, watch, behind))
        case "aiohttp":
            asyncio.run(aiohttp_call(url, policy, watch, behind))
        case "requests":
            requests_call(url, policy, watch, behind)
        case "shaped":
            decorated_call(policy, watch, behind)
        case "shaped async":
            asyncio.run(adecorated_call(policy, watch, behind))
        case "shaped trio":
            import_module("trio").run(adecorated_call, policy, watch, behind)
    print(*watch.seen, sep="\n")


if __name__ == "__main__":
    CALLER, PLACE, URL = sys.argv[1:]
    main(CALLER, Policy("20/s", store=None if PLACE == "memory" else PLACE, name="first"), URL)
