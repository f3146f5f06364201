"""Redis keys: any text is a key of its own, is shown again, and lies where a cluster can find it."""

from itertools import product

import pytest
import valkey
import valkey.asyncio
from celery import Celery
from hypothesis import example, given
from hypothesis import strategies as st
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.crc import key_slot

from shapekit import GCRA, ConfigError, Gate, ManualClock, RedisStore, all_of
from shapekit.integrations.celery.parking import PREFIX, Parking, _StorePark
from shapekit.stores.redis.protocol import LONGEST, Keyspace, bounded

from ..redis_server import shared_server

KEYSPACE = Keyspace("shapekit")
ANY_TEXT = st.text(st.characters(), max_size=12)
MARKS = st.text(st.sampled_from("%:{}25374BD#a\n\0*?[]\\é\ud800\U0001f600"), max_size=9)
TEXTS = MARKS | ANY_TEXT
NAMES = TEXTS.filter(bool)
PARTS = st.sampled_from(["a", "b", "ab", "a_b", "é"])
LONG = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=5), st.integers(40, 300))


def whole(name, key):
    """The key that a store makes."""
    return KEYSPACE.of_name(name) + bounded(key) + b"}"


def tag(key):
    """The part of a key by which a cluster places it."""
    start = key.index(b"{") + 1
    return key[start : key.index(b"}", start)]


def of_parts(name, keys):
    return [KEYSPACE.of_part(name, part, key) for part, key in keys]


@given(one=st.tuples(NAMES, TEXTS | LONG), other=st.tuples(NAMES, TEXTS | LONG))
@example(one=("a", "b:c"), other=("a:b", "c"))
@example(one=("a%3A", "b"), other=("a:", "b"))
@example(one=("a", "é"), other=("a", "é"))
def test_no_two_keys_are_one(one, other):
    assert (whole(*one) == whole(*other)) == (one == other)


@given(one=st.tuples(NAMES, PARTS, TEXTS | LONG), other=st.tuples(NAMES, PARTS, TEXTS | LONG))
@example(one=("n", "a", "b:c"), other=("n", "ab", "c"))
def test_no_two_parts_keys_are_one(one, other):
    assert (KEYSPACE.of_part(*one) == KEYSPACE.of_part(*other)) == (one == other)


@given(name=NAMES, key=TEXTS, other_name=NAMES, part=PARTS, other_key=TEXTS)
@example(name="a", key="}:b:c", other_name="a", part="b", other_key="c")
@example(name="a", key="", other_name="a", part="a", other_key="}")
def test_no_key_is_a_parts_key_or_a_description(name, key, other_name, part, other_key):
    assert whole(name, key) != KEYSPACE.of_part(other_name, part, other_key)
    assert KEYSPACE.of_programs(other_name) not in (whole(name, key), KEYSPACE.of_part(name, part, key))


def test_every_short_text_of_marks_is_a_key_of_its_own():
    texts = ["".join(marks) for size in range(4) for marks in product("%:{}2", repeat=size)]
    places = {(name, key): whole(name, key) for name in texts[1:] for key in texts[:31]}
    assert len(set(places.values())) == len(places) == 155 * 31


def test_prefixes_keep_apart():
    names, keys = ("a", "{", "program", "program:a"), ("", "x", "}:a:b")

    def places(space):
        yield from (space.of_programs(name) for name in names)
        yield from (space.of_name(name) + bounded(key) + b"}" for name, key in product(names, keys))
        yield from (space.of_part(name, "a", key) for name, key in product(names, keys))

    prefixes = ("shapekit", "shapekit:", "shape", "*", "shapekit:program", "shapekit:program:")
    everything = [place for prefix in prefixes for place in places(Keyspace(prefix))]
    assert len(set(everything)) == len(everything) == 6 * 28


# shown


@given(name=NAMES, key=TEXTS)
@example(name="a%3Ab}", key="}:{")
@example(name="%257B", key="")
def test_shown_is_the_name_and_the_key(name, key):
    assert KEYSPACE.shown(whole(name, key)) == f"{name}:{key}"


@given(name=NAMES, part=PARTS, key=TEXTS)
@example(name="a%3Ab}", part="a", key="}:{")
def test_shown_is_the_name_the_part_and_the_key(name, part, key):
    assert KEYSPACE.shown(KEYSPACE.of_part(name, part, key)) == f"{name}:{part}:{key}"


# others' keys

PARKING = vars(Parking(lambda *_: None, ""))
ENDINGS = [*PARKING["_keys"], *(PARKING[name] for name in ("_claims", "_taken", "_ends", "_unreadable"))]


@given(name=NAMES, part=PARTS, key=TEXTS | LONG)
@example(name="shapekit", part="celery", key="celery}:amqp://rabbit//:parked")
@example(name="a:b", part="a", key="")
@example(name="}", part="a", key="}:")
def test_keys_of_states_and_of_parked_tasks_are_distinguished(name, part, key):
    assert KEYSPACE.is_state(whole(name, key))
    assert KEYSPACE.is_state(KEYSPACE.of_part(name, part, key))
    broker = name.encode("utf-8", "surrogatepass")
    for ending in ENDINGS:
        assert not KEYSPACE.is_state(f"shapekit:{PREFIX}:".encode() + broker + ending.encode())


# slots


@given(name=NAMES, keys=st.lists(st.tuples(PARTS, TEXTS | LONG), min_size=2, max_size=4))
def test_the_parts_of_one_name_lie_in_one_slot(name, keys):
    places = of_parts(name, keys)
    assert len({key_slot(place) for place in places}) == 1
    assert len({tag(place) for place in places}) == 1
    assert tag(places[0])


@given(name=NAMES, key=TEXTS | LONG)
def test_a_key_has_a_tag_that_is_not_empty_and_names_it(name, key):
    place = whole(name, key)
    assert tag(place).startswith(KEYSPACE.of_name(name).removeprefix(b"shapekit:{"))


def test_keys_of_one_name_lie_all_over_the_cluster():
    slots = {key_slot(whole("api", f"key{n}")) for n in range(2_000)}
    assert len(slots) > 1_800


# long ones


@given(key=LONG | st.text(min_size=LONGEST - 4, max_size=LONGEST + 4))
def test_a_key_longer_than_the_bound_is_hashed(key):
    text = key.encode("utf-8", "surrogatepass")
    if len(text) <= LONGEST:
        assert bounded(key) == text
    else:
        assert LONGEST < len(bounded(key)) <= LONGEST + 8
        assert bounded(key)[:180] == text[:180]
        bounded(key).decode("utf-8", "surrogatepass")


def test_long_keys_that_differ_anywhere_stay_apart():
    long = "k" * 10_000
    texts = {long, long[:-1], long + "k", "K" + long[1:], long[:-1] + "K", long[:5_000] + "K" + long[5_001:]}
    texts |= {"é" * 129, "é" * 128 + "e", "x" + "é" * 128, "k" * LONGEST, "k" * (LONGEST + 1)}
    hashed = {bounded(text) for text in texts}
    assert len(hashed) == len(texts) == 11
    # Nor can a short key be what stands for a long one: that would itself be hashed.
    assert not hashed & {bounded(text.decode("utf-8", "replace")) for text in hashed if len(text) > LONGEST}


# on a server

AWKWARD = [
    "", " ", "\n", "\r\n", "\0", "{", "}", "{}", "}{", "a}b", "%", "%7D", ":", "*", "?", "[a]", "\\", '"',
    "'", "é", "漢字", "\U0001f600", "\ud800", "k" * 10_000, "}" * 10_000,
]  # fmt: skip


@pytest.fixture
def store(request):
    store = RedisStore.from_url(
        shared_server().url, clock=ManualClock(10**9), prefix=f"[*]\\{request.node.name}"
    )
    yield store
    store.reset_all()
    store.close()


def test_any_text_is_a_key_of_a_real_server(store):
    for name in ("n", "}", "a:b", "\n{", "é\0"):
        gate = Gate(GCRA("1/h", 2), name=name, store=store)
        for slot in range(3):
            assert [bool(gate.check(key)) for key in AWKWARD] == [slot < 2] * len(AWKWARD)
        shown = set(store.keys(f"{name}:"))
        assert shown >= {f"{name}:{key}" for key in AWKWARD if len(key) <= LONGEST}
        assert len(shown) == len(AWKWARD)
        assert store.reset_all(f"{name}:") == len(AWKWARD)
        assert list(store.keys()) == []


def test_any_text_is_a_key_of_a_part(store):
    gate = Gate(all_of(a=GCRA("1/h", 2), b=GCRA("1/h", 3)), name="{}:", store=store)
    for slot in range(3):
        assert [bool(gate.check({"a": key, "b": "all" + key})) for key in AWKWARD] == [slot < 2] * len(
            AWKWARD
        )
    assert set(store.keys()) >= {f"{{}}::a:{key}" for key in AWKWARD if len(key) <= LONGEST}
    assert store.reset_all("{}::a:") == len(AWKWARD)
    assert store.reset_all("{}::") == len(AWKWARD)


def test_tasks_that_celery_has_parked_are_no_states(store):
    park = _StorePark(Celery(broker="amqp://guest@rabbit//", set_as_current=False), store, bool)
    for name in ("one", "other"):
        park.park(name, 0, ["{}", ""])
    assert len(park.claim(60, 1)) == 1
    park.close()
    with shared_server().client() as client:
        parked = [key for key in client.scan_iter() if key.startswith(store.prefix.encode())]
        assert len(parked) == 3
        keys = ["", "}", "celery}:amqp://guest@rabbit//:parked", "a:b"]
        names = ("shapekit", "shapekit:celery", "{shapekit:celery}")
        for name in names:
            assert all(Gate(GCRA("1/h"), name=name, store=store).check_many(keys))
        of_parts = Gate(all_of(celery=GCRA("1/h"), b=GCRA("1/h")), name="shapekit:", store=store)
        assert of_parts.check({"celery": "a:b", "b": "}:"})
        states = {f"{name}:{key}" for name in names for key in keys}
        states |= {"shapekit::celery:a:b", "shapekit::b:}:"}
        assert sorted(store.keys()) == sorted(states)
        assert {row.shown for row in store.survey()} == states
        assert store.reset_all("shapekit:celery") == len(keys) + 1
        assert store.reset_all() == len(states) - len(keys) - 1
        assert client.delete(*parked) == 3


def test_a_prefix_finds_its_own_keys_alone(store):
    mine = Gate(GCRA("1/h"), name="api", store=store)
    other_store = RedisStore.from_url(shared_server().url, prefix=store.prefix.replace("[*]\\", "*"))
    other = Gate(GCRA("1/h"), name="api", store=other_store)
    assert mine.check("mine")
    assert other.check("other")
    assert list(store.keys()) == ["api:mine"]
    assert list(other_store.keys()) == ["api:other"]
    assert other_store.reset_all() == 1
    assert not mine.check("mine")
    other_store.close()


@pytest.mark.parametrize("prefix", ["", "a{b", "}", 5, None])
def test_prefixes_that_would_hide_where_a_key_lies_are_refused(prefix, refused):
    error = refused(lambda: RedisStore.from_url(shared_server().url, prefix=prefix), "prefix")
    assert isinstance(error, ConfigError)


def test_a_store_without_a_client_is_refused(refused):
    refused(RedisStore, "client")
    # A URL may contain a password, so it is not shown.
    for url in ("redis://:secret@localhost", b"redis://:secret@localhost"):
        error = refused(lambda url=url: RedisStore(url), "client")
        assert "secret" not in str(error)
    for client in (5, Redis):
        refused(lambda client=client: RedisStore(client), "client")
        refused(lambda client=client: RedisStore(aclient=client), "aclient")


def test_a_client_of_the_other_kind_is_refused(refused):
    error = refused(lambda: RedisStore(AsyncRedis(password="secret")), "client")
    assert "pass it as aclient=" in str(error)
    assert "secret" not in str(error)
    with Redis(password="secret") as client:
        assert "pass it as client=" in str(refused(lambda: RedisStore(aclient=client), "aclient"))


def test_a_client_of_valkey_py_is_refused(refused):
    for client in (valkey.Valkey(password="secret"), valkey.asyncio.Valkey(password="secret")):
        for option in ("client", "aclient"):
            error = refused(lambda client=client, option=option: RedisStore(**{option: client}), option)
            assert "pass a Redis or a RedisCluster of redis-py" in str(error)
            assert "secret" not in str(error)


@pytest.mark.parametrize("option", ["socket_timeout", "socket_connect_timeout"])
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_timeout_in_a_url_is_a_span_of_time(refused, option, seconds):
    refused(lambda: RedisStore.from_url(f"redis://localhost?{option}={seconds}"), option)


def test_a_store_that_can_only_be_awaited_refuses_threads(refused):
    store = RedisStore(aclient=AsyncRedis(port=shared_server().port))
    gate = Gate(GCRA("1/h"), name="api", store=store)
    refused(gate.check, "client")
    refused(lambda: gate.reset("key"), "client")
    refused(lambda: list(store.keys()), "client")


def test_a_key_of_a_url_without_its_certificate_is_refused(refused):
    refused(lambda: RedisStore.from_url("rediss://localhost?ssl_keyfile=client.key"), "ssl_keyfile")
