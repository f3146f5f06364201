"""What the hooks for LiteLLM cost a call: `python -m tests.heavy.litellm.overhead`."""

import os

# LiteLLM would fetch prices from the internet while it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm.integrations.custom_logger import CustomLogger

from shapekit.integrations.litellm import ShapedCalls

from ...llm.overhead import BUDGET, amicros, report

messages = [{"role": "user", "content": "why?"}]
usage = litellm.Usage(prompt_tokens=3, completion_tokens=4, total_tokens=7)


def ask():
    answer = litellm.ModelResponse(usage=usage)
    return litellm.acompletion(model="openai/some", messages=messages, mock_response=answer)


def plain():
    litellm.callbacks = [CustomLogger()]
    return amicros(ask)


def shaped():
    litellm.callbacks = [ShapedCalls(BUDGET)]
    return amicros(ask)


if __name__ == "__main__":
    # A callback that does nothing costs as much as LiteLLM's call of it.
    report("LiteLLM", plain(), budget=shaped())
