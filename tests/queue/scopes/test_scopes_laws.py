"""Scopes: whatever calls come, and whatever is held, a call is delayed by its own scope alone."""

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock
from shapekit.keys import scoped

from .scoped_servers import HOST, Client, Discord, GitHub, until

requests = st.lists(
    st.tuples(
        st.integers(0, 20_000),  # when, in milliseconds
        st.sampled_from(["/users/a", "/search/a"]),
    ),
    min_size=1,
    max_size=40,
)


def run(server, client, story, backend):
    """Every call comes at its time; returns when each came, by number."""
    came_at = {}

    async def one(number, at_ms, path, method):
        await until(server.clock, at_ms / 1e3)
        came_at[number] = server.clock.now()
        await client.asend(path, method)

    async def all_of_them():
        async with anyio.create_task_group() as tasks:
            for number, (at_ms, path, method) in enumerate(story):
                tasks.start_soon(one, number, at_ms, path, method)

    anyio.run(all_of_them, backend=backend)
    return came_at


@settings(max_examples=40)
@given(requests, st.sampled_from(["asyncio", "trio"]))
def test_calls_of_a_spent_scope_wait_and_the_others_leave_at_once(story, backend):
    clock = ManualClock(autojump=True)
    github = GitHub(clock)
    client = Client(github, clock=clock, name="github")
    client.send("/users/a")
    client.send("/search/a")
    # A thousandth apart, so that each answer is there before the next request.
    apart = [(1 + at * 50 + number, f"{path}/{number}", "GET") for number, (at, path) in enumerate(story)]
    came_at = run(github, client, apart, backend)
    others = [seen for seen in github.seen if seen.scope == "core"][1:]
    came = sorted((came_at[number], path) for number, (_, path, _) in enumerate(apart) if "users" in path)
    assert [(seen.at, seen.path) for seen in others] == came
    assert {seen.status for seen in github.seen} == {200}
    searches = [seen.path for seen in github.seen if seen.scope == "search"][1:]
    numbers = sorted(
        (came_at[number], number) for number, (_, path, _) in enumerate(apart) if "search" in path
    )
    assert searches == [apart[number][1] for _, number in numbers]


holds = st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 2_000)), max_size=6)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.sampled_from(["users", "search"])), max_size=25),
    holds,
    st.sampled_from(["asyncio", "trio"]),
)
def test_every_call_leaves_as_soon_as_its_own_scope_is_not_held(story, holds, backend):
    clock = ManualClock(autojump=True)
    github = GitHub(clock, search=10**6)
    client = Client(github, clock=clock, name="github")
    client.send("/users")
    client.send("/search")
    shaper = client.request_shaper._main.policy.shaper
    # Requests come at odd tenths of a millisecond, holds begin and end at even ones.
    story = [(at + 0.1, f"/{path}", "GET") for at, path in story]

    async def hold(at_ms, length_ms):
        await until(clock, at_ms / 1e3)
        shaper.hold(length_ms / 1e3, key=scoped(HOST, "search"))

    def free_at(at_ms):
        while blocking := [at + length for at, length in holds if at <= at_ms < at + length]:
            at_ms = max(blocking)
        return at_ms

    async def all_of_them():
        async with anyio.create_task_group() as tasks:
            for one in holds:
                tasks.start_soon(hold, *one)
            for at_ms, path, _ in story:
                tasks.start_soon(come, at_ms, path)

    async def come(at_ms, path):
        await until(clock, at_ms / 1e3)
        await client.asend(path)

    anyio.run(all_of_them, backend=backend)
    expected = [(at if path == "/users" else free_at(at), path) for at, path, _ in story]
    seen = [(round(seen.at * 1e3, 3), seen.path) for seen in github.seen[2:]]
    assert sorted(seen) == sorted(expected)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 30_000), st.sampled_from(["messages", "pins", "typing"])), max_size=25),
    st.sampled_from(["asyncio", "trio"]),
)
def test_nothing_of_a_held_scope_leaves_until_it_ends_and_all_in_order(story, backend):
    clock = ManualClock(autojump=True)
    discord = Discord(clock)
    client = Client(discord, rate="100/s", burst=1, clock=clock, name="discord", feedback="hold")
    for last in ("messages", "pins", "typing"):
        client.send(f"/1/{last}")
    story = [(20_000 + at * 7 + number, f"/1/{last}", "GET") for number, (at, last) in enumerate(story)]
    came_at = run(discord, client, story, backend)
    assert 429 not in [seen.status for seen in discord.seen]
    for scope in ("get-messages", "pins"):
        order = [
            n
            for n in sorted(came_at, key=lambda n: (came_at[n], n))
            if discord.scope(*story[n][2:0:-1]) == scope
        ]
        assert [story[n][1] for n in order] == [seen.path for seen in discord.seen[3:] if seen.scope == scope]
