"""A model of LlamaIndex that calls the server of the tests with httpx."""

from typing import Any

import httpx
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from pydantic import PrivateAttr


class Model(CustomLLM):
    url: str
    max_tokens: int = 100
    _client: Any = PrivateAttr(default_factory=httpx.Client)

    @property
    def metadata(self):
        return LLMMetadata(model_name="some")

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        request = {"prompt": prompt, "max_tokens": self.max_tokens, **kwargs}
        answer = self._client.post(f"{self.url}/completions", json=request)
        answer.raise_for_status()
        return CompletionResponse(text="because", raw=answer.json())

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **kwargs):
        raise NotImplementedError
