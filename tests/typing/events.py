"""Checked by mypy and pyright, never run: listeners and events are typed."""

from typing import assert_never, assert_type

from shapekit import Policy, listen
from shapekit.events import (
    BudgetReached,
    Cancelled,
    Departed,
    Event,
    Exhausted,
    Held,
    LimitChanged,
    Listening,
    Measured,
    RateChanged,
    Refused,
    Reserved,
    Resumed,
    Settled,
    StoreBack,
    StoreFailed,
    StoreLost,
)


def hears(event: Event) -> None:
    if isinstance(event, Departed):
        assert_type(event.delay, float)
        assert_type(event.key, str)
    match event:
        case Reserved(_, key, cost):
            assert_type((key, cost), tuple[str, int])
        case Departed() | Settled() | Resumed() | StoreFailed() | StoreLost() | StoreBack():
            pass
        case Refused(code=code):
            assert_type(code, str)
        case Cancelled(returned=returned):
            assert_type(returned, bool)
        case BudgetReached(share=share):
            assert_type(share, float)
        case RateChanged(rate=rate, before=before):
            assert_type((rate, before), tuple[float, float])
        case Measured(code=wished):
            assert_type(wished, str | None)
        case Exhausted(length=length):
            assert_type(length, float)
        case Held(added=added):
            assert_type(added, float)
        case LimitChanged(key=limit_key):
            assert_type(limit_key, str | None)
        case _:
            assert_never(event)


def listens(policy: Policy) -> None:
    assert_type(listen(hears), Listening)
    events: list[Event] = []
    with policy.listen(events.append), policy.shaper.listen(print) as listening:
        listening.close()


def makes() -> list[Event]:
    Reserved("stripe", "alice", 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    made = Reserved("stripe", "alice", cost=1, delay=0.5)
    made.cost = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    return [made]
