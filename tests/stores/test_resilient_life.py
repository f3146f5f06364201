"""How a ResilientStore begins and ends, what it shows, and calls that wait while it is lost."""

import asyncio
import threading
from contextlib import suppress

import anyio
import pytest

from shapekit import GCRA, ConfigError, Gate, MemoryStore, Quota, Shaper, StoreUnavailableError
from shapekit._runtime.drivers import TASKS, run
from shapekit.stores.resilient import ResilientStore
from shapekit.testing import FaultyStore, ManualClock

from .outages import MODES, PATIENCE_S, Host


@pytest.fixture
def host():
    return Host()


class Unbindable(FaultyStore):
    """A store that does not even bind while it is down."""

    def bind(self, *what):
        self._check_up()
        return super().bind(*what)

    def abind(self, *what):
        self._check_up()
        return super().abind(*what)

    def bind_many(self, *what):
        self._check_up()
        return super().bind_many(*what)

    def abind_many(self, *what):
        self._check_up()
        return super().abind_many(*what)


def test_a_store_that_is_gone_at_the_start_is_used_when_it_comes(host):
    host.faulty = Unbindable(host.faulty.inner)
    host.faulty.down = True
    store = host.worker("open")
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    shaper = Shaper("10/s", store=store, name="shaper")
    assert (gate.check().allowed, shaper.reserve().delay, host.faulty.calls) == (True, 0.0, 0)
    host.recover()
    assert [gate.check().remaining, gate.check().remaining] == [9, 8]
    assert sorted(host.faulty.inner.keys()) == ["gate:default"]


def test_mistakes_surface_and_are_no_outage(host, caplog):
    store = host.worker("open")
    Gate(GCRA("10/s"), store=store, name="one").check()
    with pytest.raises(ConfigError, match="already holds a gcra"):
        Gate(Quota("10/day"), store=store, name="one")
    host.faulty = Unbindable(host.faulty.inner)
    store = host.worker("open")
    host.faulty.down = True
    late = Gate(Quota("10/day"), store=store, name="one")
    assert late.check()
    host.recover()
    for _ in range(2):
        with pytest.raises(ConfigError, match="already holds a gcra"):
            late.check()
    assert len(caplog.records) == 1
    assert store.is_lost
    assert Gate(GCRA("10/s"), store=store, name="one").check()
    assert not store.is_lost


def test_a_share_too_small_is_refused_at_the_start(host, refused):
    store = host.worker("local", share=1 / 20)
    refused(lambda: Gate(Quota("10/day"), store=store, name="gate"), "share")
    refused(lambda: Shaper("10/s", gates=(Quota("10/day"),), store=store, name="shaper"), "share")


def test_a_waiting_thread_keeps_its_slot_when_the_store_is_lost():
    for mode in MODES:
        clock = ManualClock(1_000.0, autojump=True)
        host = Host(clock)
        shaper = Shaper("1/s", store=host.worker(mode), name="shaper")
        shaper.reserve()
        slot = shaper.reserve()
        host.faulty.down = True
        run(shaper.core.leave, slot)
        assert (mode, clock.now()) == (mode, 1_001.0)


@pytest.fixture(params=MODES)
def in_a_hurry(request):
    """A host where every call comes late, a shaper that has lost it, and a slot a minute ahead."""
    host = Host(ManualClock(1_000.0, autojump=True))
    shaper = Shaper("1/min", store=host.worker(request.param), name="shaper")
    shaper.reserve()
    slot = shaper.reserve()
    host.faulty.down = True
    with suppress(StoreUnavailableError):
        shaper.reserve(max_wait=0)
    host.faulty.down = False
    host.faulty.slow = 3_600
    return host, shaper, slot


def test_a_thread_that_is_about_to_leave_is_no_probe(in_a_hurry):
    host, shaper, slot = in_a_hurry
    calls = host.faulty.calls
    run(shaper.core.leave, slot)
    assert (host.clock.now(), host.faulty.calls) == (1_060.0, calls)


@pytest.mark.anyio
async def test_a_task_that_is_about_to_leave_is_no_probe(in_a_hurry):
    host, shaper, slot = in_a_hurry
    calls = host.faulty.calls
    await shaper.core.leave(TASKS, slot)
    assert (host.clock.now(), host.faulty.calls) == (1_060.0, calls)


@pytest.mark.parametrize("mode", MODES)
def test_waiting_tasks_keep_their_slots_when_the_store_is_lost(mode, anyio_backend):
    clock = ManualClock(1_000.0, autojump=True)
    host = Host(clock)
    shaper = Shaper("1/s", store=host.worker(mode), name="shaper")
    shaper.reserve()
    left = []

    async def wait(slot):
        await shaper.core.leave(TASKS, slot)
        left.append(clock.now())

    async def main():
        slots = [await shaper.areserve() for _ in range(2)]
        host.faulty.down = True
        async with anyio.create_task_group() as tasks:
            for slot in slots:
                tasks.start_soon(wait, slot)

    anyio.run(main, backend=anyio_backend)
    assert left == [1_001.0, 1_002.0]


@pytest.mark.parametrize("mode", MODES)
def test_operators_calls_pass_on_and_raise_while_it_is_lost(host, mode):
    store = host.worker(mode)
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    for key in "abc":
        gate.check(key)
    gate.reset("a")
    assert sorted(store.keys()) == ["gate:b", "gate:c"]
    assert store.reset_all("gate:b") == 1
    host.faulty.down = True
    calls = [lambda: gate.reset("c"), store.reset_all, store.keys]
    for call in calls:
        with pytest.raises(StoreUnavailableError, match="is lost"):
            call()
    assert host.faulty.calls == 7
    host.recover()
    assert list(store.keys()) == []
    assert store.is_lost is False


def test_a_reset_forgets_the_local_share_too(host):
    gate = Gate(GCRA("10/day"), store=host.worker("local", share=0.1), name="gate")
    host.faulty.down = True
    assert [gate.check().allowed for _ in range(2)] == [True, False]
    host.recover()
    gate.reset()
    host.faulty.down = True
    assert gate.check()


class Closing(FaultyStore):
    closed = 0

    def close(self):
        self.closed += 1
        super().close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.anyio
async def test_closed_is_closed_in_every_mode_and_no_outage(host, mode, caplog):
    host.faulty = Closing(host.faulty.inner)
    store = host.worker(mode)
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    store.close()
    await store.aclose()
    store.close()
    assert host.faulty.closed == 1
    for call in (gate.check, store.reset_all, store.keys):
        with pytest.raises(StoreUnavailableError, match="is closed"):
            call()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        await gate.acheck()
    assert caplog.records == []


class AsyncClosing(FaultyStore):
    aclosed = 0

    async def aclose(self):
        self.aclosed += 1
        await super().aclose()


@pytest.mark.anyio
async def test_aclose_closes_the_primary_by_its_aclose(host):
    host.faulty = AsyncClosing(host.faulty.inner)
    store = host.worker("open")
    await store.aclose()
    store.close()
    assert host.faulty.aclosed == 1
    with pytest.raises(StoreUnavailableError, match="MemoryStore is closed"):
        host.faulty.keys()


def test_its_threads_end_with_it(host, monkeypatch):
    monkeypatch.setattr("shapekit.stores.resilient._IDLE_S", 3_600)
    before = set(threading.enumerate())
    store = host.worker("open")
    Gate(GCRA("10/s"), store=store, name="gate").check()
    (thread,) = set(threading.enumerate()) - before
    store.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_resilient_store_has_the_properties_of_its_primary(host):
    store = host.worker("open")
    assert (store.clock, store.shared, store.clock_decides) == (host.clock, False, True)
    assert repr(store) == "ResilientStore(FaultyStore(MemoryStore(0 keys)), on_outage='open')"


def test_wrong_arguments_are_refused(refused):
    memory = MemoryStore()
    refused(lambda: ResilientStore("redis://"), "primary")
    refused(lambda: ResilientStore(memory, on_outage="ignore"), "on_outage")
    refused(lambda: ResilientStore(memory, on_outage="local"), "share")
    refused(lambda: ResilientStore(memory, on_outage="local", share=0), "share")
    refused(lambda: ResilientStore(memory, on_outage="open", share=0.5), "share")
    refused(lambda: ResilientStore(memory, timeout=0), "timeout")


def test_local_slots_obey_a_hold_of_the_outage_in_order_also_after_it(host):
    """One call has asked while the hold was in force here; the others ask when the store is back."""
    shaper, left = Shaper("1/s", store=host.worker("local", share=1), name="shaper"), []

    async def call():
        await shaper.aschedule()
        left.append(host.clock.now() - 1_000)

    async def main():
        host.faulty.down = True
        calls = [asyncio.create_task(call()) for _ in range(4)]
        await host.clock.aadvance(0.5)
        assert await shaper.ahold(3) == 3.0
        slot = await shaper.areserve()
        await host.clock.aadvance(1)
        host.faulty.mend()
        assert (await shaper.areserve()).delay == 0.0
        assert await shaper.aremaining(slot) == 5.5
        await host.clock.aadvance(10)
        assert left == [0, 4, 5, 6]
        await asyncio.gather(*calls)

    asyncio.run(main())
