"""Concurrency: at most so many calls in flight, over all who share the key.

A call holds a permit from its `enter` to its `leave`. A call that finds none free stands in line, and permits
that come free are given to the line in the order of asking. Nothing here waits: a process that asks
(`watch`), or gives something back, is told which of its calls hold one by now.

An owner is a process; a number is one of its calls. The permits and places of an owner live as long as its
lease, which it renews (`keep`) while it has any; when the lease is over, because the owner crashed, they
go to those who wait. `keep` also says which calls there still are: what the store has beside them, because
a reply was lost or a `leave` did not arrive, is given back.

Time never goes back here: an earlier instant counts as the latest one seen. So nobody's lease ends early,
and nobody is given a permit twice, whatever a clock does.

Runs: calls in a row, told by who makes them and by consecutive numbers, so that a thousand take no room.

>>> line = joined(joined((), 7, 1), 7, 2)
>>> joined(line, 9, 1)
((7, 1, 2), (9, 1, 1))
>>> without(joined(line, 7, 3), 7, 2)
((7, 1, 1), (7, 3, 3))
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from shapekit._runtime.value import Value
from shapekit.algorithms.base import as_tuple, share_of
from shapekit.algorithms.operation import Moment, Operation, Undo
from shapekit.rate import MAX_SPAN_US, SECOND_US, Duration, duration_us, whole

__all__ = ["Concurrency"]

Run: TypeAlias = tuple[int, int, int]
"""An owner, and the first and the last of its numbers that stand here one after the other."""
Runs: TypeAlias = tuple[Run, ...]


def inspect(runs: Any, most: int) -> None:
    """Refuse runs that were read and that are empty, or more than may be: each number is gone through."""
    if len(runs) > most or not all(first <= last for _, first, last in runs) or count(runs) > most:
        raise ValueError("these are no calls in a row")


def joined(runs: Runs, owner: int, first: int, last: int | None = None) -> Runs:
    """With some numbers more, at the end."""
    end = first if last is None else last
    if runs:
        one, start, before = runs[-1]
        if one == owner and before + 1 == first:
            return (*runs[:-1], (owner, start, end))
    return (*runs, (owner, first, end))


def without(runs: Runs, owner: int, number: int) -> Runs:
    """Without this number; the others stay where they are."""
    for place, (one, first, last) in enumerate(runs):
        if one == owner and first <= number <= last:
            before = ((owner, first, number - 1),) if first < number else ()
            after = ((owner, number + 1, last),) if number < last else ()
            return (*runs[:place], *before, *after, *runs[place + 1 :])
    return runs


def of_owners(runs: Runs, owners: Container[int]) -> Runs:
    """What these owners have of them."""
    return tuple([run for run in runs if run[0] in owners])


def only(runs: Runs, owner: int, upto: int, numbers: Container[int]) -> Runs:
    """Without the owner's numbers up to `upto` that are none of these."""
    kept: Runs = ()
    for one, first, last in runs:
        if one != owner:
            kept = joined(kept, one, first, last)
            continue
        for number in range(first, last + 1):
            if number > upto or number in numbers:
                kept = joined(kept, owner, number)
    return kept


def count(runs: Runs) -> int:
    """How many there are."""
    return sum([last - first + 1 for _, first, last in runs])


def place(runs: Runs, owner: int, number: int) -> int:
    """How many stand up to this one and with it; 0 if it is not there."""
    before = 0
    for one, first, last in runs:
        if one == owner and first <= number <= last:
            return before + number - first + 1
        before += last - first + 1
    return 0


def numbers_of(runs: Runs, owner: int) -> list[int]:
    """The owner's numbers, in order."""
    return [number for one, first, last in runs if one == owner for number in range(first, last + 1)]


MOST_PERMITS = 10_000
MOST_WAITING = 10_000
"""How many may stand in line, over all owners: beyond it, a call is refused."""
LEAST_LEASE_US = SECOND_US
"""A busy process renews late: a shorter lease would end while its calls are in flight."""

PERMITTED = 0
"""In place of a place in line: the call may go."""
REFUSED = -1
"""In place of a place in line: the call has none."""
_UNHEARD = -1
"""In place of the call that an owner came with: it is not the store that says so."""

Owner: TypeAlias = tuple[int, int, int]
"""Its nonce, when its lease ends, and the call that it came with: another one after it was dropped."""
Room: TypeAlias = tuple[int, tuple[Owner, ...], Runs, Runs]
"""The latest instant seen, the owners, those who hold a permit, and those who stand in line."""
Told: TypeAlias = tuple[int, ...]
"""The call that the owner came with, 0 if it has nothing here; then those of its calls that hold a permit."""

_NOWHERE: Told = (0,)


class Concurrency(Value):
    """At most `limit` calls in flight: a call takes a permit before it leaves and returns it when it ends.

        >>> from shapekit import Policy
        >>> search = Policy("10/s", concurrency=Concurrency(20, lease="30s"))
        >>> with search.admit():
        ...     pass

    `concurrency=20` is short for `Concurrency(20)`. It is no gate that is asked once: it belongs into
    `concurrency=` of a policy or a wrapper, which gives the permit back.

    - `limit`: how many at once, over all workers that share the store.
    - `lease`: how long the permits of a worker stay its own after it was last heard of. A living worker
      renews it three times in that time, in the background; a crashed one loses its permits when it is over,
      never before. So the limit is exceeded only by calls of a worker that lives and cannot reach the store,
      or was stopped, for longer than that: by as many as it has in flight.
    """

    kind: ClassVar[str] = "concurrency"

    fields = ("limit", "lease_us")
    __slots__ = fields

    limit: int
    """How many calls may be in flight at once."""
    lease_us: int
    """How long a worker keeps its permits after it was last heard of, in microseconds."""

    def __init__(self, limit: int, lease: Duration = "60s") -> None:
        self._fill(
            limit=whole("limit", limit, most=MOST_PERMITS),
            lease_us=duration_us("lease", lease, least=LEAST_LEASE_US),
        )

    @property
    def civil(self) -> bool:
        """Whether the operations depend on civil time."""
        return False

    def unending(self) -> Concurrency:
        """The same limit with leases that do not end: for a process that shares it with nobody."""
        return Concurrency(self.limit, timedelta(microseconds=MAX_SPAN_US))

    def scaled(self, share: float | Fraction) -> Concurrency:
        """The same limit at a share of its permits, and one at least."""
        permits = max(1, int(self.limit * share_of(share)))
        return Concurrency(permits, timedelta(microseconds=self.lease_us))

    # what a call does

    def enter(
        self, state: Room | None, now: int, owner: int, number: int, may_wait: int, skew: int = 0
    ) -> tuple[Room | None, tuple[int, int], int, bool]:
        """Take a permit, else a place in line if it `may_wait`, else nothing. Asking again changes nothing.

        Answers the place, or PERMITTED or REFUSED, and the call that the owner came with.
        """
        time, owners, permits, line = self._settled(state, now)
        stands_at = place(line, owner, number)
        if not stands_at and not place(permits, owner, number):
            # Where there is a free permit, nobody waits any more.
            if count(permits) < self.limit:
                permits = joined(permits, owner, number)
            elif may_wait and (waiting := count(line)) < MOST_WAITING:
                line, stands_at = joined(line, owner, number), waiting + 1
            else:
                return state, (REFUSED, 0), 0, False
        owners = self._renewed(owners, owner, time, number)
        room = (time, owners, permits, line)
        return room, (stands_at, _came_with(owners, owner)), self.life(room, now), True

    def watch(
        self, state: Room | None, now: int, owner: int, skew: int = 0
    ) -> tuple[Room | None, Told, int, bool]:
        """Say which of the owner's calls hold a permit by now."""
        return self._told(state, self._settled(state, now), now, owner)

    def leave(
        self, state: Room | None, now: int, owner: int, number: int, skew: int = 0
    ) -> tuple[Room | None, Told, int, bool]:
        """Give a permit or a place in line back; late or again, this does nothing. Answers as `watch`."""
        time, owners, permits, line = self._settled(state, now)
        room = (time, owners, without(permits, owner, number), without(line, owner, number))
        return self._told(state, self._filled(room), now, owner)

    def keep(
        self, state: Room | None, now: int, owner: int, upto: int, numbers: Iterable[int], skew: int = 0
    ) -> tuple[Room | None, Told, int, bool]:
        """Renew the owner's lease; of its calls up to `upto`, all but these are over. Answers as `watch`."""
        time, owners, permits, line = self._settled(state, now)
        alive = frozenset(numbers)
        if _came_with(owners, owner):
            owners = self._renewed(owners, owner, time, 0)
        room = (time, owners, only(permits, owner, upto, alive), only(line, owner, upto, alive))
        return self._told(state, self._filled(room), now, owner)

    # looking

    def standing(self, state: Room | None, now: int) -> tuple[int, int]:
        """How many are in flight, and how many wait."""
        _, _, permits, line = self._settled(state, now)
        return count(permits), count(line)

    def life(self, state: Room, now: int) -> int:
        """How long from `now` the state differs from a cold one: until the last lease ends."""
        return max([0, *(until - now for _, until, _ in state[1])])

    def adopt(self, state: Room, writer: Any, now: int, skew: int = 0) -> Room:
        """A state that another limit or lease left: permits are kept, and who waits goes on waiting."""
        return state

    # to the twin and back

    def inspect(self, state: Any) -> None:
        """Look at a state that was read: a misfit where no such program has written it."""
        newest, owners, permits, line = state
        sum((newest, *(sum(one) for one in owners)))
        if not all(came_with > 0 for _, _, came_with in owners):
            raise ValueError("these are no owners")
        inspect(permits, MOST_PERMITS)
        inspect(line, MOST_WAITING)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is made of."""
        return ["inflight", self.limit, self.lease_us]

    def state_sent(self, state: Room) -> Any:
        """A state as the twin has it."""
        return state

    def state_received(self, sent: Any) -> Room:
        """A state that the twin sent."""
        room: Room = as_tuple(sent)
        return room

    # inside

    def _settled(self, state: Room | None, now: int) -> Room:
        """Without the owners whose leases are over; what they had goes to those who wait."""
        if state is None:
            return now, (), (), ()
        newest, owners, permits, line = state
        time = max(now, newest)
        living = {owner for owner, until, _ in owners if until > time}
        if len(living) == len(owners):
            return self._filled((time, owners, permits, line))
        left = tuple([one for one in owners if one[0] in living])
        return self._filled((time, left, of_owners(permits, living), of_owners(line, living)))

    def _filled(self, room: Room) -> Room:
        """With those permitted whom there are free permits for, in the order of asking."""
        time, owners, permits, line = room
        free = self.limit - count(permits)
        while free > 0 and line:
            owner, first, last = line[0]
            end = min(last, first + free - 1)
            permits = joined(permits, owner, first, end)
            free -= end - first + 1
            line = line[1:] if end == last else ((owner, end + 1, last), *line[1:])
        return time, owners, permits, line

    def _renewed(self, owners: tuple[Owner, ...], owner: int, time: int, number: int) -> tuple[Owner, ...]:
        """With a lease of this owner that lasts from now on, or longer."""
        until = time + self.lease_us
        for at, (one, ends, came_with) in enumerate(owners):
            if one == owner:
                return (*owners[:at], (owner, max(ends, until), came_with), *owners[at + 1 :])
        return (*owners, (owner, until, number))

    def _told(
        self, before: Room | None, after: Room, now: int, owner: int
    ) -> tuple[Room | None, Told, int, bool]:
        """What an owner is told that took nothing. Where nobody has more or less by it, nothing is kept."""
        time, owners, permits, line = after
        present = {one for one, _, _ in (*permits, *line)}
        owners = tuple([one for one in owners if one[0] in present])
        came_with = _came_with(owners, owner)
        told = (came_with, *numbers_of(permits, owner)) if came_with else _NOWHERE
        if before is None or (owners, permits, line) == before[1:]:
            return before, told, 0, False
        room = (time, owners, permits, line)
        return room, told, self.life(room, now), True


def _came_with(owners: tuple[Owner, ...], owner: int) -> int:
    """The call that an owner came with; 0 if it is not there."""
    return next((came_with for one, _, came_with in owners if one == owner), 0)


class _Enter(Operation):
    name = "enter"

    def undone(self, args: tuple[Any, ...], answer: tuple[int, int]) -> tuple[Undo, ...]:
        owner, number, _ = args
        return () if answer[0] == REFUSED else ((LEAVE, (owner, number)),)

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> tuple[int, int]:
        # Whoever stood in line is nobody here, asks again, and goes.
        return PERMITTED, _UNHEARD

    def closed(self, program: Any, at: Moment, args: tuple[Any, ...]) -> tuple[int, int]:
        return REFUSED, _UNHEARD

    def given(self, program: Any, part: Any, answer: tuple[int, int]) -> tuple[int, int]:
        stands_at, came_with = answer
        return stands_at, _UNHEARD - came_with


class _Watch(Operation):
    name = "watch"

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Told:
        return (_UNHEARD,)

    closed = opened

    def given(self, program: Any, part: Any, answer: Told) -> Told:
        came_with, *holding = answer
        return (_UNHEARD - came_with, *holding)


class _Leave(_Watch):
    name = "leave"
    on_both_sides = True
    needs_store = False


class _Keep(_Watch):
    name = "keep"


ENTER, WATCH, LEAVE, KEEP = _Enter(), _Watch(), _Leave(), _Keep()
