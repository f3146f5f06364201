"""A worker of a fleet that calls a model through LiteLLM.

KIND is how it is limited: "shaped", or "router": by the limits of LiteLLM's router, shared over Redis.
"""

import asyncio
import datetime as dt
import os
import sys
import threading
import time
from urllib.parse import urlsplit

# LiteLLM would fetch prices from the internet while it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm.router_utils.pre_call_checks import model_rate_limit_check as theirs

from shapekit.integrations.litellm import ShapedCalls

from ...llm.fleet import budget, work
from ...llm.provider import PER_WINDOW, REQUESTS_PER_WINDOW, WINDOW_S

PAUSE_S = 0.05
"""Seconds that a caller waits after a refusal by the router, which says "a minute", whatever is left."""


class Window(dt.datetime):
    """The router's minute is a window of the server here, so that no test waits for minutes."""

    def strftime(self, form):
        return str(int(self.timestamp() // WINDOW_S))


def asking(kind, url, store):
    messages = lambda question: [{"role": "user", "content": question}]  # noqa: E731
    params = {"model": "openai/some", "api_base": url, "api_key": "none", "max_retries": 0}
    if kind == "shaped":
        litellm.callbacks = [ShapedCalls(budget(store))]
        return lambda question, most: litellm.acompletion(
            messages=messages(question), max_tokens=most, **params
        )
    theirs.get_utc_datetime = lambda: Window.now(dt.UTC)
    params |= {"tpm": PER_WINDOW, "rpm": REQUESTS_PER_WINDOW}
    deployment = {"model_name": "some", "litellm_params": params, "model_info": {"id": "some"}}
    redis = urlsplit(store)
    router = litellm.Router(
        [deployment],
        redis_host=redis.hostname,
        redis_port=redis.port,
        num_retries=0,
        optional_pre_call_checks=["enforce_model_rate_limits"],
    )
    return lambda question, most: router.acompletion(
        model="some", messages=messages(question), max_tokens=most
    )


if __name__ == "__main__":
    kind, url, store, seconds = sys.argv[1:]
    litellm.suppress_debug_info = True
    made = asking(kind, url, store)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def ask(question, most):
        try:
            asyncio.run_coroutine_threadsafe(made(question, most), loop).result()
        except litellm.RateLimitError:
            if kind == "router":
                time.sleep(PAUSE_S)
            raise

    work(ask, float(seconds), litellm.RateLimitError)
