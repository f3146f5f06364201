"""What each mode answers while the store is gone: gates, shapers and policies, threads and tasks."""

import pytest

from shapekit import (
    GCRA,
    CostExceedsLimitError,
    Gate,
    Policy,
    QueueFullError,
    Quota,
    RateLimitedError,
    Shaper,
    StoreUnavailableError,
    all_of,
    any_of,
    first_of,
)

from .outages import MODES, Host


@pytest.fixture
def host():
    return Host()


STRATEGIES = {
    "one": GCRA("10/s", burst=4),
    "all": all_of(second=GCRA("10/s", burst=4), month=Quota(100, "month")),
    "first": first_of(main=GCRA("10/s", burst=4), overflow=GCRA("2/s")),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_open_admits_everything_and_remembers_nothing(host, strategy):
    gate = Gate(strategy, store=host.worker("open"), name="gate")
    host.faulty.down = True
    decisions = [gate.check(cost=4) for _ in range(100)]
    assert all(decision.allowed and decision.delay_us == 0 for decision in decisions)
    assert gate.check_many(["a", "b"], cost=4) == decisions[:2]
    assert gate.peek() == gate.refund("default", decisions[0]) == gate.debit("default", decisions[0])
    assert gate.forecast().fits_now == Gate(strategy).forecast().fits_now
    host.recover()
    assert gate.refund("default", decisions[0], cost=4) == gate.peek()
    assert gate.debit("default", decisions[0]).remaining == gate.peek().remaining == 3


@pytest.mark.parametrize("strategy", [Quota(100, "day"), any_of(day=Quota(100, "day"), burst=GCRA("10/s"))])
def test_open_admits_costs_that_only_an_override_allows(host, strategy):
    policy = Policy(gates=(strategy,), store=host.worker("open"), name="policy")
    gate = Gate(strategy, store=host.worker("open"), name="gate")
    policy.configure(state="off")
    assert policy.shaper.reserve(cost=500)
    host.faulty.down = True
    assert policy.shaper.reserve(cost=500).cost == 500
    assert gate.check(cost=10).allowed
    with pytest.raises(CostExceedsLimitError):
        gate.check(cost=500)


def test_open_shapers_leave_at_once(host):
    shaper = Shaper("10/s; 20/min", store=host.worker("open"), name="shaper")
    host.faulty.down = True
    slots = [shaper.schedule(cost=5) for _ in range(100)]
    assert [slot.delay for slot in slots] == [0.0] * 100
    assert slots[0].decision.allowed
    assert (slots[0].cancel(), shaper.settle(slots[0], 9)) == (False, False)
    assert (shaper.hold("30s"), shaper.resume(), shaper.forecast(9).first_in) == (0.0, 0.0, 0.0)
    host.recover()
    assert (slots[0].cancel(), shaper.settle(slots[0], 9)) == (False, False)
    assert list(host.faulty.inner.keys()) == []


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_closed_denies_until_the_next_probe(host, strategy):
    store = host.worker("closed")
    gate = Gate(strategy, store=store, name="gate")
    host.faulty.down = True
    denied = gate.check()
    assert (denied.allowed, denied.current, denied.remaining, denied.receipt) == (
        False,
        denied.limit,
        0,
        None,
    )
    assert gate.check_many(["a", "b"]) == [denied, denied]
    assert gate.peek() == denied
    assert (gate.forecast().admits_at_us, gate.forecast().fits_now) == (denied.reset_at_us, 0)
    with pytest.raises(RateLimitedError) as caught:
        gate.require()
    assert caught.value.retry_after == denied.retry_after
    host.faulty.mend()
    host.clock.advance(denied.retry_after - 1e-6)
    assert not gate.check()
    host.clock.advance(1e-6)
    assert gate.check()


def test_closed_shapers_refuse(host):
    shaper = Shaper("10/s; 20/min", store=host.worker("closed"), name="shaper")
    slot = shaper.reserve()
    host.faulty.down = True
    refused = shaper.reserve()
    assert (refused.accepted, refused.cancel()) == (False, False)
    assert 0.125 <= refused.delay <= 0.25
    assert refused.refusal.retry_after == refused.delay == shaper.forecast().first_in
    assert refused.refusal.reset_at == pytest.approx(host.clock.now() + refused.delay, abs=2e-6)
    with pytest.raises(QueueFullError):
        shaper.schedule()
    assert (shaper.hold("30s"), shaper.resume()) == (0.0, 0.0)
    assert (slot.cancel(), shaper.settle(slot, 4)) == (False, False)
    with pytest.raises(QueueFullError), Policy("1/s", store=host.worker("closed"), name="p").admit():
        pass


def test_raise_raises_and_gives_back_nothing(host):
    store = host.worker("raise")
    gate = Gate(GCRA("10/day"), store=store, name="gate")
    shaper = Shaper("10/s", store=store, name="shaper")
    decision, slot = gate.check(), shaper.reserve()
    host.faulty.down = True
    raising = [
        gate.check,
        gate.peek,
        gate.forecast,
        lambda: gate.check_many(["a"]),
        lambda: gate.debit("default"),
        shaper.reserve,
        shaper.forecast,
        lambda: shaper.hold(1),
        shaper.resume,
    ]
    for call in raising:
        with pytest.raises(StoreUnavailableError, match=r"is lost: this FaultyStore is down; .* again in"):
            call()
    assert not gate.refund("default", decision)
    assert (slot.cancel(), shaper.settle(slot, 9)) == (False, False)
    assert host.faulty.calls == 3
    host.recover()
    assert gate.peek().remaining == 9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.anyio
async def test_tasks_get_the_same_answers_as_threads(mode):
    def answers(call):
        host = Host()
        store = host.worker(mode)
        store._whole.breaker._jitter = lambda: 0.0
        gate = Gate(STRATEGIES["all"], store=store, name="gate")
        shaper = Shaper("10/s", store=store, name="shaper")
        return host, gate, shaper

    def text_of(error):
        return type(error), str(error)

    host, gate, shaper = answers(None)
    ahost, agate, ashaper = answers(None)
    sync, tasks = [], []
    for lost in (False, True, False):
        for one in (host, ahost):
            one.recover()
            one.faulty.down = lost
        pairs = [
            (gate.check, agate.acheck),
            (gate.peek, agate.apeek),
            (gate.forecast, agate.aforecast),
            (lambda: gate.check_many(["a", "b"]), lambda: agate.acheck_many(["a", "b"])),
            (lambda: shaper.reserve().grant[:6], lambda: reserved(ashaper)),
            (lambda: shaper.hold(0.01), lambda: ashaper.ahold(0.01)),
            (shaper.resume, ashaper.aresume),
            (shaper.forecast, ashaper.aforecast),
            (gate.reset, agate.areset),
        ]
        for call, acall in pairs:
            try:
                sync.append(call())
            except (StoreUnavailableError, RateLimitedError) as error:
                sync.append(text_of(error))
            try:
                tasks.append(await acall())
            except (StoreUnavailableError, RateLimitedError) as error:
                tasks.append(text_of(error))
    assert sync == tasks
    assert host.faulty.calls == ahost.faulty.calls


async def reserved(shaper):
    return (await shaper.areserve()).grant[:6]


def test_local_limits_each_process_by_its_share():
    host = Host()
    gate = Gate(GCRA("10/s", burst=8), store=host.worker("local", share=1 / 4), name="gate")
    host.faulty.down = True
    assert [gate.check().allowed for _ in range(3)] == [True, True, False]
    assert gate.peek().retry_after == 0.4
    assert gate.check_many(["a", "a", "a"])[2].retry_after == 0.4


def test_local_shapers_delay_at_their_share(host):
    shaper = Shaper("10/s; 30/min", burst=4, store=host.worker("local", share=0.5), name="shaper")
    host.faulty.down = True
    assert [shaper.reserve().delay for _ in range(5)] == [0.0, 0.0, 0.2, 0.4, 0.6]
    # A forecast continues after the waiting calls, at the rate of the shaper: 0.8 would be right.
    assert 0.6 <= shaper.forecast().first_in <= 0.8
    delays = [shaper.reserve().delay for _ in range(11)]
    assert delays[-2:] == [2.6, 60.0]
    bursts = Shaper("10/s", pace="burst", store=host.worker("local", share=0.5), name="bursts")
    assert [bursts.reserve().delay for _ in range(6)] == [0.0] * 5 + [1.0]
    gated = Shaper(gates=(GCRA("10/s"),), store=host.worker("local", share=0.5), name="gated")
    assert [gated.reserve().delay for _ in range(6)] == [0.0] * 5 + [0.2]


def test_local_answers_of_a_shaper_are_in_the_units_of_its_own_queue(host):
    # 3/s counts in thirds of a microsecond, a third of it in whole ones.
    shaper = Shaper("3/s", burst=3, store=host.worker("local", share=1 / 3), name="shaper")
    host.faulty.down = True
    slot = shaper.reserve()
    assert slot.decision.reset_at_us == 1_001_000_000
    assert (slot.decision.current, slot.decision.remaining) == (3, 0)
    assert shaper.forecast().first_in == pytest.approx(1 / 3, abs=1e-5)


def test_a_cost_above_the_share_waits_for_the_store(host):
    store = host.worker("local", share=1 / 4)
    gate = Gate(GCRA("10/s", burst=8), store=store, name="gate")
    shaper = Shaper("100/s", gates=(GCRA("10/s", burst=8),), store=store, name="shaper")
    host.faulty.down = True
    for denied in (gate.check(cost=3), gate.check_many(["a"], cost=3)[0], shaper.reserve(cost=3).decision):
        assert not denied
        assert 0.125 <= denied.retry_after <= 0.25
    assert gate.forecast(cost=3).fits_now == 0
    with pytest.raises(CostExceedsLimitError):
        gate.check(cost=9)


def test_local_holds_are_local(host):
    shaper = Shaper("10/s", store=host.worker("local"), name="shaper")
    host.faulty.down = True
    assert shaper.hold("30s") == 30.0
    assert shaper.reserve().delay == pytest.approx(30.0)
    assert shaper.resume() == 2.5
    host.recover()
    assert shaper.reserve().delay == 0.0
