"""Ledger: what it remembers, for how long, and what it refuses."""

import pytest

from shapekit import GCRA, ConfigError, FixedWindow, Gate, SlidingWindowLog, all_of
from shapekit.algorithms.compose import adopted
from shapekit.algorithms.ledger import MOST_DEBITS, MOST_RUNS, MOST_UNITS, Ledger, ledgered
from shapekit.stores.encoding import describe, revived

HOUR_US = 3_600_000_000
NOW = 7 * HOUR_US
WIDE = Ledger(FixedWindow(10_000, "1h"))


def charged(ledger, costs, now=NOW, state=None):
    """The state after calls of these costs, and their receipts."""
    receipts = []
    for cost in costs:
        state, decision, _, admitted = ledger.check(state, now, cost)
        assert admitted
        receipts.append(decision.receipt)
    return state, receipts


def used(ledger, state, now=NOW):
    return ledger.peek(state, now).current


def settled(state):
    """The runs that were given back."""
    return state[3][2] if state[3] else ()


def test_charges_that_follow_one_another_are_one_run_when_they_are_given_back():
    state, receipts = charged(WIDE, [1] * 100)
    for receipt in (*receipts[::2], *receipts[99:50:-2], *receipts[1:51:2]):
        state = WIDE.refund(state, NOW, 1, receipt).state
    assert (settled(state), used(WIDE, state)) == ((0, 100), 0)


def test_more_runs_than_there_is_room_for_merge_from_the_oldest_on():
    state, receipts = charged(WIDE, [1] * 1_000)
    for receipt in receipts[::2]:
        state = WIDE.refund(state, NOW, 1, receipt).state
    assert len(settled(state)) == 2 * MOST_RUNS
    WIDE.inspect(state)
    late = [WIDE.refund(state, NOW, 1, receipt).persist for receipt in receipts]
    # Of the even ones each was given back, of the odd ones those count as given back that are oldest.
    assert late == [False] * (1_000 - 2 * MOST_RUNS) + [False, True] * MOST_RUNS


def test_charges_that_the_limit_has_forgotten_are_one_run():
    state, receipts = charged(WIDE, [1] * 100)
    for receipt in receipts[::2]:
        state = WIDE.refund(state, NOW, 1, receipt).state
    later = NOW + HOUR_US
    state, [new] = charged(WIDE, [1], later, state)
    state = WIDE.refund(state, later, 1, new).state
    assert settled(state) == (0, 101)


def test_a_charge_given_back_once_stays_so_where_time_goes_back():
    ledger = Ledger(SlidingWindowLog("4/h"))
    state, [first, _] = charged(ledger, [1, 2])
    state = ledger.refund(state, NOW, 1, first).state
    later = NOW + 2 * HOUR_US
    state, [new] = charged(ledger, [1], later, state)
    state = ledger.refund(state, later, 1, new).state
    assert used(ledger, ledger.refund(state, NOW + 1, 1, first).state, NOW + 1) == 2


def test_a_debit_is_forgotten_before_it_could_be_refused_to_another():
    state, [first] = charged(WIDE, [1])
    state = WIDE.debit(state, NOW, 1, first).state
    state, receipts = charged(WIDE, [1] * MOST_DEBITS, NOW, state)
    for number, receipt in enumerate(receipts):
        assert WIDE.debit(state, NOW, 1, first).persist is (number == MOST_DEBITS)
        state = WIDE.debit(state, NOW, 1, receipt).state
        assert not WIDE.debit(state, NOW, 1, receipt).persist
    WIDE.inspect(state)
    assert WIDE.debit(state, NOW, 1, first).persist


def test_a_debit_of_a_charge_of_an_earlier_life_counts_once():
    _, [before] = charged(WIDE, [1])
    state = WIDE.debit(None, NOW + 1, 5, before).state
    assert used(WIDE, state) == 5
    assert not WIDE.debit(state, NOW + 1, 5, before).persist


def test_a_debit_is_given_back_by_its_own_receipt():
    state, [first] = charged(WIDE, [2])
    once = WIDE.debit(state, NOW, 5, first)
    state = WIDE.refund(once.state, NOW, 5, once.decision.receipt).state
    assert used(WIDE, state) == 2
    assert not WIDE.refund(state, NOW, 5, once.decision.receipt).persist


def test_units_beyond_all_counting_begin_a_new_life():
    ledger = Ledger(FixedWindow(10**12, "1h"))
    state, [first] = charged(ledger, [2])
    before, born, _, rest = state
    state = (before, born, MOST_UNITS - 1, rest)
    state, [last, new] = charged(ledger, [1, 3], NOW, state)
    assert (last[:3], new[:3]) == ((NOW, MOST_UNITS, 1), (NOW + 1, 3, 3))
    assert not ledger.refund(state, NOW, 1, first).persist
    assert not ledger.refund(state, NOW, 1, last).persist
    assert used(ledger, ledger.refund(state, NOW, 3, new).state) == 3
    owed = ledger.debit((before, born, MOST_UNITS, rest), NOW, 1)
    assert owed.decision.receipt[:3] == (NOW + 1, 1, 1)


@pytest.mark.parametrize(
    ("other", "keeps"), [(FixedWindow(20_000, "1h"), True), (FixedWindow(10_000, "2h"), False)]
)
def test_receipts_stay_good_where_other_numbers_leave_the_state_as_it_was(other, keeps):
    state, [first, _] = charged(WIDE, [2, 3])
    changed = Ledger(other)
    adopted = changed.adopt(state, WIDE, NOW)
    assert used(changed, adopted) == 5
    assert changed.refund(adopted, NOW, 2, first).persist is keeps


def test_a_limit_continues_the_state_of_a_ledger_and_the_other_way_round():
    limit = FixedWindow(10_000, "1h")
    state, [first] = charged(WIDE, [2])
    alone = adopted(limit, state, WIDE, NOW, 0)
    assert limit.peek(alone, NOW).current == 2
    assert adopted(FixedWindow(9, "1h"), state, WIDE, NOW, 0) == alone
    again = adopted(WIDE, alone, limit, NOW + 1, 0)
    assert used(WIDE, again) == 2
    assert not WIDE.refund(again, NOW + 1, 2, first).persist


@pytest.mark.parametrize(
    "settlement",
    [
        (1, 1, (0, 1)),
        (1, 0, (0, 1), ()),
        (1, MOST_UNITS + 1, (0, 1), ()),
        (1, 1, (0,), ()),
        (1, 1, (1, 0), ()),
        (1, 1, (0, 1, 1, 2), ()),
        (1, 1, (0, 1), (1,)),
        (1, 1, tuple(range(2 * MOST_RUNS + 2)), ()),
        (1, 1, (), tuple(range(2 * MOST_DEBITS + 2))),
        (None, 1, (0, 1), ()),
        (1, 1, ((0, 1), 2), ()),
    ],
)
def test_settlements_that_no_ledger_has_written_are_refused(settlement):
    state, _ = charged(WIDE, [1])
    with pytest.raises((TypeError, ValueError)):
        WIDE.inspect((*state[:3], settlement))


@pytest.mark.parametrize(
    ("born", "units"), [(-1, 1), (0, -1), (0, MOST_UNITS + 1), (MOST_UNITS + 1, 0), (None, 0)]
)
def test_lives_that_no_ledger_has_written_are_refused(born, units):
    with pytest.raises((TypeError, ValueError)):
        WIDE.inspect(((), born, units, ()))


def test_a_ledger_is_described_with_its_limit():
    kept = ledgered(all_of(a=GCRA("10/s"), b=all_of(c=FixedWindow("5/s"), d=GCRA("1/s"))))
    assert revived(describe(kept)) == kept
    for text in (
        '["ledger",["ledger",["gcra",[10,1000000],2]]]',
        '["ledger",' + describe(all_of(a=GCRA("1/s"), b=GCRA("1/s"))) + "]",
        '["ledger"]',
        '["ledger",["concurrency",1,1000000]]',
    ):
        with pytest.raises(ConfigError):
            revived(text)


def test_the_kind_of_a_ledger_is_its_limits():
    assert (WIDE.kind, WIDE.limit_name, Ledger(GCRA("1/s")).limit_name) == ("fixed_window", "limit", "burst")


@pytest.mark.parametrize(
    "limit", [GCRA("1/s", burst=9), all_of(a=GCRA("1/s", burst=9), b=FixedWindow("9/s"))]
)
def test_a_part_of_a_charge_is_given_back_once(limit):
    gate = Gate(limit)
    decision = gate.check(cost=5)
    assert gate.refund("default", decision, cost=2).current == 3
    assert gate.refund("default", decision, cost=3).current == 3


def test_a_life_ends_at_the_last_number_that_a_double_distinguishes_from_the_next_two():
    assert float(MOST_UNITS) < float(MOST_UNITS + 1) == float(MOST_UNITS + 2)
