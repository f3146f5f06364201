"""httpx clients in other programs: mocked by respx, inside the SDKs that take one, or not installed."""

import subprocess
import sys

import anthropic
import httpx
import httpx2
import openai
import pytest
import respx

from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import httpx2 as shaped_httpx2

from ...adapters.http.server import Reply


def test_respx_mocks_the_inner_transport():
    with respx.mock, httpx.Client(transport=shaped_httpx.ShapedTransport(rate=1)) as client:
        respx.get("https://api.x/").respond(204)
        response = client.get("https://api.x/")
    assert response.status_code == 204
    assert response.extensions["shapekit"].key == "api.x"


def once_refused(server, body):
    """Refuses the first request for seven seconds, and answers the next."""
    replies = [Reply(429, {"Retry-After": "7", "x-should-retry": "false"})]
    answer = Reply(200, {"Content-Type": "application/json"}, body)
    server.answer = lambda _: replies.pop() if replies else answer


@pytest.fixture
def http_client(clock):
    transport = shaped_httpx2.ShapedTransport(rate="10/s", clock=clock)
    with httpx2.Client(transport=transport) as client:
        yield client


def test_openai_waits_when_the_server_says_so(server, clock, http_client):
    once_refused(server, b'{"object": "list", "data": []}')
    client = openai.OpenAI(api_key="none", base_url=server.url, http_client=http_client)
    with pytest.raises(openai.RateLimitError):
        client.models.list()
    assert client.models.list().data == []
    assert clock.now() == 7.1


def test_anthropic_waits_when_the_server_says_so(server, clock, http_client):
    once_refused(server, b'{"input_tokens": 3}')
    client = anthropic.Anthropic(api_key="none", base_url=server.url, http_client=http_client)
    prompt = {"model": "some", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(anthropic.RateLimitError):
        client.messages.count_tokens(**prompt)
    assert client.messages.count_tokens(**prompt).input_tokens == 3
    assert clock.now() == 7.1


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_missing_package_is_named_with_its_pip_line(library):
    code = f"import sys; sys.modules[{library!r}] = None; import shapekit.integrations.{library}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "ImportError: ShapedTransport needs a package that is not installed" in run.stderr
    assert f'pip install "shapekit[{library}]"' in run.stderr
