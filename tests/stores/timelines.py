"""Timelines: everything that can happen to one key, as plain data, played on two stores side by side.

A timeline that fails can be pasted as an `@example`. Times are steps of one clock that both stores read.
"""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from shapekit import Shaper
from shapekit.algorithms.base import CHECK, DEBIT, FORECAST, PEEK, REFUND
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL, CONFIRM, HOLD, LATE, LOOK, MARK, RESERVE, RESUME, SETTLE
from tests.algorithms.limits import limits, scales_us
from tests.algorithms.stories import costs, skews, starts, steps

DAY_US = 86_400_000_000
WAITS_US = (None, 0, 1_000, 500_000, 10_000_000, DAY_US)


class Event(NamedTuple):
    """`step_us` of time, then an operation; `pick` chooses the charge or slot that it is about."""

    step_us: int
    wall_us: int
    what: str
    cost: int
    wait_us: int | None
    pick: int


class Timeline(NamedTuple):
    program: Any
    start_us: int
    skew_us: int
    apart: bool
    events: tuple[Event, ...]


GATE = (CHECK,) * 5 + (REFUND, REFUND, DEBIT, PEEK, FORECAST, "reset")
QUEUE = (RESERVE,) * 5 + (CANCEL, CANCEL, SETTLE, LATE, CONFIRM, HOLD, MARK, RESUME, LOOK, "reset")
FEW = st.integers(1, 14)


@st.composite
def gate_timelines(draw, programs=limits) -> Timeline:
    program = draw(programs)
    # Where each part has its own record, one may be swept while the others live: what a clock that goes
    # back finds then depends on when that was. On one record there is no such moment.
    apart = isinstance(program, Composite) and draw(st.booleans())
    most = program.max_cost

    def event() -> Event:
        what = draw(st.sampled_from(GATE))
        cost = draw(costs(program, 2 * most if what == DEBIT else most))
        wall = draw(st.sampled_from([0] * 9 + [DAY_US, -DAY_US // 2]))
        step = draw(steps(program, back=not apart))
        return Event(step, wall, what, cost, draw(st.sampled_from(WAITS_US)), draw(st.integers(0, 9)))

    events = tuple(event() for _ in range(draw(FEW)))
    return Timeline(program, draw(starts), draw(skews), apart, events)


rate_texts = st.sampled_from(
    [
        "10/s",
        "3/s",
        "7 per 1.1 s burst 3",
        "4/s; 9 per 4 s",
        "5/s burst 2; 8 per 2 s; 20/min",
        "2/s; 3/s burst 5",
    ]
)
queues = st.one_of(
    st.builds(
        lambda rate, pace, gates, headroom: (
            Shaper(rate, pace=pace, gates=gates, headroom=headroom).core.queue
        ),
        rate_texts,
        st.sampled_from(["smooth", "burst"]),
        st.lists(limits, max_size=2).map(tuple),
        st.sampled_from([0.0, 0.02, 0.5]),
    ),
    st.lists(limits, min_size=1, max_size=2).map(lambda gates: Shaper(gates=tuple(gates)).core.queue),
)


@st.composite
def queue_timelines(draw) -> Timeline:
    queue = draw(queues)
    spans = [1_000, 100_000, 1_000_000, *(span for gate in queue.gates for span in scales_us(gate))]

    def event() -> Event:
        step = draw(st.sampled_from([0, 0, 1, -1, *spans, -spans[-1]])) * draw(st.integers(0, 3)) // 2
        wall = draw(st.sampled_from([0] * 9 + [DAY_US, -DAY_US // 2]))
        cost = draw(st.integers(1, min(queue.max_cost, 5)))
        what, wait = draw(st.sampled_from(QUEUE)), draw(st.sampled_from(WAITS_US))
        return Event(step, wall, what, cost, wait, draw(st.integers(0, 9)))

    return Timeline(queue, draw(starts), draw(skews), False, tuple(event() for _ in range(draw(FEW))))


class Hands:
    """A clock for tests that never sleep: both hands stand where they were put, to the microsecond."""

    def __init__(self, now: int, skew: int):
        self.now, self.wall = now, max(0, now + skew)

    def move(self, step_us: int, wall_us: int) -> None:
        before, self.now = self.now, max(0, self.now + step_us)
        self.wall = max(0, self.wall + self.now - before + wall_us)

    def now_us(self) -> int:
        return self.now

    def wall_us(self) -> int:
        return self.wall

    def sleep(self, seconds, alarm):
        raise AssertionError("this clock never sleeps")

    async def asleep(self, seconds, alarm):
        raise AssertionError("this clock never sleeps")


class Player:
    """Plays a timeline on one store, step by step: the same calls on whichever store."""

    def __init__(self, store, timeline):
        self.store = store
        self.program = timeline.program
        self.key = "key"
        if timeline.apart:
            self.key = tuple(f"key-{name}" for name in timeline.program.names)
        self.taken: list[tuple[Any, int]] = []

    def play(self, event: Event, number: int) -> Any:
        what, cost = event.what, event.cost
        if what == "reset":
            self.store.reset("name", self.program, self.key)
            return None
        args = self._args(event, number)
        if args is None:
            return None
        result = self.store.bind("name", self.program, what)(self.key, *args)
        if what == CHECK and result.allowed:
            self.taken.append((result.receipt, cost))
        if what == RESERVE and result[0]:
            self.taken.append((Grant(*result), cost))
        return result

    def _args(self, event: Event, number: int) -> tuple[Any, ...] | None:
        what, cost = event.what, event.cost
        if what in (REFUND, CANCEL, LATE, SETTLE):
            if not self.taken:
                return None
            taken, units = self.taken[event.pick % len(self.taken)]
            if what == SETTLE:
                return ((taken, event.pick, number),)
            if what == LATE:
                return (((taken.generation, taken.due_us, units, number),) * 2,)
            return (taken,) if what == CANCEL else (min(cost, units), taken)
        return {
            CHECK: (cost,),
            DEBIT: (cost,),
            FORECAST: (cost,),
            PEEK: (),
            LOOK: (),
            CONFIRM: (),
            RESERVE: ((cost, event.wait_us, number),),
            HOLD: (event.wait_us or 1, number),
            MARK: (event.wait_us or 1, number),
            RESUME: (250_000,),
        }.get(what)
