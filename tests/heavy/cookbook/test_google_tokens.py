"""How an `LLMBudget` reads the requests and answers of Google's Gen AI SDK."""

import pytest
from google.genai import types

from shapekit import LLMBudget

WHY = "why? " * 60
QUESTIONS = {
    "a text": WHY,
    "texts": [WHY],
    "a part": types.Part.from_text(text=WHY),
    "contents": [types.Content(role="user", parts=[types.Part.from_text(text=WHY)])],
}
CONFIG = types.GenerateContentConfig(max_output_tokens=500, system_instruction="be brief")


def answer(**counts):
    return types.GenerateContentResponse(
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=36, **counts)
    )


ANSWER = answer(candidates_token_count=7, thoughts_token_count=64, total_token_count=107)


@pytest.fixture
def budget(clock):
    return LLMBudget(tokens_per_day="1M", clock=clock)


def used(budget):
    [quota] = budget.quotas()
    return quota.used


@pytest.mark.parametrize("contents", QUESTIONS.values(), ids=QUESTIONS)
def test_a_call_reserves_its_prompt_and_its_longest_answer(budget, contents):
    def generate_content(*, model, contents, config):
        assert 100 + 500 < used(budget) < 150 + 500
        return ANSWER

    ask = budget.wrap(generate_content)
    assert ask(model="some", contents=contents, config=CONFIG) is ANSWER
    assert used(budget) == 36 + 7 + 64


def test_a_stream_is_charged_the_usage_of_its_last_item(budget):
    def generate_content_stream(*, model, contents, config):
        yield answer(total_token_count=36)
        yield ANSWER

    ask = budget.wrap(generate_content_stream)
    assert len([*ask(model="some", contents=WHY, config=CONFIG)]) == 2
    assert used(budget) == 36 + 7 + 64
