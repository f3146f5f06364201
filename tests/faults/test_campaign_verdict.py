"""The campaign's own judge: it sees each call too many and too few, and knows what is documented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.testing import PaceError, check_pace

from .campaign.page import PAGE, measured_cells, page
from .campaign.play import Cell, Figure
from .campaign.receiver import Arrival
from .campaign.scenes import TROUBLES
from .campaign.verdict import (
    BURST,
    LIMITS,
    RATE,
    TIMEOUT_S,
    WORKERS,
    Facts,
    common,
    over,
    over_bound,
    under,
    under_bound,
)

GATE, SHAPER = LIMITS
T = 1 / RATE


def arrivals(*instants, late=0.0):
    return [Arrival(at, 0, "gate", at - late) for at in sorted(instants)]


def facts(mode="raise", outages=(), **changes):
    plain = {"in_vain": 0, "forgotten": 0, "lag": 0.0, "killed": 0}
    out = [list(each) for each in outages] or [[]] * WORKERS
    return Facts(mode=mode, begin=0.0, end=10.0, outages=out, **{**plain, **changes})


def test_a_history_at_its_pace_has_nothing_too_many():
    assert over(arrivals(*[n * T for n in range(100)]), 1) == (0, 0.0)
    assert over(arrivals(*[0.0] * BURST, *[n * T for n in range(1, 50)]), BURST) == (0, 0.0)


@pytest.mark.parametrize("extra", [1, 7, 300])
def test_each_call_too_many_is_counted(extra):
    pace = [n * T for n in range(100)]
    many, late = over(arrivals(*pace, *[1.0] * extra, late=0.25), 1)
    assert (many, late) == (extra, pytest.approx(0.25))


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=40), st.integers(1, 5))
def test_the_excess_is_the_least_that_explains_the_history(instants, burst):
    history = arrivals(*[at / 1e6 for at in instants])
    many, _ = over(history, burst)
    check_pace([arrival.at for arrival in history], f"{RATE}/s", burst + many)
    if many:
        with pytest.raises(PaceError):
            check_pace([arrival.at for arrival in history], f"{RATE}/s", burst + many - 1)


def test_missing_calls_are_counted_between_begin_and_end():
    all_of_it = [n * T for n in range(-40, 440)]
    assert under(arrivals(*all_of_it), facts()) == 0
    assert under(arrivals(*[at for at in all_of_it if not 2 <= at < 3]), facts()) == RATE
    assert under(arrivals(*all_of_it, *[5.0] * 9), facts()) == 0


def test_all_are_out_from_the_last_loss_to_the_first_return():
    assert common([[(1, 4)], [(2, 5)]]) == [(2, 4)]
    assert common([[(1, 2), (3, 6)], [(0, 9)]]) == [(1, 2), (3, 6)]
    assert common([[(1, 3), (2, 6)], [(0, 9)]]) == [(1, 6)]
    assert common([[(1, 2)], [(3, 4)]]) == common([[(1, 2)], []]) == []


def test_raise_and_closed_admit_nothing_more_but_what_is_forgotten():
    out = [[(2.0, 4.0)]] * WORKERS
    for mode in ("raise", "closed"):
        assert over_bound(GATE, facts(mode, out)) == over_bound(SHAPER, facts(mode, out)) == 0
        assert over_bound(GATE, facts(mode, out, forgotten=1)) == BURST
        assert over_bound(SHAPER, facts(mode, out, forgotten=1)) == 1 + WORKERS * SHAPER.waiters
        assert over_bound(GATE, facts(mode, out, lag=0.3)) == 0.3 * RATE + 1
        assert under_bound(GATE, facts(mode, out)) == RATE * (2 + TIMEOUT_S)
        assert under_bound(GATE, facts(mode, out, in_vain=5)) == RATE * (2 + TIMEOUT_S) + 5
    assert under_bound(SHAPER, facts(killed=1)) == 1 + SHAPER.waiters


def test_open_is_bounded_only_where_no_caller_lost_its_store():
    assert over_bound(GATE, facts("open", [[(2.0, 4.0)], [], [], []])) is None
    assert over_bound(GATE, facts("open")) == 0


def test_local_admits_a_burst_for_all_and_one_more_at_the_return():
    together = [[(2.0, 4.0)]] * WORKERS
    assert over_bound(GATE, facts("local", together)) == WORKERS * (BURST // WORKERS) + BURST
    # One that is out alone has its share beside the others.
    alone = [[(2.0, 4.0)], [], [], []]
    assert over_bound(GATE, facts("local", alone)) == BURST // WORKERS + RATE / WORKERS * 2
    # The last to come back goes on at its share beside the others.
    late = [*[[(2.0, 4.0)]] * 3, [(2.0, 5.0)]]
    assert over_bound(GATE, facts("local", late)) == WORKERS * (BURST // WORKERS) + BURST + RATE / WORKERS
    # Calls that wait at either switch come on top.
    assert over_bound(SHAPER, facts("local", together)) == WORKERS * (1 + 2) + WORKERS * 2 + 1


def test_a_cell_lists_the_figures_that_exceed_their_bounds():
    def cell(figure, stalled=0.0, longest=0.0):
        return Cell("a fault", "local", {"gate": figure}, 9, 1.0, 0.3, stalled, longest)

    assert list(cell(Figure(5, 5, 0.0, 7, 6)).breaches()) == []
    assert len(list(cell(Figure(6, 5, 0.0, 7, 6)).breaches())) == 1
    assert len(list(cell(Figure(5, 5, 0.0, 8, 6)).breaches())) == 1
    assert list(cell(Figure(6, 5, T, 8, 6), stalled=T).breaches()) == []
    assert list(cell(Figure(6, 5, 0.0, 6, 6), longest=T).breaches()) == []
    assert list(cell(Figure(600, None, 0.0, 0, 0)).breaches()) == []


def test_the_page_shows_what_was_measured_last():
    assert PAGE.read_text() == page()


def test_nothing_that_was_measured_exceeds_its_bound():
    cells = measured_cells()
    assert {(cell.fault, cell.mode): list(cell.breaches()) for cell in cells} == {
        (cell.fault, cell.mode): [] for cell in cells
    }
    assert {cell.fault for cell in cells} == set(TROUBLES)
