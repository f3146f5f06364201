"""An exhausted account: its refusal is an error of both libraries, after which a fallback model goes on."""

import asyncio
import pickle

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models.function import FunctionModel

from shapekit import AccountExhaustedError, LLMBudget
from shapekit.integrations import pydantic_ai as shaped

SPENT = ModelHTTPError(429, "some", {"code": "insufficient_quota", "message": "…"})


def refused(messages, info):
    raise SPENT


def test_a_refusal_is_an_error_of_both_libraries(clock):
    budget = LLMBudget(requests="10/s", tokens="90k/min", max_wait="1s", clock=clock)
    agent = Agent(shaped.ShapedModel(FunctionModel(refused), budget), model_settings={"max_tokens": 100})
    with pytest.raises(ModelHTTPError):
        asyncio.run(agent.run("why?"))
    with pytest.raises(ModelAPIError) as caught:
        asyncio.run(agent.run("why?"))
    error = caught.value
    assert type(error) is shaped.AccountExhaustedError
    assert isinstance(error, (AccountExhaustedError, shaped.QuotaExhaustedError))
    assert (error.code, error.retry_after > 58) == ("account_exhausted", True)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args) == (type(error), error.args)
