"""Embeddings wait for their requests, and for the tokens of their texts."""

import asyncio
from contextlib import closing

import pytest

from shapekit import ConfigError, LLMBudget
from shapekit.integrations.langchain import ShapedEmbeddings

from ...llm.errors import RefusedByServer
from .models import Vectors

TEXTS = ["abc", "abcdef", "a", "", "abc"]


def test_texts_are_embedded_a_batch_at_a_time(do, clock, policy):
    inner = Vectors()
    embeddings = ShapedEmbeddings(inner, policy("1/s"), batch_size=2)
    assert do.call(embeddings, "embed_documents", TEXTS) == [[3.0], [6.0], [1.0], [0.0], [3.0]]
    assert inner.batches == [2, 2, 1]
    assert clock.now() == 2


def test_a_query_is_a_call(do, clock, policy):
    embeddings = ShapedEmbeddings(Vectors(), policy("1/s"))
    assert [do.call(embeddings, "embed_query", "abc") for _ in range(2)] == [[3.0], [3.0]]
    assert clock.now() == 1


def test_the_length_of_the_texts_is_charged(do, budget, used):
    embeddings = ShapedEmbeddings(Vectors(), budget)
    do.call(embeddings, "embed_documents", ["abc" * 10, "abc" * 20])
    assert used() == 31  # three bytes are a token, and two texts are never one
    do.call(embeddings, "embed_query", "abc")
    assert used() == 32


def test_no_texts_make_no_call(do, budget, used):
    assert do.call(ShapedEmbeddings(Vectors(), budget), "embed_documents", []) == []
    assert used() == 0


def test_a_refusal_costs_no_tokens_and_holds_all_calls(do, budget, used, clock):
    inner = Vectors()
    inner.errors.append(RefusedByServer(429, {"Retry-After": "30"}))
    embeddings = ShapedEmbeddings(inner, budget)
    with pytest.raises(RefusedByServer):
        do.call(embeddings, "embed_query", "abc")
    assert used() == 0
    do.call(embeddings, "embed_query", "abc")
    assert clock.now() >= 30


def test_a_permit_comes_back_after_an_error_or_a_cancellation(do, policy):
    inner = Vectors()
    embeddings = ShapedEmbeddings(inner, policy("1000/s", concurrency=1))
    inner.errors += [ValueError(), asyncio.CancelledError()]
    for error in (ValueError, asyncio.CancelledError):
        with pytest.raises(error):
            do.call(embeddings, "embed_query", "abc")
    assert do.call(embeddings, "embed_query", "abc") == [3.0]


def test_a_batch_has_at_least_one_text(policy):
    with pytest.raises(ConfigError, match="batch_size=0"):
        ShapedEmbeddings(Vectors(), policy("1/s"), batch_size=0)


def test_the_same_budget_serves_models_and_embeddings(do, clock):
    with closing(LLMBudget(requests="1/s burst 1", tokens="60k/min", clock=clock)) as budget:
        for _ in range(2):
            do.call(ShapedEmbeddings(Vectors(), budget), "embed_query", "abc")
    assert clock.now() == 1
