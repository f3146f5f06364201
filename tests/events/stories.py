"""Stories: calls of every kind that wait, are cancelled, held, refused and closed during one another."""

import contextvars
import threading
from contextlib import suppress
from typing import NamedTuple

import anyio
from anyio import CancelScope
from hypothesis import strategies as st

from shapekit import ShapekitError, StoreUnavailableError
from shapekit._runtime.drivers import TASKS, AsyncAlarm, run

from .calls import PATIENT, SCOPE, WAYS

NUMBER = contextvars.ContextVar("number", default=None)
"""The number of the running call; None outside of calls."""
KEYS = ["a", "a", "b"]


class Call(NamedTuple):
    at_ms: int
    way: str
    key: str
    cost: int
    options: dict
    cancelled_after_ms: int | None
    """In tasks: when its task is cancelled. In threads: the sleep in which it is interrupted."""


class Change(NamedTuple):
    """An event of a key."""

    at_ms: int
    what: str
    key: str
    length_ms: int


class Story(NamedTuple):
    calls: list
    changes: list
    closes_at_ms: int | None


class Interrupted(BaseException):
    """Like KeyboardInterrupt, which would end the test run."""


early, instants = st.integers(0, 600), st.integers(0, 2_000)
lengths = st.integers(1, 5_000)
waits = st.one_of(st.none(), st.integers(0, 3_000).map(lambda ms: ms / 1e3))


@st.composite
def calls(draw):
    way = draw(st.sampled_from(WAYS))
    options = {}
    if way in PATIENT:
        drawn = {"max_wait": draw(waits), "timeout": draw(waits)}
        options = {name: wait for name, wait in drawn.items() if wait is not None}
    return Call(
        draw(early), way, draw(st.sampled_from(KEYS)), draw(st.integers(1, 4)), options,
        draw(st.one_of(st.none(), st.none(), st.integers(0, 3_000))),
    )  # fmt: skip


changes = st.builds(
    Change,
    instants,
    st.sampled_from(
        ["hold", "hold", "hold", "hold_scope", "hold_scope", "resume", "reset", "down", "down", "up"]
    ),
    st.sampled_from(KEYS),
    lengths,
)


def stories(most_calls):
    return st.builds(
        Story,
        st.lists(calls(), min_size=3, max_size=most_calls),
        st.lists(changes, max_size=6),
        st.integers(-8, 1).flatmap(lambda closes: instants if closes > 0 else st.none()),
    )


class Ended(NamedTuple):
    """How a call ended, as its caller saw it."""

    error: BaseException | None
    at: float


def deed(change, policy):
    """What happens to the key: a flow, and its arguments."""
    core = policy.shaper.core
    match change.what:
        case "hold":
            return core.hold, change.length_ms / 1e3, change.key
        case "hold_scope":
            return policy.scoped.hold, change.length_ms / 1e3, change.key, SCOPE
        case "resume":
            return core.resume, change.key
        case "reset":
            return core.reset, change.key
    return None


async def play(story, world, clock, policy, store):
    """In tasks on one loop; returns how each call ended."""
    endings = {}

    async def until(at_ms):
        await clock.asleep(max(0.0, at_ms / 1e3 - clock.now()), AsyncAlarm())

    async def make(number, call):
        await until(call.at_ms)
        NUMBER.set(number)
        error = None
        with CancelScope() as scope:
            if call.cancelled_after_ms is not None:
                group.start_soon(cancel, scope, call)
            try:
                await world.arun(policy, call.way, call.key, cost=call.cost, **call.options)
            except (ShapekitError, TimeoutError) as raised:
                error = raised
            except BaseException as raised:
                error = raised
                raise
            finally:
                endings[number] = Ended(error, clock.now())

    async def cancel(scope, call):
        await until(call.at_ms + call.cancelled_after_ms)
        scope.cancel()

    async def changed(change):
        await until(change.at_ms)
        if (done := deed(change, policy)) is None:
            store.down = change.what == "down"
            return
        flow, *args = done
        with suppress(StoreUnavailableError):
            await flow(TASKS, *args)

    async with anyio.create_task_group() as group:
        for change in story.changes:
            group.start_soon(changed, change)
        for number, call in enumerate(story.calls):
            group.start_soon(make, number, call)
        if story.closes_at_ms is not None:
            await until(story.closes_at_ms)
            policy.shaper.core.sleepers.close()
    return endings


def play_in_threads(story, world, clock, policy, store):
    """In threads; returns how each call ended."""
    endings, start = {}, threading.Barrier(len(story.calls) + len(story.changes) + 1)

    def until(at_ms):
        clock.sleep(max(0.0, at_ms / 1e3 - clock.now()), threading.Event())

    def make(number, call):
        NUMBER.set(number)
        start.wait()
        until(call.at_ms)
        error = None
        clock.interrupts[number] = call.cancelled_after_ms and call.cancelled_after_ms % 4
        try:
            world.run(policy, call.way, call.key, cost=call.cost, **call.options)
        except (ShapekitError, TimeoutError, Interrupted) as raised:
            error = raised
        endings[number] = Ended(error, clock.now())

    def changed(change):
        start.wait()
        until(change.at_ms)
        if (done := deed(change, policy)) is None:
            store.down = change.what == "down"
            return
        with suppress(StoreUnavailableError):
            run(*done)

    threads = [threading.Thread(target=changed, args=(change,)) for change in story.changes]
    threads += [threading.Thread(target=make, args=one) for one in enumerate(story.calls)]
    for thread in threads:
        thread.start()
    start.wait()
    if story.closes_at_ms is not None:
        until(story.closes_at_ms)
        policy.shaper.core.sleepers.close()
    for thread in threads:
        thread.join()
    return endings
