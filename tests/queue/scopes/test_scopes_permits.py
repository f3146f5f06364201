"""Scopes beside a bound on calls in flight: a call that waits for a part of the server is not in flight."""

from functools import partial
from itertools import pairwise

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import Concurrency, ManualClock, MemoryStore, QueueFullError
from shapekit.keys import scoped

from ...crew import Crew as Threads
from ..inflight.rooms import is_forgotten
from ..slow_store import FarStore, SlowStore
from .scoped_servers import HOST, Client, GitHub, until


@pytest.fixture(params=[MemoryStore, SlowStore, FarStore])
def store(request, clock):
    return MemoryStore(clock) if request.param is MemoryStore else request.param(clock, 0.004)


class Crowd:
    """Calls that take a while, each noted with when it began."""

    def __init__(self, clock, github, store, *, concurrency, **shaping):
        self.clock = clock
        limit = Concurrency(concurrency, lease="300d")
        self.client = Client(github, store=store, name="github", concurrency=limit, **shaping)
        self.policy = self.client.request_shaper._main.policy
        self.policy.permits._keep_leases = None  # a thread that sleeps until then would let time jump
        self.began = {}
        self.inside = self.most = 0

    async def call(self, path, length_s=0.0, **options):
        async with self.client.admission(path, **options) as admission:
            self.began[path] = self.clock.now()
            self.inside += 1
            self.most = max(self.most, self.inside)
            await until(self.clock, self.clock.now() + length_s)
            self.inside -= 1
        return admission

    async def hold(self, length):
        await self.policy.shaper.ahold(length, key=scoped(HOST, "search"))


@pytest.fixture
async def crowd(clock, github, store, request):
    """Two may be in flight. The parts of the server are known."""
    crowd = Crowd(clock, github, store, **{"concurrency": 2, **getattr(request, "param", {})})
    await crowd.client.asend("/search/first")
    await crowd.client.asend("/users/first")
    return crowd


NEAR = 0.2
"""What some trips may take, in seconds."""


@pytest.mark.anyio
async def test_calls_that_wait_for_a_part_do_not_delay_the_others(crowd, clock):
    await crowd.hold("60s")
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            await until(clock, number / 10)
            tasks.start_soon(crowd.call, f"/search/{number}", 1)
        await until(clock, 1)
        for number in range(3):
            tasks.start_soon(crowd.call, f"/users/{number}", 1)
    users = sorted(crowd.began[f"/users/{number}"] for number in range(3))
    assert users == pytest.approx([1, 1, 2], abs=NEAR)
    searches = [crowd.began[f"/search/{number}"] for number in range(5)]
    assert searches == pytest.approx([60, 60, 61, 61, 62], abs=1 + NEAR)
    assert searches == sorted(searches)
    assert min(searches) >= 59.9
    assert crowd.most == 2
    assert is_forgotten(crowd.policy)


@pytest.mark.anyio
@pytest.mark.parametrize("crowd", [{"rate": "1/10s", "burst": 1}], indirect=True)
async def test_a_part_that_is_held_while_a_call_waits_for_its_slot_ends_its_permit(crowd, clock):
    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(crowd.call, f"/search/{number}")
        await until(clock, clock.now() + 1)
        await crowd.hold("100s")
        await until(clock, clock.now() + 30)
        assert crowd.began == {}
        tasks.start_soon(crowd.call, "/users/1")
    assert crowd.began["/users/1"] < 60
    assert min(crowd.began["/search/0"], crowd.began["/search/1"]) >= 100


@pytest.mark.anyio
async def test_a_part_that_is_held_while_a_call_waits_for_its_permit_is_waited_for(crowd, clock):
    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(crowd.call, f"/users/{number}", 5)
        await until(clock, 1)
        tasks.start_soon(crowd.call, "/search/1", 1)
        await until(clock, 2)
        await crowd.hold("60s")
        await until(clock, 6)
        for number in range(2, 4):
            tasks.start_soon(crowd.call, f"/users/{number}", 5)
    assert [crowd.began[f"/users/{number}"] for number in (2, 3)] == pytest.approx([6, 6], abs=NEAR)
    assert crowd.began["/search/1"] == pytest.approx(62, abs=NEAR)


@pytest.mark.anyio
async def test_max_wait_is_for_the_part_and_the_permit_together(crowd, clock):
    await crowd.hold("60s")
    async with anyio.create_task_group() as tasks:
        await until(clock, 50)
        for number in range(2):
            tasks.start_soon(crowd.call, f"/users/{number}", 100)
        start = clock.now()
        with pytest.raises(QueueFullError) as caught:
            await crowd.call("/search/1", max_wait="30s")
    assert clock.now() >= start
    assert caught.value.delay == pytest.approx(30, abs=NEAR)
    assert caught.value.max_wait == 30
    assert "/search/1" not in crowd.began
    assert is_forgotten(crowd.policy)


@pytest.mark.anyio
async def test_a_call_waiting_behind_another_for_a_permit_is_refused_in_time(crowd, clock):
    await crowd.hold("60s")
    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(crowd.call, f"/users/{number}", 200)
        await until(clock, 1)
        tasks.start_soon(crowd.call, "/search/1")
        await until(clock, 2)
        with pytest.raises(QueueFullError):
            await crowd.call("/search/2", max_wait="68s")
        assert clock.now() == pytest.approx(70, abs=NEAR)
    assert crowd.began["/search/1"] == pytest.approx(200, abs=NEAR)


@pytest.mark.anyio
async def test_the_delay_is_the_whole_wait(crowd, clock):
    await crowd.hold("60s")
    admissions = []

    async def call():
        admissions.append(await crowd.call("/search/1"))

    async with anyio.create_task_group() as tasks:
        await until(clock, 50)
        for number in range(2):
            tasks.start_soon(crowd.call, f"/users/{number}", 20)
        await until(clock, 51)
        tasks.start_soon(call)
    assert admissions[0].delay == pytest.approx(19, abs=NEAR)
    assert crowd.began["/search/1"] == pytest.approx(70, abs=NEAR)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "after_s", [0.001, 0.003, 0.005, 0.007, 0.009, 0.011, 1.0, 59.999, 60.003, 60.007, 61]
)
async def test_calls_cancelled_at_any_moment_keep_no_permit(crowd, clock, after_s):
    await crowd.hold("60s")
    start = clock.now()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(crowd.call, f"/search/{number}", 10)
            await until(clock, start + after_s)
            scope.cancel()
    assert is_forgotten(crowd.policy)
    assert not crowd.policy.scoped._lines._lines
    async with crowd.policy.aadmit(HOST, max_wait=NEAR), crowd.policy.aadmit(HOST, max_wait=NEAR):
        pass


@pytest.mark.anyio
async def test_parts_that_are_learned_while_a_call_waits_for_its_permit_count_at_once(clock, github, store):
    crowd = Crowd(clock, github, store, concurrency=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(crowd.call, "/users/1", 5)
        await until(clock, 1)
        tasks.start_soon(crowd.call, "/search/1")
        await until(clock, 2)
        admission = crowd.client.admission("/search/2").unentered()
        crowd.policy.scoped.scopes.learn(HOST, admission.target, "search")
        await crowd.hold("60s")
        await until(clock, 7)
        tasks.start_soon(crowd.call, "/users/2")
    assert crowd.began["/users/2"] == pytest.approx(62, abs=NEAR)  # it may be of any part
    assert crowd.began["/search/1"] == pytest.approx(62, abs=NEAR)


@pytest.mark.anyio
async def test_a_call_to_a_free_part_costs_as_many_trips_as_without_parts(clock, github):
    store = SlowStore(clock, 0.004)
    crowd = Crowd(clock, github, store, concurrency=2)
    before = store.trips.total()
    await crowd.call("/users/0")
    plain = store.trips.total() - before
    await crowd.client.asend("/search/first")
    await crowd.client.asend("/users/first")
    await crowd.hold("60s")
    trips = []
    for number in range(4):
        before = store.trips.total()
        await crowd.call(f"/users/{number}")
        trips.append(store.trips.total() - before)
    assert trips == [plain + 1] * 4  # as the key is marked, they look at their own part


def test_threads_that_wait_for_a_part_do_not_delay_the_others(github):
    clock = ManualClock()
    github.clock = clock
    client = Client(github, store=MemoryStore(clock), name="github", concurrency=2)
    client.send("/search/first")
    client.send("/users/first")
    shaper = client.request_shaper._main.policy.shaper
    shaper.hold("60s", key=scoped(HOST, "search"))
    began, threads = [], Threads()

    def search(number):
        with client.admission(f"/search/{number}"):
            began.append(clock.now())

    for number in range(4):
        threads.start(search, number)
    while shaper.core.sleepers.sleeping < 4:
        pass
    for number in range(10):
        with client.admission(f"/users/{number}", max_wait=0):
            assert began == []
    clock.advance(60)
    threads.join()
    assert threads.raised() == []
    assert began == [60] * 4


INSTANT = st.integers(0, 100)
LENGTH = st.integers(1, 50)
CALL = st.tuples(INSTANT, st.sampled_from(["/users", "/search"]), LENGTH, st.none() | LENGTH)


@settings(max_examples=100)
@given(
    st.lists(CALL, min_size=4, max_size=15),
    st.lists(st.tuples(INSTANT, LENGTH), max_size=4),
    st.integers(1, 3),
    st.sampled_from(["asyncio", "trio"]),
)
def test_a_call_waits_while_its_part_is_held_or_all_permits_are_taken_and_no_longer(
    story, holds, limit, backend
):
    """Some calls are cancelled before they end, wherever they are."""
    clock = ManualClock(autojump=True)
    crowd = Crowd(clock, GitHub(clock, search=10**6), MemoryStore(clock), concurrency=limit)
    # Calls come and end at odd seconds, holds at even ones.
    held = [(10 + 4 * at, 10 + 4 * (at + length)) for at, length in holds]
    waited, in_flight = [], []

    async def hold(start, end):
        await until(clock, start)
        await crowd.hold(f"{end - start}s")

    async def come(at, path, length, is_cancelled):
        await until(clock, at)
        began = None
        with anyio.CancelScope() as scope:
            is_cancelled(scope)
            async with crowd.client.admission(path):
                began = clock.now()
                await until(clock, began + length)
        waited.append((at, clock.now() if began is None else began, path))
        if began is not None:
            in_flight.append((began, clock.now(), path))

    async def cancel(at, scope):
        await until(clock, at)
        scope.cancel()

    async def all_calls():
        await crowd.client.asend("/search/first")
        await crowd.client.asend("/users/first")
        async with anyio.create_task_group() as tasks:
            for span in held:
                tasks.start_soon(hold, *span)
            for at, path, length, patience in story:
                gives_up = 11 + 4 * (at + patience) if patience else 10**6
                is_cancelled = partial(tasks.start_soon, cancel, gives_up)
                tasks.start_soon(come, 11 + 4 * at, path, 4 * length, is_cancelled)

    anyio.run(all_calls, backend=backend)
    instants = {instant for start, end, *_ in [*waited, *in_flight, *held] for instant in (start, end)}
    for span in pairwise(sorted(instants)):
        inside = [path for *during, path in in_flight if overlaps(during, span)]
        is_held = any(overlaps(during, span) for during in held)
        assert len(inside) <= limit
        for *during, path in waited:
            if overlaps(during, span):
                assert len(inside) == limit or (is_held and path == "/search")
    searches = [began for began, _, path in in_flight if path == "/search"]
    # Where one hold ends as another begins, a call may leave between the two.
    assert not any(start < began < end for began in searches for start, end in held)
    assert is_forgotten(crowd.policy)


def overlaps(one, other):
    return one[0] < other[1] and other[0] < one[1]
