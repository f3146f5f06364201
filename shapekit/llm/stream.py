"""Streams of a language model's answer, handed on as they are, and settled as soon as they tell their usage.

One that breaks off, is closed early or is thrown away has not told it: nobody knows how far the server went,
and what was reserved for it stands.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from shapekit.llm.call import LLMCall, unheard
from shapekit.llm.usage import Heard, TokenUsage

__all__ = ["AsyncSettledStream", "SettledStream"]


class _Listened:
    """A stream that is listened to. Everything else that it can do it still does."""

    def __init__(self, inner: Any, call: LLMCall) -> None:
        self._inner = inner
        self._call = call
        self._heard = Heard()
        self._settled: TokenUsage | None = None
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _news(self, *, ended: bool) -> TokenUsage | None:
        """The usage, if it is known by now and was not settled."""
        usage = self._heard.usage if ended or self._heard.is_final else None
        if usage == self._settled:
            return None
        self._settled = usage
        return usage

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"


class SettledStream(_Listened):
    """An iterator over the answer, and a context manager."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            item = next(self._inner)
        except StopIteration:
            self._settle(self._news(ended=True))
            raise
        except BaseException as error:
            if self._is_first:
                self._call.failed(error)
            raise
        self._is_first = False
        self._heard.hear(item)
        self._settle(self._news(ended=False))
        return item

    def _settle(self, usage: TokenUsage | None) -> None:
        if usage is not None:
            with unheard(self._call):
                self._call.settle(usage)

    def __enter__(self) -> Self:
        if hasattr(self._inner, "__enter__"):
            self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if hasattr(self._inner, "__exit__"):
            return self._inner.__exit__(kind, error, trace)
        return self._inner.close()


class AsyncSettledStream(_Listened):
    """An asynchronous iterator over the answer, and an asynchronous context manager."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await anext(self._inner)
        except StopAsyncIteration:
            await self._settle(self._news(ended=True))
            raise
        except BaseException as error:
            if self._is_first:
                await self._call.afailed(error)
            raise
        self._is_first = False
        self._heard.hear(item)
        await self._settle(self._news(ended=False))
        return item

    async def _settle(self, usage: TokenUsage | None) -> None:
        if usage is not None:
            with unheard(self._call):
                await self._call.asettle(usage)

    async def __aenter__(self) -> Self:
        if hasattr(self._inner, "__aenter__"):
            await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if hasattr(self._inner, "__aexit__"):
            return await self._inner.__aexit__(kind, error, trace)
        return await self._inner.aclose()
