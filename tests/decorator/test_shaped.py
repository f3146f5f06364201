"""@shaped on functions and coroutine functions: they are called as before, and leave in their slots."""

import functools
import inspect
import threading
from itertools import pairwise

import anyio
import pytest

from shapekit import (
    GCRA,
    Adaptive,
    MemoryStore,
    Policy,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    StoreUnavailableError,
    shaped,
)
from shapekit.algorithms.queue.wire import RESERVE

from ..queue.slow_store import FarStore


def function(path: str, *more: int, retries: int = 3, **options: bool) -> str:
    """What it does."""
    return f"{path} {more} {retries} {options}"


function.marked = "by somebody"


def test_calls_leave_one_interval_apart_and_return_what_they_return(world, clock):
    call = shaped("10/s", clock=clock)(world.define(function))
    for number in range(4):
        assert world.call(call, "/v1", number, retries=1, fast=True) == function(
            "/v1", number, retries=1, fast=True
        )
        assert clock.now() == number / 10


@pytest.mark.parametrize("rate", [2, 2.0, "2/s", "120/min"])
def test_a_rate_in_any_notation(world, clock, rate):
    call = shaped(rate=rate, clock=clock)(world.define(clock.now))
    assert [world.call(call) for _ in range(3)] == [0.0, 0.5, 1.0]


def test_an_error_of_the_function_passes(world, clock):
    @shaped(1, clock=clock)
    @world.define
    def fail():
        raise LookupError("of the function")

    with pytest.raises(LookupError, match="of the function"):
        world.call(fail)


def test_a_refused_call_does_not_reach_the_function(world, clock):
    called = []
    call = shaped("1/s", max_wait="500ms", clock=clock)(world.define(called.append))
    world.call(call, 1)
    with pytest.raises(QueueFullError) as refusal:
        world.call(call, 2)
    assert (called, refusal.value.delay, refusal.value.max_wait) == ([1], 1.0, 0.5)
    assert clock.now() == 0.0
    assert call.forecast().first_in == 1.0


def test_a_spent_quota_raises_without_reaching_the_function(world, clock):
    called = []
    call = shaped(quota="1/day", clock=clock)(world.define(called.append))
    world.call(call, 1)
    with pytest.raises(QuotaExhaustedError):
        world.call(call, 2)
    assert called == [1]


def test_the_metadata_of_the_function_stays(world):
    original = world.define(function)
    call = shaped(10)(original)
    assert inspect.signature(call) == inspect.signature(function)
    assert call.__wrapped__ is original
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "marked"):
        assert getattr(call, attribute) == getattr(function, attribute)
    assert inspect.iscoroutinefunction(call) is not world.is_sync
    assert inspect.getsource(call) == inspect.getsource(function)


def test_the_policy_has_the_name_of_the_function_unless_one_is_given():
    assert shaped(1)(function).policy.name == f"{__name__}.function"
    assert shaped(1, name="stripe")(function).policy.name == "stripe"


def test_stacked_limits_are_named_by_their_place_whatever_is_between_them():
    @functools.wraps(shaped(1)(function))
    def between():
        pytest.fail("called")

    path = f"{__name__}.function"
    twice = shaped(1)(shaped(1)(function))
    assert (twice.policy.name, twice.__wrapped__.policy.name) == (f"{path}#2", path)
    assert shaped(1)(twice).policy.name == f"{path}#3"
    assert shaped(1)(between).policy.name == f"{path}#2"
    assert shaped(1)(functools.partial(twice)).policy.name == f"{path}#3"
    assert shaped(1)(shaped(1, name="stripe")(twice)).policy.name == f"{path}#3"
    assert shaped(1)(shaped(1, name="stripe")(function)).policy.name == path


def test_stacked_limits_on_one_store_are_apart(world, clock):
    store = MemoryStore(clock)

    def fetch(customer):
        return clock.now()

    for_all = shaped("10/s", store=store)(world.define(fetch))
    call = shaped("1/s", key="{customer}", store=store)(for_all)
    assert [world.call(call, customer) for customer in ("a", "b", "default", "b")] == [0.0, 0.1, 0.2, 1.0]
    call.policy.configure("100/s")
    assert not for_all.policy.configured()
    # Also two of different kinds.
    world.call(shaped(adaptive=Adaptive("1/s", "5/s"), store=store)(call), "a")


def test_a_lambda_has_no_name_for_other_processes_to_find(refused):
    class Shared(MemoryStore):
        shared = True

    assert "name=" in refused(lambda: shaped(1, store=Shared())(lambda: None), "name").fix
    assert shaped(1, name="ours", store=Shared())(lambda: None).policy.name == "ours"
    store = MemoryStore()
    one, other = (shaped(1, store=store)(each) for each in (lambda: 1, lambda: 2))
    assert one.policy.name != other.policy.name


def test_every_argument_reaches_the_policy(clock):
    gate, quota = GCRA("100/min"), Quota("1000/day")
    store = MemoryStore(clock)
    call = shaped(
        "10/s", burst=5, gates=(gate,), quota=quota, headroom=0.02, enforce=False, key="{path}", cost=2,
        max_wait="2s", refund_on=OSError, store=store, name="api",
    )(function)  # fmt: skip
    wanted = Policy(
        "10/s", burst=5, gates=(gate,), quota=quota, headroom=0.02, enforce=False, key="{path}", cost=2,
        max_wait="2s", refund_on=OSError, store=store, name="api",
    )  # fmt: skip
    assert call.policy.shaper.core.queue == wanted.shaper.core.queue
    assert (call.policy.key.text, call.policy.cost, call.policy.enforce) == ("{path}", 2, False)
    assert call.policy.refund_on(OSError())
    assert shaped("2/s", pace="burst")(function).policy.shaper.core.queue.pace == "burst"
    call("/v1")
    assert list(store.keys()) == ["api:/v1"]


def test_forecast_is_when_so_many_more_calls_will_have_left(clock):
    call = shaped("10/s", clock=clock)(function)
    assert call.forecast() == (0.0, 0.0)
    call("x")
    assert call.forecast(3) == (0.1, 0.3)
    assert clock.now() == 0.0


def test_forecast_counts_what_a_call_of_this_function_costs(clock):
    call = shaped("10/s", cost=5, clock=clock)(function)
    seen = call.forecast(3)
    for _ in range(3):
        call("x")
    assert seen == (0.0, clock.now()) == (0.0, 1.0)


def test_a_callable_key_and_cost_see_what_the_function_sees(world, clock):
    calls = []

    def key(user, *, tokens=1):
        calls.append(("key", user, tokens))
        return user

    def cost(user, *, tokens=1):
        calls.append(("cost", user, tokens))
        return tokens

    @shaped("1/s", key=key, cost=cost, clock=clock)
    @world.define
    def call(user, *, tokens=1):
        return clock.now()

    assert world.call(call, "a", tokens=3) == 0.0
    assert world.call(call, "b") == 0.0
    assert calls == [("key", "a", 3), ("cost", "a", 3), ("key", "b", 1), ("cost", "b", 1)]
    assert world.call(call, user="a") == 3.0
    assert (call.forecast(key="a").first_in, call.forecast(key="b").first_in) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"key": lambda: None}, "key"),
        ({"key": lambda: 5}, "key"),
        ({"cost": lambda: None}, "cost"),
        ({"cost": lambda: 0}, "cost"),
        ({"cost": lambda: True}, "cost"),
        ({"cost": lambda: 1.5}, "cost"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_a_callable_that_returns_no_key_or_no_cost_is_a_config_error(
    refused, world, clock, arguments, field, shared
):
    called = []
    limit = {"policy": Policy("1/s", clock=clock)} if shared else {"rate": "1/s", "clock": clock}
    call = shaped(**limit, **arguments)(world.define(lambda: called.append(1)))
    refused(lambda: world.call(call), field)
    assert called == []


@pytest.mark.anyio
async def test_tasks_leave_one_interval_apart(clock):
    left = []

    @shaped("10/s", clock=clock)
    async def call():
        left.append(clock.now())

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(call)
    assert left == [number / 10 for number in range(20)]


@pytest.mark.anyio
async def test_a_cancelled_call_gives_its_slot_back(clock):
    called = []

    @shaped("1/min", clock=clock)
    async def call():
        called.append(clock.now())

    await call()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await call()
    assert called == [0.0]
    assert call.forecast().first_in == 60.0 - clock.now()


def test_a_closed_policy_shapes_nothing_more(world, clock):
    call = shaped("1/s", clock=clock)(world.define(function))
    call.policy.close()
    with pytest.raises(StoreUnavailableError):
        world.call(call, "x")


def test_a_call_whose_answer_came_late_does_not_leave_next_to_another(clock):
    class OnceLate(FarStore):
        late_s = 0.0

        def bind(self, name, program, operation):
            ask = super().bind(name, program, operation)

            def late(*args):
                answer = ask(*args)
                if operation is RESERVE:
                    late_s, self.late_s = self.late_s, 0.0
                    self.clock.sleep(late_s, threading.Event())
                return answer

            return late

    store = OnceLate(clock, 0.002)
    call = shaped("5/s", store=store, name="api")(clock.now)
    for _ in range(3):
        call()
    clock.advance(1)
    store.late_s = 0.39
    left = [call() for _ in range(3)]
    assert min(later - earlier for earlier, later in pairwise(left)) > 0.19
