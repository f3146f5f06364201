"""The host's clock: all processes agree on it, and nothing that happens to the system's date changes it."""

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import GCRA, Clock, Gate, Quota, Shaper
from shapekit.stores import sqlite_file as host_clock
from shapekit.stores.sqlite import SQLiteStore
from shapekit.stores.sqlite_file import HostClock

DAY_S = 86_400


class Host:
    """A machine: what its clocks show, and the name of its current start."""

    def __init__(self):
        self.name, self.up_s, self.date_s = "first", 100.0, 1_700_000_000.0

    def wait(self, seconds):
        self.up_s += seconds
        self.date_s += seconds

    def restart(self, name, down_s=0.0, set_by=0.0):
        self.name = name
        self.up_s = 3.0
        self.date_s += down_s + set_by

    def clock(self):
        return OnHost(self)


class OnHost(HostClock):
    """A process's view of a host, in place of that of the real one."""

    __slots__ = ("host",)

    def __init__(self, host):
        self.host = host
        super().__init__()

    def boot(self):
        return self.host.name

    def ticks_us(self):
        return round(self.host.up_s * 1e6)

    def wall_us(self):
        return round(self.host.date_s * 1e6)


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def opened(path, host):
    """Opens the file as one more process."""
    stores = []

    def open_one():
        stores.append(SQLiteStore(path, clock=host.clock()))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def now_s(store):
    return store.clock.now_us() / 1e6


def test_processes_agree_whenever_they_come(host, opened):
    first = opened()
    assert now_s(first) == host.date_s, "epoch time, when nothing speaks against it"
    host.date_s += DAY_S
    second = opened()
    host.wait(10)
    host.date_s -= 9 * DAY_S
    third = opened()
    assert now_s(first) == now_s(second) == now_s(third) == 1_700_000_010


def test_a_date_that_is_set_changes_no_delay(host, opened):
    shapers = [Shaper("1/s", name="api", store=opened())]
    delays = []
    for step in (0, DAY_S, -3 * DAY_S, 365 * DAY_S, -365 * DAY_S):
        host.date_s += step
        host.wait(0.5)
        shapers.append(Shaper("1/s", name="api", store=opened()))
        delays += [shaper.reserve().delay for shaper in (shapers[0], shapers[-1])]
    # Ten calls at a pace of one a second, while half a second passes before every other.
    assert delays == [0, 1, 1.5, 2.5, 3, 4, 4.5, 5.5, 6, 7]


def test_a_quota_follows_the_date(host, opened):
    gate = Gate(Quota("1/day"), name="api", store=opened())
    assert [bool(gate.check()) for _ in range(2)] == [True, False]
    host.date_s += DAY_S
    assert [bool(gate.check()) for _ in range(2)] == [True, False]
    assert [bool(Gate(Quota("1/day"), name="api", store=opened()).check())] == [False]


def test_after_a_restart_time_is_right_again(host, opened):
    store = opened()
    gate = Gate(GCRA("1/h", burst=1), name="api", store=store)
    host.date_s += 2 * DAY_S
    assert gate.check()
    assert now_s(store) == 1_700_000_000, "the date that was set does not count while the host is up"
    store.close()
    host.restart("second", down_s=60)
    store = opened()
    assert now_s(store) == host.date_s == 1_700_000_000 + 2 * DAY_S + 60
    host.wait(5)
    assert now_s(opened()) == host.date_s


@pytest.mark.parametrize("name", ["first", ""], ids=["a start of the host has a name", "it has none"])
def test_a_restart_never_leads_back(host, opened, name):
    host.name = name
    store = opened()
    host.wait(1_000)
    gate = Gate(GCRA("1/h", burst=1), name="api", store=store)
    assert gate.check()
    before = now_s(store)
    store.close()
    host.restart(name and "second", down_s=60, set_by=-3 * DAY_S)
    store = opened()
    assert now_s(store) == before
    gate = Gate(GCRA("1/h", burst=1), name="api", store=store)
    assert gate.check().retry_after == 3_600
    host.wait(3_600)
    assert gate.check()


@pytest.mark.parametrize("end", ["swept", "reset"])
def test_a_key_that_is_gone_still_dates_the_file(host, opened, end):
    store = opened()
    gate = Gate(GCRA("1/s", burst=1), name="api", store=store)
    assert gate.check("key")
    written = now_s(store)
    if end == "swept":
        host.wait(100)
        assert gate.check("another")
    else:
        gate.reset("key")
    store._file.transact(lambda execute: execute("DELETE FROM records WHERE key = CAST('another' AS BLOB)"))
    store.close()
    host.restart("second", set_by=-DAY_S)
    assert now_s(opened()) == written


def test_without_a_name_of_the_start_the_processes_agree_too(host, opened):
    host.name = ""
    first = opened()
    gate = Gate(GCRA("1/h", burst=1), name="api", store=first)
    assert gate.check()
    host.date_s += DAY_S
    host.wait(5)
    second = opened()
    assert now_s(second) == now_s(first)
    assert not Gate(GCRA("1/h", burst=1), name="api", store=second).check()


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "date", "restart", "open"]), st.integers(-3 * DAY_S, 3 * DAY_S)),
        max_size=12,
    ),
    st.booleans(),
)
def test_the_processes_of_a_host_agree_and_time_goes_on_whatever_happens_to_it(
    tmp_path_factory, events, named
):
    host = Host()
    host.name = "first" if named else ""
    path = tmp_path_factory.mktemp("host") / "limits.db"
    stores = [SQLiteStore(path, clock=host.clock())]
    highest = 0.0
    for number, (what, seconds) in enumerate(events):
        if what == "wait":
            host.wait(abs(seconds) / 1_000)
        elif what == "date":
            host.date_s += seconds
        elif what == "restart":
            for store in stores:
                store.close()
            host.restart(str(number) if named else "", set_by=seconds)
            stores = [SQLiteStore(path, clock=host.clock())]
        else:
            stores.append(SQLiteStore(path, clock=host.clock()))
        times = {now_s(store) for store in stores}
        assert len(times) == 1
        assert min(times) >= highest
        Gate(GCRA("1/s"), name="api", store=stores[-1]).check(str(number))
        highest = max(times)
    for store in stores:
        store.close()


def test_the_real_clocks(path, monkeypatch):
    clock = HostClock()
    assert isinstance(clock, Clock)
    assert clock.boot() == HostClock.boot()
    with closing(SQLiteStore(path)) as one, closing(SQLiteStore(path)) as other:
        readings = [store.clock.now_us() for store in (one, other, one, other)]
        assert readings == sorted(readings)
        assert readings[-1] - readings[0] < 1_000_000
        monkeypatch.setattr(host_clock.time, "time_ns", lambda: 7_000)
        assert one.clock.wall_us() == 7
        assert 0 <= one.clock.now_us() - readings[-1] < 1_000_000
        with closing(SQLiteStore(path)) as late:
            assert 0 <= late.clock.now_us() - readings[-1] < 1_000_000
