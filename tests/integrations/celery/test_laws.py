"""All tasks run once, at the rate of their key and with a plain task's result, however they are published."""

import random
import time
from collections import defaultdict

import pytest
from celery import chord, group

from shapekit.integrations.celery import shape_publish
from shapekit.testing import check_pace, check_window

from ...witness import watched
from .fleet import PATIENCE_S
from .records import CLOCKS_S

pytestmark = pytest.mark.long

RATE, BURST = "20/s", 5
GRACE_S = 0.05
"""One slot: a start may be this late, with the one behind it on time."""
ROOM_S = 0.1
"""The time that a task and its worker need between the moment of leaving and the first line."""


@pytest.fixture(scope="module", autouse=True)
def workers(fleet):
    launched = [fleet.launch(pool=pool, concurrency=3) for pool in ("threads", "prefork")]
    return [worker.wait_ready() for worker in launched]


def undisturbed(starts, stalls):
    """When they would have started without stalls of the machine, and their costs."""
    date = time.time() - time.monotonic()
    return [
        (date + stalls.undone(start["slot"] - date, start["at"] - date), start["cost"]) for start in starts
    ]


def published(app, dice, account, plan):
    """Publishes one task, or a few together; adds to the plan how often it runs, and at which costs."""
    weighed, cost = app.tasks["weighed"], dice.randint(1, BURST)
    way = dice.choice(["async", "publish", "countdown", "retrying", "chain", "group", "chord"])
    name, n = f"{account}", len(plan["results"])
    costs = plan["costs"][account]
    if way == "async":
        costs.append(cost)
        result, expected = weighed.apply_async((name, n), shape_cost=cost), n
    elif way == "publish":
        costs.append(cost)
        result, expected = shape_publish(weighed, (name, n), shape_cost=cost), n
    elif way == "countdown":
        costs.append(cost)
        result, expected = weighed.apply_async((name, n), shape_cost=cost, countdown=dice.random()), n
    elif way == "retrying":
        costs += [cost] * 3
        result, expected = weighed.apply_async((name, n), {"fails": 2}, shape_cost=cost), n
    elif way == "chain":
        costs += [cost, 1, 1]
        steps = weighed.si(name, 0).set(shape_cost=cost) | weighed.si(name, 1) | weighed.si(name, n)
        result, expected = steps.delay(), n
    elif way == "group":
        costs += [cost] * 3
        result = group(weighed.si(name, n + i).set(shape_cost=cost) for i in range(3)).delay()
        expected = [n, n + 1, n + 2]
    else:
        costs += [1, 1, cost]
        header = [weighed.si(name, n), weighed.si(name, n + 1)]
        result, expected = chord(header)(app.tasks["weighed_sum"].s(name).set(shape_cost=cost)), 2 * n + 1
    plan["results"].append((result, expected))


@pytest.mark.parametrize("seed", range(3))
def test_all_tasks_run_once_at_the_rate_of_their_key(app, broker, records, account, workers, seed):
    dice = random.Random(seed)
    keys = [f"{account}-{letter}" for letter in "abc"]
    plan = {"results": [], "costs": defaultdict(list)}
    with watched(broker.pid, *[worker.process.pid for worker in workers]) as witness:
        for _ in range(20):
            published(app, dice, dice.choice(keys), plan)
        for result, expected in plan["results"]:
            assert result.get(timeout=PATIENCE_S) == expected
    for key in keys:
        starts = records.of(key)
        assert sorted(start["cost"] for start in starts) == sorted(plan["costs"][key])
        assert len({(start["id"], start["retries"]) for start in starts}) == len(starts)
        # On the line's own time: no record says exactly how long the line stood still for late calls.
        check_pace([(start["due"], start["cost"]) for start in starts], RATE, burst=BURST, tolerance="1us")
        assert all(start["at"] >= start["slot"] - CLOCKS_S for start in starts)
        left = undisturbed(starts, witness.stalls)
        check_pace(left, RATE, burst=BURST, tolerance=GRACE_S + ROOM_S)
        check_window(left, 20 + BURST + round((GRACE_S + ROOM_S) * 20), "1s")
