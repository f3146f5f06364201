"""Every short history of calls and refunds on a small meter: no refund mints.

Random stories rarely hit the pattern that matters (charges that lean on each other, one refunded
early, one late, and a call in between), so it is enumerated: 41,472 histories for each meter.
"""

from itertools import product

import pytest

from shapekit import GCRA, Rate

CALLS = (("call", 1), ("call", 3))
REFUNDS = (("first", 1), ("first", 3), ("second", 1), ("second", 3))
STEPS_US = (0, 3)


def histories():
    later = tuple(product(STEPS_US, CALLS + REFUNDS))
    for first in CALLS:
        for rest in product(later, repeat=4):
            yield ((0, first), *rest)


def played(gcra, history):
    """The state, what stays charged, and the instant; None if nothing was refunded."""
    state, now, paid, refunded = None, 0, [], False
    for step, (what, units) in history:
        now += step
        if what == "call":
            outcome = gcra.check(state, now, units)
            if outcome.persist:
                state = outcome.state
                paid.append([now, units, outcome.decision.receipt])
            continue
        which = 0 if what == "first" else 1
        if which < len(paid) and paid[which][1] >= units:
            outcome = gcra.refund(state, now, units, paid[which][2])
            state = outcome.state if outcome.persist else state
            paid[which][1] -= units
            refunded = True
    return (state, paid, now) if refunded else None


@pytest.mark.parametrize("rate", [Rate.of(1, 2), Rate.of(2, 3)], ids=["2 µs", "1.5 µs"])
def test_no_short_history_of_refunds_mints(rate):
    gcra = GCRA(rate, burst=4)
    compared, minting = 0, []
    for history in histories():
        if (end := played(gcra, history)) is None:
            continue
        state, paid, now = end
        without = None
        for at, units, _ in paid:
            if units:
                without = gcra.debit(without, at, units).state
        compared += 1
        if any(gcra.earliest(state, now, cost) < gcra.earliest(without, now, cost) for cost in (1, 4)):
            minting.append(history)
    assert compared > 10_000
    assert not minting, f"{len(minting)} of {compared} histories mint, the first: {minting[0]}"
