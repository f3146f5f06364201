"""Ending: how a call ended, as far as limits are concerned: what it returned, or what it raised."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from shapekit.errors import RateLimitedError
from shapekit.feedback import Feedback
from shapekit.feedback.incident import Incidents
from shapekit.rate import Duration

__all__ = ["Ending", "ServerWord"]


class Ending(NamedTuple):
    """What a call returned, or what it raised."""

    result: Any = None
    failure: BaseException | None = None

    @property
    def answer(self) -> Replied | None:
        """The server's answer: what was returned, or what the exception carries, or is."""
        bearers = [self.result]
        if self.failure is not None:
            bearers = [getattr(self.failure, "response", None), self.failure]
        for bearer in bearers:
            for status in (getattr(bearer, "status_code", None), getattr(bearer, "status", None)):
                if isinstance(status, int):
                    return Replied(status, _headers_of(bearer))
        return None


class Replied(NamedTuple):
    """An answer in the form that `Admission.observe` takes."""

    status: int
    headers: Any


class ServerWord:
    """How long the ending of a call itself says to wait: nothing is concluded where it is silent."""

    def __init__(self, max_hold: Duration = "15m") -> None:
        self._feedback = Feedback(max_hold=max_hold)
        self._feedback._incidents = _NothingConcluded(self._feedback.max_hold_s)

    def seconds(self, ending: Ending) -> float:
        """At most `max_hold`; 0 if nothing is said."""
        if isinstance(ending.failure, RateLimitedError):
            return min(ending.failure.retry_after, self._feedback.max_hold_s)
        answer, now = ending.answer, time.time()
        if answer is None:
            return 0.0
        hint = self._feedback.read(answer.status, answer.headers, sent_at=now, received_at=now)
        return 0.0 if hint is None else hint.hold_s


class _NothingConcluded(Incidents):
    """A refusal that does not say how long holds nothing: whoever asks has a better guess."""

    __slots__ = ()

    def unhinted(self, place: Any, first_s: float, sent_at: float, received_at: float) -> float:
        return 0.0


def _headers_of(bearer: Any) -> Any:
    """The raw pairs where the client keeps them, else what it has."""
    raw = getattr(bearer, "raw_headers", None)
    if raw is None:
        headers = getattr(bearer, "headers", None)
        raw = getattr(headers, "raw", headers)
    return () if raw is None else raw
