"""Checked by mypy and pyright, never run: what a budget wraps keeps its signature."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import assert_type

from shapekit import LLMBudget, LLMCall, QuotaUsage, SlidingWindow, Spending, TokenUsage

budget = LLMBudget(requests="500/min", tokens="90k/min", tokens_per_day=2_000_000, key="{model}")
strict = LLMBudget(tokens=SlidingWindow(90_000, "1min"), estimate=lambda prompt, **_: (len(prompt), 500))
paid = LLMBudget(spend="50 USD/day", prices={"some": {"input": "2.50", "output": 10}}, alerts=(0.5, 0.9))


@budget.wrap
def ask(prompt: str, *, max_tokens: int = 500) -> dict[str, int]:
    return {prompt: max_tokens}


@budget.wrap
async def aask(prompt: str) -> bytes:
    return prompt.encode()


@budget.wrap
def pieces(prompt: str) -> Iterator[str]:
    yield prompt


@budget.wrap
async def apieces(prompt: str) -> AsyncIterator[str]:
    yield prompt


def threads() -> None:
    assert_type(ask("why?", max_tokens=5), dict[str, int])
    assert_type(pieces("why?"), Iterator[str])
    ask(5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with budget.admit({"prompt": "why?"}, key="tenant", max_wait="2s", timeout=5) as call:
        assert_type(call, LLMCall)
        assert_type(call.reserved, TokenUsage)
        assert_type(call.settle(60), bool)
        assert_type(call.delay, float)
    assert_type(budget.quotas("tenant"), list[QuotaUsage])
    assert_type(budget.spending("tenant"), list[Spending])
    assert_type(budget.listen(print), ExitStack)


async def tasks() -> None:
    assert_type(await aask("why?"), bytes)
    async for piece in apieces("why?"):
        assert_type(piece, str)
    async with budget.aadmit((100, 500)) as call:
        assert_type(await call.asettle((90, 40)), bool)
    await budget.aclose()
