"""The retry budget: retries stay a share of calls, whatever happens and whichever worker calls."""

import subprocess
import sys
from fractions import Fraction

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from shapekit import ManualClock, MemoryStore, Policy, RedisStore, SQLiteStore
from shapekit._runtime.drivers import TASKS, run
from shapekit.integrations.tenacity import RetryBudget, shaped_retrying
from shapekit.testing import FaultyStore

from ...redis_server import shared_server

SHARES = st.sampled_from([0.05, 0.1, 0.2, 1 / 3, 0.5, 0.7, 1.0])
RESERVES = st.integers(1, 4)
CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 3)), max_size=60)
"""For each call: the worker that makes it, how often it fails, and how many days later it comes."""
DAY_S = 86_400.0


class Model:
    """The bucket, as the page describes it."""

    def __init__(self, reserve):
        self.tokens = Fraction(reserve)
        self.reserve = reserve

    def earn(self, share):
        self.tokens = min(Fraction(self.reserve), self.tokens + Fraction(int(share * 1_000_000), 1_000_000))

    def spend(self):
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


def worker(store, share, reserve, name="upstream", **options):
    """A Retrying of its own, as another process on the store would have it."""
    made = {"wait": tenacity.wait_none(), "stop": tenacity.stop_never, **options}
    retry = tenacity.retry_if_exception_type(KeyError)
    return shaped_retrying(
        Policy("1000/s", name=name, store=store), budget=share, reserve=reserve, retry=retry, **made
    )


def attempts_of(retrying, failures):
    """The number of attempts of a call that fails so many times."""
    made = []

    def call():
        made.append(len(made))
        if len(made) <= failures:
            raise KeyError

    try:
        retrying(call)
    except KeyError:
        assert len(made) <= failures
    else:
        assert len(made) == failures + 1
    return len(made)


@given(share=SHARES, reserve=RESERVES, calls=CALLS)
def test_exactly_as_many_retries_happen_as_the_budget_pays_for(share, reserve, calls):
    clock = ManualClock(autojump=True)
    store, model = MemoryStore(clock), Model(reserve)
    workers = [worker(store, share, reserve) for _ in range(3)]
    retries = 0
    for number, (caller, failures, days) in enumerate(calls, 1):
        clock.advance(days * DAY_S)
        model.earn(share)
        expected = 0
        while expected < failures and model.spend():
            expected += 1
        retried = attempts_of(workers[caller], failures) - 1
        assert retried == expected
        retries += retried
        assert retries <= share * number + reserve


@given(budgets=st.lists(st.tuples(SHARES, RESERVES), min_size=3, max_size=3), calls=CALLS, same=st.booleans())
def test_no_budgets_on_one_store_are_ever_exceeded(budgets, calls, same):
    store = MemoryStore(ManualClock(autojump=True))
    workers = [
        worker(store, *budget, name="upstream" if same else f"upstream-{number}")
        for number, budget in enumerate(budgets)
    ]
    made, retried = [0, 0, 0], [0, 0, 0]
    for caller, failures, _ in calls:
        made[caller] += 1
        retried[caller] += attempts_of(workers[caller], failures) - 1
        earned = [share * calls for (share, _), calls in zip(budgets, made, strict=True)]
        if same:
            assert sum(retried) <= sum(earned) + max(reserve for _, reserve in budgets)
        else:
            for number, (_, reserve) in enumerate(budgets):
                assert retried[number] <= earned[number] + reserve


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request, tmp_path):
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "limits.db")
    else:
        made = RedisStore.from_url(shared_server().url, prefix=tmp_path.name)
    yield made
    made.close()


def test_every_store_keeps_the_same_account(store):
    budget, model = RetryBudget(store, "upstream.retries", share=0.3, reserve=2), Model(2)
    for step in range(60):
        if step % 3:
            run(budget.earn)
            model.earn(0.3)
        for _ in range(step % 2 + 1):
            assert run(budget.spend) == model.spend(), step
    assert model.tokens != 2


@pytest.mark.anyio
async def test_every_store_keeps_the_same_account_awaited(store):
    budget, model = RetryBudget(store, "upstream.retries", share=0.3, reserve=2), Model(2)
    for step in range(30):
        if step % 3:
            await budget.earn(TASKS)
            model.earn(0.3)
        assert await budget.spend(TASKS) == model.spend(), step
    await store.aclose()


def test_time_earns_nothing_and_takes_nothing():
    clock = ManualClock()
    budget = RetryBudget(MemoryStore(clock), "upstream.retries", share=0.5, reserve=2)
    assert [run(budget.spend) for _ in range(3)] == [True, True, False]
    run(budget.earn)
    clock.advance(20 * 365 * DAY_S)
    assert not run(budget.spend)
    run(budget.earn)
    clock.set(5.0)
    assert [run(budget.spend), run(budget.spend)] == [True, False]


def test_a_store_that_is_gone_pays_for_nothing_and_breaks_nothing():
    store = FaultyStore(MemoryStore())
    budget = RetryBudget(store, "upstream.retries", share=1.0, reserve=1)
    store.down = True
    run(budget.earn)
    assert not run(budget.spend)
    store.down = False
    assert run(budget.spend)


EMPTYING = """
import sys
from shapekit import SQLiteStore
from shapekit._runtime.drivers import run
from shapekit.integrations.tenacity import RetryBudget
budget = RetryBudget(SQLiteStore(sys.argv[1]), "upstream.retries", share=0.5, reserve=5)
print(sum(run(budget.spend) for _ in range(4)))
"""


def test_processes_share_it(tmp_path):
    path = str(tmp_path / "limits.db")
    command = [sys.executable, "-c", EMPTYING, path]
    paid = [int(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(2)]
    assert paid == [4, 1]


@pytest.mark.parametrize("share", [0, -0.1, 1.5, True, "0.2", None, float("nan")])
def test_a_budget_that_is_no_share_is_refused(refused, share):
    policy = Policy("10/s")
    error = refused(lambda: shaped_retrying(policy, budget=share), "budget")
    assert "0.2" in error.fix


@pytest.mark.parametrize("reserve", [0, -1, 1.5, True, 10**7])
def test_a_reserve_that_is_no_number_of_retries_is_refused(refused, reserve):
    refused(lambda: shaped_retrying(Policy("10/s"), reserve=reserve), "reserve")
