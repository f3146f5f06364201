"""What `store=` takes: a store, a URL, a file, or nothing."""

from pathlib import Path

import httpx
import pytest

from shapekit import (
    GCRA,
    ConfigError,
    Gate,
    LLMBudget,
    ManualClock,
    MemoryStore,
    Policy,
    RedisStore,
    Shaper,
    SQLiteStore,
    StoreUnavailableError,
    shaped,
)
from shapekit.integrations.httpx import ShapedTransport
from shapekit.stores import open_store

from ..redis_server import shared_server

HOLDERS = {
    "gate": (lambda **options: Gate(GCRA("10/s"), **options), lambda gate: gate.check()),
    "shaper": (lambda **options: Shaper("10/s", **options), lambda shaper: shaper.reserve()),
    "policy": (lambda **options: Policy("10/s", **options), lambda policy: policy.admit().__enter__()),
    "budget": (
        lambda **options: LLMBudget(requests="10/s", tokens="10k/min", **options),
        lambda budget: budget.policies["requests"].admit().__enter__(),
    ),
}


def test_without_a_store_it_is_the_memory_of_this_process():
    clock = ManualClock()
    store, is_ours = open_store(None, clock)
    assert type(store) is MemoryStore
    assert store.clock is clock
    assert is_ours


def test_a_store_is_itself_and_stays_its_owners():
    own = MemoryStore()
    assert open_store(own) == (own, False)


@pytest.mark.parametrize("url", ["redis://localhost", "rediss://localhost:7000/1", "unix:///tmp/redis.sock"])
def test_a_url_is_a_redis(url):
    store, is_ours = open_store(url)
    assert type(store) is RedisStore
    assert is_ours
    store.close()


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_a_file(tmp_path, kind):
    clock = ManualClock()
    store, is_ours = open_store(kind(tmp_path / "limits.db"), clock)
    assert type(store) is SQLiteStore
    assert store.clock is clock
    assert is_ours
    store.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(
            (text, f'store={text!r} is neither a URL nor a path; write "redis://localhost:6379"')
            for text in (
                "localhost:6379",
                "redis:localhost",
                "redis:/localhost",
                "10.0.0.1:6379/0",
                "[::1]:6379",
                "redis",
                "memory",
                "sqlite",
                "localhost",
            )
        ),
        ("user:secret@localhost:6379", "store=(not shown) is neither a URL nor a path"),
        ("memcached://:secret@localhost", "store='memcached' is an unknown scheme"),
        ("", "store='' is empty"),
        (7, "store=7 is not a store; pass a store such as RedisStore(client), a URL"),
        (MemoryStore, "is not a store"),
    ],
)
def test_a_value_that_names_no_store_is_refused(wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        open_store(wrong)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["./localhost:6379", "C:limits.db", r"C:\limits.db", "a/b:c", Path("localhost:6379"), "limits"]
)
def test_a_path_with_a_colon_is_a_file(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    store, _ = open_store(path)
    store.close()
    assert Path(path).is_file()


@pytest.mark.parametrize(("make", "call"), HOLDERS.values(), ids=HOLDERS)
def test_an_object_made_with_a_path_closes_the_store_that_it_opened(make, call, tmp_path):
    holder = make(store=tmp_path / "limits.db", name="name")
    call(holder)
    holder.close()
    with pytest.raises(StoreUnavailableError):
        call(holder)


def test_two_objects_with_one_path_share_one_limit(tmp_path):
    one, other = (Shaper("1/h", store=str(tmp_path / "limits.db"), name="api") for _ in range(2))
    assert one.reserve().delay == 0.0
    assert other.reserve().delay > 3_000
    one.close()
    other.close()


def test_wrappers_and_decorators_take_a_url_or_a_path_too(tmp_path):
    where = tmp_path / "limits.db"
    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    with httpx.Client(transport=ShapedTransport(inner, rate="1/h", name="api", store=where)) as client:
        assert client.get("http://api.test/").status_code == 200

    @shaped("1/h", name="api", key="api.test", store=where, max_wait=0)
    def call():
        return 1

    assert "api:api.test" in " ".join(open_store(where)[0].keys())


def test_a_url_and_a_store_of_it_share_one_limit():
    url = shared_server().url
    one = Shaper("1/h", store=url, name="opening")
    other = Shaper("1/h", store=RedisStore.from_url(url), name="opening")
    one.reset()
    assert one.reserve().delay == 0.0
    assert other.reserve().delay > 3_000
    one.reset()
    one.close()
