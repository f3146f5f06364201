"""Wire: the operations of a queue that stores run, and their form on the way to the Lua twin and back.

WiredQueue converts a queue, its states and its grants. The twin keeps a position as whole microseconds and a
remainder below q. Its answer to an admitted call contains only what Python cannot compute.

The operations follow below it: RESERVE and the others (`Operation` in base.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from json import dumps, loads
from typing import TYPE_CHECKING, Any, TypeAlias

from shapekit.algorithms.base import NOWHERE, Moment, Operation, Run, Side, Undo, decision_of, side_of
from shapekit.algorithms.compose import each
from shapekit.algorithms.queue import slots
from shapekit.algorithms.queue.constraints import Constraints, Receipts
from shapekit.algorithms.queue.slots import Grant, Granted, Move, Moves, Places, Request, Row, Single
from shapekit.algorithms.rows import flat, paged, read, text
from shapekit.decision import Decision
from shapekit.errors import StoreUnavailableError
from shapekit.rate import Value

if TYPE_CHECKING:
    from shapekit.algorithms.queue.queue import LeakyQueue

_PLAIN = 12
"""The length of the answer to an admitted call without constraints."""
REFUSED = 5
"""The length of the answer to a refused call."""
_NUMBERS = 6
"""How many numbers a line begins with."""
_LARGEST = 2**53 - 1
"""The largest whole number of the twin."""
_FAR = 2**52
"""Added to an offset, which may be negative."""


UNKNOWN = -1

Further: TypeAlias = tuple[int, int, int]
"""How many slots to take in addition to those asked for, how long after the first of these the last one may
depart, and a nonce as in Request.
"""
Confirmed: TypeAlias = tuple[int, int, int, int, int]
"""The state of a key: generation, shift, end of the hold, the time, end of the mark."""
Late: TypeAlias = tuple[int, int, int, int]
"""A late call: its generation, until when, on the queue's own time, its slot could be used, its cost, and a
nonce as in Request.
"""
Moved: TypeAlias = tuple[int, int]
"""When a late call may leave, and until when time stands still for it. The latter is UNKNOWN if the call has
no new slot: then it may leave if the former has come, and has to ask again if not.
"""


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
        own = self.burst, self.q, interval, self.paced, self.max_cost
        return ["queue/queue", *own, constraints, self.constraints.save_nothing]

    def inspect(self, line: Any) -> None:
        """Check a line that was read; raise if no queue can have written it."""
        *numbers, book, parts = line
        if len(numbers) != _NUMBERS:
            raise ValueError("malformed line")
        sum(numbers)
        if book:
            free, left, mark, changes, stands, (base, pauses) = book
            self.places.inspect(free) if parts else slots.inspect_gaps(free)
            slots.inspect_gone(left)
            sum((mark, stands, base, *(left_at + following for left_at, following in pauses)))
            if len(pauses) > slots.MOST_PAUSES:
                raise ValueError("too many pauses")
            slots.inspect_moves(changes)
        each(self.constraints.algorithms, "inspect", parts)

    def state_sent(self, line: Any) -> list[Any]:
        """A line in the form of the twin."""
        tail, newest, generation, number, until, shift, book, parts = line
        own = each(self.constraints.algorithms, "state_sent", parts)
        return [*divmod(tail, self.q), newest, generation, number, until, shift, self._book_sent(book), own]

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
            tuple(each(self.constraints.algorithms, "state_received", parts)),
        )

    def before_run(self, sent: Any) -> Any:
        """The line that a run of reservations began with, from the twin's short form."""
        tail, rest, newest, generation, number, until, shift, mark = sent
        book = ((), slots.NOTHING_GONE, mark, (), 0, slots.NO_PAUSES) if mark else ()
        return (tail * self.q + rest, newest, generation, number, until, shift, book, ())

    def grant_sent(self, grant: Grant) -> list[Any]:
        """A grant in the form of the twin."""
        grant = self.own(grant)
        # Positions of another queue may be too large for the twin, but then they are not used.
        most = _LARGEST * self.q
        positions = self._flat(min(grant.start, most), min(grant.end, most), min(grant.undo[0], most))
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

    def own(self, grant: Grant) -> Grant:
        """A grant with receipts for this queue's constraints, if another queue has granted it."""
        constraints = self.constraints
        if not (constraints.algorithms or grant.receipts):
            return grant
        writer = constraints if grant.queue is None else grant.queue.constraints
        return grant._replace(receipts=constraints.receipts_of(grant.receipts, writer))

    def granted_received(self, sent: Any) -> Grant:
        """The answer to a reservation, from the twin."""
        if len(sent) == REFUSED:
            wait, now, held, cost, decision = sent
            return Grant.refused(wait, now, held=held == 1, told=decision_of(decision), cost=cost)
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

    def many_received(self, sent: Any) -> tuple[Confirmed, tuple[Grant, ...]]:
        """The answer to `reserve_many` from the twin, which sends once what all slots have in common."""
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

    def _book_sent(self, book: Any) -> list[Any]:
        """The book in the form of the twin: rows as strings, which it can search without decoding all."""
        if not book:
            return []
        free, (rows, floor, words), mark, changes, stands, (base, pauses) = book
        moved = dumps(changes) if changes else ""
        own: list[Any] = [text(flat(rows)), floor, text(words), mark, moved, stands, base, flat(pauses)]
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
        free, singles, rows, floor, words, mark, changes, stands, base, pauses = sent
        left = (paged(read(rows, 3)), floor, read(words, 5))
        pairs = tuple(zip(pauses[::2], pauses[1::2], strict=True))
        beside = mark, moves_received(changes), stands, (base, pairs)
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


def _locally(granted: Granted, full: LeakyQueue, local: LeakyQueue) -> Grant:
    """Convert a local grant for the caller, with its end in the units of the full queue."""
    grant = Grant(*granted)
    if not grant.accepted:
        return grant
    shown, receipts = -(-grant.end * full.q // local.q), (grant.end, *grant.receipts)
    return grant._replace(generation=-2 - grant.generation, end=shown, receipts=receipts)


def _taken_back(grant: Grant) -> Grant:
    """Undo `_locally`."""
    kept: tuple[Any, ...] = grant.receipts
    return grant._replace(generation=-2 - grant.generation, end=kept[0], receipts=kept[1:])


def _standing_locally(standing: Any) -> Any:
    """Convert the local state of a key for the caller: it applies only to slots granted locally."""
    # UNKNOWN stays the same.
    return (-2 - standing[0], *standing[1:])


class _Reserve(Operation):
    name = "reserve"

    def sent(self, program: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        request: Request = args[0]
        return request

    def received(self, program: LeakyQueue, sent: Any) -> Grant:
        return program.granted_received(sent)

    def asks(self, args: tuple[Any, ...]) -> Any:
        cost, max_wait, _ = args[0]
        return cost, max_wait

    def undone(self, args: tuple[Any, ...], answer: Granted) -> tuple[Undo, ...]:
        # A slot that has passed, as one for now always has, cannot be cancelled. But its call never leaves,
        # so it is settled at 0, which leaves the slot where it was.
        grant, (_, _, nonce) = Grant(*answer), args[0]
        return ((CANCEL, (grant,)), (SETTLE, ((grant, 0, nonce),))) if grant.accepted else ()

    def cost(self, args: tuple[Any, ...]) -> int:
        cost: int = args[0][0]
        return cost

    def opened(self, program: LeakyQueue, at: Moment, args: tuple[Any, ...]) -> Granted:
        # A cost beyond the limit in the code is one that an operator's limit has allowed.
        cost, *rest = args[0]
        request = (min(cost, program.max_cost), *rest)
        granted = program.reserve(None, at.instant, request, at.skew)[1]
        return Grant(*granted)._replace(generation=NOWHERE, cost=cost)

    def closed(self, program: LeakyQueue, at: Moment, args: tuple[Any, ...]) -> Grant:
        told = Decision(False, program.burst, program.burst, 0, at.instant + at.wait_us, at.wait_us)
        return Grant.refused(at.wait_us, at.instant, held=False, told=told, cost=self.cost(args))

    def given(self, program: LeakyQueue, part: LeakyQueue, answer: Granted) -> Granted:
        return _locally(answer, program, part)


class _ReserveRun(Run):
    name = "reserve_run"


class _ReserveMany(Operation):
    name = "reserve_many"

    def received(self, program: LeakyQueue, sent: Any) -> Any:
        return program.many_received(sent)

    def undone(self, args: tuple[Any, ...], answer: Any) -> tuple[Undo, ...]:
        taken = tuple([grant for grant in answer[1] if grant.accepted])
        return ((CANCEL_MANY, (taken,)),) if taken else ()

    def cost(self, args: tuple[Any, ...]) -> int:
        return max([request[0] for request in args[0]], default=1)

    def opened(self, program: LeakyQueue, at: Moment, args: tuple[Any, ...]) -> Any:
        answers = tuple(RESERVE.opened(program, at, (request,)) for request in args[0])
        return (UNKNOWN, 0, 0, at.instant, 0), answers

    def closed(self, program: LeakyQueue, at: Moment, args: tuple[Any, ...]) -> Any:
        answers = tuple(RESERVE.closed(program, at, (request,)) for request in args[0])
        return (UNKNOWN, 0, 0, at.instant, 0), answers

    def locally(
        self, apply: Callable[..., Any], program: Any, part: Any, refuse: Callable[..., Any]
    ) -> Callable[..., Any]:
        def answer(key: Any, requests: Sequence[Request], further: Any) -> Any:
            fitting = [one for one in requests if one[0] <= part.max_cost]
            standing, granted = self.given(program, part, apply(key, fitting, further))
            _, none = refuse(key, requests, further)
            ours = iter(granted)
            answers = [
                next(ours) if one[0] <= part.max_cost else no for one, no in zip(requests, none, strict=True)
            ]
            return standing, (*answers, *ours)

        return answer

    def given(self, program: LeakyQueue, part: LeakyQueue, answer: Any) -> Any:
        standing, granted = answer
        return _standing_locally(standing), tuple(_locally(one, program, part) for one in granted)


class _Confirm(Operation):
    name = "confirm"
    is_read = True
    probes = False
    needs_store = False

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Confirmed:
        return UNKNOWN, 0, 0, at.instant, 0

    closed = opened

    def given(self, program: Any, part: Any, answer: Any) -> Any:
        return _standing_locally(answer)


class _ConfirmLocal(_Confirm):
    """`confirm` for slots of the fallback of a store, also after the store has returned."""

    follows = True

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        return Side.LOCAL, args


class _Follow(Operation):
    """`confirm` for a key whose limits an operator has changed."""

    name = "follow"
    probes = False
    needs_store = False

    def received(self, program: Any, sent: Any) -> tuple[Any, ...]:
        *standing, changes = sent
        return (*standing, moves_received(changes), program)

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return UNKNOWN, 0, 0, at.instant, 0, (), program

    closed = opened

    def given(self, program: Any, part: Any, answer: Any) -> Any:
        return (*_standing_locally(answer)[:-1], program)


class _Cancel(Operation):
    name = "cancel"
    follows = True
    nothing = False

    def sent(self, program: LeakyQueue, args: tuple[Any, ...]) -> Sequence[Any]:
        return (program.grant_sent(args[0]),)

    def received(self, program: Any, sent: Any) -> bool:
        return bool(sent)

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        (grant,) = args
        side = side_of(grant.generation)
        return side, ((_taken_back(grant),) if side is Side.LOCAL else args)


class _CancelMany(Operation):
    """Gives back prefetched slots. While their store is gone it raises, so that they are given back later."""

    name = "cancel_many"
    follows = True
    needs_store = False  # for slots that no store has granted

    def sent(self, program: LeakyQueue, args: tuple[Any, ...]) -> Sequence[Any]:
        return ([program.grant_sent(grant) for grant in args[0]],)

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        (grants,) = args
        # All of them were granted on the same side, or they would not be given back together.
        side = side_of(grants[0].generation) if grants else Side.PRIMARY
        return side, ((tuple(map(_taken_back, grants)),) if side is Side.LOCAL else args)

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> int:
        if self.routed(args)[0] is Side.PRIMARY:
            raise StoreUnavailableError("the store that has granted these slots is gone")
        return 0

    closed = opened

    def locally(
        self, apply: Callable[..., Any], program: Any, part: Any, refuse: Callable[..., Any]
    ) -> Callable[..., Any]:
        return refuse


class _Settle(Operation):
    name = "settle"
    follows = True
    nothing = 0

    def sent(self, program: LeakyQueue, args: tuple[Any, ...]) -> Sequence[Any]:
        grant, *rest = args[0]
        return (program.grant_sent(grant), *rest)

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        ((grant, *rest),) = args
        side = side_of(grant.generation)
        return side, (((_taken_back(grant), *rest),) if side is Side.LOCAL else args)


class _Late(Operation):
    name = "late"
    follows = True
    nothing = ()
    needs_store = False

    def received(self, program: Any, sent: Any) -> tuple[Moved, ...]:
        return tuple([(leaves_at, stands_until) for leaves_at, stands_until in sent])

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        (calls,) = args
        # All of them are on the same side: see `LateCalls`.
        side = side_of(calls[0][0])
        if side is Side.LOCAL:
            args = (tuple([(-2 - generation, *rest) for generation, *rest in calls]),)
        return side, args


class _Hold(Operation):
    """An operation that holds a key or marks it, or ends a hold; while the store is gone, nothing is held."""

    def __init__(self, name: str) -> None:
        self.name = name

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> int:
        return 0

    closed = opened


class _Look(Operation):
    """Reads the state itself and its time, for callers that compute with it; also used for permits."""

    name = "look"
    is_read = True
    is_look = True

    def step(self, program: Any) -> Callable[..., Any]:
        return lambda state, now, skew=0: (state, now, skew)

    def received(self, program: Any, sent: Any) -> Any:
        state, now, skew, *_ = sent
        return None if state is None else program.state_received(state), now, skew

    def closed(self, program: LeakyQueue, at: Moment, args: tuple[Any, ...]) -> Any:
        return program.hold(None, at.instant, at.wait_us, 0, at.skew)[0], at.instant, at.skew

    def given(self, program: LeakyQueue, part: LeakyQueue, answer: Any) -> Any:
        """A local line in the units of the full queue."""
        state, now, skew = answer
        return None if state is None else program.adopt(state, part, now, skew), now, skew


RESERVE, CONFIRM, FOLLOW, CANCEL, SETTLE = _Reserve(), _Confirm(), _Follow(), _Cancel(), _Settle()
RESERVE_MANY, CANCEL_MANY = _ReserveMany(), _CancelMany()
HOLD, RESUME, MARK, LOOK = _Hold("hold"), _Hold("resume"), _Hold("mark"), _Look()
LATE, CONFIRM_LOCAL = _Late(), _ConfirmLocal()
_ReserveRun.one, _Reserve.run = RESERVE, _ReserveRun()
