"""Whatever pool a client has, and whatever a URL says of one."""

import pytest
from redis import BlockingConnectionPool, ConnectionPool, Redis

from shapekit import GCRA, Gate, StoreUnavailableError
from shapekit.stores.redis import RedisStore

from ..redis_server import RedisServer


class Older(BlockingConnectionPool):
    """That of redis-py 6."""

    def disconnect(self):
        super().disconnect()


@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool, Older])
def test_a_server_that_has_become_a_replica_is_no_store_until_it_is_none(kind):
    with RedisServer() as server, server.client() as operator:
        pool = kind.from_url(server.url)
        gate = Gate(GCRA("1/h", 2), name="gate", store=RedisStore(Redis(connection_pool=pool)))
        assert gate.check()
        operator.replicaof("127.0.0.1", 1)
        with pytest.raises(StoreUnavailableError):
            gate.check()
        operator.replicaof("NO", "ONE")
        assert gate.check().current == 2
        pool.disconnect()
