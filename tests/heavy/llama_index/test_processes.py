"""Three processes with one budget, before a server that counts requests and tokens strictly."""

import pytest
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms.callbacks import llm_completion_callback

from shapekit.integrations.llama_index import ShapedRateLimiter

from ...llm.fleet import budget
from ...llm.strict import StrictFleet
from .conftest import all_done
from .fakes import Answering


class Model(Answering):
    @llm_completion_callback()
    async def acomplete(self, prompt, formatted=False, **kwargs):
        raw = {"usage": {"prompt_tokens": len(prompt) // 3, "completion_tokens": kwargs["max_tokens"]}}
        return CompletionResponse(text="yes", raw=raw)


class TestLlamaIndex(StrictFleet):
    worker = "tests.heavy.llama_index.worker"

    @pytest.fixture(autouse=True)
    def _nothing_is_left_to_threads(self):
        yield
        all_done()

    def asker(self, store, clock):
        model = Model(rate_limiter=ShapedRateLimiter(budget(store)))
        return lambda question, most: model.acomplete(question, max_tokens=most)
