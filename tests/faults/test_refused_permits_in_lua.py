"""The script refuses bad arguments itself, from any client, and then writes nothing."""

import json

import pytest
import redis

from shapekit import Concurrency
from shapekit.algorithms.inflight import ENTER, KEEP, LEAVE, WATCH
from shapekit.stores.redis.protocol import script_of

from ..redis_server import shared_server

NOW = 1_700_000_000_000_000
KEY = "refused:{api.permits:default}"
GOOD = {ENTER: ("7", "1", "1"), LEAVE: ("7", "1"), WATCH: ("7",), KEEP: ("7", "1", "[1]")}
BAD = ("-1", "1.5", "NaN", "Infinity", "1e300", "true", "false", '"1"', "[]", str(2**53))


def knock(client, operation, words, spec=None):
    spec = Concurrency(2).twin() if spec is None else spec
    script = script_of(Concurrency(2).twin(), (operation,))
    calls = "[[" + ",".join([f'"{operation}"', str(NOW), "0", *words]) + "]]"
    return client.eval(script.text, 1, KEY, json.dumps(["tag", 0, spec]), calls)


@pytest.mark.parametrize("operation", GOOD)
def test_words(operation):
    with shared_server().client() as client:
        client.delete(KEY)
        assert knock(client, operation, GOOD[operation])
        client.delete(KEY)
        good = GOOD[operation]
        for place in range(len(good)):
            for bad in ("{}", "null", "7") if good[place] == "[1]" else BAD:
                if good[place] == "[1]" and bad == "{}":
                    bad = '["a"]'  # noqa: PLW2901 - an empty table is an empty list
                with pytest.raises(redis.ResponseError, match=r"^shapekit: "):
                    knock(client, operation, (*good[:place], bad, *good[place + 1 :]))
        assert not client.exists(KEY)


@pytest.mark.parametrize(
    "bad", [("concurrency", 0, 10), ("concurrency", 10_001, 10), ("concurrency", 1, 1.5)]
)
def test_limits(bad):
    with shared_server().client() as client, pytest.raises(redis.ResponseError, match=r"^shapekit: "):
        knock(client, ENTER, GOOD[ENTER], list(bad))
