"""A survey sees every live key with its program and its exact state, and leaves no trace."""

import random
import sqlite3
import zlib

import pytest

from shapekit import GCRA, ConfigError, Gate, ManualClock, Policy, RedisStore, Shaper, SQLiteStore
from shapekit.algorithms.base import CHECK, FORECAST, PEEK
from shapekit.algorithms.inflight import ENTER
from shapekit.algorithms.queue.wire import LOOK, RESERVE
from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.sqlite import SqliteSurvey
from shapekit.testing.timelines import GROUPS

from ..redis_server import shared_server

START_S = 10**9
NAME = "survey of: {all}"


@pytest.fixture(params=["redis", "sqlite"])
def make_store(request, tmp_path):
    """Makes stores that share their keys, with a clock or their own time."""
    made = []
    prefix = f"survey-{tmp_path.name}"

    def make(clock=None):
        if request.param == "redis":
            store = RedisStore.from_url(shared_server().url, prefix=prefix, clock=clock)
        else:
            store = SQLiteStore(tmp_path / "limits.db", clock=clock)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def key_of(trial, index):
    if not trial.apart:
        return f"k{index}"
    return tuple(f"k{index >> place & 1}" for place, _ in enumerate(trial.program.names))


def play(rng, store, clock, name, trial):
    """Some calls on three keys."""
    operation = ENTER if trial.is_room else RESERVE if trial.is_queue else CHECK
    call = store.bind(name, trial.program, operation)
    for number in range(1, 13):
        clock.advance(rng.choice((0, rng.randrange(trial.scale_us + 1))) / SECOND_US)
        wait = rng.choice((None, trial.scale_us))
        args = ((1, wait, rng.getrandbits(50)),) if trial.is_queue else (1,)
        if trial.is_room:
            args = (rng.randrange(3), number, 1)
        call(key_of(trial, rng.randrange(3)), *args)


def answers(store, name, trial, key):
    """All that a store answers about a key without changing it."""
    if trial.is_queue or trial.is_room:
        return store.bind(name, trial.program, LOOK)(key)[0]
    reads = ((PEEK,), (FORECAST, 1))
    return [store.bind(name, trial.program, operation)(key, *args) for operation, *args in reads]


def worked_out(seen, name, trial, key):
    """The same, computed from a survey."""
    places = [(name, "", key)]
    if trial.apart:
        places = [(name, *place) for place in zip(trial.program.names, key, strict=True)]
    live_keys = [seen.get(place) for place in places]
    states = [live_key and live_key.state for live_key in live_keys]
    if not any(live_keys):
        return None
    now, skew = next(live_key[5:7] for live_key in live_keys if live_key)
    state, program = (tuple(states) if trial.apart else states[0]), trial.program
    if trial.is_queue or trial.is_room:
        return state
    return [program.peek(state, now, skew), program.forecast(state, now, 1, skew)]


@pytest.mark.parametrize("kind", list(GROUPS))
def test_a_survey_sees_the_states_as_they_are(make_store, kind):
    rng, clock = random.Random(kind), ManualClock(START_S)
    store = make_store(clock)
    compared = 0
    for number, trial in enumerate(GROUPS[kind]()):
        name = f"{NAME} {number}"
        play(rng, store, clock, name, trial)
        for _ in range(3):
            seen = {live_key[:3]: live_key for live_key in store.survey(f"{name}:")}
            for index in range(3):
                key = key_of(trial, index)
                computed = worked_out(seen, name, trial, key)
                if computed is not None:
                    assert computed == answers(store, name, trial, key)
                    compared += 1
            clock.advance(rng.randrange(trial.scale_us // 4 + 1) / SECOND_US)
        programs = trial.program.parts if trial.apart else (trial.program,)
        assert {live_key.program for live_key in seen.values()} <= {*programs}
    assert compared > 3
    store.reset_all(NAME)
    assert list(store.survey(NAME)) == []


def test_a_survey_shows_the_same_keys_as_keys(make_store):
    store = make_store()
    for name in ("a", "a:b", "{}"):
        gate = Gate(GCRA("1/h"), name=name, store=store)
        assert all(gate.check(key) for key in ("", "b:c", "}", "é" * 3))
    assert sorted(live_key.shown for live_key in store.survey()) == sorted(store.keys())
    assert {live_key.shown for live_key in store.survey("a:b")} == set(store.keys("a:b"))


def test_a_survey_prolongs_and_changes_nothing_on_redis():
    store = RedisStore.from_url(shared_server().url, prefix="survey-untouched")
    shaper = Shaper("1/min", name="untouched", store=store)
    for key in map(str, range(30)):
        assert shaper.reserve(key)
    client = shared_server().client()

    def kept():
        keys = sorted(client.keys("survey-untouched:*"))
        return {key: zlib.crc32(client.dump(key)) for key in keys}, [client.pttl(key) for key in keys]

    before, lives = kept()
    assert len(before) == 31, "30 states, and what the program is"
    assert len(list(store.survey())) == 30
    after, lives_after = kept()
    assert after == before
    assert all(late <= early for early, late in zip(lives, lives_after, strict=True))
    store.reset_all()
    client.close()
    store.close()


class Repeating:
    """A client whose server lists each key twice, as a server may while its table grows."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def scan_iter(self, **options):
        for key in self._client.scan_iter(**options):
            yield from (key, key)


@pytest.mark.parametrize("kind", [Repeating, None])
def test_clients_may_repeat_and_decode(kind):
    with shared_server().client(decode_responses=kind is None) as client:
        store = RedisStore(kind(client) if kind else client, prefix="survey-clients")
        shaper = Shaper(
            "1/min; 5/h", name="api", store=RedisStore.from_url(shared_server().url, prefix=store.prefix)
        )
        assert all(shaper.reserve("é").accepted for _ in range(2))
        (live_key,) = store.survey()
        assert (live_key.shown, live_key.program) == ("api:é", shaper.core.queue)
        assert live_key.state == shaper.core.look.call("é")[0]
        shaper.reset("é")
        shaper.core.store.close()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_keys_that_a_client_cannot_decode_are_found(encoding):
    # Any JSON may bring a key with half of a surrogate pair; and no client reads Redis as another one writes.
    keys = ["é", "\ud800"]
    with shared_server().client(decode_responses=True, encoding=encoding) as client:
        store = RedisStore(client, prefix=f"survey-{encoding}")
        gate = Gate(GCRA("1/h", burst=2), name="api", store=store)
        policy = Policy("1/h", name="\ud801", store=store)
        policy.configure("2/h")
        assert all(gate.check_many(keys))
        assert sorted(store.keys()) == [f"api:{key}" for key in sorted(keys)]
        assert sorted(live_key.key for live_key in store.survey()) == sorted(keys)
        assert [*store.all_overrides()] == ["\ud801"]
        assert store.reset_all() == len(keys)
        assert list(store.keys()) == []
        policy.unconfigure()


def test_a_key_without_a_description_is_seen_as_unknown():
    store = RedisStore.from_url(shared_server().url, prefix="survey-unknown")
    client = shared_server().client()
    Gate(GCRA("1/h"), name="told", store=store).check("a")
    client.delete("survey-unknown:program:told")
    client.set("survey-unknown:{told:text}", "not ours", px=60_000)
    client.hset("survey-unknown:{told:hash}", "not", "ours")
    seen = {live_key.key: live_key for live_key in store.survey()}
    assert {live_key.program for live_key in seen.values()} == {None}
    assert {key: live_key.is_damaged for key, live_key in seen.items()} == {
        "a": False,
        "text": True,
        "hash": True,
    }
    for key in client.keys("survey-unknown:*"):
        client.delete(key)
    client.close()
    store.close()


def test_damaged_states_are_seen_as_such(make_store, tmp_path):
    store = make_store()
    assert Gate(GCRA("1/h"), name="api", store=store).check("a")
    if isinstance(store, SQLiteStore):
        with sqlite3.connect(tmp_path / "limits.db") as file:
            file.execute("UPDATE records SET state = '[1,'")
        file.close()
    else:
        client = shared_server().client()
        (key,) = client.keys(f"{store.prefix}:{{*")
        client.set(key, client.get(key)[:5] + b"\xd9", px=60_000)
        client.close()
    (live_key,) = store.survey()
    assert (live_key.program, live_key.state, live_key.is_damaged) == (None, None, True)


def test_a_survey_needs_no_place_in_the_queue_for_the_file(tmp_path):
    store = SQLiteStore(tmp_path / "limits.db")
    assert Gate(GCRA("1/h"), name="api", store=store).check("a")
    other = SqliteSurvey(str(tmp_path / "limits.db"))

    def meanwhile(execute):
        execute("UPDATE records SET state = 'null'")
        assert [live_key.state is None for live_key in store.survey()] == [False]
        assert [live_key.shown for live_key in other.live_keys("")] == ["api:a"]

    store._file.transact(meanwhile)
    store.close()


def test_writers_go_on_during_a_survey(make_store):
    store = make_store()
    gate = Gate(GCRA("1/h"), name="api", store=store)
    for key in map(str, range(1_100)):
        gate.check(key)
    looking = store.survey()
    met = [next(looking).shown]
    assert gate.check("more")
    assert not gate.check("7")
    met += [live_key.shown for live_key in looking]
    assert {f"api:{key}" for key in range(1_100)} <= set(met)
    assert len(met) == len(set(met))
    store.reset_all("api:")


def test_a_survey_alone_agrees_with_the_store_on_the_time(tmp_path):
    store = SQLiteStore(tmp_path / "limits.db")
    assert Shaper("1/min", name="api", store=store).reserve("a")
    before = store.clock.now_us()
    (live_key,) = SqliteSurvey(str(tmp_path / "limits.db")).live_keys("")
    assert before <= live_key.now_us <= store.clock.now_us()
    store.close()


def test_a_file_that_cannot_be_surveyed_raises(make_store, tmp_path, refused):
    store = make_store()
    refused(lambda: store.survey(5), "prefix")
    with pytest.raises(StoreUnavailableError, match=r"cannot read .*directory writable"):
        list(SqliteSurvey(str(tmp_path / "not-there.db")).live_keys(""))
    assert not (tmp_path / "not-there.db").exists()
    with sqlite3.connect(tmp_path / "others.db") as file:
        file.execute("CREATE TABLE records (id)")
    file.close()
    with pytest.raises(ConfigError, match="is not a file of a SQLiteStore"):
        list(SqliteSurvey(str(tmp_path / "others.db")).live_keys(""))
