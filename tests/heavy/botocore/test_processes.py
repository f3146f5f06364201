"""Three processes of one account: a stated rate is never refused, and a shared adaptive rate is refused less.

The server throttles as AWS does: 20 calls a second, after a bucket of 20.
"""

import json
from pathlib import Path
from typing import NamedTuple

from ...redis_server import RedisServer
from ...together import run_together
from .server import Server

WORKERS, PER_S, BURST, SECONDS = 3, 20, 20, 20
PATIENCE_S = 60
WORKER = Path(__file__).with_name("worker.py")


class Seen(NamedTuple):
    served: int
    refused: int
    failed: int
    """Calls that raised an error in the end, after botocore's retries."""


def seen(kind):
    with Server(PER_S, BURST) as server, RedisServer() as redis:
        commands = [(WORKER, kind, server.url, redis.url, SECONDS)] * WORKERS
        results = [json.loads(line) for line in run_together(commands, PATIENCE_S)]
        statuses = server.statuses
    result = Seen(statuses.count(200), statuses.count(400), sum(failed for _, failed in results))
    print(kind, result)
    return result


def test_all_processes_together_keep_the_stated_rate():
    result = seen("shaped")
    assert result.refused == result.failed == 0
    assert 0.85 * PER_S * SECONDS <= result.served <= PER_S * (SECONDS + 1)


def test_a_shared_adaptive_rate_is_refused_less_often_than_one_of_each_client():
    ours, theirs = seen("adaptive"), seen("botocore")
    assert ours.refused < theirs.refused
    assert ours.failed == 0
    assert ours.served > 0.4 * PER_S * SECONDS
