"""Several rates, gates and quotas: departures obey every limit, and no call overtakes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shapekit import GCRA, FixedWindow, Quota, Rate, SlidingWindow
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.wire import CANCEL

from .follower import SECOND, Follower, undone
from .histories import check_periods, check_spacing
from .setups import ALIGNED, ALWAYS


@pytest.fixture(scope="module", autouse=True)
def short_logs():
    """A log moves its entries from one part to the other every third call instead of every 64th."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shapekit.algorithms.sliding_log._RECENT", 3)
        yield


class Constrained(RuleBasedStateMachine):
    """The law: departures obey every limit; a call that takes no place of another leaves after all others."""

    setups = ALIGNED

    @initialize(data=st.data())
    def begin(self, data):
        args, options, self.laws = self.setups[data.draw(st.sampled_from(sorted(self.setups)))]
        self.follower = Follower(*args, **options)
        self.free = []
        self.gone = []

    @rule(cost=st.one_of(st.just(1), st.integers(1, 4)), max_wait=st.one_of(st.none(), st.integers(0, 60)))
    def reserve(self, cost, max_wait):
        max_wait = None if max_wait is None else max_wait * SECOND // 4
        ahead = [call.due for call in self.follower.calls if not call.cancelled]
        ahead += [slot.grant.due_us for slot in self.gone]
        call = self.follower.reserve(cost, max_wait)
        if call is None:
            return
        assert max_wait is None or call.slot.grant.wait_us <= max_wait
        if not self.takes_free_place(call.due, cost):
            assert call.due >= max(ahead, default=0)

    def takes_free_place(self, due, cost):
        """Whether a place was given back at this instant. Places that are too small for the call stay free:
        it has other room, which begins there as well.
        """
        here = [place for place in self.free if place[0] == due]
        if sum(size for _, size in here) >= cost:
            self.free = [place for place in self.free if place[0] != due]
            if (left := sum(size for _, size in here) - cost) > 0:
                self.free.append((due, left))
        return bool(here)

    @rule(count=st.integers(2, 6))
    def reserve_several(self, count):
        for _ in range(count):
            self.reserve(1, 40)

    @rule(cost=st.one_of(st.just(1), st.integers(1, 4)))
    def ask_and_go_away(self, cost):
        """A caller that does not stay for the answer."""
        if slot := self.follower.shaper.reserve(cost=cost, max_wait=15):
            self.gone.append(slot)
            self.takes_free_place(slot.grant.due_us, cost)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def slots_of_absent_callers_are_given_back(self, data):
        """Soon or late, and in any order."""
        slot = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
        if undone(self.follower.shaper, slot) == CANCEL:
            self.free.append((slot.grant.due_us, slot.grant.cost))

    @precondition(lambda self: self.follower.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        call = data.draw(st.sampled_from(self.follower.waiting))
        assert self.follower.cancel(call)
        self.free.append((call.due, call.cost))

    @precondition(lambda self: self.follower.waiting)
    @rule(count=st.integers(1, 4))
    def cancel_the_last(self, count):
        for call in reversed(sorted(self.follower.waiting, key=lambda call: call.due)[-count:]):
            assert self.follower.cancel(call)
            self.free.append((call.due, call.cost))

    @rule(span=st.one_of(st.integers(0, 60).map(lambda n: n * SECOND // 20), st.integers(0, 3 * SECOND)))
    def advance(self, span):
        self.follower.advance(span)

    def teardown(self):
        if hasattr(self, "follower"):
            self.follower.finish()
            for law in self.laws:
                law(self.follower.departures)


class ConstrainedAndHeld(Constrained):
    """The same, with holds that are placed, prolonged and lifted."""

    setups = ALWAYS

    @rule(length=st.integers(1, 40))
    def hold(self, length):
        self.follower.hold(length * SECOND // 10)

    @rule()
    def resume(self):
        self.follower.resume()


def test_an_aligned_window_is_aligned_in_real_time_after_a_hold_too():
    """The server's windows do not stand still while a key is held."""
    follower = Follower("100/s", gates=(FixedWindow(4, "1s"),))
    follower.hold(SECOND // 2)
    follower.advance(SECOND + 400_000)
    for _ in range(12):
        follower.reserve()
    follower.finish()
    check_periods(follower.departures, 4, SECOND)


@pytest.mark.parametrize("gate", [FixedWindow(4, "1s"), Quota("4/fixed:1s")])
def test_a_call_that_waits_through_a_hold_counts_in_the_window_in_which_it_leaves(gate):
    follower = Follower("100/s", gates=(gate,))
    first = [follower.reserve() for _ in range(4)]
    follower.advance(5_000)
    follower.hold(SECOND)
    held = [call for call in first if call in follower.waiting]
    for _ in range(9):
        assert follower.reserve(1, 60 * SECOND)
    follower.finish()
    start = first[0].left_at
    used = [sum((at - start) // SECOND == window for at, _ in follower.departures) for window in range(4)]
    assert len(held) == 3
    assert used == [1, 4, 4, 4]


@pytest.mark.parametrize(
    "gate", [FixedWindow(4, "1s"), FixedWindow(4, "1m"), Quota("4/fixed:1s")], ids=["1s", "1m", "quota"]
)
@given(before=st.integers(0, 9), during=st.integers(0, 9), hold_s=st.integers(1, 100_000))
def test_a_call_after_a_hold_that_ended_early_leaves_next_to_the_waiting_ones(gate, before, during, hold_s):
    """A slot granted during the hold counts where it is now, and delays no other call for longer."""
    follower = Follower("100/s", gates=(gate,))
    for _ in range(before):
        follower.reserve(1, 3_600 * SECOND)
    follower.hold(hold_s * SECOND)
    for _ in range(during):
        follower.reserve(1, 2 * hold_s * SECOND + 3_600 * SECOND)
    follower.resume()
    last = max([follower.wait(call) for call in follower.waiting], default=0)
    window = 60 * SECOND if gate == FixedWindow(4, "1m") else SECOND
    assert follower.reserve(1, 2**50).slot.delay * SECOND <= last + SECOND + window


thorough = settings(
    max_examples=250,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Constrained.TestCase.settings = ConstrainedAndHeld.TestCase.settings = thorough
TestConstrained = pytest.mark.long(Constrained.TestCase)
TestConstrainedAndHeld = pytest.mark.long(ConstrainedAndHeld.TestCase)


def test_the_receipts_of_a_departure_follow_from_how_far_ahead_time_was():
    """Rolling windows go by the queue's time, aligned ones by real time, quotas by the date."""
    gates = (SlidingWindow("50/min"), FixedWindow("50/min"), Quota("50/day"))
    constraints = LeakyQueue((Rate.parse("10/s"),), 1, "smooth", gates).constraints
    now, due, shift, skew = 10**15, 10**15 + 5 * SECOND, 7 * SECOND, 3_600 * SECOND
    ahead = (shift, skew, now + shift)
    states, receipts, _ = constraints.charge((None,) * 3, now, due, 1, ahead)
    assert receipts == (due, due + shift, due + shift + skew)
    offsets = constraints.offsets(due, receipts)
    assert constraints.receipts_at(due, offsets) == receipts
    after = constraints.refund(states, due, 1, receipts, ahead)
    assert constraints.refund_many(states, [due], offsets, ahead) == after


def test_calls_after_many_cancelled_ones_keep_the_gate_that_the_first_one_is_behind():
    follower = Follower("7/s", gates=(GCRA("3 per 1.1 s", burst=4),))
    calls = [follower.reserve() for _ in range(3)]
    assert follower.cancel(calls[2])
    calls += [follower.reserve() for _ in range(2)]
    for gone in (calls[1], calls[3], calls[4]):
        assert follower.cancel(gone)
    for _ in range(5):
        follower.reserve()
    follower.finish()
    check_spacing(follower.departures, 3, 1_100_000, 4)
