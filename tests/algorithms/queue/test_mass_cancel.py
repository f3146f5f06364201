"""However many calls are cancelled, in whatever order: the queue is the queue without them."""

import asyncio
import random

import pytest

from shapekit import GCRA, ManualClock, Quota, RedisStore, Shaper, SQLiteStore, any_of
from shapekit.algorithms import rows

from ...redis_server import shared_server
from .setups import ALIGNED, ALWAYS

START_S = 1_000_000_000
LONG = "3650d"
RATES = {
    "a rate": (("10/s",), {}),
    "100 a minute": (("10/s; 100/min",), {}),
    "100 an hour": (("2/s; 100/h",), {}),
    "README": (("25/s; 1000/min",), {}),
    "a quota": (("10/s",), {"gates": (Quota("1_000/day"),)}),
    "a burst under a window": (("5/s burst 4; 40/min",), {}),
    "only a window": (("50/min",), {"pace": "burst"}),
    "a gate": (("10/s",), {"gates": (GCRA("7/s", burst=20),)}),
    "a gate that is wider": (("10/s",), {"gates": (GCRA("20/s", burst=40),)}),
    "a choice": (("10/s",), {"gates": (any_of(one=GCRA("3/s", burst=5), other=GCRA("4/s", burst=2)),)}),
}
EACH = pytest.mark.parametrize("setup", RATES)


def made(setup, clock=None, store=None):
    args, options = RATES[setup]
    where = {"clock": clock or ManualClock(START_S)} if store is None else {"store": store, "name": "api"}
    return Shaper(*args, **options, **where, max_wait=LONG)


def delays(shaper, count=120):
    return [shaper.reserve().delay for _ in range(count)]


@EACH
@pytest.mark.parametrize("living", [0, 3])
def test_when_all_are_cancelled_a_newcomer_waits_as_long_as_the_limits_require(setup, living):
    crowd, replay = made(setup), made(setup)
    for shaper in (crowd, replay):
        for _ in range(living):
            shaper.reserve()
    slots = [crowd.reserve() for _ in range(1_500)]
    random.Random(setup).shuffle(slots)
    assert all(slot.cancel() for slot in slots)
    assert delays(crowd) == delays(replay)
    assert not any(slot.cancel() for slot in slots)


@EACH
def test_when_half_are_gone_newcomers_have_their_places(setup):
    crowd = made(setup)
    slots = [crowd.reserve() for _ in range(1_001)]
    gone = random.Random(setup).sample(slots[1:-1], 500)
    assert all(slot.cancel() for slot in gone)
    assert delays(crowd, 500) == sorted(slot.delay for slot in gone)
    assert crowd.reserve().delay >= slots[-1].delay


@pytest.mark.parametrize("name", sorted(ALWAYS | ALIGNED))
def test_cancelled_calls_of_any_cost_leave_nothing_either(name):
    args, options, _ = (ALWAYS | ALIGNED)[name]
    crowd, replay = (Shaper(*args, **options, clock=ManualClock(START_S), max_wait=LONG) for _ in range(2))
    dice = random.Random(name)
    for cost in [dice.randint(1, 4) for _ in range(5)]:
        assert crowd.reserve(cost=cost).delay == replay.reserve(cost=cost).delay
    slots = [crowd.reserve(cost=dice.randint(1, 4)) for _ in range(300)]
    dice.shuffle(slots)
    assert all(slot.cancel() for slot in slots)
    assert delays(crowd, 30) == delays(replay, 30)


@pytest.mark.parametrize("setup", ["a rate", "100 a minute", "a quota", "a gate"])
def test_every_store_answers_the_same_after_many_cancellations(setup, tmp_path):
    answers = []
    for where in ("memory", "SQLite", "Redis"):
        clock = ManualClock(START_S)
        store = None
        if where == "SQLite":
            store = SQLiteStore(tmp_path / "mass.db", clock=clock)
        elif where == "Redis":
            store = RedisStore.from_url(shared_server().url, clock=clock, prefix=f"mass {setup}")
        crowd = made(setup, clock, store)
        slots = [crowd.reserve() for _ in range(200)]
        order = random.Random(1).sample(slots, 200)
        assert all(slot.cancel() for slot in order[:100])
        half = delays(crowd, 110)
        cancelled = [slot.cancel() for slot in order[100:]]
        assert all(cancelled)
        answers.append((half, delays(crowd, 20)))
        if store is not None:
            store.close()
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("setup", ["100 a minute", "README", "a quota"])
def test_a_task_group_that_fails_leaves_nothing_behind(setup):
    async def scene():
        clock = ManualClock(START_S)
        crowd = made(setup, clock)
        replay = made(setup)
        assert crowd.reserve().delay == replay.reserve().delay == 0

        async def fails():
            await asyncio.sleep(0)
            raise OSError

        async def all_wait():
            async with asyncio.TaskGroup() as group:
                for _ in range(1_000):
                    group.create_task(crowd.aschedule())
                group.create_task(fails())

        with pytest.raises(ExceptionGroup):
            await all_wait()
        assert delays(crowd) == delays(replay)

    asyncio.run(scene())


def test_a_hundred_thousand_take_no_more_than_is_stated():
    """What is remembered of them: a row for every second one at the very most, and none when all are gone."""
    crowd = made("a quota")
    slots = [crowd.reserve() for _ in range(4_000)]
    for slot in slots[1::2]:
        assert slot.cancel()
    (places, _), (gone, *_), *_ = crowd.core.look.call("default")[0][6]
    # The last of the calls was at the tail.
    assert (rows.count(places), rows.count(gone)) == (2_000 - 1, 2_000)
    for slot in slots[::2]:
        assert slot.cancel()
    (places, _), (gone, *_), *_ = crowd.core.look.call("default")[0][6]
    assert (rows.count(places), rows.count(gone)) == (0, 1)
