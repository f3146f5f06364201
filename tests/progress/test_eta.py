"""The shown end is the policy's forecast, to the microsecond, and it comes true."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    ManualClock,
    Policy,
    QuotaExhaustedError,
    RedisStore,
    SlidingWindow,
    SQLiteStore,
    off,
)
from shapekit._runtime.drivers import run
from shapekit.algorithms.queue.queue import MOST_STEPS, LeakyQueue
from shapekit.progress import PLAYED_AT_ONCE, Loop, Watch, progress

from ..redis_server import shared_server
from .conftest import PATIENCE_S, Form

DECEMBER = 1_796_083_200.0
"""2026-12-01 00:00 UTC."""
POLICIES = {
    "paced": ("10/s", {}),
    "thirds": ("3/s", {}),
    "burst": ("7/s", {"burst": 4}),
    "windows": ("10/s; 20/min", {}),
    "as fast as may be": ("10/s", {"pace": "burst"}),
    "gate": ("10/s", {"gates": (GCRA("5/min", burst=3),)}),
    "aligned": ("10/s", {"gates": (FixedWindow("7/min"),)}),
    "quota": ("10/s", {"quota": "6/fixed:1m"}),
    "days": ("10/s", {"quota": "11/day"}),
}
SETTINGS = settings(
    max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("name", POLICIES)
@SETTINGS
@given(
    st.sampled_from(["sync", "asyncio", "trio"]),
    st.integers(1, 30),
    st.dictionaries(st.integers(0, 29), st.floats(0.5, 90), max_size=3),
    st.integers(1, 3),
)
def test_the_end_is_the_forecast_and_the_forecast_comes_true(each, name, form, total, holds, cost):
    rate, options = POLICIES[name]
    clock = ManualClock(1_000.0, autojump=True)
    policy = Policy(rate, clock=clock, cost=cost, **options)
    ends = []

    def compare(report):
        rest = total - report["done"]
        assert report["eta"] == (policy.forecast(rest).last_in if rest else 0.0)
        assert report["held"] == policy.shaper.held()
        ends.append((report["done"], clock.now() + report["eta"]))

    def body(item):
        if item in holds:
            policy.shaper.hold(holds[item])
        return policy.admit(max_wait="90d")

    each.reports, each.on_report = [], compare
    Form(form).loop(range(total), policy, body)
    # The last hold is placed after its item was handed out.
    settled = max((item for item in holds if item < total), default=-1) + 1
    assert {round(end, 6) for done, end in ends if done >= settled} == {round(clock.now(), 6)}
    assert len(ends) == total + 2


def test_a_spent_quota_shows_when_the_loop_continues(form, each):
    clock = ManualClock(DECEMBER - 30, autojump=True)
    policy = Policy("1/s", quota="3/month", clock=clock)
    with pytest.raises(QuotaExhaustedError):
        form.loop(range(5), policy, lambda item: policy.admit())
    assert [report["continues"] for report in each.reports] == [0.0, 0.0, 0.0, 28.0, 28.0]
    assert [report["eta"] for report in each.reports] == [31.0, 31.0, 30.0, 29.0, 29.0]
    assert each.lines[3].endswith("3/5 (60%), 2 s, 1.5/s, continues in 28 s, ETA 29 s")
    assert each.reports[-1]["ending"] == "stopped in item 4"


def test_a_hold_shows_its_remaining_time(form, each, clock):
    policy = Policy("10/s", clock=clock)

    def body(item):
        if item == 1:
            policy.shaper.hold("12s")
        return policy.admit()

    form.loop(range(4), policy, body)
    assert [report["held"] for report in each.reports] == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    policy.shaper.hold("12s")
    form.loop(range(4), policy, lambda item: policy.admit())
    assert each.reports[6]["held"] == 12.0
    assert each.lines[6].endswith("0/4 (0%), 0 s, held 12 s, ETA 13 s")


def test_calls_of_others_count(form, each, clock):
    policy = Policy("10/s", clock=clock)
    for _ in range(50):
        assert policy.shaper.reserve()
    form.loop(range(10), policy, lambda item: policy.admit())
    assert each.reports[0]["eta"] == 5.9
    assert clock.now() == 1_005.9


def test_without_a_total_there_is_no_end_but_holds_are_seen(form, each, clock):
    policy = Policy("10/s", clock=clock)
    policy.shaper.hold("5s")
    form.loop(iter(range(3)), policy, lambda item: policy.admit())
    assert [report["eta"] for report in each.reports] == [None] * 5
    assert each.reports[0]["held"] == 5.0
    assert each.lines[0].endswith(": 0 done, 0 s, held 5 s")


def test_the_forecast_of_a_loop_slower_than_its_limits_uses_its_own_pace(form, each, clock):
    policy = Policy("10/s", clock=clock)

    def body(item):
        clock.advance(4)
        return policy.admit()

    form.loop(range(5), policy, body)
    # Meanwhile an item's call waits up to a tenth of a second: that much is not known to be work.
    assert [report["eta"] for report in each.reports] == pytest.approx(
        [0.4, 16.0, 12.0, 8.0, 4.0, 0.0, 0.0], rel=0.025
    )


def test_work_during_the_waits_for_slots_adds_no_time(form, each, clock):
    policy = Policy("1/s", clock=clock)

    def body(item):
        clock.advance(0.9)
        return policy.admit()

    form.loop(range(5), policy, body)
    assert [report["eta"] for report in each.reports] == [4.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0]


def test_a_retry_that_was_held_is_no_work(form, each, clock):
    """Otherwise the forecast would assume the same wait for all later items."""
    policy = Policy("10/s", clock=clock)

    def body(item):
        if item == 0:
            policy.shaper.hold("1m")
        return policy.admit()

    form.loop(range(3), policy, body)
    assert [report["eta"] for report in each.reports] == [0.2, 0.2, 0.1, 0.0, 0.0]


def test_a_slow_item_does_not_slow_the_forecast_of_the_others(form, each, clock):
    """The time of all items without the holds bounds how far a few slow items raise the forecast."""
    policy = Policy("10/s", clock=clock)
    policy.shaper.hold("1m")

    def body(item):
        if item == 1:
            policy.shaper.hold("10m")
        clock.advance(9 if item in (4, 5) else 0)
        return policy.admit()

    form.loop(range(11), policy, body)
    assert each.reports[4]["eta"] == 0.7
    for report in each.reports[5:7]:
        assert report["eta"] == pytest.approx(
            (11 - report["done"]) * (report["elapsed"] - 660) / report["done"]
        )


def test_an_item_that_makes_no_call_gains_no_time(form, each, clock):
    """Its call would have waited ten seconds: it counts as work of no length, and not of less."""
    policy = busy(Policy("10/s", clock=clock))
    form.loop(range(11), policy, lambda item: clock.advance(20 if item == 1 else 0))
    assert each.reports[2]["eta"] == pytest.approx(9 * (20 - 10) / 4)


@pytest.mark.parametrize("how", ["off", "not enforced"])
def test_the_forecast_of_an_unshaped_loop_uses_its_own_pace(form, each, clock, how):
    policy = Policy("1/h", clock=clock, enforce=how == "off")
    policy.shaper.hold("1h")

    def body(item):
        clock.advance(2)
        return policy.admit()

    if how == "off":
        with off():
            form.loop(range(4), policy, body)
    else:
        form.loop(range(4), policy, body)
    assert [report["eta"] for report in each.reports] == [None, 6.0, 4.0, 2.0, 0.0, 0.0]
    assert {report["held"] for report in each.reports} == {0.0}


def busy(policy):
    """A hundred calls are in flight."""
    for _ in range(100):
        assert policy.shaper.reserve()
    return policy


def watch_over(policy, total):
    return Watch(Loop(policy.shaper, "default", 1, total, policy.enforce))


def test_a_hold_that_is_placed_during_an_item_moves_the_end_when_the_line_is_refreshed(listener, clock):
    policy = busy(Policy("10/s", clock=clock))
    watch = watch_over(policy, 101)
    run(watch.step)
    clock.advance(2)
    policy.shaper.hold("30s")
    watch.tick()
    report = listener.reports[-1]
    assert (report["held"], report["eta"]) == (30.0, policy.forecast(101).last_in)
    clock.advance(5)
    policy.shaper.resume()
    watch.tick()
    report = listener.reports[-1]
    assert (report["held"], report["eta"]) == (0.25, policy.forecast(101).last_in)
    clock.advance(1)
    watch.tick()
    assert listener.reports[-1]["held"] == 0.0
    assert listener.reports[-1]["eta"] == pytest.approx(report["eta"] - 1)
    watch.end(0, is_through=False)


def test_a_line_that_was_just_logged_is_not_logged_again(listener, clock):
    watch = watch_over(Policy("10/s", clock=clock), 10)
    run(watch.step)
    clock.advance(0.999)
    watch.tick()
    assert len(listener.reports) == 1
    clock.advance(0.001)
    watch.tick()
    assert len(listener.reports) == 2
    watch.end(0, is_through=False)
    clock.advance(5)
    watch.tick()
    assert [report["ending"] for report in listener.reports] == [None, None, "stopped"]


def test_refreshing_the_line_does_not_shorten_the_measured_work(each, clock):
    watch = watch_over(Policy("10/s", clock=clock, enforce=False), 11)
    run(watch.step)
    clock.advance(10)
    watch.tick()
    clock.advance(5)
    watch.done = 1
    run(watch.step)
    assert each.reports[-1]["eta"] == 10 * 15.0
    watch.end(1, is_through=False)


def test_a_long_forecast_is_played_beside_the_loop(listener, clock):
    policy = busy(Policy("10/s; 200/h", clock=clock))
    total = PLAYED_AT_ONCE + 1
    watch = watch_over(policy, total)
    run(watch.step)
    policy.shaper.hold("10s")
    watch._player.join(PATIENCE_S)
    assert not watch._player.is_alive()
    clock.advance(1)
    watch.tick()
    assert listener.reports[-1]["eta"] == policy.forecast(total).last_in > 3_609.0
    watch.end(0, is_through=False)


def test_a_slow_forecast_is_played_less_often(clock, each, monkeypatch):
    policy = Policy("10/s; 5000/h", clock=clock)
    played = []
    plain = LeakyQueue.outlook
    monkeypatch.setattr(LeakyQueue, "outlook", lambda *args: played.append(args[3]) or plain(*args))
    for _ in progress(range(400), policy):
        with policy.admit():
            """Ten a second."""
    # Each play stands for two milliseconds for each call that was played, and is looked up at items.
    assert played == [400, *sorted(played[1:], reverse=True)]
    for before, after in pairwise(played):
        assert (before - after) * 0.1 >= before * 2e-3
    assert [report["at"] + report["eta"] for report in each.reports] == pytest.approx([1_039.9] * 402)


def test_without_other_limits_any_number_is_forecast_at_once(listener, clock):
    watch = watch_over(Policy("10/s", clock=clock), 10**15)
    run(watch.step)
    assert listener.reports[-1]["eta"] == pytest.approx(10**14)
    watch.end(0, is_through=False)


def test_more_calls_than_can_be_played_have_no_end(listener, clock):
    watch = watch_over(Policy("10/s", gates=[SlidingWindow("100/min")], clock=clock), MOST_STEPS + 1)
    run(watch.step)
    watch._player.join(PATIENCE_S)
    assert not watch._player.is_alive()
    watch.tick()
    assert listener.reports[-1]["eta"] is None
    watch.end(0, is_through=False)


@pytest.fixture(params=["redis", "sqlite"])
def store(request, tmp_path, clock):
    if request.param == "redis":
        store = RedisStore.from_url(shared_server().url, clock=clock, prefix=f"progress-{tmp_path.name}")
    else:
        store = SQLiteStore(tmp_path / "limits.db", clock=clock)
    yield store
    store.close()


def test_shared_stores_give_the_same_forecast(form, each, clock, store):
    policy = Policy("1/s; 10/min", name="stripe", store=store)
    form.afterwards = store.aclose
    form.loop(range(12), policy, lambda item: policy.admit())
    ends = {round(report["at"] + report["eta"], 6) for report in each.reports}
    assert ends == {1_061.0} == {clock.now()}


def test_calls_that_cost_more_than_a_set_limit_have_no_end_until_it_ends(form, each, clock):
    policy = Policy("10/s", quota="100/day", name="set", clock=clock)

    def body(item):
        if item == 1:
            policy.configure(quota="20/day")
        return policy.admit(cost=1)

    form.loop(range(4), policy, body, cost=50)
    assert [report["eta"] is None for report in each.reports][-2:] == [True, True]
