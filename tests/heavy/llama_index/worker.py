"""A worker of a fleet that asks a model of LlamaIndex.

KIND is how it is limited: "shaped", or by LlamaIndex's own limiters: "bucket", "window" (each worker has the
whole limit), or "divided" (each has a third of it, by a bucket).
"""

import sys

import httpx
from llama_index.core import rate_limiter as theirs

from shapekit import QueueFullError
from shapekit.integrations.llama_index import ShapedRateLimiter

from ...llm.fleet import WORKERS, budget, work
from ...llm.provider import PER_WINDOW, REQUESTS_PER_WINDOW, WINDOW_S
from .model import Model


def limiter(kind, store):
    if kind == "shaped":
        return ShapedRateLimiter(budget(store))
    part = WORKERS if kind == "divided" else 1
    limits = {"requests_per_minute": REQUESTS_PER_WINDOW / part, "tokens_per_minute": PER_WINDOW / part}
    # The limiters' minute is a window of the server here, so that no test waits for minutes.
    if kind == "window":
        theirs._SLIDING_WINDOW_SECONDS = WINDOW_S
        return theirs.SlidingWindowRateLimiter(**limits)
    bucket = theirs.TokenBucketRateLimiter(**limits)
    bucket._request_refill_rate *= 60 / WINDOW_S
    bucket._token_refill_rate *= 60 / WINDOW_S
    return bucket


if __name__ == "__main__":
    kind, url, store, seconds = sys.argv[1:]
    llm = Model(url=url, rate_limiter=limiter(kind, store))
    refusals = httpx.HTTPStatusError, QueueFullError
    work(lambda question, most: llm.complete(question, max_tokens=most), float(seconds), refusals)
