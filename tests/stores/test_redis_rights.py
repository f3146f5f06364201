"""A Redis user with the rights that are documented, and no others, is enough; and each of them is needed."""

import re
from itertools import count
from pathlib import Path

import pytest
from redis import RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.exceptions import RedisClusterException

from shapekit import GCRA, Gate, RedisStore, Shaper, StoreUnavailableError, all_of
from shapekit.testing import StoreConformance

from ..redis_cluster import shared_cluster
from ..redis_server import RedisServer

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "share-a-rate-with-redis.md").read_text()
[LINE] = re.findall(r"^ACL SETUSER .*$", PAGE, re.MULTILINE)
RIGHTS = re.findall(r"\+\S+", LINE)
[IN_CLUSTERS] = re.findall(r"`([^`]*cluster\|slots[^`]*)` on every server", PAGE)
_fresh = count()


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def url(server):
    """The URL of the user, once it has these rights."""

    def url(line=LINE):
        with server.client() as client:
            client.execute_command(*line.split())
        return server.url.replace("redis://", "redis://shapekit:PASSWORD@")

    return url


class TestRedisStoreOfThatUser(StoreConformance):
    timelines = 20

    @pytest.fixture(autouse=True)
    def user(self, url):
        self.url = url()

    def make_store(self, clock):
        return RedisStore.from_url(self.url, clock=clock, prefix=f"shapekit:{next(_fresh)}")

    def same_store(self, store, clock):
        return RedisStore.from_url(self.url, clock=clock, prefix=store.prefix)


def use(store, other):
    """Use everything of a store, and of a second one with other numbers."""
    gate = Gate(GCRA("10/d"), name="gate", store=store)
    assert gate.check("k")
    assert Gate(GCRA("20/d", burst=10), name="gate", store=other).check("k").current == 3
    assert Shaper("10/s; 100/min", name="shaper", store=store).reserve().accepted
    assert other.read_overrides("shaper").text == ""
    both = Gate(all_of(a=GCRA("10/s"), b=GCRA("10/s")), name="both", store=store)
    assert both.check({"a": "x", "b": "y"})
    assert [seen.program is None for seen in store.survey()] == [False] * 4
    assert len(list(store.keys())) == 4
    assert len(store.programs("gate")) == 2
    gate.reset("k")
    assert store.reset_all() == 3


@pytest.mark.parametrize("missing", ["", *RIGHTS])
def test_each_right_is_needed_and_no_other(missing, server, url):
    with server.client() as client:
        client.flushall()
        client.script_flush()
    where = url(" ".join(word for word in LINE.split() if word != missing))
    store, other = RedisStore.from_url(where), RedisStore.from_url(where)
    if missing:
        with pytest.raises(StoreUnavailableError, match=r"permission|can't run this command|ACL"):
            use(store, other)
    else:
        use(store, other)
    store.close()
    other.close()


@pytest.mark.parametrize("missing", ["+get", "+hget"])
def test_a_survey_without_a_right_is_not_one_of_an_idle_store(missing, server, url):
    Gate(GCRA("10/d"), name="gate", store=RedisStore.from_url(server.url)).check("k")
    store = RedisStore.from_url(url(LINE.replace(f" {missing} ", " ")))
    words = f"Redis refused: .*no permissions to run the '{missing[1:]}' command.*; give the user this right"
    with pytest.raises(StoreUnavailableError, match=words):
        list(store.survey())
    store.close()


def test_keys_of_other_prefixes_are_out_of_reach(url):
    store = RedisStore.from_url(url(), prefix="other")
    with pytest.raises(StoreUnavailableError, match=r"permission|ACL"):
        Gate(GCRA("10/d"), name="gate", store=store).check()
    store.close()


def test_another_database_has_to_be_selected(url):
    where = url(f"{LINE} +select").removesuffix("/0") + "/1"
    store, other = RedisStore.from_url(where), RedisStore.from_url(where)
    use(store, other)
    store.close()
    other.close()


@pytest.fixture
def in_clusters():
    """Makes the user on each server of a cluster; the arguments that log it in."""
    servers = shared_cluster().servers

    def run_on_all(*command):
        for server in servers:
            with server.client() as client:
                client.execute_command(*command)

    def log_in(line):
        run_on_all(*line.split())
        return {
            "host": "127.0.0.1",
            "port": servers[0].port,
            "username": "shapekit",
            "password": "PASSWORD",
        }

    yield log_in
    run_on_all("ACL", "DELUSER", "shapekit")


def test_a_client_of_a_cluster_needs_the_right_to_read_its_map(in_clusters):
    client = RedisCluster(**in_clusters(f"{LINE} {IN_CLUSTERS}"))
    prefix = f"shapekit:{next(_fresh)}"
    use(RedisStore(client, prefix=prefix), RedisStore(client, prefix=prefix))
    client.close()
    with pytest.raises(RedisClusterException):
        RedisCluster(**in_clusters(LINE))


@pytest.mark.anyio
async def test_an_asynchronous_client_of_a_cluster_works_with_these_rights(in_clusters):
    client = AsyncRedisCluster(**in_clusters(f"{LINE} {IN_CLUSTERS}"))
    store = RedisStore(aclient=client, prefix=f"shapekit:{next(_fresh)}")
    gate = Gate(GCRA("10/d"), name="gate", store=store)
    assert all(await gate.acheck_many([f"key {number}" for number in range(10)]))
    await client.aclose()


@pytest.fixture
def anyio_backend():
    return "asyncio"
