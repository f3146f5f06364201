"""ManyTurns: several turns of a queue taken, or given back, in one transaction.

Each is decided by the very operation that decides one, in order, at one instant. So whoever takes ten
turns at once has what ten callers would have who come one right after the other, and nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

from shapekit.algorithms.queue.slots import Asked, Grant, Granted
from shapekit.algorithms.queue.wire import REFUSED, WiredQueue

Further: TypeAlias = tuple[int, int, int]
"""How many slots beyond those asked for, how much later than the first of them the last may depart, and a
nonce as in Asked."""
Confirmed: TypeAlias = tuple[int, int, int, int, int]
"""How a key stands, as `confirm` says it."""


class ManyTurns(WiredQueue):
    """What a queue does with many slots; `reserve`, `confirm`, `cancel` and `settle` are the queue's own."""

    __slots__ = ()

    def reserve_many(
        self, state: Any, now: int, asked: Sequence[Asked], further: Further, skew: int = 0
    ) -> tuple[Any, tuple[Confirmed, tuple[Granted, ...]], int, bool]:
        """A slot or a refusal for each who asks, in order, and then further slots of cost 1.

        The further slots end where one is refused, or would depart more than their span after the first.
        The answer begins with how the key stands after that.
        """
        most, span, nonce = further
        answers: list[Granted] = []
        life, persists = 0, False
        for one in asked:
            after, granted, lives, is_taken = self.reserve(state, now, one, skew)
            if is_taken:
                state, life, persists = after, lives, True
            answers.append(granted)
        within = None
        for _ in range(most):
            after, granted, lives, is_taken = self.reserve(state, now, (1, within, nonce), skew)
            if not is_taken:
                break
            state, life, persists = after, lives, True
            answers.append(granted)
            if within is None:
                within = granted[1] + span
        return state, (self.confirm(state, now, skew), tuple(answers)), life, persists

    def cancel_many(
        self, state: Any, now: int, grants: Sequence[Grant], skew: int = 0
    ) -> tuple[Any, int, int, bool]:
        """Give back turns that nobody uses, from the last to the first, so that the tail retracts over them.

        One whose instant has passed leaves its place unused, but has cost nothing. Returns how many there
        were to give back.
        """
        count, life, persists = 0, 0, False
        for grant in reversed(grants):
            is_back: int
            after, is_back, lives, keeps = self.cancel(state, now, grant, skew)
            if not is_back:
                after, is_back, lives, keeps = self.settle(state, now, (grant, 0, 0), skew)
            if keeps:
                state, life, persists = after, lives, True
            count += bool(is_back)
        return state, count, life, persists

    def slots(self, span: int) -> int:
        """How many slots of cost 1 leave in a span of a line that nothing but the pace holds up."""
        return span * self.q // self._p

    def leaves_by(self, granted: Granted) -> int:
        """Until when, on the queue's own time, a slot may leave late without anybody being too close to it.

        With a burst a call leaves before its place on the grid begins; whoever leaves when it begins has
        only not used the burst. Under constraints a departure is charged where it is.
        """
        due = granted[10]
        return due if self.constraints or not self._paced else max(due, granted[8] // self.q)

    def many_received(self, sent: Any) -> tuple[Confirmed, tuple[Granted, ...]]:
        """The twin's answer to `reserve_many`, which says once what all turns have in common."""
        (generation, shift, until, now, mark), latest, answers = sent
        common = (shift, int(max(until, mark) > now))
        number = latest - sum([len(answer) != REFUSED for answer in answers])
        received = []
        for answer in answers:
            if len(answer) != REFUSED:
                number += 1
                answer = [*answer[:2], *common, answer[2], generation, number, *answer[3:]]  # noqa: PLW2901
            received.append(self.granted_received(answer))
        return (generation, shift, until, now, mark), tuple(received)

    # said by the queue

    @abstractmethod
    def reserve(self, state: Any, now: int, asked: Asked, skew: int = 0) -> tuple[Any, Granted, int, bool]:
        """Take one slot."""

    @abstractmethod
    def confirm(self, state: Any, now: int, skew: int = 0) -> Any:
        """How the key stands."""

    @abstractmethod
    def cancel(self, state: Any, now: int, grant: Grant, skew: int = 0) -> tuple[Any, bool, int, bool]:
        """Give one slot back."""

    @abstractmethod
    def settle(
        self, state: Any, now: int, asked: tuple[Grant, int, int], skew: int = 0
    ) -> tuple[Any, int, int, bool]:
        """Make one slot cost what it turned out to cost."""
