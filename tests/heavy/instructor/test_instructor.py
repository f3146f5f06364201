"""instructor: the code of the page is run as it stands; its own retries keep the pace, too."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from ...adapters.http.server import Reply, Server
from ...docs.test_markdown import blocks
from ...llm.model import CHAT

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sdks-that-take-a-client.md"
ASK = {"model": "some", "messages": [{"role": "user", "content": "who?"}]}
HEADERS = {"Content-Type": "application/json", "Connection": "close"}


class Person(BaseModel):
    age: int


def answering(age):
    """An answer that calls the tool which instructor offers to the model."""
    function = {"name": "Person", "arguments": json.dumps({"age": age})}
    message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return Reply(200, HEADERS, json.dumps({**CHAT, "choices": [choice]}).encode())


REFUSAL = Reply(429, {**HEADERS, "Retry-After": "7"}, b'{"message": "slow down"}')


@pytest.fixture
def left():
    """The instants at which requests have left."""
    return []


@pytest.fixture
def server(left, shapekit_time):
    server = Server()
    server.first = []

    def noted(_):
        left.append(shapekit_time.now())
        return server.first.pop(0) if server.first else answering(30)

    server.answer = noted
    server.start()
    yield server
    server.close()


@pytest.fixture
def page(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("NO_PROXY", "*")
    made = {"__name__": "page"}
    [section] = re.findall(
        r"^## instructor\n(.*?)(?=^## )", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for block in blocks(section):
        exec(compile(block.code, "page", "exec"), made)
    return made


@pytest.fixture(params=["client", "aclient"])
def ask(request, page):
    """Calls one of the two clients that the page makes."""
    client = page[request.param]

    async def awaited():
        return await client.create(response_model=Person, **ASK)

    def call():
        if request.param == "client":
            return client.create(response_model=Person, **ASK)
        return asyncio.run(awaited())

    return call


def test_each_call_takes_a_slot(ask, left):
    assert [ask().age for _ in range(3)] == [30, 30, 30]
    assert left == pytest.approx([0.0, 0.1, 0.2])


def test_each_retry_takes_a_slot_and_waits_for_the_end_of_a_hold(ask, server, left, monkeypatch):
    async def asleep(_):
        pass

    # Neither SDK waits before it sends a call again: only shapekit waits.
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("anyio.sleep", asleep)
    server.first = [answering("unknown"), REFUSAL]
    assert ask().age == 30
    assert left == pytest.approx([0.0, 0.1, 7.2])
