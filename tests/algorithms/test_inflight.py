"""What permits do, against a model that counts them one by one: workers that come, go, crash and renew."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shapekit import Concurrency, ConfigError
from shapekit.algorithms import inflight as concurrency_module
from shapekit.algorithms.inflight import ENTER, KEEP, LEAVE, WATCH, count, numbers_of
from shapekit.rate import SECOND_US
from shapekit.stores.encoding import describe, revived

from .inflight_model import Model

OWNERS = (1, 2, 3)
LEASE_US = 10 * SECOND_US
MOST_WAITING = 5

owners = st.sampled_from(OWNERS)
numbers = st.integers(1, 6)


def all_calls(runs):
    return [(owner, number) for owner, first, last in runs for number in range(first, last + 1)]


class Workers(RuleBasedStateMachine):
    """Three workers at one key. A crash is no rule: it is a worker that does nothing from then on."""

    @initialize(limit=st.integers(1, 3))
    def open(self, limit):
        self.program = Concurrency(limit, "10s")
        self.model = Model(limit, LEASE_US, MOST_WAITING)
        self.now = 1_000 * SECOND_US
        self.state = None
        self.kept_until = 0

    def ask(self, operation, *args):
        before = self.state
        after, answer, ttl_us, persist = operation.step(self.program)(before, self.now, *args)
        if persist:
            self.state = after
            self.kept_until = self.now + ttl_us
        else:
            assert after is before
            assert ttl_us == 0
        return answer

    @rule(owner=owners, number=numbers, may_wait=st.integers(0, 1))
    def enter(self, owner, number, may_wait):
        place, came_with = self.ask(ENTER, owner, number, may_wait)
        assert place == self.model.enter(self.now, owner, number, may_wait)
        assert (came_with == 0) == (place == -1)

    @rule(owner=owners, number=numbers)
    def leave(self, owner, number):
        self.check_answer(owner, self.ask(LEAVE, owner, number), self.model.leave(self.now, owner, number))

    @rule(owner=owners, upto=st.integers(0, 7), alive=st.sets(numbers))
    def keep(self, owner, upto, alive):
        answer = self.ask(KEEP, owner, upto, tuple(sorted(alive)))
        self.check_answer(owner, answer, self.model.keep(self.now, owner, upto, alive))

    @rule(owner=owners)
    def watch(self, owner):
        self.check_answer(owner, self.ask(WATCH, owner), self.model.watch(self.now, owner))

    @rule(move_us=st.sampled_from((1, LEASE_US // 3, LEASE_US - 1, LEASE_US, LEASE_US + 1, -1, -LEASE_US)))
    def time_moves(self, move_us):
        self.now += move_us

    @precondition(lambda self: self.state is not None and self.now >= self.kept_until)
    @rule()
    def the_store_forgets(self):
        # What is kept for as long as its life can be dropped then: it is no different from a cold key.
        assert self.program.standing(self.state, self.now) == (0, 0)
        self.state = None
        self.model = Model(self.program.limit, LEASE_US, MOST_WAITING)

    def check_answer(self, owner, answer, permitted):
        came_with, *sitting = answer
        assert set(sitting) == permitted
        assert len(sitting) == len(permitted)
        assert (came_with > 0) == (owner in self.model.until)

    @invariant()
    def they_agree(self):
        if self.state is None:
            assert self.model.calls == []
            return
        _, owners_in_state, permits, line = self.state
        assert all_calls(line) == [tuple(call[:2]) for call in self.model.calls if not call[2]]
        assert sorted(all_calls(permits)) == sorted(tuple(call[:2]) for call in self.model.calls if call[2])
        assert {owner: until for owner, until, _ in owners_in_state} == self.model.until
        assert count(permits) <= self.program.limit
        assert {owner for owner, _, _ in owners_in_state} == {run[0] for run in (*permits, *line)}
        # No call waits while a permit is free.
        assert not line or count(permits) == self.program.limit


def test_workers_agree_with_the_model(monkeypatch):
    monkeypatch.setattr(concurrency_module, "MOST_WAITING", MOST_WAITING)
    thorough = settings(max_examples=150, stateful_step_count=30, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Workers, settings=thorough)


def room_of(*calls, limit=2, now=0):
    program, state = Concurrency(limit, "10s"), None
    for owner, number in calls:
        state = program.enter(state, now, owner, number, 1)[0]
    return program, state


def test_permits_go_to_waiting_calls_in_order_of_arrival():
    program, state = room_of((1, 1), (1, 2), (2, 1), (3, 1), (2, 2))
    order = []
    for owner, number in ((1, 2), (1, 1), (2, 1), (3, 1)):
        before = {(one, n) for one in OWNERS for n in numbers_of(state[2], one)}
        state = program.leave(state, 0, owner, number)[0]
        order += {(one, n) for one in OWNERS for n in numbers_of(state[2], one)} - before
    assert order == [(2, 1), (3, 1), (2, 2)]


def test_a_crashed_owner_has_its_permits_until_its_lease_is_over_and_not_a_microsecond_longer():
    program, state = room_of((1, 1), (1, 2), (2, 1))
    early = program.watch(state, LEASE_US - 1, 2)
    assert early[1] == (1,)
    assert not early[3]
    # The owner of the line came at the same instant, and has renewed its lease since.
    state = program.keep(state, LEASE_US // 2, 2, 1, (1,))[0]
    assert program.watch(state, LEASE_US - 1, 2)[1] == (1,)
    assert program.watch(state, LEASE_US, 2)[1] == (1, 1)


def test_a_state_lives_until_the_last_lease_in_it_ends():
    program, state = room_of((1, 1), (2, 1))
    state = program.keep(state, LEASE_US // 2, 2, 1, (1,))[0]
    lives = [program.life(state, now) for now in (LEASE_US // 2, LEASE_US, 2 * LEASE_US)]
    assert lives == [LEASE_US, LEASE_US // 2, 0]


def test_a_permit_lasts_when_time_goes_back():
    program, state = room_of((1, 1), limit=1)
    state = program.enter(state, LEASE_US, 2, 1, 0)[0]
    assert program.standing(state, 0) == (1, 0)
    # The first owner's lease ended at the later time; at the earlier one it asks again, and has nothing.
    assert program.enter(state, 0, 1, 1, 0)[1] == (-1, 0)
    # And what is taken at an earlier time lives as long as if it were taken at the latest one.
    assert program.watch(state, 2 * LEASE_US - 1, 2)[1] == (1, 1)


def test_a_changed_limit_keeps_the_calls_in_flight():
    _, state = room_of((1, 1), (1, 2), (1, 3), limit=2)
    wider, narrower = Concurrency(3, "1m"), Concurrency(1, "1m")
    assert wider.watch(wider.adopt(state, None, 0), 0, 1)[1] == (1, 1, 2, 3)
    assert narrower.standing(narrower.adopt(state, None, 0), 0) == (2, 1)
    after = narrower.leave(state, 0, 1, 1)[0]
    assert narrower.standing(after, 0) == (1, 1)
    # A lease that was given goes on as long as it was given for.
    shorter = Concurrency(2, "1s")
    renewed = shorter.keep(state, SECOND_US, 1, 3, (1, 2, 3))[0] or state
    assert shorter.standing(renewed, LEASE_US - 1) == (2, 1)


@given(st.lists(st.tuples(owners, st.integers(1, 40)), max_size=60))
def test_a_state_with_many_in_a_row_is_small(calls):
    program, state = Concurrency(1), None
    for number in range(1, 1_001):
        state = program.enter(state, 0, 7, number, 1)[0]
    assert state[3] == ((7, 2, 1_000),)
    for _, number in calls:
        state = program.leave(state, 0, 7, number)[0] or state
    assert len(state[3]) <= 1 + len({number for _, number in calls})


def test_the_number_of_waiting_calls_is_bounded(monkeypatch):
    monkeypatch.setattr(concurrency_module, "MOST_WAITING", 3)
    program, state = room_of(*((1, number) for number in range(1, 5)), limit=1)
    assert program.enter(state, 0, 2, 1, 1) == (state, (-1, 0), 0, False)
    assert program.enter(state, 0, 1, 4, 1)[1][0] == 3, "a call that waits already still waits"


def test_a_share_is_one_permit_at_least():
    assert Concurrency(10, "5s").scaled(1 / 4) == Concurrency(2, "5s")
    assert Concurrency(3).scaled(1 / 100).limit == 1


def test_its_description_is_frozen():
    # Files and servers hold it: another form would be another program to them.
    limit = Concurrency(20, "30s")
    assert describe(limit) == '["concurrency",20,30000000]'
    assert revived(describe(limit)) == limit
    for wrong in ('["concurrency",0,30000000]', '["concurrency",20,1]', '["concurrency",20]'):
        with pytest.raises(ConfigError):
            revived(wrong)
