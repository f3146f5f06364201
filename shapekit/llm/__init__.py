"""Token and request budgets of language models."""

from shapekit.llm.budget import LLMBudget
from shapekit.llm.call import LLMCall
from shapekit.llm.usage import TokenUsage

__all__ = ["LLMBudget", "LLMCall", "TokenUsage"]
