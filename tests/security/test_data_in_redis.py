"""Whatever a key, a name or a number contains: Redis decides as memory does, or both refuse alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import GCRA, Gate, ManualClock, MemoryStore, RedisStore, ShapekitError, Shaper, SlidingWindowLog
from shapekit.algorithms.base import CHECK
from shapekit.stores.redis.protocol import script_of

from ..redis_server import shared_server

START = 1_700_000_000
INJECTIONS = (
    *("'", '"', "''", '"]]', '",1,1],["check', "]]", "}{", "{a}", "}:{", "\0", "a\0b", "*3\r\n$3\r\n"),
    *('"); redis.call("FLUSHALL") --', "]] .. os.exit() .. [[", "${7*7}", "{{7*7}}", "%s%n", "\\", "\\u0000"),
    *("1", "-0", "NaN", "inf", "1e400", "null", "false", "[]", "KEYS[1]", "ARGV[1]", "shapekit:program:gate"),
)
NUMBERS = (
    *(0, 1, 2, 3, 4, -1, 2**31, 2**53, 2**63, 10**12, 10**400, -(10**400), 1.0, 1.5, -0.0, 5e-324, 1e308),
    *(float("nan"), float("inf"), float("-inf"), True, False, None, "1", "NaN", b"1", [1], {}, ()),
)
injected = st.sampled_from(INJECTIONS)
texts = st.one_of(injected, st.text(max_size=8), st.lists(injected).map("".join))

_fresh = count()


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[MemoryStore, RedisStore]]:
    clock = ManualClock(START)
    with closing(RedisStore.from_url(shared_server().url, prefix="data", clock=clock)) as redis:
        yield MemoryStore(clock), redis
        redis.reset_all()


def outcome(ask: Callable[[], Any]) -> Any:
    """The answer, or the refusal."""
    try:
        return ask()
    except ShapekitError as error:
        return type(error), str(error)


@given(name=texts, key=texts, costs=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4))
def test_gates_on_redis_decide_as_in_memory(
    stores: tuple[MemoryStore, RedisStore], name: str, key: str, costs: list[Any]
) -> None:
    own = f"gate{next(_fresh)}{name}"
    gates = [Gate(GCRA("10/s", burst=3), name=own, store=store) for store in stores]
    for cost in costs:
        in_memory, in_redis = (outcome(lambda gate=gate: gate.check(key, cost=cost)) for gate in gates)
        assert in_memory == in_redis
    assert outcome(lambda: gates[0].peek(key)) == outcome(lambda: gates[1].peek(key))


@given(
    name=texts,
    key=texts,
    requests=st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)), min_size=1, max_size=3),
)
def test_shapers_on_redis_decide_as_in_memory(
    stores: tuple[MemoryStore, RedisStore], name: str, key: str, requests: list[Any]
) -> None:
    own = f"shaper{next(_fresh)}{name}"
    shapers = [Shaper("10/s; 12/min", name=own, store=store) for store in stores]
    for cost, wait in requests:
        outcomes = [
            outcome(lambda shaper=shaper: shaper.reserve(key, cost=cost, max_wait=wait).delay)
            for shaper in shapers
        ]
        assert outcomes[0] == outcomes[1]
        holds = [outcome(lambda shaper=shaper: shaper.hold(wait, key=key)) for shaper in shapers]
        assert holds[0] == holds[1]


@given(key=texts)
def test_a_key_touches_nothing_but_itself(stores: tuple[MemoryStore, RedisStore], key: str) -> None:
    redis = stores[1]
    with shared_server().client(db=0) as client:
        client.set("data-canary", "alive")
        gate = Gate(SlidingWindowLog("3/min"), name=f"alone{next(_fresh)}", store=redis)
        before = set(client.keys("data:{*"))
        assert gate.check(key)
        new = set(client.keys("data:{*")) - before
        assert len(new) == 1
        assert client.get("data-canary") == b"alive"
        client.delete("data-canary")


def test_scripts_do_not_depend_on_data(stores: tuple[MemoryStore, RedisStore]) -> None:
    """A script is the text of files: the numbers of a limit, its name and its keys come as arguments."""
    limits = GCRA("10/s", burst=3), GCRA("7/min", burst=99)
    one, other = (script_of(limit.twin(), (CHECK,)) for limit in limits)
    assert one.text == other.text
    assert "data" not in one.text.split()
    with shared_server().client() as client:
        for word in INJECTIONS:
            head = json.dumps([1, 0, [word, *GCRA("10/s").twin()[1:]]])
            with pytest.raises(Exception, match=r"no twin|Invalid|Expected"):
                client.eval(one.text, 1, "data:{injected}", head, json.dumps([["check", START, 0, 1]]))
            head = json.dumps([1, 0, limits[0].twin()])
            with pytest.raises(Exception, match="operation"):
                client.eval(one.text, 1, "data:{injected}", head, json.dumps([[word, START, 0, 1]]))
        assert not client.exists("data:{injected}")
