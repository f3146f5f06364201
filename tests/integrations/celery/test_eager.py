"""Direct calls, eager mode, and options of one call: without a worker, in virtual time."""

import httpx
import pytest
from celery import chord, group
from hypothesis import given
from hypothesis import strategies as st

from shapekit import ManualClock, Policy, QueueFullError, off
from shapekit.integrations.celery import ShapedTask, shape_publish
from shapekit.testing import check_pace

from .eager import WAYS, Eager

SLOT_S = 0.1


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def way(request):
    return request.param


class TestEachWayOfCalling:
    def test_waits_for_its_slot(self, clock, eager, way):
        task = eager.shaped(lambda n: (clock.now(), n))
        assert [way(task, n) for n in range(3)] == [(n * SLOT_S, n) for n in range(3)]

    def test_takes_its_own_key(self, clock, eager, way):
        task = eager.shaped(lambda account, n=0: clock.now(), {"key": "{account}-{n}"})
        assert [way(task, "a"), way(task, "b"), way(task, "a", n=1)] == [0, 0, 0]
        assert [way(task, account="a"), way(task, "b", 0)] == pytest.approx([SLOT_S, SLOT_S])

    def test_is_refused_where_the_queue_is_full(self, eager, way):
        task = eager.shaped(lambda: "ran", {"rate": "1/s", "max_wait": 1.5})
        assert [way(task), way(task), way(task)] == ["ran"] * 3
        task.shaped.policy.shaper.hold(10)
        with pytest.raises(QueueFullError):
            way(task)

    def test_has_its_admission_while_it_runs_and_no_longer(self, eager, way, refused):
        def run(self, account):
            return self.shaped.admission.key, self.shaped.admission.cost

        task = eager.shaped(run, {"key": "{account}", "cost": 3, "burst": 3}, bind=True)
        assert way(task, "a") == ("a", 3)
        error = refused(lambda: task.shaped.admission, "admission")
        assert "running task" in str(error)

    def test_leaves_at_once_where_shaping_is_off(self, clock, eager, way):
        task = eager.shaped(lambda: clock.now(), {"rate": "1/h"})  # noqa: PLW0108 - its signature
        with off():
            assert [way(task) for _ in range(3)] == [0, 0, 0]

    def test_only_measures_where_nothing_is_enforced(self, clock, eager, way):
        def run(self):
            return clock.now(), self.shaped.admission.delay

        task = eager.shaped(run, {"rate": "1/s", "enforce": False}, bind=True)
        assert [way(task) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]

    def test_gives_its_slot_back_if_the_call_never_counted(self, clock, eager, way):
        def run(fails):
            if fails:
                raise ConnectionError
            return clock.now()

        task = eager.shaped(run, {"refund_on": ConnectionError})
        for _ in range(3):
            with pytest.raises(ConnectionError):
                way(task, True)
        assert way(task, False) == 0

    def test_gives_its_slot_back_if_a_retry_names_such_an_error(self, clock, eager):
        def run(self):
            if self.request.retries < 3:
                raise self.retry(exc=ConnectionError(), countdown=0)
            return clock.now()

        task = eager.shaped(run, {"refund_on": ConnectionError}, bind=True)
        assert task.apply().get() == 0

    def test_settles(self, clock, eager, way):
        def run(self, actual):
            assert self.shaped.admission.settle(actual)
            return clock.now()

        task = eager.shaped(run, {"burst": 5, "cost": 2}, bind=True)
        assert [way(task, 5), way(task, 3)] == pytest.approx([0, 2 * SLOT_S])

    def test_takes_a_slot_each_time_that_it_calls_itself(self, eager, way):
        def run(self, depth):
            inner = self.run(depth - 1) if depth else []
            return [self.shaped.admission.reservation.departs_at, *inner]

        task = eager.shaped(run, bind=True)
        assert way(task, 3) == pytest.approx([0, SLOT_S, 2 * SLOT_S, 3 * SLOT_S])


class TestCost:
    @pytest.fixture(params=["shaped", "foreign"])
    def task(self, eager, request):
        policy = Policy("10/s", burst=6, name="p", store=eager.store)
        return getattr(eager, request.param)(lambda: None, policy)

    @pytest.mark.parametrize(
        ("cost", "ask"),
        [
            (1, lambda task: task.apply_async()),
            (5, lambda task: task.apply_async(shape_cost=5)),
            (5, lambda task: task.apply_async((), {}, shape_cost=5, headers={"own": 1})),
            (5, lambda task: task.apply(shape_cost=5)),
            (5, lambda task: task.s().set(shape_cost=5).apply_async()),
            (5, lambda task: task.s().set(shape_cost=5).apply()),
            (5, lambda task: task.s().apply_async(shape_cost=5)),
            (5, lambda task: group([task.s().set(shape_cost=3), task.s().set(shape_cost=2)]).apply_async()),
            (5, lambda task: (task.si().set(shape_cost=4) | task.si()).apply_async()),
            (5, lambda task: chord([task.si().set(shape_cost=3)])(task.si().set(shape_cost=2))),
        ],
    )
    def test_applies_to_one_call(self, clock, task, cost, ask):
        ask(task)
        assert clock.now() == 0
        task.apply_async(shape_cost=6)
        assert clock.now() == pytest.approx(cost * SLOT_S)

    @pytest.mark.parametrize("cost", [0, -1, 1.5, True, "5"])
    def test_has_to_be_a_number_of_units(self, task, cost, refused):
        refused(lambda: task.apply_async(shape_cost=cost).get(), "shape_cost")

    def test_is_kept_by_a_retry(self, clock, eager):
        def run(self):
            if not self.request.retries:
                raise self.retry(countdown=0)
            return clock.now()

        task = eager.shaped(run, {"burst": 2}, bind=True)
        assert task.apply_async(shape_cost=2).get() == pytest.approx(2 * SLOT_S)


class TestKeys:
    def test_a_callable_gets_what_the_task_gets(self, clock, eager):
        shape = {"key": lambda user, region="eu": user["id"]}
        task = eager.shaped(lambda user, region="eu": clock.now(), shape)
        users = {"id": "a"}, {"id": "b"}
        assert [task(users[0]), task(users[1]), task(users[0], region="us")] == [0, 0, SLOT_S]

    def test_attributes_of_parameters(self, clock, eager):
        task = eager.shaped(lambda url: clock.now(), {"key": "{url.host}"})
        urls = [httpx.URL(f"http://{place}") for place in ("a/1", "b/1", "a/2")]
        assert [task(url) for url in urls] == [0, 0, SLOT_S]

    def test_self_is_no_parameter(self, clock, eager):
        task = eager.shaped(lambda self, account: clock.now(), {"key": "{account}"}, bind=True)
        assert [task("a"), task("b"), task("a")] == [0, 0, SLOT_S]

    def test_a_task_written_as_a_class(self, eager, clock):
        class Sync(ShapedTask):
            name = "sync"
            shape = {"rate": "10/s", "key": "{account}"}  # noqa: RUF012 - as users write it

            def run(self, account, more=0):
                return clock.now(), self.request.id is not None

        task = eager.app.register_task(Sync())
        assert task.apply_async(("a",)).get() == (0, True)
        assert task.apply_async(("b", 1)).get() == (0, True)
        assert task.apply_async((), {"account": "a"}).get() == (SLOT_S, True)
        assert task("a") == (pytest.approx(2 * SLOT_S), False)


class TestPublishing:
    def test_is_calling_where_all_is_eager(self, clock, eager):
        task = eager.shaped(lambda n: (clock.now(), n))
        assert [shape_publish(task, (n,)).get() for n in range(2)] == [(0, 0), (SLOT_S, 1)]

    def test_needs_a_shape(self, eager, refused):
        refused(lambda: shape_publish(eager.plain(lambda: None)), "task")

    @pytest.mark.parametrize("field", ["eta", "countdown"])
    def test_has_a_time_of_its_own(self, eager, refused, field):
        task = eager.shaped(lambda: None)
        refused(lambda: shape_publish(task, **{field: 3}), field)


CALLS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.floats(0, 0.5), st.sampled_from([*WAYS])),
    max_size=25,
)


@given(CALLS, st.integers(4, 6), st.sampled_from(["shaped", "foreign"]))
def test_every_way_of_calling_keeps_to_the_rate_of_its_key(calls, burst, kind):
    """Time passes between calls. Results equal those without shaping."""
    clock = ManualClock(autojump=True)
    eager = Eager(clock)
    left = {}

    def run(account, n, cost):
        left.setdefault(account, []).append((clock.now(), cost))
        return n

    shape = {"burst": burst, "key": "{account}", "cost": lambda account, n, cost: cost}
    task = getattr(eager, kind)(run, shape)
    for n, (account, cost, pause_s, way) in enumerate(calls):
        assert WAYS[way](task, account, n, cost) == n
        clock.advance(pause_s)
    assert sum(map(len, left.values())) == len(calls)
    for departures in left.values():
        check_pace(departures, "10/s", burst=burst, tolerance="1us")
