"""A crowded queue on Redis: fences and gaps as many as may be, and more.

The bounds are made small on both sides, so that short stories reach them.
"""

import hashlib
import random
from itertools import count

import pytest

from shapekit import GCRA, ManualClock, RedisStore
from shapekit.algorithms import gaps, places
from shapekit.algorithms.grant import Grant
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.rate import parse_rates
from shapekit.stores import redis_program
from shapekit.stores.script import Script, script_of

from ..redis_server import shared_server

HOLES, SLOTS = 4, 6
STEPS = 120
_fresh = count()


def small_script_of(spec, operations, mode="one"):
    text = script_of(spec, operations, mode).text
    for name, usual, small in (("MOST", 64, HOLES), ("SLOTS", 48, SLOTS)):
        assert f"{name} = " not in text or f"{name} = {usual}" in text
        text = text.replace(f"{name} = {usual}", f"{name} = {small}")
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(places, "MAX_HOLES", HOLES)
    monkeypatch.setattr(gaps, "MAX_HOLES", HOLES)
    monkeypatch.setattr(gaps, "SLOTS", SLOTS)
    monkeypatch.setattr(redis_program, "script_of", small_script_of)


@pytest.mark.parametrize(
    ("rate", "burst", "gates"),
    [("10/s", None, ()), ("7/s", 3, ()), ("10/s", None, (GCRA("100/s"),))],
    ids=["even", "odd T and a burst", "beside a gate"],
)
def test_a_crowd_that_comes_and_goes_is_the_same_in_both_languages(small, rate, burst, gates):
    queue = LeakyQueue(parse_rates(rate), burst, "smooth", gates)
    clock = ManualClock(1_000_000.0)
    store = RedisStore.from_url(shared_server().url, clock=clock, prefix=f"crowd{next(_fresh)}")
    bound = {name: store.bind("crowd", queue, name) for name in ("reserve", "cancel", "settle", "look")}
    most_fences = most_free = 0
    for seed in range(20):
        dice = random.Random(f"{rate} {seed}")
        key, state, grants = f"key{seed}", None, []
        for step in range(STEPS):
            if dice.random() < 0.3:
                clock.advance(dice.choice([0.001, 0.05, 0.1, 0.3]))
            if step < STEPS // 3 or not grants or dice.random() < 0.4:
                operation, args = "reserve", ((dice.choice([1, 1, 1, 2, 3]), None, 1_000 + step),)
            elif dice.random() < 0.9:
                operation, args = "cancel", (dice.choice(grants),)
            else:
                operation, args = "settle", ((dice.choice(grants), dice.randrange(5), 1_000 + step),)
            after, expected, _, persist = getattr(queue, operation)(state, clock.now_us(), *args)
            state = after if persist else state
            assert bound[operation](key, *args) == expected, (seed, step, operation)
            if operation == "reserve" and expected[0]:
                grants.append(Grant(*expected))
            looked = bound["look"](key)[0]
            assert looked == state, (seed, step, operation)
            fences = sum(place[3] == places.TAKEN for place in state[6])
            most_fences, most_free = max(most_fences, fences), max(most_free, len(state[6]) - fences)
    store.close()
    # Else the bounds were not reached, and this has shown nothing.
    assert most_fences == HOLES
    assert most_free == HOLES
