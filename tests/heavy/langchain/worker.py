"""A worker of a fleet that calls OpenAI's chat model of LangChain.

KIND is how it is limited: "shaped", or by LangChain's own limiter: "own" (each worker has the whole rate) or
"divided" (each has a third of it).
"""

import sys

import openai
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import ChatOpenAI

from shapekit import QueueFullError
from shapekit.integrations.langchain import ShapedRateLimiter

from ...llm.fleet import WORKERS, budget, work
from ...llm.provider import PER_WINDOW, WINDOW_S

PER_S = PER_WINDOW / WINDOW_S / 470
"""Calls: what the limit of tokens comes to, with the mean of the sizes and the question."""


def model(kind, url, store):
    options = {"base_url": url, "api_key": "none", "model": "some", "max_retries": 0}
    if kind == "shaped":
        limiter = ShapedRateLimiter(budget(store))
        return ChatOpenAI(rate_limiter=limiter, callbacks=[limiter.handler], **options)
    rate = PER_S if kind == "own" else PER_S / WORKERS
    # It polls; ten times a second, its default, five threads would not reach the rate.
    limiter = InMemoryRateLimiter(requests_per_second=rate, check_every_n_seconds=0.01)
    return ChatOpenAI(rate_limiter=limiter, **options)


if __name__ == "__main__":
    kind, url, store, seconds = sys.argv[1:]
    chat = model(kind, url, store)
    refusals = openai.RateLimitError, QueueFullError
    work(lambda question, most: chat.invoke(question, max_tokens=most), float(seconds), refusals)
