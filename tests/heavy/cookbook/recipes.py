"""Recipes of the page: each is run as it stands, and its client calls a server that refuses once."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path

from ...adapters.http.server import Reply, Server
from ...docs.test_markdown import blocks

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sdks-that-take-a-client.md"
HEADERS = {"Content-Type": "application/json", "Connection": "close"}
FOUND = {**HEADERS, "Location": "/found"}


def recipe(heading):
    """The object that the code under a heading makes."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^### {heading}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    made = {"__name__": heading}
    for block in blocks(found[1]):
        exec(compile(block.code, heading, "exec"), made)
    return made


def left(heading, call, now, paths, refused=0):
    """When the requests left of calls of which the second goes to a page that redirects or refuses."""
    instants = []

    def answer(arrival):
        instants.append(round(now(), 3))
        if len(instants) == refused:
            return Reply(429, {**HEADERS, "Retry-After": "7"}, b'{"ok": false}')
        if arrival.path.startswith("/moved"):
            return Reply(302, FOUND, b"")
        return Reply(200, HEADERS, b'{"ok": true}')

    server = Server()
    server.answer = answer
    server.start()

    async def asynchronous(made):
        for path in paths:
            await call(made, server.url + path)
        if "aclient" in made:
            await made["aclient"].close()

    try:
        made = recipe(heading)
        if inspect.iscoroutinefunction(call):
            asyncio.run(asynchronous(made))
        else:
            for path in paths:
                call(made, server.url + path)
    finally:
        server.close()
    return instants
