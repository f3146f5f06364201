"""Three processes with one budget, before a server that counts requests and tokens strictly."""

import litellm
import pytest
from litellm.integrations.custom_logger import CustomLogger

from shapekit.integrations.litellm import ShapedCalls

from ...llm.fleet import QUESTION, budget
from ...llm.strict import StrictFleet


class Departures(CustomLogger):
    """Notes when an attempt leaves: LiteLLM has more to do before it returns."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    async def async_pre_call_deployment_hook(self, kwargs, call_type):
        kwargs["metadata"]["left"] = self.clock.now()


class TestLiteLLM(StrictFleet):
    worker = "tests.heavy.litellm.worker"

    @pytest.fixture(autouse=True)
    def _callbacks(self, monkeypatch):
        monkeypatch.setattr(litellm, "callbacks", [])
        yield
        litellm.logging_callback_manager._reset_all_callbacks()

    def asker(self, store, clock):
        # LiteLLM has its callbacks once in a process, so the workers share one here.
        if not litellm.callbacks:
            litellm.callbacks = [ShapedCalls(budget(store)), Departures(clock)]

        async def ask(question, most):
            read = len(QUESTION) // 3
            usage = litellm.Usage(prompt_tokens=read, completion_tokens=most, total_tokens=read + most)
            messages = [{"role": "user", "content": question}]
            answer, metadata = litellm.ModelResponse(usage=usage), {}
            await litellm.acompletion(
                "openai/some", messages, max_tokens=most, mock_response=answer, metadata=metadata
            )
            return metadata["left"]

        return ask
