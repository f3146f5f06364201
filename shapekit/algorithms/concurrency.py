"""Concurrency: at most so many calls in flight, over all who share the key.

A call sits from its `enter` to its `leave`. Whoever finds no free seat stands in line, and seats that come
free are given to the line in the order of asking. Nothing here waits: who stands in line is told, when it
asks (`watch`) or gives something back, which of its calls sit by now.

An owner is a process; a number is one of its calls. The seats and places of an owner live as long as its
lease, which it renews (`keep`) while it has any; when the lease is over, because the owner crashed, they
go to those who wait. `keep` also says which calls there still are: what the store has beside them, because
a reply was lost or a `leave` did not arrive, is given back.

Time never goes back here: an earlier instant counts as the latest one seen. So nobody's lease ends early,
and nobody is given a seat twice, whatever a clock does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from shapekit.algorithms.base import as_tuple, share_of
from shapekit.algorithms.runs import Runs, count, inspect, joined, numbers_of, of_owners, only, place, without
from shapekit.rate import MAX_SPAN_US, SECOND_US, Duration, duration_us, whole
from shapekit.value import Value

__all__ = ["Concurrency"]

MOST_SEATS = 10_000
MOST_WAITING = 10_000
"""How many may stand in line, over all owners: beyond it, a call is refused."""
LEAST_LEASE_US = SECOND_US
"""A busy process renews late: a shorter lease would end while its calls are in flight."""

SEATED = 0
"""In place of a place in line: the call may go."""
REFUSED = -1
"""In place of a place in line: the call has none."""

Owner: TypeAlias = tuple[int, int, int]
"""Its nonce, when its lease ends, and the call that it came with: another one after it was dropped."""
Room: TypeAlias = tuple[int, tuple[Owner, ...], Runs, Runs]
"""The latest instant seen, the owners, those who sit, and those who stand in line."""
Told: TypeAlias = tuple[int, ...]
"""The call that the owner came with, 0 if it has nothing here; then those of its calls that sit."""

_NOWHERE: Told = (0,)


class Concurrency(Value):
    """At most `limit` calls in flight: a call takes a seat before it leaves, and gives it back when it ends.

        >>> from shapekit import Policy
        >>> search = Policy("10/s", concurrency=Concurrency(20, lease="30s"))
        >>> with search.admit():
        ...     pass

    `concurrency=20` is short for `Concurrency(20)`. It is no gate that is asked once: it belongs into
    `concurrency=` of a policy or a wrapper, which gives the seat back.

    - `limit`: how many at once, over all workers that share the store.
    - `lease`: how long the seats of a worker stay its own after it was last heard of. A living worker renews
      it three times in that time, in the background; a crashed one loses its seats when it is over, never
      before. So the limit is exceeded only by calls of a worker that lives and cannot reach the store, or was
      stopped, for longer than that: by as many as it has in flight.
    """

    kind: ClassVar[str] = "concurrency"

    fields = ("limit", "lease_us")
    __slots__ = fields

    limit: int
    lease_us: int

    def __init__(self, limit: int, lease: Duration = "60s") -> None:
        self._fill(
            limit=whole("limit", limit, most=MOST_SEATS),
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
        """The same limit at a share of its seats, and one at least."""
        seats = max(1, int(self.limit * share_of(share)))
        return Concurrency(seats, timedelta(microseconds=self.lease_us))

    # what a call does

    def enter(
        self, state: Room | None, now: int, owner: int, number: int, may_wait: int, skew: int = 0
    ) -> tuple[Room | None, tuple[int, int], int, bool]:
        """Take a seat, else a place in line if it `may_wait`, else nothing. Asking again changes nothing.

        Answers the place, or SEATED or REFUSED, and the call that the owner came with.
        """
        time, owners, seats, line = self._settled(state, now)
        stands_at = place(line, owner, number)
        if not stands_at and not place(seats, owner, number):
            # Where there is a free seat, nobody waits any more.
            if count(seats) < self.limit:
                seats = joined(seats, owner, number)
            elif may_wait and (waiting := count(line)) < MOST_WAITING:
                line, stands_at = joined(line, owner, number), waiting + 1
            else:
                return state, (REFUSED, 0), 0, False
        owners = self._renewed(owners, owner, time, number)
        room = (time, owners, seats, line)
        return room, (stands_at, _came_with(owners, owner)), self.life(room, now), True

    def watch(
        self, state: Room | None, now: int, owner: int, skew: int = 0
    ) -> tuple[Room | None, Told, int, bool]:
        """Say which of the owner's calls sit by now."""
        return self._told(state, self._settled(state, now), now, owner)

    def leave(
        self, state: Room | None, now: int, owner: int, number: int, skew: int = 0
    ) -> tuple[Room | None, Told, int, bool]:
        """Give a seat or a place in line back; late or again, this does nothing. Answers as `watch`."""
        time, owners, seats, line = self._settled(state, now)
        room = (time, owners, without(seats, owner, number), without(line, owner, number))
        return self._told(state, self._filled(room), now, owner)

    def keep(
        self, state: Room | None, now: int, owner: int, upto: int, numbers: Iterable[int], skew: int = 0
    ) -> tuple[Room | None, Told, int, bool]:
        """Renew the owner's lease; of its calls up to `upto`, all but these are over. Answers as `watch`."""
        time, owners, seats, line = self._settled(state, now)
        alive = frozenset(numbers)
        if _came_with(owners, owner):
            owners = self._renewed(owners, owner, time, 0)
        room = (time, owners, only(seats, owner, upto, alive), only(line, owner, upto, alive))
        return self._told(state, self._filled(room), now, owner)

    # looking

    def look(self, state: Room | None, now: int, skew: int = 0) -> tuple[Room | None, int, int]:
        """The state itself with its time."""
        return state, now, skew

    def standing(self, state: Room | None, now: int) -> tuple[int, int]:
        """How many are in flight, and how many wait."""
        _, _, seats, line = self._settled(state, now)
        return count(seats), count(line)

    def life(self, state: Room, now: int) -> int:
        """How long from `now` the state differs from a cold one: until the last lease ends."""
        return max([0, *(until - now for _, until, _ in state[1])])

    def adopt(self, state: Room, writer: Any, now: int, skew: int = 0) -> Room:
        """A state that another limit or lease left: who sits goes on sitting, who waits goes on waiting."""
        return state

    # to the twin and back

    def inspect(self, state: Any) -> None:
        """Look at a state that was read: a misfit where no such program has written it."""
        newest, owners, seats, line = state
        sum((newest, *(sum(one) for one in owners)))
        if not all(came_with > 0 for _, _, came_with in owners):
            raise ValueError("these are no owners")
        inspect(seats, MOST_SEATS)
        inspect(line, MOST_WAITING)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is made of."""
        return ["concurrency", self.limit, self.lease_us]

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
        newest, owners, seats, line = state
        time = max(now, newest)
        living = {owner for owner, until, _ in owners if until > time}
        if len(living) == len(owners):
            return self._filled((time, owners, seats, line))
        left = tuple([one for one in owners if one[0] in living])
        return self._filled((time, left, of_owners(seats, living), of_owners(line, living)))

    def _filled(self, room: Room) -> Room:
        """With those seated whom there are free seats for, in the order of asking."""
        time, owners, seats, line = room
        free = self.limit - count(seats)
        while free > 0 and line:
            owner, first, last = line[0]
            end = min(last, first + free - 1)
            seats = joined(seats, owner, first, end)
            free -= end - first + 1
            line = line[1:] if end == last else ((owner, end + 1, last), *line[1:])
        return time, owners, seats, line

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
        time, owners, seats, line = after
        present = {one for one, _, _ in (*seats, *line)}
        owners = tuple([one for one in owners if one[0] in present])
        came_with = _came_with(owners, owner)
        told = (came_with, *numbers_of(seats, owner)) if came_with else _NOWHERE
        if before is None or (owners, seats, line) == before[1:]:
            return before, told, 0, False
        room = (time, owners, seats, line)
        return room, told, self.life(room, now), True


def _came_with(owners: tuple[Owner, ...], owner: int) -> int:
    """The call that an owner came with; 0 if it is not there."""
    return next((came_with for one, _, came_with in owners if one == owner), 0)
