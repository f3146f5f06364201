"""SQLiteStore: one truth in one file, for all processes that open it."""

import gc
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    ConfigError,
    Gate,
    ManualClock,
    Policy,
    Quota,
    Shaper,
    SlidingWindowLog,
    StoreUnavailableError,
    TokenBucket,
    all_of,
    shaped,
)
from shapekit.algorithms.base import REFUND
from shapekit.stores.sqlite import SQLiteStore

ONE = GCRA("1/s", burst=1)
ODD_KEYS = [
    "",
    " ",
    "a:b",
    "line\nbreak",
    "nul\0in it",
    "ü☃😀",
    "half \ud800 of a pair",
    "x" * 10_000,
    "'; --",
    "%_",
]


@pytest.fixture
def clock():
    return ManualClock(1_000.0, autojump=True)


@pytest.fixture
def stores(path, clock):
    """Two stores on one file, as two processes have them."""
    with closing(SQLiteStore(path, clock=clock)) as one, closing(SQLiteStore(path, clock=clock)) as other:
        yield one, other


def test_two_stores_on_one_file_share_one_rate(stores, clock):
    here, there = (Shaper("10/s", name="api", store=store) for store in stores)
    assert [round(shaper.reserve().delay, 6) for shaper in (here, there, there, here)] == [0, 0.1, 0.2, 0.3]
    assert round(there.forecast().first_in, 6) == 0.4
    here.hold(30)
    assert there.reserve(max_wait=1).accepted is False
    left = there.resume()
    here.schedule()
    assert clock.now() == pytest.approx(1_000 + left + 0.4)


def test_a_sqlite_store_serves_everything_that_takes_a_store(stores):
    store, other = stores
    policy = Policy("1/s", quota="3/day", name="policy", store=store)
    with policy.admit("alice") as admission:
        assert admission.delay == 0

    @shaped("1/s", store=store, name="function")
    def call():
        return store.clock.now()

    assert call() + 1 == call()
    assert sorted(other.keys()) == ["function:default", "policy:alice"]


def test_a_name_is_required(stores):
    with pytest.raises(ConfigError, match="other processes share the store"):
        Shaper("10/s", store=stores[0])


@pytest.mark.parametrize("key", ODD_KEYS, ids=lambda key: repr(key)[:20])
def test_any_text_is_a_key_and_a_name(stores, key):
    store, other = stores
    gate = Gate(GCRA("1/day", burst=1), name=key or "name", store=store)
    assert gate.check(key)
    assert not Gate(GCRA("1/day", burst=1), name=key or "name", store=other).check(key)
    assert gate.check(key + "?")
    assert f"{key or 'name'}:{key}" in list(other.keys())
    gate.reset(key)
    assert gate.check(key)


def test_a_changed_rate_continues_at_the_old_tail(stores):
    # Thirds of a microsecond in one, whole ones in the other: no state can be taken as it is.
    slow = Shaper("3 per 3 s", name="api", store=stores[0])
    odd = Shaper("3/s", name="api", store=stores[1])
    assert [slow.reserve().delay for _ in range(3)] == [0, 1, 2]
    assert [odd.reserve().delay for _ in range(3)] == [3, 3.333334, 3.666667]
    assert [slow.reserve().delay for _ in range(2)] == [4, 5]
    wide = Gate(GCRA("3/s", burst=5), name="gate", store=stores[0])
    narrow = Gate(GCRA("1/s", burst=2), name="gate", store=stores[1])
    assert all(wide.check() for _ in range(4))
    assert narrow.check().retry_after == 0.333334


def test_parts_with_keys_of_their_own_share_what_has_the_same_key(stores, clock):
    both = all_of(ip=GCRA("1/s", burst=2), user=SlidingWindowLog(3, 10))
    here, there = (Gate(both, name="api", store=store) for store in stores)
    assert here.check({"ip": "a", "user": "u"})
    assert there.check({"ip": "a", "user": "v"})
    denied = here.check({"ip": "a", "user": "w"})
    assert (denied.allowed, denied.binding) == (False, "ip")
    assert sorted(stores[1].keys()) == ["api:ip:a", "api:user:u", "api:user:v"]
    there.reset({"ip": "a", "user": "u"})
    assert sorted(stores[0].keys()) == ["api:user:v"]
    wider = Gate(all_of(ip=GCRA("1/s", burst=1), user=SlidingWindowLog(1, 10)), name="api", store=stores[1])
    assert wider.check({"ip": "a", "user": "v"}).binding == "user"


# names, keys, resetting


def test_one_name_is_not_for_two_kinds(stores):
    store, other = stores
    gate = Gate(GCRA("1/day", burst=1), name="api", store=store)
    message = r"'api' already holds a gcra, and this is a token_bucket; use another name, or reset its keys"
    with pytest.raises(ConfigError, match=message):
        Gate(TokenBucket("1/day"), name="api", store=store)
    assert gate.check()
    stranger = Gate(TokenBucket("1/day"), name="api", store=other)
    for call in (stranger.check, stranger.peek, stranger.reset, lambda: stranger.check("another key")):
        with pytest.raises(ConfigError, match=r"already holds a gcra, and this is a token_bucket"):
            call()
    assert not gate.check()
    assert list(store.keys()) == ["api:default"]


def test_a_name_is_free_for_another_kind_when_nothing_lives_under_it(stores, clock):
    gate = Gate(GCRA("1/s", burst=1), name="api", store=stores[0])
    assert gate.check()
    clock.advance(1)
    bucket = Gate(TokenBucket("1/day", 1), name="api", store=stores[1])
    assert bucket.check("new")
    # The earlier user of the name finds out at the latest when it meets the other's state.
    with pytest.raises(ConfigError, match="cannot continue the state of a token_bucket"):
        gate.check("new")
    assert not bucket.check("new")


def test_a_mistake_leaves_the_store_as_it_was(stores):
    strategy = all_of(a=ONE, b=ONE)
    here = Gate(strategy, name="here", store=stores[0])
    with pytest.raises(ConfigError, match="is not of these 2 parts"):
        stores[0].bind("here", strategy, REFUND)("key", 1, (1, 2, 3))
    # The name was rolled back with the rest; the next name now has its place in the file.
    assert Gate(strategy, name="there", store=stores[1]).check("key")
    assert here.check("key")
    assert sorted(stores[0].keys()) == ["here:key", "there:key"]


def test_many_keys_are_decided_all_or_none(stores):
    store, other = stores
    gate = Gate(GCRA("1/day", burst=1), name="api", store=store)
    assert gate.check("damaged")
    store._file.transact(lambda execute: execute("UPDATE records SET state = '?'"))
    with pytest.raises(StoreUnavailableError):
        gate.check_many(["sound", "damaged"])
    assert list(other.keys("api:s")) == []
    assert gate.check("sound")


def test_keys_and_reset_by_prefix(stores, clock):
    store, other = stores
    for name, keys in (("a", "xyz"), ("b", "xy")):
        Gate(GCRA("1/min", burst=1), name=name, store=store).check_many(list(keys))
    Gate(ONE, name="short", store=store).check()
    assert sorted(other.keys()) == ["a:x", "a:y", "a:z", "b:x", "b:y", "short:default"]
    clock.advance(1)
    assert sorted(other.keys("a:")) == ["a:x", "a:y", "a:z"]
    assert other.reset_all("a:y") == 1
    assert other.reset_all("a:") == 2
    assert other.reset_all("a:") == 0
    assert sorted(store.keys()) == ["b:x", "b:y"]
    assert store.reset_all() == 2
    assert Gate(GCRA("1/min", burst=1), name="b", store=store).check("x")
    with pytest.raises(ConfigError, match="prefix"):
        store.keys(7)


def test_several_keys_are_decided_at_one_instant(path):
    class Running(ManualClock):
        def now_us(self):
            self.advance(1)
            return super().now_us()

    with closing(SQLiteStore(path, clock=Running())) as store:
        decisions = Gate(ONE, name="api", store=store).check_many(["a", "b", "a"])
        assert [bool(decision) for decision in decisions] == [True, True, False]
        assert len({decision.reset_at_us for decision in decisions}) == 1


# idle records


def count(store):
    return store._file.transact(lambda execute: execute("SELECT count(*) FROM records").fetchone()[0])


def test_idle_keys_leave_the_file_and_live_ones_stay(path, clock):
    with closing(SQLiteStore(path, clock=clock)) as store:
        slow = Gate(GCRA("1/day", burst=1), name="slow", store=store)
        fast = Gate(ONE, name="fast", store=store)
        assert all(slow.check_many([f"live-{n}" for n in range(100)]))
        assert all(fast.check_many([f"key-{n}" for n in range(2_000)]))
        clock.advance(60)
        before = count(store)
        assert before == 2_100
        assert fast.check("alive")
        assert before - count(store) < 32, "one call must not pay for all"
        for _ in range(200):
            clock.advance(1)
            assert fast.check("alive")
        assert count(store) == 101
        assert not any(slow.check_many([f"live-{n}" for n in range(100)]))


def test_a_clock_that_goes_back_past_a_swept_key_mints_nothing(stores, clock):
    gate = Gate(ONE, name="api", store=stores[0])
    start = clock.now()
    assert gate.check("swept")
    clock.advance(60)
    assert gate.check("other")
    assert count(stores[0]) == 1
    clock.set(start + 0.5)
    again = Gate(ONE, name="api", store=stores[1])
    assert again.check("swept").reset_at == start + 2, "it starts when the one that was swept ended"
    assert not again.check("swept")


def test_a_quota_that_was_swept_takes_no_clock_that_goes_back_for_a_date_that_was_set(stores, clock):
    gate = Gate(Quota("1/fixed:100s"), name="api", store=stores[0])
    assert gate.check("swept").reset_at == 1_100
    clock.set(1_300)
    assert gate.check("other")
    clock.set(1_050)
    # What was kept until 1,200 may have been used up until then.
    assert gate.check("swept").reset_at == 1_300


def test_a_state_is_kept_a_second_longer_than_it_lives(stores, clock):
    gate = Gate(GCRA("1 per 10 s", burst=1), name="api", store=stores[0])
    boundary = 61 * 2**24 / 1e6  # where records of the spans before may be swept
    clock.set(boundary - 10.2)
    assert gate.check("key")
    clock.set(boundary + 0.5)
    assert gate.check("another")
    clock.set(boundary - 0.5)
    assert gate.check("key").retry_after == 0.3


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.booleans()), min_size=20, max_size=80),
    st.integers(1, 3),
)
def test_a_swept_store_decides_as_one_that_keeps_everything(calls, burst):
    clock = ManualClock()
    strategy = GCRA("1 per 5 s", burst=burst)
    alone = Gate(strategy, clock=clock)
    alone._store._sweep = lambda now, most: None
    with TemporaryDirectory() as folder, closing(SQLiteStore(f"{folder}/limits.db", clock=clock)) as store:
        shared = Gate(strategy, name="api", store=store)
        for gap, key, noise in calls:
            clock.advance(gap)
            if noise:
                shared.check_many([f"noise-{n}" for n in range(20)])
            swept, kept = shared.check(f"key-{key}"), alone.check(f"key-{key}")
            # The store that keeps everything goes on counting where the other begins anew.
            assert swept._replace(receipt=None) == kept._replace(receipt=None)


def test_the_log_stays_small(path, clock):
    with closing(SQLiteStore(path, clock=clock)) as store:
        gate = Gate(GCRA("1000/s"), name="api", store=store)
        for _ in range(5_000):
            gate.check()
            clock.advance(0.001)
        assert Path(f"{path}-wal").stat().st_size < 2_000_000
    assert path.stat().st_size < 100_000
    assert not Path(f"{path}-wal").exists()


# closing


def test_every_call_of_a_closed_store_raises(path):
    store = SQLiteStore(path)
    shaper = Shaper("1/s", name="api", store=store)
    assert shaper.reserve()
    store.close()
    store.close()
    for call in (shaper.reserve, shaper.forecast, shaper.reset, store.keys, store.reset_all):
        with pytest.raises(StoreUnavailableError, match="is closed; make a new one"):
            call()
    with closing(SQLiteStore(path)) as again:
        assert not Shaper("1/s", name="api", store=again).reserve(max_wait=0)


def test_a_store_that_is_let_go_closes_its_file(path):
    store = SQLiteStore(path)
    Shaper("1/s", name="api", store=store).reserve()
    assert Path(f"{path}-wal").exists()
    del store
    gc.collect()
    assert not Path(f"{path}-wal").exists()


def test_its_repr_has_its_path(path):
    with closing(SQLiteStore(str(path))) as store:
        assert repr(store) == f"SQLiteStore({str(path)!r})"
        assert (store.shared, store.instant, store.clock_decides) == (True, False, True)


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    store = SQLiteStore("limits.db")
    store._file.disconnect()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Shaper("1/s", name="api", store=store).reserve()
    store.close()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_programs_can_be_read_by_an_operator(stores, path):
    Shaper("10/s", name="api", store=stores[0]).reserve("alice")
    with closing(sqlite3.connect(path)) as looking:
        rows = looking.execute(
            "SELECT names.name, key, description FROM records"
            " JOIN names ON names.id = records.name JOIN programs ON programs.id = records.program"
        )
        assert rows.fetchall() == [(b"api", b"alice", '["leaky_queue",[[10,1000000]],1,"smooth",[],[0,1]]')]
