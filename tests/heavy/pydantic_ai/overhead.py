"""What the hooks for Pydantic AI cost a call: `python -m tests.heavy.pydantic_ai.overhead`."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from shapekit import Policy
from shapekit.integrations.pydantic_ai import ShapedConcurrencyLimiter, ShapedModel

from ...llm.overhead import BUDGET, amicros, report


async def answer(messages, info):
    usage = RequestUsage(input_tokens=3, output_tokens=4)
    return ModelResponse(parts=[TextPart("yes")], usage=usage)


def cost(model):
    agent = Agent(model)
    return amicros(lambda: agent.run("why?"))


model = FunctionModel(answer)
permits = ShapedConcurrencyLimiter(Policy(concurrency=10))
report(
    "Pydantic AI, agent",
    cost(model),
    budget=cost(ShapedModel(model, BUDGET)),
    permit=cost(ConcurrencyLimitedModel(model, permits)),
)
