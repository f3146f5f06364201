"""HeldStream: the body of a response, whose request is in flight until it ends, breaks or is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from shapekit.admission import Admission

__all__ = ["HeldStream"]


class HeldStream:
    """The body of a response of httpx or httpx2, whose base classes go beside this one.

    Nothing of it is changed. A response that is dropped unread takes the admission with it, and so gives the
    seat back, too.
    """

    def __init__(self, stream: Any, admission: Admission) -> None:
        self._stream = stream
        self._admission = admission

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except Exception:
            self._admission.leave()
            raise
        self._admission.leave()

    def close(self) -> None:
        """Close the body."""
        try:
            self._stream.close()
        finally:
            self._admission.leave()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except Exception:
            await self._admission.aleave()
            raise
        await self._admission.aleave()

    async def aclose(self) -> None:
        """`close`, awaitable."""
        try:
            await self._stream.aclose()
        finally:
            await self._admission.aleave()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
