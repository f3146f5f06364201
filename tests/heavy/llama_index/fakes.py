"""Models of LlamaIndex that call no server, and report a usage."""

import asyncio
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import LLM, CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from pydantic import Field

RAW = {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
TOKENS = 7
"""The usage of a call."""


class Answering(LLM):
    """Answers "yes", or raises what `errors` holds next: of a stream at once, or where it `breaks`."""

    breaks: int = 0
    """After how many pieces of a stream an error comes, or all stops that waits for more."""
    stuck: Any = None
    tells: bool = True
    """Whether the last piece of a stream has a usage."""
    max_tokens: int = 100
    errors: Any = Field(default_factory=list)
    calls: Any = Field(default_factory=list)

    @property
    def metadata(self):
        return LLMMetadata(model_name="some")

    def _called(self, question):
        self.calls.append(question)
        if self.errors:
            raise self.errors.pop(0)

    @llm_chat_callback()
    def chat(self, messages, **kwargs):
        self._called(messages)
        return ChatResponse(message=ChatMessage("yes"), raw=RAW)

    @llm_chat_callback()
    async def achat(self, messages, **kwargs):
        await asyncio.sleep(0)
        self._called(messages)
        return ChatResponse(message=ChatMessage("yes"), additional_kwargs=RAW["usage"])

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        self._called(prompt)
        return CompletionResponse(text="yes", raw=RAW)

    @llm_completion_callback()
    async def acomplete(self, prompt, formatted=False, **kwargs):
        self._called(prompt)
        return CompletionResponse(text="yes", raw=RAW)

    @llm_chat_callback()
    def stream_chat(self, messages, **kwargs):
        return self._chat(messages)

    @llm_chat_callback()
    async def astream_chat(self, messages, **kwargs):
        return self._later(self._chat(messages))

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **kwargs):
        return self._completion(prompt)

    @llm_completion_callback()
    async def astream_complete(self, prompt, formatted=False, **kwargs):
        return self._later(self._completion(prompt))

    def _chat(self, question):
        for text, piece, raw in self._pieces(question):
            yield ChatResponse(message=ChatMessage(text), delta=piece, raw=raw)

    def _completion(self, question):
        for text, piece, raw in self._pieces(question):
            yield CompletionResponse(text=text, delta=piece, raw=raw)

    def _pieces(self, question):
        for number, piece in enumerate(("ye", "s")):
            if number == self.breaks:
                self._called(question)
            yield "yes"[: number + 2], piece, RAW if self.tells and number == 1 else None

    async def _later(self, pieces):
        for number, piece in enumerate(pieces, 1):
            yield piece
            if self.stuck is not None and number == self.breaks:
                await self.stuck()


class Custom(CustomLLM):
    """Answers a chat by a completion."""

    @property
    def metadata(self):
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="yes", raw=RAW)

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **kwargs):
        def pieces():
            yield CompletionResponse(text="yes", raw=RAW)

        return pieces()


class Vectors(BaseEmbedding):
    errors: Any = Field(default_factory=list)

    def _get_text_embedding(self, text):
        if self.errors:
            raise self.errors.pop(0)
        return [float(len(text))]

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)
