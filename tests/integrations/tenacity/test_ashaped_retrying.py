"""ashaped_retrying: the same for tasks of asyncio and trio, any number of which may share one."""

import anyio
import httpx
import pytest
import tenacity

from shapekit import ManualClock, MemoryStore, Policy, QueueFullError
from shapekit._runtime.drivers import TASKS
from shapekit.integrations.tenacity import ashaped_retrying, wait_retry_after
from shapekit.testing import FaultyStore

pytestmark = pytest.mark.anyio

SECOND = wait_retry_after(tenacity.wait_fixed(1))
TOO_MUCH, ILL, FINE = (
    httpx.Response(429, headers={"Retry-After": "7"}),
    httpx.Response(503),
    httpx.Response(200),
)


class Upstream:
    """Gives its answers in turn, raising exceptions, and records when it was called."""

    def __init__(self, clock, *answers):
        self.clock = clock
        self.answers = list(answers)
        self.instants = []

    async def ask(self):
        self.instants.append(self.clock.now())
        await anyio.lowlevel.checkpoint()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def by_call(retrying, upstream):
    return await retrying(upstream.ask)


async def by_decorator(retrying, upstream):
    @retrying.wraps
    async def ask(question):
        return await upstream.ask()

    return await ask("now?")


async def by_iterator(retrying, upstream):
    async for attempt in retrying:
        with attempt:
            answer = await upstream.ask()
        if not attempt.retry_state.outcome.failed:
            attempt.retry_state.set_result(answer)
    return answer


@pytest.fixture(params=[by_call, by_decorator, by_iterator])
def run(request):
    return request.param


async def test_each_attempt_waits_for_the_server_and_for_its_slot(clock, run):
    upstream = Upstream(clock, TOO_MUCH, ILL, FINE)
    retrying = ashaped_retrying(Policy("1/10s", burst=2, clock=clock), wait=SECOND)
    assert await run(retrying, upstream) is FINE
    assert upstream.instants == [0.0, 7.0, 17.0]
    seen = retrying.statistics
    assert seen["attempt_number"] == 3
    assert seen["idle_for"] == pytest.approx(8.0)
    assert seen["waited_for_server"] == pytest.approx(7.0)
    assert seen["waited_for_slots"] == pytest.approx(9.0)


@pytest.mark.parametrize("where", ["sleep", "slot"])
async def test_a_retry_that_is_cancelled_costs_nothing(run, where):
    clock = ManualClock()
    policy = Policy("10/s" if where == "sleep" else "1/h", clock=clock)
    wait = tenacity.wait_fixed(1 if where == "sleep" else 0)
    retrying = ashaped_retrying(policy, budget=0.001, reserve=1, wait=wait)
    upstream = Upstream(clock, ILL)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, retrying, upstream)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len(upstream.instants) == 1
    budget = retrying.attempts.budget
    assert await budget.spend(TASKS)
    assert not await budget.spend(TASKS)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("is_awaited", [True, False])
async def test_the_call_of_a_loop_that_is_left_ends_with_its_block(clock, is_awaited, enabled):
    policy = Policy(concurrency=1, clock=clock)
    async for attempt in (retrying := ashaped_retrying(policy, enabled=enabled)):
        if is_awaited:
            async with attempt:
                break
        with attempt:
            break
    async with policy.aadmit(max_wait=0):
        pass
    async for attempt in retrying:  # a loop that goes on ends once
        async with attempt:
            pass
    async with policy.aadmit(max_wait=0):
        pass


async def test_where_the_budget_is_spent_the_original_error_is_raised(clock, run):
    error, policy = KeyError("original"), Policy("10/s", clock=clock)
    retry = tenacity.retry_if_exception_type(KeyError)
    retrying = ashaped_retrying(policy, budget=0.1, reserve=2, retry=retry, wait=SECOND)
    made = []
    for _ in range(12):
        upstream = Upstream(clock, error)
        with pytest.raises(KeyError) as caught:
            await run(retrying, upstream)
        assert caught.value is error
        made.append(len(upstream.instants))
    assert made == [3, *[1] * 9, 2, 1]


async def test_twenty_tasks_share_one_and_stay_in_rate_and_budget(clock, run):
    policy, upstreams = Policy("10/s", clock=clock), [Upstream(clock, ILL) for _ in range(20)]

    async def never(state):
        # Other tasks run while tenacity is in the middle of its work after an attempt.
        await anyio.lowlevel.checkpoint()

    retrying = ashaped_retrying(policy, budget=0.25, reserve=3, wait=tenacity.wait_none(), stop=never)
    answers = []

    async def work(upstream):
        answers.append(await run(retrying, upstream))

    async with anyio.create_task_group() as tasks:
        for upstream in upstreams:
            tasks.start_soon(work, upstream)
    assert answers == [ILL] * 20
    instants = sorted(instant for upstream in upstreams for instant in upstream.instants)
    assert instants == pytest.approx([number / 10 for number in range(len(instants))])
    # All twenty leave first, in the order of asking; what they earn beyond the reserve is lost.
    assert 20 + 3 <= len(instants) <= 20 + 3 + 5


async def test_hooks_and_stops_may_be_asynchronous(clock):
    attempts = []

    async def before_sleep(state):
        await anyio.lowlevel.checkpoint()
        attempts.append(state.attempt_number)

    async def stop(state):
        await anyio.lowlevel.checkpoint()
        return state.attempt_number == 3

    async def conclude(state):
        return "gave up"

    options = {"before_sleep": before_sleep, "stop": stop, "retry_error_callback": conclude, "wait": SECOND}
    retrying = ashaped_retrying(Policy("10/s", clock=clock), **options)
    assert await retrying(Upstream(clock, ILL).ask) == "gave up"
    assert attempts == [1, 2]
    quota = ashaped_retrying(Policy(quota="1/month", clock=clock), **options)
    assert await quota(Upstream(clock, ILL).ask) == "gave up"


async def test_refusals(clock, run):
    policy = Policy("1/s", clock=clock)
    policy.shaper.reserve(cost=9)
    upstream = Upstream(clock, ILL)
    with pytest.raises(QueueFullError):
        await run(ashaped_retrying(policy, max_wait="2s"), upstream)
    assert upstream.instants == []
    assert await run(ashaped_retrying(Policy(quota="1/month", clock=clock), wait=SECOND), upstream) is ILL
    assert len(upstream.instants) == 1


async def test_a_call_that_never_counted_is_given_back(clock):
    policy = Policy("1/s", refund_on=ConnectionError, clock=clock)
    retry = tenacity.retry_if_exception_type(ConnectionError)
    upstream = Upstream(clock, ConnectionError(), ConnectionError(), FINE)
    await ashaped_retrying(policy, retry=retry, wait=tenacity.wait_none())(upstream.ask)
    assert upstream.instants == [0.0, 0.0, 0.0]


async def test_a_store_that_goes_away_does_not_hide_the_answer(clock):
    store = FaultyStore(MemoryStore(clock))
    retrying = ashaped_retrying(Policy("10/s", name="upstream", store=store), wait=SECOND)

    async def call():
        store.down = True
        return TOO_MUCH

    assert await retrying(call) is TOO_MUCH


async def test_a_call_cancelled_while_it_waits_leaves_no_trace(clock):
    policy = Policy("1/h", clock=clock)
    policy.shaper.reserve()
    before = policy.forecast()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await ashaped_retrying(policy)(Upstream(clock, FINE).ask)
    assert scope.cancelled_caught
    assert policy.forecast() == before


async def test_concurrent_tasks_do_not_mix_their_attempts(clock, run):
    async def never(state):
        await anyio.lowlevel.checkpoint()

    policy, answers = Policy("10/s", burst=20, clock=clock), []
    retrying = ashaped_retrying(policy, budget=0.25, reserve=9, wait=tenacity.wait_none(), stop=never)
    upstreams = [Upstream(clock, ILL) for _ in range(20)]

    async def work(upstream):
        answers.append(await run(retrying, upstream))

    async with anyio.create_task_group() as tasks:
        for upstream in upstreams:
            tasks.start_soon(work, upstream)
    assert answers == [ILL] * 20
    assert sum(len(upstream.instants) for upstream in upstreams) >= 20 + 9


async def test_a_call_that_is_not_made_because_before_fails_is_not_in_flight(clock):
    policy = Policy(concurrency=1, clock=clock)

    def before(state):
        raise RuntimeError

    async def call():
        return 1

    kept = []
    for _ in range(3):
        with pytest.raises(RuntimeError) as caught:
            await ashaped_retrying(policy, before=before, max_wait=0)(call)
        kept.append(caught.value)
        async with policy.aadmit(max_wait=0):
            pass


async def test_a_call_that_is_cancelled_while_it_earns_for_the_budget_is_not_in_flight(
    clock, run, monkeypatch
):
    policy, upstream, kept = Policy(concurrency=1, clock=clock), Upstream(clock, FINE), []
    retrying = ashaped_retrying(policy)

    async def earn(driver):
        await anyio.sleep_forever()

    async def work():
        try:
            await run(retrying, upstream)
        except BaseException as error:
            kept.append(error)  # as a task does that was cancelled
            raise

    monkeypatch.setattr(retrying.attempts.budget, "earn", earn)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert upstream.instants == []
    async with policy.aadmit(max_wait=0):
        pass
    assert kept
