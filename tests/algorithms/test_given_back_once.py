"""Every short history of calls and give-backs, repeated and for more than was charged: none mints.

The model is the list of charges, each with the units of its first give-back. A key is compared with one that
was charged the rest alone: it is never more permissive, and repeating a give-back changes nothing, whatever
happened in between. So for each strategy and composite, exhaustively; and for
long histories as a property.
"""

from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    LeakyBucket,
    Quota,
    Rate,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.ledger import ledgered

from .limits import limits as any_limit
from .stories import costs, steps, stories
from .test_laws_refund import standing

START_US = 1_000_003
STEP_US = 3
LIMITS = {
    "gcra": GCRA(Rate.of(1, 2), 4),
    "gcra, T of 1.5 µs": GCRA(Rate.of(2, 3), 4),
    "token bucket": TokenBucket(Rate.of(1, 2), 4),
    "leaky bucket": LeakyBucket(Rate.of(1, 3), 4),
    "fixed window": FixedWindow(Rate.of(4, 7)),
    "sliding window": SlidingWindow(Rate.of(4, 6), buckets=2),
    "sliding window, conservative": SlidingWindow(Rate.of(4, 6), buckets=3, conservative=True),
    "log": SlidingWindowLog(Rate.of(4, 5)),
    "quota": Quota(4, "fixed:7us"),
    "quota of a day": Quota("4/day"),
    "quota, spread": Quota(4, "fixed:21us", spread=True),
    "quota, rolling": Quota(4, "rolling:5us"),
    "all_of": all_of(a=GCRA(Rate.of(1, 2), 4), b=FixedWindow(Rate.of(5, 7))),
    "any_of": any_of(a=SlidingWindow(Rate.of(3, 6), buckets=2), b=Quota(4, "fixed:7us")),
    "first_of": first_of(a=FixedWindow(Rate.of(3, 7)), b=SlidingWindowLog(Rate.of(4, 5))),
    "nested": all_of(a=any_of(x=GCRA(Rate.of(1, 2), 3), y=FixedWindow(Rate.of(4, 7))), b=Quota("5/day")),
}
MORE = 9
"""More units than any call is charged."""
CALLS = (("call", 1), ("call", 3))
GIVE_BACKS = tuple(product((0, 1), (1, MORE)))
MOVES = (*CALLS, *((of, units) for of, units in GIVE_BACKS), ("pass", STEP_US), ("reset", 0))


class Charge(NamedTuple):
    """A charge, its receipt, and the units of its first give-back; None until then."""

    at: int
    cost: int
    receipt: Any
    back: int | None = None


class Key(NamedTuple):
    """A key of a gate, the time, and the model of it: the charges, and how many of them a reset has ended."""

    state: Any = None
    now: int = START_US
    charges: tuple[Charge, ...] = ()
    ended: int = 0

    def call(self, limit: Any, cost: int) -> "Key":
        state, decision, _, admitted = limit.check(self.state, self.now, cost)
        if not admitted:
            return self
        charge = Charge(self.now, cost, decision.receipt)
        return self._replace(state=state, charges=(*self.charges, charge))

    def give_back(self, limit: Any, of: int, units: int) -> "Key":
        charge = self.charges[of]
        after = limit.refund(self.state, self.now, units, charge.receipt)
        if of < self.ended:
            assert not after.persist, "a reset has ended that charge"
            return self
        if charge.back is not None:
            assert after.decision == limit.peek(self.state, self.now), f"given back twice: {charge}"
            for (part, mine), (_, before) in zip(
                standing(limit, after.state), standing(limit, self.state), strict=True
            ):
                assert part.forecast(mine, self.now, 1) == part.forecast(before, self.now, 1)
            return self._replace(state=after.state)
        returned = charge._replace(back=min(units, charge.cost))
        charges = (*self.charges[:of], returned, *self.charges[of + 1 :])
        return self._replace(state=after.state, charges=charges)

    def without(self, limit: Any) -> Any:
        """The state of a key that was never charged what was given back."""
        state = None
        for charge in self.charges[self.ended :]:
            if rest := charge.cost - (charge.back or 0):
                state = limit.debit(state, charge.at, rest, charge.receipt).state
        return state


def moved(limit: Any, key: Key, move: tuple[Any, int]) -> Key | None:
    """The key after a move; None where there is nothing to give back."""
    what, number = move
    if what == "call":
        return key.call(limit, number)
    if what == "pass":
        return key._replace(now=key.now + number)
    if what == "reset":
        # Lives differ by the microsecond: two of one key do not begin in the same.
        return key._replace(state=None, now=key.now + 1, ended=len(key.charges))
    return key.give_back(limit, what, number) if what < len(key.charges) else None


def assert_nothing_is_minted(limit: Any, key: Key) -> None:
    pairs = zip(standing(limit, key.state), standing(limit, key.without(limit)), strict=True)
    for (part, mine), (_, theirs) in pairs:
        for cost in {1, part.max_cost}:
            sooner = part.earliest(mine, key.now, cost) < part.earliest(theirs, key.now, cost)
            assert not sooner, f"{part} of cost {cost} is more permissive: {key}"


def explored(limit: Any, key: Key, depth: int) -> int:
    """How many give-backs all histories of `depth` more moves contain; each is checked."""
    found = 0
    for move in MOVES if depth else ():
        after = moved(limit, key, move)
        if after is None or after == key:
            continue  # it has changed nothing, so the histories that follow are checked without it
        if isinstance(move[0], int):
            found += 1
            assert_nothing_is_minted(limit, after)
        found += explored(limit, after, depth - 1)
    return found


@pytest.mark.parametrize(
    "depth", [4, pytest.param(6, marks=pytest.mark.long)], ids=["of five moves", "of seven moves"]
)
@pytest.mark.parametrize("name", LIMITS)
def test_no_short_history_of_give_backs_mints(name, depth):
    limit = ledgered(LIMITS[name])
    assert sum(explored(limit, Key().call(limit, cost), depth) for _, cost in CALLS) > 50


@settings(max_examples=300)
@given(st.data(), any_limit)
def test_no_long_history_of_give_backs_mints(data, limit):
    """Of calls and give-backs in any order, also of what was given back long ago."""
    key, kept = Key(now=40 * 86_400_000_000), ledgered(limit)
    for _ in range(data.draw(st.integers(1, 25))):
        key = key._replace(now=key.now + data.draw(st.one_of(st.just(0), steps(limit))))
        if key.charges and data.draw(st.booleans()):
            of = data.draw(st.integers(0, len(key.charges) - 1))
            key = key.give_back(kept, of, data.draw(st.sampled_from([1, 2, MORE])))
            assert_nothing_is_minted(kept, key)
        else:
            key = key.call(kept, data.draw(costs(limit)))


@given(stories(any_limit, back=False), st.integers(1, MORE))
def test_a_charge_is_given_back_once(story, units):
    kept = ledgered(story.limit)
    _, state, now, cost, skew, _ = story._replace(limit=kept).played()
    now = kept.earliest(state, now, cost, skew)
    taken = kept.check(state, now, cost, skew)
    once = kept.refund(taken.state, now, units, taken.decision.receipt, skew)
    again = kept.refund(once.state, now, MORE, taken.decision.receipt, skew)
    assert again == (once.state, kept.peek(once.state, now, skew), 0, False)


@given(st.data(), any_limit)
def test_a_debit_that_names_a_charge_counts_once(data, limit):
    kept = ledgered(limit)
    state, decision, _, _ = kept.check(None, START_US, 1)
    extra = data.draw(st.integers(1, 2 * limit.max_cost))
    once = kept.debit(state, START_US, extra, decision.receipt)
    later = START_US + data.draw(steps(limit))
    again = kept.debit(once.state, later, data.draw(st.integers(1, limit.max_cost)), decision.receipt)
    assert again == (once.state, kept.peek(once.state, later), 0, False)
    assert kept.debit(once.state, later, 1).persist
