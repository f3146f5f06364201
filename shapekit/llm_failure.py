"""Failures: which errors of a call say that it used up no tokens, and which that it was never sent.

Careful: of a timeout, a lost connection or an error of the server nobody knows what the model did.
"""

from __future__ import annotations

from socket import gaierror

from shapekit.ending import Ending
from shapekit.errors import RateLimitedError

__all__ = ["never_ran", "never_sent"]

_UNKNOWN = (408, 499)
"""Of the refusals those that come after a wait: the model may have been at work."""
_NEVER_SENT = (RateLimitedError, ConnectionRefusedError, gaierror)


def never_sent(error: BaseException) -> bool:
    """Whether the call did not leave: refused by us, or nobody there to send it to.

    Clients wrap such errors in their own, so what they come from counts: their causes, or what was replaced
    by them (`from None`). Of several that failed together, all.
    """
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, _NEVER_SENT):
            return True
        if isinstance(cause, BaseExceptionGroup):
            return all(map(never_sent, cause.exceptions))
        seen.add(id(cause))
        replaced = cause.__context__ if cause.__suppress_context__ else None
        cause = cause.__cause__ or replaced
    return False


def never_ran(error: BaseException) -> bool:
    """Whether no model did anything: it was never sent, or the server refused it (a 4xx, 429 too)."""
    answer = Ending(failure=error).answer
    if answer is not None:
        return 400 <= answer.status < 500 and answer.status not in _UNKNOWN
    return never_sent(error)
