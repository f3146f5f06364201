"""Usage, as answers and streams of every dialect contain it."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import TokenUsage
from shapekit.llm.usage import StreamUsage, usage_of


def objects(value):
    """The same answer with attributes, as the SDKs have it."""
    return json.loads(json.dumps(value), object_hook=lambda fields: SimpleNamespace(**fields))


ANSWERS = {
    "chat": (
        {"usage": {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}, "choices": []},
        (10, 50),
    ),
    "chat, of which some was cached": (
        {
            "usage": {
                "prompt_tokens": 2_000,
                "completion_tokens": 5,
                "total_tokens": 2_005,
                "prompt_tokens_details": {"cached_tokens": 1_920},
            }
        },
        (2_000, 5, 1_920),
    ),
    "responses, of which some was cached and some thought": (
        {
            "usage": {
                "input_tokens": 36,
                "input_tokens_details": {"cached_tokens": 20},
                "output_tokens": 87,
                "output_tokens_details": {"reasoning_tokens": 64},
                "total_tokens": 123,
            }
        },
        (36, 87, 20, 0, 64),
    ),
    "LangChain's message": (
        {
            "input_tokens": 350,
            "output_tokens": 240,
            "total_tokens": 590,
            "input_token_details": {"cache_read": 100, "cache_creation": 200},
            "output_token_details": {"reasoning": 200},
        },
        (350, 240, 100, 200, 200),
    ),
    "LangChain's, with Anthropic's cache by how long it is kept": (
        {
            "input_tokens": 350,
            "output_tokens": 40,
            "total_tokens": 390,
            "input_token_details": {
                "cache_read": 100,
                "cache_creation": 0,
                "ephemeral_5m_input_tokens": 150,
                "ephemeral_1h_input_tokens": 50,
            },
        },
        (350, 40, 100, 200),
    ),
    "LangChain's, of OpenAI's priority": (
        {
            "input_tokens": 350,
            "output_tokens": 240,
            "total_tokens": 590,
            "input_token_details": {"priority_cache_read": 100, "priority_cache_creation": 200},
            "output_token_details": {"priority_reasoning": 200},
        },
        (350, 240, 100, 200, 200),
    ),
    "chat, of which some was written to a cache": (
        {
            "usage": {
                "prompt_tokens": 2_000,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 1_800},
            }
        },
        (2_000, 5, 100, 1_800),
    ),
    "responses, of which some was written to a cache": (
        {
            "usage": {
                "input_tokens": 2_000,
                "output_tokens": 5,
                "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 1_800},
            }
        },
        (2_000, 5, 100, 1_800),
    ),
    "LiteLLM's, with Anthropic's cache in its prompt": (
        {
            "usage": {
                "prompt_tokens": 5_298,
                "completion_tokens": 503,
                "total_tokens": 5_801,
                "prompt_tokens_details": {"cached_tokens": 5_000, "cache_creation_tokens": 248},
                "cache_creation_input_tokens": 248,
                "cache_read_input_tokens": 5_000,
            }
        },
        (5_298, 503, 5_000, 248),
    ),
    "more details than there are tokens": (
        {
            "usage": {
                "prompt_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 8, "cache_creation_tokens": 8},
                "completion_tokens": 5,
                "completion_tokens_details": {"reasoning_tokens": 9},
            }
        },
        (10, 5, 8, 2, 5),
    ),
    "a total with thoughts in it": (
        {"usage": {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 100}},
        (10, 90, 0, 0, 40),
    ),
    "embeddings": ({"usage": {"prompt_tokens": 8, "total_tokens": 8}}, (8, 0)),
    "responses": (
        {"usage": {"input_tokens": 36, "output_tokens": 87, "total_tokens": 123}, "status": "completed"},
        (36, 87),
    ),
    "messages": ({"usage": {"input_tokens": 12, "output_tokens": 6}, "type": "message"}, (12, 6)),
    "messages with a cache": (
        {
            "usage": {
                "input_tokens": 50,
                "cache_creation_input_tokens": 248,
                "cache_read_input_tokens": 100_000,
                "output_tokens": 503,
            }
        },
        (298, 503, 0, 248, 0, 100_000),
    ),
    "a cache that is not used": (
        {"usage": {"input_tokens": 50, "cache_creation_input_tokens": None, "output_tokens": 5}},
        (50, 5),
    ),
    "Gemini's, of which some was cached and some thought": (
        {
            "usage_metadata": {
                "prompt_token_count": 36,
                "cached_content_token_count": 20,
                "candidates_token_count": 7,
                "thoughts_token_count": 64,
                "total_token_count": 107,
            }
        },
        (36, 71, 20, 0, 64),
    ),
    "a usage itself": ({"input_tokens": 1, "output_tokens": 2}, (1, 2)),
    "only a total": ({"usage": {"total_tokens": 7}}, (0, 7)),
}


@pytest.mark.parametrize(("answer", "usage"), ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("form", [dict, objects])
def test_the_usage_of_an_answer_is_read(answer, usage, form):
    assert usage_of(form(answer)) == TokenUsage(*usage)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"usage": None},
        {"usage": {}},
        {"usage": {"prompt_tokens": None, "total_tokens": "60"}},
        {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}},
        {"usage": {"input_tokens": -1}},
        {"usage": {"input_tokens": True}},
        {"usage": {"input_tokens": 1.5}},
        {"usage": {"input_tokens": 10**15}},
        {"usage": [1, 2]},
        "usage",
    ],
)
def test_an_answer_without_a_usage_reads_as_none(answer):
    assert usage_of(answer) is None


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "input_tokens",
                "prompt_tokens",
                "output_tokens",
                "completion_tokens",
                "total_tokens",
                "cache_creation_input_tokens",
                "cache_read_input_tokens",
            ]
        ),
        st.none() | st.integers(-5, 10**6) | st.text(max_size=3) | st.booleans(),
    ),
    st.none()
    | st.dictionaries(
        st.sampled_from(["cached_tokens", "cache_creation_tokens", "reasoning_tokens"]),
        st.none() | st.integers(-5, 10**6),
    ),
)
def test_any_answer_reads_as_a_valid_usage_or_none(usage, details):
    read = usage_of(
        {"usage": {**usage, "prompt_tokens_details": details, "completion_tokens_details": details}}
    )
    assert read is None or (min(read) >= 0 and read.reasoning <= read.output)
    assert read is None or read.cached + read.written <= read.input
    total = usage.get("total_tokens")
    if type(total) is int and total > 0:
        assert read.total >= total


START = {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}}
CACHED = {
    "type": "message_start",
    "message": {"usage": {"input_tokens": 25, "cache_creation_input_tokens": 100, "output_tokens": 1}},
}
TEXT = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "yes"}}
DELTA = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}}
ZERO_INPUT = {
    **DELTA,
    "usage": {"input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 15},
}
STOP = {"type": "message_stop"}
CHUNK = {"choices": [{"delta": {"content": "yes"}}], "usage": None}
COUNTED = {"choices": [{"delta": {"content": "yes"}}], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
LAST = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}
ZEROS = {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
CREATED = {"type": "response.created", "response": {"usage": None}}
PIECE = {"type": "response.output_text.delta", "delta": "yes"}
COMPLETED = {"type": "response.completed", "response": {"usage": {"input_tokens": 36, "output_tokens": 87}}}
CUT = {"type": "response.incomplete", "response": {"usage": {"input_tokens": 36, "output_tokens": 9}}}

FIRST_OF_GEMINI = {"usage_metadata": {"prompt_token_count": 36, "total_token_count": 36}}
LAST_OF_GEMINI = {"usage_metadata": {"prompt_token_count": 36, "candidates_token_count": 9}}

STREAMS = {
    # items, after how many the usage is known, the usage at the end
    "messages": ([START, TEXT, DELTA, STOP], 3, (25, 15)),
    "messages with a cache": ([CACHED, TEXT, DELTA, STOP], 3, (125, 15, 0, 100)),
    "messages that repeat their input as 0": ([CACHED, TEXT, ZERO_INPUT, STOP], 3, (125, 15, 0, 100)),
    "messages cut off": ([START, TEXT], None, None),
    "chat": ([CHUNK, CHUNK, LAST], 3, (5, 7)),
    "chat without": ([CHUNK, CHUNK], None, None),
    "chat that tells zeros": ([CHUNK, ZEROS], None, None),
    "chat that counts on": ([COUNTED, COUNTED], None, (5, 1)),
    "responses": ([CREATED, PIECE, COMPLETED], 3, (36, 87)),
    "responses cut short": ([CREATED, PIECE, CUT], 3, (36, 9)),
    "responses broken off": ([CREATED, PIECE], None, None),
    "Gemini's": ([FIRST_OF_GEMINI, LAST_OF_GEMINI], None, (36, 9)),
    "texts": (["a", "b"], None, None),
    "nothing": ([], None, None),
}


@pytest.mark.parametrize(("items", "known_after", "usage"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("form", [lambda item: item, objects])
def test_the_usage_of_a_stream_is_read(items, known_after, usage, form):
    reader = StreamUsage()
    for number, item in enumerate(items, start=1):
        reader.hear(form(item) if isinstance(item, dict) else item)
        assert reader.is_final is (known_after is not None and number >= known_after)
    assert reader.usage == (None if usage is None else TokenUsage(*usage))
