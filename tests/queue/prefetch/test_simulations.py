"""Far away, 25 ms each way, in virtual time: how much of the limit is used, in how many trips."""

from itertools import pairwise

import pytest

from shapekit.testing import check_pace

from .simulation import SECOND, Caller, Server, Worker, World, bursts, busy, jain, poisson

SECONDS = 20
TRIP = 50_000
each_seed = pytest.mark.parametrize("seed", [1, 2, 3])


def long_enough(rate, workers):
    """A span for a trip in 20 calls: each worker learns of the key once in it, whatever it calls."""
    return SECOND if rate / workers >= 50 else SECOND * 8 // 5


class Run:
    """A load on some workers, for twenty seconds from their first call on."""

    def __init__(self, rate, workers, load, *, seed=1, prefetch_us=SECOND, jitter_us=0, **options):
        world = World(seed)
        server = Server(world, f"{rate}/s", **options)
        far = {"prefetch_us": prefetch_us, "trip_us": TRIP, "jitter_us": jitter_us}
        self.workers = [Worker(world, server, **far, ahead_us=n * 3 * SECOND) for n in range(workers)]
        for worker in self.workers:
            load(world, worker)
        world.run(SECONDS * SECOND)
        self.left = [departure for worker in self.workers for departure in worker.left]
        self.of_the_limit = len(self.left) / (rate * SECONDS)
        self.trips_a_call = server.trips / len(self.left)
        self.fairness = jain([len(worker.left) for worker in self.workers])
        # Every slot that was used, and every instant at which a call left.
        check_pace([at / SECOND for at, _ in self.left], f"{rate}/s")
        assert all(left >= promised for promised, left in self.left)

    def __repr__(self):
        return (
            f"{self.of_the_limit:.1%} of the limit, {self.trips_a_call:.3f} trips a call, {self.fairness:.3f}"
        )


@each_seed
@pytest.mark.parametrize("rate", [100, 1000])
@pytest.mark.parametrize(("workers", "threads"), [(1, 4), (1, 32), (4, 1), (4, 8), (4, 64)])
def test_busy_workers_reach_the_limit_with_a_trip_for_twenty_calls(rate, workers, threads, seed):
    """From the first call on, including the time in which a stock grows."""
    prefetch_us = long_enough(rate, workers)
    run = Run(
        rate, workers, lambda world, worker: busy(world, worker, threads), seed=seed, prefetch_us=prefetch_us
    )
    assert run.of_the_limit >= 0.98, run
    assert run.trips_a_call <= 1 / 20, run
    assert run.fairness >= 0.98, run


@each_seed
@pytest.mark.parametrize("rate", [100, 1000])
def test_a_lone_thread_is_not_slowed_by_the_distance(rate, seed):
    """Without prefetch it makes a trip for each call: 20 a second."""
    run = Run(rate, 1, lambda world, worker: busy(world, worker, 1), seed=seed)
    assert run.of_the_limit >= 0.95, run
    assert run.trips_a_call <= 1 / 20, run


@each_seed
@pytest.mark.parametrize("rate", [100, 1000])
def test_trips_that_take_longer_now_and_then_change_little(rate, seed):
    how = {"seed": seed, "jitter_us": 20_000, "prefetch_us": long_enough(rate, 4)}
    run = Run(rate, 4, lambda world, worker: busy(world, worker, 8), **how)
    assert run.of_the_limit >= 0.97, run
    assert run.trips_a_call <= 1 / 20, run
    assert run.fairness >= 0.75, run


@each_seed
@pytest.mark.parametrize("workers", [1, 4])
def test_more_than_the_limit_admits_costs_few_trips(workers, seed):
    """A stock is used up sooner than its slots come."""
    how = {"seed": seed, "prefetch_us": long_enough(100, workers)}
    run = Run(100, workers, lambda world, worker: poisson(world, worker, 150 / workers), **how)
    assert run.of_the_limit >= 0.98, run
    assert run.trips_a_call <= 1 / 20, run


@each_seed
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("part", [0.02, 0.2, 0.8])
def test_less_than_the_limit_leaves_as_it_comes(workers, part, seed):
    """No call is delayed: all that come have left, by a trip or less for nearly each."""
    came = []

    def load(world, worker):
        poisson(world, worker, 100 * part / workers)
        worker.ask = lambda caller, ask=worker.ask: (came.append(world.now), ask(caller))

    run = Run(100, workers, load, seed=seed)
    assert len(run.left) >= len(came) - 100
    assert run.trips_a_call <= 1.5, run


@pytest.mark.parametrize("workers", [1, 4])
def test_bursts_leave_at_the_rate(workers):
    run = Run(100, workers, lambda world, worker: bursts(world, worker, 20, 2 * SECOND))
    assert len(run.left) >= workers * 20 * (SECONDS // 2 - 1)
    assert run.trips_a_call <= 1 / 5, run


def test_a_caller_now_and_then_is_a_trip_each_and_owns_nothing():
    def load(world, worker):
        def one():
            worker.ask(Caller(lambda _: None))
            world.after(3 * SECOND, one)

        one()

    run = Run(100, 2, load)
    assert run.trips_a_call == 1
    assert [worker.most_owned for worker in run.workers] == [0, 0]


@each_seed
def test_callers_that_are_too_slow_for_the_grid_waste_little(seed):
    """Their calls take a tenth of a second: a stock of slots in a row is over before they are back."""
    run = Run(100, 4, lambda world, worker: busy(world, worker, 8, 100_000), seed=seed)
    assert run.of_the_limit >= 0.8, run


@each_seed
def test_calls_of_a_busy_worker_keep_their_distance(seed):
    """At the instants at which calls leave, not alone as promised: trips of uneven length come in between."""
    world = World(seed)
    server = Server(world, "100/s")
    worker = Worker(world, server, prefetch_us=SECOND, trip_us=TRIP, jitter_us=20_000)
    busy(world, worker, 8)
    world.run(20 * SECOND)
    instants = [left for _, left in worker.left if left > 2 * SECOND]
    assert min(late - early for early, late in pairwise(instants)) >= 9_000


@each_seed
@pytest.mark.parametrize("rate", [100, 1000])
@pytest.mark.parametrize("threads", [1, 8])
def test_workers_that_come_later_catch_up(rate, threads, seed):
    """One has been alone with the queue for three seconds; after three more the others have their share."""
    world = World(seed)
    server = Server(world, f"{rate}/s")
    workers = [Worker(world, server, prefetch_us=SECOND, trip_us=TRIP, jitter_us=5_000) for _ in range(4)]
    busy(world, workers[0], threads)
    world.run(3 * SECOND)
    for worker in workers[1:]:
        busy(world, worker, threads)
    world.run(9 * SECOND)
    late = [sum(left > 6 * SECOND for _, left in worker.left) for worker in workers]
    assert jain(late) >= 0.9, late
