"""Models of LangChain that call no server, and report a usage."""

from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, Generation, LLMResult
from pydantic import Field

USED = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
TOKENS = 7
"""The usage of a call."""


class Chat(BaseChatModel):
    """Answers "yes", or raises what `errors` holds next."""

    max_tokens: int = 100
    errors: Any = Field(default_factory=list)
    questions: Any = Field(default_factory=list)

    @property
    def _llm_type(self):
        return "chat"

    @property
    def _identifying_params(self):
        return {"max_tokens": self.max_tokens}

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self._called(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("yes", usage_metadata=USED))])

    def bind_tools(self, tools, **kwargs):
        return self.bind(tools=tools, **kwargs)

    def _called(self, messages):
        self.questions.append(messages[-1].content)
        if self.errors:
            raise self.errors.pop(0)


class Stream(Chat):
    """Answers in pieces; its errors come after the first one."""

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        yield ChatGenerationChunk(message=AIMessageChunk("ye"))
        self._called(messages)
        yield ChatGenerationChunk(message=AIMessageChunk("s", usage_metadata=USED))


class Words(Chat):
    """Answers in three words without a usage; `stuck` after two, or lost where `errors` say so."""

    stuck: Any = None

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        yield from (_piece(word) for word in ("one ", "two "))
        self._called(messages)
        yield _piece("three")

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        for piece in self._stream(messages):
            yield piece
            if self.stuck is not None and piece.message.content == "two ":
                await self.stuck()


def _piece(text):
    return ChatGenerationChunk(message=AIMessageChunk(text))


class Completion(BaseLLM):
    @property
    def _llm_type(self):
        return "completion"

    def _generate(self, prompts, stop=None, run_manager=None, **kwargs):
        used = {"token_usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
        return LLMResult(generations=[[Generation(text="yes")] for _ in prompts], llm_output=used)


class Vectors(Embeddings):
    """Records how many texts it is given at a time."""

    def __init__(self):
        self.batches = []
        self.errors = []

    def embed_documents(self, texts):
        self.batches.append(len(texts))
        if self.errors:
            raise self.errors.pop(0)
        return [[float(len(text))] for text in texts]

    def embed_query(self, text):
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts):
        return self.embed_documents(texts)

    async def aembed_query(self, text):
        return self.embed_query(text)
