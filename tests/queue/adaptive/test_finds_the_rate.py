"""The adaptive rate finds the rate that the server bears, though the server never states it, and changes it.

Each simulation is one hour of a worker's life in a few seconds: from a minute on, at most 2 % of the calls
are refused, and as many pass as the server lets pass, but for 10 %.
"""

import pytest

from .simulation import FixedWindow, TokenBucket, simulate

pytestmark = pytest.mark.long

SETTLED_S = 60.0


def bucket(limit, **rest):
    rate = limit if callable(limit) else lambda _: limit
    return TokenBucket(rate, rate(0.0), **rest)


def window(limit, seconds):
    return FixedWindow(lambda _: limit, seconds)


def assert_found(run, limit, start, end, step=60):
    """In each minute as many passed as could, but for 10 %."""
    for at in range(int(start), int(end) - step + 1, step):
        passed = run.passed(at, at + step)
        assert abs(passed / limit - 1) <= 0.1, f"{passed:.2f}/s of {limit}/s passed from {at} s on"


SERVERS = {
    "bucket of 5/s": (lambda: bucket(5), 5),
    "bucket of 20/s": (lambda: bucket(20), 20),
    "bucket of 45/s": (lambda: bucket(45), 45),
    "windows of 1 s with 20": (lambda: window(20, 1), 20),
    "windows of 10 s with 50": (lambda: window(5, 10), 5),
    "windows of 10 s with 450": (lambda: window(45, 10), 45),
    "bucket of 20/s that does not say when": (lambda: bucket(20, retry_after=None), 20),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("server", SERVERS)
def test_a_hidden_limit_is_found_within_a_minute(server, seed):
    make, limit = SERVERS[server]
    run = simulate(make(), seconds=300, seed=seed)
    assert_found(run, limit, SETTLED_S, 300)
    assert run.refused(SETTLED_S, 300) <= 0.02


def test_a_limit_of_two_a_second_is_found_too():
    """By calls, of which there are few: it takes 100 of them, not 20 s, to come back to the ceiling."""
    run = simulate(bucket(2), seconds=420, seed=3)
    assert_found(run, 2, SETTLED_S, 420, step=120)
    assert run.refused(SETTLED_S, 420) <= 0.02


@pytest.mark.parametrize(("before", "after"), [(40, 20), (5, 2.5), (45, 10)])
def test_a_limit_that_is_lowered_is_found_within_half_a_minute(before, after):
    run = simulate(bucket(lambda now: before if now < 180 else after), seconds=360, seed=4)
    assert_found(run, before, SETTLED_S, 180)
    assert_found(run, after, 210, 360)
    assert run.refused(SETTLED_S, 360) <= 0.02


@pytest.mark.parametrize(("before", "after"), [(20, 40), (5, 10)])
def test_a_limit_that_is_raised_is_found_within_a_minute_and_a_half(before, after):
    run = simulate(bucket(lambda now: before if now < 120 else after), seconds=330, seed=5)
    assert_found(run, before, SETTLED_S, 120)
    assert_found(run, after, 210, 330)
    assert run.refused(SETTLED_S, 330) <= 0.02


@pytest.mark.parametrize("seed", [6, 16])
def test_strangers_at_the_same_limit_are_left_their_part(seed):
    """Other clients that use the limit, and how much of it they use, show only in refusals."""
    run = simulate(bucket(20), seconds=360, seed=seed, strangers=lambda now: 6 if now < 180 else 2)
    for at in (60, 120, 240, 300):
        others = sum(at <= when < at + 60 for when in run.strangers) / 60
        assert abs(run.passed(at, at + 60) / (20 - others) - 1) <= 0.1
    assert run.refused(SETTLED_S, 360) <= 0.02


def test_answers_that_come_in_any_order_change_nothing():
    """Latencies from 20 ms to 2 s: the answers to calls of two seconds arrive mixed."""
    run = simulate(bucket(20), seconds=300, seed=7, tasks=80, latency=(0.02, 2.0))
    left = [call.left for call in run.calls]
    assert left != sorted(left)
    assert_found(run, 20, SETTLED_S, 300)
    assert run.refused(SETTLED_S, 300) <= 0.02


def test_four_workers_converge_as_one():
    """One rate in the store: four find what one finds, and lower it no more often."""
    one, four = (simulate(bucket(20), seconds=300, seed=8, workers=workers) for workers in (1, 4))
    assert one.passed(60, 300) == pytest.approx(four.passed(60, 300), rel=0.03)
    lowered = [
        sum(after < before for (_, before), (_, after) in zip(run.rates, run.rates[1:], strict=False))
        for run in (one, four)
    ]
    assert abs(lowered[0] - lowered[1]) <= 0.3 * lowered[0]
    assert {call.worker for call in four.calls} == {0, 1, 2, 3}


def test_a_seed_gives_the_same_run_always():
    runs = [simulate(bucket(20), seconds=30, seed=9) for _ in range(2)]
    assert runs[0] == runs[1]
