"""Stories: what happened to one key before a law is put to the test.

A story is plain data, so that a failing one can be pasted as an `@example`. Played on a limit it gives a
Moment: the state, the instant, and the charges that were made on the way.
"""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from shapekit import Algorithm, Decision
from shapekit.algorithms.base import Outcome

from .limits import DAY_US, SECOND_US, scales_us

EDGES_OF_CALENDARS_US = tuple(
    seconds * SECOND_US
    for seconds in (
        1_711_846_800,  # Berlin 2024-03-31, forward
        1_729_990_800,  # Berlin 2024-10-27, back
        1_710_054_000,  # New York 2024-03-10, forward
        1_730_613_600,  # New York 2024-11-03, back
        1_712_415_600,  # Lord Howe 2024-04-06, back by half an hour
        1_711_836_000,  # Beirut 2024-03-31, forward at midnight
        951_782_400,  # 2000-02-29, a leap day in a century
        1_709_164_800,  # 2024-02-29
        1_740_787_200,  # 2025-03-01
        4_107_542_400,  # 2100-03-01, a century without a leap day
    )
)


class Event(NamedTuple):
    """`check`, `debit`, `slot` (at the earliest instant), or `refund` of units of the last charge."""

    what: str
    step_us: int
    cost: int


def without_receipt(decision: Decision) -> tuple[Any, ...]:
    """A decision without its receipt, which is opaque: two keys that decide alike may hand out others."""
    return tuple(decision._replace(receipt=None))


def slot(limit: Algorithm, state: Any, now: int, cost: int, skew: int = 0) -> tuple[int, Outcome]:
    """A charge as a queue makes it of its gates: at the earliest instant, which may be still to come."""
    due = limit.earliest(state, now, cost, skew)
    return due, Outcome(*limit.charge(state, now, due, cost, skew))


class Charge(NamedTuple):
    at: int
    cost: int
    receipt: Any


class Moment(NamedTuple):
    limit: Algorithm
    state: Any
    now: int
    cost: int
    skew: int
    charges: tuple[Charge, ...] = ()

    def check(self, at: int | None = None, cost: int | None = None):
        return self.limit.check(self.state, self.now if at is None else at, cost or self.cost, self.skew)

    def earliest(self, at: int | None = None, cost: int | None = None) -> int:
        return self.limit.earliest(self.state, self.now if at is None else at, cost or self.cost, self.skew)

    def peek(self, at: int | None = None) -> Decision:
        return self.limit.peek(self.state, self.now if at is None else at, self.skew)

    def forecast(self, cost: int | None = None):
        return self.limit.forecast(self.state, self.now, cost or self.cost, self.skew)


class Story(NamedTuple):
    """`later_us` after the events comes the call that the law is about."""

    limit: Algorithm
    start: int
    events: tuple[Event, ...]
    later_us: int = 0
    cost: int = 1
    skew: int = 0

    def played(self) -> Moment:
        limit, skew = self.limit, self.skew
        state, now = None, self.start
        charges: list[Charge] = []
        for what, step_us, cost in self.events:
            due = now = max(0, now + step_us)
            if what == "refund":
                if charges:
                    outcome = limit.refund(state, now, cost, charges[-1].receipt, skew)
                    state = outcome.state if outcome.persist else state
                continue
            if what == "check":
                outcome = limit.check(state, now, cost, skew)
            elif what == "debit":
                outcome = limit.debit(state, now, cost, None, skew)
            else:
                due, outcome = slot(limit, state, now, cost, skew)
            if outcome.persist:
                state = outcome.state
                decision = outcome.decision
                if decision.receipt is not None:
                    charges.append(Charge(due, cost, decision.receipt))
        return Moment(limit, state, max(0, now + self.later_us), self.cost, skew, tuple(charges))


@st.composite
def steps(draw, limit: Algorithm, back: bool = False) -> int:
    """A step of time, often exactly to an edge of the limit or a microsecond beside it."""
    scale = draw(st.sampled_from(scales_us(limit)))
    twentieths = draw(st.one_of(st.just(0), st.integers(-25 if back else 0, 25)))
    beside = draw(st.integers(-1, 2))
    step = scale * twentieths // 20 + beside
    return step if back else max(0, step)


def costs(limit: Algorithm, most: int | None = None):
    return st.one_of(st.just(1), st.integers(1, limit.max_cost if most is None else most))


starts = st.one_of(
    st.integers(40 * DAY_US, 4 * 10**15),
    st.builds(
        lambda edge, off: edge + off,
        st.sampled_from(EDGES_OF_CALENDARS_US),
        st.integers(-2 * DAY_US, 2 * DAY_US),
    ),
)
skews = st.sampled_from([0, 0, 1, -DAY_US // 3, 17 * DAY_US])


# Slots and debts leave a key that denies everything for a while: few of them, or nothing else happens.
MIXED = ("check",) * 6 + ("refund",) * 2 + ("debit", "slot")


@st.composite
def stories(
    draw,
    limits,
    whats: tuple[str, ...] = MIXED,
    *,
    back: bool = True,
    most_events: int = 12,
) -> Story:
    limit = draw(limits)

    def event() -> Event:
        what = draw(st.sampled_from(whats))
        most = 2 * limit.max_cost if what == "debit" else limit.max_cost
        return Event(what, draw(steps(limit, back)), draw(costs(limit, most)))

    length = draw(st.sampled_from([0, 1, 2, 3, most_events // 2, most_events]))
    events = tuple(event() for _ in range(length))
    later_us = draw(steps(limit, back))
    return Story(limit, draw(starts), events, later_us, draw(costs(limit)), draw(skews))
