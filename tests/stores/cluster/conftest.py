"""What tests on a Redis Cluster share: its servers, a store, and a name with a key on each shard."""

from itertools import count

import pytest
from redis import RedisCluster
from redis.backoff import NoBackoff
from redis.retry import Retry

from shapekit import RedisStore

from ...redis_cluster import SHARDS, shared_cluster
from .stores import TIMEOUT_S

_fresh = count()


@pytest.fixture
def servers():
    return shared_cluster()


@pytest.fixture
def name():
    """One that no other test has used."""
    return f"name{next(_fresh)}"


@pytest.fixture
def client(servers):
    client = RedisCluster(
        host="127.0.0.1",
        port=servers.servers[0].port,
        socket_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    yield client
    client.close()


@pytest.fixture
def store(client):
    store = RedisStore(client)
    yield store
    store.close()


@pytest.fixture
def keys(servers, name):
    """A key on each shard."""
    return [servers.key_of(shard, name) for shard in range(SHARDS)]
