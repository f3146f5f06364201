"""PeriodCounter: units used in each period of civil time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import NEVER_US, Algorithm, Decided, Outcome, share_of
from shapekit.algorithms.periods import Periods
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError

_MAX_PERIODS = 16
_new = tuple.__new__

Book: TypeAlias = tuple[int, ...]
"""`start, used, opened` of each period that is known, by start. `opened` is the instant, on the rates'
timeline, at which the period began, or for one that holds turns still to come, will begin."""


class PeriodCounter(Algorithm[Book]):
    """At most `limit` units in each period of civil time, however often the date comes back to it.

    Two kinds of going back are told apart. Where `now` lies before a period was opened, the timeline
    went back, or that period holds a turn still to come: calls wait for it. Where `now` is past that
    instant and civil time is not, somebody has set the date back: the counter follows the date.
    """

    kind: ClassVar[str] = "quota"

    __slots__ = fields = ("limit", "periods")

    limit: int
    periods: Periods

    def __init__(self, limit: int, periods: Periods) -> None:
        self._fill(limit=limit, periods=periods)

    @property
    def civil(self) -> bool:
        return True

    @property
    def max_cost(self) -> int:
        return self.limit

    def decide(self, state: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        civil = now + skew
        start, end = self.periods.bounds(civil)
        limit = self.limit
        if state and state[-3] == start and state[-1] <= now and (life := self._life_of_all(state, now)):
            # Written out: the path of nearly every admitted call.
            used = state[-2] + cost
            if used > limit:
                return state, self._decision(state, now, cost, skew), 0, False
            decision = _new(Decision, (True, limit, used, limit - used, end - skew, 0, None, civil, 0))
            return (*state[:-2], used, state[-1]), decision, life, True
        if self.earliest(state, now, cost, skew) > now:
            return state, self._decision(state, now, cost, skew), 0, False
        return self.charge(state, now, now, cost, skew)

    def charge(self, state: Book | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Book]:
        start, end = self.periods.bounds(due + skew)
        book = self._kept(state, now)
        used, opened = book.get(start, (0, start - skew))
        used += cost
        book[start] = (used, min(opened, start - skew))
        after = self._flat(book)
        decision = Decision(True, self.limit, used, self.limit - used, end - skew, 0, None, due + skew)
        return after, decision, self.life(after, now), True

    def earliest(self, state: Book | None, at: int, cost: int, skew: int = 0) -> int:
        if not state:
            return at
        at = max(at, self._waits_until(state, at, skew))
        while True:
            start, end = self.periods.bounds(at + skew)
            used, opened = self._kept(state, at).get(start, (0, 0))
            if used + cost <= self.limit:
                return at
            at = min(end - skew, opened + 2 * (end - start))

    def spent(self, state: Book | None, at: int, cost: int, skew: int = 0) -> bool:
        if not state or self._waits_until(state, at, skew) > at:
            return False
        return self.known(state, self.periods.bounds(at + skew)[0], at)[0] + cost > self.limit

    def peek(self, state: Book | None, now: int, skew: int = 0) -> Decision:
        return self._decision(state, now, 1, skew)

    def usage(self, state: Book | None, now: int, skew: int) -> tuple[int, int]:
        """Units used in the period that runs, and the civil instant at which it ends."""
        start, end = self.periods.bounds(now + skew)
        return self.known(state or (), start, now)[0], end

    def forecast(self, state: Book | None, now: int, cost: int, skew: int = 0) -> Forecast:
        seen = self.peek(state, now, skew)
        fits = seen.remaining // cost if seen.allowed else 0
        return Forecast(self.earliest(state, now, cost, skew), fits, self._full_at(state, now))

    def refund(
        self, state: Book | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[Book]:
        # The receipt is civil time: the date may have been set since.
        if isinstance(charged_at, int):
            book = self._kept(state, now)
            start = self.periods.bounds(charged_at)[0]
            if start in book:
                used, opened = book[start]
                book[start] = (used - cost, opened)
                return self._settled(self._flat(book), now, skew)
        return Outcome(state, self.peek(state, now, skew), 0, False)

    def debit(
        self, state: Book | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Book]:
        at = max(now, self._waits_until(state, now, skew))
        start = self.periods.bounds(at + skew)[0]
        book = self._kept(state, now)
        used, opened = book.get(start, (0, start - skew))
        # A debt beyond all counting is cut at the largest number that a double holds.
        book[start] = (min(used + cost, NEVER_US - 1), opened)
        return self._settled(self._flat(book), now, skew, at + skew)

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(part_of(self.limit, share), self.periods)

    def adopt(self, state: Book, writer: Any, now: int, skew: int = 0) -> Book:
        if self.periods == writer.periods:
            return state
        civil = now + skew
        book: dict[int, tuple[int, int]] = {}
        for begun, used, opened in _triples(state):
            ended = writer.periods.bounds(begun)[1]
            # What was used in the present period may all have been used in the new one.
            last = civil if begun <= civil < ended else ended - 1
            start = self.periods.bounds(last)[0]
            before, first_opened = book.get(start, (0, opened - begun + start))
            book[start] = (before + used, min(first_opened, opened - begun + start))
        return self._flat(book)

    def inspect(self, state: Any) -> None:
        # With as many periods as somebody else likes, to look for one that is free might take for ever.
        if len(state) > 3 * _MAX_PERIODS or len(state) % 3:
            raise ValueError("these are no periods")
        sum(state)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["period_counter", self.limit, self.periods.twin(instants)]

    def _waits_until(self, state: Book | None, at: int, skew: int) -> int:
        """When the last period opens that lies ahead: it holds turns to come, or the clock went back."""
        return max(
            [0, *(opened for start, _, opened in _triples(state or ()) if opened > at and start > at + skew)]
        )

    def known(self, state: Book, start: int, at: int) -> tuple[int, int]:
        """Units used in the period that begins at `start`, and when it was opened; zeros if forgotten."""
        return self._kept(state, at).get(start, (0, 0))

    def _kept(self, state: Book | None, now: int) -> dict[int, tuple[int, int]]:
        """What is remembered: each period until its own length has passed twice, whatever the date shows."""
        return {
            start: (used, opened)
            for start, used, opened in _triples(state or ())
            if opened + 2 * self._length(start) > now
        }

    def _life_of_all(self, state: Book, now: int) -> int:
        """How long the state lives, if all of its periods are remembered; else 0."""
        longest = 0
        for index in range(0, len(state), 3):
            life = state[index + 2] + 2 * self._length(state[index]) - now
            if life <= 0:
                return 0
            if life > longest:
                longest = life
        return longest

    def _length(self, start: int) -> int:
        return self.periods.bounds(start)[1] - start

    def life(self, state: Book, now: int, skew: int = 0) -> int:
        return max([0, *(opened + 2 * self._length(start) - now for start, _, opened in _triples(state))])

    def _flat(self, book: dict[int, tuple[int, int]]) -> Book:
        known = sorted((start, used, opened) for start, (used, opened) in book.items() if used > 0)
        return tuple(number for period in known[-_MAX_PERIODS:] for number in period)

    def _full_at(self, state: Book | None, now: int) -> int:
        return max([now, *(opened + self._length(start) for start, _, opened in _triples(state or ()))])

    def _settled(self, state: Book, now: int, skew: int, receipt: int | None = None) -> Outcome[Book]:
        decision = self._decision(state, now, 1, skew)._replace(receipt=receipt)
        return Outcome(state, decision, self.life(state, now), True)

    def _decision(self, state: Book | None, now: int, cost: int, skew: int) -> Decision:
        wait = self.earliest(state, now, cost, skew) - now
        at = max(now, self._waits_until(state, now, skew))
        start, end = self.periods.bounds(at + skew)
        used = self.known(state or (), start, at)[0]
        full = end - skew if used else now + wait
        remaining = 0 if at > now else max(0, self.limit - used)
        return Decision(wait == 0, self.limit, used, remaining, full, wait)


def part_of(limit: int, share: object) -> int:
    """A share of what may be spent in a period: at least one."""
    part = int(limit * share_of(share))
    if part < 1:
        raise ConfigError("share", share, f"leaves nothing of a quota of {limit}", "use a larger share")
    return part


def _triples(state: Book) -> Iterator[tuple[int, int, int]]:
    return zip(state[::3], state[1::3], state[2::3], strict=True)
