"""What was taken on one side is moved on that side, or not at all.

Against a model of two plain stores, one for each side: after every step of a story of outages, lost
replies and returns, both sides hold just what the model holds. Few nonces, so that both sides have
generations of the same number.
"""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    MemoryStore,
    Policy,
    Quota,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit._runtime.drivers import run
from shapekit.algorithms.base import CHECK, DEBIT, PEEK, REFUND
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL, CONFIRM, HOLD, MARK, RESERVE, RESUME, SETTLE, UNKNOWN
from shapekit.rate import parse_rates
from shapekit.testing import ManualClock

from .outages import MODES, Host

SHARE = 1 / 3  # of 3/s: so that the two sides count in different units
QUEUES = {
    "paced": LeakyQueue(parse_rates("3/s"), 4, "smooth", ()),
    "two rates": LeakyQueue(parse_rates("10/s; 20 per 5 s"), 2, "smooth", (), 0.1),
    "gates": LeakyQueue((), None, "smooth", (GCRA("4/s", burst=4), Quota("40/day"))),
    "burst": LeakyQueue(parse_rates("6/s"), None, "burst", ()),
}
STRATEGIES = {
    "gcra": GCRA("3/s", burst=6),
    "bucket": TokenBucket("10/s", capacity=4),
    "fixed": FixedWindow("6/s"),
    "sliding": SlidingWindow("6/s"),
    "log": SlidingWindowLog("6/s"),
    "quota": Quota("12/day"),
    "all": all_of(second=GCRA("4/s", burst=4), month=Quota("40/month")),
    "any": any_of(a=GCRA("2/s", burst=2), b=SlidingWindowLog("6/s")),
    "first": first_of(main=GCRA("2/s", burst=4), nested=all_of(x=GCRA("4/s"), y=FixedWindow("8/s"))),
}


class Twin:
    """A ResilientStore, and the two plain stores that it should be like."""

    def __init__(self, program):
        self.host = Host()
        self.program = program
        self.part = program.scaled(SHARE)
        self.store = self.host.worker("local", share=SHARE)
        self.primary = MemoryStore(self.host.clock)
        self.local = MemoryStore(self.host.clock)

    def plain(self, side, operation, *args):
        store, program = (self.local, self.part) if side == "local" else (self.primary, self.program)
        return store.bind("name", program, operation)("key", *args)

    def call(self, operation, *args):
        """The answer, whether the primary was called, and whether its answer was used."""
        calls = self.host.faulty.calls
        answer = self.store.bind("name", self.program, operation)("key", *args)
        touched = self.host.faulty.calls > calls and not self.host.faulty.down
        return answer, touched, touched and not self.host.faulty.loses_replies

    def ask(self, operation, *args):
        """An operation that goes to whichever side is in charge; its answer, the model's, and the side."""
        answer, touched, believed = self.call(operation, *args)
        modelled = self.plain("primary", operation, *args) if touched else None
        if believed:
            return answer, modelled, "primary"
        return answer, self.plain("local", operation, *args), "local"

    def check(self):
        assert states(self.host.faulty.inner) == states(self.primary)
        assert states(self.store._whole.outage.local) == states(self.local)


def states(store):
    # A table is made by binding, also where nothing is stored; sweeping depends on the number of calls.
    return {
        (name, table.program): (dict(table.states), dict(table.ends))
        for name, table in store._records.tables()
        if table.ends
    }


def meddle(twin, fault, seconds):
    if fault == "recover":
        twin.host.recover()
    elif fault != "none":
        setattr(twin.host.faulty, fault, True)
    twin.host.clock.advance(seconds)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["none", "none", "none", "down", "loses_replies", "recover"]),
        st.sampled_from([0, 0, 0.01, 0.3, 2]),
        st.sampled_from(["take", "take", "back", "settle", "other"]),
        st.integers(1, 3),
        st.integers(0, 30),
    ),
    min_size=4,
    max_size=30,
)


@pytest.mark.parametrize("queue", QUEUES.values(), ids=QUEUES)
@settings(max_examples=30)
@given(steps=STEPS)
def test_slots_are_moved_where_they_were_taken(queue, steps):
    twin = Twin(queue)
    slots = []
    for fault, seconds, act, number, pick in steps:
        meddle(twin, fault, seconds)
        nonce = pick % 2
        if act == "other" or (act != "take" and not slots):
            if number == 1:
                answer, modelled, side = twin.ask(CONFIRM)
                shown = answer if side == "primary" or answer[0] == UNKNOWN else (-2 - answer[0], *answer[1:])
                assert shown == modelled
            elif number == 2:
                answer, modelled, _ = twin.ask(HOLD if pick % 3 else MARK, 200_000, nonce)
                assert answer == modelled
            else:
                answer, modelled, _ = twin.ask(RESUME, 1_000)
                assert answer == modelled
        elif act == "take":
            cost = min(number, twin.part.max_cost)
            answer, modelled, side = twin.ask(RESERVE, (cost, 3_000_000, nonce))
            assert answer[:4] == tuple(modelled)[:4]
            if answer[0]:
                assert (answer[6] < -1) == (side == "local")
                slots.append((side, pickle.loads(pickle.dumps(answer)), modelled))
        else:
            side, given, plain = slots[pick % len(slots)]
            grant, modelled = as_grant(given), as_grant(plain)
            if act == "back":
                args, model_args = (grant,), (modelled,)
            else:
                args, model_args = ((grant, number - 1, nonce),), ((modelled, number - 1, nonce),)
            operation = CANCEL if act == "back" else SETTLE
            answer, touched, believed = twin.call(operation, *args)
            if side == "local":
                assert not touched
                assert answer == twin.plain("local", operation, *model_args)
            else:
                expected = twin.plain("primary", operation, *model_args) if touched else False
                assert answer == (expected if believed else False)
        twin.check()


def as_grant(granted):
    return Grant(*granted)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@settings(max_examples=30)
@given(steps=STEPS)
def test_charges_are_given_back_where_they_were_made(strategy, steps):
    twin = Twin(strategy)
    charges = []
    for fault, seconds, act, number, pick in steps:
        meddle(twin, fault, seconds)
        if act == "take":
            call = (CHECK, min(number, twin.part.max_cost))
            answer, modelled, side = twin.ask(*call)
            assert bare(answer) == bare(modelled)
            if answer:
                charges.append((side, call[1], answer.receipt, modelled.receipt))
        elif act == "back" and charges:
            side, cost, given, plain = charges[pick % len(charges)]
            answer, touched, believed = twin.call(REFUND, min(cost, number), given)
            if side == "local":
                assert not touched
                modelled = twin.plain("local", REFUND, min(cost, number), plain)
            else:
                modelled = twin.plain("primary", REFUND, min(cost, number), plain) if touched else None
                modelled = modelled if believed else twin.plain("local", PEEK)
            assert bare(answer) == bare(modelled)
        elif act == SETTLE and charges:
            _, _, given, plain = charges[pick % len(charges)]
            answer, touched, believed = twin.call(DEBIT, number, given)
            expected = twin.plain("primary", DEBIT, number, plain) if touched else None
            modelled = expected if believed else twin.plain("local", DEBIT, number, plain)
            assert bare(answer) == bare(modelled)
        else:
            answer, modelled, _ = twin.ask(PEEK)
            assert bare(answer) == bare(modelled)
        twin.check()


def bare(decision):
    return decision._replace(receipt=None)


@pytest.mark.parametrize("mode", MODES)
def test_a_slot_of_another_process_moves_nothing_here(mode):
    here, there = Host(), Host()
    shapers = [
        Shaper("1/s", store=here.worker(mode), name="shaper"),
        Shaper("1/s", store=there.worker("local"), name="shaper"),
    ]
    there.faulty.down = True
    foreign = shapers[1].reserve()
    mine = shapers[0].reserve()
    before = states(here.faulty.inner)
    assert mine
    assert not run(shapers[0].core.give_back, foreign)
    assert not shapers[0].settle(foreign, 0)
    assert states(here.faulty.inner) == before
    here.faulty.down = True
    assert not run(shapers[0].core.give_back, foreign)


def test_a_local_slot_moves_nothing_on_a_plain_store_either():
    """The grant goes to a process that uses the store itself."""
    host = Host()
    shaper = Shaper("1/s", store=host.worker("local"), name="shaper")
    plain = Shaper("1/s", store=host.faulty, name="shaper")
    plain.reserve()
    plain.reserve()
    host.faulty.down = True
    foreign = shaper.reserve()
    assert foreign
    host.faulty.mend()
    before = states(host.faulty.inner)
    assert not run(plain.core.give_back, foreign)
    assert not plain.settle(foreign, 0)
    assert not plain.settle(foreign, 5)
    assert states(host.faulty.inner) == before


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_local_receipt_mints_nothing_on_a_plain_store_either(strategy):
    host = Host()
    gate = Gate(strategy, store=host.worker("local"), name="gate")
    plain = Gate(strategy, store=host.faulty, name="gate")
    plain.check()
    host.faulty.down = True
    foreign = gate.check()
    assert foreign
    host.faulty.mend()
    before = plain.peek()
    assert plain.refund("default", foreign) == before == plain.peek()


@pytest.mark.parametrize("mode", ["open", "local"])
def test_a_policy_settles_across_the_switch_in_both_directions(mode):
    host = Host()
    policy = Policy("10/min", burst=10, store=host.worker(mode), name="api")
    with policy.admit(cost=2) as before:
        pass
    host.faulty.down = True
    assert not before.settle(9)
    with policy.admit(cost=2) as meanwhile:
        pass
    assert meanwhile.settle(1) == (mode == "local")
    host.recover()
    state = states(host.faulty.inner)
    assert meanwhile.settle(5) == (mode == "local")
    assert states(host.faulty.inner) == state
    assert before.settle(1)
    assert states(host.faulty.inner) != state


@pytest.mark.parametrize(
    "strategy", [FixedWindow("10/day"), Quota("10/day"), all_of(a=FixedWindow("10/day"), b=Quota("10/day"))]
)
def test_a_decision_that_charged_neither_side_gives_back_nothing(strategy):
    host = Host()
    gate = Gate(strategy, store=host.worker("open"), name="gate")
    gate.check()
    host.faulty.down = True
    free = gate.check()
    host.recover()
    assert gate.refund("default", free).remaining == gate.peek().remaining == 9


def test_a_lost_reply_costs_one_slot_and_never_two():
    host = Host()
    shaper = Shaper("1/s", store=host.worker("local", share=1), name="shaper")
    host.faulty.loses_replies = True
    slot = shaper.reserve()
    assert (slot.delay, slot.cancel(), slot.cancel()) == (0.0, True, False)
    host.faulty.mend()
    host.clock.advance(0.25)
    assert shaper.reserve().delay == 0.75


def test_generations_of_the_same_number_on_both_sides_are_distinguished():
    """The reply is lost: both sides have given a slot for one and the same question."""
    queue = LeakyQueue(parse_rates("1/s"), 1, "smooth", ())
    host = Host(ManualClock(1_000.0))
    store = host.worker("local", share=1)
    reserve, cancel = (store.bind("name", queue, operation) for operation in (RESERVE, CANCEL))
    host.faulty.loses_replies = True
    first = as_grant(reserve("key", (1, None, 7)))
    second = as_grant(reserve("key", (1, None, 8)))
    host.recover()
    third = as_grant(reserve("key", (1, None, 9)))
    assert (first.generation, second.generation, third.generation) == (-9, -9, 7)
    host.clock.set(1_000.0)
    before = states(host.faulty.inner)
    assert cancel("key", second)
    assert states(host.faulty.inner) == before
