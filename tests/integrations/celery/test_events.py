"""Events of workers: a slot where it is taken, and a departure where the task runs."""

import json
from collections import Counter
from contextlib import closing

import pytest

from .fleet import PATIENCE_S, Fleet, eventually
from .records import CLOCKS_S
from .running import MODULE, make_app, settings, starts

HEARD = "events"
TASKS = 6


@pytest.fixture
def fleet(broker):
    with closing(Fleet(broker.url)) as fleet:
        yield fleet


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_each_task_takes_a_slot_and_leaves(fleet, broker, pool):
    with broker.client(decode_responses=True) as book:
        book.flushall()
        # No task starts so long after its slot that it would take another one.
        fleet.start(MODULE, pool=pool, concurrency=2, env=settings(heard=HEARD, grace=PATIENCE_S))
        app = make_app(broker.url)
        for number in range(TASKS):
            app.tasks["slow"].delay("heard", number)
        eventually(lambda: len(starts(book, "heard")) == TASKS)
        events = [json.loads(text) for text in book.lrange(HEARD, 0, -1)]
        rows = starts(book, "heard")
    assert {tuple(event[1:4]) for event in events} == {("slow", "heard", "1")}
    assert Counter(event[0] for event in events) == {"Reserved": TASKS, "Departed": TASKS}
    promised = sorted(float(event[4]) for event in events if event[0] == "Reserved")
    left = [event for event in events if event[0] == "Departed"]
    most_late = max(row.late for row in rows)
    for delay, was in zip(sorted(float(event[4]) for event in left), promised, strict=True):
        assert was <= delay <= was + most_late + CLOCKS_S
    for event in left:
        assert 0 <= float(event[5]) <= most_late + CLOCKS_S
