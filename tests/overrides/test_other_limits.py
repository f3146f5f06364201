"""Calls that wait, or are in flight, while an operator sets another number of limits."""

import asyncio
import json

import pytest

from shapekit import Policy
from shapekit.shaper import received, sent

CHANGES = [
    ("25/s; 1000/min", "20/s"),
    ("25/s", "20/s; 1000/min"),
    ("7/s", "10/s"),
    ("700/min; 1000/h", "600/min"),
]


@pytest.fixture(params=CHANGES, ids=" to ".join)
def change(request):
    return request.param


def used(policy):
    (month,) = policy.quotas()
    return month.used


def test_a_call_in_flight_is_settled_and_the_limits_that_remain_are_charged(store, change):
    before, since = change
    policy = Policy(before, name="api", quota="1000/month", store=store)
    with policy.admit() as admission:
        policy.configure(since)
        assert admission.settle(3)
    assert used(policy) == 3


def test_a_waiting_call_is_given_back_to_the_limits_that_remain(store, change):
    before, since = change
    policy = Policy(before, name="api", quota="1000/month", store=store)
    taken = [policy.shaper.reserve() for _ in range(50)]
    policy.configure(since)
    policy.shaper.reserve()
    assert taken[40].cancel()
    assert not taken[40].cancel()
    assert policy.shaper.settle(taken[30], 0)
    assert used(policy) == 49


def test_a_task_that_is_cancelled_while_it_waits_ends_as_cancelled(store, change):
    before, since = change
    policy = Policy(before, name="api", quota="1000/month", store=store)
    for _ in range(50):
        policy.shaper.reserve()

    async def gives_up():
        waits, loop = asyncio.Event(), asyncio.get_running_loop()
        with policy.listen(lambda _: loop.call_soon_threadsafe(waits.set)):
            call = asyncio.create_task(policy.shaper.aschedule())
            await waits.wait()
        await policy.aconfigure(since)
        call.cancel()
        await asyncio.wait([call])
        await policy.aclose()
        await store.aclose()
        return call

    assert asyncio.run(gives_up()).cancelled()


def test_a_new_limit_gives_nothing_back_that_it_has_not_counted(store):
    policy = Policy("10/s", name="api", store=store)
    taken = [policy.shaper.reserve() for _ in range(10)]
    policy.configure("10/s; 20/min")
    for _ in range(20):
        policy.shaper.reserve()
    far = policy.shaper.forecast().first_in
    for one in taken[1:]:
        policy.shaper.settle(one, 0)
    assert policy.shaper.forecast().first_in == far


def test_a_slot_that_was_taken_by_older_code_is_settled_by_newer(store, change):
    before, since = change
    old = Policy(before, name="api", quota="1000/month", store=store)
    waiting = [old.shaper.reserve() for _ in range(20)][-1]
    new = Policy(since, name="api", quota="1000/month", store=store)
    taken = received(new.shaper.core, json.loads(json.dumps(sent(waiting))))
    assert not taken.cancel()
    assert new.shaper.settle(taken, 3)
    assert used(new) >= 22
