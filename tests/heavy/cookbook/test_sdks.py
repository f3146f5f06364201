"""SDKs that take a client: the code of the page is run as it stands, and the server sees the pace.

A section of the page is run, and the client that it makes calls a server on loopback. Time is virtual: it
stands still while requests travel, and shows when each of them has left.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import agents
import anyio
import google.auth
import httpx2
import huggingface_hub
import mistralai.client.sdkconfiguration
import pytest
from google.auth.credentials import AnonymousCredentials
from huggingface_hub.utils import _http as hub_http

from ...adapters.http.server import Server
from ...docs.test_markdown import blocks
from .answers import answer, refusal
from .tools import Tools

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sdks-that-take-a-client.md"
ASK = [{"role": "user", "content": "why?"}]
KEYS = ("CO_API_KEY", "GEMINI_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY", "OPENAI_API_KEY", "STRIPE_API_KEY")
BASES = {"GOOGLE_GEMINI_BASE_URL": "", "GROQ_BASE_URL": "", "OPENAI_BASE_URL": "/v1"}
"""Where the SDKs read the server's address, and what they put behind it."""

Call = Callable[[dict[str, Any]], Any]
CALLS: list[tuple[str, Call]] = []
"""A section of the page, and a call by the client that it makes."""


def section(heading: str) -> Callable[[Call], Call]:
    def known(call: Call) -> Call:
        CALLS.append((heading, call))
        return call

    return known


@section("Cohere")
def cohere(page):
    return page["client"].chat(model="some", messages=ASK)


@section("Cohere")
async def cohere_async(page):
    return await page["aclient"].chat(model="some", messages=ASK)


@section("Google Gen AI")
def google_genai(page):
    return page["client"].models.generate_content(model="some", contents="why?")


@section("Google Gen AI")
async def google_genai_async(page):
    return await page["client"].aio.models.generate_content(model="some", contents="why?")


@section("google-auth and gspread")
def google_session(page):
    page["session"].get(f"{page['url']}/v4/spreadsheets/some").raise_for_status()


@section("google-auth and gspread")
def google_sheets(page):
    return page["sheets"].open_by_key("some")


@section("Groq")
def groq(page):
    return page["client"].chat.completions.create(model="some", messages=ASK)


@section("Groq")
async def groq_async(page):
    return await page["aclient"].chat.completions.create(model="some", messages=ASK)


@section("Hugging Face Hub")
def hugging_face(page):
    return huggingface_hub.HfApi().model_info("some")


@section("Hugging Face Hub")
async def hugging_face_async(page):
    async with huggingface_hub.AsyncInferenceClient(base_url=page["url"]) as client:
        return await client.chat_completion(ASK)


@section("LangChain")
def langchain(page):
    return page["model"].invoke("why?")


@section("LangChain")
async def langchain_async(page):
    return await page["model"].ainvoke("why?")


@section("Mistral")
def mistral(page):
    return page["client"].chat.complete(model="some", messages=ASK)


@section("Mistral")
async def mistral_async(page):
    return await page["client"].chat.complete_async(model="some", messages=ASK)


@section("OpenAI Agents")
async def openai_agents(page):
    result = await agents.Runner.run(agents.Agent("some", model="some"), "why?")
    assert result.final_output == "yes"


@section("Stripe")
def stripe_customers(page):
    return page["client"].v1.customers.list({"limit": 3})


@section("Stripe")
async def stripe_aiohttp(page):
    return await page["first_customers"]()


@pytest.fixture
def left(shapekit_time):
    """The instants at which requests have left."""
    return []


@pytest.fixture
def server(left, shapekit_time):
    server = Server()
    server.refused = 0

    def noted(arrival):
        left.append(shapekit_time.now())
        return (refusal if len(left) <= server.refused else answer)(arrival)

    server.answer = noted
    server.start()
    yield server
    server.close()


REPEATING = ("cohere", "groq", "langchain", "openai_agents")
"""The SDKs that send a call again after a 429."""


@pytest.fixture
def impatient(monkeypatch):
    """Switch off the SDKs' own waits before a retry: only shapekit waits."""

    async def asleep(_):
        pass

    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    monkeypatch.setattr(anyio, "sleep", asleep)


@pytest.fixture
def page(server, monkeypatch):
    """Runs a section of the page, whose SDK calls the server, and returns what it has made."""
    for key in KEYS:
        monkeypatch.setenv(key, "none")
    for name, path in BASES.items():
        monkeypatch.setenv(name, server.url + path)
    monkeypatch.setenv("NO_PROXY", "*")
    # These SDKs have their addresses in constants.
    monkeypatch.setattr("cohere.base_client._get_base_url", lambda **_: server.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._fetch_registry", lambda: None)
    monkeypatch.setitem(mistralai.client.sdkconfiguration.SERVERS, "global", server.url)
    monkeypatch.setattr("stripe._stripe_client.DEFAULT_API_BASE", server.url)
    monkeypatch.setattr("gspread.http_client.SPREADSHEET_URL", f"{server.url}/v4/spreadsheets/%s")
    monkeypatch.setattr(google.auth, "default", lambda scopes: (AnonymousCredentials(), "some"))
    monkeypatch.setattr("agents.models._openai_shared._default_openai_client", None)
    agents.set_tracing_disabled(True)

    def run(heading):
        made = {"__name__": heading, "url": server.url}
        for block in blocks(part(heading)):
            exec(compile(block.code, heading, "exec"), made)
        return made

    yield run
    huggingface_hub.set_client_factory(hub_http.default_client_factory)
    huggingface_hub.set_async_client_factory(hub_http.default_async_client_factory)


def part(heading: str) -> str:
    """The section under a heading."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def in_sequence(call: Call, made: dict[str, Any], calls: int = 3) -> None:
    """Calls, one after the other."""

    async def asynchronous():
        for _ in range(calls):
            await call(made)

    if inspect.iscoroutinefunction(call):
        asyncio.run(asynchronous())
        return
    for _ in range(calls):
        call(made)


@pytest.fixture(params=CALLS, ids=lambda known: known[1].__name__)
def sdk(request):
    return request.param


def test_each_call_of_an_sdk_takes_a_slot(sdk, page, left):
    heading, call = sdk
    in_sequence(call, page(heading))
    assert left == pytest.approx([0.0, 0.1, 0.2])


def test_after_a_429_the_next_request_of_any_caller_waits(sdk, page, server, left, impatient):
    """A retry of the SDK, or where it has none the next call."""
    heading, call = sdk
    server.refused = 1
    made = page(heading)
    repeats = call.__name__.removesuffix("_async") in REPEATING
    with nullcontext() if repeats else pytest.raises(Exception, match=r"429|slow down|rate"):
        in_sequence(call, made, 1)
    assert len(left) == 1 + repeats
    in_sequence(call, made, 1)
    assert left == pytest.approx([0.0, 7.1, 7.2] if repeats else [0.0, 7.1])


def test_the_page_has_a_section_for_each_sdk():
    headings = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    # Tested below, in test_hooks.py, and in an environment of its own.
    run = {heading for heading, _ in CALLS} | {"MCP", "Clients with hooks of their own", "instructor"}
    assert {heading for heading in headings if list(blocks(part(heading)))} == run


@pytest.fixture
def tools(shapekit_time):
    tools = Tools(shapekit_time.now).start()
    yield tools
    tools.close()


@pytest.fixture(params=[("tools", "/mcp"), ("tools_by_sse", "/sse")], ids=["streamable HTTP", "SSE"])
def listed(request, page, tools):
    """Lists the tools of the server, in a session for it."""
    name, path = request.param
    made = page("MCP")
    return lambda: [tool.name for tool in asyncio.run(made[name](tools.url + path)).tools]


def test_each_message_to_an_mcp_server_takes_a_slot(listed, tools):
    assert listed() == listed() == ["add"]
    assert len(tools.left) >= 4
    # The first leaves at once, and each other a tenth of a second after the one before.
    assert tools.left[0] == 0.0
    assert tools.left[-1] >= (len(tools.left) - 1) / 10 - 1e-6


def test_a_429_of_an_mcp_server_holds_its_messages(listed, tools):
    tools.refused = 1
    with suppress(httpx2.HTTPStatusError):  # over streamable HTTP the client tries an older handshake
        listed()
    assert listed() == ["add"]
    # Of two requests that are on their way at once, time may go on before the first is recorded.
    assert tools.left[0] == 0.0
    assert len(tools.left) >= 4
    assert min(tools.left[1:]) >= 7.0999
