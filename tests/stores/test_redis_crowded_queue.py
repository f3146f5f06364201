"""A crowded queue on Redis: as much is given back as is remembered, and more.

The bounds are made small on both sides, so that short stories reach them.
"""

import hashlib
import random
from itertools import count

import pytest

from shapekit import GCRA, FixedWindow, ManualClock, Quota, RedisStore, SlidingWindow
from shapekit.algorithms import rows
from shapekit.algorithms.queue import slots
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL, LOOK, RESERVE, SETTLE
from shapekit.rate import parse_rates
from shapekit.stores.redis import protocol as redis_program
from shapekit.stores.redis.protocol import Script, script_of

from ..redis_server import shared_server

MOST, LEFT, NOTED = 4, 8, 3
STEPS = 120
_fresh = count()


def small_script_of(spec, operations, mode="one"):
    text = script_of(spec, operations, mode).text
    for usual, small in (
        ("MOST, WIDTH = 65536, 4", f"MOST, WIDTH = {MOST}, 4"),
        ("MOST, ROW, PLACE = 65536, 9, 10", f"MOST, ROW, PLACE = {MOST}, 9, 10"),
        (
            "MOST_LEFT, MOST_ROWS, MOST_SAID = 256, 65536, 64",
            f"MOST_LEFT, MOST_ROWS, MOST_SAID = {LEFT}, 16, {NOTED}",
        ),
    ):
        assert usual in text
        text = text.replace(usual, small)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@pytest.fixture
def small(monkeypatch):
    for module, name, bound in (
        (slots, "MOST", MOST),
        (slots, "MOST_LEFT", LEFT),
        (slots, "MOST_ROWS", 16),
        (slots, "MOST_SAID", NOTED),
    ):
        monkeypatch.setattr(module, name, bound)
    monkeypatch.setattr(redis_program, "script_of", small_script_of)


@pytest.mark.parametrize(
    ("rate", "burst", "gates"),
    [
        ("10/s", None, ()),
        ("7/s", 3, ()),
        ("10/s", None, (GCRA("100/s"),)),
        ("7/s burst 3; 40/min", None, ()),
        ("10/s", None, (FixedWindow(7, 1), Quota("1000/day"), SlidingWindow(30, "1m"))),
    ],
    ids=["even", "odd T and a burst", "beside a gate", "two rates", "windows and a quota"],
)
def test_a_crowd_that_comes_and_goes_is_the_same_in_both_languages(small, rate, burst, gates):
    queue = LeakyQueue(parse_rates(rate), burst, "smooth", gates)
    clock = ManualClock(1_000_000.0)
    store = RedisStore.from_url(shared_server().url, clock=clock, prefix=f"crowd{next(_fresh)}")
    bound = {name: store.bind("crowd", queue, name) for name in (RESERVE, CANCEL, SETTLE, LOOK)}
    most_rows = most_free = 0
    for seed in range(20):
        dice = random.Random(f"{rate} {seed}")
        key, state, grants = f"key{seed}", None, []
        for step in range(STEPS):
            if dice.random() < 0.3:
                clock.advance(dice.choice([0.001, 0.05, 0.1, 0.3]))
            if step < STEPS // 3 or not grants or dice.random() < 0.4:
                operation, args = RESERVE, ((dice.choice([1, 1, 1, 2, 3]), None, 1_000 + step),)
            elif dice.random() < 0.9:
                operation, args = CANCEL, (dice.choice(grants),)
            else:
                operation, args = SETTLE, ((dice.choice(grants), dice.randrange(5), 1_000 + step),)
            after, expected, _, persist = operation.step(queue)(state, clock.now_us(), *args)
            state = after if persist else state
            assert bound[operation](key, *args) == expected, (seed, step, operation)
            if operation == RESERVE and expected[0]:
                grants.append(Grant(*expected))
            looked = bound[LOOK](key)[0]
            assert unpaged(looked) == unpaged(state), (seed, step, operation)
            free, (gone_rows, *_), *_ = state[6] or (((), ()), ((),), 0)
            most_rows = max(most_rows, rows.count(gone_rows))
            most_free = max(most_free, *map(rows.count, free if gates or ";" in rate else (free,)))
    store.close()
    # Else the bounds were not reached, and this has shown nothing.
    assert most_rows >= LEFT
    assert most_free == MOST


@pytest.mark.parametrize("gates", [(SlidingWindow(500, "1m"),), (GCRA("7/s", burst=20),)])
def test_more_slots_given_back_than_are_remembered_are_not_taken_for_damage(small, gates):
    """Calls of two units, between a call of one that passes first, and more calls of one than lie in rows."""
    queue = LeakyQueue(parse_rates("10/s burst 3"), None, "smooth", gates)
    clock = ManualClock(1_000_000.0)
    store = RedisStore.from_url(shared_server().url, clock=clock, prefix=f"crowd{next(_fresh)}")
    bound = {name: store.bind("crowd", queue, name) for name in (RESERVE, CANCEL, LOOK)}
    state = None

    def checked(operation, *args):
        nonlocal state
        after, expected, _, persist = operation.step(queue)(state, clock.now_us(), *args)
        state = after if persist else state
        queue.inspect(state)
        assert bound[operation]("key", *args) == expected
        assert unpaged(bound[LOOK]("key")[0]) == unpaged(state)
        return expected

    costs = (1, 1, *(2,) * (MOST + 2), *(1,) * (8 * MOST + 4), 1)
    taken = [Grant(*checked(RESERVE, (cost, None, 7))) for cost in costs]
    for grant in (*taken[1 : MOST + 4], *taken[-2 : MOST + 3 : -1]):
        assert checked(CANCEL, grant)
    for later_us in (1, 500_000, taken[-1].wait_us):
        clock.advance(later_us / 1e6)
        assert checked(CANCEL, Grant(*checked(RESERVE, (3, None, 8))))
    store.close()


def unpaged(state):
    """A state without its pages, which come from its history."""
    if not state[6]:
        return state
    free, (gone_rows, *rest), *beside = state[6]
    flat = rows.flat(free) if state[7] == () else tuple(map(rows.flat, free))
    return (*state[:6], (flat, (rows.flat(gone_rows), *rest), *beside), state[7])
