"""Whatever three workers that prefetch do, and when one dies or the store fails: one grid, little lost."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import Quota
from shapekit._queue.prefetch import least_hold_us
from shapekit.algorithms.queue.wire import HOLD
from shapekit.algorithms.quota import quotas_of
from shapekit.testing import check_pace, check_window

from .simulation import SECOND, Caller, Server, Worker, World, bursts, busy, poisson

PREFETCH = SECOND
TRIP = 50_000
DEEDS = st.sampled_from(["ask"] * 8 + ["dear", "impatient", "hold", "outage", "wait", "wait", "wait"])
STORIES = st.lists(st.tuples(DEEDS, st.integers(0, 2), st.integers(1, 400_000)), max_size=60)
PACES = st.sampled_from(
    [("20/s", {}), ("100/s", {}), ("7/s", {"burst": 3}), ("40/s", {"burst": 10}), ("50/s; 60/min", {})]
)


class Story:
    """A story played by three workers."""

    def __init__(self, pace, story, jitter_us=0, seed=1):
        self.rate, options = pace
        self.burst = options.get("burst", 1)
        self.world = World(seed)
        self.server = Server(self.world, self.rate, **options)
        self.workers = [
            Worker(
                self.world,
                self.server,
                prefetch_us=PREFETCH,
                trip_us=TRIP,
                jitter_us=jitter_us,
                ahead_us=number * 7 * SECOND,
            )
            for number in range(3)
        ]
        self.calls = 0
        self.outcomes = []
        for deed in story:
            self._play(*deed)

    def _play(self, what, number, size):
        if what == "wait":
            self.world.run(self.world.now + size)
        elif what == "outage":
            self.server.fail(5 * size)
        elif what == "hold":
            self.server.call(HOLD, size, 7)
            for worker in self.workers:
                worker.buffer.doubt()
        else:
            self.calls += 1
            cost = 2 if what == "dear" else 1
            bound_us = size if what == "impatient" else None
            self.workers[number].ask(Caller(lambda at: self.outcomes.append((at, cost)), cost, bound_us))

    @property
    def departures(self):
        return [(at / SECOND, cost) for at, cost in self.outcomes if at is not None]

    def end(self):
        self.world.run(self.world.now + 200 * SECOND)
        return self


@given(PACES, STORIES, st.sampled_from([0, 40_000]), st.integers(0, 99))
def test_all_that_leave_are_on_one_grid(pace, story, jitter_us, seed):
    played = Story(pace, story, jitter_us, seed).end()
    if not any(what == "hold" for what, _, _ in story):
        check_pace(
            played.departures,
            played.rate.partition(";")[0],
            max(played.burst, 2),
            tolerance="1us",
        )
        singles = [departure for departure in played.departures if departure[1] == 1]
        check_pace(singles, played.rate.partition(";")[0], played.burst, tolerance="1us")
    if ";" in played.rate:
        check_window(played.departures, "60/min")


@given(PACES, STORIES, st.integers(0, 99))
def test_every_call_is_answered_and_in_the_end_no_worker_owns_a_slot(pace, story, seed):
    played = Story(pace, story, 20_000, seed).end()
    assert len(played.outcomes) == played.calls
    assert [len(worker.buffer) for worker in played.workers] == [0, 0, 0]
    # Slots that no call took are given back or over: the next call leaves at once.
    _, granted, _, _ = played.server.queue.reserve(played.server.state, played.world.now, (1, None, 7))
    assert granted[:2] == (True, 0)


@given(STORIES, st.integers(0, 99))
def test_a_limit_with_a_memory_is_charged_only_for_calls_that_have_left(story, seed):
    """What passes unused, or is handed back, leaves no trace in a quota."""
    pace = ("50/s", {"gates": (Quota("10_000/rolling:1h"),)})
    played = Story(pace, story, 20_000, seed).end()
    server = played.server
    used = sum(cost for _, cost in played.departures)
    (hour,) = quotas_of(server.queue, server.state, played.world.now, 0)
    assert hour.used == used


@settings(max_examples=40)
@given(
    st.sampled_from([50, 400]),
    st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 4 * SECOND)), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_an_outage_only_delays_that_a_quota_gets_back_what_was_not_used(rate, outages, seed):
    world = World(seed)
    server = Server(world, f"{rate}/s", gates=(Quota("10_000/rolling:1h"),))
    workers = [Worker(world, server, prefetch_us=PREFETCH, trip_us=TRIP, jitter_us=9_000) for _ in range(3)]
    left = []
    for worker in workers * 5:
        at = world.dice.randint(0, 2 * SECOND)
        for _ in range(8):
            world.after(at, lambda worker=worker: worker.ask(Caller(left.append)))
    for at, length_us in outages:
        world.after(at, lambda length_us=length_us: server.fail(length_us))
    world.run(60 * SECOND)
    (hour,) = quotas_of(server.queue, server.state, world.now, 0)
    assert len(left) == 120
    assert hour.used == sum(at is not None for at in left)


@settings(max_examples=40)
@given(
    st.sampled_from([50, 100, 400]), st.integers(1, 12), st.integers(50_000, 4 * SECOND), st.integers(0, 99)
)
def test_a_worker_that_dies_costs_the_others_at_most_a_span(rate, threads, dies_at, seed):
    """Beside what its own callers were waiting for, which is lost without prefetch too."""
    world = World(seed)
    server = Server(world, f"{rate}/s")
    workers = [Worker(world, server, prefetch_us=PREFETCH, trip_us=TRIP, jitter_us=5_000) for _ in range(3)]
    for worker in workers:
        busy(world, worker, threads)
    world.run(dies_at)
    workers[0].kill()
    world.run(dies_at + 6 * SECOND)
    left = sorted(at for worker in workers[1:] for at, _ in worker.left)
    dead = {at for at, _ in workers[0].left}
    # From when the others are at full speed: a stock begins small.
    since = max(dies_at, SECOND)
    after = [at for at in left if since <= at < since + 4 * SECOND]
    lost = 4 * rate - len(after) - sum(since <= at < since + 4 * SECOND for at in dead)
    slot = SECOND // rate
    assert lost <= PREFETCH // slot + 1 + threads + rate * 0.04
    silence = max(late - early for early, late in pairwise(left) if early >= since)
    assert silence <= PREFETCH + (threads + 2) * slot


@settings(max_examples=30)
@given(st.sampled_from([50, 100, 400]), st.integers(1, 40), st.integers(0, 99))
def test_no_worker_owns_more_than_a_span_of_the_queue(rate, threads, seed):
    world = World(seed)
    server = Server(world, f"{rate}/s")
    workers = [Worker(world, server, prefetch_us=PREFETCH, trip_us=TRIP, jitter_us=9_000) for _ in range(3)]
    busy(world, workers[0], threads)
    bursts(world, workers[1], threads, 700_000)
    poisson(world, workers[2], rate / 2)
    world.run(5 * SECOND)
    assert max(worker.most_owned for worker in workers) <= rate + 1


@settings(max_examples=40)
@given(
    st.sampled_from(["20/s", "100/s", "40/s burst 3"]),
    st.lists(st.integers(SECOND // 2, 3 * SECOND), min_size=1, max_size=3),
    st.integers(0, 40_000),
    st.integers(0, 99),
)
def test_a_hold_that_others_notice_within_a_span_brings_no_calls_together(rate, waits, jitter_us, seed):
    """Until then they leave by the slots that they know: so a hold lasts for longer than that."""
    world = World(seed)
    server = Server(world, rate)
    workers = [
        Worker(world, server, prefetch_us=PREFETCH, trip_us=TRIP, jitter_us=jitter_us, ahead_us=ahead)
        for ahead in (0, 7 * SECOND, -3 * SECOND)
    ]
    for worker in workers:
        busy(world, worker, 5)
    for wait in waits:
        world.run(world.now + wait)
        server.call(HOLD, least_hold_us(PREFETCH, server.queue), 7)
        workers[0].buffer.doubt()
    world.run(world.now + 4 * SECOND)
    slots = sorted(slot_us / SECOND for worker in workers for slot_us, _ in worker.left)
    check_pace(slots, rate, tolerance="1us")


def test_a_slot_that_one_worker_hands_back_is_used_by_the_next():
    world = World()
    server = Server(world, "10/s")
    one, other = (Worker(world, server, prefetch_us=PREFETCH, trip_us=TRIP) for _ in range(2))
    for _ in range(4):
        one.ask(Caller(lambda _: None))
    world.run(60_000)
    for _ in range(4):
        one.ask(Caller(lambda _: None))
    world.run(120_000)
    assert len(one.buffer) > 2
    tail = server.state[0]
    world.run(5 * SECOND)
    assert len(one.buffer) == 0
    assert server.state[0] < tail
    left = []
    other.ask(Caller(left.append))
    world.run(5 * SECOND + TRIP)
    assert left == [5 * SECOND + TRIP // 2]
