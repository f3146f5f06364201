"""Refunds of gates whose clock was set back: no store reopens what was over."""

from contextlib import closing

import pytest

from shapekit import (
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Quota,
    RedisStore,
    SlidingWindow,
    SQLiteStore,
)

from ..redis_server import shared_server

STORIES = {
    "fixed window": (FixedWindow("3/s"), [(9, 3), (10, 1), (9, -1), (9, 3)]),
    "sliding window": (SlidingWindow("2/s", buckets=2), [(0, 1), (15, 1), (0, -1), (0, 2), (13, 1)]),
    "day": (Quota("1/day"), [(10, 1), (30, 1), (0, -1), (0, 1), (10, 1), (20, 1)]),
    "spread day": (Quota("1/day", spread=True), [(10, 1), (30, 1), (0, -1), (0, 1), (10, 1), (20, 1)]),
}
TICK_S = {"day": 8_640, "spread day": 8_640}
"""How long the tenth of a second is that a story counts in."""


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_a_period_that_was_over_stays_over(story, kind, tmp_path):
    limit, acts = STORIES[story]
    clock = ManualClock()
    store = {
        "memory": lambda: MemoryStore(clock),
        "sqlite": lambda: SQLiteStore(tmp_path / "limits.db", clock=clock),
        "redis": lambda: RedisStore.from_url(shared_server().url, clock=clock, prefix=tmp_path.name),
    }[kind]()
    with closing(store):
        gate, kept, admitted = Gate(limit, store=store, name="gate"), [], []
        for tick, act in acts:
            clock.set(tick * TICK_S.get(story, 0.1))
            if act < 0:
                gate.refund("a", kept[act])
                continue
            decision = gate.check("a", cost=act)
            admitted.append(decision.allowed)
            if decision.allowed:
                kept.append(decision)
    assert admitted == [True, True] + [False] * (len(acts) - 3)
