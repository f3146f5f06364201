"""Several processes on a real Redis spend one budget evenly, as the receiving server sees it."""

from itertools import groupby

import pytest

from shapekit.rate import SECOND_US

from ..redis_server import shared_server

pytestmark = pytest.mark.long

PROCESSES = 4
LIMIT = 60
PERIOD_US = 3 * SECOND_US
WORKER = """
import json, sys
import redis
from shapekit import Policy, QuotaExhaustedError
from shapekit.stores.redis import RedisStore

url, prefix, quota = map(json.loads, sys.argv[1:])
receiver = redis.Redis.from_url(url)
policy = Policy(quota=quota, spread=True, name="shared", store=RedisStore.from_url(url, prefix=prefix))

def call():
    seconds, micros = receiver.time()
    return seconds * 1_000_000 + micros

policy.shaper.reserve("another key")
call()
print("ready", flush=True)
sys.stdin.readline()
history = []
while True:
    try:
        reservation = policy.shaper.schedule()
    except QuotaExhaustedError:
        break
    history.append((reservation.grant.departs_at_us, call()))
receiver.close()
print(json.dumps(history))
"""


def test_four_processes_spend_a_budget_evenly_over_what_is_left_of_the_period(crew, prefix):
    """They call until it is spent. Where the machine stalled for that long, they go on in the next period."""
    quota = f"{LIMIT}/fixed:{PERIOD_US}us"
    outputs = crew(WORKER, [(shared_server().url, prefix, quota)] * PROCESSES)
    history = sorted(tuple(call) for each in outputs for call in each)
    assert all(received >= due for due, received in history)
    periods = [
        [due for due, _ in calls] for _, calls in groupby(history, key=lambda call: call[0] // PERIOD_US)
    ]
    assert len(periods[-1]) == LIMIT
    for dues in periods:
        assert len(dues) <= LIMIT
        end = dues[0] // PERIOD_US * PERIOD_US + PERIOD_US
        for first, since in enumerate(dues):
            left = LIMIT - first
            for taken, due in enumerate(dues[first:]):
                # No process is more than a call ahead of the straight line, from wherever it is drawn.
                assert (due - since) * left >= taken * (end - since)
