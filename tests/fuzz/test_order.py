"""The parts of a call in any order, also in a senseless one: events and errors that stay consistent."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shapekit import ManualClock, Policy, ShapekitError
from shapekit.events import Cancelled, Departed, Event, Measured, Refused, Reserved, Settled

from .near import anything
from .test_headers import GOOD, NAMES

RATES = ("10/s", "10/s burst 5", "5/s; 20/min")
STEPS = ("enter", "exit", "fail", "settle", "observe", "cancel", "cancel_later", "look", "pickle")
BESIDE = ("hold", "resume", "reset", "advance", "back", "forecast", "quotas")
steps = st.lists(
    st.tuples(st.sampled_from((*STEPS, *STEPS, *BESIDE)), st.integers(0, 3), st.integers(-1, 12)), max_size=40
)


class Answer:
    """A response of some server."""

    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code = status_code
        self.headers = headers


class FailedError(Exception):
    """What a call fails with."""


class World:
    """A policy, four calls, and what may be done to them."""

    def __init__(self, rate: str, quota: str | None, *, enforce: bool) -> None:
        self.clock = ManualClock(1_700_000_000)
        self.policy = Policy(
            rate,
            name="stripe",
            quota=quota,
            max_wait=0,
            enforce=enforce,
            refund_on=FailedError,
            clock=self.clock,
        )
        self.calls = [self.policy.admit(cost=cost).unentered() for cost in (1, 1, 2, 3)]
        self.reservations: list[Any] = []
        self.events: list[Event] = []

    def do(self, step: str, number: int, amount: int, answer: Answer) -> None:
        call, policy, clock = self.calls[number], self.policy, self.clock
        match step:
            case "enter":
                call.__enter__()
            case "exit":
                call.__exit__(None, None, None)
            case "fail":
                call.__exit__(FailedError, FailedError(), None)
            case "settle":
                call.settle(amount)
            case "observe":
                call.observe(answer)
            case "cancel":
                call.reservation.cancel()
            case "cancel_later":
                self.reservations.append(policy.shaper.reserve(max_wait=60))
                self.reservations[number % len(self.reservations)].cancel()
            case "look":
                assert call.delay >= 0
                assert call.decision.remaining >= 0
            case "pickle":
                pickle.loads(pickle.dumps(call.reservation.grant))
            case "hold":
                policy.shaper.hold(amount)
            case "resume":
                policy.shaper.resume()
            case "reset":
                policy.shaper.reset()
            case "advance":
                clock.advance(max(0, amount))
            case "back":
                clock.set(clock.now() - amount / 7)
            case "forecast":
                policy.forecast(max(1, amount))
            case _:
                for quota in policy.quotas():
                    assert quota.remaining >= 0


@given(
    steps,
    st.sampled_from(RATES),
    st.sampled_from([None, "6/day"]),
    st.booleans(),
    st.sampled_from([200, 404, 429, 503]),
    st.dictionaries(st.sampled_from(NAMES), anything(GOOD), max_size=3),
)
def test_parts_of_calls_in_any_order_work_or_raise_a_shapekit_error(
    story: list[tuple[str, int, int]],
    rate: str,
    quota: str | None,
    enforce: bool,
    status: int,
    headers: dict[str, str],
) -> None:
    world = World(rate, quota, enforce=enforce)
    answer = Answer(status, headers)
    with world.policy.listen(world.events.append):
        for step, number, amount in story:
            try:
                world.do(step, number, amount, answer)
            except ShapekitError as error:
                assert str(error)
                assert str(pickle.loads(pickle.dumps(error))) == str(error)
    kinds = Counter(type(event) for event in world.events)
    # What leaves, or is settled or given back, had a slot before.
    assert kinds[Departed] <= kinds[Reserved]
    assert kinds[Cancelled] <= kinds[Reserved] + kinds[Measured]
    if not enforce and "cancel_later" not in {step for step, _, _ in story}:
        # A call of the shaper itself emits events all the same.
        assert not {Departed, Settled, Refused} & set(kinds)
    for event in world.events:
        assert pickle.loads(pickle.dumps(event)) == event
    # After a day and a hold at most, a call may leave at once again.
    world.clock.advance(2 * 86_400)
    with Policy.admit(world.policy) as admission:
        assert admission.delay == 0
