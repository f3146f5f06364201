"""Concurrency: at most `limit` calls in flight, over all processes that share the key.

A call holds a permit from its `enter` to its `leave`. A call that finds no free permit joins a line, and
permits that become free go to the line in order of arrival. No operation waits: a process that polls
(`watch`), or gives something back, gets the list of its calls that now hold a permit.

An owner is a process; a number is one of its calls. The permits and places of an owner last as long as its
lease, which it renews (`keep`) while it has calls. When the lease ends, because the owner crashed, its
permits go to the calls that wait. `keep` also names the calls that are not over: all other permits and places
of this owner, left over because a reply was lost or a `leave` did not arrive, are given back.

Time never goes back here: an earlier instant counts as the latest one seen. So no lease ends early and no
permit is given twice, whatever a clock does.

Runs: calls in order, as ranges of consecutive numbers of an owner, so that a thousand calls take little room.

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

from shapekit.algorithms.base import Moment, Operation, Stepped, Undo, as_tuple, share_of
from shapekit.rate import MAX_SPAN_US, SECOND_US, Duration, Value, duration_us, whole

__all__ = ["Concurrency"]

Run: TypeAlias = tuple[int, int, int]
"""An owner, and the first and the last of its consecutive numbers."""
Runs: TypeAlias = tuple[Run, ...]


def inspect(runs: Any, most: int) -> None:
    """Refuse runs that were read and are empty or too many: some operations visit every number."""
    if len(runs) > most or not all(first <= last for _, first, last in runs) or count(runs) > most:
        raise ValueError("malformed calls, or too many")


def joined(runs: Runs, owner: int, first: int, last: int | None = None) -> Runs:
    """The runs with one or more numbers appended."""
    end = first if last is None else last
    if runs:
        one, start, before = runs[-1]
        if one == owner and before + 1 == first:
            return (*runs[:-1], (owner, start, end))
    return (*runs, (owner, first, end))


def without(runs: Runs, owner: int, number: int) -> Runs:
    """The runs without this number, in the same order."""
    for place, (one, first, last) in enumerate(runs):
        if one == owner and first <= number <= last:
            before = ((owner, first, number - 1),) if first < number else ()
            after = ((owner, number + 1, last),) if number < last else ()
            return (*runs[:place], *before, *after, *runs[place + 1 :])
    return runs


def of_owners(runs: Runs, owners: Container[int]) -> Runs:
    """The runs of these owners."""
    return tuple([run for run in runs if run[0] in owners])


def only(runs: Runs, owner: int, upto: int, numbers: Container[int]) -> Runs:
    """The runs without those of the owner's numbers up to `upto` that are not among `numbers`."""
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
    """How many numbers there are."""
    return sum([last - first + 1 for _, first, last in runs])


def place(runs: Runs, owner: int, number: int) -> int:
    """The position of a number, counted from 1; 0 if it is not there."""
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
"""How many calls may wait, over all owners; any more are refused."""
LEAST_LEASE_US = SECOND_US
"""The shortest lease: a busy process renews late, and a shorter one could end during its calls."""

PERMITTED = 0
"""Instead of a position in line: the call has a permit."""
REFUSED = -1
"""Instead of a position in line: the call was refused."""
_UNHEARD = -1
"""Instead of an owner's first call: the answer is a fallback's."""

Owner: TypeAlias = tuple[int, int, int]
"""A nonce, the end of the lease, and the owner's first call, which changes if the owner was dropped."""
Room: TypeAlias = tuple[int, tuple[Owner, ...], Runs, Runs]
"""The latest instant seen, the owners, the permits, and the line."""
PermitAnswer: TypeAlias = tuple[int, ...]
"""The owner's first call, or 0 if it has nothing here; then those of its calls that hold a permit."""

_NOWHERE: PermitAnswer = (0,)


class Concurrency(Value):
    """At most `limit` calls in flight: a call takes a permit before it leaves and returns it when it ends.

        >>> from shapekit import Policy
        >>> search = Policy("10/s", concurrency=Concurrency(20, lease="30s"))
        >>> with search.admit():
        ...     pass

    `concurrency=20` is short for `Concurrency(20)`. It is not a gate: pass it as `concurrency=` to a policy
    or a wrapper, which also returns the permit.

    - `limit`: how many calls may be in flight at once, over all workers that share the store.
    - `lease`: how long a worker keeps its permits after it last renewed the lease. A running worker renews it
      in the background, three times within its length; a crashed worker loses its permits when the lease
      ends, and never before. So calls exceed the limit only if a worker is alive but was stopped, or cannot
      reach the store, for longer than the lease: by as many calls as it has in flight.
    """

    kind: ClassVar[str] = "concurrency"

    fields = ("limit", "lease_us")
    __slots__ = fields

    limit: int
    """How many calls may be in flight at once."""
    lease_us: int
    """How long a worker keeps its permits after it last renewed the lease, in microseconds."""

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
        """The same limit with leases that never end: for a process that does not share it."""
        return Concurrency(self.limit, timedelta(microseconds=MAX_SPAN_US))

    def scaled(self, share: float | Fraction) -> Concurrency:
        """The same limit at a share of its permits, at least one."""
        permits = max(1, int(self.limit * share_of(share)))
        return Concurrency(permits, timedelta(microseconds=self.lease_us))

    # what a call does

    def enter(
        self, state: Room | None, now: int, owner: int, number: int, may_wait: int, skew: int = 0
    ) -> Stepped[Room | None, tuple[int, int]]:
        """Take a permit, else a position in line if it `may_wait`, else nothing. A repeated call changes
        nothing.

        Returns the position, or PERMITTED or REFUSED, and the owner's first call.
        """
        time, owners, permits, line = self._settled(state, now)
        stands_at = place(line, owner, number)
        if not stands_at and not place(permits, owner, number):
            # As long as there is a free permit, no call waits.
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
    ) -> Stepped[Room | None, PermitAnswer]:
        """Return which of the owner's calls hold a permit by now."""
        return self._answer(state, self._settled(state, now), now, owner)

    def leave(
        self, state: Room | None, now: int, owner: int, number: int, skew: int = 0
    ) -> Stepped[Room | None, PermitAnswer]:
        """Give back a permit or a place in line; too late or again, it does nothing. Returns as `watch`."""
        time, owners, permits, line = self._settled(state, now)
        room = (time, owners, without(permits, owner, number), without(line, owner, number))
        return self._answer(state, self._filled(room), now, owner)

    def keep(
        self, state: Room | None, now: int, owner: int, upto: int, numbers: Iterable[int], skew: int = 0
    ) -> Stepped[Room | None, PermitAnswer]:
        """Renew the owner's lease; its calls up to `upto` that are not among `numbers` are over. Returns as
        `watch`.
        """
        time, owners, permits, line = self._settled(state, now)
        alive = frozenset(numbers)
        if _came_with(owners, owner):
            owners = self._renewed(owners, owner, time, 0)
        room = (time, owners, only(permits, owner, upto, alive), only(line, owner, upto, alive))
        return self._answer(state, self._filled(room), now, owner)

    # looking

    def standing(self, state: Room | None, now: int) -> tuple[int, int]:
        """How many calls are in flight, and how many wait."""
        _, _, permits, line = self._settled(state, now)
        return count(permits), count(line)

    def life(self, state: Room, now: int) -> int:
        """How long from `now` on the state differs from a cold one: until the last lease ends."""
        return max([0, *(until - now for _, until, _ in state[1])])

    def adopt(self, state: Room, writer: Any, now: int, skew: int = 0) -> Room:
        """Adopt a state with another limit or lease: permits and waiting calls are kept."""
        return state

    # to the twin and back

    def inspect(self, state: Any) -> None:
        """Check a state that was read; raise if no program of this kind can have written it."""
        newest, owners, permits, line = state
        sum((newest, *(sum(one) for one in owners)))
        if not all(came_with > 0 for _, _, came_with in owners):
            raise ValueError("malformed owners")
        inspect(permits, MOST_PERMITS)
        inspect(line, MOST_WAITING)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is constructed from."""
        return ["inflight", self.limit, self.lease_us]

    def state_sent(self, state: Room) -> Any:
        """A state in the form of the twin."""
        return state

    def state_received(self, sent: Any) -> Room:
        """A state from the twin."""
        room: Room = as_tuple(sent)
        return room

    # inside

    def _settled(self, state: Room | None, now: int) -> Room:
        """The state without owners whose leases have ended; their permits go to the calls that wait."""
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
        """The state with free permits given to waiting calls, in order of arrival."""
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
        """The owners with this one's lease renewed; a lease never gets shorter."""
        until = time + self.lease_us
        for at, (one, ends, came_with) in enumerate(owners):
            if one == owner:
                return (*owners[:at], (owner, max(ends, until), came_with), *owners[at + 1 :])
        return (*owners, (owner, until, number))

    def _answer(
        self, before: Room | None, after: Room, now: int, owner: int
    ) -> Stepped[Room | None, PermitAnswer]:
        """The answer for an owner that took nothing. The state is stored only if permits or line changed."""
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
    """The first call of an owner; 0 if the owner is not there."""
    return next((came_with for one, _, came_with in owners if one == owner), 0)


class _Enter(Operation):
    name = "enter"

    def undone(self, args: tuple[Any, ...], answer: tuple[int, int]) -> tuple[Undo, ...]:
        owner, number, _ = args
        return () if answer[0] == REFUSED else ((LEAVE, (owner, number)),)

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> tuple[int, int]:
        # Without the store, a waiting call finds itself lost, enters again, and gets a permit.
        return PERMITTED, _UNHEARD

    def closed(self, program: Any, at: Moment, args: tuple[Any, ...]) -> tuple[int, int]:
        return REFUSED, _UNHEARD

    def given(self, program: Any, part: Any, answer: tuple[int, int]) -> tuple[int, int]:
        stands_at, came_with = answer
        return stands_at, _UNHEARD - came_with


class _Watch(Operation):
    name = "watch"

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> PermitAnswer:
        return (_UNHEARD,)

    closed = opened

    def given(self, program: Any, part: Any, answer: PermitAnswer) -> PermitAnswer:
        came_with, *holding = answer
        return (_UNHEARD - came_with, *holding)


class _Leave(_Watch):
    name = "leave"
    on_both_sides = True
    needs_store = False


class _Keep(_Watch):
    name = "keep"


ENTER, WATCH, LEAVE, KEEP = _Enter(), _Watch(), _Leave(), _Keep()
