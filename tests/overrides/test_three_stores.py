"""Memory, SQLite and Redis go by overrides alike, decision for decision, in every operation."""

import itertools
import logging
import threading
import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    Adaptive,
    ConfigError,
    FixedWindow,
    Gate,
    LeakyBucket,
    ManualClock,
    MemoryStore,
    Override,
    Policy,
    QueueFullError,
    Quota,
    RateLimitedError,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    SQLiteStore,
    TokenBucket,
    all_of,
    any_of,
)
from shapekit.algorithms.overrides import written
from shapekit.stores.base import Stored
from shapekit.stores.redis import RedisStore

from ..redis_server import RedisServer, shared_server
from .conftest import fresh_redis, put

RATES = st.sampled_from(["5/s", "20/s", "2/s", "7 per 3 seconds", "1/min", "20/s; 9/min"])
OVERRIDES = st.one_of(
    RATES.map(lambda rate: Override(rate=rate)),
    st.tuples(st.sampled_from(["a", "b*", "bee"]), RATES).map(lambda pair: Override(*pair)),
    st.sampled_from([Override(state="off"), Override(state="held"), Override("b*", state="held")]),
    st.sampled_from([1_800_000_000.5, 1_800_000_007, 1_800_000_040]).map(
        lambda until: Override(state="held", until=until)
    ),
    st.integers(1, 5).map(lambda burst: Override(burst=burst)),
)
STEPS = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from(["a", "bee"]), st.sampled_from([None, 0, 2])),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
    st.tuples(st.just("settle"), st.integers(0, 40), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.sampled_from([0.001, 0.25, 1.0, 30.0])),
    st.tuples(st.just("set"), st.lists(OVERRIDES, max_size=3, unique_by=lambda one: one.key)),
    st.tuples(st.just("hold"), st.sampled_from(["a", "bee"]), st.sampled_from([0.5, 3])),
    st.tuples(st.just("forecast"), st.sampled_from(["a", "bee"])),
)


FORGOTTEN_S = 1.0
"""No store forgets a key before it has been idle for so long."""


def played(store, clock, options, steps):
    """The answers to the steps, as plain values."""
    shaper = Shaper(**{"rate": "5/s"} | options, store=store, name="api")
    taken, answers, used_at = [], [], {}
    for step, *args in steps:
        if step in ("reserve", "hold"):
            used_at[args[0]] = clock.now()
        if step == "reserve":
            reservation = shaper.reserve(args[0], max_wait=args[1])
            answers.append((bool(reservation), reservation.delay, reservation.decision.remaining))
            if reservation:
                taken.append(reservation)
        elif step == "cancel" and taken:
            answers.append(taken[args[0] % len(taken)].cancel())
        elif step == "settle" and taken:
            answers.append(shaper.settle(taken[args[0] % len(taken)], args[1]))
        elif step == "pass":
            clock.advance(args[0])
            # The server forgets an idle key in its own time, which has not passed.
            long_ago = clock.now() - FORGOTTEN_S
            taken = [
                one for one in taken if used_at[one.key] >= long_ago or shaper.remaining(one) > -FORGOTTEN_S
            ]
        elif step == "set":
            put(store, "api", *args[0])
        elif step == "hold":
            answers.append(shaper.hold(args[1], key=args[0]))
        elif step == "forecast":
            answers.append(shaper.forecast(3, key=args[0]))
        answers.append([shaper.remaining(reservation) for reservation in taken])
    return answers


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rate": "7/s"},
        {"rate": "10/s; 100/min"},
        {"gates": [GCRA("3/s")]},
        {"gates": [SlidingWindowLog("9 per 3s")]},
        {"gates": [Quota("9/fixed:1m", spread=True)]},
        {"burst": 3},
    ],
    ids=["pace", "sevenths", "rates", "meter", "log", "spread", "burst"],
)
@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=25))
def test_all_stores_answer_alike_whatever_happens(tmp_path_factory, options, steps):
    clocks = [ManualClock(1_800_000_000) for _ in range(3)]
    path = tmp_path_factory.mktemp("store") / "limits.db"
    stores = [MemoryStore(clocks[0]), SQLiteStore(path, clock=clocks[1]), fresh_redis(clocks[2])]
    answers = [played(store, clock, options, steps) for store, clock in zip(stores, clocks, strict=True)]
    for store in stores:
        store.close()
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    "limit",
    [
        SlidingWindowLog("2/min"),
        all_of(a=SlidingWindowLog("2/min"), b=FixedWindow("3/min")),
        any_of(a=SlidingWindowLog("2/min"), b=SlidingWindow("1/min")),
    ],
    ids=lambda limit: limit.kind,
)
def test_off_lifts_a_gate_with_a_log_and_goes_on_counting(store, limit):
    gate = Gate(limit, store=store, name="gate")
    assert [gate.check().allowed for _ in range(3)] == [True, True, False]
    put(store, "gate", Override(state="off"))
    assert all(gate.check().allowed for _ in range(20))
    put(store, "gate")
    assert not gate.check().allowed


@pytest.mark.parametrize(
    "limit",
    [
        GCRA("1/h", burst=5),
        TokenBucket("5/min"),
        LeakyBucket("5/min"),
        Quota("5/day", spread=True),
        all_of(a=GCRA("1/min", burst=5), b=FixedWindow("9/min")),
    ],
    ids=lambda limit: limit.kind,
)
def test_off_admits_calls_of_one_instant_at_a_gate_that_is_used_up(store, limit):
    gate = Gate(limit, store=store, name="gate")
    assert not all(gate.check_many(["a"] * 6))
    put(store, "gate", Override(state="off"))
    assert all(gate.check_many(["a"] * 200))


@pytest.mark.parametrize(
    "options",
    [
        {"rate": "1/min"},
        {"rate": "1/min; 5/h"},
        {"rate": "5/min", "pace": "burst"},
        {"rate": "5/min", "headroom": 0.1},
        {"quota": Quota("5/day", spread=True)},
        {"rate": "1/s", "gates": [GCRA("1/s", burst=1)]},
    ],
    ids=["pace", "rates", "burst", "headroom", "spread", "meter"],
)
def test_off_admits_calls_of_one_instant(store, options):
    policy = Policy(name="api", store=store, max_wait=0, **options)
    with policy.admit():
        policy.configure(state="off")
    for _ in range(50):
        with policy.admit():
            pass
    store.clock.advance(1)
    policy.shaper.hold(5)
    policy.unconfigure()
    if options.keys() <= {"rate", "headroom"} and ";" not in options["rate"]:
        # The pace owes nothing for them.
        assert policy.shaper.reserve().delay == 5


def test_while_limits_are_off_a_call_of_any_cost_takes_a_place_that_was_given_back(store):
    policy = Policy("10/s", name="api", store=store)
    policy.configure(state="off")
    shaper = policy.shaper
    shaper.hold(5)
    first, _ = shaper.reserve(), shaper.reserve()
    assert first.cancel()
    assert shaper.reserve(cost=4).grant.start == first.grant.start


LINES = {
    "day": {"rate": "10/s", "burst": 9, "quota": "5/day"},
    "day alone": {"quota": "5/day"},
    "spread": {"quota": Quota("5/day", spread=True)},
    "rolling": {"quota": "5/rolling:1d"},
    "rates": {"rate": "10/s; 5/day"},
    "burst": {"rate": "5/day", "pace": "burst"},
    "meter": {"gates": [GCRA("5/day")]},
    "log": {"gates": [SlidingWindowLog("5 per 1d")]},
    "window": {"gates": [FixedWindow("5 per 1d")]},
    "composite": {"gates": [all_of(a=SlidingWindowLog("5 per 1d"), b=FixedWindow("5 per 1d"))]},
}


@pytest.mark.parametrize("options", LINES.values(), ids=LINES)
def test_off_lets_all_calls_leave_whatever_calls_waited_before(store, options):
    policy = Policy(name="api", store=store, **options)
    waiting = [policy.shaper.reserve(max_wait="9d") for _ in range(25)][-1]
    assert waiting.delay > 86_400
    policy.configure(state="off")
    assert [policy.shaper.reserve().delay for _ in range(20)] == [0] * 20
    store.clock.advance(1)
    assert policy.shaper.remaining(waiting) < 0
    assert [policy.shaper.reserve().delay for _ in range(20)] == [0] * 20
    # They are counted when they leave, and as far ahead nothing is.
    policy.unconfigure()
    assert 0 < policy.shaper.reserve(max_wait="9d").delay <= 86_400 * 1.1


@pytest.mark.parametrize("options", LINES.values(), ids=LINES)
def test_a_call_that_off_lets_go_gives_nothing_back_that_others_wait_for(store, options):
    policy = Policy(name="api", store=store, **options)
    early = [policy.shaper.reserve(max_wait="9d") for _ in range(10)][5:]
    policy.configure(state="off")
    policy.shaper.reserve()
    policy.unconfigure()
    for _ in range(5):
        policy.shaper.reserve(max_wait="9d")
    store.clock.advance(0.1)
    ahead = policy.forecast().first_in
    for one in early:
        one.cancel()
    store.clock.advance(1)
    assert policy.forecast().first_in == pytest.approx(ahead - 1)


def test_off_lets_calls_of_an_adaptive_rate_leave(store):
    policy = Policy(adaptive=Adaptive("1/min", "50/s"), store=store, name="api")
    assert [policy.shaper.reserve().delay for _ in range(2)] == pytest.approx([0, 60], abs=1e-4)
    policy.configure(state="off")
    store.clock.advance(1)
    assert [policy.shaper.reserve().delay for _ in range(3)] == pytest.approx([0] * 3, abs=2e-6)
    with pytest.raises(ConfigError, match="is less than a millionth of max"):
        policy.configure("1_000_000/s")


def test_an_override_holds_in_every_shaper_of_the_name_until_it_is_removed(store):
    old, new = Shaper("10/s", store=store, name="api"), Shaper("20/s", store=store, name="api")
    put(store, "api", Override(rate="15/s"))
    shapers = itertools.cycle([old, new])
    delays = [next(shapers).reserve().delay for _ in range(31)]
    assert delays[-1] == pytest.approx(2.0, abs=1e-5)
    assert [after - before for before, after in itertools.pairwise(delays)] == pytest.approx(
        [1 / 15] * 30, abs=2e-6
    )
    # One that starts later does not undo it.
    assert Shaper("50/s", store=store, name="api").reserve().delay == pytest.approx(31 / 15, abs=1e-5)
    put(store, "api")
    old.reset()
    assert [old.reserve().delay for _ in range(3)] == [0.0, 0.1, 0.2]


def test_another_process_goes_by_an_override_from_its_next_decision_on(tmp_path):
    for make in (lambda: SQLiteStore(tmp_path / "x.db"), _joint_redis()):
        mine, others = make(), make()
        shaper = Shaper("1/s", store=mine, name="api")
        put(others, "api", Override("acme", "1000/s"))
        shaper.reserve("acme")
        assert shaper.reserve("acme").delay < 0.5
        shaper.reserve("zoe")
        assert shaper.reserve("zoe").delay > 0.5
        mine.close()
        others.close()


def test_no_call_makes_a_further_trip_but_the_first_after_a_change():
    with RedisServer() as server, server.client() as client:
        mine, others = RedisStore.from_url(server.url), RedisStore.from_url(server.url)
        shaper, gate = (
            Shaper("5/s", store=mine, name="api"),
            Gate(GCRA("5/s", burst=100), store=mine, name="front"),
        )

        def trips():
            commands = client.info("commandstats")
            client.config_resetstat()
            scripts = {name: commands[name]["calls"] for name in commands if name.startswith("cmdstat_eval")}
            assert "cmdstat_hmget" not in commands
            return sum(scripts.values())

        for _ in range(2):
            shaper.reserve(), gate.check()
        trips()
        for _ in range(10):
            shaper.reserve(), gate.check()
        assert trips() == 20
        for name in ("api", "front"):
            put(others, name, Override("default", rate="20/s"))
        client.config_resetstat()
        shaper.reserve(), gate.check()
        assert trips() <= 8  # each learns of the change, and is decided by the override
        for _ in range(10):
            shaper.reserve(), gate.check()
        assert trips() == 20
        mine.close()
        others.close()


def _joint_redis():
    first = fresh_redis()

    def make():
        return type(first).from_url(shared_server().url, prefix=first.prefix)

    return make


def test_only_one_of_two_writes_at_once_succeeds_and_the_other_is_repeated(store):
    known = store.read_overrides("api")
    assert store.write_overrides("api", '[{"rate":"1/s"}]', known)
    assert not store.write_overrides("api", '[{"rate":"2/s"}]', known)
    policy = Policy("1/s", name="api", store=store)
    threads = [
        threading.Thread(target=policy.configure, args=("2/s",), kwargs={"key": key}) for key in "abcdefgh"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.key for one in policy.configured()} == {None, *"abcdefgh"}


@pytest.mark.parametrize(
    "text", ["rubbish", "[", '[{"rate":"x"}]', '[{"rate":"1/s","colour":"red"}]', "null"]
)
def test_an_illegible_text_is_ignored_and_logged_once(store, caplog, text, afterwards):
    shaper = Shaper("5/s", store=store, name="api")
    shaper.reserve()
    store.write_overrides("api", text, store.read_overrides("api"))
    assert [shaper.reserve().delay for _ in range(3)] == [0.2, 0.4, 0.6]
    afterwards()
    assert (
        len(
            [one for one in caplog.records if "illegible" in one.message or "in the code appl" in one.message]
        )
        == 1
    )
    # The next override replaces it.
    put(store, "api", Override(rate="1/s"))
    assert store.settings("api").known.overrides[0].rate == "1/s"


def spoil_version(store, version, **more):
    with shared_server().client() as client:
        client.hset(f"{store.prefix}:setting:api", mapping={"version": version, **more})


@pytest.mark.parametrize("version", [b"\xff", b"abc", b"1.5"])
@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_version_that_is_no_number_is_as_none_and_is_replaced(store, version):
    spoil_version(store, version, told='[{"rate":"1/s"}]')
    policy = Policy("5/s", name="api", store=store)
    assert [policy.shaper.reserve().delay for _ in range(3)] == [0, 0.2, 0.4]
    # Before `configure`, which would try for ever.
    assert store.write_overrides("api", "[]", store.read_overrides("api"))
    spoil_version(store, version)
    policy.configure("2/s")
    assert [one.rate for one in policy.configured()] == ["2/s"]
    store.clock.advance(9)
    assert [policy.shaper.reserve().delay for _ in range(2)] == [0, 0.5]


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_calls_go_on_by_the_code_though_the_version_is_spoiled_meanwhile(store):
    policy = Policy("5/s", name="api", store=store)
    policy.configure("1/s")
    assert policy.shaper.reserve().delay == 0
    spoil_version(store, b"\xff")
    policy.shaper.reserve()
    store.clock.advance(9)
    assert [policy.shaper.reserve().delay for _ in range(2)] == [0, 0.2]
    assert store.write_overrides("api", "[]", store.read_overrides("api"))
    assert policy.configured() == []


@pytest.mark.parametrize("store", ["redis"], indirect=True)
@pytest.mark.parametrize("is_evicted", [True, False], ids=["evicted", "removed"])
def test_overrides_that_a_server_evicts_are_missed_in_the_log_once(store, is_evicted, caplog, afterwards):
    policy = Policy("5/s", name="api", store=store)
    policy.configure("1/s")
    assert policy.shaper.reserve().delay == 0
    if is_evicted:
        with shared_server().client() as client:
            assert client.delete(f"{store.prefix}:setting:api") == 1
    else:
        policy.unconfigure()
    store.clock.advance(9)
    assert [policy.shaper.reserve().delay for _ in range(3)] == [0, 0.2, 0.4]
    afterwards()
    missed = [one for one in caplog.records if "have set for 'api' is gone" in one.getMessage()]
    assert len(missed) == is_evicted
    assert policy.configured() == []


def test_an_override_that_the_program_cannot_have_leaves_the_limit_of_the_code(store, caplog, afterwards):
    """Never unlimited: another program of the name may have a quota, this one has none."""
    put(store, "api", Override(quota="5/month"))
    shaper = Shaper("5/s", store=store, name="api")
    assert [shaper.reserve().delay for _ in range(3)] == [0.0, 0.2, 0.4]
    afterwards()
    assert "the limit in the code applies" in caplog.text


@pytest.mark.parametrize("text", ["rubbish", written((Override(quota="5/month"),))], ids=["read", "applied"])
def test_a_log_handler_may_call_the_same_store(store, text, crew, afterwards):
    """Like a handler that lets a few lines leave per second. Other threads may wait for it meanwhile."""
    gate, handled = Gate(GCRA("1/h", burst=3), store=store, name="lines"), []

    class Handler(logging.Handler):
        def emit(self, record):
            handled.append((record.getMessage(), gate.check().allowed))

    handler, log = Handler(), logging.getLogger("shapekit.store")
    log.addHandler(handler)
    try:
        shaper = Shaper("5/s", store=store, name="api")
        crew.start(store.write_overrides, "api", text, store.read_overrides("api"))
        crew.join()
        crew.at_once(shaper.reserve, shaper.reserve, partial(log.warning, "another line"))
        crew.join()
        afterwards()
    finally:
        log.removeHandler(handler)
    assert [is_admitted for _, is_admitted in handled] == [True] * 2
    assert any("in the code appl" in line for line, _ in handled)


def test_an_override_ends_by_itself(store):
    shaper = Shaper("5/s", store=store, name="api")
    put(store, "api", Override(rate="1/s", until=1_000_000_010.0))
    assert [shaper.reserve().delay for _ in range(3)] == [0.0, 1.0, 2.0]
    store.clock.advance(9.9)
    assert [shaper.reserve().delay for _ in range(2)] == [0.0, 1.0]
    store.clock.advance(5)
    assert [shaper.reserve().delay for _ in range(2)] == [0.0, 0.2]
    assert store.settings("api").known.overrides == ()


@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
def test_an_override_ends_by_the_date(store):
    """A server of Redis has one clock alone."""
    policy = Policy("5/s", store=store, name="api")
    store.clock.step_wall(86_400)
    with pytest.raises(ConfigError, match="has passed already"):
        policy.configure("1/s", until=1_000_000_010.0)
    policy.configure("1/s", until=1_000_086_410.0)
    store.clock.advance(9)
    assert [policy.shaper.reserve().delay for _ in range(2)] == [0.0, 1.0]
    store.clock.step_wall(1)
    assert policy.configured() == []
    first, second = (policy.shaper.reserve().delay for _ in range(2))
    assert second - first == pytest.approx(0.2)


def test_held_refuses_calls_or_makes_them_wait_and_then_the_rate_goes_on(store):
    shaper = Shaper("5/s", store=store, name="api")
    put(store, "api", Override(state="held"))
    assert not shaper.reserve(max_wait=60)
    first, second = shaper.reserve(), shaper.reserve()
    assert second.delay - first.delay == pytest.approx(0.2)
    assert shaper.held() > 86_400
    store.clock.advance(20 * 86_400)
    assert shaper.reserve().delay > 86_400 * 20
    put(store, "api")
    assert shaper.remaining(first) == pytest.approx(0.35)
    assert shaper.remaining(second) == pytest.approx(0.55)


def test_held_is_a_hold_of_thirty_days_that_each_decision_prolongs(store):
    """In its first half nothing is written. A key that is not in use is not held yet, but would be."""
    day = 86_400
    shaper = Shaper("5/s", store=store, name="api")
    put(store, "api", Override(state="held"))
    assert shaper.held() == 30 * day
    assert list(store.keys()) == []
    shaper.reserve()
    for passed, left in ((10, 20), (5, 15), (1 / day, 30), (14, 16), (2, 30)):
        store.clock.advance(passed * day)
        assert shaper.held() == pytest.approx(left * day, abs=1e-5)
    store.clock.advance(16 * day)
    shaper.reserve()
    assert shaper.held() == 30 * day


@pytest.mark.parametrize(
    "limits", [{"rate": "5/s"}, {"adaptive": Adaptive("1/s", "5/s")}], ids=["fixed", "adaptive"]
)
def test_an_override_that_ends_holds_calls_until_then(store, limits):
    """`max_wait` and every answer go by the end, and so do calls that wait when it is set anew."""
    shaper = Shaper(**limits, store=store, name="api")
    store.clock.step_wall(3_600)
    put(store, "api", Override(state="held", until=store.clock.wall_us() / 1e6 + 60))
    assert shaper.held() == shaper.forecast().first_in == pytest.approx(60.35)
    with pytest.raises(QueueFullError) as caught:
        shaper.schedule(max_wait=20)
    assert caught.value.held
    assert caught.value.retry_after == pytest.approx(40.35)
    first, second = shaper.reserve(max_wait=90), shaper.reserve(max_wait=90)
    apart = second.delay - first.delay
    for left in (15, 45, 25):
        put(store, "api", Override(state="held", until=store.clock.wall_us() / 1e6 + left))
        assert shaper.held() == pytest.approx(left + 0.35)
        assert shaper.remaining(first) == pytest.approx(left + 0.35)
        assert shaper.remaining(second) == pytest.approx(left + 0.35 + apart)
    store.clock.advance(25)
    assert shaper.remaining(first) == pytest.approx(0.35)
    store.clock.advance(0.35)
    assert shaper.held() == 0
    assert shaper.reserve().delay == pytest.approx(2 * apart)


def test_a_hold_that_ends_in_months_is_prolonged_as_one_without_end(store):
    day = 86_400
    shaper = Shaper("5/s", store=store, name="api")
    put(store, "api", Override(state="held", until=store.clock.wall_us() / 1e6 + 40 * day))
    shaper.reserve()
    for passed, left in ((14, 16), (2, 24), (23, 1)):
        store.clock.advance(passed * day)
        assert shaper.held() == pytest.approx(left * day, abs=0.4)


def test_used_units_of_a_quota_stay_used(store):
    policy = Policy("1000/s", name="api", quota="10/month", store=store)
    for _ in range(8):
        policy.shaper.reserve()
    policy.configure(quota="20/month")
    (month,) = policy.quotas()
    assert (month.used, month.limit) == (8, 20)
    for _ in range(12):
        assert policy.shaper.reserve(max_wait=None)
    with pytest.raises(RateLimitedError):
        policy.shaper.schedule()
    policy.configure(quota="15/month")
    with pytest.raises(RateLimitedError):
        policy.shaper.schedule()


def test_permits_go_by_overrides(store):
    policy = Policy(name="api", concurrency=1, store=store, max_wait=0)
    policy.configure(concurrency=3)
    with policy.admit(), policy.admit(), policy.admit(), pytest.raises(QueueFullError), policy.admit():
        pass
    policy.unconfigure()
    with policy.admit(), pytest.raises(QueueFullError), policy.admit():
        pass


def test_gates_go_by_overrides_too(store):
    gate = Gate(GCRA("1/min", burst=2), store=store, name="front")
    put(store, "front", Override(burst=5, rate="1/min"))
    assert [gate.check().allowed for _ in range(6)] == [True] * 5 + [False]
    assert [one.allowed for one in gate.check_many(["a", "b"])] == [True, True]
    put(store, "front")
    assert not gate.check().allowed


def test_keys_checked_together_have_each_their_own_override(store):
    gate = Gate(GCRA("1/min", burst=1), store=store, name="front")
    put(store, "front", Override("gold-*", rate="1/min", burst=3))
    keys = ["gold-1", "plain", "gold-1", "plain", "gold-1", "gold-1"]
    assert [one.allowed for one in gate.check_many(keys)] == [True, True, True, False, True, False]


def test_a_name_without_overrides_has_none_stored(store):
    assert store.read_overrides("api") == Stored()
    assert store.all_overrides() == {}
    put(store, "näme with:{all} 'sorts'", Override(rate="1/s"))
    assert list(store.all_overrides()) == ["näme with:{all} 'sorts'"]


def test_where_a_workers_date_is_ahead_an_override_ends_by_the_servers(monkeypatch):
    store = fresh_redis()
    policy = Policy("5/s", name="api", store=store)
    policy.configure("1/h", until=time.time() + 1_800)
    here_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: here_ns() + 3_600 * 10**9)
    assert [one.rate for one in policy.configured()] == ["1/h"]
    policy.configure("9/s", key="gold")
    assert {one.rate for one in policy.configured()} == {"1/h", "9/s"}
    with policy.admit():
        pass
    assert policy.forecast().first_in > 3_500
    store.close()
