"""A thousand waiting calls, half of which give up at random moments; seeded, in virtual time.

The calls that stay leave in the order in which they came, none later than its slot, and all of them leave.
The calls that come after them wait for none that is gone.
"""

import random
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit import Shaper
from shapekit._runtime.drivers import AsyncAlarm

pytestmark = pytest.mark.long

CROWD = 1_000
QUITTERS = 64
INTERVAL_US = 10_000
SECOND = 1_000_000


class Watched(Shaper):
    """Notes every slot that was given back."""

    def __init__(self, clock):
        super().__init__("100/s", clock=clock)
        self.given_back = set()
        given_back = self.core.give_back

        async def noted(driver, reservation):
            freed = await given_back(driver, reservation)
            assert freed
            self.given_back.add(reservation.grant.departs_at_us)
            return freed

        self.core.give_back = noted


def fate(seed, share=0.5):
    """For each call of the crowd the moment at which it gives up, in µs, or None."""
    rng = random.Random(seed)
    quitters = set(rng.sample(range(CROWD), round(CROWD * share)))
    return [
        rng.randrange(INTERVAL_US * max(1, name)) | 1 if name in quitters and name else None
        for name in range(CROWD)
    ]


def expected_delay(shaper, start_us, fates, now):
    """When a newcomer leaves: in the first place that is free, or behind the last call that has not gone."""
    last = max(start_us + name * INTERVAL_US for name, gives_up in enumerate(fates) if gives_up is None)
    free = sorted(slot for slot in shaper.given_back if now <= slot < last)
    return (free[0] if free else max(now, last + INTERVAL_US)) - now


class Outcome:
    """The calls that left, in the order in which they did, with their slots."""

    def __init__(self):
        self.rows = []

    def check(self, fates, start_us, names=None):
        stayed = [name for name in range(CROWD) if fates[name] is None]
        left = [name for name, _, _ in self.rows]
        assert sorted(left) == stayed
        assert left == stayed
        for name, promised, at in self.rows:
            assert promised == at == start_us + name * INTERVAL_US


async def crowd(shaper, clock, fates, outcome):
    """All come at once; each quitter's scope is cancelled at its moment."""
    scopes = [anyio.CancelScope() for _ in range(CROWD)]
    start_us = clock.now_us()

    async def member(name):
        with scopes[name]:
            reservation = await shaper.aschedule()
            outcome.rows.append((name, reservation.grant.departs_at_us, clock.now_us()))

    async def fates_come_true():
        for moment, name in sorted((gives_up, name) for name, gives_up in enumerate(fates) if gives_up):
            wait = start_us + moment - clock.now_us()
            if wait > 0:
                await clock.asleep(wait / SECOND, AsyncAlarm())
            scopes[name].cancel()

    async with anyio.create_task_group() as tasks:
        for name in range(CROWD):
            tasks.start_soon(member, name)
            await checkpoint()
            await checkpoint()
        tasks.start_soon(fates_come_true)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_tasks_half_of_which_are_cancelled(anyio_backend, clock, seed):
    shaper, fates, outcome = Watched(clock), fate(seed), Outcome()
    start_us = clock.now_us()
    anyio.run(crowd, shaper, clock, fates, outcome, backend=anyio_backend)
    outcome.check(fates, start_us)
    assert len(shaper.given_back) == sum(gives_up is not None for gives_up in fates)
    assert shaper.reserve().grant.wait_us == expected_delay(shaper, start_us, fates, clock.now_us())


@pytest.mark.parametrize("moment", [0.5, 3.0, 7.0])
def test_a_newcomer_in_the_middle_of_it_takes_the_first_free_place(anyio_backend, clock, moment):
    """Counting the calls that have given up by then."""
    shaper, fates, outcome = Watched(clock), fate(3), Outcome()
    start_us = clock.now_us()
    seen = []

    async def newcomer():
        await clock.asleep(moment, AsyncAlarm())
        gone = [None if gives_up and gives_up > moment * SECOND else gives_up for gives_up in fates]
        expected = expected_delay(shaper, start_us, gone, clock.now_us())
        reservation = await shaper.areserve()
        seen.append((reservation.grant.wait_us, expected))
        await reservation.acancel()

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crowd, shaper, clock, fates, outcome)
            tasks.start_soon(newcomer)

    anyio.run(main, backend=anyio_backend)
    assert [wait for wait, _ in seen] == [expected for _, expected in seen]
    assert seen[0][0] < CROWD * INTERVAL_US - moment * SECOND


def test_every_place_of_a_few_calls_that_give_up_is_used_again(anyio_backend, clock):
    """As many newcomers as quitters: no newcomer waits longer than the crowd did."""
    rng = random.Random(4)
    quitters = rng.sample(range(100, CROWD), QUITTERS)
    fates = [SECOND // 2 + name if name in quitters else None for name in range(CROWD)]
    shaper, outcome, slots = Watched(clock), Outcome(), []
    start_us = clock.now_us()

    async def newcomers():
        await clock.asleep(0.9, AsyncAlarm())
        reservations = [await shaper.areserve() for _ in range(QUITTERS + 1)]
        slots.extend(reservation.grant.departs_at_us for reservation in reservations)

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crowd, shaper, clock, fates, outcome)
            tasks.start_soon(newcomers)

    anyio.run(main, backend=anyio_backend)
    outcome.check(fates, start_us)
    standing = max(name for name in range(CROWD) if name not in quitters) + 1
    free = sorted(name for name in quitters if name < standing)
    behind = range(standing, CROWD + 1)
    assert slots == [start_us + name * INTERVAL_US for name in [*free, *behind]][: len(slots)]


@pytest.mark.parametrize("order", ["forwards", "backwards", "random"])
def test_when_all_calls_give_up_a_newcomer_does_not_wait_for_them(anyio_backend, clock, order):
    """All but the first, which has left."""
    names = list(range(1, CROWD))
    if order == "random":
        random.Random(5).shuffle(names)
    elif order == "backwards":
        names.reverse()
    fates = [None] * CROWD
    for moment, name in enumerate(names):
        fates[name] = 2 * moment + 1
    shaper, outcome = Watched(clock), Outcome()
    start_us = clock.now_us()
    anyio.run(crowd, shaper, clock, fates, outcome, backend=anyio_backend)
    outcome.check(fates, start_us)
    assert shaper.reserve().grant.wait_us == expected_delay(shaper, start_us, fates, clock.now_us())


def test_sixty_four_threads_half_of_which_give_up(by_hand, crew, until_asleep):
    """Sixteen calls each, one after another, come in a known order; every second call has a timeout."""
    shaper, rng = Watched(by_hand), random.Random(6)
    threads, rounds = 64, 16
    plans = [[rng.random() < 0.5 for _ in range(rounds)] for _ in range(threads)]
    left, gave_up, lock = [], [], threading.Lock()

    def member(plan):
        for quits in plan:
            came_at = by_hand.now_us()
            limit = rng_of[threading.get_ident()].randrange(1, threads * INTERVAL_US) | 1 if quits else None
            try:
                reservation = shaper.schedule(timeout=None if limit is None else limit / SECOND)
            except TimeoutError:
                with lock:
                    gave_up.append((came_at + limit, by_hand.now_us()))
            else:
                with lock:
                    left.append((reservation.grant.departs_at_us, by_hand.now_us()))

    rng_of = {}

    def begin(number):
        rng_of[threading.get_ident()] = random.Random(number)
        member(plans[number])

    shaper.reserve()
    for number in range(threads):
        crew.start(begin, number)
        until_asleep(by_hand, number + 1)
    by_hand.advance((threads * rounds + 1) * INTERVAL_US / SECOND)
    crew.join()
    assert len(left) + len(gave_up) == threads * rounds
    assert gave_up
    assert all(promised == at for promised, at in left)
    assert all(due == at for due, at in gave_up)
    slots = [promised for promised, _ in left]
    assert slots == sorted(set(slots))
    assert all((slot - slots[0]) % INTERVAL_US == 0 for slot in slots)
    now = by_hand.now_us()
    assert shaper.reserve().grant.wait_us <= max(0, max(slots) + INTERVAL_US - now)
