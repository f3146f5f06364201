"""Incidents: how long to hold after a refusal that does not say how long.

1 s, 2 s, 4 s … up to the longest hold, until something succeeds. An incident is told from the next by
when a request was sent: what was sent before the hold in place ended says nothing about whether that
hold was long enough, so it belongs to the same incident, however late its answer comes.

The memory is this process's own, for each key. Several processes share the hold itself, of which the
longest stands: refusals of one incident, told to any number of workers, make one hold and not their
sum. What they do not share is the doubling: after a hold too short, whichever process is refused
next doubles its own last step. Between two successes N processes hold at least once and at most N
times for each step.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Incidents"]

Place: TypeAlias = tuple[str, str | None]
"""A key and a scope."""

MOST_PLACES = 1_024


class _Incident(NamedTuple):
    until: float
    """When the hold in place ends, epoch seconds."""
    hold_s: float
    """How long that hold was."""
    step_s: float
    """The last step of the doubling; 0 if the server has said so far how long."""


class Incidents:
    """The incidents of one process; for any number of threads."""

    __slots__ = ("_known", "_lock", "max_hold_s")

    def __init__(self, max_hold_s: float) -> None:
        self.max_hold_s = max_hold_s
        self._known: dict[Place, _Incident] = {}
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._known)

    def unhinted(self, place: Place, first_s: float, sent_at: float, received_at: float) -> float:
        """How long to hold from `received_at` on: a new step, or what is left of the hold in place."""
        with self._lock:
            known = self._known.get(place)
            step = min(first_s, self.max_hold_s)
            if known is not None:
                if sent_at < known.until:
                    # Never longer than it was: a wall clock may have been set back.
                    return max(0.0, min(known.until - received_at, known.hold_s))
                if sent_at - known.until <= self.max_hold_s:
                    step = min(max(first_s, 2 * known.step_s), self.max_hold_s)
            self._keep(place, _Incident(received_at + step, step, step))
            return step

    def hinted(self, place: Place, hold_s: float, received_at: float) -> None:
        """The server itself has said how long: refusals that do not say are covered by it."""
        with self._lock:
            known = self._known.get(place)
            incident = _Incident(received_at + hold_s, hold_s, known.step_s if known else 0.0)
            if known is None or known.until < incident.until:
                self._keep(place, incident)

    def over(self, place: Place, sent_at: float) -> None:
        """A request has succeeded. Only one that was sent after the hold ends the incident."""
        with self._lock:
            known = self._known.get(place)
            if known is not None and sent_at >= known.until:
                del self._known[place]

    def _keep(self, place: Place, incident: _Incident) -> None:
        self._known.pop(place, None)
        if len(self._known) >= MOST_PLACES:
            del self._known[next(iter(self._known))]  # the one that has been quiet for longest
        self._known[place] = incident

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process has seen nothing yet, and locks do not travel.
        return Incidents, (self.max_hold_s,)
