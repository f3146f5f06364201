"""Feedback: from a server's answers to how long nobody may leave."""

from __future__ import annotations

from shapekit.feedback.answer import (
    REFUSED,
    UNAVAILABLE,
    Answer,
    Headers,
    heard,
    picked,
    says_nothing,
    wanted,
)
from shapekit.feedback.dialects import DIALECTS, FIRST_HOLD_S, Dialect, Parser
from shapekit.feedback.hint import SAYS_NOTHING, ServerHint
from shapekit.feedback.incident import Incidents
from shapekit.rate import SECOND_US, Duration, duration_us, one_of

__all__ = ["Feedback"]

_SUCCESS_BELOW = 400
_LEAST_HOLD_S = 0.001
"""Less than this is not worth telling everybody, and is nothing said."""


class Feedback:
    """Reads answers; says what to hold, on which scope, for how long: never longer than `max_hold`.

        >>> feedback = Feedback()
        >>> feedback.read(429, {"Retry-After": "2"}, sent_at=100.0, received_at=100.1)
        ServerHint(hold_s=2.0, remaining=None, limit=None, window_s=None, reset_s=None, scope=None)

    1. A 429, 503 or 529 holds for as long as it says itself; zero, and what has passed, is nothing said.
    2. An answer of any status after which nothing remains holds until the reset, if it names one.
    3. A 429 that says nothing holds for 1 s, 2 s, 4 s …: once in an incident (see `incident.py`).
    4. Everything else holds nothing. A 503 or 529 that says nothing tells of an ill server, not of our rate.

    What a server says is obeyed whenever it comes; only where it is silent is something concluded from
    when the request was sent. Whoever places the hold lets the longer of two stand, so that no answer,
    however late, shortens one.

    - `dialect`: "auto" finds it by the fields of each answer; a name from DIALECTS reads only that one;
      a callable is a parser of one's own, from an Answer (with all its fields) to a ServerHint or None.
    - `max_hold`: the bound of every hold.

    It does no I/O and has no clock; it remembers the incidents of at most 1,024 keys and scopes. It may
    be shared by threads and copied to processes.
    """

    def __init__(self, dialect: str | Parser = "auto", *, max_hold: Duration = "15m") -> None:
        self.dialect = dialect
        self._dialects = _chosen(dialect)
        fields = (field for dialect in self._dialects for field in dialect.reads)
        self._wanted = None if callable(dialect) else wanted(fields)
        self.max_hold_s = duration_us("max_hold", max_hold, least=1_000) / SECOND_US
        self._incidents = Incidents(self.max_hold_s)

    def read(
        self, status: int, headers: Headers, *, sent_at: float, received_at: float, key: str = "default"
    ) -> ServerHint | None:
        """What the answer to a request under `key` says; None if nothing.

        `sent_at` is when the request left, `received_at` when its answer came: epoch seconds of the
        wall clock.
        """
        lines = picked(headers, self._wanted)
        if status != REFUSED and self._wanted is not None and says_nothing(lines):
            if self._incidents and status < _SUCCESS_BELOW:
                self._incidents.over((key, None), sent_at)
            return None
        answer = heard(status, lines, received_at)
        hint, first_hold_s = self._parsed(answer)
        place = (key, None if hint is None else hint.scope)
        hold_s = self._within(_told(answer, hint))
        if hold_s > 0:
            self._incidents.hinted(place, hold_s, received_at)
        elif status == REFUSED:
            hold_s = self._within(self._incidents.unhinted(place, first_hold_s, sent_at, received_at))
        elif self._incidents and status < _SUCCESS_BELOW:
            self._incidents.over(place, sent_at)
            self._incidents.over((key, None), sent_at)
        if hint is None:
            hint = SAYS_NOTHING
        if hold_s == 0 and hint == SAYS_NOTHING and status != REFUSED:
            return None
        return hint._replace(hold_s=hold_s)

    def bounded(self, hint: ServerHint) -> ServerHint:
        """A hint from elsewhere, with a hold that may be placed: 0, or from a millisecond to `max_hold`."""
        return hint._replace(hold_s=self._within(hint.hold_s))

    def _within(self, hold_s: float) -> float:
        # Written so that NaN, which is not as long as anything, is no hold.
        return min(hold_s, self.max_hold_s) if hold_s >= _LEAST_HOLD_S else 0.0

    def _parsed(self, answer: Answer) -> tuple[ServerHint | None, float]:
        for dialect in self._dialects:
            if not dialect.marks or not answer.fields.keys().isdisjoint(dialect.marks):
                hint = dialect.parse(answer)
                if hint is not None:
                    return hint, dialect.first_hold_s
        return None, FIRST_HOLD_S

    def __repr__(self) -> str:
        return f"Feedback({self.dialect!r}, max_hold={self.max_hold_s:g})"


def _chosen(dialect: str | Parser) -> tuple[Dialect, ...]:
    if callable(dialect):
        return (Dialect(dialect),)
    if dialect == "auto":
        return tuple(DIALECTS.values())
    name = one_of("dialect", dialect, ("auto", *DIALECTS))
    return (DIALECTS[name]._replace(marks=()),)


def _told(answer: Answer, hint: ServerHint | None) -> float:
    """How long the answer itself says to wait; 0 if it does not."""
    said = []
    if hint is not None:
        said.append(hint.hold_s)
    if answer.status == REFUSED or answer.status in UNAVAILABLE:
        said.append(answer.retry_s or 0.0)
    if hint is not None and hint.remaining == 0:
        said.append(hint.reset_s or 0.0)
    return next((hold_s for hold_s in said if hold_s >= _LEAST_HOLD_S), 0.0)
