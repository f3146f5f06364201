"""WiredQueue: converts a queue, its states and its grants to and from the form of the Lua twin.

The twin keeps a position as whole microseconds and a remainder below q. Its answer to an admitted call
contains only what cannot be computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json import dumps, loads
from typing import Any

from shapekit.algorithms.base import decision_of
from shapekit.algorithms.queue import slots
from shapekit.algorithms.queue.constraints import Constraints, Receipts
from shapekit.algorithms.queue.slots import Grant, Move, Moves, Places, Row, Single
from shapekit.algorithms.rows import flat, paged, read, text
from shapekit.rate import Value

_PLAIN = 12
"""The length of the answer to an admitted call without constraints."""
REFUSED = 5
"""The length of the answer to a refused call."""
_NUMBERS = 6
"""How many numbers a line begins with."""
_FAR = 2**52
"""Added to an offset, which may be negative."""


class WiredQueue(Value):
    """The conversions of a LeakyQueue for stores that use the twin."""

    __slots__ = ()

    burst: int
    constraints: Constraints
    max_cost: int
    places: Places
    p: int
    q: int
    paced: bool

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is constructed from."""
        constraints = self.constraints.twins(instants)
        interval = divmod(self.p, self.q)
        return ["queue/queue", self.burst, self.q, interval, self.paced, self.max_cost, constraints]

    def inspect(self, line: Any) -> None:
        """Check a line that was read; raise if no queue can have written it."""
        *numbers, book, parts = line
        if len(numbers) != _NUMBERS:
            raise ValueError("this is no line")
        sum(numbers)
        if book:
            free, left, mark, changes, stands = book
            self.places.inspect(free) if parts else slots.inspect_gaps(free)
            slots.inspect_gone(left)
            sum((mark, stands))
            slots.inspect_moves(changes)
        self.constraints.inspect(parts)

    def state_sent(self, line: Any) -> list[Any]:
        """A line in the form of the twin."""
        tail, newest, generation, number, until, shift, book, parts = line
        book_sent = self._book_sent(book)
        own = (newest, generation, number, until, shift, book_sent, self.constraints.states_sent(parts))
        return [*divmod(tail, self.q), *own]

    def state_received(self, sent: Any) -> Any:
        """A line from the twin."""
        tail, rest, newest, generation, number, until, shift, book, parts = sent
        return (
            tail * self.q + rest,
            newest,
            generation,
            number,
            until,
            shift,
            self._book_received(book),
            self.constraints.states_received(parts),
        )

    def before_run(self, sent: Any) -> Any:
        """The line that a run of reservations began with, as far as they go by it."""
        tail, rest, newest, generation, number, until, shift, mark = sent
        book = ((), slots.NOTHING_GONE, mark, (), 0) if mark else ()
        return (tail * self.q + rest, newest, generation, number, until, shift, book, ())

    def grant_sent(self, grant: Grant) -> list[Any]:
        """A grant in the form of the twin."""
        positions = self._flat(grant.start, grant.end, grant.undo[0])
        receipts = self.constraints.receipts_sent(grant.receipts)
        return [
            grant.generation,
            grant.version,
            grant.due_us,
            grant.cost,
            *positions,
            grant.undo[1],
            receipts,
        ]

    def granted_received(self, sent: Any) -> Grant:
        """The answer to a reservation, from the twin."""
        if len(sent) == REFUSED:
            wait, now, held, cost, told = sent
            return Grant.refused(wait, now, held=held == 1, told=decision_of(told), cost=cost)
        q = self.q
        wait, due, shift, held, cost, generation, version, start, rest, tail, tail_rest, newest = sent[
            :_PLAIN
        ]
        start = start * q + rest
        end = start + self.p * cost if self.paced else start + 1
        receipts: Receipts = ()
        if len(sent) > _PLAIN:
            own, *moved_in = sent[_PLAIN:]
            receipts = self.constraints.receipts_received(own)
            if moved_in:
                end = moved_in[0] * q + moved_in[1]
        return Grant(
            True,
            wait,
            due + shift,
            held == 1,
            None,
            cost,
            generation,
            version,
            start,
            end,
            due,
            (tail * q + tail_rest, newest),
            receipts,
        )

    def _book_sent(self, book: Any) -> list[Any]:
        """Rows of numbers go as strings, which the twin can search without reading all of them."""
        if not book:
            return []
        free, (rows, floor, words), mark, changes, stands = book
        moved = dumps(changes) if changes else ""
        own: list[Any] = [text(flat(rows)), floor, text(words), mark, moved, stands]
        if not self.constraints.algorithms:
            return [text([self._flat(*gap) for gap in flat(free)]), [], *own]
        places, singles = free
        return [
            text(map(self._row_sent, flat(places))),
            [self._single_sent(one) for one in flat(singles)],
            *own,
        ]

    def _book_received(self, sent: Any) -> Any:
        if not sent:
            return ()
        free, singles, rows, floor, words, mark, changes, stands = sent
        left = (paged(read(rows, 3)), floor, read(words, 5))
        beside = mark, moves_received(changes), stands
        if not self.constraints.algorithms:
            ends = read(free, 4)
            q = self.q
            return (
                paged([(start * q + rest, end * q + more) for start, rest, end, more in ends]),
                left,
                *beside,
            )
        places = paged([self._row_received(row) for row in read(free, 9)])
        return (places, paged([self._single_received(one) for one in singles])), left, *beside

    def _row_sent(self, row: Row) -> Iterable[int]:
        start, count, due, tail, newest, aligned, civil = row
        return [*self._flat(start), count, due, *self._flat(tail), newest, aligned + _FAR, civil + _FAR]

    def _row_received(self, sent: Sequence[int]) -> Row:
        start, rest, count, due, tail, more, newest, aligned, civil = sent
        q = self.q
        return (start * q + rest, count, due, tail * q + more, newest, aligned - _FAR, civil - _FAR)

    def _single_sent(self, place: Single) -> str:
        start, end, due, cost, undo, receipts = place
        own = self.constraints.receipts_sent(receipts)
        sent = [*self._flat(start, end), due, cost, *self._flat(undo[0]), undo[1], own]
        return dumps(sent).replace("null", "false")

    def _single_received(self, text: str | bytes) -> Single:
        sent = loads((text if isinstance(text, str) else text.decode()).replace("false", "null"))
        start, rest, end, more, due, cost, tail, tail_rest, newest, receipts = sent
        q = self.q
        own = self.constraints.receipts_received(receipts)
        return (start * q + rest, end * q + more, due, cost, (tail * q + tail_rest, newest), own)

    def _flat(self, *positions: int) -> Iterable[int]:
        return [number for position in positions for number in divmod(position, self.q)]


def moves_received(sent: str | bytes) -> Moves:
    """The changes of a key, which the twin keeps as text and does not read."""
    return tuple([Move(*move) for move in loads(sent)]) if sent else ()
