"""What the hooks for LangChain and LlamaIndex cost a call: `python -m tests.heavy.langchain.overhead`."""

import time

from langchain.agents import create_agent

from shapekit import LLMBudget, Policy
from shapekit.integrations import langchain as for_langchain
from shapekit.integrations import llama_index as for_llama_index

from ..llama_index import fakes
from .models import Chat, Vectors

CALLS, ROUNDS = 300, 9
FAST = "1000000/s"


def micros(call):
    """The best of a few rounds, for each call."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - began)
    return best / CALLS * 1e6


def report(name, bare, *shaped):
    without = micros(bare)
    costs = [f"{what} {micros(call) - without:.0f}" for what, call in shaped]
    print(f"{name}: {without:.0f} µs without; more with {', '.join(costs)} µs", flush=True)


def langchain(policy, budget):
    limiter, asked = (
        for_langchain.ShapedRateLimiter(budget),
        {"messages": [{"role": "user", "content": "why?"}]},
    )
    paced = Chat(rate_limiter=for_langchain.ShapedRateLimiter(policy))
    counted = Chat(rate_limiter=limiter, callbacks=[limiter.handler])
    bare = Chat()
    report(
        "LangChain, chat model",
        lambda: bare.invoke("why?"),
        ("a policy", lambda: paced.invoke("why?")),
        ("a budget", lambda: counted.invoke("why?")),
    )
    agent, shaped = (
        create_agent(bare),
        create_agent(bare, middleware=[for_langchain.shaped_middleware(budget)]),
    )
    report("LangChain, agent", lambda: agent.invoke(asked), ("a budget", lambda: shaped.invoke(asked)))
    inner = Vectors()
    texts = ["abc"] * 10
    report(
        "LangChain, embeddings",
        lambda: inner.embed_documents(texts),
        ("a policy", lambda: for_langchain.ShapedEmbeddings(inner, policy).embed_documents(texts)),
        ("a budget", lambda: for_langchain.ShapedEmbeddings(inner, budget).embed_documents(texts)),
    )


def llama_index(policy, budget):
    bare, embedding = fakes.Answering(), fakes.Vectors()
    asked = [fakes.ChatMessage("why?")]
    # Its handlers are added with the first limiter: until then nothing of shapekit is called.
    without, embedded = micros(lambda: bare.chat(asked)), micros(lambda: embedding.get_text_embedding("abc"))
    paced = fakes.Answering(rate_limiter=for_llama_index.ShapedRateLimiter(policy))
    counted = fakes.Answering(rate_limiter=for_llama_index.ShapedRateLimiter(budget))
    embedding.rate_limiter = for_llama_index.ShapedRateLimiter(budget)
    print(
        f"LlamaIndex, chat model: {without:.0f} µs without; "
        f"more with a policy {micros(lambda: paced.chat(asked)) - without:.0f}, "
        f"a budget {micros(lambda: counted.chat(asked)) - without:.0f} µs"
    )
    more = micros(lambda: embedding.get_text_embedding("abc")) - embedded
    print(f"LlamaIndex, embedding: {embedded:.0f} µs without; more with a budget {more:.0f} µs")


if __name__ == "__main__":
    policy, budget = Policy(FAST), LLMBudget(requests=FAST, tokens="1000000000/s")
    langchain(policy, budget)
    llama_index(policy, budget)
