"""Holds of a line under windows: a call that waits longer than the hold lasts does not wait for both.

Of any story: no call leaves in a hold, calls leave in their order, no window sees more than its limit, a hold
lets no call leave sooner and its end none later, and a forecast is right.
"""

import random
from bisect import bisect_left
from collections import Counter
from itertools import pairwise

import pytest

from shapekit import (
    GCRA,
    FixedWindow,
    ManualClock,
    Policy,
    Quota,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    all_of,
)
from shapekit.algorithms.base import Shift
from shapekit.algorithms.gcra import TokenBucket
from shapekit.algorithms.queue.queue import SOON_US
from shapekit.algorithms.queue.slots import MOST_PAUSES, Grant
from shapekit.testing.timelines import queue

from .histories import check_periods

S = 1_000_000
START = 1_000 * S
FOREVER = 10**15
LINES = {
    "3/s; 10/min": ({}, [(1, S // 3), (10, 60 * S)]),
    "10/min": ({"pace": "burst"}, [(10, 60 * S)]),
    "5/s; 20/min": ({"burst": 3}, [(20, 60 * S), (3 + 5, S)]),
    "2/s; 7/10s; 12/min": ({}, [(1, S // 2), (7, 10 * S), (12, 60 * S)]),
    "2/s": ({"gates": (SlidingWindow(6, "20s"),)}, [(1, S // 2)]),
    "4/s": ({"gates": (Quota("9/rolling:30s"),)}, [(1, S // 4), (9, 30 * S)]),
}


class Story:
    """One queue, and the calls that wait in it and have left."""

    def __init__(self, rate, seed):
        options, self.windows = LINES[rate]
        self.queue = queue(rate, **options)
        self.rng = random.Random(f"{rate}-{seed}")
        self.state, self.now = None, START
        self.waiting, self.left = [], []

    def instants(self):
        return [max(grant.due_us + self.state[5], self.state[4]) for grant in self.waiting]

    def go_on(self, by_us):
        """Calls that are due on the way leave."""
        self.now += by_us
        if self.state is not None:
            departures = sorted(zip([grant.due_us for grant in self.waiting], self.instants(), strict=True))
            assert [at for _, at in departures] == sorted(at for _, at in departures)
            self.left += [at for _, at in departures if at <= self.now]
            self.waiting = [
                grant for grant, at in zip(self.waiting, self.instants(), strict=True) if at > self.now
            ]

    def reserve(self):
        foreseen = self.queue.outlook(self.state, self.now, 3, 1, 0)
        after, waits = self.state, []
        for _ in range(3):
            after, granted, _, _ = self.queue.reserve(after, self.now, (1, FOREVER, 7))
            waits.append(granted[1])
        assert (waits[0], max(waits)) == foreseen
        self.state, granted, _, _ = self.queue.reserve(self.state, self.now, (1, FOREVER, 7))
        self.waiting.append(Grant(*granted))
        assert self.instants()[-1] == self.now + granted[1]

    def hold(self):
        before = self.instants()
        length = self.rng.choice((S // 2, 3 * S, 10 * S, 30 * S, 70 * S))
        self.state, _, _, _ = self.queue.hold(self.state, self.now, length, 7)
        for at, was in zip(self.instants(), before, strict=True):
            assert at >= max(was, self.state[4])

    def resume(self):
        before = self.instants()
        self.state, _, _, _ = self.queue.resume(self.state, self.now, self.rng.choice((0, S // 4, S)))
        for at, was in zip(self.instants(), before, strict=True):
            assert self.now <= at <= was

    def cancel(self):
        if self.waiting:
            grant = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            self.state, _, _, _ = self.queue.cancel(self.state, self.now, grant)

    def play(self):
        acts = (*[self.reserve] * 6, self.hold, self.hold, self.resume, self.cancel)
        for _ in range(self.rng.randint(20, 80)):
            self.go_on(self.rng.choice((0, 1, S // 3, S, 2 * S, 7 * S, 20 * S, 65 * S)))
            self.rng.choice(acts)()
            self.go_on(0)
        self.go_on(10_000 * S)
        left = sorted(self.left)
        for limit, span in self.windows:
            for index, at in enumerate(left):
                assert bisect_left(left, at + span) - index <= limit, (limit, span, at)


@pytest.mark.parametrize("rate", LINES)
@pytest.mark.parametrize("seed", range(40))
def test_no_window_has_more_calls_and_no_call_waits_twice_whatever_is_held_and_resumed(rate, seed):
    Story(rate, seed).play()


def shaper_of(rate, **options):
    clock = ManualClock()
    return clock, Shaper(rate, clock=clock, **options)


@pytest.mark.parametrize(
    ("rate", "options", "calls", "window"),
    [("15/s; 50/h", {}, 50, 3_600), ("10/min", {"pace": "burst"}, 10, 60)],
)
@pytest.mark.parametrize("waits", [False, True])
def test_a_hold_until_the_end_of_a_window_makes_no_call_wait_for_two(rate, options, calls, window, waits):
    clock, shaper = shaper_of(rate, **options)
    clock.advance(max(shaper.reserve().delay for _ in range(calls)) + 1)
    waiting = shaper.reserve() if waits else None
    length = window - clock.now()
    shaper.hold(length)
    waiting = waiting or shaper.reserve()
    part = window / 10 + 10  # by which a window in ten parts may be too long
    assert length <= shaper.remaining(waiting) <= length + part
    assert shaper.forecast(1).first_in <= length + part + 10


@pytest.mark.parametrize("apart", [0, 0.01])
def test_no_call_that_waits_for_several_windows_waits_longer_for_their_holds(apart):
    """However close the calls of each window are, and after all of them have reserved."""
    clock, shaper = shaper_of("10/min", pace="burst")
    calls = []
    for _ in range(50):
        calls.append(shaper.reserve())
        clock.advance(apart)
    for last in range(9, 49, 10):
        clock.advance(max(0, calls[last].departs_at - clock.now()) + 0.1)
        shaper.hold(calls[last + 1].departs_at - clock.now())
    assert shaper.remaining(calls[-1]) == pytest.approx(calls[-1].departs_at - clock.now())


def test_the_shortest_of_too_many_pauses_is_forgotten():
    clock, shaper = shaper_of("2/min", pace="burst")
    for _ in range(2 * (MOST_PAUSES + 3)):
        last = shaper.reserve()
        clock.advance(0.01)
    clock.advance(1)
    shaper.hold(55)
    assert shaper.remaining(last) == pytest.approx(last.departs_at - clock.now())


def test_the_end_of_a_hold_under_windows_moves_only_calls_that_the_hold_has_moved():
    clock, shaper = shaper_of("1/s; 3/min")
    for _ in range(3):
        shaper.reserve()
    clock.advance(10)
    spent = shaper.reserve()
    assert shaper.remaining(spent) == pytest.approx(50)
    shaper.hold(70)
    assert shaper.remaining(spent) == pytest.approx(70)
    clock.advance(5)
    shaper.resume()
    assert shaper.remaining(spent) == pytest.approx(45)


def test_a_call_that_comes_in_a_hold_leaves_at_its_end_even_if_that_comes_sooner():
    clock, shaper = shaper_of("1/s; 3/min", burst=2)
    shaper.hold(30)
    clock.advance(10)
    delays = [shaper.reserve() for _ in range(3)]
    assert [shaper.remaining(one) for one in delays] == pytest.approx([20, 21, 22])
    shaper.resume()
    assert [shaper.remaining(one) for one in delays] == pytest.approx([0.25, 1.25, 2.25])


def test_a_longer_hold_also_moves_a_call_that_came_in_the_first_one():
    """The call takes a place before one that was given back."""
    clock, shaper = shaper_of("10/min", pace="burst")
    shaper.reserve(cost=8)
    assert shaper.cancel(shaper.reserve(cost=8))
    clock.advance(5)
    shaper.hold(20)
    clock.advance(5)
    waits = shaper.reserve(cost=2)
    shaper.hold(60)
    assert shaper.remaining(waits) == 60
    clock.advance(60)
    assert shaper.reserve(cost=9).delay == pytest.approx(60)


def test_a_quota_that_is_spent_at_the_end_of_a_hold_names_its_own_reset():
    """The reset is not earlier by as much as the refused call would have moved the queue."""
    clock, shaper = shaper_of("1/s", gates=(Quota("2/fixed:100s"),))
    clock.set(10)
    assert [shaper.reserve().delay for _ in range(2)] == [0, 1]
    clock.advance(3)
    shaper.hold(85)
    refused = shaper.reserve()
    assert not refused
    assert refused.decision.reset_at == 100
    assert refused.decision.retry_after == 87


@pytest.mark.parametrize("in_the_hold", ["came", "came and gone", "cost more"])
def test_a_fixed_window_knows_its_departures_also_after_a_hold_that_was_ended(in_the_hold):
    """The hold would have ended in the next window."""
    clock, shaper = shaper_of("10/s", gates=(FixedWindow(5, 1),))
    slots = [shaper.reserve() for _ in range(5)]
    clock.advance(0.5)
    shaper.hold(1)
    if in_the_hold == "cost more":
        assert shaper.settle(slots[-1], 2)
    elif in_the_hold == "came":
        slots.append(shaper.reserve())
    else:
        assert shaper.reserve().cancel()
    shaper.resume()
    slots += [shaper.reserve() for _ in range(12)]
    leaves = [round((clock.now() + shaper.remaining(slot)) * S) for slot in slots[5:]]
    check_periods([*((slot.grant.due_us, 1) for slot in slots[:5]), *((at, 1) for at in leaves)], 5, S)


@pytest.mark.parametrize("gate", [FixedWindow(5, 60), Quota("5/fixed:60s")])
@pytest.mark.parametrize("gives_back", ["two places", "the last", "a settlement"])
def test_calls_that_a_hold_moved_and_its_end_moved_back_take_nothing_from_the_later_window(gives_back, gate):
    """Three calls are counted in the second minute, and then in the first."""
    clock, shaper = shaper_of("1/s", gates=(gate,))
    shaper.hold(70)
    held = [shaper.reserve() for _ in range(3)]
    clock.advance(1)
    shaper.resume()
    others = [] if gives_back == "the last" else [shaper.reserve(max_wait=1_000) for _ in range(7)]
    leaves = [clock.now() + shaper.remaining(slot) for slot in others]
    if gives_back == "a settlement":
        clock.advance(20)
        assert all(shaper.settle(slot, 0) for slot in held)
    else:
        assert all(slot.cancel() for slot in held[:0:-1])
        clock.advance(20)
    leaves += [clock.now() + shaper.reserve(max_wait=1_000).delay for _ in range(12)]
    check_periods([(round(at * S), 1) for at in leaves], 5, 60 * S)


MINUTES = pytest.mark.parametrize("gate", [FixedWindow(10, 60), Quota("10/fixed:60s")])


def leaves(clock, shaper, *slots):
    """In which minute these calls leave, and how many of each."""
    return Counter(int((clock.now() + shaper.remaining(slot)) // 60) for slot in slots)


@MINUTES
@pytest.mark.parametrize("gives_up", [0, 3, 6])
def test_a_call_that_a_hold_moves_to_a_later_window_counts_there(gate, gives_up):
    """A cancelled one gives back there, too."""
    clock, shaper = shaper_of("1/s", gates=(gate,))
    clock.set(30)
    slots = [shaper.reserve() for _ in range(6)]
    shaper.hold(40)
    clock.advance(1)
    for slot in slots[len(slots) - gives_up :]:
        assert slot.cancel()
    stay = slots[: len(slots) - gives_up]
    stay += [shaper.reserve(max_wait=1_000) for _ in range(15)]
    assert leaves(clock, shaper, *stay)[1] == 10


@pytest.mark.parametrize("part", [FixedWindow(10, 60), Quota("10/fixed:60s")])
def test_a_part_of_a_composite_counts_calls_that_a_hold_moves_where_they_leave(part):
    clock, shaper = shaper_of("1/s", gates=(all_of(part, GCRA("100/s")),))
    clock.set(30)
    slots = [shaper.reserve() for _ in range(6)]
    shaper.hold(40)
    slots += [shaper.reserve(max_wait=1_000) for _ in range(15)]
    assert leaves(clock, shaper, *slots) == {1: 10, 2: 10, 3: 1}


@MINUTES
@pytest.mark.parametrize("cost", [1, 2])
@pytest.mark.parametrize("how", ["settled", "passed"])
def test_slots_before_a_hold_take_nothing_from_the_window_to_which_others_were_moved(gate, cost, how):
    clock, shaper = shaper_of("1/s", gates=(gate,))
    clock.set(30)
    slots = [shaper.reserve(cost=units) for units in (1, cost, 1, 1, 1)]
    if how == "passed":
        assert slots[1].cancel()
    clock.set(32.5)
    waiting = [slot for slot in slots[2:] if shaper.remaining(slot) > 0]
    shaper.hold(40)
    if how == "settled":
        assert shaper.settle(slots[1], 0)
    waiting += [shaper.reserve(max_wait=1_000) for _ in range(20)]
    assert leaves(clock, shaper, *waiting)[1] == 10


@MINUTES
@pytest.mark.parametrize("length", [10, 30, 40])
def test_the_end_of_a_hold_returns_what_the_hold_took_from_a_window(gate, length):
    clock, shaper = shaper_of("1/s", gates=(gate,))
    left = [shaper.reserve() for _ in range(3)]
    clock.set(30)
    slots = [shaper.reserve() for _ in range(4)]
    for _ in range(3):
        shaper.hold(length)
        clock.advance(1)
        assert shaper.resume() < 5
    slots += [shaper.reserve(max_wait=1_000) for _ in range(10)]
    assert leaves(clock, shaper, *slots)[0] == 10 - len(left)


@MINUTES
def test_a_window_counts_no_calls_that_are_known_to_leave_in_another(gate):
    """Ten leave in the first second of each minute: a hold moves them within theirs."""
    clock, shaper = shaper_of("10/s", gates=(gate,))
    slots = [shaper.reserve(max_wait=1_000) for _ in range(22)][10:]
    clock.set(30)
    shaper.hold(40)
    slots += [shaper.reserve(max_wait=1_000) for _ in range(12)]
    assert leaves(clock, shaper, *slots) == {1: 10, 2: 10, 3: 4}


@pytest.mark.parametrize("window", [SlidingWindowLog(5, 10), SlidingWindow(5, 10, conservative=True)])
def test_a_window_beside_a_quota_knows_how_many_calls_a_hold_moves_to_the_next_period(window):
    """Two of the twelve that the first minute counts."""
    clock, shaper = shaper_of(None, gates=(window, Quota("20/fixed:60s")))
    for start in (0, 45):
        clock.set(start)
        slots = [shaper.reserve() for _ in range(5)]
    slots = [shaper.reserve(max_wait=1_000) for _ in range(2)]
    clock.set(46)
    shaper.hold(20)
    slots += [shaper.reserve(max_wait=1_000) for _ in range(40)]
    assert leaves(clock, shaper, *slots)[1] == 20


def test_a_spread_quota_continues_from_the_last_call_that_a_hold_moves():
    clock, shaper = shaper_of("10/s", gates=(Quota("6/fixed:60s", spread=True),))
    clock.set(30)
    slots = [shaper.reserve() for _ in range(2)][1:]
    shaper.hold(40)
    slots += [shaper.reserve(max_wait=1_000) for _ in range(4)]
    at = [shaper.remaining(slot) for slot in slots]
    assert min(after - before for before, after in pairwise(at)) > 5


@pytest.mark.parametrize(
    ("then", "seconds"), [(None, {102: 2, 103: 5, 104: 1}), (110.6, {110: 5, 111: 3})], ids=["ended", "over"]
)
def test_extra_cost_settled_in_a_hold_is_charged_to_the_period_of_that_time(then, seconds):
    """It is remembered, though the end of the hold sets time back by more than a period."""
    clock, shaper = shaper_of("100/s", gates=(Quota("5/fixed:1s"), GCRA("100/s")))
    clock.set(100)
    left = shaper.reserve()
    clock.set(100.5)
    shaper.hold(10)
    clock.set(102)
    assert shaper.settle(left, 4)
    if then is None:
        shaper.resume()
    else:
        clock.set(then)
    calls = [shaper.reserve(max_wait=100) for _ in range(8)]
    assert Counter(int(clock.now() + shaper.remaining(slot)) for slot in calls) == seconds


@MINUTES
def test_the_end_of_a_hold_moves_no_call_into_a_window_that_is_spent(gate):
    clock, shaper = shaper_of("1/s", gates=(gate,))
    for _ in range(8):
        shaper.reserve()
    clock.set(20)
    shaper.hold(50)
    waiting = [shaper.reserve(max_wait=1_000) for _ in range(5)]
    assert shaper.resume() == shaper.held() == 40
    waiting += [shaper.reserve(max_wait=1_000) for _ in range(10)]
    assert leaves(clock, shaper, *waiting) == {1: 10, 2: 5}
    assert shaper.remaining(waiting[0]) == 40


def test_a_spent_day_stays_spent_after_a_hold_of_a_month_was_ended():
    """The waiting calls leave in the next days that have room for them."""
    day = 86_400
    clock, shaper = shaper_of("1/s", gates=(Quota("10/day"),))
    for _ in range(8):
        shaper.reserve()
    clock.set(1_000)
    shaper.hold(30 * day)
    waiting = [shaper.reserve(max_wait=40 * day) for _ in range(15)]
    shaper.resume()
    days = Counter(int((clock.now() + shaper.remaining(slot)) // day) for slot in waiting)
    assert days == {1: 10, 2: 5}


def test_extra_cost_settled_in_a_hold_counts_from_then_on():
    """Not from the end of the hold, which may be ended early."""
    clock, shaper = shaper_of("10/s", gates=(Quota("5/fixed:60s"),))
    slots = [shaper.reserve() for _ in range(5)]
    clock.set(1)
    shaper.hold("1h")
    assert shaper.settle(slots[-1], 2)
    shaper.resume()
    assert leaves(clock, shaper, *[shaper.reserve(max_wait=1_000) for _ in range(6)]) == {1: 5, 2: 1}
    waiting = shaper.reserve(max_wait=1_000)
    shaper.hold("1h")
    assert shaper.settle(slots[0], 2)
    shaper.resume()
    assert leaves(clock, shaper, waiting, *[shaper.reserve(max_wait=1_000) for _ in range(6)]) == {2: 3, 3: 4}


def test_extra_cost_settled_in_a_hold_leaves_its_window_in_time():
    """The hold had moved a call, cancelled since, to when the window has room again."""
    clock, shaper = shaper_of("1000/s", gates=(SlidingWindowLog(5, 10),))
    slots = [shaper.reserve() for _ in range(5)]
    clock.advance(0.5)
    shaper.hold("1h")
    assert shaper.reserve().cancel()
    assert shaper.settle(slots[-1], 2)
    shaper.resume()
    assert max(shaper.remaining(shaper.reserve()) for _ in range(5)) < 11


@MINUTES
@pytest.mark.parametrize(("rate", "late_by"), [("50/min", 950_000), ("30/min", 1_600_000)])
def test_calls_that_a_late_one_moves_to_the_next_window_count_there(gate, rate, late_by):
    """A late call moves those behind it by its own lateness, or if it is later, by its slot."""
    line_up = queue(rate, gates=(gate,))
    line, grants = None, []
    for _ in range(5):
        line, granted, *_ = line_up.reserve(line, 1_020 * S - 4 * line_up.slot_us - 1, (1, FOREVER, 7))
        grants.append(Grant(*granted))
    now = grants[-2].due_us + late_by
    line, _ = late(line, line_up, now, grants[-2])
    departs = [max(grants[-1].due_us + line[5], line[4])]
    assert grants[-1].due_us // (60 * S) < departs[0] // (60 * S)
    for _ in range(12):
        line, granted, *_ = line_up.reserve(line, now, (1, FOREVER, 7))
        departs.append(Grant(*granted).departs_at_us)
    assert Counter(at // (60 * S) for at in departs)[departs[0] // (60 * S)] == 10


@pytest.mark.parametrize("is_ended_first", [False, True])
@pytest.mark.parametrize("conservative", [False, True])
def test_a_window_knows_its_departures_also_after_a_hold_that_was_ended(conservative, is_ended_first):
    clock, shaper = shaper_of("1000/s", gates=(SlidingWindow(5, 10, conservative=conservative),))
    slots = [shaper.reserve() for _ in range(5)]
    clock.advance(0.5)
    shaper.hold("1h")
    waiting = shaper.reserve()
    if is_ended_first:
        shaper.resume()
        assert waiting.cancel()
    else:
        assert waiting.cancel()
        shaper.resume()
    assert all(shaper.remaining(shaper.reserve()) >= 9.5 for _ in slots)


def late(line, queue, now, grant):
    """The queue after a call that missed its slot, and when that call leaves."""
    line, (answer,), _, _ = queue.late(line, now, [(grant.generation, grant.due_us, grant.cost, 9)])
    return line, answer[0]


def test_the_end_of_a_hold_takes_back_nothing_of_an_earlier_one():
    """Also where the key stands still for a late call when the hold comes."""
    line_up = queue("1/s; 10/min")
    line = line_up.hold(None, START, 30 * S, 7)[0]
    line = line_up.reserve(line, START + S, (1, None, 7))[0]
    now = START + 200 * S
    for _ in range(10):
        line, granted, _, _ = line_up.reserve(line, now, (1, None, 7))
    line, _ = late(line, line_up, now + 12 * S, Grant(*granted))
    line = line_up.hold(line, now + 12 * S + 1, 120 * S, 7)[0]
    line = line_up.resume(line, now + 13 * S, 0)[0]
    granted = line_up.reserve(line, now + 13 * S, (1, None, 7))[1]
    assert Grant(*granted).departs_at_us >= now + 60 * S


def test_a_call_that_missed_its_slot_before_a_hold_saves_no_burst_up_in_it():
    line_up = queue("1/s; 20/min", burst=3)
    line = None
    for _ in range(4):
        line, granted, _, _ = line_up.reserve(line, START, (1, None, 7))
    line = line_up.hold(line, START + 5 * S, 30 * S, 7)[0]
    line, leaves_at = late(line, line_up, START + 35 * S - SOON_US, Grant(*granted))
    departures = [leaves_at]
    for _ in range(3):
        line, granted, _, _ = line_up.reserve(line, START + 35 * S - 1, (1, None, 7))
        departures.append(Grant(*granted).departs_at_us)
    assert departures == [START + second * S for second in (35, 36, 37, 38)]


def test_a_call_that_missed_its_slot_before_a_hold_counts_when_it_leaves():
    line_up = queue("10/min", pace="burst")
    line, granted, _, _ = line_up.reserve(None, START, (9, None, 7))
    line = line_up.hold(line, START + 1, S, 7)[0]
    line, leaves_at = late(line, line_up, START + 1 + S - SOON_US, Grant(*granted))
    assert leaves_at == START + S + 1
    granted = line_up.reserve(line, START + 2 * S, (2, None, 7))[1]
    assert Grant(*granted).departs_at_us == leaves_at + 60 * S


def test_a_limit_that_saves_up_a_burst_stands_still_in_a_hold():
    """Otherwise as many calls as a bucket holds would leave together when the hold ends."""
    clock, shaper = shaper_of(None, gates=(TokenBucket("1/s", 5),))
    for _ in range(5):
        shaper.reserve()
    shaper.hold(60)
    clock.advance(60)
    assert [shaper.reserve().delay for _ in range(3)] == pytest.approx([1, 2, 3])


def test_a_policy_that_spends_its_hour_at_once_makes_as_many_calls_as_the_server_admits():
    clock = ManualClock(autojump=True)
    policy = Policy("5/s; 40/h", name="api", clock=clock)
    calls, used, opened = 0, 0, None
    while clock.now() < 4 * 3_600:
        policy.shaper.schedule()
        if opened is None or clock.now() >= opened + 3_600:
            used, opened = 0, clock.now()
        calls, used = calls + 1, used + 1
        clock.advance(0.05)  # until the answer
        if used == 40:
            policy.shaper.hold(opened + 3_600 - clock.now())
    assert calls >= 4 * 40


def test_after_the_last_window_is_removed_time_stands_still_in_a_hold():
    """The numbers of a rate alone are set on a queue that is held, and whose time goes on."""
    before, after = queue("1/min; 10/h"), queue("1/min")
    line = before.reserve(None, START, (1, None, 7))[0]
    line = before.hold(line, START + S, 120 * S, 7)[0]
    line = after.adopt(line, before, START + 2 * S)
    line, granted, _, _ = after.reserve(line, START + 3 * S, (1, None, 7))
    grant, ends = Grant(*granted), START + 121 * S
    assert grant.departs_at_us == ends + 58 * S
    line = after.resume(line, START + 4 * S, 0)[0]
    assert max(grant.due_us + line[5], line[4]) == START + 62 * S


def test_after_the_last_window_is_removed_time_stands_still_also_where_the_hold_is_ended():
    """Otherwise the calls that come before the end of the hold would all leave at it."""
    before, after = queue("1/s; 3/min"), queue("1/s")
    line = None
    for _ in range(4):
        line, granted, _, _ = before.reserve(line, START, (1, None, 7))
    line = before.hold(line, START + 10 * S, 70 * S, 7)[0]
    line = before.cancel(line, START + 10 * S, Grant(*granted))[0]
    line = after.adopt(line, before, START + 11 * S)
    line = after.resume(line, START + 12 * S, 10 * S)[0]
    assert line[4:6] == (START + 22 * S, 0)
    grants = []
    for _ in range(3):
        line, granted, _, _ = after.reserve(line, START + 13 * S, (1, None, 7))
        grants.append(max(Grant(*granted).due_us + line[5], line[4]))
    assert grants == [grants[0] + n * S for n in range(3)]


def test_a_rate_that_is_set_after_a_hold_under_windows_saves_no_burst_up_in_it():
    before, after = queue("1/s; 3/min", burst=3), queue("1/s", burst=3)
    line = before.hold(None, START, 60 * S, 7)[0]
    line = after.adopt(line, before, START + 60 * S)
    waits = []
    for _ in range(3):
        line, granted, _, _ = after.reserve(line, START + 60 * S, (1, None, 7))
        waits.append(Grant(*granted).wait_us)
    assert waits == [0, S, 2 * S]


@pytest.mark.parametrize("beside", [GCRA("100/s"), FixedWindow(100, 1)])
@pytest.mark.parametrize("part", [FixedWindow(10, 60), Quota("10/fixed:60s")])
def test_the_end_of_a_hold_moves_no_call_into_a_spent_window_of_a_composite(part, beside):
    clock, shaper = shaper_of("1/s", gates=(all_of(part=part, beside=beside),))
    for _ in range(8):
        shaper.reserve()
    clock.set(20)
    shaper.hold(50)
    waiting = [shaper.reserve(max_wait=1_000) for _ in range(5)]
    assert shaper.resume() == 40
    waiting += [shaper.reserve(max_wait=1_000) for _ in range(10)]
    assert leaves(clock, shaper, *waiting) == {1: 10, 2: 5}


def test_a_period_beside_a_fixed_window_counts_calls_that_a_hold_moves():
    clock, shaper = shaper_of("1/s", gates=(all_of(FixedWindow(9, 1), Quota("10/fixed:60s")),))
    clock.set(30)
    slots = [shaper.reserve() for _ in range(6)]
    shaper.hold(40)
    slots += [shaper.reserve(max_wait=1_000) for _ in range(15)]
    assert leaves(clock, shaper, *slots) == {1: 10, 2: 10, 3: 1}


DAY, HOUR = 86_400 * S, 3_600 * S
BEGINS = 20_000 * DAY
HELD = Shift(BEGINS + HOUR, BEGINS + 2 * HOUR, BEGINS + DAY + HOUR, S, lambda at: 10, ())


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_the_parts_of_a_composite_of_quotas_move_calls_as_each_would_alone(hours):
    """The date of the store may be another than that of its clock."""
    both = all_of(Quota("5/day"), Quota("20/week"))
    used = (BEGINS, 1, BEGINS, BEGINS + DAY, 2, BEGINS + DAY)
    moved = both.shifted((used, used), HELD, hours * HOUR)
    assert moved == tuple(part.shifted(used, HELD, hours * HOUR) for part in both.parts)


@pytest.mark.parametrize("sooner", [0, HOUR])
def test_a_hold_puts_off_no_period_that_opened_sooner_by_an_earlier_date(sooner):
    quota, opens = Quota("5/day"), BEGINS + DAY - sooner
    moved = quota.shifted((BEGINS, 1, BEGINS, BEGINS + DAY, 2, opens), HELD, 0)
    assert moved == (BEGINS, 1, BEGINS, BEGINS + DAY, 3, opens)


@pytest.mark.parametrize("seed", range(30))
def test_the_end_of_a_hold_moves_no_call_into_a_spent_window_of_one_of_two_limits(seed):
    """The windows of the two do not begin together."""
    rng = random.Random(seed)
    clock, shaper = shaper_of("10/s", gates=(FixedWindow(3, 2), Quota("7/fixed:5s")))
    clock.set(rng.uniform(30, 40))
    slots = [shaper.reserve() for _ in range(3)]
    clock.advance(0.5)
    shaper.hold(rng.uniform(5, 40))
    slots += [shaper.reserve(max_wait=1_000) for _ in range(12)]
    leaves = [slot.departs_at for slot in slots[:3]]
    shaper.resume()
    leaves += [clock.now() + shaper.remaining(slot) for slot in slots[3:]]
    for limit, span in ((3, 2), (7, 5)):
        check_periods([(round(at * S), 1) for at in leaves], limit, span * S)
