"""After a change of a key, the process that made it gets no older answer, however fresh that is."""

import gc
import weakref

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, RedisStore, Shaper, SQLiteStore, StoreUnavailableError
from shapekit._runtime.drivers import TASKS, run
from shapekit.algorithms.queue.wire import CONFIRM

from ..redis_server import shared_server
from .slow_store import FarStore, SlowStore, in_another_process
from .stage import Stage


def shaper_on(store, rate="10/s"):
    return Shaper(rate, store=store, name="api")


@pytest.fixture(params=["memory behind a wire", "far away", "SQLite", "Redis"])
def known_already(request, clock, tmp_path):
    """A shaper on a store that is not instant, which has just looked its key up."""
    store = {
        "memory behind a wire": lambda: SlowStore(clock, 0.002),
        "far away": lambda: FarStore(clock, 0.002),
        "SQLite": lambda: SQLiteStore(tmp_path / "limits.db", clock=clock),
        "Redis": lambda: RedisStore.from_url(shared_server().url, clock=clock, prefix="own changes"),
    }[request.param]()
    shaper = shaper_on(store)
    shaper.reset()
    assert shaper.held() == 0
    yield shaper
    store.close()


def near(held_s):
    """About so many seconds: only the trips take time."""
    return pytest.approx(held_s, abs=0.01)


def test_a_shaper_that_changed_a_key_does_not_see_it_as_before(known_already):
    shaper = known_already
    shaper.hold("5s")
    assert shaper.held() == near(5)
    shaper.hold("7s")
    assert shaper.held() == near(7)
    shaper.resume()
    assert shaper.held() == near(1.5)
    shaper.reset()
    assert shaper.held() == 0


def test_a_task_that_changed_a_key_does_not_see_it_as_before(known_already, anyio_backend):
    shaper = known_already

    async def main():
        held_for = []
        for change in (lambda: shaper.ahold("5s"), lambda: shaper.ahold("7s"), shaper.aresume, shaper.areset):
            await change()
            held_for.append(await shaper.aheld())
        await shaper.core.store.aclose()
        return held_for

    assert anyio.run(main, backend=anyio_backend) == [near(5), near(7), near(1.5), 0]


def test_another_shaper_of_the_process_does_not_see_it_as_before(known_already):
    shaper, twin = known_already, shaper_on(known_already.core.store)
    other = shaper_on(known_already.core.store, "20/s")
    for one in (shaper, twin, other):
        one.hold("5s")
        assert [each.held() for each in (shaper, twin, other)] == [near(5)] * 3
        one.reset()
        assert [each.held() for each in (shaper, twin, other)] == [0] * 3


def test_a_change_of_one_key_keeps_the_answers_of_others(clock):
    store = SlowStore(clock, 0.002)
    shaper, other = shaper_on(store), Shaper("10/s", store=store, name="another api")
    for ask in (lambda: shaper.held(key="a"), lambda: shaper.held(key="b"), other.held):
        ask()
    shaper.hold("5s", key="a")
    for ask in (lambda: shaper.held(key="b"), other.held):
        assert ask() == 0
    assert store.trips[CONFIRM] == 3


def test_shapers_of_one_process_and_one_rate_share_a_question(clock):
    """One read per key and process; a life of the key has another number for those of another rate."""
    store = SlowStore(clock, 0.002)
    one, two = shaper_on(store), shaper_on(store)
    reservations = [one.reserve(), two.reserve()]
    assert [
        shaper.remaining(reservation) for shaper, reservation in zip((one, two), reservations, strict=True)
    ] == [
        near(0),
        near(0.1),
    ]
    assert store.trips[CONFIRM] == 1
    other = shaper_on(store, "20/s")
    generations = [run(shaper.core.status.ask, "default").generation for shaper in (one, other)]
    assert generations == [reservations[0].grant.generation, reservations[0].grant.generation + 1]
    assert store.trips[CONFIRM] == 2


def test_a_change_whose_answer_was_lost_may_have_happened(clock, anyio_backend):
    class Losing(SlowStore):
        def _answered(self, apply, key, args):
            answer = super()._answered(apply, key, args)
            if args:
                raise StoreUnavailableError("lost")
            return answer

    shaper = shaper_on(Losing(clock, 0.002))
    assert shaper.held() == 0
    with pytest.raises(StoreUnavailableError, match="lost"):
        shaper.hold("5s")
    assert shaper.held() == near(5)

    async def main():
        with pytest.raises(StoreUnavailableError, match="lost"):
            await shaper.ahold("9s")
        assert await shaper.aheld() == near(9)

    anyio.run(main, backend=anyio_backend)


def test_a_dropped_store_is_not_kept_alive_by_its_questions(clock):
    store = SlowStore(clock, 0.002)
    shaper = shaper_on(store)
    shaper.held()
    store.broken = StoreUnavailableError("away")
    with pytest.raises(StoreUnavailableError):
        shaper.held(key="another")
    store.broken = None
    known, questions = weakref.ref(store), weakref.ref(shaper.core.status._questions)
    del store, shaper
    gc.collect()
    assert known() is None
    assert questions() is None


@settings(max_examples=100)
@given(
    st.sampled_from(["asyncio", "trio"]),
    st.sampled_from([0.001, 0.01, 0.03, 0.1]),
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from(["ask", "ask", "own", "own of a twin", "other"])),
        min_size=1,
        max_size=25,
    ),
)
def test_an_answer_includes_all_changes_that_the_process_made_before(backend, trip, events):
    """Holds get longer and longer, so that an answer shows up to which of them it is true."""
    clock = ManualClock(1_000, autojump=True)
    store = SlowStore(clock, trip)
    shaper, twin, elsewhere = shaper_on(store), shaper_on(store), shaper_on(in_another_process(store))
    stage, done, answers = Stage(backend, clock), [], []

    async def ask(one):
        sent_us = clock.now_us()
        standing = await one.core.status.ask(TASKS, "default")
        answers.append((sent_us, standing.until_us))

    async def hold(one, length_s, *, ours):
        await one.ahold(length_s)
        if ours:
            # At half of the trip, or at most as far in the future as a longer one by another process.
            done.append((clock.now_us(), clock.now_us() - round(trip * 500_000) + length_s * 1_000_000))

    acts = {
        "ask": lambda number: ask((shaper, twin)[number % 2]),
        "own": lambda number: hold(shaper, 10 + number, ours=True),
        "own of a twin": lambda number: hold(twin, 10 + number, ours=True),
        "other": lambda number: hold(elsewhere, 10 + number, ours=False),
    }
    for number, (at, kind) in enumerate(events):
        # Some microseconds beside, so that none coincide.
        stage.at(at / 1_000 + (13 * number + 1) / 1e6, lambda kind=kind, number=number: acts[kind](number))
    stage.run()
    for sent_us, until_us in answers:
        assert until_us >= max([until for answered, until in done if answered <= sent_us], default=0)
