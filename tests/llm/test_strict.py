"""The limit holds in every window, whenever calls come; and what that costs: throughput, order, waits."""

import os
import pickle
import random
import threading
from collections import deque

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import CostExceedsLimitError, LLMBudget, ManualClock, MemoryStore, QueueFullError, TokenUsage
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.testing import check_pace

MINUTE_S = 60
LIMIT = 60_000


def worst_window(calls, window_s=MINUTE_S):
    """The most tokens of calls (instant, tokens) in any half-open window."""
    calls, worst, used, first = sorted(calls), 0, 0, 0
    for at, tokens in calls:
        used += tokens
        while calls[first][0] <= at - window_s:
            used -= calls[first][1]
            first += 1
        worst = max(worst, used)
    return worst


class Calls:
    """Calls in virtual time: when they left, and what they used."""

    def __init__(self, budget, clock):
        self.budget = budget
        self.clock = clock
        self.left = []

    async def one(self, at_s, estimate, used, lasts_s):
        await self.clock.asleep(max(0.0, at_s - self.clock.now()), AsyncAlarm())
        async with self.budget.aadmit(estimate) as call:
            self.left.append((self.clock.now(), used))
            await self.clock.asleep(lasts_s, AsyncAlarm())
            await call.asettle(TokenUsage(0, used))

    def run(self, calls):
        async def main():
            async with anyio.create_task_group() as tasks:
                for call in calls:
                    tasks.start_soon(self.one, *call)

        anyio.run(main)
        return self.left


def calls_of(limits, calls):
    clock = ManualClock(autojump=True)
    return Calls(LLMBudget(**limits, clock=clock), clock).run(calls)


ANY_CALL = st.tuples(
    st.floats(0, 200),
    st.one_of(st.integers(1, 100), st.integers(1, 2_000), st.just(2_000)),
    st.floats(0, 1),
    st.floats(0, 90),
).map(lambda drawn: (drawn[0], drawn[1], max(1, int(drawn[1] * drawn[2])), drawn[3]))


@settings(max_examples=60, deadline=None)
@given(st.lists(ANY_CALL, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_no_window_has_more_than_the_limit_wherever_it_begins(calls, chance):
    left = calls_of({"tokens": "2000/min"}, calls)
    assert len(left) == len(calls)
    # Also as seen by a server that some calls take half a second longer to reach.
    assert worst_window(left) <= 2_000
    assert worst_window([(at + chance.choice([0.0, 0.5]), used) for at, used in left]) <= 2_000


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=30, max_size=60), st.randoms(use_true_random=False))
def test_no_window_has_more_requests_than_the_limit(starts, chance):
    left = calls_of({"requests": "20/min", "tokens": "1M/min"}, [(at, 1, 1, 0.0) for at in starts])
    assert worst_window([(at + chance.choice([0.0, 0.4]), 1) for at, _ in left]) <= 20


def test_tokens_are_charged_when_the_call_leaves_also_where_requests_are_scarce():
    """A server would see tokens that are taken early and used late together with those taken later."""
    left = calls_of({"requests": "4/min", "tokens": "2000/min"}, [(0.0, 1_000, 1_000, 1.0)] * 12)
    assert worst_window(left) <= 2_000


def test_a_slot_is_taken_when_the_tokens_have_come_also_if_they_were_taken_far_ahead():
    """A slot that is taken a minute early has passed, and the next call gets one for the same instant."""
    limits = {"requests": "60/min", "tokens": "100 per 5min"}
    left = [at for at, _ in calls_of(limits, [(0.0, 100, 100, 0.0), *[(1.0, 10, 10, 0.0)] * 3])]
    assert left[1] > 300
    check_pace(left, "60/min", tolerance=0.25)


@pytest.mark.parametrize("size", [10, 300, 3_000])
def test_steady_demand_uses_95_percent_of_the_limit(size):
    minutes = 6
    clock = ManualClock(autojump=True)
    budget = LLMBudget(tokens="60k/min", clock=clock)
    left = []

    async def work():
        while clock.now() < minutes * MINUTE_S:
            async with budget.aadmit(size):
                left.append((clock.now(), size))

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(work)

    anyio.run(main)
    used = sum(tokens for at, tokens in left if at < minutes * MINUTE_S)
    assert 0.95 * minutes * LIMIT <= used
    assert worst_window(left) <= LIMIT


def test_a_call_may_take_the_whole_limit_and_no_more(clock):
    budget = LLMBudget(tokens="60k/min", clock=clock)
    with budget.admit(LIMIT):
        pass
    with pytest.raises(CostExceedsLimitError):
        budget.admit(LIMIT + 1).__enter__()


def test_waiting_calls_leave_in_order_as_soon_as_others_settle(clock):
    """Half a minute's tokens come back after a second: no call waits a minute, and none is overtaken."""
    budget = LLMBudget(tokens="60k/min", clock=clock)
    sizes = random.Random(3)
    order = []

    async def first():
        async with budget.aadmit(LIMIT) as call:
            await clock.asleep(1.0, AsyncAlarm())
            await call.asettle(100)

    async def later(number):
        await clock.asleep(0.01 * number, AsyncAlarm())
        async with budget.aadmit(sizes.randint(1, 1_000)):
            order.append((number, clock.now()))

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            for number in range(1, 40):
                tasks.start_soon(later, number)

    anyio.run(main)
    assert [number for number, _ in order] == [*range(1, 40)]
    assert {at for _, at in order} == {1.0}


def test_threads_wait_in_line_too(clock):
    budget = LLMBudget(tokens="60k/min", clock=clock)
    call = budget.admit(LIMIT)
    call.__enter__()
    left = []

    def wait():
        with budget.admit(1_000):
            left.append(clock.now())

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(left) == 5


def test_no_call_of_a_forked_child_is_behind_those_of_its_parent(clock):
    line = LLMBudget(tokens="60k/min", clock=clock)._books.line
    line._places["default"] = deque([None])
    child = os.fork()
    if not child:
        os._exit(len(line._places))
    assert os.waitpid(child, 0)[1] == 0
    assert line._places


@pytest.mark.anyio
@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_a_call_cancelled_in_line_delays_no_other(clock, cancelled):
    budget = LLMBudget(tokens="60k/min", tokens_per_day="10M", clock=clock)
    scopes = [anyio.CancelScope() for _ in range(3)]
    left = []

    async def wait(number):
        with scopes[number]:
            async with budget.aadmit(1_000):
                left.append((number, clock.now()))

    async with anyio.create_task_group() as tasks, budget.aadmit(LIMIT) as call:
        for number in range(3):
            tasks.start_soon(wait, number)
            await clock.asleep(0.1, AsyncAlarm())
        scopes[cancelled].cancel()
        await clock.asleep(0.7, AsyncAlarm())
        await call.asettle(0)
    assert left == [(number, 1.0) for number in range(3) if number != cancelled]
    assert budget.quotas()[0].used == 2_000
    assert not budget._books.line._places


def test_max_wait_bounds_the_wait_in_line(clock):
    budget = LLMBudget(tokens="60k/min", clock=clock)
    refused = []

    async def wait(max_wait):
        try:
            async with budget.aadmit(1_000, max_wait=max_wait):
                pass
        except QueueFullError as error:
            refused.append((clock.now(), error.max_wait))

    async def main():
        async with budget.aadmit(LIMIT), anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 70)
            await clock.asleep(1.0, AsyncAlarm())
            for max_wait in (0, 5, 100):
                tasks.start_soon(wait, max_wait)

    anyio.run(main)
    assert refused == [(1.0, 0.0), (6.0, 5.0)]


def test_a_refusal_says_when_the_same_call_would_be_admitted(clock):
    budget = LLMBudget(tokens="60k/min", clock=clock)
    with budget.admit(LIMIT):
        pass
    with pytest.raises(QueueFullError) as caught:
        budget.admit(1_000, max_wait=10).__enter__()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.retry_after == caught.value.retry_after == caught.value.delay - 10 > 50
    clock.advance(copy.retry_after)
    with budget.admit(1_000, max_wait=10):
        pass


@pytest.mark.parametrize("limits", [{}, {"requests": "500/min; 100000/day"}])
def test_a_large_call_is_not_overtaken_for_ever_by_another_process(clock, limits):
    """Two budgets on one store share as little as two processes do."""
    store = MemoryStore(clock)
    mine, theirs = (LLMBudget(tokens="60k/min", store=store, name="model", **limits) for _ in range(2))
    left = []

    async def small():
        while not left and clock.now() < 10 * MINUTE_S:
            async with theirs.aadmit(1_000):
                pass

    async def large():
        await clock.asleep(1.0, AsyncAlarm())
        async with mine.aadmit(LIMIT):
            left.append(clock.now())

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(large)
            for _ in range(3):
                tasks.start_soon(small)

    anyio.run(main)
    assert left[0] <= 3 * MINUTE_S


@pytest.mark.parametrize("has_room", [True, False])
def test_tokens_of_a_call_that_a_hold_moves_count_when_it_leaves(has_room):
    """It took them with its slot, before the hold. Where other calls have taken the rest, it asks anew."""
    clock = ManualClock(autojump=True)
    budget = LLMBudget(requests="60/min", tokens="1000/min", clock=clock)
    left = Calls(budget, clock)

    async def hold():
        await clock.asleep(0.9, AsyncAlarm())
        for policy in budget.policies.values():
            policy.shaper.hold(50)
        if not has_room:
            await clock.asleep(49, AsyncAlarm())
            budget.policies["tokens"].shaper.reserve(cost=900)

    async def run():
        async with anyio.create_task_group() as tasks:
            for at_s, tokens in ((0, 100), (0.1, 500), (62, 600)):
                tasks.start_soon(left.one, at_s, tokens, tokens, 0)
            tasks.start_soon(hold)

    anyio.run(run)
    assert len(left.left) == 3
    assert worst_window(left.left) <= 1000
    assert (left.left[1][0] < 52) == has_room
