"""Clients with hooks of their own: an attempt waits for its slot, and a refusal holds the next one."""

import asyncio
import functools
import time
from contextlib import suppress

import pytest
from azure.core.rest import HttpRequest
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from .recipes import left


def azure(made, url):
    made["client"].send_request(HttpRequest("GET", url))


async def azure_async(made, url):
    await made["aclient"].send_request(HttpRequest("GET", url))


async def slack(made, url):
    made["AsyncWebClient"] = functools.partial(AsyncWebClient, base_url=url)
    # It raises a refusal.
    with suppress(SlackApiError):
        await made["post"]("some", "text")


def urllib3(made, url):
    made["http"].request("GET", url)


CALLS = [("Azure", azure), ("Azure", azure_async), ("Slack", slack), ("urllib3", urllib3)]


@pytest.fixture(params=CALLS, ids=lambda known: known[1].__name__)
def known(request):
    return request.param


@pytest.fixture
def impatient(monkeypatch):
    """Switch off the SDKs' own waits before a retry: only shapekit waits."""

    async def asleep(*_):
        pass

    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(asyncio, "sleep", asleep)


def test_each_attempt_takes_a_slot(known, shapekit_time):
    pace = 1.0 if known[0] == "Slack" else 0.1
    instants = left(*known, shapekit_time.now, ["/one", "/two", "/three"])
    assert instants == pytest.approx([0.0, pace, 2 * pace])


def test_a_refusal_holds_the_next_attempt_of_any_caller(known, shapekit_time, impatient):
    instants = left(*known, shapekit_time.now, ["/one", "/two"], refused=1)
    if known[0] == "Slack":
        # This client sends nothing again.
        assert instants == pytest.approx([0.0, 8.0])
    else:
        assert instants == pytest.approx([0.0, 7.1, 7.2])


def test_each_redirect_takes_a_slot(shapekit_time):
    assert left("urllib3", urllib3, shapekit_time.now, ["/moved"]) == pytest.approx([0.0, 0.1])
