"""What the hooks for LangChain cost a call: `python -m tests.heavy.langchain.overhead`."""

from langchain.agents import create_agent

from shapekit.integrations import langchain as for_langchain

from ...llm.overhead import BUDGET, POLICY, micros, report
from .models import Chat, Vectors

if __name__ == "__main__":
    limiter = for_langchain.ShapedRateLimiter(BUDGET)
    question = {"messages": [{"role": "user", "content": "why?"}]}
    paced = Chat(rate_limiter=for_langchain.ShapedRateLimiter(POLICY))
    counted = Chat(rate_limiter=limiter, callbacks=[limiter.handler])
    bare = Chat()
    report(
        "LangChain, chat model",
        micros(lambda: bare.invoke("why?")),
        policy=micros(lambda: paced.invoke("why?")),
        budget=micros(lambda: counted.invoke("why?")),
    )
    agent = create_agent(bare)
    shaped = create_agent(bare, middleware=[for_langchain.shaped_middleware(BUDGET)])
    report(
        "LangChain, agent",
        micros(lambda: agent.invoke(question)),
        budget=micros(lambda: shaped.invoke(question)),
    )
    inner, texts = Vectors(), ["abc"] * 10
    report(
        "LangChain, embeddings",
        micros(lambda: inner.embed_documents(texts)),
        policy=micros(lambda: for_langchain.ShapedEmbeddings(inner, POLICY).embed_documents(texts)),
        budget=micros(lambda: for_langchain.ShapedEmbeddings(inner, BUDGET).embed_documents(texts)),
    )
