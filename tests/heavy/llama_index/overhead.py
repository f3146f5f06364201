"""What the hooks for LlamaIndex cost a call: `python -m tests.heavy.llama_index.overhead`."""

from shapekit.integrations.llama_index import ShapedRateLimiter

from ...llm.overhead import BUDGET, POLICY, micros, report
from . import fakes

if __name__ == "__main__":
    bare, embedding = fakes.Answering(), fakes.Vectors()
    messages = [fakes.ChatMessage("why?")]
    # The first limiter adds its handlers: until then no code of shapekit runs.
    without, embedded = (
        micros(lambda: bare.chat(messages)),
        micros(lambda: embedding.get_text_embedding("abc")),
    )

    paced = fakes.Answering(rate_limiter=ShapedRateLimiter(POLICY))
    counted = fakes.Answering(rate_limiter=ShapedRateLimiter(BUDGET))
    embedding.rate_limiter = ShapedRateLimiter(BUDGET)
    report(
        "LlamaIndex, chat model",
        without,
        policy=micros(lambda: paced.chat(messages)),
        budget=micros(lambda: counted.chat(messages)),
    )
    report("LlamaIndex, embedding", embedded, budget=micros(lambda: embedding.get_text_embedding("abc")))
