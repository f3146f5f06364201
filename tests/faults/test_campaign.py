"""Some cells of the fault campaign: processes under load, a fault, and the history as its receiver has it.

All of them take ten minutes: `python -m tests.faults.campaign`.
"""

import pytest

from .campaign.play import play
from .conftest import PROMPT_S

pytestmark = pytest.mark.long

FAULT_S = 0.6

LOST = [
    ("killed, restarted empty", "local"),
    ("frozen (SIGSTOP)", "closed"),
    ("lost replies", "raise"),
    ("one worker cut off", "local"),
]


@pytest.mark.parametrize(("fault", "mode"), LOST)
def test_a_lost_store_costs_no_more_than_is_documented(fault, mode):
    cell = play(fault, mode, FAULT_S)
    assert list(cell.breaches()) == [], cell
    assert cell.outage > 0, cell
    assert cell.answer < PROMPT_S, cell


def test_a_worker_that_is_killed_costs_the_others_nothing():
    cell = play("one worker killed -9", "raise", FAULT_S)
    assert list(cell.breaches()) == [], cell
