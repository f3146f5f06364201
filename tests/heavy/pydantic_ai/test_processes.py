"""Three processes with one budget, before a server that counts requests and tokens strictly."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from shapekit.integrations.pydantic_ai import ShapedRequests

from ...llm.fleet import QUESTION, budget
from ...llm.strict import StrictFleet


async def answer(messages, info):
    usage = RequestUsage(input_tokens=len(QUESTION) // 3, output_tokens=info.model_settings["max_tokens"])
    return ModelResponse(parts=[TextPart("yes")], usage=usage)


class TestPydanticAI(StrictFleet):
    worker = "tests.heavy.pydantic_ai.worker"

    def asker(self, store, clock):
        agent = Agent(FunctionModel(answer), capabilities=[ShapedRequests(budget(store))])
        return lambda question, most: agent.run(question, model_settings={"max_tokens": most})
