"""A ResilientStore over a real Redis that fails: each mode does what it promises, in time, and comes back."""

import time

import pytest

from shapekit import ResilientStore, Shaper, StoreUnavailableError

from ..witness import Stopwatch
from .conftest import BURST, PATIENCE_S, PROMPT_S, TIMEOUT_S
from .faults import FAULTS

MODES = ("raise", "open", "closed", "local")
SHARE = 0.5
BEFORE = 2
TRIES = 30
"""More than any bound admits."""

each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
each_mode = pytest.mark.parametrize("mode", MODES)


class Worker:
    """Checks a gate, and counts the calls that its Redis has admitted."""

    def __init__(self, store, mode, gate_on):
        share = SHARE if mode == "local" else None
        self.store = ResilientStore(store, on_outage=mode, share=share, timeout=TIMEOUT_S)
        self.gate = gate_on(self.store)
        self.by_primary = 0

    @property
    def failures(self):
        """How many questions may have been in vain."""
        return self.store._whole.breaker._term

    def is_admitted(self, decision):
        """Whether the call was admitted; a denial by Redis ends a drain."""
        if not self.store.is_lost:
            self.by_primary += decision.allowed
            return decision.allowed
        return decision.allowed if decision else False

    def check(self):
        try:
            decision = self.gate.check()
        except StoreUnavailableError:
            return False
        return self.is_admitted(decision)

    async def acheck(self):
        try:
            decision = await self.gate.acheck()
        except StoreUnavailableError:
            return False
        return self.is_admitted(decision)

    def check_bounds(self, fault, failures_before_healing):
        """One burst more where the server has lost its keys; each failed question may have cost one call."""
        forgiven = BEFORE if fault.forgets else 0
        lost = self.failures - (0 if fault.runs_late else failures_before_healing)
        assert BURST + forgiven - lost <= self.by_primary <= BURST + forgiven


def promised(mode):
    """How many of many calls a mode admits in a short outage."""
    return {"raise": 0, "closed": 0, "open": TRIES, "local": int(BURST * SHARE)}[mode]


@each_mode
@each_fault
def test_each_mode_does_what_it_promises_and_recovers_without_a_burst(
    fault, mode, server, open_store, gate_on, until, leftovers
):
    worker = Worker(open_store(server), mode, gate_on)
    assert [worker.check() for _ in range(BEFORE)] == [True] * BEFORE
    fault.harm(server)
    with Stopwatch() as watch:
        assert sum([worker.check() for _ in range(TRIES)]) == promised(mode)
    assert watch.took < PROMPT_S
    assert worker.store.is_lost
    failures = worker.failures

    fault.heal(server)
    until(lambda: not worker.check() and not worker.store.is_lost)
    worker.check_bounds(fault, failures)
    worker.store.close()
    until(lambda: not leftovers.threads)
    assert leftovers.sockets == 0


@pytest.mark.anyio
@each_mode
@pytest.mark.parametrize("fault", [FAULTS["killed"], FAULTS["frozen"]], ids=["killed", "frozen"])
async def test_each_mode_does_what_it_promises_for_asynchronous_callers_too(
    fault, mode, server, open_store, gate_on
):
    worker = Worker(open_store(server), mode, gate_on)
    assert [await worker.acheck() for _ in range(BEFORE)] == [True] * BEFORE
    fault.harm(server)
    with Stopwatch() as watch:
        assert sum([await worker.acheck() for _ in range(TRIES)]) == promised(mode)
    assert watch.took < PROMPT_S
    assert worker.store.is_lost
    failures = worker.failures

    fault.heal(server)
    deadline = time.monotonic() + PATIENCE_S
    while await worker.acheck() or worker.store.is_lost:
        assert time.monotonic() < deadline
    worker.check_bounds(fault, failures)
    await worker.store.aclose()


@each_mode
def test_each_mode_does_what_it_promises_for_shapers_too(mode, server, open_store):
    share = SHARE if mode == "local" else None
    store = ResilientStore(open_store(server), on_outage=mode, share=share, timeout=TIMEOUT_S)
    shaper = Shaper("10/h", store=store, name="shaper", max_wait="1h")
    assert shaper.reserve().accepted
    server.freeze()
    if mode == "raise":
        with pytest.raises(StoreUnavailableError):
            shaper.reserve()
    reservations = [] if mode == "raise" else [shaper.reserve() for _ in range(3)]
    assert [(reservation.accepted, round(reservation.delay / 60)) for reservation in reservations] == {
        "raise": [],
        "open": [(True, 0)] * 3,
        "closed": [(False, 0)] * 3,
        "local": [(True, 0), (True, 12), (True, 24)],
    }[mode]
    store.close()
