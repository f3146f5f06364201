"""Budgets in money: prices, what is reserved, what is charged, and what is never exceeded."""

import json
import logging
import pickle
import uuid
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapekit import (
    ConfigError,
    CostExceedsLimitError,
    LLMBudget,
    ManualClock,
    MemoryStore,
    QueueFullError,
    QuotaExhaustedError,
    RedisStore,
    SQLiteStore,
    TokenUsage,
)
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.events import BudgetReached
from shapekit.llm.prices import Price, money, prices_from, spend_from

from ..redis_server import PATIENCE_S, RedisServer, shared_server
from ..together import run_together

PRICES = {
    "currency": "USD",
    "big": {"input": "2.50", "cached": "1.25", "written": "3.125", "output": "10", "reasoning": "12"},
    "small": {"input": "0.075", "output": "0.3"},
}
OTHER = {"input": 1, "output": 2}
UNIT = 10**8
SPENDER = Path(__file__).with_name("spender.py")


@pytest.fixture
def spend(clock):
    """Makes a budget on the test's clock."""

    def made(spend="1 USD/day", **options):
        return LLMBudget(**{"spend": spend, "prices": PRICES, "clock": clock, **options})

    return made


def request_for(output, model="big", prompt=""):
    return {"model": model, "prompt": prompt, "max_tokens": output}


def spent(budget, key=None):
    return [limit.used for limit in budget.spending(key)]


def answer_of(given, answered, cached=0, thought=0):
    return {
        "usage": {
            "prompt_tokens": given,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": answered,
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
    }


# prices


@pytest.mark.parametrize("amount", ["2.5", 2.5, Decimal("2.50"), Fraction(5, 2)])
def test_a_price_is_a_number_in_any_exact_form(amount):
    price = prices_from({"m": {"input": amount, "output": 3}}).models["m"]
    assert price == Price(
        input=250_000_000, cached=250_000_000, written=250_000_000, output=3 * UNIT, reasoning=3 * UNIT
    )


def test_a_float_price_means_its_shortest_decimal():
    assert prices_from({"m": {"input": 0.1, "output": 0.15}}).models["m"][::3] == (
        UNIT // 10,
        15 * UNIT // 100,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "prices.toml",
            '"currency" = "USD"\n[some]\ninput = 0.1\noutput = "0.40"\n[other]\ninput = 1\noutput = 2',
        ),
        (
            "prices.json",
            json.dumps({"currency": "USD", "some": {"input": 0.1, "output": "0.40"}, "other": OTHER}),
        ),
    ],
)
@pytest.mark.parametrize("form", [Path, str])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])  # as editors on Windows save it
def test_prices_come_from_a_file(tmp_path, name, text, form, encoding):
    path = tmp_path / name
    path.write_text(text, encoding=encoding)
    prices = prices_from(form(path))
    assert prices.currency == "USD"
    assert prices.models["some"].output == 4 * UNIT // 10
    assert list(prices.models) == ["some", "other"]


def test_a_model_with_a_dot_in_its_name_needs_quotes(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text("[gpt-4.1]\ninput = 2\noutput = 8\n")
    with pytest.raises(
        ConfigError, match=r"prices\['gpt-4'\]='1' is unknown; put a name with dots in quotes"
    ):
        prices_from(file)
    file.write_text('["gpt-4.1"]\ninput = 2\noutput = 8\n')
    assert list(prices_from(file).models) == ["gpt-4.1"]


@pytest.mark.parametrize(
    ("table", "field", "bound"),
    [
        ({}, "prices", "no models"),
        ({"currency": "USD"}, "prices", "no models"),
        ({"currency": 5, "m": {}}, "prices currency", "name of a currency"),
        ({"m": 5}, "prices['m']", "table of prices"),
        ({"m": {"input": 1}}, "prices['m']", "output tokens"),
        ({"m": {"output": 1}}, "prices['m']", "input tokens"),
        ({"m": {"input": 1, "output": 1, "cache": 1}}, "prices['m']", "unknown"),
        ({"m": {"input": "two", "output": 1}}, "prices['m'] input", "amount of money"),
        ({"m": {"input": "1e3", "output": 1}}, "prices['m'] input", "amount of money"),
        ({"m": {"input": -1, "output": 1}}, "prices['m'] input", "amount of money"),
        ({"m": {"input": True, "output": 1}}, "prices['m'] input", "amount of money"),
        ({"m": {"input": float("nan"), "output": 1}}, "prices['m'] input", "amount of money"),
        ({"m": {"input": Decimal("Infinity"), "output": 1}}, "prices['m'] input", "amount of money"),
        ({"m": {"input": "0.000000001", "output": 1}}, "prices['m'] input", "8 digits"),
        ({"m": {"input": 10_001, "output": 1}}, "prices['m'] input", "more than 10,000"),
        (5, "prices", "neither a table nor a path"),
        ("nowhere.toml", "prices", "cannot be read"),
    ],
)
def test_an_invalid_table_of_prices_is_refused(table, field, bound):
    with pytest.raises(ConfigError) as refused:
        prices_from(table)
    assert refused.value.field == field
    assert bound in refused.value.bound


@pytest.mark.parametrize(
    ("name", "text"), [("p.toml", "= 5"), ("p.json", "{"), ("p.json", "[]"), ("p.toml", "a = 1")]
)
def test_a_file_without_prices_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        prices_from(tmp_path / name)


COUNTS = st.integers(0, 10**7)
USAGES = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS).map(
    lambda answer_of: TokenUsage(
        sum(answer_of[:3]),
        answer_of[3] + answer_of[4],
        cached=answer_of[1],
        written=answer_of[2],
        reasoning=answer_of[4],
        uncounted=0,
    )
)
MODELS = st.builds(Price, *[st.integers(0, 10**11)] * 5)


@given(MODELS, USAGES, COUNTS)
def test_a_cost_is_rounded_up_once_and_never_down(price, usage, uncounted):
    usage = usage._replace(uncounted=uncounted)
    fresh = usage.input - usage.cached - usage.written
    exact = Fraction(
        fresh * price.input
        + (usage.cached + uncounted) * price.cached
        + usage.written * price.written
        + (usage.output - usage.reasoning) * price.output
        + usage.reasoning * price.reasoning,
        10**6,
    )
    cost = price.cost(usage)
    assert cost == 10**12 or exact <= cost < exact + 1
    assert cost <= 10**12


@given(MODELS, USAGES, COUNTS, COUNTS)
def test_a_reservation_covers_every_usage_within_its_tokens(price, usage, more, uncounted):
    estimate = TokenUsage(usage.input + uncounted + more, usage.output + more)
    assert price.most(estimate) >= price.cost(usage._replace(uncounted=uncounted))


# limits


@pytest.mark.parametrize(
    ("text", "limit", "per"),
    [
        ("50 USD/day", 50 * UNIT, "day"),
        ("1_000 EUR per month", 1_000 * UNIT, "month"),
        ("2.5k EUR/week", 2_500 * UNIT, "week"),
        ("5 USD/hour", 5 * UNIT, "rolling:1hour"),
        ("0.25 USD/30min", UNIT // 4, "rolling:30min"),
        ("5 USD/fixed:7d", 5 * UNIT, "fixed:7d"),
    ],
)
def test_a_limit_is_an_amount_in_a_currency_and_a_period(text, limit, per):
    quota = spend_from("spend", text, None).quota
    assert (quota.limit, quota.per) == (limit, per)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"spend": "50/day"}, "spend"),
        ({"spend": "50 USD"}, "spend"),
        ({"spend": 50}, "spend"),
        ({"spend": "0 USD/day"}, "spend"),
        ({"spend": "50 USD/year"}, "spend"),
        ({"spend": "10_001 USD/month"}, "spend"),
        ({"total": "0.000000001 USD/day"}, "total"),
        ({"total": "5 EUR/day"}, "total"),
        ({"total": "5 EUR/day", "prices": {"m": {"input": 2, "output": 2}}}, "total"),
        ({"spend": "5 USD/hour", "tz": "Europe/Berlin"}, "tz"),
        ({"tz": "Mars/Olympus"}, "tz"),
        ({"prices": None}, "prices"),
        ({"spend": None, "tokens": "5/s"}, "prices"),
        ({"spend": None, "prices": None, "tokens": "5/s", "tz": "Europe/Berlin"}, "tz"),
        ({"alerts": 0.5}, "alerts"),
        ({"alerts": (0.5, 1.01)}, "alerts"),
        ({"alerts": (0.0,)}, "alerts"),
        ({"alerts": (0.555,)}, "alerts"),
        ({"alerts": ("half",)}, "alerts"),
        ({"estimate": 500}, "estimate"),
    ],
)
def test_an_invalid_limit_of_money_is_refused(spend, options, field):
    with pytest.raises(ConfigError) as refused:
        spend(**options)
    assert refused.value.field == field


def test_a_day_begins_at_midnight_in_the_time_zone_of_the_account(spend):
    (day,) = spend("1 USD/day", tz="Europe/Berlin").spending()
    assert datetime.fromtimestamp(day.resets_at, UTC).hour == 23


# calls


def test_a_call_reserves_the_most_that_it_can_cost_and_is_charged_its_cost(spend):
    budget = spend()
    with budget.admit(request_for(1_000, prompt="abc" * 100)) as call:
        # A hundred tokens that may all be written to a cache, and a thousand that may all be thoughts.
        assert spent(budget) == [Decimal("0.0123125")]
        assert call.settle(answer_of(80, 500, cached=60, thought=200))
    assert spent(budget) == [Decimal("0.000050") + Decimal("0.000075") + Decimal("0.003") + Decimal("0.0024")]


def test_cache_reads_and_writes_of_anthropic_are_charged(spend):
    budget = spend()
    usage = {"input_tokens": 50, "cache_creation_input_tokens": 248, "cache_read_input_tokens": 100_000}
    with budget.admit(request_for(1_000)) as call:
        call.settle({"usage": {**usage, "output_tokens": 500}})
    paid = 50 * Decimal("2.5") + 248 * Decimal("3.125") + 100_000 * Decimal("1.25") + 500 * 10
    assert spent(budget) == [paid / 10**6]


def test_the_price_is_that_of_the_called_model(spend):
    budget = spend()

    def create(*, model="small", prompt, max_tokens):
        answer = answer_of(1_000, 100)
        return SimpleNamespace(model="big", usage=answer["usage"])

    budget.wrap(create)(prompt="why?", max_tokens=5)
    budget.wrap(create)(model="big", prompt="why?", max_tokens=5)
    assert spent(budget) == [Decimal("0.000105") + Decimal("0.0035")]


@pytest.mark.parametrize(
    ("ask", "named"),
    [({"model": "other", "prompt": "a"}, {}), ({"prompt": "a"}, {}), ((1, 2), {"model": "other"})],
)
def test_a_model_without_a_price_is_an_error_that_names_those_with_one(spend, ask, named):
    with pytest.raises(ConfigError, match="known are: big, small") as refused:
        spend().admit(ask, **named)
    assert refused.value.field == "model"


def test_bare_tokens_need_a_model_and_input_and_output_apart(spend):
    budget = spend()
    with budget.admit((100, 1_000), model="small") as call:
        assert spent(budget) == [Decimal("0.0003075")]
        call.settle((100, 0))
        with pytest.raises(ConfigError, match="input"):
            call.settle(100)
    assert spent(budget) == [Decimal("0.0000075")]
    with pytest.raises(ConfigError, match="input"):
        budget.admit(100, model="small")
    assert budget.forecast(2, (100, 1_000), model="small").last_in == 0.0


def test_a_stream_that_ends_early_costs_what_was_seen(spend):
    budget = spend(count=lambda text: len(text.split()))

    def create(*, model, prompt, max_tokens):
        yield from [{"choices": [{"delta": {"content": "one two "}}]}] * 3

    stream = budget.wrap(create)(model="big", prompt="why is that", max_tokens=1_000)
    next(stream)
    next(stream)
    stream.close()
    assert spent(budget) == [Decimal("0.0000075") + 4 * Decimal("0.00001")]


def test_a_spent_budget_refuses_in_words_of_money(spend):
    budget = spend("0.02 USD/day")
    with budget.admit((0, 1_000), model="big"), pytest.raises(QuotaExhaustedError) as refused:
        budget.admit((0, 1_000), model="big").__enter__()
    assert "the spend is used up: 0.012 of 0.02 USD are spent or reserved" in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    with pytest.raises(CostExceedsLimitError, match=r"cost 0\.024 USD exceeds the budget of 0\.02 USD"):
        budget.admit((0, 2_000), model="big").__enter__()


def test_a_call_that_may_wait_does(spend, clock):
    for per, until in (("day", 86_400.0), ("hour", 3_960.0)):
        clock = ManualClock(autojump=True)
        budget = spend(f"0.02 USD/{per}", clock=clock, max_wait="2d")
        for _ in range(2):
            with budget.admit((0, 1_000), model="big"):
                pass
        assert clock.now() == until


def test_a_cost_beyond_all_budgets_leaves_nothing(spend):
    budget = spend("10_000 USD/day")
    with budget.admit((0, 1), model="big") as call:
        call.settle((10**11, 10**11))
    (day,) = budget.spending()
    assert (day.used, day.remaining) == (10_000, 0)


def test_shares_that_are_reached_are_reported(spend, clock):
    budget = spend("0.12 USD/day", alerts=(0.5, 0.8, 1))
    events = []
    with budget.listen(events.append):
        for _ in range(10):
            clock.advance(1)
            with budget.admit((0, 1_000), model="big"):
                pass
    shares = [event.share for event in events if isinstance(event, BudgetReached)]
    assert shares == [0.5, 0.8, 1.0]


def test_events_name_money_and_tokens_separately(spend):
    budget = spend(tokens_per_day=5_000)
    with budget.admit(request_for(1_000)):
        pass
    assert [day.used for day in budget.quotas()] == [1_000]
    (day,) = budget.spending()
    assert day[:6] == ("spend", "day", "USD", 1, Decimal("0.012"), Decimal("0.988"))
    assert list(budget.policies) == ["tokens", "spend"]


@given(st.integers(0, 10**12))
def test_an_amount_is_exact(units):
    assert money(units) * UNIT == units
    assert "E" not in str(money(units)) or money(units) < Decimal("0.000001")


# tenants and the whole account


def test_a_call_is_charged_to_its_key_and_to_all_of_them_or_to_neither(spend):
    budget = spend("0.03 USD/day", total="0.05 USD/day", key="{user}")
    ask = lambda user: {**request_for(1_000), "user": user}  # noqa: E731 - one line, three calls
    for user in "aabb":
        with budget.admit(ask(user)):
            pass
    assert spent(budget, "a") == [Decimal("0.024"), Decimal("0.048")]
    for user, bound in (("a", "'a'"), ("c", "'all'")):
        with pytest.raises(QuotaExhaustedError, match=f"key {bound}"):
            budget.admit(ask(user)).__enter__()
    assert spent(budget, "a") == [Decimal("0.024"), Decimal("0.048")]
    assert spent(budget, "c") == [Decimal(0), Decimal("0.048")]


def test_the_limit_of_all_keys_may_be_the_only_one(spend):
    budget = spend(None, total="0.012 USD/day", key="{user}")
    with budget.admit({**request_for(1_000), "user": "a"}), pytest.raises(QuotaExhaustedError):
        budget.admit({**request_for(1_000), "user": "b"}).__enter__()


@pytest.mark.anyio
async def test_a_settlement_of_one_key_wakes_calls_of_others_that_wait_for_the_limit_of_all(spend, clock):
    budget = spend(None, total="0.012 USD/day", key="{user}", max_wait="2d")
    first = await budget.aadmit({**request_for(1_000), "user": "a"}).__aenter__()
    left = {}

    async def wait(user):
        async with budget.aadmit({**request_for(400), "user": user}):
            left[user] = clock.now()

    async with anyio.create_task_group() as tasks:
        for user in "bc":
            tasks.start_soon(wait, user)
        await clock.asleep(10, AsyncAlarm())
        await first.asettle((0, 0))
    assert left == {"b": 10.0, "c": 10.0}


@pytest.mark.anyio
async def test_a_cancelled_call_of_one_key_wakes_calls_of_others_that_wait_for_the_limit_of_all(spend, clock):
    budget = spend(None, total="0.012 USD/day", requests="1/min", key="{user}", max_wait="2d")
    scope, left = anyio.CancelScope(), []

    async def give_up():
        with scope:
            await budget.aadmit({**request_for(1_000), "user": "a"}).__aenter__()

    async def wait():
        async with budget.aadmit({**request_for(400), "user": "b"}):
            left.append(clock.now())

    async with anyio.create_task_group() as tasks:
        await (await budget.aadmit({**request_for(1_000), "user": "a"}).__aenter__()).asettle((0, 0))
        tasks.start_soon(give_up)
        # It has taken everything, and waits for its slot.
        await clock.asleep(60.4, AsyncAlarm())
        assert spent(budget, "b") == [Decimal("0.012")]
        tasks.start_soon(wait)
        await clock.asleep(0.05, AsyncAlarm())
        scope.cancel()
    assert left == [pytest.approx(60.45)]


def test_a_hold_of_one_key_does_not_hold_the_others(spend):
    budget = spend(total="5 USD/day", key="{user}", max_wait=0)
    refused = SimpleNamespace(status_code=429, headers={"retry-after": "60"})
    with budget.admit({**request_for(5), "user": "a"}) as call:
        call.observe(refused)
    with budget.admit({**request_for(5), "user": "b"}):
        pass
    with pytest.raises(QueueFullError):
        budget.admit({**request_for(5), "user": "a"}).__enter__()


def test_a_hold_stops_all_keys_where_only_the_account_is_limited(spend):
    budget = spend(None, total="5 USD/day", key="{user}", max_wait=0)
    with budget.admit({**request_for(5), "user": "a"}) as call:
        call.observe(SimpleNamespace(status_code=429, headers={"retry-after": "60"}))
    with pytest.raises(QueueFullError):
        budget.admit({**request_for(5), "user": "b"}).__enter__()


# laws

CALL = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["big", "small"]),
    st.integers(0, 3_000),
    st.integers(0, 3_000),
    st.floats(0, 1),
    st.sampled_from(["settle", "twice", "leave", "fail", "hold"]),
)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def make_store(request, tmp_path):
    """Makes stores that are empty, each with a clock of its own."""

    def made():
        clock = ManualClock(datetime(2026, 3, 1, 23, tzinfo=UTC).timestamp())
        if request.param == "memory":
            return MemoryStore(clock=clock), clock
        if request.param == "sqlite":
            return SQLiteStore(tmp_path / f"{uuid.uuid4().hex}.db", clock=clock), clock
        url = shared_server().url
        return RedisStore.from_url(url, prefix=f"money-{uuid.uuid4().hex}", clock=clock), clock

    return made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALL, min_size=5, max_size=40))
def test_the_books_are_exact_and_reservations_never_exceed_the_limit(make_store, calls):
    """On each store: at any time, what a key and all keys have spent and reserved is within the limit."""
    store, _ = make_store()
    budget = LLMBudget(
        spend="0.06 USD/day", total="0.1 USD/day", prices=PRICES, key="{user}", name="model", store=store
    )
    truth, held = Counter(), []
    prices = prices_from(PRICES)
    for user, model, given_, most, share, ending in calls:
        estimate, price = TokenUsage(given_, most), prices.of(model)
        used = int(given_ * share)
        usage = TokenUsage(used, int(most * share), used // 2, used // 4, int(most * share) // 3)
        before = dict(truth)
        call = budget.admit((given_, most), model=model, key=user)
        try:
            call.__enter__()
        except QuotaExhaustedError:
            reserved = max(1, price.most(estimate))
            assert truth[user] + reserved > 6_000_000 or truth.total() + reserved > 10_000_000
            assert dict(truth) == before
        else:
            if ending == "fail":
                call.failed(ConnectionRefusedError())
            elif ending in ("settle", "twice"):
                call.settle(usage if ending == "settle" else TokenUsage(0, 0))
                call.settle(usage)
                truth[user] += price.cost(usage)
            else:
                truth[user] += max(1, price.most(estimate))
                held += [(call, user, price, estimate, usage)] if ending == "hold" else []
        for known in "abc":
            one, all_of_them = budget.spending(known)
            assert one.used * UNIT == truth[known] <= 6_000_000
            assert all_of_them.used * UNIT == truth.total() <= 10_000_000
    for call, user, price, estimate, usage in held:
        call.settle(usage)
        truth[user] += price.cost(usage) - max(1, price.most(estimate))
    assert [int(budget.spending(user)[0].used * UNIT) for user in "abc"] == [truth[user] for user in "abc"]
    store.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 900), st.integers(0, 2_000), st.floats(0, 1)), min_size=5, max_size=60)
)
def test_no_hour_has_more_than_the_limit_wherever_it_begins(calls):
    clock = ManualClock()
    budget = LLMBudget(spend="0.05 USD/hour", prices=PRICES, clock=clock)
    left = []
    for pause, most, share in calls:
        clock.advance(pause)
        usage = TokenUsage(0, int(most * share))
        try:
            with budget.admit((0, most), model="big") as call:
                call.settle(usage)
        except QuotaExhaustedError:
            continue
        left.append((clock.now(), 1_000 * usage.output))
    for start, _ in left:
        assert sum(cost for at, cost in left if start <= at < start + 3_600) <= 5_000_000


def test_tasks_spend_as_threads_do(make_store, anyio_backend):
    async def main():
        store, _ = make_store()
        budget = LLMBudget(spend="0.02 USD/day", prices=PRICES, name="model", store=store)
        async with budget.aadmit((0, 1_000), model="big") as call:
            with pytest.raises(QuotaExhaustedError):
                await budget.aadmit((0, 1_000), model="big").__aenter__()
            await call.asettle((0, 500))
        (day,) = await budget.aspending()
        assert day.used == Decimal("0.005")
        await store.aclose()

    anyio.run(main, backend=anyio_backend)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_three_processes_never_spend_more_than_the_limit(tmp_path, kind):
    with nullcontext() if kind == "sqlite" else RedisServer() as server:
        url = server.url if server else tmp_path / "limits.db"
        costs = Counter()
        for line in run_together([(SPENDER, url, seed) for seed in range(3)], PATIENCE_S):
            costs.update(json.loads(line))
    assert max(costs.values()) <= UNIT // 2
    assert 0.9 * UNIT <= costs.total() <= UNIT


class Settles(logging.Handler):
    """Settles a call when another one logs that it is going to wait."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def emit(self, record):
        if "waits" in record.getMessage():
            self.call.settle((0, 0))


def test_a_settlement_just_before_a_call_waits_is_not_missed(spend, caplog):
    clock = ManualClock(autojump=True)
    budget = spend("0.02 USD/day", clock=clock, max_wait="2d")
    log = logging.getLogger("shapekit.shaper")
    with budget.admit((0, 1_000), model="big") as call, caplog.at_level(logging.DEBUG, log.name):
        log.addHandler(handler := Settles(call))
        try:
            with budget.admit((0, 1_000), model="big"):
                assert clock.now() == 0.0
        finally:
            log.removeHandler(handler)
