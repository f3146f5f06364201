"""Token, request and money budgets of language models."""

from shapekit.llm.budget import LLMBudget
from shapekit.llm.call import LLMCall
from shapekit.llm.prices import Spending
from shapekit.llm.usage import TokenUsage

__all__ = ["LLMBudget", "LLMCall", "Spending", "TokenUsage"]
