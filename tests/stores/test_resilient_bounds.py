"""How much each mode admits, measured: greedy workers, an outage in the middle, virtual time.

Each worker tries every 10 ms until it is refused. An outage lasts, for each worker, from its first call
that failed to its first call that was answered again.
"""

from math import floor

import anyio
import pytest

from shapekit import GCRA, FixedWindow, Gate, Quota, Shaper, SlidingWindowLog, StoreUnavailableError
from shapekit._runtime.drivers import TASKS
from shapekit.testing import ManualClock, check_pace

from .outages import Host

STEP_S = 0.01
BEFORE_S, OUTAGE_S, AFTER_S = 3, 8, 14


class Worker:
    """One process: counts what it was admitted by the primary, and meanwhile."""

    def __init__(self, host, strategy, mode, share):
        self.clock = host.clock
        self.store = host.worker(mode, share)
        self.gate = Gate(strategy, store=self.store, name="gate")
        self.by_primary = []
        self.meanwhile = []
        self.lost_at = None
        self.back_at = None

    def be_greedy(self, most=50):
        for _ in range(most):
            try:
                admitted = self.gate.check().allowed
            except StoreUnavailableError:
                admitted = False
            now = self.clock.now()
            if self.store.is_lost and self.lost_at is None:
                self.lost_at = now
            if self.lost_at is not None and self.back_at is None and not self.store.is_lost:
                self.back_at = now
            if not admitted:
                return
            (self.meanwhile if self.store.is_lost else self.by_primary).append(now)

    @property
    def outage_s(self):
        return self.back_at - self.lost_at


def play(strategy, mode, workers, share=None):
    host = Host(ManualClock(100_000.0))
    crew = [Worker(host, strategy, mode, share) for _ in range(workers)]
    for step in range(round((BEFORE_S + OUTAGE_S + AFTER_S) / STEP_S)):
        host.faulty.down = BEFORE_S <= step * STEP_S < BEFORE_S + OUTAGE_S
        for worker in crew:
            worker.be_greedy()
        host.clock.advance(STEP_S)
    for worker in crew:
        assert worker.lost_at == pytest.approx(100_000 + BEFORE_S)
        assert OUTAGE_S <= worker.outage_s <= OUTAGE_S + 10.0
    return host, crew


def both(crew):
    return sorted(time for worker in crew for time in (*worker.by_primary, *worker.meanwhile))


def primary(crew):
    return sorted(time for worker in crew for time in worker.by_primary)


@pytest.mark.parametrize("mode", ["raise", "closed"])
def test_raise_and_closed_admit_nothing_and_never_more_than_the_limit(mode):
    _, crew = play(GCRA("10/s", burst=10), mode, 3)
    assert [worker.meanwhile for worker in crew] == [[], [], []]
    check_pace(both(crew), "10/s", burst=10)
    # What was not admitted: at most the rate, for as long as the last worker was without the store.
    first_back = min(worker.back_at for worker in crew) - 100_000
    missed = 10 + 10 * (BEFORE_S + OUTAGE_S + AFTER_S) - len(both(crew))
    assert missed <= 10 * (first_back - BEFORE_S) + 1


def test_open_admits_every_call():
    _, crew = play(GCRA("10/s", burst=10), "open", 2)
    for worker in crew:
        assert len(worker.meanwhile) == 50 * round(worker.outage_s / STEP_S)
    assert_one_burst_more_at_the_return(crew)


@pytest.mark.parametrize(
    ("strategy", "workers", "share"),
    [
        (GCRA("10/s", burst=10), 5, 1 / 5),
        (GCRA("10/s", burst=10), 4, 1 / 4),
        (GCRA("10/s", burst=1), 4, 1 / 4),
        (GCRA("10/s", burst=10), 2, 1),
        (GCRA("10/s", burst=10), 3, 1 / 10),
    ],
    ids=str,
)
def test_local_admits_a_burst_and_a_share_of_the_rate_for_each_worker(strategy, workers, share):
    _, crew = play(strategy, "local", workers, share)
    burst = max(1, floor(strategy.burst * share))
    for worker in crew:
        bound = burst + share * 10 * worker.outage_s
        # Greedy workers reach the bound: it is no larger than it has to be.
        assert bound - 1 - share * 10 * STEP_S <= len(worker.meanwhile) <= bound + 1e-6
        check_pace(
            [time - 100_000 for time in worker.meanwhile], f"{round(share * 1000)} per 100s", burst=burst
        )
    assert_one_burst_more_at_the_return(crew)
    total = sum(len(worker.meanwhile) for worker in crew)
    assert total <= sum(burst + share * 10 * worker.outage_s for worker in crew) + 1e-6


def assert_one_burst_more_at_the_return(crew):
    """The primary keeps its own limit over the whole time, so the return costs at most its burst."""
    check_pace([time - 100_000 for time in primary(crew)], "10/s", burst=crew[0].gate.strategy.burst)
    back_at = min(worker.back_at for worker in crew)
    at_once = sum(time == back_at for worker in crew for time in worker.by_primary)
    assert 1 <= at_once <= crew[0].gate.strategy.burst


@pytest.mark.parametrize(
    ("strategy", "part", "period_s"),
    [(FixedWindow("12 per 2s"), 3, 2), (SlidingWindowLog("12 per 2s"), 3, 2), (Quota("12/day"), 3, 86_400)],
    ids=["fixed", "log", "quota"],
)
def test_local_windows_admit_their_share_in_each_period(strategy, part, period_s):
    _, crew = play(strategy, "local", 4, 1 / 4)
    for worker in crew:
        periods = floor(worker.outage_s / period_s) + (2 if isinstance(strategy, FixedWindow) else 1)
        assert part <= len(worker.meanwhile) <= part * periods


def test_a_worker_alone_gets_its_share_and_no_more():
    """Under-admission: the others' shares lie idle."""
    _, (worker,) = play(GCRA("10/s", burst=10), "local", 1, 1 / 5)
    assert len(worker.meanwhile) <= 2 + 2 * worker.outage_s


@pytest.mark.parametrize("mode", ["raise", "open", "closed", "local"])
@pytest.mark.parametrize("back_after_s", [1.0, 6.0])
def test_granted_slots_are_kept_and_come_on_top(mode, back_after_s, anyio_backend):
    """Twenty calls wait for two seconds when the store is lost; two workers go on at half the rate each."""
    clock = ManualClock(1_000.0, autojump=True)
    host = Host(clock)
    shapers = [Shaper("10/s", store=host.worker(mode), name="shaper") for _ in range(2)]
    left = []

    async def leave(slot):
        await slot.core.leave(TASKS, slot)
        left.append((clock.now(), slot.grant.generation < 0))

    async def main():
        async with anyio.create_task_group() as tasks:
            promised = [await shapers[n % 2].areserve() for n in range(21)]
            host.faulty.down = True
            meanwhile = []
            for shaper in shapers:
                for _ in range(10):
                    try:
                        meanwhile.append(await shaper.areserve())
                    except StoreUnavailableError:
                        assert mode == "raise"
            for slot in [*promised, *filter(None, meanwhile)]:
                tasks.start_soon(leave, slot)
            await anyio.lowlevel.checkpoint()
            if back_after_s == 1.0:
                host.faulty.mend()

    anyio.run(main, backend=anyio_backend)
    kept = sorted(time for time, was_meanwhile in left if not was_meanwhile)
    assert kept == [pytest.approx(1_000 + n / 10) for n in range(21)]
    meanwhile = sorted(time for time, was_meanwhile in left if was_meanwhile)
    if mode == "local":
        assert meanwhile == [pytest.approx(1_000 + n / 5) for n in range(10) for _ in range(2)]
    else:
        assert meanwhile == ([1_000.0] * 20 if mode == "open" else [])


def test_two_local_workers_pace_as_one_shaper_does_but_for_a_burst():
    host = Host()
    shapers = [Shaper("10/s", store=host.worker("local"), name="shaper") for _ in range(2)]
    host.faulty.down = True
    departures = [
        slot.departs_at - 1_000 for shaper in shapers for _ in range(100) if (slot := shaper.reserve())
    ]
    check_pace(departures, "10/s", burst=2)
