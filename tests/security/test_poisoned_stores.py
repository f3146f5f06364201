"""No content of a store is believed or run: a poisoned state is refused or lost; a reset heals."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from shapekit import (
    GCRA,
    ConfigError,
    Gate,
    ManualClock,
    RedisStore,
    ResilientStore,
    Shaper,
    SQLiteStore,
    StoreUnavailableError,
)
from shapekit.algorithms.base import CHECK
from shapekit.cli.top import row_of
from shapekit.stores.base import DamagedStateError

from ..crew import PATIENCE_S
from ..redis_server import shared_server
from ..stores.outages import patient
from .poison import GARBAGE, LIES, NOW_US, Victim, as_text, lied, packed, trials, unpacked

PREFIX = "poisoned"
TRIALS = trials()
EACH = pytest.mark.parametrize("number", range(40))
DESCRIPTIONS = (
    *("", "[]", "{}", "null", "[" * 9_000, '["gcra",[1,1],1]', '["gcra",[NaN,1],1]', '["gcra",[1e400,1],1]'),
    *('["quota",1,"day",0,"../../etc/passwd",null,1]', '["gcra",[10,1000000],2]', b"\xff\xfe", "[[]]"),
    *('["leaky_queue",[],1,"smooth",[],[1,0]]', '["all_of",["a"],[["all_of",["a"],[[]]]]]'),
)


@pytest.fixture
def server() -> Iterator[Any]:
    with shared_server().client() as client:
        yield client
        for key in client.keys(f"{PREFIX}:*"):
            client.delete(key)


def opened(clock: ManualClock | None = None) -> RedisStore:
    # A slow machine is no outage.
    url = f"{shared_server().url}?socket_timeout={PATIENCE_S}"
    return RedisStore.from_url(url, prefix=PREFIX, clock=clock)


@EACH
def test_lies_in_redis_are_refused_or_do_no_harm(server: Any, number: int) -> None:
    chance = random.Random(number)
    for trial in chance.sample(TRIALS, 3):
        clock = ManualClock(NOW_US / 1e6) if number % 2 else None
        server.delete("nothing", *server.keys(f"{PREFIX}:*"))
        with closing(opened(clock)) as store:
            victim = Victim(store, trial, chance)
            for key in server.keys(f"{PREFIX}:{{*"):
                tag, *state = unpacked(server.get(key))
                forged = lied(state, chance)
                forged = forged if isinstance(forged, list) else [forged]
                if chance.random() < 0.1:
                    tag = chance.choice(LIES)
                server.set(key, b"".join(map(packed, [tag, *forged])))
            victim.ask_all()
            assert server.ping(), "no script goes on for ever"


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda raw: repr(raw[:12]))
def test_garbage_in_redis_is_refused_and_a_reset_heals(server: Any, garbage: bytes) -> None:
    with closing(opened()) as store:
        gate = Gate(GCRA("1/day", burst=3), name="gate", store=store)
        shaper = Shaper("1/day; 3/week", name="shaper", store=store)
        assert gate.check("k")
        assert shaper.reserve("k")
        for key in server.keys(f"{PREFIX}:{{*"):
            server.set(key, garbage)
        asks = (
            *(lambda: gate.check("k"), lambda: gate.peek("k"), lambda: gate.forecast("k")),
            *(lambda: shaper.reserve("k"), lambda: shaper.forecast(key="k")),
            lambda: shaper.hold("1s", key="k"),
        )
        for ask in asks:
            with pytest.raises((DamagedStateError, ConfigError)):
                ask()
            for key in server.keys(f"{PREFIX}:{{*"):
                server.set(key, garbage)
        assert [seen.program for seen in store.survey()] == [None, None]
        gate.reset("k")
        shaper.reset("k")
        assert gate.check("k").current == 1
        assert shaper.reserve("k").delay == 0


def test_the_error_about_a_malformed_state_names_its_key(server: Any) -> None:
    """Other refusals of Redis are no damage, even if they say so."""
    with closing(opened()) as store:
        gate = Gate(GCRA("1/day", burst=3), name="gate", store=store)
        gate.check("my key")
        [key] = server.keys(f"{PREFIX}:{{*")
        tag = server.get(key)[:5]
        server.set(key, tag + b"\xa1x")
        for ask in (gate.check, gate.peek):
            with pytest.raises(DamagedStateError, match=r"'my key'.*: a state in Redis is damaged"):
                ask("my key")
        remote = store._remote("gate", gate._program)
        conversation = remote.converse(remote.keys_of("my key"), (CHECK,), "[]")
        next(conversation)
        with pytest.raises(StoreUnavailableError, match=r"^Redis refused: MISCONF the disk is dam") as caught:
            conversation.send(ResponseError("MISCONF the disk is damaged"))
        assert not isinstance(caught.value, DamagedStateError)


@pytest.mark.parametrize("kind", ["list", "hash", "set"])
def test_another_type_at_a_key_is_refused(server: Any, kind: str) -> None:
    with closing(opened()) as store:
        gate = Gate(GCRA("1/day", burst=3), name="gate", store=store)
        assert gate.check("k")
        [key] = server.keys(f"{PREFIX}:{{*")
        server.delete(key)
        {
            "list": lambda: server.lpush(key, "x"),
            "hash": lambda: server.hset(key, "x", "y"),
            "set": lambda: server.sadd(key, "x"),
        }[kind]()
        with pytest.raises(DamagedStateError, match="WRONGTYPE"):
            gate.check("k")


@pytest.mark.parametrize("text", DESCRIPTIONS, ids=lambda text: repr(text[:24]))
def test_forged_descriptions_in_redis_are_not_believed(server: Any, text: str | bytes) -> None:
    with closing(opened()) as store:
        assert Gate(GCRA("1/day", burst=3), name="gate", store=store).check("k")
        for key in server.keys(f"{PREFIX}:program:*"):
            for field in server.hkeys(key):
                server.hset(key, field, text)
        assert [seen.key for seen in store.survey()] == ["k"]
        with closing(opened()) as others:
            # None of them matches the tag, so the state is lost, like an evicted key.
            other = Gate(GCRA("1/day", burst=5), name="gate", store=others)
            assert other.check("k").current == 1


@EACH
def test_lies_in_a_file_are_refused_or_do_no_harm(tmp_path: Path, number: int) -> None:
    chance = random.Random(number)
    for index, trial in enumerate(chance.sample(TRIALS, 3)):
        with closing(SQLiteStore(tmp_path / f"{index}.db", clock=ManualClock(NOW_US / 1e6))) as store:
            victim = Victim(store, trial, chance)

            def lie(execute: Any) -> None:
                for row, state in execute("SELECT id, state FROM records").fetchall():
                    forged = lied(json.loads(state), chance)
                    execute("UPDATE records SET state = ? WHERE id = ?", (as_text(forged), row))

            store._file.transact(lie)
            victim.ask_all()


COLUMNS = [
    *(f"UPDATE records SET {column} = ?" for column in ("state", "program", "expires_us", "written_us")),
    *("UPDATE records SET sweep_at = ?", "UPDATE records SET part = ?"),
    *("UPDATE names SET kind = ?", "UPDATE programs SET description = ?"),
    *(f"UPDATE host SET {column} = ?" for column in ("boot", "offset_us", "swept_us", "highest_us")),
    *("UPDATE records SET name = ?", "UPDATE records SET key = ?", "UPDATE names SET name = ?"),
    *("DELETE FROM host WHERE ? NOTNULL", "DELETE FROM programs WHERE ? NOTNULL"),
]


@pytest.mark.parametrize("sql", COLUMNS)
def test_no_column_of_a_file_is_believed(tmp_path: Path, sql: str) -> None:
    for number, lie in enumerate(("x", b"\xff", 1.5, -5, 2**62, "9" * 400, "[[1]]", b"[1]")):
        path = tmp_path / f"{number}.db"
        with closing(SQLiteStore(path)) as store:
            assert Gate(GCRA("1/day", burst=3), name="gate", store=store).check("k")
            store._file.transact(lambda execute: execute(sql, (lie,)))
        calls = 0
        for _ in range(2):  # the second time, by a store that opens it anew
            try:
                with closing(SQLiteStore(path)) as store:
                    gate = Gate(GCRA("1/day", burst=3), name="gate", store=store)
                    for ask in (
                        *(lambda: gate.check("k"), lambda: gate.check("other"), lambda: gate.peek("k")),
                        *(lambda: list(store.keys()), lambda: list(map(row_of, store.survey()))),
                    ):
                        try:
                            ask()
                        except (StoreUnavailableError, ConfigError):
                            calls += 1
            except (StoreUnavailableError, ConfigError):
                calls += 1
        assert calls <= 10


def harm_row(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE records SET state = '[1]' WHERE key = ?", (b"bad",))


def harm_value(server: Any, value: bytes | None) -> None:
    [key] = server.keys(f"{PREFIX}:{{gate:bad}}")
    if value is None:
        server.delete(key)
        server.lpush(key, "of another type")
    else:
        server.set(key, server.get(key)[:5] + value)


HARMS = {
    "row": lambda path, _: harm_row(path),
    "type": lambda _, server: harm_value(server, None),
    "bytes": lambda _, server: harm_value(server, b"\xc1\xc1"),
    "state": lambda _, server: harm_value(server, b"\xa1x"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["raise", "open", "closed", "local"])
@pytest.mark.parametrize("harm", HARMS)
async def test_damage_at_one_key_is_no_outage(
    server: Any, tmp_path: Path, harm: str, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limits.db"
    primary = SQLiteStore(path) if harm == "row" else opened()
    store = patient(ResilientStore(primary, on_outage=mode, share=1 if mode == "local" else None))
    gate = Gate(GCRA("1/day"), name="gate", store=store)
    assert gate.check("good")
    assert await gate.acheck("bad")
    HARMS[harm](path, server)
    if mode == "raise":
        for ask in (gate.check, gate.require, gate.peek):
            with pytest.raises(DamagedStateError, match=r"key 'bad'.*damaged"):
                ask("bad")
        with pytest.raises(DamagedStateError, match=r"key 'bad'.*damaged"):
            await gate.acheck("bad")
    else:
        answers = [gate.check("bad").allowed, (await gate.acheck("bad")).allowed]
        assert answers == {"open": [True, True], "closed": [False, False], "local": [True, False]}[mode]
    if mode == "closed":
        assert gate.check("bad").retry_after == 0.25
    assert not store.is_lost
    # The limit of the other key is used up, and stays so; the damaged key is new once it is reset.
    assert not gate.check("good")
    assert not await gate.acheck("good")
    gate.reset("bad")
    assert gate.check("bad")
    assert not await gate.acheck("bad")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (mode != "raise")  # once for all of them
    assert all("'bad'" in text and "reset the key" in text for text in messages)
    await store.aclose()


def test_an_infinite_number_is_no_state(tmp_path: Path) -> None:
    """Otherwise it would be a delay that no float can hold, and an OverflowError far from here."""
    with closing(SQLiteStore(tmp_path / "limits.db")) as store:
        gate = Gate(GCRA("1/day", burst=3), name="gate", store=store)
        gate.check("k")
        store._file.transact(
            lambda execute: execute("UPDATE records SET state = ?", (f"[{'9' * 400},0,0,0]",))
        )
        with pytest.raises(DamagedStateError, match="damaged"):
            gate.check("k")
        assert [seen.program for seen in store.survey()] == [None]


def test_a_config_error_is_not_reported_as_a_damaged_file(tmp_path: Path) -> None:
    """A ConfigError passes unchanged."""
    with closing(SQLiteStore(tmp_path / "limits.db")) as store:
        Gate(GCRA("1/day", burst=3), name="gate", store=store).check("k")
        with pytest.raises(ConfigError, match="already holds"):
            Shaper("1/s", name="gate", store=store).reserve("k")
