import asyncio
import os

import pytest

# LiteLLM would fetch prices from the internet while it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm.integrations.custom_logger import CustomLogger

from shapekit import LLMBudget
from shapekit.integrations.litellm import ShapedCalls

from ...crew import PATIENCE_S
from .server import Server

RESERVED = 108
"""The tokens that a question of `ask` reserves: the prompt, and a hundred for the answer."""


@pytest.fixture
def server():
    with Server() as server:
        yield server


@pytest.fixture
def budget(clock):
    """Makes a budget on the test's clock, whose quota shows what was used."""
    return lambda **options: LLMBudget(
        **{"requests": "10/s burst 1", "tokens": "90k/min", "tokens_per_day": "1M", "clock": clock, **options}
    )


@pytest.fixture
def shape(monkeypatch, last_callback):
    """Registers a budget with LiteLLM for one test."""
    litellm.suppress_debug_info = True

    def registered(budget, **options):
        calls = ShapedCalls(budget, **options)
        monkeypatch.setattr(litellm, "callbacks", [calls, last_callback])
        return calls

    yield registered
    # LiteLLM keeps callbacks elsewhere, too, one of each class.
    litellm.logging_callback_manager._reset_all_callbacks()


@pytest.fixture
def question(server):
    messages = [{"role": "user", "content": "why?"}]
    return {
        "model": "openai/some",
        "messages": messages,
        "max_tokens": 100,
        "api_base": server.url,
        "api_key": "none",
        "max_retries": 0,
    }


@pytest.fixture
def callbacks_done(last_callback):
    """Waits until LiteLLM has run its callbacks after a call, which it does later."""
    return lambda: asyncio.wait_for(last_callback.came.acquire(), PATIENCE_S)


@pytest.fixture
def last_callback():
    return LastCallback()


class LastCallback(CustomLogger):
    """The callback that runs last."""

    def __init__(self):
        super().__init__()
        self.came = asyncio.Semaphore(0)

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.came.release()

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        self.came.release()


def pytest_collection_modifyitems(items):
    """Ignore the warnings of pydantic about LiteLLM's own models."""
    for item in items:
        if "heavy/litellm" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"))
