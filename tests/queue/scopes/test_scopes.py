"""Scopes: a hold for a part of a server stops that part, and nothing else; in virtual time."""

import copy
import threading
from enum import Enum

import anyio
import pytest

from shapekit import ManualClock, MemoryStore, QueueFullError, SQLiteStore, StoreUnavailableError, off
from shapekit._adapters.http import Target, observe
from shapekit._runtime.drivers import TASKS, run
from shapekit.events import Cancelled, Departed, Held, Reserved
from shapekit.keys import scoped

from .scoped_servers import HOST, Client, Discord, request_of, until


@pytest.fixture
def store(clock):
    return MemoryStore(clock=clock)


@pytest.fixture
def client(github, store):
    return Client(github, store=store, name="github")


@pytest.fixture
def held(client):
    """A client that knows two routes, the scope of one of which is held for a minute."""
    client.send("/users/a")
    for number in range(3):
        client.send(f"/search/{number}")
    return client


@pytest.fixture
def alike(store):
    """What is stored, to be compared."""
    return lambda: copy.deepcopy([(table.states, table.ends) for _, table in store._records.tables()])


# what is held


def test_a_scope_that_is_spent_is_held_before_it_refuses_and_others_go_on(held, github):
    assert held.send("/users/a").delay == 0
    assert github.clock.now() == 0
    assert held.send("/search/0").delay == 6
    assert [seen.status for seen in github.seen] == [200] * 6


def test_the_scope_of_a_key_is_that_of_the_text_it_is_equal_to(github, store):
    key = Enum("Tenant", {"ACME": "acme"}, type=str).ACME
    client = Client(github, store=store, name="github", key=lambda _: key)
    client.send("/users/a")
    for number in range(3):
        client.send(f"/search/{number}")
    assert client.request_shaper.policy.shaper.held(key=scoped("acme", "search")) == 6


def test_a_new_route_goes_by_the_routes_above_it(held):
    assert held.send("/users/b").delay == 0
    assert held.send("/search/other").delay == 6


def test_a_route_that_may_be_of_any_scope_waits_for_known_holds(held):
    assert held.send("/rate_limit").delay == 6


def test_a_refusal_about_everything_holds_everything(held, github):
    refusal = type(
        "Secondary", (), {"status": 403, "headers": {"Retry-After": "90", "X-GitHub-Request-Id": "1"}}
    )
    with held.admission("/users/a") as admission:
        run(observe, admission, refusal)
    assert held.send("/users/a").delay == 90


def test_without_a_route_the_whole_key_is_held(github, store):
    client = Client(github, store=store, name="github")
    policy = client.request_shaper._main.policy
    with policy.admit(HOST) as admission:
        github.used["search", 0] = 2
        assert admission.observe(github("GET", "/search")).scope == "search"
    assert client.send("/users/a").delay == 6


def test_where_nothing_is_enforced_nothing_is_held(github, store):
    client = Client(github, store=store, name="github", enforce=False)
    for number in range(4):
        assert client.send(f"/search/{number}").delay == 0
    assert list(store.keys()) == [f"github:{HOST}"]


def test_shaping_switched_off_waits_for_nothing(held):
    with off():
        assert held.send("/search/0").delay == 0


def test_keys_do_not_share_their_scopes(held):
    assert held.send("/search/0", key="tenant").delay == 0


def test_discord_s_routes_share_buckets(clock):
    client = Client(Discord(clock), clock=clock)
    client.send("/channels/1/messages", "GET")
    client.send("/channels/1/pins")
    client.send("/channels/1/typing")
    assert client.send("/channels/1/pins").delay == 5
    assert client.send("/channels/1/messages", "GET").delay == 0
    assert 429 not in [seen.status for seen in client.server.seen]


def test_discord_s_channels_have_counts_of_their_own_in_a_bucket(clock):
    client = Client(Discord(clock), clock=clock)
    for _ in range(2):
        client.send("/channels/1/pins")
    assert client.send("/channels/2/pins").delay == 0
    assert client.send("/channels/2/typing").delay == 0
    assert client.send("/channels/2/pins").delay == 5
    assert client.send("/channels/3/pins").delay == 0
    assert 429 not in [seen.status for seen in client.server.seen]


# the wait


def test_a_wait_too_long_is_refused_at_once_and_costs_nothing(held, github, alike):
    before = alike()
    for options in ({"max_wait": "5s"}, {"fits_s": 5.0}):
        with pytest.raises(QueueFullError) as caught:
            held.send("/search/0", **options)
        error = caught.value
        assert (error.delay, error.max_wait, error.retry_after) == (6, 5, 1)
        assert error.key == scoped(HOST, "search")
        assert error.held
    assert github.clock.now() == 0
    assert alike() == before
    assert held.send("/search/0", max_wait="6s").delay == 6


def test_a_slot_too_far_away_is_refused_before_the_wait_for_the_scope(github, store, alike):
    client = Client(github, store=store, name="github", rate="1/min", burst=3)
    for number in range(3):
        client.send(f"/search/{number}")
    client.request_shaper._main.policy.shaper.hold("100s", key=HOST)
    before = alike()
    with pytest.raises(QueueFullError) as caught:
        client.send("/search/0", max_wait="80s")
    assert (github.clock.now(), caught.value.key) == (0, HOST)
    assert caught.value.delay > 100
    assert alike() == before


def test_both_waits_count_as_one(github, store):
    client = Client(github, store=store, name="github", rate="1 per 10s", burst=3)
    for number in range(3):
        client.send(f"/search/{number}")
    shaper = client.request_shaper._main.policy.shaper
    github.clock.advance(5)
    while shaper.reserve(HOST, max_wait=5):
        pass
    info = client.send("/search/0")
    assert info.delay == info.decision.delay == pytest.approx(github.clock.now() - 5)
    assert info.delay > 1


def test_a_timeout_ends_the_wait_and_costs_nothing(held, github, alike):
    admission = held.request_shaper._main.policy.admit(HOST, timeout="2s")
    admission.target = Target("GET", "https", HOST, None, "/search/0")
    before = alike()
    with pytest.raises(TimeoutError, match="after 2 s"), admission:
        pass
    assert github.clock.now() == 2
    assert alike() == before


# as tasks


@pytest.mark.anyio
async def test_a_slot_that_has_become_too_late_is_refused_with_the_sum_of_both_waits(github, store):
    client = Client(github, store=store, name="github", rate="1/s", burst=3)
    for number in range(3):
        client.send(f"/search/{number}")
    refusals = []

    async def waits():
        with pytest.raises(QueueFullError) as caught:
            await client.asend("/search/0", max_wait="18s")
        refusals.append((github.clock.now(), caught.value))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits)
        await until(github.clock, 5.95)
        while client.request_shaper._main.policy.shaper.reserve(HOST, max_wait=14):
            pass
    ((now, error),) = refusals
    assert (now, error.max_wait, error.key) == (6, 18, HOST)
    assert 20 <= error.delay < 22


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("at", "change", "delay"),
    [
        (2.0, lambda shaper, key: shaper.resume(key=key), 2.25),
        (5.99, lambda shaper, key: shaper.hold("20s", key=key), 25.99),
    ],
    ids=["lifted", "longer"],
)
async def test_a_hold_that_changes_is_obeyed_as_it_is_now(held, github, at, change, delay):
    left = []

    async def waits():
        left.append((await held.asend("/search/0")).delay)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits)
        await until(github.clock, at)
        change(held.request_shaper._main.policy.shaper, scoped(HOST, "search"))
    assert left == [delay]


@pytest.mark.anyio
async def test_a_route_that_may_be_of_any_scope_does_not_wait_for_holds_that_come_later(held, github):
    """Of two scopes that are held by turns, one is always held."""
    shaper = held.request_shaper.policy.shaper
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(held.asend, "/rate_limit")
        for core in (5, 15, 25):
            await until(github.clock, core)
            for scope, end in (("core", core + 6), ("search", core + 11)):
                await shaper.ahold(end - core, key=scoped(HOST, scope))
    assert held.sent[-1] == ("GET", "/rate_limit", 6)


@pytest.mark.anyio
async def test_a_route_stops_waiting_once_its_free_scope_is_learned(held, github):
    left = []

    async def waits():
        left.append((await held.asend("/rate_limit")).delay)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits)
        await until(github.clock, 1.01)
        held.request_shaper._main.policy.scoped.scopes.learn(
            HOST, Target("GET", "https", HOST, None, "/rate_limit"), "core"
        )
    assert left == [1.01]


@pytest.mark.anyio
async def test_a_task_that_was_about_to_leave_gives_its_slot_back(github, store):
    """A call of the scope waits for its slot of the key when the scope is held."""
    client = Client(github, store=store, name="github", rate="1/s", burst=1)
    await client.asend("/search/0")
    await client.asend("/users/a")
    shaper = client.request_shaper._main.policy.shaper
    passages = {}

    async def later(name, path):
        passages[name] = await client.asend(path)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later, "search", "/search/1")
        await until(github.clock, 1.5)
        await shaper.ahold("30s", key=scoped(HOST, "search"))
        await until(github.clock, 2.0)
        await until(github.clock, 2.25)
        # The slot of 2.0 was given back: a new call need not wait for the one after it.
        assert (await client.asend("/users/a")).delay == 0
    assert passages["search"].delay == 30.5
    assert [path for _, path, _ in client.sent] == ["/search/0", "/users/a", "/users/a", "/search/1"]


@pytest.mark.anyio
async def test_tasks_leave_in_order_of_arrival(held, github):
    numbers = [*range(20)]
    github.limits["search"] = 10**6

    async def at(number):
        await until(github.clock, 1 + number / 10)
        await held.asend(f"/search/in-order/{number}")

    async with anyio.create_task_group() as tasks:
        for number in reversed(numbers):
            tasks.start_soon(at, number)
    assert [path for _, path, _ in held.sent[4:]] == [f"/search/in-order/{number}" for number in numbers]
    assert {at for _, _, at in held.sent[4:]} == {6.0}


def test_threads_leave_in_order_of_arrival(github, store, clock):
    """Time moves by hand: a thread may be late, and must not find that it has come last for that."""
    clock = ManualClock()
    github.clock, github.limits["search"] = clock, 10**6
    client = Client(github, clock=clock)
    client.send("/search/0")
    client.request_shaper._main.policy.shaper.hold("2s", key=scoped(HOST, "search"))
    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=client.send, args=(f"/search/in-order/{number}",)))
        threads[-1].start()
        with clock._changed:
            assert clock._changed.wait_for(lambda: len(clock._sleepers) == len(threads), 20)
    clock.advance(2)
    for thread in threads:
        thread.join(20)
    assert [path for _, path, _ in client.sent[1:]] == [f"/search/in-order/{number}" for number in range(8)]


def test_a_thread_that_was_about_to_leave_gives_its_slot_back(github):
    clock = github.clock = ManualClock()
    client = Client(github, rate="1/s", burst=1, clock=clock)
    client.send("/search/0")
    shaper = client.request_shaper._main.policy.shaper
    thread = threading.Thread(target=client.send, args=("/search/1",))
    thread.start()
    with clock._changed:
        assert clock._changed.wait_for(lambda: clock._sleepers, 20)
    shaper.hold("3s", key=scoped(HOST, "search"))
    clock.advance(1.5)
    assert len(client.sent) == 1
    assert shaper.forecast(key=HOST).first_in == 0
    clock.advance(1.5)
    thread.join(20)
    assert client.sent[1][2] == 3


@pytest.mark.anyio
async def test_a_cancelled_wait_leaves_nothing_behind(held, github, alike):
    before = alike()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(held.asend, f"/search/{number}")
            await until(github.clock, 3)
            scope.cancel()
    assert scope.cancelled_caught
    assert alike() == before
    assert len(held.sent) == 4
    assert not held.request_shaper._main.policy.scoped._lines._lines
    assert (await held.asend("/search/0")).delay == 3


@pytest.mark.anyio
async def test_closing_wakes_waiting_calls(held, github):
    policy = held.request_shaper._main.policy
    errors = []

    async def waits():
        with pytest.raises(StoreUnavailableError) as caught:
            await held.asend("/search/0")
        errors.append((github.clock.now(), str(caught.value)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits)
        tasks.start_soon(waits)
        await until(github.clock, 2.05)
        policy.close()
    assert errors == [(2.05, "shaper 'github' was closed")] * 2


# two clients on one store


def test_clients_that_share_a_store_obey_each_other_s_scopes(tmp_path, clock, github):
    stores = [SQLiteStore(tmp_path / "limits.db", clock=clock) for _ in range(2)]
    one, other = [Client(github, store=store, name="github") for store in stores]
    for client in (one, other):
        client.send("/users/a")
    other.send("/search/b")
    one.send("/search/a")
    one.send("/search/a")
    # Neither the client that saw the answer nor the other may exceed the limit.
    assert one.send("/users/a").delay == other.send("/users/a").delay == 0
    assert other.send("/search/b").delay == pytest.approx(6)
    assert one.send("/search/a").delay == 0
    assert {seen.status for seen in github.seen} == {200}
    for store in stores:
        store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("is_straight", [False, True])
@pytest.mark.parametrize("ends", ["leaves", "is cancelled"])
async def test_a_request_whose_part_becomes_known_while_it_waits_ends_in_one_event(
    clock, github, is_straight, ends
):
    client = Client(github, rate="2/s", burst=1, name="github", clock=clock)
    request_shaper = client.request_shaper
    policy = request_shaper._main.policy
    await policy.shaper.areserve(HOST)
    events, entered = [], None

    async def call():
        nonlocal entered
        if is_straight:
            entered = await request_shaper.aenter(request_of("/search"))
        else:
            async with client.admission("/search") as entered:
                pass

    with policy.listen(events.append):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(clock, 0.2)
            policy.scoped.scopes.learn(HOST, request_of("/search"), "search")
            await policy.scoped.hold(TASKS, 1.0, HOST, "search")
            if ends == "is cancelled":
                await until(clock, 0.8)
                tasks.cancel_scope.cancel()
    reserved, held, *endings = events
    assert (type(reserved), type(held)) == (Reserved, Held)
    if ends == "leaves":
        assert endings == [Departed("github", HOST, 1, 1.2, 0.0)]
        assert entered.delay == 1.2
    else:
        assert endings == [Cancelled("github", HOST, 1, True)]


@pytest.mark.anyio
async def test_a_departure_is_one_event_also_if_the_first_part_becomes_known_just_then(clock, github):
    client = Client(github, rate="2/s", name="github", clock=clock)
    policy = client.request_shaper._main.policy
    kinds = []

    def listener(event):
        kinds.append(type(event))
        if kinds[-1] is Departed:
            policy.scoped.scopes.learn(HOST, request_of("/search"), "search")

    with policy.listen(listener):
        async with client.admission("/search"):
            pass
    assert kinds == [Reserved, Departed]
