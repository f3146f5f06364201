"""Constraints: the further limits of a queue, beside its pace. A departure charges all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from shapekit.algorithms.base import Algorithm, Bounds, Decided, Shift, Window, slowed
from shapekit.algorithms.compose import adopted, each, of_one_kind
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.prospects import Periodic, Prospect
from shapekit.algorithms.quota import Quota, rolling_window
from shapekit.decision import Decision, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import SECOND_US, Rate, Value, exactly, whole

States: TypeAlias = tuple[Any, ...]
Receipts: TypeAlias = tuple[Receipt, ...]
Ahead: TypeAlias = tuple[int, int, int]
"""How far real time is ahead of the queue's time (in a hold, at its end); how far civil time is ahead of real
time; and real time now, which may be far before the end of a hold.
"""

Call: TypeAlias = Literal["waits", "left", "changed"]
"""What is known of a call whose units are given back: it waits for its slot, or has left; or limits may have
changed since it was charged.
"""
_JITTER_US = SECOND_US
"""Civil time is measured anew at each decision, and may be ahead by a little more or less."""

_Inlined: TypeAlias = tuple[bool, Callable[..., int], Callable[..., Decided[Any]], Algorithm[Any] | None]
"""What each departure needs of an algorithm: whether it is aligned, its `earliest` and `charge`, and the
algorithm itself if it can be spent.
"""


class Constraints(Value):
    """The algorithms of further rates, then those of gates; their states are a tuple in that order."""

    fields = ("algorithms", "spans")
    __slots__ = (*fields, "_inlined", "civil", "cold", "save_nothing")

    algorithms: tuple[Algorithm[Any], ...]
    spans: tuple[int, ...]
    """The periods of the further rates, in microseconds."""
    civil: bool
    cold: tuple[None, ...]
    save_nothing: bool
    """Whether no algorithm saves up for a burst in a hold: windows and quotas do not, meters do."""
    _inlined: tuple[_Inlined, ...]

    def __init__(self, rates: Sequence[Rate], part: Fraction, gates: Sequence[Algorithm[Any]]) -> None:
        for algorithm in gates:
            given: object = algorithm
            if isinstance(given, Concurrency):
                fix = f"write concurrency={given.limit} beside the gates"
                raise ConfigError("gates", given, "is not a gate: its permits have to be given back", fix)
            if not isinstance(algorithm, Algorithm):
                raise ConfigError("gates", algorithm, "is not a strategy", 'write gates=(GCRA("10/s"),)')
        algorithms = [*(_unpaced(rate, part) for rate in rates), *gates]
        self._fill(
            algorithms=tuple(algorithms),
            spans=tuple([rate.period_us for rate in rates]),
            civil=any(algorithm.civil for algorithm in algorithms),
            cold=(None,) * len(algorithms),
            save_nothing=all(one.aligned or isinstance(one, Window | Quota) for one in algorithms),
            _inlined=tuple([_inlined(algorithm) for algorithm in algorithms]),
        )

    def max_cost(self, otherwise: int) -> int:
        """The largest cost that all algorithms can ever admit."""
        return min([otherwise, *(algorithm.max_cost for algorithm in self.algorithms)])

    def departure(self, states: States, at: int, cost: int, ahead: Ahead) -> tuple[int, Decision | None]:
        """The first instant from `at` on that all admit, and the denial of a spent quota that delays it."""
        shift, skew, _ = ahead
        due = at
        told: Decision | None = None
        while True:
            later = due
            # `timeline` is written out here: this is the path of every call.
            for (aligned, earliest, _, limit), before in zip(self._inlined, states):  # noqa: B905 - for speed
                real, civil = (shift, skew) if aligned else (0, shift + skew)
                if limit is not None and told is None and limit.spent(before, later + real, cost, civil):
                    denial = limit.check(before, later + real, cost, civil).decision
                    told = denial._replace(
                        binding=denial.binding or limit.kind, reset_at_us=denial.reset_at_us - real
                    )
                later = earliest(before, later + real, cost, civil) - real
            if later == due:
                return due, told
            due = later

    def prospects(self, states: States, cost: int, ahead: Ahead) -> Sequence[Prospect] | None:
        """What delays further calls of this cost, on the queue's time; None if they have to be simulated."""
        found = []
        for algorithm, before in zip(self.algorithms, states, strict=True):
            real, skew = timeline(algorithm, ahead)
            prospect = algorithm.prospect(before, cost, skew)
            if prospect is None:
                return None
            found.append(prospect.later(real) if isinstance(prospect, Periodic) else prospect)
        return found

    def charge(
        self, states: States, at: int, due: int, cost: int, ahead: Ahead
    ) -> tuple[States, Receipts, int]:
        """The states after a departure that all admit, the receipts, and how long the states live."""
        shift, skew, now = ahead
        after: list[Any] = []
        receipts: list[Receipt] = []
        life = 0
        for (aligned, _, charge, _), before in zip(self._inlined, states):  # noqa: B905 - for speed
            if aligned:
                state, decision, lives, _ = charge(before, now, due + shift, cost, skew)
            else:
                state, decision, lives, _ = charge(before, now - shift, due, cost, shift + skew)
            after.append(state)
            receipts.append(decision[7])
            if lives > life:
                life = lives
        return tuple(after), tuple(receipts), life - (at + shift - now)

    def refund(
        self, states: States, due: int, cost: int, receipts: Receipts, ahead: Ahead, call: Call = "waits"
    ) -> States:
        """The states after `cost` is given back to the charges of this departure with these receipts."""
        if cost == 0 or not receipts:
            return states
        after = []
        for algorithm, before, receipt in zip(self.algorithms, states, receipts, strict=True):
            place = _counted_at(algorithm, due, receipt, ahead, call)
            if place is not None:
                since, skew = _present(algorithm, ahead)
                before = algorithm.refund(before, since, cost, place, skew).state  # noqa: PLW2901
            after.append(before)
        return tuple(after)

    def refund_last(
        self,
        states: States,
        due: int,
        cost: int,
        receipts: Receipts,
        ahead: Ahead,
        newest: int,
        call: Call = "waits",
    ) -> States:
        """`refund`, if all later charges were given back, and `newest` is the last departure that is left."""
        if cost == 0 or not receipts:
            return states
        after = []
        for algorithm, before, receipt in zip(self.algorithms, states, receipts, strict=True):
            place = _counted_at(algorithm, due, receipt, ahead, call)
            if place is not None:
                since, skew = _present(algorithm, ahead)
                # By aligned time it may have shifted since.
                left = None if algorithm.aligned else newest
                before = algorithm.refund_last(before, since, cost, place, skew, left)  # noqa: PLW2901
            after.append(before)
        return tuple(after)

    def refund_many(
        self,
        states: States,
        dues: Sequence[int],
        offsets: Sequence[int],
        ahead: Ahead,
        call: Call = "waits",
    ) -> States:
        """The states after one unit of each of these departures, which ascend, is given back."""
        after = []
        for algorithm, before in zip(self.algorithms, states, strict=True):
            since, skew = _present(algorithm, ahead)
            offset = _offset(algorithm, offsets)
            charges: dict[int | None, list[int]] = {}
            for due in dues:
                charged_at: Any = _counted_at(algorithm, due, due + offset, ahead, call)
                if charged_at is not None:
                    charges.setdefault(algorithm.together(charged_at), [charged_at, 0])[1] += 1
            after.append(algorithm.refund_many(before, since, [*charges.values()], skew))
        return tuple(after)

    def offsets(self, due: int, receipts: Receipts) -> tuple[int, int] | None:
        """How far the time of aligned limits, and civil time, were ahead when this departure was charged.

        None if a receipt contains more than its instant.
        """
        ahead = [0, 0]
        for algorithm, receipt in zip(self.algorithms, receipts, strict=True):
            if not isinstance(receipt, int) or receipt < 0 or algorithm.together(receipt) is None:
                return None  # or without a receipt, because the call was moved
            if algorithm.aligned or algorithm.civil:
                ahead[not algorithm.aligned] = receipt - due
        aligned, civil = ahead
        return (aligned, civil) if self.are_alike(due, receipts, (aligned, civil)) else None

    def are_alike(self, due: int, receipts: Receipts, offsets: Sequence[int]) -> bool:
        """Whether these receipts are equivalent to those with such offsets."""
        return all(
            isinstance(receipt, int)
            and algorithm.together(receipt) == algorithm.together(due + _offset(algorithm, offsets))
            for algorithm, receipt in zip(self.algorithms, receipts, strict=True)
        )

    def receipts_at(self, due: int, offsets: Sequence[int]) -> Receipts:
        """The receipts of a departure with such offsets."""
        return tuple([due + _offset(algorithm, offsets) for algorithm in self.algorithms])

    def receipts_of(self, receipts: Receipts, writer: Constraints) -> Receipts:
        """The receipts of a departure that `writer` charged, each from the algorithm that this one continues.

        None for an algorithm that continues none: it has not counted the call, and has nothing to give back.
        """
        if len(receipts) != len(writer.algorithms):
            return self.cold
        kept: list[Receipt] = []
        for algorithm, place in zip(self.algorithms, self._places_in(writer), strict=True):
            if place is None or not of_one_kind(algorithm.kind, writer.algorithms[place].kind):
                kept.append(None)
                continue
            receipt = receipts[place]
            if algorithm != writer.algorithms[place]:
                # A meter with other numbers does not know where this charge lies.
                receipt = algorithm.moved_receipt(receipt, lambda at: at)
            kept.append(receipt if algorithm.owns(receipt) else None)
        return tuple(kept)

    def debit(self, states: States, at: int, cost: int, receipts: Receipts, ahead: Ahead) -> States:
        """The states after `cost` more is charged unconditionally, at this instant of the queue's time."""
        after = []
        for algorithm, before, receipt in zip(self.algorithms, states, receipts, strict=True):
            since, skew = _present(algorithm, ahead)
            if not _is_real(algorithm):
                since = at
            after.append(algorithm.debit(before, since, cost, receipt, skew).state)
        return tuple(after)

    def lasts(self, states: States, at: int, ahead: Ahead) -> int:
        """How long the states live."""
        longest = 0
        for algorithm, before in zip(self.algorithms, states, strict=True):
            if before is not None:
                real, skew = timeline(algorithm, ahead)
                longest = max(longest, algorithm.life(before, at + real, skew))
        return longest

    def twins(self, instants: Sequence[int]) -> list[Any]:
        """What the Lua twins of the algorithms are constructed from."""
        return [
            [algorithm.twin(instants), algorithm.aligned, algorithm.kind, algorithm.civil]
            for algorithm in self.algorithms
        ]

    def receipts_sent(self, receipts: Receipts) -> list[Any]:
        """The receipts in the form of the twins; empty if nothing was charged."""
        return each(self.algorithms, "receipt_sent", receipts) if receipts else []

    def receipts_received(self, sent: Sequence[Any]) -> Receipts:
        """The receipts from the twins."""
        return tuple(each(self.algorithms, "receipt_received", sent)) if sent else ()

    def adopt(self, states: States, writer: Constraints, newest: int, ahead: Ahead) -> States:
        """Adopt the states of other constraints: algorithms of the same kind continue.

        A gate continues the gate at the same place; a further rate continues the one of the same period, or
        else the one at the same place among the rest. `newest` is the latest departure, or the present if no
        departure lies ahead.
        """
        kept: list[Any] = []
        for algorithm, place in zip(self.algorithms, self._places_in(writer), strict=True):
            old, state = (algorithm, None) if place is None else (writer.algorithms[place], states[place])
            real, skew = timeline(algorithm, ahead)
            is_alike = of_one_kind(algorithm.kind, old.kind)
            kept.append(adopted(algorithm, state, old, newest + real, skew) if is_alike else None)
        return tuple(kept)

    def shifted(self, states: States, moved: Shift, ahead: Ahead) -> States:
        """The states after a hold, or its end, has moved waiting calls, as seen on the queue's time."""
        after = [*states]
        for place, limit, own, skew in self._shifts(states, moved, ahead):
            after[place] = limit.shifted(states[place], own, skew)
        return tuple(after)

    def sooner(self, states: States, moved: Shift, ahead: Ahead) -> int:
        """How much sooner, up to what `moved` asks for, calls may leave so that no window of real time sees
        more than its limit.
        """

        def tight(by: int) -> list[tuple[Bounds, int]]:
            shifts = self._shifts(states, moved._replace(by=-by), ahead)
            return [
                found
                for place, limit, own, skew in shifts
                for found in limit.crowded(states[place], own, skew)
            ]

        by = -moved.by
        found = tight(by)
        if not found:
            return by
        # In the next window, or at the same place in a later one.
        ends = [(at, bounds(at)[0], bounds(at - by)[1]) for bounds, at in found]
        soonest = max(0, min(at - end for at, _, end in ends))
        if not tight(soonest):
            return soonest
        later = max(0, min(start - end for _, start, end in ends))
        # That is the same place for one of several limits, and perhaps none for another.
        is_elsewhere = any(bounds(at)[0] - bounds(at - later)[0] != later for bounds, at in tight(later))
        return 0 if is_elsewhere else later

    def _shifts(
        self, states: States, moved: Shift, ahead: Ahead
    ) -> Iterator[tuple[int, Algorithm[Any], Shift, int]]:
        """The place of each limit that counts by real time, how its calls move, and how far civil time is
        ahead of its own then.
        """
        shift, skew, _ = ahead
        parts = [*zip(self.algorithms, states, strict=True)]
        own = [(one, state) for one, state in parts if state is not None and not _is_real(one)]

        def most(at: int) -> int:
            return min([moved.most(at), *(one.since(state, at) for one, state in own)])

        known = moved._replace(most=most)
        for place, (limit, before) in enumerate(parts):
            if before is None or not _is_real(limit):
                continue
            offset = shift if limit.aligned else shift + skew
            yield place, limit, known.later(offset), skew if limit.aligned else offset + moved.by

    def resumed(self, states: States, at: int, newest: int, shift: int) -> States:
        """The states after a hold was ended early: real time is ahead of the queue's by this `shift` now."""
        after = []
        for algorithm, before in zip(self.algorithms, states, strict=True):
            moves = before is not None and algorithm.aligned
            after.append(algorithm.resumed(before, max(at, newest) + shift) if moves else before)
        return tuple(after)

    def rescheduled(self, states: States, newest: int, when: Callable[[int], int], ahead: Ahead) -> States:
        """The states after calls up to `newest` were moved, each from its instant `at` to `when(at)`."""
        after = []
        for algorithm, before in zip(self.algorithms, states, strict=True):
            real, _ = timeline(algorithm, ahead)

            def later(at: int, real: int = real) -> int:
                return when(at - real) + real

            after.append(None if before is None else algorithm.rescheduled(before, newest + real, later))
        return tuple(after)

    def moved(self, receipts: Receipts, when: Callable[[int], int], *, later: bool) -> Receipts:
        """The receipts of a call after `rescheduled`.

        If calls moved `later`, it is not known in which window an aligned limit counts the call now: a hold
        may have changed how far real time is ahead of the queue's.
        """
        if not later or len(receipts) != len(self.algorithms):
            return receipts  # nothing has moved; or no receipts, or those of an adaptive queue
        after = []
        for algorithm, receipt in zip(self.algorithms, receipts, strict=True):
            known = None if algorithm.aligned else when
            after.append(algorithm.moved_receipt(receipt, known))
        return tuple(after)

    def brought(self, states: States, at: int, ahead: Ahead) -> States:
        """The states after all waiting calls may leave at once, and count at this instant."""
        after = []
        for algorithm, before in zip(self.algorithms, states, strict=True):
            real, skew = timeline(algorithm, ahead)
            after.append(None if before is None else algorithm.brought(before, at + real, skew))
        return tuple(after)

    def _places_in(self, writer: Constraints) -> Iterator[int | None]:
        """For each algorithm, the index of the one in `writer` that it continues; None for none."""
        # Rates may have the same period: then the first continues the first, and so on.
        left = dict(enumerate(writer.spans))
        places: list[int | None] = []
        for span in self.spans:
            place = next((place for place, other in left.items() if other == span), None)
            left.pop(-1 if place is None else place, None)
            places.append(place)
        others = iter(left)
        for place in places:
            yield next(others, None) if place is None else place
        first, end = len(writer.spans), len(writer.algorithms)
        for place in range(first, first + len(self.algorithms) - len(self.spans)):
            yield place if place < end else None


def _inlined(algorithm: Algorithm[Any]) -> _Inlined:
    can_be_spent = type(algorithm).spent is not Algorithm.spent
    return algorithm.aligned, algorithm.earliest, algorithm.charge, algorithm if can_be_spent else None


def timeline(algorithm: Algorithm[Any], ahead: Ahead) -> tuple[int, int]:
    """How far an algorithm's time is ahead of the queue's, and how far civil time is ahead of that.

    A hold does not stop the server's windows, so aligned limits run on real time.
    """
    shift, skew, _ = ahead
    return (shift, skew) if algorithm.aligned else (0, shift + skew)


def _is_real(algorithm: Algorithm[Any]) -> bool:
    """Whether an algorithm counts by real or civil time, which go on in a hold."""
    return algorithm.aligned or algorithm.civil


def _present(algorithm: Algorithm[Any], ahead: Ahead) -> tuple[int, int]:
    """The present of an algorithm, and how far civil time is ahead of it.

    In a hold, this is not its end: algorithms forget what has passed by then, and a hold may be ended.
    """
    real, skew = timeline(algorithm, ahead)
    return ahead[2] - ahead[0] + real, skew


def _counted_at(algorithm: Algorithm[Any], due: int, receipt: Receipt, ahead: Ahead, call: Call) -> Receipt:
    """The receipt of a call after a hold has moved it; None if a hold was ended since then.

    In that case the call may count in an earlier window than the receipt says, together with other calls: it
    is not given back, and expires. If changed limits moved the call, its calendar period still counts it.
    """
    shift, skew, _ = ahead
    if not isinstance(receipt, int) or not _is_real(algorithm):
        return receipt
    leaves = due + shift + (0 if algorithm.aligned else skew)
    if algorithm.aligned and receipt > leaves:
        return None
    if receipt > leaves + _JITTER_US and algorithm.together(receipt) != algorithm.together(leaves):
        return receipt if call == "changed" else None
    return leaves if call == "waits" and receipt < leaves <= receipt + shift else receipt


def _offset(algorithm: Algorithm[Any], offsets: Sequence[int]) -> int:
    """How far the algorithm's receipts are ahead of the queue's time."""
    return offsets[0] if algorithm.aligned else offsets[1] if algorithm.civil else 0


def _unpaced(rate: Rate, part: Fraction) -> Algorithm[Any]:
    """The limit for a part of an unpaced rate: a rolling window, or a meter if the rate has a burst."""
    if rate.burst is not None:
        return GCRA(slowed(rate, part), rate.burst)
    return rolling_window(max(1, int(rate.limit * part)), timedelta(microseconds=rate.period_us))


def part_below(headroom: object) -> Fraction:
    """The part of a rate that is used under this headroom."""
    exact = exactly(headroom)
    if exact is None or not 0 <= exact < 1 or (exact := exact.limit_denominator(1_000_000)) == 1:
        fix = "write 0.02 for 2 % below the rate"
        raise ConfigError("headroom", headroom, "is not from 0 to below 1", fix)
    return 1 - exact


def burst_of(paced: Rate | None, burst: int | None, most: int) -> int:
    """How many calls may leave at once: from the rate or the argument; 1 by default."""
    stated = None if paced is None else paced.burst
    if burst is None:
        return 1 if stated is None else whole("burst", stated, most=most)
    if paced is None:
        fix = 'leave it out, or use pace="smooth"'
        raise ConfigError("burst", burst, "has no paced rate to apply to", fix)
    if stated is not None:
        raise ConfigError("burst", burst, "conflicts with the burst in the rate", "give the burst once")
    return whole("burst", burst, most=most)
