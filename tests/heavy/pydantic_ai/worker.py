"""A worker of a fleet that calls a model through Pydantic AI.

KIND is how it is limited: "shaped", or "concurrency": one in flight, by a limit of Pydantic AI's own.
"""

import asyncio
import sys
import threading

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from shapekit.integrations.pydantic_ai import ShapedRequests

from ...llm.fleet import budget, work

if __name__ == "__main__":
    kind, url, store, seconds = sys.argv[1:]
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    model = OpenAIChatModel("some", provider=OpenAIProvider(openai_client=client))
    if kind == "shaped":
        agent = Agent(model, capabilities=[ShapedRequests(budget(store))])
    else:
        agent = Agent(ConcurrencyLimitedModel(model, limiter=1))
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def ask(question, most):
        run = agent.run(question, model_settings={"max_tokens": most})
        asyncio.run_coroutine_threadsafe(run, loop).result()

    work(ask, float(seconds), ModelAPIError)
