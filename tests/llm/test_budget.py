"""LLMBudget: tokens and a slot, both or neither; what it accepts, and the errors about the rest."""

import pickle
from unittest.mock import ANY

import anyio
import pytest

from shapekit import (
    CostExceedsLimitError,
    LLMBudget,
    MemoryStore,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    SlidingWindow,
    SlidingWindowLog,
    SQLiteStore,
    TokenBucket,
    TokenUsage,
    off,
)
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.events import Cancelled, Departed, Refused, Reserved, Settled

from .errors import RefusedByServer, caused


def ask(**more):
    return {"messages": [{"role": "user", "content": "why?"}], "max_tokens": 100, **more}


# taking


def test_a_call_takes_its_tokens_and_its_slot(world, budget, used, clock):
    one = budget(requests="60/min", tokens="60k/min", capacity=60_000)
    for _ in range(3):
        world.enter(one.admit(500))
    assert used(one) == 1_500
    assert clock.now() == 2.0


def test_tokens_are_waited_for(world, budget, clock):
    one = budget(tokens="60k/min", capacity=1_000)
    delays = []
    for _ in range(3):
        call = one.admit(1_000)
        world.enter(call)
        delays.append(call.delay)
    assert (clock.now(), delays) == (2.0, [0.0, 1.0, 1.0])


def test_the_delay_covers_both_waits(world, budget, clock):
    one = budget(requests="1/s", tokens="60k/min", capacity=1_000)
    world.enter(one.admit(1_000))
    clock.advance(0.5)
    call = one.admit(800)
    world.enter(call)
    assert clock.now() == 1.0
    assert call.delay == 0.5  # 0.3 s for the tokens, and the rest of the second


def test_where_the_slot_is_refused_the_tokens_come_back(world, budget, used):
    one = budget(requests="1/min", tokens="60k/min", max_wait=5)
    world.enter(one.admit(500))
    with pytest.raises(QueueFullError):
        world.enter(one.admit(700))
    assert used(one) == 500


def test_where_the_tokens_are_refused_no_slot_is_taken(world, budget, used, clock):
    one = budget(requests="1/s", tokens="60k/min", capacity=1_000, max_wait=0.5)
    world.enter(one.admit(1_000))
    with pytest.raises(QueueFullError):
        world.enter(one.admit(1_000))
    assert used(one) == 1_000
    assert one.policies["requests"].forecast().first_in == 1.0


def test_max_wait_bounds_both_waits_together(world, budget, used, clock):
    one = budget(requests="1/s", tokens="60k/min", capacity=1_000, max_wait=1.2)
    world.enter(one.admit(1_000))
    world.enter(one.admit(500, max_wait=1.0))
    assert clock.now() == 1.0
    # Half a second for the tokens, and then another for the slot: each alone would be short enough.
    with pytest.raises(QueueFullError) as caught:
        world.enter(one.admit(1_000, max_wait=0.9))
    assert (caught.value.delay, caught.value.max_wait) == (1.0, 0.9)
    assert f"policy '{one.name}.requests', key 'default'" in str(caught.value)
    assert "a wait of 1 s exceeds max_wait=900 ms" in str(caught.value)
    assert clock.now() == pytest.approx(1.5, abs=0.01)
    assert used(one) == 1_500
    world.enter(one.admit(500, max_wait=0.51))
    assert clock.now() == 2.0


@pytest.mark.parametrize(
    ("limits", "most", "option"),
    [
        ({"tokens": "1000/min"}, 1_000, "tokens= or capacity="),
        ({"tokens": "1000/min", "capacity": 1_500}, 1_500, "capacity="),
        ({"output_tokens": "1000/min"}, 1_000, "output_tokens= or capacity="),
        ({"tokens": "9000/min", "tokens_per_day": 1_500}, 1_500, "tokens_per_day="),
    ],
)
def test_an_error_about_too_many_tokens_names_tokens_and_the_option_to_raise(
    world, budget, limits, most, option
):
    asked = (0, 2_000) if "output_tokens" in limits else 2_000
    one = budget(requests="1/min", name="gpt", **limits)
    for refuse in (lambda: world.enter(one.admit(asked)), lambda: one.forecast(request=asked)):
        with pytest.raises(CostExceedsLimitError) as caught:
            refuse()
        assert (caught.value.unit, caught.value.limit) == ("tokens", most)
        assert f"cost 2,000 tokens exceeds the budget of {most:,} tokens" in str(caught.value)
        assert f"raise {option}, or split the call" in str(caught.value)
    assert one.policies["requests"].forecast().first_in == 0.0


@pytest.mark.parametrize(
    ("limits", "family", "changes"),
    [
        ({"tokens": "1000/min"}, "tokens", [{"state": "off"}]),
        ({"tokens_per_day": 1_000}, "tokens", [{"state": "off"}, {"quota": "100_000/day"}]),
        (
            {"spend": "0.01 USD/day", "prices": {"m": {"input": "1", "output": "10"}}},
            "spend",
            [{"state": "off"}, {"quota": "100_000_000/day"}],
        ),
    ],
)
def test_a_call_may_take_as_much_as_the_limit_that_is_set_allows(world, budget, limits, family, changes):
    for change in changes:
        one = budget(**limits)
        with pytest.raises(CostExceedsLimitError):
            one.forecast(request=(0, 5_000), model="m")
        one.policies[family].configure(**change)
        call = one.admit((0, 5_000), model="m", max_wait=0)
        world.enter(call)
        assert call.settle((0, 4_000))
        assert one.forecast(request=(0, 5_000), model="m").first_in == 0.0


def test_the_error_names_the_budget_that_is_set(world, budget):
    one = budget(tokens_per_day=1_000)
    for limit in (2_000, 500):
        one.policies["tokens"].configure(quota=f"{limit}/day")
        with pytest.raises(CostExceedsLimitError, match=f"exceeds the budget of {limit:,} tokens"):
            world.enter(one.admit(2_001))


def test_a_timeout_bounds_both_waits_together(world, budget, used, clock):
    one = budget(requests="1/s", tokens="60k/min", capacity=1_000)
    world.enter(one.admit(1_000))
    with pytest.raises(TimeoutError):
        world.enter(one.admit(500, timeout=0.75))  # 0.5 s for the tokens, and a quarter of its slot
    assert clock.now() == 0.75
    assert used(one) == 1_000


@pytest.mark.anyio
async def test_a_call_cancelled_while_it_waits_for_its_slot_gives_back_its_tokens(budget, used, clock):
    one = budget(requests="1/min", tokens="60k/min")
    async with one.aadmit(500):
        pass

    async def wait():
        async with one.aadmit(700):
            pytest.fail("it was cancelled")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.asleep(10, AsyncAlarm())
        assert used(one) == 500  # tokens are taken when the slot is near
        tasks.cancel_scope.cancel()
    assert used(one) == 500
    assert one.policies["requests"].forecast().first_in == 50.5


def test_a_call_that_can_never_be_admitted_raises(world, budget, used):
    one = budget(requests="1/s", tokens="60k/min", capacity=1_000)
    with pytest.raises(CostExceedsLimitError):
        world.enter(one.admit(1_001))
    assert used(one) == 0


def test_a_spent_day_refuses(world, clock):
    one = LLMBudget(tokens="60k/min", tokens_per_day="1k", clock=clock)
    world.enter(one.admit(900))
    with pytest.raises(QuotaExhaustedError):
        world.enter(one.admit(200))
    assert one.forecast(request=200).first_in == 86_400.0


def test_each_key_has_its_own_limits(world, budget, used, clock):
    one = budget(requests="1/min", tokens="60k/min", key="{model}")
    for model in ("a", "b"):
        world.enter(one.admit(ask(model=model)))
    world.enter(one.admit(50, key="c"))
    assert clock.now() == 0.0
    assert [used(one, key) for key in "abcd"] == [108, 108, 50, 0]


def test_a_key_may_be_a_callable(world, budget, used):
    one = budget(tokens="60k/min", key=lambda user, **_: f"user-{user}")
    world.enter(one.admit(ask(user=7)))
    assert used(one, "user-7") == 108


def test_where_the_key_is_refused_nothing_is_taken(refused, world, budget):
    one, key = budget(requests="60/min", tokens="60k/min", capacity=1_000), "a%scope=b"
    refused(lambda: world.enter(one.admit(1_000, key=key)), "key")
    assert one.policies["tokens"].shaper.forecast(key=key, cost=1_000).first_in == 0.0
    assert one.policies["requests"].shaper.forecast(key=key).first_in == 0.0


# settling


def test_a_settled_call_is_charged_its_usage(world, budget, used):
    one = budget(requests="10/s", tokens="60k/min", capacity=60_000)
    call = one.admit(1_000)
    world.enter(call)
    assert world.settle(call, {"usage": {"input_tokens": 20, "output_tokens": 30}}) is True
    assert used(one) == 50
    assert one.policies["requests"].forecast().first_in == 0.1


@pytest.mark.parametrize(
    "usage", [60, (10, 50), TokenUsage(10, 50), {"prompt_tokens": 10, "completion_tokens": 50}]
)
def test_a_usage_may_have_many_forms(world, budget, used, usage):
    one = budget(tokens="60k/min")
    call = one.admit(1_000)
    world.enter(call)
    assert world.settle(call, usage) is True
    assert used(one) == 60


@pytest.mark.parametrize("answer", [{}, {"usage": None}, {"id": "1"}, None, "yes", object()])
def test_an_answer_without_usage_leaves_the_estimate(world, budget, used, answer):
    one = budget(tokens="60k/min")
    call = one.admit(1_000)
    world.enter(call)
    assert world.settle(call, answer) is False
    assert used(one) == 1_000


def test_input_and_output_may_be_counted_apart(world, clock):
    one = LLMBudget(
        requests="50/min",
        input_tokens=TokenBucket("30k/min"),
        output_tokens=TokenBucket("8k/min"),
        clock=clock,
    )
    call = one.admit(ask())
    world.enter(call)
    world.settle(call, {"usage": {"input_tokens": 3_000, "output_tokens": 80}})
    left = {family: policy.shaper.core.look.call("default")[0] for family, policy in one.policies.items()}
    assert list(left) == ["input-tokens", "output-tokens", "requests"]
    full = {family: one.policies[family].forecast(cost=cost).first_in for family, cost in
            {"input-tokens": 30_000, "output-tokens": 8_000}.items()}  # fmt: skip
    assert full == {"input-tokens": 6.0, "output-tokens": 0.6}


def test_a_bare_number_is_refused_where_input_and_output_count_apart(refused, clock):
    one = LLMBudget(input_tokens="30k/min", output_tokens="8k/min", clock=clock)
    refused(lambda: one.admit(500), "request")
    refused(lambda: LLMBudget(input_tokens="30k/min", estimate=500), "estimate")
    with one.admit((400, 100)) as call:
        refused(lambda: call.settle(7), "answer")


# failing


def raising(error):
    def body(_):
        raise error

    return body


CASES = {
    "refused by us": (QueueFullError, 0, 0.0),
    "no listener": (ConnectionRefusedError("x"), 0, 0.0),
    "no listener, by the client's error": (caused(ConnectionRefusedError("x")), 0, 0.0),
    "too many": (RefusedByServer(429), 0, 1.0),
    "bad request": (RefusedByServer(400), 0, 1.0),
    "server error": (RefusedByServer(500), 700, 1.0),
    "timeout": (TimeoutError("x"), 700, 1.0),
    "interrupted": (KeyboardInterrupt(), 700, 1.0),
    "of the caller": (LookupError("x"), 700, 1.0),
}


@pytest.mark.parametrize(("error", "tokens", "slot_s"), CASES.values(), ids=CASES)
def test_an_error_gives_back_what_it_did_not_cost(world, budget, used, error, tokens, slot_s):
    one = budget(requests="1/s", tokens="60k/min", capacity=60_000)
    if error is QueueFullError:
        full = LLMBudget(requests="1/h", tokens="1k/h", max_wait=0, clock=one._store.clock)
        world.enter(full.admit(1))
        with pytest.raises(QueueFullError) as caught:
            world.enter(full.admit(1))
        error = caught.value
    with pytest.raises(type(error)):
        world.enter(one.admit(700), raising(error))
    assert used(one) == tokens
    held = 1.0 if isinstance(error, RefusedByServer) and error.response.status_code == 429 else 0.0
    assert one.policies["requests"].forecast().first_in == slot_s + held


def test_an_error_after_a_settlement_changes_nothing(world, budget, used):
    one = budget(tokens="60k/min")

    def body(call):
        call.settle(90)
        raise RefusedByServer(400)

    with pytest.raises(RefusedByServer):
        world.enter(one.admit(700), body)
    assert used(one) == 90


@pytest.mark.parametrize(
    ("refund_on", "tokens"), [(LookupError, 0), ((), 700), (lambda error: "x" in str(error), 0)]
)
def test_errors_in_refund_on_cost_nothing(world, budget, used, refund_on, tokens):
    one = budget(tokens="60k/min", refund_on=refund_on)
    with pytest.raises(LookupError):
        world.enter(one.admit(700), raising(LookupError("x")))
    assert used(one) == tokens


def test_refund_on_replaces_the_built_in_rules(world, budget, used):
    one = budget(tokens="60k/min", refund_on=LookupError)
    with pytest.raises(RefusedByServer):
        world.enter(one.admit(700), raising(RefusedByServer(400)))
    assert used(one) == 700


# looking, listening, closing


def test_a_forecast_covers_tokens_and_slots(budget):
    one = budget(requests="10/s", tokens="60k/min", capacity=1_000)
    assert one.forecast(request=100).first_in == 0.0
    assert one.forecast(21, request=100).last_in == 2.0  # by the slots it would be 2 s, by the tokens 1.1 s
    assert one.forecast(21, request=1_000).last_in == 20.0
    assert anyio.run(one.aforecast, 21, 1_000) == one.forecast(21, request=1_000)
    assert anyio.run(one.aquotas) == one.quotas()


def test_a_listener_receives_events_of_tokens_and_slots(budget):
    one = budget(requests="10/s", tokens="60k/min", name="model", max_wait=0)
    events = []
    with one.listen(events.append):
        with one.admit(500) as call:
            call.settle(40)
        with pytest.raises(QueueFullError):
            one.admit(300).__enter__()
    with one.admit(1, max_wait=1):
        pass
    received = [(type(event), event.policy, event.cost) for event in events]
    assert received == [
        (Reserved, "model.tokens", 500),
        (Reserved, "model.requests", 1),
        (Departed, "model.tokens", 500),
        (Departed, "model.requests", 1),
        (Settled, "model.tokens", 500),
        (Refused, "model.requests", 1),
    ]


def test_a_call_leaves_both_with_the_later_slot(budget):
    one = budget(requests="1/s burst 1", tokens="60k/min", capacity=1_000, name="model")
    departed = []
    with one.listen(lambda event: departed.append(event) if isinstance(event, Departed) else None):
        for tokens in (1_000, 600, 10):
            with one.admit(tokens):
                pass
    waits = [(0.0, 1_000), (1.0, 600), (1.0, 10)]
    assert departed == [
        Departed(policy, "default", cost, delay, 0.0)
        for delay, tokens in waits
        for policy, cost in (("model.tokens", tokens), ("model.requests", 1))
    ]


@pytest.mark.parametrize("awaited", ["tokens", "requests"])
def test_a_call_that_gives_up_departs_from_neither_policy(budget, awaited):
    requests = "300/min burst 1" if awaited == "requests" else "6000/min"
    one = budget(requests=requests, tokens="60k/min", capacity=1_000, name="model")
    with one.admit(1_000 if awaited == "tokens" else 1):
        pass
    events = []
    with one.listen(events.append), pytest.raises(TimeoutError):
        one.admit(150, timeout="10ms").__enter__()
    both = [("model.tokens", 150), ("model.requests", 1)]
    last = both if awaited == "tokens" else both[::-1]
    assert events == [
        *(Reserved(policy, "default", cost, ANY) for policy, cost in both),
        *(Cancelled(policy, "default", cost, True) for policy, cost in last),
    ]


def test_while_shaping_is_off_nothing_is_counted(world, budget, used):
    one = budget(requests="1/h", tokens="60k/min")
    with off():
        for _ in range(3):
            call = one.admit(500)
            world.enter(call)
            assert world.settle(call, 3) is False
    assert used(one) == 0


def test_closing_closes_the_store_that_the_budget_made(clock):
    store = MemoryStore(clock)
    LLMBudget(tokens="60k/min", store=store).close()
    with LLMBudget(tokens="60k/min", store=store).admit(5):
        pass
    own = LLMBudget(tokens="60k/min", clock=clock)
    anyio.run(own.aclose)


# arguments


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({"tokens": "90k/min"}, SlidingWindow(90_000, "60.5s", buckets=121, conservative=True)),
        ({"tokens": "90k/min", "capacity": 9_000}, TokenBucket("90_000/min", capacity=9_000)),
        ({"tokens": "90k/min burst 500"}, TokenBucket("90_000/min", capacity=500)),
    ],
)
def test_no_window_exceeds_the_limit_unless_a_capacity_is_given(options, strategy):
    (gate,) = LLMBudget(**options).policies["tokens"].shaper.core.queue.gates
    assert gate == strategy


def test_tokens_may_be_any_strategy(world, clock):
    one = LLMBudget(tokens=SlidingWindowLog(1_000, "1min"), clock=clock)
    for _ in range(2):
        world.enter(one.admit(1_000))
    assert clock.now() == 60.0


@pytest.mark.parametrize("limit", [2_000_000, "2M", "2M/day", "2_000_000/day", Quota(2_000_000, "day")])
def test_a_daily_limit_may_have_many_forms(limit):
    (day,) = LLMBudget(tokens_per_day=limit).quotas()
    assert (day.limit, day.per) == (2_000_000, "day")


def test_an_estimate_may_be_a_number_or_a_function(world, budget):
    fixed = budget(tokens="60k/min", estimate=300)
    assert fixed.admit().reserved.total == fixed.admit(ask()).reserved.total == 300
    limits = budget(tokens="60k/min", estimate=lambda max_tokens, **_: (7, max_tokens))
    assert limits.admit(ask()).reserved == TokenUsage(7, 100)
    assert limits.admit(55).reserved.total == 55


MISTAKES = {
    "no limit": ({"requests": "5/s"}, "tokens"),
    "no rate": ({"tokens": "many"}, "tokens rate"),
    "a small m": ({"tokens": "2m/day"}, "tokens rate"),
    "a bucket beside a strategy": ({"tokens": TokenBucket("1/s"), "capacity": 5}, "capacity"),
    "a bucket without a rate": ({"tokens_per_day": 1_000, "capacity": 5}, "capacity"),
    "a bucket for requests": ({"requests": "5/s", "tokens_per_day": 1_000, "capacity": 5}, "capacity"),
    "no rate of requests": ({"requests": "5 per fortnight", "tokens": "5/s"}, "requests rate"),
    "tokens per what?": ({"tokens": 90_000}, "tokens"),
    "input per what?": ({"input_tokens": 9.5, "output_tokens": "5/s"}, "input_tokens"),
    "text without a period": ({"tokens": " 90k "}, "tokens"),
    "requests per what?": ({"requests": 500, "tokens": "5/s"}, "requests"),
    "no wait": ({"tokens": "5/s", "max_wait": "soon"}, "max_wait"),
    "a wait before": ({"tokens": "5/s", "max_wait": -1}, "max_wait"),
    "an empty bucket": ({"tokens": "5/s", "capacity": 0}, "tokens capacity"),
    "half a token": ({"tokens_per_day": "1.2345k"}, "tokens_per_day limit"),
    "no day": ({"tokens_per_day": "many"}, "tokens_per_day limit"),
    "a month": ({"tokens_per_day": "2M/month"}, "tokens_per_day"),
    "no provider": ({"tokens": "5/s", "provider": "acme"}, "provider"),
    "no count": ({"tokens": "5/s", "count": 3}, "count"),
    "a model to count by": ({"tokens": "5/s", "count": "gpt-4"}, "count"),
    "no estimate": ({"tokens": "5/s", "estimate": "much"}, "estimate"),
    "three parts": ({"tokens": "5/s", "estimate": (1, 2, 3)}, "estimate"),
    "less than nothing": ({"tokens": "5/s", "estimate": -1}, "estimate"),
    "no key": ({"tokens": "5/s", "key": 5}, "key"),
    "no error": ({"tokens": "5/s", "refund_on": 5}, "refund_on"),
    "shared without a name": ({"tokens": "5/s", "store": "shared"}, "name"),
    "no store": ({"tokens": "5/s", "store": 5}, "store"),
}


@pytest.mark.parametrize(("options", "field"), MISTAKES.values(), ids=MISTAKES)
def test_a_wrong_argument_is_refused_with_a_fix(refused, tmp_path, options, field):
    if options.get("store") == "shared":
        options = {**options, "store": SQLiteStore(tmp_path / "limits.db")}
    refused(lambda: LLMBudget(**options), field)


def test_a_wrong_argument_of_a_call_is_refused_by_name(refused, budget):
    refused(lambda: budget(tokens="5/s").admit(), "request")
    refused(lambda: budget(tokens="5/s").admit("text"), "request")
    refused(lambda: budget(tokens="5/s", key="{model}").admit(5), "key")
    refused(lambda: budget(tokens="5/s", key="{model}").admit(ask()), "key")
    refused(lambda: budget(tokens="5/s", estimate=lambda **_: "much").admit(ask()), "estimate")
    call = budget(tokens="5/s").admit(5)
    refused(lambda: call.settle(5), "call")
    refused(lambda: call.delay, "call")
    with call:
        refused(call.__enter__, "call")
    refused(lambda: budget(tokens="5/s").wrap(5), "function")


@pytest.mark.parametrize("part", [-1, 2.5, None, True])
@pytest.mark.parametrize("field", TokenUsage._fields)
def test_a_usage_of_no_tokens_is_refused_and_changes_nothing(refused, budget, used, field, part):
    usage = TokenUsage(50, 60)._replace(**{field: part})
    refused(lambda: LLMBudget(tokens="60k/min", estimate=usage), "estimate")
    one = budget(input_tokens="60k/min", output_tokens="60k/min")
    refused(lambda: one.admit(usage), "request")
    with one.admit((100, 100)) as call:
        refused(lambda: call.settle(usage), "answer")
    assert used(one) == 200
    assert one.forecast(request=(59_900, 59_900)).first_in == 0.0
    assert one.forecast(request=(59_901, 1)).first_in > 0.0


def test_a_usage_is_a_plain_value():
    usage = TokenUsage(3, 4)
    assert pickle.loads(pickle.dumps(usage)) == usage == (3, 4, 0, 0, 0, 0)
    assert usage.total == 7
