"""SQLiteStore decides as MemoryStore does: every field of every answer, whatever happens to a key.

`SHAPEKIT_TIMELINES` scales how many timelines are played: more of them at night.
"""

import os
import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapekit import MemoryStore
from shapekit.stores.sqlite import SQLiteStore

from .timelines import Hands, Player, gate_timelines, queue_timelines

TIMELINES = int(os.environ.get("SHAPEKIT_TIMELINES", "700")) // 14
ABOUT = settings(max_examples=TIMELINES, suppress_health_check=list(HealthCheck))


def check_identity(timeline, reopening=()):
    clock = Hands(timeline.start_us, timeline.skew_us)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "limits.db")
        memory = Player(MemoryStore(clock), timeline)
        sqlite = Player(SQLiteStore(path, clock=clock), timeline)
        for number, event in enumerate(timeline.events):
            clock.move(event.step_us, event.wall_us)
            if number in reopening:
                sqlite.store.close()
                sqlite.store = SQLiteStore(path, clock=clock)
            assert sqlite.play(event, number) == memory.play(event, number), f"event {number}: {event}"
        with closing(sqlite.store) as store:
            assert sorted(store.keys()) == sorted(memory.store.keys())


@ABOUT
@given(gate_timelines())
def test_a_strategy_decides_alike(timeline):
    check_identity(timeline)


@ABOUT
@given(queue_timelines())
def test_a_queue_decides_alike(timeline):
    check_identity(timeline)


@ABOUT
@given(st.one_of(gate_timelines(), queue_timelines()), st.sets(st.integers(0, 13)))
def test_nothing_is_lost_between_two_processes(timeline, reopening):
    check_identity(timeline, reopening)
