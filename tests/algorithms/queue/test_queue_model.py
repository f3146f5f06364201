"""The shaper against the model, step by step, and the history checker at the end of each run."""

from copy import deepcopy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shapekit import ManualClock, Rate, Shaper
from shapekit.testing import check_pace

from .follower import confirmed, undone
from .histories import check_spacing
from .model import Model

SECOND = 1_000_000
START_S = 1_000_000_000
RATES = ("10/s", "1/s", "7/s", "3/min", "99_991/s", "1 per 1000 s")
costs = st.one_of(st.just(1), st.integers(1, 8))


class ShaperAgainstModel(RuleBasedStateMachine):
    """Every answer must be the model's: accepted, delay, the answer to a confirmation and to a cancel."""

    @initialize(rate=st.sampled_from(RATES), burst=st.sampled_from([1, 1, 2, 5]))
    def begin(self, rate, burst):
        self.rate, self.burst = Rate.parse(rate), burst
        self.clock = ManualClock(START_S)
        self.shaper = Shaper(rate, burst=burst, clock=self.clock)
        self.model = Model(self.rate.limit, self.rate.period_us, burst, self.clock.now_us())
        self.pairs = []
        self.gone = []

    def tick(self, by):
        self.clock.advance(by / SECOND)
        self.model.advance(by)
        assert self.clock.now_us() == self.model.now

    def waiting(self):
        return [pair for pair in self.pairs if self.model.has_place(pair[1]) and pair[1].left_at is None]

    def unsettled(self):
        return [pair for pair in self.pairs if pair[1].left_at is not None and pair[1].settled is None]

    def steps(self, quarters):
        return max(1, int(self.model.interval * quarters / 4))

    @rule(cost=costs, bound=st.integers(0, 40))
    def reserve_within(self, cost, bound):
        self.ask(cost, bound and self.steps(bound))

    @rule(costs_of_calls=st.lists(costs, min_size=1, max_size=4))
    def reserve(self, costs_of_calls):
        for cost in costs_of_calls:
            self.ask(cost, None)

    def ask(self, cost, max_wait):
        slot = self.shaper.reserve(cost=cost, max_wait=None if max_wait is None else max_wait / SECOND)
        call, wait = self.model.reserve(cost, max_wait)
        assert (slot.accepted, slot.grant.wait_us) == (call is not None, wait)
        assert slot.delay == wait / SECOND
        assert slot.grant.departs_at_us == self.model.now + wait
        if call is None:
            assert slot.cancel() is False
        else:
            self.pairs.append((slot, call))

    @rule(cost=costs)
    def ask_and_go_away(self, cost):
        """A caller that does not stay for the answer."""
        slot, (call, wait) = self.shaper.reserve(cost=cost), self.model.reserve(cost, None)
        assert slot.grant.wait_us == wait
        self.gone.append((slot, call))

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def slots_of_absent_callers_are_given_back(self, data):
        """Soon or late, and in any order."""
        slot, call = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
        assert undone(self.shaper, slot) == self.model.undo(call)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def cancel(self, data):
        """Any call: a waiting one, one that has left or was cancelled before, one from before a reset."""
        slot, call = data.draw(st.sampled_from(self.pairs))
        if call.settled is None:
            assert slot.cancel() == self.model.cancel(call)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def cancel_a_waiting_call(self, data):
        slot, call = data.draw(st.sampled_from(self.waiting()))
        assert slot.cancel() == self.model.cancel(call)

    @precondition(lambda self: self.waiting())
    @rule(count=st.integers(1, 4))
    def cancel_the_last(self, count):
        for slot, call in sorted(self.waiting(), key=lambda pair: -pair[1].place.start)[:count]:
            assert slot.cancel() == self.model.cancel(call)

    @precondition(lambda self: self.unsettled())
    @rule(data=st.data(), actual=st.integers(0, 8))
    def settle(self, data, actual):
        """Once, and only a call that has left: others have no truth to settle yet."""
        slot, call = data.draw(st.sampled_from(self.unsettled()))
        settled = self.shaper.settle(slot, actual)
        assert settled == self.model.settle(call, actual)

    @rule(quarters=st.integers(1, 80))
    def hold(self, quarters):
        # Which calls leave and which are held in one and the same microsecond is undefined.
        self.tick(1)
        length = self.steps(quarters)
        assert self.shaper.hold(length / SECOND) == self.model.hold(length) / SECOND

    @rule()
    def resume(self):
        assert self.shaper.resume() == self.model.resume() / SECOND

    @rule(quarters=st.integers(0, 30), beside=st.integers(0, 2))
    def advance(self, quarters, beside):
        self.tick(int(self.model.interval * quarters / 4) + beside)

    @precondition(lambda self: any(call.left_at is None and not call.cancelled for _, call in self.pairs))
    @rule(data=st.data(), early=st.integers(0, 1))
    def advance_to_a_departure(self, data, early):
        due = data.draw(st.sampled_from([call.place.due for _, call in self.pairs]))
        self.tick(max(0, due - early - self.model.now))

    @precondition(lambda self: self.pairs)
    @rule()
    def reset(self):
        self.shaper.reset()
        self.model.reset()

    @rule(calls=st.integers(1, 12))
    def forecast(self, calls):
        seen = self.shaper.forecast(calls)
        imagined = deepcopy(self.model)
        waits = [imagined.reserve(1, None)[1] for _ in range(calls)]
        assert seen == (waits[0] / SECOND, max(waits) / SECOND)

    @invariant()
    def confirmations_agree(self):
        for slot, call in getattr(self, "pairs", ()):
            if call.life == self.model.life:
                wait, held = confirmed(self.shaper, slot)
                assert held == (self.model.until > self.model.now)
                if self.model.has_place(call) and call.settled != 0:
                    assert wait == self.model.wait(call)

    def teardown(self):
        if not getattr(self, "pairs", ()):
            return
        for slot, call in self.gone:
            assert undone(self.shaper, slot) == self.model.undo(call)
        self.tick(10**13)
        whole = self.rate.period_us % self.rate.limit == 0
        for life in range(self.model.life + 1):
            departures = self.model.departures(life)
            check_spacing(departures, self.rate.limit, self.rate.period_us, self.burst)
            if whole and departures:
                largest = max(self.burst, *(cost for _, cost in departures))
                check_pace([(at / SECOND, cost) for at, cost in departures], self.rate, largest)


ShaperAgainstModel.TestCase.settings = settings(
    max_examples=400,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestShaperAgainstModel = ShaperAgainstModel.TestCase
