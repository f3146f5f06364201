"""Departures as they happen: a call that is kept from leaving in time does not make two calls of one slot.

A small world, played on the queue itself: processes whose callers always have a next call, and stalls that
keep a whole process from doing anything. What leaves is judged by the windows of the stated rates.
"""

import heapq
import random
from itertools import count, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, Rate, SlidingWindow, SlidingWindowLog
from shapekit.algorithms.queue.adaptive import FULL, AdaptiveQueue
from shapekit.algorithms.queue.queue import LEAST_GRACE_US, SOON_US, LeakyQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import UNKNOWN
from shapekit.rate import parse_rates

SECOND = 1_000_000
START = 1_000 * SECOND


class World:
    """Callers in several processes, on one queue, until `ends`."""

    def __init__(self, queue, callers, stalls, *, ends, jitter_us=0, seed=0):
        self.queue = queue
        self.state = None
        self.left = []
        self.moved = 0
        self._stalls = stalls
        self._ends = START + ends
        self._random = random.Random(seed)
        self._jitter_us = jitter_us
        self._nonce = count(1)
        self._numbers = count()
        self._events = []
        for process, number in enumerate(callers):
            for _ in range(number):
                self._at(START, process, self._ask)

    def play(self):
        while self._events:
            now, _, process, act = heapq.heappop(self._events)
            awake = self._awake(process, now)
            if awake > now:
                self._at(awake, process, act)
            else:
                act(process, now)
        return self

    def _at(self, when, process, act):
        when += self._random.randrange(self._jitter_us + 1)
        heapq.heappush(self._events, (when, next(self._numbers), process, act))

    def _awake(self, process, now):
        for one, begins, lasts in self._stalls:
            if one == process and START + begins <= now < START + begins + lasts:
                return START + begins + lasts
        return now

    def _ask(self, process, now):
        if now >= self._ends:
            return
        self.state, granted, _, _ = self.queue.reserve(self.state, now, (1, None, next(self._nonce)))
        call = Call(self, Grant(*granted))
        self._at(call.due, process, call.come)

    def gone(self, process, now):
        self.left.append(now)
        self._at(now + 1, process, self._ask)


class Call:
    def __init__(self, world, grant):
        self._world = world
        self._grant = grant
        self._by = world.queue.leaves_by(grant)
        self._moves = 0
        self.due = self._slot = grant.departs_at_us

    def come(self, process, now):
        world, queue = self._world, self._world.queue
        if not self._moves:
            generation, shift, until, _, _, *clock = queue.confirm(world.state, now)
            if generation == self._grant.generation:
                self._slot = self._grant.due_us + shift
                if clock:
                    self._slot = until - (clock[0] - self._grant.due_us) * FULL // clock[1]
                self.due = max(self._slot, until)
        while now >= self.due - (SOON_US if self._is_late(now) else 0):
            if not self._is_late(now):
                world.gone(process, now)
                return
            missed = (self._grant.generation, self._by, 1, 7)
            world.state, ((self.due, stands_until),), _, _ = queue.late(world.state, now, (missed,))
            self._slot = self.due
            if stands_until != UNKNOWN or self.due <= now:
                self._moves, self._by = self._moves + 1, 0
                world.moved += stands_until != UNKNOWN
        world._at(self.due, process, self.come)

    def _is_late(self, now):
        return now - self._slot > self._world.queue.grace_us and self._moves < 3


def worst(left, window_us):
    """The most calls in any window, without those in its last 10 ms: there a call may be just as late."""
    left = sorted(left)
    most = first = 0
    for index, at in enumerate(left):
        while left[first] + window_us - LEAST_GRACE_US <= at:
            first += 1
        most = max(most, index - first + 1)
    return most


def check(world):
    for rate in world.queue.rates:
        assert worst(world.left, rate.period_us) <= rate.limit + world.queue.burst, str(rate)


RATES = st.sampled_from(["50/s", "98/s", "10/s", "7 per 1.1 s", "3/s", "400/s"])
STALLS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4 * SECOND), st.integers(1, SECOND)), max_size=6
)
CALLERS = st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(any)


@settings(max_examples=150)
@example(rate="50/s", burst=1, callers=[10, 10, 10], stalls=[(0, SECOND, SECOND)], jitter_us=0, seed=0)
@given(
    rate=RATES,
    burst=st.sampled_from([1, 1, 1, 3]),
    callers=CALLERS,
    stalls=STALLS,
    jitter_us=st.sampled_from([0, 0, 500, 3_000]),
    seed=st.integers(0, 99),
)
def test_no_window_has_more_calls_whatever_stalls(rate, burst, callers, stalls, jitter_us, seed):
    queue = LeakyQueue(parse_rates(rate), burst, "smooth", ())
    check(World(queue, callers, stalls, ends=6 * SECOND, jitter_us=jitter_us, seed=seed).play())


@settings(max_examples=150)
@given(
    rate=st.sampled_from(["10/s; 20 per 4 s", "5/s; 8 per 2 s; 20/min", "50/s; 60 per 2 s"]),
    pace=st.sampled_from(["smooth", "burst"]),
    callers=CALLERS,
    stalls=STALLS,
)
def test_no_window_of_several_rates_has_more_calls_whatever_stalls(rate, pace, callers, stalls):
    queue = LeakyQueue(parse_rates(rate), None, pace, ())
    check(World(queue, callers, stalls, ends=6 * SECOND).play())


@pytest.mark.parametrize("share", [0.1, 0.5, 1])
@given(callers=CALLERS, stalls=STALLS)
@settings(max_examples=40)
def test_no_window_has_more_calls_at_a_learned_rate_whatever_stalls(share, callers, stalls):
    queue = AdaptiveQueue(Rate.of(1, SECOND), Rate.of(50, SECOND), None)
    world = World(queue, callers, stalls, ends=6 * SECOND)
    world.state = queue.stated(None, START - SECOND, queue.share(round(50 * share), SECOND), 0, 3)[0]
    world.state = queue.succeeded(world.state, START - 1, 10**6, SECOND, 3)[0]
    now = queue.per_second(queue.confirm(world.state, START)[6])
    world.play()
    assert worst(world.left, SECOND) <= now + 2


@given(rate=RATES, callers=CALLERS, seed=st.integers(0, 99))
@settings(max_examples=40)
def test_a_call_late_by_less_than_a_slot_moves_nothing(rate, callers, seed):
    queue = LeakyQueue(parse_rates(rate), None, "smooth", ())
    jitter_us = queue.grace_us // 2 - 1
    world = World(queue, callers, [], ends=4 * SECOND, jitter_us=jitter_us, seed=seed).play()
    assert world.moved == 0
    assert world.state is None or world.state[5] == 0


@given(callers=st.lists(st.integers(9, 14), min_size=3, max_size=3), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_late_calls_cost_the_slots_that_they_missed_and_few_more(callers, seed):
    """One of three processes stands still for 300 ms of every 2 s."""
    queue = LeakyQueue(parse_rates("50/s"), None, "smooth", ())
    stalls = [(0, SECOND + start * 2 * SECOND, 300_000) for start in range(15)]
    world = World(queue, callers, stalls, ends=30 * SECOND, jitter_us=3_000, seed=seed).play()
    check(world)
    assert world.moved > 0
    within = [at for at in world.left if at < START + 30 * SECOND]
    assert len(within) >= 30 * 50 - world.moved - 2 * len(stalls)


def test_late_calls_take_the_next_slots_and_all_others_move_on():
    """At 10/s; the first two of six are late by more than a slot."""
    queue = LeakyQueue(parse_rates("10/s"), None, "smooth", ())
    state, grants = None, []
    for _ in range(6):
        state, granted, _, _ = queue.reserve(state, START, (1, None, 7))
        grants.append(Grant(*granted))
    now = START + 250_000
    moved = []
    for grant in grants[:2]:
        state, ((leaves_at, _),), _, _ = queue.late(state, now, ((7, grant.due_us, 1, 7),))
        moved.append(leaves_at - START)
    _, shift, until, *_ = queue.confirm(state, now)
    others = [max(grant.due_us + shift, until) - START for grant in grants[2:]]
    assert (moved, others) == ([300_000, 400_000], [500_000, 550_000, 650_000, 750_000])
    # The third has passed as well, and learns of that when it asks.
    state, ((leaves_at, stands_until),), _, _ = queue.late(
        state, START + 500_000, ((7, grants[2].due_us, 1, 7),)
    )
    assert (leaves_at - START, stands_until) == (500_000, UNKNOWN)


@pytest.mark.parametrize(
    ("late_us", "leaves_us"), [(99_999, 100_000), (100_000, 100_000), (100_001, 100_001)]
)
def test_no_call_is_behind_the_end_of_the_queue(late_us, leaves_us):
    """The only call of a line at 10/s is late, and leaves when its slot ends at the latest, or at once."""
    queue = LeakyQueue(parse_rates("10/s"), None, "smooth", ())
    state, granted, _, _ = queue.reserve(None, START, (1, None, 7))
    due_us = Grant(*granted).due_us
    _, ((leaves_at, _),), _, _ = queue.late(state, START + late_us, ((7, due_us, 1, 7),))
    assert leaves_at - START == leaves_us


@pytest.mark.parametrize(
    "gate",
    [SlidingWindowLog(3, "10s"), FixedWindow(3, "10s"), SlidingWindow(3, "10s"), GCRA("3/10s", burst=3)],
)
def test_under_further_limits_all_others_move_by_as_much(gate):
    queue = LeakyQueue([Rate.of(5, SECOND)], None, "smooth", [gate])
    state, grants = None, []
    for _ in range(3):
        state, granted, _, _ = queue.reserve(state, START, (1, None, 7))
        grants.append(Grant(*granted))
    late = grants[1].due_us + 700_000
    calls = tuple((7, granted.due_us, 1, 7) for granted in grants[1:])
    state, (moved, behind), _, _ = queue.late(state, late, calls)
    assert moved == (late, late)
    assert queue.confirm(state, late)[1] == 700_000
    # The call behind it was late, too. It has moved with all others, and its slot lies ahead.
    assert behind == (grants[2].due_us + 700_000, UNKNOWN)


def test_under_further_limits_late_calls_of_several_processes_leave_a_slot_apart():
    """Time stands still for the first one, late by more than a second; the others ask in any order."""
    queue = LeakyQueue([Rate.of(5, SECOND)], None, "smooth", [SlidingWindowLog(30, "10s")])
    state, grants, left = None, [], []
    for _ in range(4):
        state, granted, _, _ = queue.reserve(state, START, (1, None, 7))
        grants.append(Grant(*granted))
    now = START + 1_300_000
    for one in (0, 3, 2):
        state, ((leaves_at, _),), _, _ = queue.late(state, now, ((7, grants[one].due_us, 1, 7),))
        left.append(leaves_at)
    assert [after - before for before, after in pairwise(left)] == [200_000, 200_000]


@pytest.mark.parametrize("rate", ["3/min", "7/s", "70/s", "75/s", "1000/s"])
@pytest.mark.parametrize("is_adaptive", [False, True])
def test_a_call_may_be_late_by_three_quarters_of_a_slot_and_ten_ms_in_any_case(rate, is_adaptive):
    highest = Rate.parse(rate)
    if is_adaptive:
        queue = AdaptiveQueue(Rate.of(1, 60 * SECOND), highest, None)
    else:
        queue = LeakyQueue([highest], None, "smooth", ())
    state, granted, _, _ = queue.reserve(None, START, (1, None, 7))
    grant = Grant(*granted)
    share = queue.confirm(state, START)[6] / FULL if is_adaptive else 1
    grace = max(10_000, 3 / 4 * highest.period_us / highest.limit / share)
    for late, moves in ((0.99 * grace, False), (1.01 * grace, True)):
        call = (grant.generation, grant.due_us, 1, 7)
        assert queue.late(state, START + round(late), (call,))[3] is moves


@pytest.mark.parametrize(
    "queue",
    [
        LeakyQueue(parse_rates("10/s"), None, "smooth", ()),
        AdaptiveQueue(Rate.of(1, SECOND), Rate.of(10, SECOND), None),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("length", "moves"), [(250_000, True), (250_001, False)])
def test_a_late_call_waits_for_the_end_of_a_hold_of_more_than_a_quarter_of_a_second(queue, length, moves):
    """The others get a slot after it at once."""
    state, granted, _, _ = queue.reserve(None, START, (1, None, 7))
    grant = Grant(*granted)
    state, *_ = queue.hold(state, START, length, 7)
    call = (grant.generation, grant.due_us - SECOND, 1, 7)
    _, ((leaves_at, stands_until),), _, persists = queue.late(state, START, (call,))
    assert leaves_at == START + length
    assert persists is moves is (stands_until != UNKNOWN)


def test_a_late_call_of_a_forgotten_queue_still_takes_a_slot():
    """All have waited in one process, which stood still until the line was empty and forgotten."""
    queue = LeakyQueue(parse_rates("10/s"), None, "smooth", ())
    state, moved = None, []
    for by in (100, 200, 300):
        state, ((leaves_at, stands_until),), life, persists = queue.late(state, START, ((7, by, 1, 9),))
        moved.append(leaves_at - START)
        assert persists
        assert life >= 100_000
        assert stands_until != UNKNOWN
    assert moved == [0, 100_000, 200_000]
    _, granted, _, _ = queue.reserve(state, START, (1, None, 7))
    assert Grant(*granted).wait_us == 300_000


def test_a_late_call_waits_for_a_long_hold_and_asks_again():
    queue = LeakyQueue(parse_rates("10/s"), None, "smooth", ())
    state, granted, _, _ = queue.reserve(None, START, (1, None, 7))
    state, *_ = queue.hold(state, START, 5 * SECOND, 7)
    call = (7, Grant(*granted).due_us - SECOND, 1, 7)
    after, (moved,), _, persists = queue.late(state, START + SECOND, (call,))
    assert (after, moved, persists) == (state, (START + 5 * SECOND, UNKNOWN), False)
