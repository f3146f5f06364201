"""Estimates rather exceed the usage than fall below it, for every form of a call."""

from collections import deque

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import LLMBudget, TokenUsage
from shapekit.llm.usage import counter, estimated


def by_words(text):
    return len(text.split())


class Encoding:
    """Like tiktoken's: `encode` refuses text that looks like one of its special tokens."""

    def encode(self, text):
        assert "<|end|>" not in text, "refused"
        return text.split()

    def encode_ordinary(self, text):
        return text.split()


class Tokenizer:
    def encode(self, text):
        return text.split()


QUESTION = [{"role": "user", "content": "one two three"}]


@pytest.mark.parametrize("count", [by_words, Encoding(), Tokenizer()])
def test_a_counter_counts_the_texts(count):
    usage = estimated({"messages": QUESTION, "max_tokens": 9}, counter(count))
    assert usage == TokenUsage(6, 9)  # the names in a message count, too


def test_a_mark_in_a_text_is_text():
    usage = estimated({"prompt": "one <|end|> three", "max_tokens": 9}, counter(Encoding()))
    assert usage == TokenUsage(3, 9)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "n": 3}, 15),
        ({"max_tokens": 5, "n": 2, "best_of": 4}, 20),
        ({"max_tokens": 5, "n": 0}, 5),
        ({"config": {"max_output_tokens": 7}}, 7),
        ({"config": {"max_output_tokens": None}}, 1_024),
        ({"max_tokens": None}, 1_024),
        ({"max_tokens": object()}, 1_024),
        ({"n": object()}, 1_024),
        ({}, 1_024),
    ],
)
def test_the_answer_is_estimated_at_its_longest(arguments, output):
    assert estimated(arguments, len) == TokenUsage(0, output)


@pytest.mark.parametrize(
    ("prompt", "answers"), [("a", 1), (["a"], 1), (["a", "b", "c"], 3), ([1, 2], 1), ([[1], [2, 3]], 2)]
)
def test_each_of_several_prompts_is_answered(prompt, answers):
    assert estimated({"prompt": prompt, "max_tokens": 5, "n": 2}, len).output == 10 * answers


@pytest.mark.parametrize(
    "arguments",
    [
        {"messages": [{"content": "why?"}]},
        {"messages": [{"content": [{"text": "why?"}]}]},
        {"prompt": "why?"},
        {"prompt": ["why?", "who?"]},
        {"input": "why?"},
        {"input": [{"content": "why?"}]},
        {"system": "why?"},
        {"instructions": "why?"},
        {"tools": [{"name": "why?"}]},
        {"tools": {"why?": {"name": "who?"}}.values()},
        {"messages": deque([{"content": "why?"}])},
        {"contents": ["why?", {"parts": [{"text": "who?"}]}]},
        {"config": {"system_instruction": "why?", "tools": [{"name": "who?"}]}},
    ],
)
def test_every_text_that_a_model_reads_counts(arguments):
    assert estimated(arguments, lambda text: text.count("?")).input == str(arguments).count("?")


def test_an_iterator_that_can_be_read_only_once_is_refused(refused):
    refused(lambda: estimated({"messages": ({"content": text} for text in "ab")}, len), "arguments")


def test_arguments_that_a_model_does_not_read_do_not_count():
    request = {"model": "some", "metadata": {"user": "x" * 900}, "timeout": 5, "stream": True}
    assert estimated(request, len).input == 0


def test_an_earlier_answer_in_the_messages_counts():
    class Message(pydantic.BaseModel):
        content: str
        refusal: str | None = None

    assert estimated({"messages": [Message(content="one two")]}, by_words).input == 3


@pytest.mark.parametrize("argument", ["response_format", "text_format", "output_format"])
def test_a_response_class_counts_by_its_schema(argument):
    class Answer:
        @classmethod
        def model_json_schema(cls):
            return {"title": "one two"}

        def model_dump(self):
            raise AssertionError("there is no answer yet")

    assert estimated({argument: Answer}, by_words).input == 3
    assert estimated({argument: int}, by_words).input == 0


@pytest.mark.parametrize(
    "picture",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}},
        {"type": "image", "source": {"type": "base64", "data": "A" * 10**6}},
        {"type": "file", "file": {"file_data": "A" * 10**6}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 10**6}},
        {"type": "image_generation_call", "result": "A" * 10**6},
    ],
)
def test_a_picture_does_not_count_by_its_letters(picture):
    usage = estimated({"messages": [{"role": "user", "content": [picture]}]}, counter(None))
    assert 1_600 <= usage.input < 1_700


@pytest.mark.parametrize(
    "part",
    [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "why? " * 6_000}},
        {"type": "tool_use", "name": "save", "input": {"data": "why? " * 6_000}},
        {"type": "text", "text": "data: " + "why? " * 6_000},
        {"type": "image_url", "image_url": {"url": "data:text/plain," + "why? " * 6_000}},
        {"type": "function_call_output", "result": "A" * 30_000},
    ],
)
def test_text_counts_by_its_letters_wherever_it_stands(part):
    usage = estimated({"messages": [{"role": "user", "content": [part]}]}, counter(None))
    assert usage.input >= 10_000


@pytest.mark.parametrize("argument", ["prompt", "input"])
@pytest.mark.parametrize("tokens", [[1] * 90, [[1] * 40, [2] * 50]])
def test_a_token_id_counts_as_one(argument, tokens):
    assert estimated({argument: tokens}, counter(None)).input == 90


@given(st.text(max_size=200))
def test_no_letter_is_less_than_a_third_of_a_token(text):
    tokens = estimated({"prompt": text}, counter(None)).input
    assert 3 * tokens >= len(text.encode(errors="replace"))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=5))
def test_more_text_is_never_estimated_at_less(texts):
    inputs = [estimated({"prompt": texts[:length]}, counter(None)).input for length in range(len(texts) + 1)]
    assert inputs == sorted(inputs)


def test_a_counter_is_used_for_admitted_calls():
    budget = LLMBudget(tokens="60k/min", count=by_words)
    assert budget.admit({"prompt": "one two three", "max_tokens": 9}).reserved == TokenUsage(3, 9)


@pytest.mark.parametrize("tokens", [2.5, -1, None, True, "3"])
def test_a_count_that_is_no_number_of_tokens_is_refused(refused, tokens):
    budget = LLMBudget(tokens="60k/min", count=lambda text: tokens)
    refused(lambda: budget.admit({"prompt": "why?"}), "count")
