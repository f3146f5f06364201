"""WiredQueue: how a queue, its states and its grants go to the Lua twin and come back.

The twin holds a position as whole microseconds and a remainder below q. An admitted call's answer says
only what cannot be worked out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shapekit.algorithms.base import decision_of
from shapekit.algorithms.constraints import Constraints, Receipts
from shapekit.algorithms.gaps import FREE
from shapekit.algorithms.grant import Grant, Granted
from shapekit.algorithms.places import TAKEN, Place, inspect, taken
from shapekit.value import Value

_PLAIN = 12
"""The length of the answer to an admitted call that no constraint was charged for."""
REFUSED = 5
"""The length of the answer to a refused one."""
_NUMBERS = 6
"""How many numbers a line begins with."""
_FENCE = 5
_GAP = 6


class WiredQueue(Value):
    """What LeakyQueue is to a store that speaks to the twin."""

    __slots__ = ()

    burst: int
    constraints: Constraints
    max_cost: int
    _p: int
    _q: int
    _paced: bool

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is made of."""
        constraints = self.constraints.twins(instants)
        interval = divmod(self._p, self._q)
        return ["leaky_queue", self.burst, self._q, interval, self._paced, self.max_cost, constraints]

    def inspect(self, line: Any) -> None:
        """Look at a line that was read: a misfit where no queue has written it."""
        *numbers, places, parts = line
        if len(numbers) != _NUMBERS:
            raise ValueError("this is no line")
        sum(numbers)
        inspect(places)
        self.constraints.inspect(parts)

    def state_sent(self, line: Any) -> list[Any]:
        """A line as the twin has it."""
        tail, newest, generation, version, until, shift, places, parts = line
        places_sent = [self._place_sent(place) for place in places]
        own = (newest, generation, version, until, shift, places_sent, self.constraints.states_sent(parts))
        return [*divmod(tail, self._q), *own]

    def state_received(self, sent: Any) -> Any:
        """A line that the twin sent."""
        tail, rest, newest, generation, version, until, shift, places, parts = sent
        return (
            tail * self._q + rest,
            newest,
            generation,
            version,
            until,
            shift,
            tuple(map(self._place_received, places)),
            self.constraints.states_received(parts),
        )

    def grant_sent(self, grant: Grant) -> list[Any]:
        """A grant as the twin has it."""
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

    def granted_received(self, sent: Any) -> Granted:
        """The twin's answer to a reservation."""
        if len(sent) == REFUSED:
            wait, now, held, cost, told = sent
            denial = decision_of(told)
            return (False, wait, now + wait, held == 1, denial, cost, 0, 0, 0, 0, 0, (0, 0), ())
        q = self._q
        wait, due, shift, held, cost, generation, version, start, rest, tail, tail_rest, newest = sent[
            :_PLAIN
        ]
        start = start * q + rest
        end = start + self._p * cost if self._paced else start + 1
        receipts: Receipts = ()
        if len(sent) > _PLAIN:
            own, *moved_in = sent[_PLAIN:]
            receipts = self.constraints.receipts_received(own)
            if moved_in:
                end = moved_in[0] * q + moved_in[1]
        return (
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

    def _place_sent(self, place: Place) -> list[Any]:
        start, end, since, due, cost, undo, receipts = place
        if due == TAKEN:
            return [*self._flat(start, end), since]
        if due == FREE:
            return [*self._flat(start, end), since, cost]
        own = self.constraints.receipts_sent(receipts)
        return [*self._flat(start, end), since, due, cost, *self._flat(undo[0]), undo[1], own]

    def _place_received(self, sent: Any) -> Place:
        q = self._q
        start, start_rest, end, end_rest, since = sent[:_FENCE]
        extent = start * q + start_rest, end * q + end_rest
        if len(sent) == _FENCE:
            return taken(*extent, since)
        if len(sent) == _GAP:
            return (*extent, since, FREE, sent[_FENCE], (0, 0), ())
        due, cost, tail, rest, newest, receipts = sent[_FENCE:]
        own = self.constraints.receipts_received(receipts)
        return (*extent, since, due, cost, (tail * q + rest, newest), own)

    def _flat(self, *positions: int) -> Iterable[int]:
        return [number for position in positions for number in divmod(position, self._q)]
