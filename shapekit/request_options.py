"""Request options: what is said of single requests, where a client has no place of its own for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypedDict, Unpack

from shapekit.rate import Duration

__all__ = ["request_options"]


class RequestOptions(TypedDict, total=False):
    """What may be said of a request."""

    cost: int
    """Instead of what requests cost otherwise."""
    key: str
    """Instead of the one that the request has by its URL."""
    max_wait: Duration
    skip: bool
    """True: not shaped, and not counted."""


_NONE = RequestOptions()
_SAID: ContextVar[RequestOptions] = ContextVar("shapekit_request_options", default=_NONE)


@contextmanager
def request_options(**options: Unpack[RequestOptions]) -> Iterator[None]:
    """Goes for every request that is sent inside, by this thread or task and by tasks that it starts there.

        with request_options(cost=5, max_wait="2s"):
            response = session.get(url)

    Redirects and repetitions are requests, too. One inside another adds to it.
    """
    before = _SAID.set(_SAID.get() | options)
    try:
        yield
    finally:
        _SAID.reset(before)


def options_now() -> RequestOptions | None:
    """What goes for a request that is sent now; None if nothing does."""
    return _SAID.get() or None
