"""Passwords are in no repr, no error and no log."""

import logging
import traceback

import pytest
from redis import ConnectionPool
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from shapekit import ConfigError, RedisStore, ResilientStore, StoreUnavailableError

from ..redis_server import RedisServer
from .conftest import TIMEOUT_S

SECRET = "s3cr3t-of-ours"


@pytest.fixture
def guarded():
    with RedisServer("--requirepass", SECRET) as server:
        yield server


def url_of(server, password):
    return f"redis://someone:{password}@127.0.0.1:{server.port}/0?socket_timeout={TIMEOUT_S}"


def everything_in(error):
    """All texts of an error and of the errors that caused it."""
    seen = []
    while error is not None:
        seen += [str(error), repr(error), repr(error.args), repr(getattr(error, "__dict__", ""))]
        error = error.__cause__ or error.__context__
    return "\n".join(seen)


@pytest.mark.parametrize(
    "url",
    [
        "redis://someone:{0}@localhost:port/0",
        "redis://someone:{0}@localhost:99999999/0",
        "redis://localhost:{0}/0",
        "redis://someone:{0}@localhost:6379/0?socket_timeout=soon",
        "redis://someone:{0}@localhost:6379/0?colour=blue",
        "redis://someone:{0}@localhost:6379/0?protocol=9",
        "redis://someone:{0}@[localhost:6379/0",
        "rediss://someone:{0}@localhost:6379/0?ssl_cert_reqs=maybe",
        # Only the synchronous client knows this option, and takes a text for false.
        "rediss://someone:{0}@localhost:6379/0?ssl_validate_ocsp=true",
        "redis://someone:pass#{0}@localhost:6379/0",
        "redis://:1#{0}@localhost:6379/0",
        "redis://:1/{0}@localhost:6379/0",
        "http://someone:{0}@localhost",
        "{0}",
    ],
)
def test_a_bad_url_is_not_shown(url):
    with pytest.raises(ConfigError) as caught:
        RedisStore.from_url(url.format(SECRET))
    assert caught.value.field == "url"
    assert SECRET not in everything_in(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.parametrize("url", [None, 6379, b"redis://localhost"])
def test_a_url_that_is_no_text_is_refused(url, refused):
    refused(lambda: RedisStore.from_url(url), "url")


def test_a_wrong_password_is_not_shown(guarded, gate_on, caplog):
    caplog.set_level(logging.DEBUG)
    store = RedisStore.from_url(url_of(guarded, f"not-{SECRET}"))
    texts = [repr(store), str(store)]
    gate = gate_on(store)
    with pytest.raises(StoreUnavailableError) as caught:
        gate.check()
    assert str(caught.value).startswith("Redis refused: ")
    assert "; check the user and the password" in str(caught.value)
    texts += [everything_in(caught.value), repr(gate)]
    resilient = ResilientStore(store, on_outage="closed", timeout=TIMEOUT_S)
    gate = gate_on(resilient)
    assert not gate.check().allowed
    texts += [repr(resilient), repr(gate), caplog.text]
    resilient.close()
    assert "lost" in caplog.text
    assert SECRET not in "\n".join(texts)


@pytest.mark.anyio
async def test_a_wrong_password_is_not_shown_to_asynchronous_callers(guarded, gate_on, caplog):
    caplog.set_level(logging.DEBUG)
    store = RedisStore.from_url(url_of(guarded, f"not-{SECRET}"))
    with pytest.raises(StoreUnavailableError) as caught:
        await gate_on(store).acheck()
    assert SECRET not in everything_in(caught.value) + caplog.text
    await store.aclose()


@pytest.fixture
def wrong():
    """Options of a client that learns at once that its password is wrong."""
    return {"password": f"not-{SECRET}", "socket_timeout": TIMEOUT_S}


def test_the_passwords_of_sentinels_are_not_shown(guarded, wrong, gate_on, caplog):
    caplog.set_level(logging.DEBUG)
    options = wrong | {"retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel([("127.0.0.1", guarded.port)] * 2, sentinel_kwargs=options)
    store = RedisStore(sentinel.master_for("main", **options))
    with pytest.raises(StoreUnavailableError) as caught:
        gate_on(store).check()
    says_what_to_check(caught.value)
    resilient = ResilientStore(store, on_outage="closed", timeout=TIMEOUT_S)
    assert not gate_on(resilient).check().allowed
    resilient.close()
    assert "No master found for 'main'" in caplog.text
    assert SECRET not in caplog.text
    assert "ConnectionPool" not in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_passwords_of_sentinels_are_not_shown_to_asynchronous_callers(guarded, wrong, gate_on):
    options = wrong | {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinel = AsyncSentinel([("127.0.0.1", guarded.port)] * 2, sentinel_kwargs=options)
    with pytest.raises(StoreUnavailableError) as caught:
        await gate_on(RedisStore(aclient=sentinel.master_for("main", **options))).acheck()
    says_what_to_check(caught.value)


def says_what_to_check(error):
    """The reason of a Sentinel, and a fix, but not its client, which shows the password before redis-py 8."""
    assert "No master found for 'main': " in str(error)
    assert "auth" in str(error).lower()
    assert "; if this goes on, check the name of the master, and the addresses, passwords and" in str(error)
    assert SECRET not in everything_in(error)
    assert "ConnectionPool" not in everything_in(error)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_wrong_password_of_a_cluster_is_named(guarded, wrong, gate_on):
    """Its client raises an error of its own, for which the server's is the reason."""
    client = AsyncRedisCluster(host="127.0.0.1", port=guarded.port, **wrong)
    with pytest.raises(StoreUnavailableError, match="; check the user and the password") as caught:
        await gate_on(RedisStore(aclient=client)).acheck()
    assert SECRET not in everything_in(caught.value)
    await client.aclose()


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda **options: Sentinel([], sentinel_kwargs=options), "pass what its master_for(…) returns"),
        (lambda **options: AsyncSentinel([], sentinel_kwargs=options), "pass what its master_for(…) returns"),
        (ConnectionPool, "pass a Redis or a RedisCluster of redis-py"),
        (AsyncRedis, "pass it as aclient="),
    ],
)
def test_what_is_no_client_is_not_shown(make, fix, refused):
    error = refused(lambda: RedisStore(make(password=SECRET)), "client")
    assert error.fix == fix
    assert SECRET not in everything_in(error)
    assert "password" not in str(error)


def test_the_right_password_is_not_shown_either(guarded, gate_on, caplog, until):
    caplog.set_level(logging.DEBUG)
    url = f"redis://:{SECRET}@127.0.0.1:{guarded.port}/0?socket_timeout={TIMEOUT_S}"
    store = RedisStore.from_url(url)
    gate = gate_on(store)

    def answers():
        try:
            return gate.check().allowed
        except StoreUnavailableError:
            return False

    until(answers)
    guarded.kill()
    with pytest.raises(StoreUnavailableError) as caught:
        gate.check()
    assert SECRET not in everything_in(caught.value) + repr(store) + caplog.text
    store.close()
