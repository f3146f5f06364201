"""MemoryStore: one truth for all threads, names with one kind each, and what can be looked at and reset."""

import dis
import gc
import random
import time
from functools import partial

import pytest

from shapekit import (
    GCRA,
    Adaptive,
    FixedWindow,
    Gate,
    LeakyBucket,
    ManualClock,
    MemoryStore,
    Quota,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    StoreUnavailableError,
    SystemClock,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit._runtime import process
from shapekit.algorithms.base import CHECK
from shapekit.algorithms.ledger import ledgered

STRATEGIES = [
    GCRA("50/s"),
    TokenBucket("50/s"),
    LeakyBucket("50/s"),
    FixedWindow("50/s"),
    SlidingWindow("50/s"),
    SlidingWindowLog("50/s"),
    Quota("50/day"),
    all_of(a=GCRA("50/s"), b=FixedWindow("60/s")),
    any_of(a=GCRA("50/s"), b=FixedWindow("40/s")),
    first_of(a=GCRA("30/s"), b=FixedWindow("20/s")),
]


def kind(strategy):
    return strategy.kind


class Dawdling(GCRA):
    """Lets another thread run between deciding and storing, which so decides by the same state."""

    __slots__ = ()

    def booked(self, book, now, cost, skew=0):
        outcome = super().booked(book, now, cost, skew)
        time.sleep(0)
        return outcome


def hammer(crew, gate, key, threads=32, calls=20):
    """How many of all calls of all threads are admitted."""
    admitted = [0] * threads

    def job(thread):
        def work():
            admitted[thread] = sum(gate.check(key).allowed for _ in range(calls))

        return work

    crew.at_once(*[job(thread) for thread in range(threads)])
    crew.join()
    return sum(admitted)


@pytest.fixture(params=["switches at calls", "switches anywhere"])
def switching(request, monkeypatch):
    """Where the interpreter may let another thread run."""
    monkeypatch.setattr(process, "switches_at_calls", lambda: request.param == "switches at calls")


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("strategy", [*STRATEGIES, Dawdling("50/s")], ids=kind)
def test_32_threads_on_one_key_are_admitted_exactly_to_the_limit(crew, switching, strategy, is_known):
    gate = Gate(strategy, clock=ManualClock())
    if is_known:
        assert gate.check("key")
    assert hammer(crew, gate, "key") == 50 - is_known


def test_no_other_thread_comes_between_reading_a_state_and_storing_it():
    charge = MemoryStore().bind("gate", ledgered(GCRA("1/s")), CHECK)
    steps = [step.opname for step in dis.get_instructions(charge)]
    looked = steps.index("IS_OP")
    stored = [at for at, name in enumerate(steps) if name == "STORE_SUBSCR"]
    assert len(stored) == 2
    assert looked < stored[0]
    places = ("CALL", "PRECALL", "JUMP_BACKWARD", "RESUME", "SEND", "YIELD", "BUILD", "MAKE")
    assert not [name for name in steps[looked : stored[1]] if name.startswith(places)]


@pytest.mark.parametrize("at_calls", [True, False])
def test_the_lock_is_held_where_a_thread_may_come_in_anywhere(monkeypatch, at_calls):
    class Watching(GCRA):
        __slots__ = ()

        def booked(self, book, now, cost, skew=0):
            held.append(process.is_inside(store._lock))
            return super().booked(book, now, cost, skew)

    monkeypatch.setattr(process, "switches_at_calls", lambda: at_calls)
    store, held = MemoryStore(ManualClock()), []
    gate = Gate(Watching("50/s"), store=store)
    gate.check("key")
    gate.check("key")
    assert held == [True, not at_calls]


def test_32_threads_on_a_composite_with_keys_of_its_own(crew, switching):
    gate = Gate(all_of(ip=Dawdling("50/s"), user=Dawdling("60/s")), clock=ManualClock())
    assert hammer(crew, gate, {"ip": "::1", "user": "alice"}) == 50


def test_32_threads_that_first_meet_a_key_make_one_state(crew, switching):
    gate = Gate(Dawdling("1/day"), clock=ManualClock())
    for n in range(5):
        assert hammer(crew, gate, f"new-{n}", calls=1) == 1


def test_threads_that_do_everything_at_once_lose_no_call_and_make_none(crew, switching, restless):
    """Under two limits of one name, between which the keys move to and fro, amid keys that are swept."""
    store, counted = MemoryStore(), [0] * 8
    gates = [Gate(Quota(limit, "month"), store=store, name="month") for limit in (10**9, 10**9 + 1)]
    brief = Gate(GCRA("1000000/s", burst=10**6), store=store, name="brief")

    def job(thread):
        def work():
            draw = random.Random(thread)
            for number in range(300):
                gate = draw.choice(gates)
                decision = gate.check("key")
                assert decision
                counted[thread] += 1 + sum(map(bool, gate.check_many(["key", "key"])))
                if number % 50 == 0:  # no more than are remembered, however late a thread is
                    counted[thread] -= 1
                    for _ in range(2):
                        gate.refund("key", decision)
                brief.check(str(draw.randrange(1_000)))
                assert len(list(store.keys())) <= len(store)

        return work

    crew.at_once(*[job(thread) for thread in range(8)])
    crew.join()
    assert gates[0].peek("key").current == sum(counted)


# names


@pytest.mark.parametrize("other", STRATEGIES[1:], ids=kind)
def test_one_name_has_one_kind(refused, other):
    store = MemoryStore(ManualClock())
    Gate(GCRA("10/s"), store=store, name="api")
    refused(lambda: Gate(other, store=store, name="api"), "name")
    Gate(other, store=store, name="another")


def test_composites_of_one_name_have_parts_of_one_kind(refused):
    store = MemoryStore(ManualClock())
    one = Gate(all_of(a=GCRA("10/s"), b=GCRA("5/s")), store=store, name="api")
    other = Gate(all_of(a=FixedWindow("10/s"), b=GCRA("5/s")), store=store, name="api")
    assert one.check("key")
    refused(lambda: other.check("key"), "strategy")
    assert other.check("another key")


def test_gates_of_one_name_and_kind_share_their_keys():
    store = MemoryStore(ManualClock())
    gates = [Gate(GCRA("1/s", burst=4), store=store, name="api") for _ in range(2)]
    assert [gates[n % 2].check("key").remaining for n in range(4)] == [3, 2, 1, 0]
    assert not gates[0].check("key")


def test_gates_of_other_names_do_not():
    store = MemoryStore(ManualClock())
    for name in ("a", "b", None, None):
        assert Gate(GCRA("1/s", burst=1), store=store, name=name).check("key")


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        (GCRA("1/s", burst=10), GCRA("1/s", burst=12), 6),
        (GCRA("1/s", burst=10), GCRA("1/s", burst=7), 1),
        (GCRA("1/s", burst=10), GCRA("2/s", burst=20), 8),
        (TokenBucket("1/s", 10), TokenBucket("1/s", 8), 2),
        (FixedWindow("10/min"), FixedWindow("8/min"), 2),
        (SlidingWindow("10/min"), SlidingWindow("8/min", buckets=3), 2),
        (SlidingWindowLog("10/min"), SlidingWindowLog("8/min"), 2),
        (Quota("10/day"), Quota("8/day"), 2),
        (Quota("10/day"), Quota("8/month"), 2),
        (Quota("10/month"), Quota("8/day"), 2),
        (
            all_of(a=GCRA("1/s", burst=10), b=FixedWindow("20/min")),
            all_of(b=FixedWindow("20/min"), a=GCRA("1/s", burst=8)),
            2,
        ),
    ],
    ids=lambda value: getattr(value, "kind", value),
)
def test_other_numbers_continue_the_old_state(old, new, left):
    clock = ManualClock(1_000 * 86_400)
    store = MemoryStore(clock)
    before = Gate(old, store=store, name="api")
    assert before.check("key", cost=6)
    after = Gate(new, store=store, name="api")
    assert after.peek("key").remaining == left
    assert sum(after.check("key").allowed for _ in range(20)) == left
    assert not before.check("key", cost=old.max_cost - 6 + 1)


# the garbage collector


def left_by(strategy, store):
    gate = Gate(strategy, store=store)
    for key in map(str, range(100)):
        gate.refund(key, gate.check(key, cost=2))
        gate.check(key)
        gate.debit(key, gate.check(key), cost=1)
    gate.reset("7")


def left_by_shaper(store, **options):
    shaper = Shaper(store=store, **options)
    for key in map(str, range(100)):
        taken = [shaper.reserve(key) for _ in range(4)]
        taken[1].cancel()
        shaper.settle(taken[0], 3)
    shaper.hold("1s", key="7")


@pytest.mark.parametrize(
    "leave",
    [
        *[pytest.param(partial(left_by, strategy), id=strategy.kind) for strategy in STRATEGIES],
        pytest.param(partial(left_by_shaper, rate="10/s"), id="shaper"),
        pytest.param(partial(left_by_shaper, rate="10/s; 100/min"), id="rates"),
        pytest.param(partial(left_by_shaper, gates=(GCRA("10/s"), Quota("9/day"))), id="gates"),
        pytest.param(partial(left_by_shaper, adaptive=Adaptive(min="1/s", max="10/s")), id="adaptive"),
    ],
)
def test_the_garbage_collector_stops_tracking_what_is_kept(leave):
    leave(store=(store := MemoryStore(ManualClock(1_000_000))))
    # Tuples in tuples: each collection comes one level further out.
    for _ in range(10):
        gc.collect()
    tables = [table for _, table in store._records.tables() if table.ends]
    kept = [state for table in tables for state in table.states.values()]
    assert len(kept) == 100
    assert not any(map(gc.is_tracked, kept))
    assert not any(map(gc.is_tracked, (page.keys for page in store._line if len(page.keys) == 64)))


# to look, to reset, to close


@pytest.fixture
def busy():
    clock = ManualClock()
    store = MemoryStore(clock)
    for name, keys in (("api", ("alice", "bob")), ("web", ("alice",))):
        gate = Gate(GCRA("1/s", burst=1), store=store, name=name)
        for key in keys:
            assert gate.check(key)
    return clock, store


def test_keys_shows_the_live_ones(busy):
    clock, store = busy
    assert sorted(store.keys()) == ["api:alice", "api:bob", "web:alice"]
    assert sorted(store.keys("api:")) == ["api:alice", "api:bob"]
    assert list(store.keys("none")) == []
    clock.advance(1)
    assert list(store.keys()) == []


def test_keys_shows_the_parts_of_a_composite():
    store = MemoryStore(ManualClock())
    gate = Gate(all_of(ip=GCRA("1/s"), user=GCRA("2/s")), store=store, name="api")
    gate.check({"ip": "::1", "user": "alice"})
    assert sorted(store.keys()) == ["api:ip:::1", "api:user:alice"]


def test_looking_while_others_call(busy):
    _, store = busy
    gate = Gate(GCRA("1/s"), store=store, name="late")
    shown = store.keys()
    for key in shown:
        gate.check(key)
    assert len(list(store.keys("late"))) == 3


def test_reset_makes_one_key_cold(busy):
    _, store = busy
    gate = Gate(GCRA("1/s", burst=1), store=store, name="api")
    gate.reset("alice")
    gate.reset("nobody")
    assert sorted(store.keys()) == ["api:bob", "web:alice"]
    assert gate.check("alice")
    assert not gate.check("bob")


def test_reset_all_makes_a_prefix_cold_and_counts(busy):
    _, store = busy
    gate = Gate(GCRA("1/s", burst=1), store=store, name="api")
    assert store.reset_all("api:") == 2
    assert store.reset_all("api:") == 0
    assert list(store.keys()) == ["web:alice"]
    assert gate.check("alice")
    assert store.reset_all() == 2
    assert list(store.keys()) == []


def test_the_parts_of_a_composite_are_reset_together():
    gate = Gate(all_of(ip=GCRA("1/s", burst=1), user=GCRA("1/s", burst=1)), clock=ManualClock())
    keys = {"ip": "::1", "user": "alice"}
    assert gate.check(keys)
    assert not gate.check(keys)
    gate.reset(keys)
    assert gate.check(keys)


@pytest.mark.parametrize(
    "call",
    [
        lambda store, gate: gate.check("alice"),
        lambda store, gate: gate.check("new"),
        lambda store, gate: gate.check_many(["alice", "new"]),
        lambda store, gate: gate.peek("alice"),
        lambda store, gate: gate.forecast("new"),
        lambda store, gate: gate.debit("alice"),
        lambda store, gate: gate.reset("alice"),
        lambda store, gate: store.reset_all(),
        lambda store, gate: list(store.keys()),
        lambda store, gate: Gate(GCRA("1/s"), store=store, name="fresh").check("key"),
    ],
    ids=[
        "check",
        "cold",
        "check_many",
        "peek",
        "forecast",
        "debit",
        "reset",
        "all",
        "keys",
        "fresh",
    ],
)
def test_every_call_of_a_closed_store_raises(busy, call):
    _, store = busy
    gate = Gate(GCRA("1/s"), store=store, name="api")
    store.close()
    store.close()
    assert len(store) == 0
    with pytest.raises(StoreUnavailableError, match="closed"):
        call(store, gate)


def test_a_clock_is_a_clock(refused):
    for clock in (0, "now", time, object(), ManualClock):
        refused(lambda clock=clock: MemoryStore(clock), "clock")
    assert isinstance(MemoryStore().clock, SystemClock)
    clock = ManualClock()
    assert MemoryStore(clock).clock is clock


@pytest.mark.parametrize("prefix", [5, b"api", True, ["api"]])
def test_a_prefix_is_a_text(refused, busy, prefix):
    _, store = busy
    refused(lambda: list(store.keys(prefix)), "prefix")
    refused(lambda: store.reset_all(prefix), "prefix")
    assert len(list(store.keys())) == 3


def test_its_length_and_repr_have_the_number_of_its_keys(busy):
    _, store = busy
    assert (len(store), repr(store)) == (3, "MemoryStore(3 keys)")
    assert not store.shared
