"""admit and aadmit: a call leaves in its slot, or is refused at once and costs nothing."""

import time

import anyio
import pytest

from shapekit import (
    GCRA,
    Adaptive,
    Concurrency,
    ConfigError,
    MemoryStore,
    Policy,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    StoreUnavailableError,
)
from shapekit.events import Reserved


def test_calls_leave_one_interval_apart(world, policy, clock):
    stripe = policy("10/s")
    left = [world.enter(stripe.admit(), lambda _: clock.now()) for _ in range(4)]
    assert left == [0.0, 0.1, 0.2, 0.3]


def test_the_admission_has_key_delay_and_decision(world, policy):
    stripe = policy("10/s", burst=3)
    for delay, used in ((0.0, 2), (0.1, 3)):
        admission = stripe.admit("eu", cost=2)
        world.enter(admission)
        assert (admission.delay, admission.key, admission.cost) == (delay, "eu", 2)
        assert admission.decision
        assert admission.decision.delay == delay
        assert (admission.decision.limit, admission.decision.current) == (3, used + (delay > 0))


def test_entering_yields_the_admission_itself(world, policy):
    admission = policy(1).admit()
    assert world.enter(admission, lambda entered: entered) is admission


def test_each_key_has_its_own_limit(world, policy):
    stripe = policy("1/s", key="main")
    delays = []
    for key in (None, "a", "b", None, "a", "main"):
        admission = stripe.admit(key)
        world.enter(admission)
        delays.append(admission.delay)
    assert delays == [0, 0, 0, 1, 0, 1]


def test_the_policy_has_a_cost_and_a_call_may_have_another(world, policy, clock):
    stripe = policy("10/s", cost=5)
    for cost in (None, 2, None):
        world.enter(stripe.admit(cost=cost))
    assert clock.now() == 0.7


@pytest.mark.parametrize("per_call", [False, True])
def test_a_wait_above_max_wait_is_refused_at_once_and_consumes_nothing(world, policy, clock, per_call):
    stripe = policy("1/s", max_wait=None if per_call else "500ms")
    waits = {"max_wait": 0.5} if per_call else {}
    world.enter(stripe.admit())
    before = stripe.forecast()
    with pytest.raises(QueueFullError) as refusal:
        world.enter(stripe.admit("default", **waits), pytest.fail)
    error = refusal.value
    assert (error.delay, error.max_wait, error.key, error.code) == (1.0, 0.5, "default", "queue_full")
    assert (clock.now(), stripe.forecast()) == (0.0, before)
    clock.advance(error.retry_after)
    world.enter(stripe.admit(**waits))
    assert clock.now() == 1.0


def test_a_call_may_wait_longer_than_the_policy_lets_it(world, policy, clock):
    stripe = policy("1/s", max_wait=0)
    world.enter(stripe.admit())
    world.enter(stripe.admit(max_wait="1s"))
    assert clock.now() == 1.0


def test_max_wait_0_is_now_or_never(world, policy):
    stripe = policy("1/s")
    world.enter(stripe.admit(max_wait=0))
    with pytest.raises(QueueFullError):
        world.enter(stripe.admit(max_wait=0), pytest.fail)


def test_timeout_gives_up_when_it_is_over_and_gives_the_slot_back(world, policy, clock):
    stripe = policy("1/min")
    world.enter(stripe.admit())
    with pytest.raises(TimeoutError, match="after 10 s"):
        world.enter(stripe.admit(timeout="10s"), pytest.fail)
    assert clock.now() == 10.0
    assert stripe.forecast().first_in == 50.0
    world.enter(stripe.admit(timeout="50s"))
    assert clock.now() == 60.0


def test_a_spent_quota_refuses_unless_a_max_wait_covers_it(world, policy, clock):
    stripe = policy("10/s", quota="2/day")
    for _ in range(2):
        world.enter(stripe.admit())
    with pytest.raises(QuotaExhaustedError) as refusal:
        world.enter(stripe.admit(), pytest.fail)
    assert refusal.value.retry_after == 86_400 - 0.1
    with pytest.raises(QuotaExhaustedError):
        world.enter(stripe.admit(max_wait="1h"), pytest.fail)
    assert clock.now() == 0.1
    world.enter(stripe.admit(max_wait="1d"))
    assert clock.now() == 86_400


def test_an_error_of_the_call_passes_and_the_call_stays_counted(world, policy, clock):
    stripe = policy("1/s")

    def fail(_):
        raise LookupError("of the caller")

    with pytest.raises(LookupError, match="of the caller"):
        world.enter(stripe.admit(), fail)
    world.enter(stripe.admit())
    assert clock.now() == 1.0


@pytest.mark.parametrize("key", ["{user}", lambda user: user])
def test_a_key_that_depends_on_the_call_has_to_be_passed_to_admit(refused, world, policy, key):
    stripe = policy("1/s", key=key)
    assert "admit(key=" in refused(stripe.admit, "key").fix
    refused(stripe.aadmit, "key")
    refused(stripe.forecast, "key")
    world.enter(stripe.admit("alice"))
    assert (stripe.forecast(key="alice").first_in, stripe.forecast(key="bob").first_in) == (1.0, 0.0)


def test_a_cost_that_depends_on_the_call_has_to_be_passed_to_admit(refused, world, policy, clock):
    stripe = policy("1/s", cost=len)
    assert "admit(cost=" in refused(stripe.admit, "cost").fix
    world.enter(stripe.admit(cost=3))
    world.enter(stripe.admit(cost=1))
    assert clock.now() == 3.0


def test_an_admission_that_was_not_entered_has_no_outcome(refused, policy):
    admission = policy(1).admit().unentered()
    for look in (lambda: admission.delay, lambda: admission.decision, lambda: admission.settle(2)):
        assert "with policy.admit()" in refused(look, "admission").fix


@pytest.mark.parametrize(
    "limits", [{"gates": (GCRA("1/s", burst=2),)}, {"rate": "2/2s", "pace": "burst"}], ids=["gate", "burst"]
)
def test_calls_under_a_limit_without_a_pace_leave_at_the_same_instant(world, policy, clock, limits):
    one = policy(**limits)
    for _ in range(2):
        world.enter(one.admit(max_wait=0))
    with pytest.raises(QueueFullError):
        world.enter(one.admit(max_wait=0), pytest.fail)
    assert clock.now() == 0.0
    world.enter(one.admit())
    assert clock.now() in (1.0, 2.0)


def test_a_policy_of_a_quota_alone(world, policy):
    budgeted = policy(quota="1/day")
    world.enter(budgeted.admit())
    with pytest.raises(QuotaExhaustedError):
        world.enter(budgeted.admit(), pytest.fail)


def test_the_text_of_a_key_may_hold_braces(world, policy):
    stripe = policy("1/s", key="{{x}}")
    world.enter(stripe.admit())
    assert stripe.forecast(key="{x}").first_in == 1.0


def test_forecast_is_when_so_many_calls_of_the_policys_cost_will_have_left(policy):
    assert policy("10/s").forecast(5) == (0.0, 0.4)
    costly = policy("10/s", cost=5)
    seen = costly.forecast(3)
    taken = [costly.shaper.reserve(cost=5).delay for _ in range(3)]
    assert seen == (taken[0], taken[-1]) == (0.0, 1.0)


@pytest.mark.anyio
async def test_aforecast_is_forecast(policy):
    stripe = policy("10/s")
    assert await stripe.aforecast(5) == stripe.forecast(5)


@pytest.mark.anyio
async def test_aadmit_is_admit_for_async_with(policy, clock):
    stripe = policy("1/s")
    for _ in range(2):
        async with stripe.aadmit("a", cost=2, max_wait="5s", timeout="5s") as admission:
            pass
    assert (clock.now(), admission.delay) == (2.0, 2.0)


@pytest.mark.anyio
async def test_a_cancelled_task_gives_its_slot_back(policy, clock):
    stripe = policy("1/min")
    async with stripe.aadmit():
        pass
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with stripe.aadmit():
            pytest.fail("a cancelled call left")
    assert stripe.forecast().first_in == 60.0 - clock.now()


@pytest.mark.anyio
async def test_close_wakes_waiting_calls():
    # Time stands still: only close ends this wait.
    store = MemoryStore()
    stripe = Policy("1/h", store=store)
    async with stripe.aadmit():
        pass
    async with anyio.create_task_group() as tasks:

        async def wait():
            with pytest.raises(StoreUnavailableError):
                async with stripe.aadmit():
                    pytest.fail("left")

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await stripe.aclose()
    # The store is the caller's.
    assert list(store.keys())


def test_a_store_that_the_policy_made_is_closed_with_it(policy):
    stripe = policy("1/s")
    stripe.close()
    with pytest.raises(StoreUnavailableError):
        stripe.forecast()


class TestClosedWithItsStore:
    """Waiting calls give back what they took, before the store that the policy made is closed."""

    @pytest.fixture
    def made(self, tmp_path):
        def make(**limits):
            return Policy(**limits, name="api", store=str(tmp_path / "limits.db"))

        return make

    @pytest.mark.anyio
    async def test_waiting_tasks_give_their_slots_back(self, made):
        api, waiting = made(rate="1/min", quota="10/day"), anyio.Event()
        async with api.aadmit():
            pass

        async def wait():
            with pytest.raises(StoreUnavailableError, match="was closed"):
                await api.aadmit().__aenter__()

        slots = []

        def on_event(event):
            slots.extend([event] if isinstance(event, Reserved) else [])
            if len(slots) == 3:
                waiting.set()

        with api.listen(on_event):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(wait)
                await waiting.wait()
                await api.aclose()
        other = made(rate="1/min", quota="10/day")
        assert other.quotas()[0].used == 1
        assert other.forecast().first_in <= 60
        other.close()

    def test_waiting_threads_give_their_slots_back(self, made, crew):
        api = made(rate="1/min", quota="10/day")
        with api.admit():
            pass

        def wait():
            with pytest.raises(StoreUnavailableError, match="was closed"):
                api.admit().__enter__()

        crew.at_once(wait, wait, wait)
        while api.shaper.core.sleepers.sleeping < 3:
            time.sleep(0.001)
        api.close()
        crew.join()
        other = made(rate="1/min", quota="10/day")
        assert other.quotas()[0].used == 1
        assert other.forecast().first_in <= 60
        other.close()

    def test_calls_that_wait_for_a_permit_give_their_places_back(self, made, crew):
        api, other = made(concurrency=1), made(concurrency=1)

        def wait():
            with pytest.raises(StoreUnavailableError, match="was closed"):
                api.admit().__enter__()

        with other.admit():
            crew.at_once(wait)
            while not api.shaper.core.sleepers.sleeping:
                time.sleep(0.001)
            api.close()
            crew.join()
        with other.admit(max_wait=0):
            pass
        other.close()


def test_policies_on_one_store_share_a_limit_by_name(clock):
    store = MemoryStore(clock)
    with Policy("1/s", name="api", store=store).admit():
        pass
    delays = [Policy("1/s", name=name, store=store).forecast().first_in for name in ("api", "other")]
    assert delays == [1.0, 0.0]


def test_an_admission_is_entered_once(policy, refused):
    for options in ({}, {"concurrency": 2}, {"enforce": False}):
        admission = policy("10/s", **options).admit("acme")
        with admission:
            assert "admit each call anew" in str(refused(admission.__enter__, "admission"))
        refused(admission.__enter__, "admission")
        assert admission.policy.forecast(key="acme").first_in == pytest.approx(0.1)


def test_an_awaited_admission_is_entered_once(policy, refused, anyio_backend):
    async def twice():
        async with (admission := policy("10/s").aadmit()):
            await admission.__aenter__()

    refused(lambda: anyio.run(twice, backend=anyio_backend), "admission")


def test_a_refused_admission_may_be_entered_later(policy, clock):
    stripe = policy("1/s", max_wait=0)
    admission = stripe.admit()
    with stripe.admit(), pytest.raises(QueueFullError):
        admission.__enter__()
    clock.advance(1)
    with admission:
        assert admission.delay == 0


@pytest.mark.parametrize("answer", [None, 5, "429", {"status": 429, "headers": {}}], ids=str)
def test_an_argument_that_is_no_answer_is_not_observed(policy, refused, anyio_backend, answer):
    with policy("10/s").admit() as admission:
        assert "headers" in refused(lambda: admission.observe(answer), "response").fix
        refused(lambda: anyio.run(admission.aobserve, answer, backend=anyio_backend), "response")
    with policy("10/s", feedback=None).admit() as admission:
        assert admission.observe(answer) is None


def test_the_repr_names_the_policy(policy):
    assert "name='stripe'" in repr(policy("10/s", name="stripe"))
    assert "10/s" in repr(policy("10/s", name="stripe"))


def test_the_repr_shows_the_arguments_of_the_policy(policy):
    def shown(*args, **options):
        return repr(policy(*args, name="api", **options))

    assert shown("10/s") == "Policy('10/s', burst=1, pace='smooth', name='api')"
    assert shown(concurrency=3) == "Policy(concurrency=3, name='api')"
    assert shown(concurrency=Concurrency(3, "10s")).startswith("Policy(concurrency=Concurrency(limit=3")
    gates = f"gates=({Quota('50/day')!r},)"
    assert shown(quota="50/day", enforce=False) == f"Policy({gates}, enforce=False, name='api')"
    adaptive = "Adaptive(min='1/s', max='5/s')"
    assert shown(adaptive=Adaptive("1/s", "5/s")) == f"Policy(adaptive={adaptive}, burst=1, name='api')"


def test_a_call_with_everything_wrong_is_still_a_config_error(policy):
    with pytest.raises(ConfigError):
        policy(1).admit(5, cost=0, max_wait="x", timeout="y").__enter__()
