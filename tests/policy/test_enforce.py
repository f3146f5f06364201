"""enforce=False: everything passes at once, and the admission says what would have happened."""

import logging

import pytest

from shapekit import GCRA, FixedWindow, MemoryStore, Policy, StoreUnavailableError, shaped
from shapekit.algorithms.queue.wire import RESERVE

LOGGER = "shapekit.policy"


@pytest.fixture
def logged(caplog):
    """Log messages about policies, at any level."""
    caplog.set_level(logging.DEBUG, LOGGER)

    def messages():
        return [record.getMessage() for record in caplog.records if record.name == LOGGER]

    return messages


def test_everything_passes_and_nothing_waits(world, policy, clock):
    one = policy("1/h", enforce=False)
    passed = [world.enter(one.admit(), lambda _: clock.now()) for _ in range(5)]
    assert passed == [0.0] * 5


def test_the_admission_shows_how_long_the_call_would_have_waited(world, policy):
    one = policy("2/s", enforce=False)
    delays = []
    for _ in range(4):
        admission = one.admit()
        world.enter(admission)
        delays.append(admission.delay)
        assert admission.decision.allowed
        assert admission.decision.delay == admission.delay
    assert delays == [0.0, 0.5, 1.0, 1.5]


def test_a_call_that_would_have_been_refused_passes_with_a_denial_and_is_not_counted(world, policy):
    one = policy("1/s", max_wait="2s", enforce=False)
    decisions = []
    for _ in range(5):
        admission = one.admit()
        world.enter(admission)
        decisions.append((admission.decision.allowed, admission.delay))
    assert decisions == [(True, 0.0), (True, 1.0), (True, 2.0), (False, 3.0), (False, 3.0)]
    assert admission.decision.retry_after == 1.0


def test_the_max_wait_of_the_call_decides_what_would_have_been_refused(world, policy):
    one = policy("1/s", enforce=False)
    world.enter(one.admit())
    refused, taken = one.admit(max_wait=0), one.admit(max_wait=1)
    for admission in (refused, taken):
        world.enter(admission)
    assert (refused.decision.allowed, taken.decision.allowed) == (False, True)


def test_a_spent_quota_is_reported_by_its_name(world, policy):
    one = policy("10/s", quota="1/day", enforce=False)
    world.enter(one.admit())
    admission = one.admit()
    world.enter(admission)
    assert not admission.decision
    assert admission.decision.binding == "quota"


def test_a_cost_that_can_never_be_admitted_passes_too(world, policy, logged):
    one = policy("10/s", gates=(GCRA("5/s"),), enforce=False)
    admission = one.admit(cost=6)
    world.enter(admission)
    assert not admission.decision
    assert len(logged()) == 1
    assert one.forecast().first_in == 0


def test_a_timeout_has_nothing_to_end(world, policy, clock):
    one = policy("1/h", enforce=False)
    for _ in range(2):
        world.enter(one.admit(timeout="1s"))
    assert clock.now() == 0.0


def test_waits_and_refusals_that_were_spared_are_logged_with_policy_and_key(world, policy, logged):
    one = policy("1/s", name="stripe", max_wait="1s", enforce=False)
    world.enter(one.admit("eu"))
    assert logged() == []
    world.enter(one.admit("eu"))
    world.enter(one.admit("eu"))
    waited, refused = logged()
    for message in (waited, refused):
        assert "stripe" in message
        assert "'eu'" in message
    assert "would have waited 1 s" in waited
    assert "would have been refused" in refused


def test_enforced_waits_and_refusals_are_not_logged(world, policy, logged):
    one = policy("1/s")
    for _ in range(2):
        world.enter(one.admit())
    assert logged() == []


def test_a_call_that_took_no_slot_is_not_settled(world, policy, fits):
    one = policy("1000/s", gates=(FixedWindow(5, "1h"),), max_wait=0.5, enforce=False)
    world.enter(one.admit(cost=4))
    refused = one.admit(cost=2)
    world.enter(refused)
    assert not refused.decision
    assert world.settle(refused, 0) is False
    assert world.settle(refused, 5) is False
    assert fits(one, 1) == 1


def test_a_call_that_would_have_waited_is_settled(world, policy):
    one = policy("1/s", enforce=False)
    for actual in (1, 4):
        admission = one.admit()
        world.enter(admission)
        world.settle(admission, actual)
    assert one.forecast().first_in == 5.0


def test_a_shaped_function_that_only_measures_passes_everything(world, clock, logged):
    @shaped("1/h", max_wait="90m", clock=clock, enforce=False, name="report")
    @world.define
    def report(number):
        return number

    assert [world.call(report, number) for number in range(4)] == [0, 1, 2, 3]
    assert clock.now() == 0.0
    assert [message.split(": ")[0] for message in logged()] == ["report"] * 3


def test_a_call_that_cannot_be_measured_gives_its_permit_back(world, clock):
    class WithoutSlots(MemoryStore):
        is_down = False

        def bind(self, name, program, operation):
            ask = super().bind(name, program, operation)

            def reserve(*args):
                if self.is_down and operation is RESERVE:
                    raise StoreUnavailableError
                return ask(*args)

            return reserve

    store = WithoutSlots(clock)
    one = Policy("10/s", concurrency=1, enforce=False, store=store)
    failed = one.admit()
    store.is_down = True
    with pytest.raises(StoreUnavailableError):
        world.enter(failed)
    store.is_down = False
    # The failed admission stays alive, as in a program that keeps its error.
    assert world.enter(one.admit(), lambda admission: admission.holds_permit)
    assert not failed.holds_permit
