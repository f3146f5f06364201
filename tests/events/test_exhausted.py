"""An exhausted account: its key is held, all processes wait, and the one that read the answer reports why."""

import pytest

from shapekit import (
    AccountExhaustedError,
    Adaptive,
    MemoryStore,
    Policy,
    QueueFullError,
    QuotaExhaustedError,
    StoreUnavailableError,
)
from shapekit._queue.reporter import MOST_KEYS
from shapekit.events import Departed, Exhausted, Held, Refused, Reserved
from shapekit.testing import FaultyStore

from .calls import SCOPE, once_reserved, targeted


class Reply:
    """An answer whose body was read."""

    headers = ()

    def __init__(self, status=429, code="insufficient_quota"):
        self.status = status
        self.body = {"error": {"code": code}}


SPENT, SLOW, FINE = Reply(), Reply(code="rate_limit_exceeded"), Reply(200, None)


def ask(world, policy, reply, key="alice"):
    """One call, and its answer."""
    with policy.admit(key) as admission:
        pass
    return world.do(admission.observe, reply)


def test_the_key_is_held_and_the_reason_is_reported(world, policy, recorded):
    hint = ask(world, policy, SPENT)
    assert (hint.exhausted, hint.hold_s) == (True, 60.0)
    assert recorded[2:] == [Exhausted("stripe", "alice", 60.0), Held("stripe", "alice", 60.0, 60.0)]
    with pytest.raises(AccountExhaustedError) as caught:
        world.run(policy, "admit", "alice", max_wait="10s")
    error = caught.value
    assert isinstance(error, QuotaExhaustedError)
    assert (error.code, error.key, error.policy) == ("account_exhausted", "alice", "stripe")
    assert error.retry_after == 50.1
    assert recorded[4:] == [Refused("stripe", "alice", 1, "account_exhausted", 50.1, False)]


def test_other_keys_go_on(world, policy, clock):
    ask(world, policy, SPENT)
    ask(world, policy, FINE, "bob")
    assert clock.now() == 0.0


def test_a_call_that_may_wait_tries_again_and_each_hold_is_twice_as_long(world, policy, clock, recorded):
    for _ in range(3):
        ask(world, policy, SPENT)
    ask(world, policy, FINE)
    assert [event.length for event in recorded if isinstance(event, Exhausted)] == [60.0, 120.0, 240.0]
    assert clock.now() == pytest.approx(420.3)
    world.run(policy, "admit", "alice", max_wait=0.1)  # the success has ended it
    assert ask(world, policy, SPENT).hold_s == 60.0


def test_answers_to_calls_in_flight_report_an_exhausted_account_once(world, policy, clock, recorded):
    admissions = []
    for _ in range(3):
        with policy.admit("alice") as admission:
            admissions.append(admission)
    for admission in admissions:
        clock.advance(1)
        world.do(admission.observe, SPENT)
    assert [type(event) for event in recorded[6:]] == [Exhausted, Held]
    assert policy.shaper.held(key="alice") == 58.0


def test_a_rate_limit_is_no_exhausted_account(world, policy, recorded):
    assert ask(world, policy, SLOW).hold_s == 1.0
    assert recorded[2:] == [Held("stripe", "alice", 1.0, 1.0)]
    with pytest.raises(QueueFullError):
        world.run(policy, "admit", "alice", max_wait=0)


@pytest.mark.parametrize("way", ["schedule", "admit", "scoped"])
def test_a_waiting_call_is_refused_with_the_same_error(world, policy, recorded, way):
    with policy.admit("alice") as admission:
        pass
    with (
        once_reserved(policy, admission.observe, SPENT),
        pytest.raises(AccountExhaustedError) as caught,
    ):
        world.run(policy, way, "alice", max_wait="10s")
    assert caught.value.retry_after == 50.1
    assert recorded[-1] == Refused("stripe", "alice", 1, "account_exhausted", 50.1, True)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_call_to_a_scope_of_the_server_is_refused_with_the_same_error(world, policy, is_held):
    targeted(policy, "alice").unentered()  # from now on the key has known scopes
    if is_held:
        world.flow(policy.scoped.hold, 5.0, "alice", SCOPE)
    ask(world, policy, SPENT)
    with pytest.raises(AccountExhaustedError):
        world.run(policy, "scoped", "alice", max_wait="10s")


@pytest.mark.parametrize("how", ["resume", "reset"])
def test_the_reason_ends_with_its_hold(world, policy, clock, how):
    ask(world, policy, SPENT)
    if how == "resume":
        world.do(policy.shaper.resume, key="alice")
    else:
        world.do(policy.shaper.reset, "alice")
    clock.advance(1)
    world.run(policy, "admit", "alice", max_wait=0)
    policy.shaper.hold("2min", key="alice")
    with pytest.raises(QueueFullError):
        world.run(policy, "admit", "alice", max_wait=0)


def test_a_process_that_has_not_read_the_answer_waits_as_long(clock, store):
    one, other = (Policy("10/s", name="stripe", store=store) for _ in range(2))
    with one.admit("alice") as admission:
        pass
    admission.observe(SPENT)
    with pytest.raises(QueueFullError) as caught:
        other.shaper.schedule("alice", max_wait="10s")
    assert caught.value.delay == 60.1
    # The hold is ended there, and a long line that comes after it is no exhausted account.
    other.shaper.resume(key="alice")
    clock.advance(6)
    assert other.shaper.reserve("alice", cost=300).accepted
    with pytest.raises(QueueFullError):
        one.shaper.schedule("alice", max_wait=0)


def test_the_rate_of_an_adaptive_policy_stays(world, clock, recorded):
    policy = Policy(adaptive=Adaptive("1/s", "10/s"), name="stripe", clock=clock)
    before = policy.shaper.adaptive.rate(key="alice")
    ask(world, policy, SPENT)
    assert [type(event) for event in recorded] == [Reserved, Departed, Exhausted, Held]
    assert policy.shaper.adaptive.rate(key="alice") == before


def test_a_policy_that_enforces_nothing_holds_nothing(world, clock, recorded):
    policy = Policy("10/s", enforce=False, clock=clock)
    assert ask(world, policy, SPENT).exhausted
    assert policy.shaper.held(key="alice") == 0
    assert len(recorded) == 1


def test_an_exhausted_account_is_reported_while_the_store_does_not_answer(world, clock, recorded):
    store = FaultyStore(MemoryStore(clock))
    policy = Policy("10/s", name="stripe", store=store)
    with policy.admit("alice") as admission:
        pass
    store.down = True
    with pytest.raises(StoreUnavailableError):
        world.do(admission.observe, SPENT)
    assert recorded[2] == Exhausted("stripe", "alice", 60.0)


def test_the_memory_of_exhausted_accounts_is_bounded(policy, clock):
    accounts = policy.shaper.core.accounts
    for number in range(MOST_KEYS + 1):
        accounts.exhausted(str(number), 60_000_000)
    assert len(accounts._until_us) == MOST_KEYS
    assert not accounts.exhausted("1", 60_000_000)
    assert accounts.exhausted("0", 60_000_000)
