"""The books balance, whatever fails in between.

A model keeps books beside the budget: each call is charged what it was settled to, nothing if it never ran,
and its estimate if its usage is unknown. The law: the charge is exactly that, in the day's quota always, and
in the bucket as long as nothing of it has been refilled.
"""

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import LLMBudget, ManualClock, MemoryStore, QueueFullError, StoreUnavailableError
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.llm.wrap import SettledStream
from shapekit.testing import FaultyStore

from .errors import RefusedByServer, caused

CAPACITY = 1_000_000
BEFORE = 20_000
"""Tokens used beforehand: they take longer to come back than any story lasts, and are more than a story gives
back. A bucket that is nearly full keeps some of that, because it may have been another call's.
"""
FREE = [
    lambda: ConnectionRefusedError("nobody there"),
    lambda: caused(ConnectionRefusedError("nobody there")),
    lambda: RefusedByServer(429),
    lambda: RefusedByServer(400),
]
UNKNOWN = [
    lambda: TimeoutError("no answer"),
    lambda: ConnectionResetError("lost"),
    lambda: RefusedByServer(500),
    lambda: RefusedByServer(408),
    KeyboardInterrupt,
    lambda: caused(TimeoutError("no answer")),
]


def slow_budget(store=None, clock=None):
    """A bucket that refills a token in an hour: a charge stays visible, to the microsecond."""
    budget = LLMBudget(
        requests="10/s",
        tokens="1/h",
        capacity=CAPACITY,
        tokens_per_day=2 * CAPACITY,
        store=store,
        clock=clock,
    )
    with budget.admit(BEFORE):
        pass
    return budget


def in_bucket(budget, now_us):
    """The tokens missing in the bucket: the wait for all of them, with the time that has gone, in hours.

    While a refusal holds the key, the bucket's time stands still.
    """
    tokens = budget.policies["tokens"]
    wait_us = round(tokens.forecast(cost=CAPACITY).first_in * 1_000_000)
    line, *_ = tokens.shaper.core.look.call("default")
    hours, rest = divmod(wait_us + now_us - line[5], 3_600_000_000)
    assert rest == 0
    return hours


def check(budget, clock, charged):
    """Both books hold exactly what the model has charged."""
    (day,) = budget.quotas()
    assert day.used == charged + BEFORE
    assert in_bucket(budget, clock.now_us()) == charged + BEFORE


TOKENS = st.integers(1, 500)
ACTUAL = st.integers(0, 900)
ENDING = st.one_of(
    st.tuples(st.just("settled"), ACTUAL),
    st.tuples(st.just("settled twice"), ACTUAL),
    st.tuples(st.just("settled, then raised"), ACTUAL),
    st.tuples(st.just("raised"), st.sampled_from(FREE)),
    st.tuples(st.just("raised"), st.sampled_from(UNKNOWN)),
    st.tuples(st.just("unsettled"), st.none()),
    st.tuples(st.just("store gone"), ACTUAL),
    # A usage of zeros counts as none.
    st.tuples(
        st.just("stream"),
        st.tuples(st.integers(1, 900), st.sampled_from(["ends", "breaks", "closed", "dropped"])),
    ),
)


class Stream:
    """An answer in pieces, of which the last has the usage."""

    def __init__(self, actual, fate):
        self.left = [{"text": "a"}, {"text": "b"}, {"usage": {"input_tokens": 0, "output_tokens": actual}}]
        self.fate = fate
        self.closed = False

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        if self.fate == "breaks" and len(self.left) == 2:
            raise ConnectionResetError("in the middle")
        return self.left.pop(0)

    def close(self):
        self.closed = True


def read(stream, fate):
    """The ways in which a caller uses a stream."""
    try:
        if fate in ("closed", "dropped"):
            next(stream)
            if fate == "closed":
                stream.close()
        else:
            list(stream)
    except ConnectionResetError:
        assert fate == "breaks"


@settings(max_examples=150)
@given(
    story=st.lists(
        st.tuples(st.sampled_from([0, 0, 0.03, 0.1, 2]), TOKENS, st.sampled_from([0, 0, 0.05, 3]), ENDING),
        max_size=12,
    )
)
def test_the_books_balance_whatever_fails_in_between(story):
    """Calls that overlap: each is opened at its time, and ends at its own."""
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    budget = slow_budget(store)
    clock.advance(1)
    charged, at, agenda = 0, 1.0, []
    for number, (gap, estimate, length, ending) in enumerate(story):
        at += gap
        agenda.append((at, number, "open", estimate, ending))
        agenda.append((at + length, number, "end", estimate, ending))
    calls = {}
    for at, number, step, estimate, (kind, what) in sorted(agenda, key=lambda event: event[:2]):
        clock.advance(max(0.0, at - clock.now()))
        if step == "open":
            call = calls[number] = budget.admit(estimate, max_wait=0)
            try:
                call.__enter__()
            except QueueFullError:
                del calls[number]  # its slot was refused, and its tokens are back
            continue
        call = calls.pop(number, None)
        if call is not None:
            charged += ended(budget, store, call, estimate, kind, what)
    check(budget, clock, charged)


def ended(budget, store, call, estimate, kind, what):
    """Ends a call, and returns what the model charges for it."""
    if kind == "raised":
        error = what()
        call.__exit__(type(error), error, None)
        return 0 if what in FREE else estimate
    if kind == "unsettled":
        call.__exit__(None, None, None)
        return estimate
    if kind == "store gone":
        store.down = True
        with pytest.raises(StoreUnavailableError):
            call.settle(estimate + 1 + what)
        store.mend()
        return estimate
    if kind == "stream":
        actual, fate = what
        read(SettledStream(Stream(actual, fate), call), fate)
        return actual if fate == "ends" else estimate
    if kind == "settled twice":
        # First too much: a bucket takes a second refund of one call for another call's, and keeps it.
        call.settle(estimate + 7)
    call.settle(what)
    if kind == "settled, then raised":
        error = RefusedByServer(400)
        call.__exit__(type(error), error, None)
    return what


LEFT_A_PLACE = [
    (0, 188, 0.4, ("settled", 320), 0, None),
    (0, 1, 0, ("settled", 21), None, None),
    (1, 194, 0.4, ("unsettled", None), 0, None),
    (0, 69, 0, ("raised", FREE[2]), None, None),
    (1, 233, 0.05, ("unsettled", None), 0.3, None),
]
"""One of two calls that wait behind a hold goes away, and the other at the moment at which the hold ends."""


@settings(max_examples=60)
@given(
    backend=st.sampled_from(["asyncio", "trio"]),
    story=st.lists(
        st.tuples(
            st.sampled_from([0, 0.02, 0.1, 1]),
            TOKENS,
            st.sampled_from([0, 0.05, 0.4]),
            ENDING.filter(lambda ending: ending[0] not in ("store gone", "stream")),
            st.none() | st.sampled_from([0, 0.05, 0.15, 0.3, 0.7]),
            st.none() | st.sampled_from([0, 0.1, 0.25]),
        ),
        max_size=10,
    ),
)
@example(backend="asyncio", story=LEFT_A_PLACE)
def test_the_books_balance_whichever_task_is_cancelled(backend, story):
    """Tasks that wait for their slots, are cancelled there or in their calls, or give up."""
    clock = ManualClock(autojump=True)
    budget = slow_budget(clock=clock)
    charged = []

    async def call(start, estimate, length, ending, patience):
        kind, what = ending
        await clock.asleep(start, AsyncAlarm())
        waits = {} if patience is None else {"timeout": patience}
        charge = 0
        try:
            async with budget.aadmit(estimate, **waits) as call:
                charge = estimate
                await clock.asleep(length, AsyncAlarm())
                if kind == "raised":
                    charge = 0 if what in FREE else estimate
                    raise what()
                if kind.startswith("settled"):
                    charge = what
                    await call.asettle(what)
        except (TimeoutError, OSError, RefusedByServer, RuntimeError, KeyboardInterrupt):
            pass
        finally:
            charged.append(charge)

    async def main():
        async with anyio.create_task_group() as tasks:
            for start, estimate, length, ending, gone_after, patience in story:
                tasks.start_soon(cancellable, start, estimate, length, ending, gone_after, patience)

    async def cancellable(start, estimate, length, ending, gone_after, patience):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                if gone_after is not None:
                    tasks.start_soon(cancelling, start + gone_after, scope)
                await call(start, estimate, length, ending, patience)
                tasks.cancel_scope.cancel()

    async def cancelling(after, scope):
        await clock.asleep(after, AsyncAlarm())
        scope.cancel()

    anyio.run(main, backend=backend)
    # A place in the line that a call left is for the next one until its time is over, with its tokens.
    clock.advance(1)
    check(budget, clock, sum(charged))


@settings(max_examples=60)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from([0, 0.01, 0.2]), st.integers(1, 90), st.integers(0, 120), st.booleans()),
        max_size=12,
    )
)
def test_the_day_balances_where_calls_wait_for_tokens_and_some_give_up(calls):
    clock = ManualClock(autojump=True)
    budget = LLMBudget(tokens="100/s", capacity=90, tokens_per_day=100_000, clock=clock)
    charged = []

    async def call(start, estimate, actual, patient):
        await clock.asleep(start, AsyncAlarm())
        try:
            async with budget.aadmit(estimate, timeout="1h" if patient else 0.3) as call:
                await clock.asleep(0.05, AsyncAlarm())
                await call.asettle(actual)
        except TimeoutError:
            return
        charged.append(actual)

    async def main():
        async with anyio.create_task_group() as tasks:
            for one in calls:
                tasks.start_soon(call, *one)

    anyio.run(main)
    clock.advance(3_600)
    (day,) = budget.quotas()
    assert day.used == sum(charged)
