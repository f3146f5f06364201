"""wait_slot and await_slot: the next attempt of any Retrying leaves at a slot of the policy."""

import asyncio
import threading

import anyio
import pytest
import tenacity

from shapekit import ManualClock, MemoryStore, Policy, QueueFullError, QuotaExhaustedError
from shapekit.events import Measured
from shapekit.integrations.tenacity import await_slot, shaped_retrying, wait_slot
from shapekit.testing import FaultyStore


def failing(clock, times, left):
    """A call that records when it leaves, and fails so many times."""

    def call():
        left.append(clock.now())
        if len(left) <= times:
            raise KeyError(len(left))
        return "done"

    return call


def afailing(clock, times, left):
    call = failing(clock, times, left)

    async def acall():
        return call()

    return acall


def test_attempts_leave_at_the_slots(clock):
    policy, left = Policy("10/s", clock=clock), []
    retrying = tenacity.Retrying(wait=wait_slot(policy))
    assert retrying(failing(clock, 3, left)) == "done"
    # The caller makes the first attempt itself; the slot at 0 is that of the first retry.
    assert left == [0.0, 0.0, 0.1, 0.2]
    assert retrying.statistics["idle_for"] == pytest.approx(0.2)


@pytest.mark.anyio
async def test_attempts_of_tasks_leave_at_the_slots(clock):
    policy, left = Policy("10/s", clock=clock), []
    retrying = tenacity.AsyncRetrying(wait=await_slot(policy))
    assert await retrying(afailing(clock, 3, left)) == "done"
    assert left == [0.0, 0.0, 0.1, 0.2]
    assert retrying.statistics["idle_for"] == pytest.approx(0.2)


def test_the_retry_waits_by_key_and_cost(clock):
    policy, left = Policy("10/s", clock=clock), []
    policy.shaper.reserve("mine", cost=3)
    policy.shaper.reserve("yours", cost=50)
    tenacity.Retrying(wait=wait_slot(policy, key="mine", cost=2))(failing(clock, 1, left))
    assert left == [0.0, 0.3]
    assert policy.forecast(key="mine").first_in == pytest.approx(0.2)


def test_a_hold_that_is_placed_meanwhile_is_obeyed():
    clock = ManualClock()
    policy, left = Policy("1/s", clock=clock), []
    policy.shaper.reserve()
    retrying = tenacity.Retrying(wait=wait_slot(policy))
    thread = threading.Thread(target=retrying, args=(failing(clock, 1, left),))
    thread.start()
    while not clock._sleepers:
        assert thread.is_alive()
    clock.advance(0.5)
    policy.shaper.hold("10s")
    clock.advance(9.9)
    assert left == [0.0]
    clock.advance(2.0)
    thread.join(10)
    assert not thread.is_alive()
    assert left[1] == 11.0


def test_nothing_is_taken_where_tenacity_stops(clock):
    policy, left = Policy("1/s", clock=clock), []
    for stop in (tenacity.stop_after_attempt(1), tenacity.stop_before_delay(0.5)):
        policy.shaper.reset()
        policy.shaper.reserve()
        before = policy.forecast()
        with pytest.raises(KeyError):
            tenacity.Retrying(wait=wait_slot(policy), stop=stop, reraise=True)(failing(clock, 9, left))
        assert policy.forecast() == before
    assert left == [0.0, 0.0]


@pytest.mark.anyio
async def test_nothing_is_taken_where_asynchronous_tenacity_stops(clock):
    policy, left = Policy("1/s", clock=clock), []

    async def at_once(state):
        return True

    for stop in (tenacity.stop_after_attempt(1), at_once):
        policy.shaper.reserve()
        before = policy.forecast()
        with pytest.raises(KeyError):
            await tenacity.AsyncRetrying(wait=await_slot(policy), stop=stop, reraise=True)(
                afailing(clock, 9, left)
            )
        assert policy.forecast() == before
    assert left == [0.0, 0.0]


@pytest.mark.anyio
async def test_a_cancelled_retry_gives_its_slot_back():
    clock = ManualClock()
    policy, left = Policy("1/s", clock=clock), []
    policy.shaper.reserve()
    before = policy.forecast()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tenacity.AsyncRetrying(wait=await_slot(policy)), afailing(clock, 9, left))
        while not clock._sleepers:
            await anyio.lowlevel.checkpoint()
        assert policy.forecast() != before
        tasks.cancel_scope.cancel()
    assert policy.forecast() == before
    assert left == [0.0]


def test_a_stop_that_fails_gives_the_slot_of_the_retry_back(clock):
    policy = Policy("1/s", clock=clock)

    def stop(state):
        raise LookupError

    with pytest.raises(LookupError):
        tenacity.Retrying(stop=stop, wait=wait_slot(policy))(failing(clock, 1, []))
    assert policy.forecast().first_in == 0.0


@pytest.mark.parametrize("is_failing", [True, False])
def test_a_store_that_is_gone_once_stop_is_asked_does_not_hide_how_the_call_ends(clock, is_failing):
    store = FaultyStore(MemoryStore(clock))

    def stop(state):
        store.down = True
        if is_failing:
            raise LookupError
        return True

    retrying = tenacity.Retrying(stop=stop, wait=wait_slot(Policy("1/s", name="upstream", store=store)))
    with pytest.raises(LookupError if is_failing else tenacity.RetryError):
        retrying(failing(clock, 1, []))


@pytest.mark.anyio
async def test_a_retry_that_is_cancelled_while_stop_is_asked_gives_its_slot_back(clock):
    policy = Policy("1/s", clock=clock)

    async def stop(state):
        await anyio.sleep_forever()

    retrying = tenacity.AsyncRetrying(stop=stop, wait=await_slot(policy))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(retrying, afailing(clock, 1, []))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert policy.forecast().first_in == 0.0


def test_a_slot_too_far_away_ends_retrying_and_names_the_failure(clock):
    policy, left = Policy("1/s", max_wait="2s", clock=clock), []
    policy.shaper.reserve(cost=3, max_wait=None)
    with pytest.raises(QueueFullError) as caught:
        tenacity.Retrying(wait=wait_slot(policy))(failing(clock, 9, left))
    assert isinstance(caught.value.__cause__, KeyError)
    spent = Policy(quota="1/month", clock=clock)
    spent.shaper.reserve()
    with pytest.raises(QuotaExhaustedError):
        tenacity.Retrying(wait=wait_slot(spent))(failing(clock, 9, []))


@pytest.mark.anyio
async def test_a_slot_too_far_away_ends_asynchronous_retrying(clock):
    policy = Policy("1/s", max_wait="2s", clock=clock)
    policy.shaper.reserve(cost=3, max_wait=None)
    with pytest.raises(QueueFullError) as caught:
        await tenacity.AsyncRetrying(wait=await_slot(policy))(afailing(clock, 9, []))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_slot_too_far_away_does_not_hide_why_tenacity_stops(clock):
    policy = Policy("1/s", max_wait="2s", clock=clock)
    policy.shaper.reserve(cost=3, max_wait=None)
    for stop in (tenacity.stop_after_attempt(1), tenacity.stop_before_delay(1)):
        with pytest.raises(KeyError):
            tenacity.Retrying(wait=wait_slot(policy), stop=stop, reraise=True)(failing(clock, 9, []))


@pytest.mark.anyio
async def test_a_slot_too_far_away_does_not_hide_why_asynchronous_tenacity_stops(clock):
    policy, stop = Policy("1/s", max_wait="2s", clock=clock), tenacity.stop_after_attempt(1)
    policy.shaper.reserve(cost=3, max_wait=None)
    with pytest.raises(KeyError):
        await tenacity.AsyncRetrying(wait=await_slot(policy), stop=stop, reraise=True)(afailing(clock, 9, []))


def test_where_nothing_is_enforced_no_retry_waits(clock):
    policy, left, events = Policy("1/s", name="api", max_wait="1s", enforce=False, clock=clock), [], []
    with policy.listen(events.append):
        tenacity.Retrying(wait=wait_slot(policy))(failing(clock, 3, left))
    assert left == [0.0] * 4
    waits = [(0.0, None), (1.0, None), (2.0, "queue_full")]
    assert events == [Measured("api", "default", 1, *measured) for measured in waits]


@pytest.mark.anyio
async def test_where_nothing_is_enforced_no_slot_goes_to_an_attempt_that_is_not_made(clock):
    policy, events = Policy("1/s", name="api", enforce=False, clock=clock), []
    retrying = tenacity.AsyncRetrying(wait=await_slot(policy), stop=tenacity.stop_after_attempt(2))
    with policy.listen(events.append), pytest.raises(tenacity.RetryError):
        await retrying(afailing(clock, 9, []))
    assert events == [Measured("api", "default", 1, 0.0, None)]


def test_wrong_arguments_are_refused(refused, clock):
    policy = Policy("10/s", clock=clock)
    error = refused(lambda: tenacity.Retrying(wait=wait_slot("10/s")), "policy")
    assert "Policy(" in error.fix
    refused(lambda: wait_slot(policy, key=5), "key")
    refused(lambda: wait_slot(policy, cost=0), "cost")
    refused(lambda: wait_slot(Policy("1/s", key="{user}")), "key")
    refused(lambda: await_slot(Policy("1/s", cost=len)), "cost")
    own = shaped_retrying(policy, wait=wait_slot(policy), retry=tenacity.retry_always)
    assert "takes a second slot" in str(refused(lambda: own(str), "wait"))
    blocking = tenacity.AsyncRetrying(wait=wait_slot(policy))
    assert "await_slot" in refused(lambda: asyncio.run(blocking(afailing(clock, 9, []))), "wait").fix
