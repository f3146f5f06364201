"""A call that is cancelled while its answer is on the way has taken nothing: no slot for now and no later."""

import asyncio
from functools import partial

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, Shaper
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.stores.redis.store import Line

from ..algorithms.queue.histories import check_spacing
from .slow_store import SlowStore
from .stage import Stage

TRIP_S = 0.01
MINUTE_S = 60


class SharingStore(SlowStore):
    """A store whose asynchronous callers of a key share trips, as those of Redis do."""

    def __init__(self, clock, trip_s):
        super().__init__(clock, trip_s)
        self._lines = {}

    def abind(self, name, program, operation):
        def ask(key, *args):
            place = (name, program, key)
            if place not in self._lines:
                trip = partial(self._trip, *place)
                self._lines[place] = Line(lambda *_: "", trip, lambda: self._lines.pop(place, None))
            return self._lines[place].ask(operation, args)

        return ask

    @property
    def is_busy(self):
        """Whether calls are under way, also calls whose callers are gone."""
        return bool(self._lines)

    async def _trip(self, name, program, key, batch):
        await self.clock.asleep(self._half_s, AsyncAlarm())
        answers = [
            self._answered(self._bind_there(name, program, operation), key, args)
            for operation, args, _ in batch
        ]
        await self.clock.asleep(self._half_s, AsyncAlarm())
        return answers


class Callers:
    """Tasks that reserve on one key, or wait there, and may go away; `reservations` of those that stayed."""

    def __init__(self, rate, trip_s=TRIP_S, **options):
        clock = ManualClock(1_000, autojump=True)
        self.store = SharingStore(clock, trip_s)
        self.shaper = Shaper(rate, store=self.store, name="api", **options)
        self._stage = Stage("asyncio", clock)
        self.reservations = {}

    def come(self, name, at, *, goes_at=(), waits=False, **options):
        """At an instant; to stay, or to be cancelled at others."""
        tasks, ask = [], self.shaper.aschedule if waits else self.shaper.areserve

        async def reserve():
            self.reservations[name] = await ask(**options)

        async def call():
            tasks.append(asyncio.ensure_future(reserve()))
            await asyncio.wait(tasks)
            while self.store.is_busy:
                await self.store.clock.asleep(TRIP_S, AsyncAlarm())

        self._stage.at(at, call)
        for again_at in goes_at:
            self._stage.at(again_at, lambda: tasks[0].cancel() and None)

    def look(self, at):
        """A caller that takes nothing, but makes calls that come meanwhile share the next trip."""
        self._stage.at(at, self.shaper.aheld)

    def run(self):
        self._stage.run()
        return self

    @property
    def delays(self):
        return {name: reservation.delay for name, reservation in self.reservations.items()}


@pytest.mark.parametrize("goes_at", [0.001, 0.006, 0.009])
def test_a_slot_for_now_goes_to_the_next_caller(goes_at):
    callers = Callers("1/min")
    callers.come("gone", 0, goes_at=[goes_at])
    callers.come("next", 1)
    assert callers.run().delays == {"next": 0}


def test_callers_that_came_meanwhile_get_it_in_order():
    """What comes back goes ahead of them all on the next trip."""
    callers = Callers("1/min")
    callers.come("gone", 0, goes_at=[0.009])
    for number in range(3):
        callers.come(number, 0.001 * (number + 1))
    assert callers.run().delays == {0: 0, 1: MINUTE_S, 2: 2 * MINUTE_S}


def test_a_caller_behind_a_slot_for_now_keeps_its_slot():
    """Both are decided on one trip; the slot that the one in front leaves has passed, and no call moves."""
    callers = Callers("1/min")
    callers.look(0)
    callers.come("gone", 0.001, goes_at=[0.018])
    callers.come("behind", 0.002)
    callers.come("next", 1)
    delays = callers.run().delays
    assert delays == {"behind": MINUTE_S, "next": pytest.approx(2 * MINUTE_S, abs=1)}
    assert callers.reservations["next"].departs_at - callers.reservations["behind"].departs_at == MINUTE_S


def test_a_caller_behind_a_later_slot_keeps_its_slot():
    """The slot that the one in front leaves goes to the next newcomer."""
    callers = Callers("1/min")
    callers.come("first", 0)
    callers.come("gone", 0.001, goes_at=[0.018])
    callers.come("behind", 0.002)
    callers.come("next", 1)
    assert [round(delay) for delay in callers.run().delays.values()] == [0, 2 * MINUTE_S, MINUTE_S - 1]


def test_none_of_several_slots_for_now_is_lost():
    """The last of them first: what stands at the end of a queue can be taken off."""
    callers = Callers("1/min", burst=3)
    callers.come("first", 0)
    for number in range(2):
        callers.come(f"gone {number}", 0.001 * (number + 1), goes_at=[0.018])
    for number in range(3):
        callers.come(number, 0.03 + 0.001 * number)
    assert callers.run().delays == {"first": 0, 0: 0, 1: 0, 2: pytest.approx(MINUTE_S, abs=1)}


def test_a_slot_whose_instant_passes_on_the_way_back_is_not_lost_either():
    callers = Callers("1/min")
    callers.come("first", 0)
    callers.come("gone", MINUTE_S - 0.001, goes_at=[MINUTE_S + 0.008])
    callers.come("next", MINUTE_S + 1)
    assert callers.run().delays == {"first": 0, "next": 0}


def test_a_task_that_is_cancelled_as_its_answer_comes_has_taken_nothing(monkeypatch):
    """Its trip is over by then, and no other is on the way."""
    callers = Callers("1/min")
    serve = Line._serve

    async def main():
        task = asyncio.ensure_future(callers.shaper.areserve())

        async def served(line, batch):
            await serve(line, batch)
            task.cancel()

        monkeypatch.setattr(Line, "_serve", served)
        with pytest.raises(asyncio.CancelledError):
            await task
        return await callers.shaper.areserve()

    assert asyncio.run(main()).delay == 0


@pytest.mark.parametrize("goes_at", [MINUTE_S + 0.001, MINUTE_S + 0.009])
def test_a_caller_cancelled_during_its_last_question_has_not_left(anyio_backend, goes_at):
    """Its slot has come, so that it cannot be cancelled any more; but no call has used it."""
    clock = ManualClock(1_000, autojump=True)
    shaper, stage = Shaper("1/min", store=SlowStore(clock, TRIP_S), name="api"), Stage(anyio_backend, clock)
    scopes = []

    async def waiter():
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await shaper.aschedule()
        assert scope.cancelled_caught

    stage.wait_for(shaper, "first")
    stage.at(0.02, waiter)
    stage.at(goes_at, lambda: [scope.cancel() for scope in scopes])
    stage.wait_for(shaper, "next", at=MINUTE_S + 1)
    stage.run()
    assert stage.reservations["next"].delay == 0


def test_a_thread_that_is_interrupted_when_its_slot_has_come_has_not_left():
    class Late(ManualClock):
        def sleep(self, seconds, alarm):
            self.advance(seconds + 1)
            raise KeyboardInterrupt

    shaper = Shaper("1/min", clock=Late())
    shaper.schedule()
    with pytest.raises(KeyboardInterrupt):
        shaper.schedule()
    assert shaper.reserve().delay == 0


@settings(max_examples=150)
@given(
    st.sampled_from([("10/s", 1), ("10/s", 3), ("1/s", 1), ("7/s", 2)]),
    st.sampled_from([0.002, 0.01, 0.05, 0.4]),
    st.lists(
        st.tuples(st.integers(0, 1_500), st.integers(1, 3), st.none() | st.integers(0, 900)),
        min_size=1,
        max_size=20,
    ),
)
def test_no_call_leaves_too_early_whichever_callers_go_and_whenever(rate_and_burst, trip_s, events):
    rate, burst = rate_and_burst
    callers = Callers(rate, trip_s, burst=burst)
    for number, (at_ms, cost, goes_after_ms) in enumerate(events):
        # Some microseconds beside, so that none coincide.
        at = at_ms / 1_000 + (13 * number + 1) / 1e6
        goes_at = [] if goes_after_ms is None else [at + goes_after_ms / 1_000 + 7e-6]
        callers.come(number, at, goes_at=goes_at, cost=cost)
    callers.run()
    reservations = sorted(
        callers.reservations.values(),
        key=lambda reservation: (reservation.grant.due_us, reservation.grant.start),
    )
    limit, _, _ = rate.partition("/")
    check_spacing(
        [(reservation.grant.due_us, reservation.cost) for reservation in reservations],
        int(limit),
        1_000_000,
        burst,
    )
    assert {number for number, (_, _, goes) in enumerate(events) if goes is None} <= set(callers.reservations)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.lists(st.integers(0, 40), max_size=4)), min_size=1, max_size=10)
)
def test_a_caller_that_is_cancelled_again_and_again_leaves_nothing_taken(events):
    """Callers that stay keep their slots, and newcomers get all the others."""
    callers = Callers("1/s")
    callers.come("first", 0)
    for number, (at_ms, goes_after_ms) in enumerate(events):
        at = 0.1 + at_ms / 1_000 + (13 * number + 1) / 1e6
        goes_at = [at + after_ms / 1_000 + 7e-6 * (1 + again) for again, after_ms in enumerate(goes_after_ms)]
        callers.come(number, at, goes_at=goes_at, waits=True)
        callers.come(f"new {number}", 0.5 + at_ms / 1_000, waits=True)
    left = {name: reservation.departs_at for name, reservation in callers.run().reservations.items()}
    assert {number for number, (_, goes) in enumerate(events) if not goes} < left.keys()
    assert [round(at - left["first"], 5) for at in sorted(left.values())] == [*range(len(left))]
