"""What the hooks for Pydantic AI cost a request: `python -m tests.heavy.pydantic_ai.overhead`."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart
from pydantic_ai.models import ModelRequestParameters
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
    messages, parameters = [ModelRequest.user_text_prompt("why?")], ModelRequestParameters()
    return amicros(lambda: model.request(messages, {"max_tokens": 100}, parameters))


if __name__ == "__main__":
    model = FunctionModel(answer)
    permits = ShapedConcurrencyLimiter(Policy(concurrency=10))
    report(
        "Pydantic AI, request of a model",
        cost(model),
        budget=cost(ShapedModel(model, BUDGET)),
        permit=cost(ConcurrencyLimitedModel(model, permits)),
    )
    print(f"Pydantic AI, run of an agent: {amicros(lambda: Agent(model).run('why?')):.0f} µs without")
