"""Three processes with one budget, before a server that counts requests and tokens strictly."""

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from shapekit.integrations.langchain import ShapedRateLimiter

from ...llm.fleet import QUESTION, budget
from ...llm.strict import StrictFleet
from .models import Chat


class Model(Chat):
    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        read, most = len(QUESTION) // 3, kwargs["max_tokens"]
        usage = {"input_tokens": read, "output_tokens": most, "total_tokens": read + most}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("yes", usage_metadata=usage))])


class TestLangChain(StrictFleet):
    worker = "tests.heavy.langchain.worker"

    def asker(self, store, clock):
        limiter = ShapedRateLimiter(budget(store))
        model = Model(rate_limiter=limiter, callbacks=[limiter.handler])
        return lambda question, most: model.ainvoke(question, max_tokens=most)
