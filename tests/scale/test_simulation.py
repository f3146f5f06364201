"""What holds in every fleet, however many and however far away: exactly, not about."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest

from shapekit._queue.waiter import FRESH_US
from shapekit.rate import SECOND_US

from .simulation import Fleet, Network, Run, most_in_window, pace, run

NEAR = Network(500, 0.5, 100, 5_000)
FAR = Network(40_000, 0.25, 10_000, 100_000)
NETWORKS = pytest.mark.parametrize("store", [NEAR, FAR], ids=["near", "far"])
SEEDS = pytest.mark.parametrize("seed", range(3))

BUSY = Fleet(200, "100/s", NEAR, NEAR)
"""More workers than the rate has room for, and each always has the next call: there is always a queue."""
LIMIT, PERIOD_US, GRID_US = 100, SECOND_US, 10_000


def slots(played: Run) -> list[int]:
    return [call.slot_us for call in played.calls]


def busy_from(played: Run) -> int:
    """From when on there was always a queue: the first slot after the last call that did not wait."""
    last = max(number for number, call in enumerate(played.calls) if not call.waited)
    begun = played.calls[last + 1].slot_us
    assert begun < SECOND_US, "as soon as the fleet is there"
    return begun


def grid_us(fleet: Fleet) -> Fraction:
    """The distance of slots."""
    return GRID_US / (1 - Fraction(fleet.headroom).limit_denominator(1_000))


def widest_jitter_us(fleet: Fleet) -> int:
    """By how much the ways from slot to upstream can differ: an answer, at most a question and its answer,
    and the call itself.
    """
    store, upstream = fleet.store, fleet.upstream
    return 3 * store.most_us - store.least_us + upstream.most_us - upstream.least_us


@SEEDS
@NETWORKS
def test_a_fleet_that_is_always_busy_uses_every_slot_of_the_grid(store: Network, seed: int) -> None:
    played = run(BUSY._replace(store=store, seed=seed))
    taken = slots(played)
    begun = busy_from(played)
    busy = [at for at in taken if at >= begun]
    assert busy == list(range(begun, begun + GRID_US * len(busy), GRID_US))
    assert len(busy) > LIMIT * (BUSY.seconds - 1)
    assert pace([at for at in busy if at < BUSY.seconds * SECOND_US]) == LIMIT
    assert played.rate == pytest.approx(LIMIT, rel=0.02)  # with what came before


@SEEDS
@NETWORKS
def test_headroom_stretches_the_grid(store: Network, seed: int) -> None:
    played = run(BUSY._replace(store=store, seed=seed, headroom=0.2))
    busy = [at for at in slots(played) if at >= busy_from(played)]
    assert busy == list(range(busy[0], busy[0] + 12_500 * len(busy), 12_500))


@SEEDS
@NETWORKS
@pytest.mark.parametrize("more", [{}, {"crash": 0.1}, {"give_up": 0.2}, {"pause_us": SECOND_US}], ids=str)
def test_no_window_at_the_store_has_more_than_the_limit(
    store: Network, seed: int, more: dict[str, float]
) -> None:
    played = run(BUSY._replace(store=store, seed=seed)._replace(**more))
    taken = slots(played)
    assert all(later - before >= GRID_US for before, later in pairwise(taken))
    assert most_in_window(taken, PERIOD_US) <= LIMIT


@SEEDS
@NETWORKS
@pytest.mark.parametrize("callers", [1, 20])
@pytest.mark.parametrize("headroom", [0.0, 0.05])
def test_the_upstream_gets_the_limit_and_what_jitter_adds(
    store: Network, seed: int, callers: int, headroom: float
) -> None:
    fleet = BUSY._replace(store=store, upstream=FAR, seed=seed, callers=callers, headroom=headroom)
    played = run(fleet)
    jitter = played.jitter_us()
    assert jitter <= widest_jitter_us(fleet)
    for window in (PERIOD_US // 10, PERIOD_US, 2 * PERIOD_US):
        came = most_in_window([call.came_us for call in played.calls], window)
        assert came <= ceil((window + jitter) / grid_us(fleet))


@SEEDS
def test_headroom_for_the_jitter_keeps_the_limit_at_the_upstream(seed: int) -> None:
    fleet = BUSY._replace(store=FAR, upstream=FAR, seed=seed)
    jitter = widest_jitter_us(fleet)
    enough = run(fleet._replace(headroom=ceil(1_000 * jitter / (PERIOD_US + jitter)) / 1_000))
    assert most_in_window([call.came_us for call in enough.calls], PERIOD_US) <= LIMIT
    none = run(fleet)
    assert most_in_window([call.came_us for call in none.calls], PERIOD_US) > LIMIT


@SEEDS
@NETWORKS
def test_a_call_costs_one_trip_or_two_if_it_waits(store: Network, seed: int) -> None:
    some = run(BUSY._replace(store=store, seed=seed, pause_us=2 * SECOND_US))
    waited = sum(call.waited for call in some.calls)
    assert 0 < waited < len(some.calls)
    assert some.trips == len(some.calls) + waited


@SEEDS
def test_callers_of_one_process_share_the_question_before_leaving(seed: int) -> None:
    busy = BUSY._replace(rate="1000/s", workers=1_000, seconds=3, seed=seed)
    before = run(busy).trips_per_call
    for callers in (10, 100, 1_000):
        played = run(busy._replace(callers=callers))
        questions = played.trips - len(played.calls)
        lasted = max(call.left_us for call in played.calls)
        assert questions <= busy.workers // callers * (lasted // FRESH_US + 1)
        assert 1 < played.trips_per_call < before
        before = played.trips_per_call


@SEEDS
@NETWORKS
def test_all_workers_have_the_same_share(store: Network, seed: int) -> None:
    played = run(BUSY._replace(store=store, seed=seed))
    made = played.shares()
    assert len(made) == BUSY.workers
    assert min(made) >= 3
    # First come, first served: between two calls of one worker every other worker has one.
    assert max(made) - min(made) <= 1
    assert played.fairness() == sum(made) ** 2 / (len(made) * sum(each**2 for each in made)) > 0.97


@SEEDS
@NETWORKS
def test_a_worker_that_dies_costs_the_slot_that_it_has_and_no_other(store: Network, seed: int) -> None:
    fleet = BUSY._replace(store=store, seed=seed, crash=0.1)
    played = run(fleet)
    assert 0 < len(played.lost) <= fleet.workers * fleet.crash
    used = sorted([*slots(played), *played.lost])
    begun = busy_from(played)
    busy = [at for at in used if at >= begun]
    assert busy == list(range(begun, begun + GRID_US * len(busy), GRID_US))
    survivors = {call.worker for call in played.calls if call.slot_us > max(played.lost)}
    assert survivors == set(range(180))


@SEEDS
@NETWORKS
def test_slots_given_back_go_to_the_next_callers(store: Network, seed: int) -> None:
    played = run(BUSY._replace(store=store, seed=seed, give_up=0.2))
    taken = slots(played)
    assert len(set(taken)) == len(taken)
    begun, last = busy_from(played), taken[-1]
    assert all((at - begun) % GRID_US == 0 for at in taken if at >= begun)
    unused = (last - begun) // GRID_US + 1 - sum(at >= begun for at in taken)
    assert unused < played.given_back / 4, "nearly every place was taken"


@NETWORKS
def test_where_jitter_is_less_than_the_grid_no_call_overtakes(store: Network) -> None:
    slow = Fleet(50, "2/s", store, store, seconds=20)
    assert widest_jitter_us(slow) < SECOND_US // 2
    assert run(slow).overtaken() == 0
    assert run(BUSY._replace(store=FAR)).overtaken() > 0.1


def test_the_same_seed_gives_the_same_run() -> None:
    assert run(BUSY) == run(BUSY)
    assert run(BUSY).calls != run(BUSY._replace(seed=2)).calls


def test_ways_are_log_normal_within_their_bounds() -> None:
    chance = random.Random(1)
    ways = sorted(FAR.way_us(chance) for _ in range(2_000))
    assert FAR.least_us <= ways[0] < ways[-1] <= FAR.most_us
    assert ways[1_000] == pytest.approx(FAR.median_us, rel=0.05)
    assert ways[1_682] / ways[1_000] == pytest.approx(1.284, rel=0.05)  # e to the sigma


def test_windows_are_counted_as_one_would_by_hand() -> None:
    chance = random.Random(1)
    for _ in range(200):
        instants = [chance.randrange(60) for _ in range(chance.randrange(1, 20))]
        window = chance.randrange(1, 30)
        by_hand = max(sum(start <= at < start + window for at in instants) for start in range(-30, 60))
        assert most_in_window(instants, window) == by_hand
