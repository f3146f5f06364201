"""Gate: every method and its awaitable twin, on asyncio and on trio."""

import inspect

import pytest

from shapekit import (
    GCRA,
    Decision,
    FixedWindow,
    Forecast,
    Gate,
    ManualClock,
    MemoryStore,
    Quota,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
    all_of,
    any_of,
    first_of,
)

pytestmark = pytest.mark.anyio
DAY_S = 86_400


class TickingClock(ManualClock):
    """A second passes with every look at it."""

    reads = 0

    def now_us(self):
        self.reads += 1
        self.advance(1)
        return super().now_us()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def gate(clock):
    return Gate(GCRA("10/s", burst=3), clock=clock)


def test_every_method_has_its_twin():
    methods = {name: f for name, f in inspect.getmembers(Gate, inspect.isfunction) if name[0] != "_"}
    awaitable = {name for name, f in methods.items() if inspect.iscoroutinefunction(f)}
    plain = set(methods) - awaitable
    assert awaitable == {f"a{name}" for name in plain}
    assert plain >= {"check", "check_many", "peek", "forecast", "refund", "debit", "require"}
    for name in plain:
        mine, twin = (inspect.signature(methods[which]).parameters for which in (name, f"a{name}"))
        assert mine == twin


async def test_check_admits_a_burst_and_then_denies(ask, gate, clock):
    answers = [await ask(gate, "check", "key") for _ in range(4)]
    assert answers[0]._replace(receipt=None) == Decision(True, 3, 1, 2, 100_000, 0)
    assert [answer.allowed for answer in answers] == [True, True, True, False]
    assert answers[3] == Decision(False, 3, 3, 0, 300_000, 100_000)
    assert await ask(gate, "check", "another")
    clock.advance(0.1)
    assert await ask(gate, "check", "key")


async def test_the_key_is_default_unless_given(ask, gate):
    assert (await ask(gate, "check")).remaining == 2
    assert (await ask(gate, "peek", "default")).remaining == 2
    assert (await ask(gate, "require")).remaining == 1
    assert (await ask(gate, "check")).remaining == 0
    assert (await ask(gate, "forecast")).fits_now == 0
    await ask(gate, "reset")
    assert (await ask(gate, "peek")).remaining == 3


async def test_a_cost_is_charged_whole_or_not_at_all(ask, gate):
    assert (await ask(gate, "check", "key", cost=2)).remaining == 1
    denied = await ask(gate, "check", "key", cost=2)
    assert (denied.allowed, denied.remaining, denied.retry_after_us) == (False, 1, 100_000)
    assert (await ask(gate, "check", "key")).allowed


async def test_check_many_is_one_instant_in_order(ask):
    clock = TickingClock()
    gate = Gate(GCRA("1/s", burst=1), clock=clock)
    before = clock.reads
    answers = await ask(gate, "check_many", ["a", "b", "a"])
    assert clock.reads == before + 1
    assert [answer.allowed for answer in answers] == [True, True, False]
    assert answers[2].retry_after_us == 1_000_000
    assert answers[0].reset_at_us == answers[1].reset_at_us


async def test_check_many_takes_any_iterable_and_a_cost(ask, gate):
    answers = await ask(gate, "check_many", (f"key-{n}" for n in range(3)), cost=2)
    assert [answer.remaining for answer in answers] == [1, 1, 1]
    assert await ask(gate, "check_many", []) == []


async def test_check_many_touches_nothing_if_one_key_is_wrong(ask, gate, refused):
    with pytest.raises(ValueError):
        await ask(gate, "check_many", ["key", 5])
    assert (await ask(gate, "peek", "key")).remaining == 3


async def test_require_returns_the_admission_or_raises_the_denial(ask, gate):
    assert (await ask(gate, "require", "key", cost=3)).allowed
    with pytest.raises(RateLimitedError) as caught:
        await ask(gate, "require", "key")
    assert type(caught.value) is RateLimitedError
    assert caught.value.decision == await ask(gate, "check", "key")
    assert (caught.value.key, caught.value.retry_after) == ("key", 0.1)


MONTH = Quota("1/month")
SECOND = GCRA("1/s", burst=1)


@pytest.mark.parametrize(
    ("strategy", "error", "binding"),
    [
        (SECOND, RateLimitedError, None),
        (MONTH, QuotaExhaustedError, None),
        (Quota("1/rolling:30d"), QuotaExhaustedError, None),
        (all_of(month=MONTH, second=SECOND), QuotaExhaustedError, "month"),
        (all_of(second=SECOND, month=Quota("2/month")), RateLimitedError, "second"),
        (all_of(fast=SECOND, deep=all_of(a=SECOND, b=MONTH)), QuotaExhaustedError, "deep.b"),
        (all_of(fast=SECOND, deep=all_of(a=SECOND, b=SECOND)), RateLimitedError, "fast"),
        (any_of(month=MONTH, second=SECOND), RateLimitedError, "second"),
        (first_of(month=MONTH, week=Quota("1/week")), QuotaExhaustedError, "week"),
    ],
    ids=str,
)
async def test_require_raises_another_error_for_a_spent_quota_than_for_a_limit(
    ask, clock, strategy, error, binding
):
    gate = Gate(strategy, clock=clock)
    while await ask(gate, "check", "key"):
        pass
    with pytest.raises(RateLimitedError) as caught:
        await ask(gate, "require", "key")
    assert type(caught.value) is error
    assert caught.value.decision.binding == binding


async def test_peek_and_forecast_consume_nothing(ask, gate, clock):
    await ask(gate, "check", "key", cost=2)
    for _ in range(5):
        assert await ask(gate, "peek", "key") == Decision(True, 3, 2, 1, 200_000, 0)
        assert await ask(gate, "forecast", "key") == Forecast(0, 1, 200_000)
        assert await ask(gate, "forecast", "key", cost=3) == Forecast(200_000, 0, 200_000)
        assert await ask(gate, "peek", "nobody") == Decision(True, 3, 0, 3, 0, 0)
    assert len(gate._store) == 1


async def test_a_refund_gives_back_what_time_has_not(ask, gate, clock):
    charged = await ask(gate, "check", "key", cost=3)
    assert (await ask(gate, "refund", "key", charged, cost=2)).remaining == 2
    again = await ask(gate, "check", "key", cost=2)
    clock.advance(0.3)
    assert (await ask(gate, "refund", "key", again, cost=2)).remaining == 3
    assert sum([(await ask(gate, "check", "key")).allowed for _ in range(5)]) == 3


async def test_a_debit_goes_into_debt_and_time_repays_it(ask, gate, clock):
    await ask(gate, "check", "key", cost=3)
    owing = await ask(gate, "debit", "key", cost=2)
    assert (owing.allowed, owing.remaining, owing.retry_after_us) == (False, 0, 300_000)
    clock.advance(0.299999)
    assert not await ask(gate, "check", "key")
    clock.advance(0.000001)
    assert await ask(gate, "check", "key")


async def test_a_debit_with_its_decision_charges_the_part_that_paid(ask, clock):
    gate = Gate(first_of(main=GCRA("1/s", burst=1), spare=GCRA("1/s", burst=5)), clock=clock)
    assert (await ask(gate, "check", "key")).binding == "main"
    paid = await ask(gate, "check", "key", cost=2)
    assert paid.binding == "spare"
    await ask(gate, "debit", "key", paid, cost=3)
    clock.advance(1)
    assert (await ask(gate, "check", "key")).binding == "main"
    assert (await ask(gate, "check", "key")).binding == "spare"
    assert not await ask(gate, "check", "key")


async def test_reset_makes_one_key_cold(ask, gate):
    for key in ("a", "b"):
        await ask(gate, "check", key, cost=3)
    await ask(gate, "reset", "a")
    assert (await ask(gate, "peek", "a")).remaining == 3
    assert (await ask(gate, "peek", "b")).remaining == 0


async def test_close_ends_the_store_it_made(ask, gate):
    await ask(gate, "close")
    await ask(gate, "close")
    with pytest.raises(StoreUnavailableError):
        await ask(gate, "check", "key")


async def test_close_leaves_a_borrowed_store_open(ask, clock):
    store = MemoryStore(clock)
    gate = Gate(GCRA("1/s", burst=2), store=store, name="api")
    await ask(gate, "check", "key")
    await ask(gate, "close")
    other = Gate(GCRA("1/s", burst=2), store=store, name="api")
    assert (await ask(other, "check", "key")).remaining == 0


class SharedStore(MemoryStore):
    shared = True


def test_a_shared_store_needs_a_name(refused, clock):
    store = SharedStore(clock)
    assert "processes" in refused(lambda: Gate(SECOND, store=store), "name").bound
    assert Gate(SECOND, store=store, name="api").name == "api"


def test_gates_without_a_name_get_one_each(clock):
    store = MemoryStore(clock)
    names = {Gate(SECOND, store=store).name for _ in range(5)}
    assert len(names) == 5


def test_repr_shows_what_it_is_made_of(clock):
    gate = Gate(FixedWindow("1/s"), clock=clock, name="api")
    assert (
        repr(gate) == "Gate(FixedWindow(limit=1, window_us=1000000), store=MemoryStore(0 keys), name='api')"
    )
