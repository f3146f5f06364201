"""The checks of recorded starts: a stall excuses the starts that it explains, and no other."""

from ...witness import Stall, Stalls
from .running import Start, most_in, undisturbed

RATE = 40
QUIET = Stalls([])
FROM_S, STALL_S = 2.0, 0.3
STALLED = Stalls([Stall.of(FROM_S, FROM_S + STALL_S, [STALL_S])])
EARLIER = Stalls([Stall.of(0.0, STALL_S, [STALL_S])])


def history(late=lambda slot: 0.0):
    """Starts of five seconds at that rate, each late by so much."""
    slots = [number / RATE for number in range(5 * RATE)]
    return sorted(
        Start(slot + late(slot), number, "", slot, 1, 0.0, late(slot)) for number, slot in enumerate(slots)
    )


def kept(slot):
    """No task starts during a stall."""
    return max(0.0, FROM_S + STALL_S - slot) if slot > FROM_S else 0.0


def in_order(rows):
    return all(one.slot < other.slot for one, other in zip(rows, rows[2:], strict=False))


def test_starts_at_their_slots_are_not_moved():
    assert undisturbed(history(), QUIET) == undisturbed(history(), STALLED) == history()


def test_a_history_that_is_too_dense_stays_so_unless_a_stall_explains_it():
    rows = history(kept)
    assert most_in(rows, 1.0) > 41
    assert undisturbed(rows, QUIET) == rows
    assert most_in(undisturbed(rows, EARLIER), 1.0) > 41
    assert most_in(undisturbed(rows, STALLED), 1.0) <= 41


def test_a_stall_that_is_shorter_than_the_delay_does_not_explain_it():
    shorter = Stalls([Stall.of(FROM_S, FROM_S + STALL_S, [STALL_S / 3])])
    assert most_in(undisturbed(history(kept), shorter), 1.0) > 41


def test_starts_out_of_order_stay_so_unless_a_stall_explains_it():
    rows = history(lambda slot: STALL_S if slot == FROM_S else 0.0)
    assert not in_order(rows)
    assert not in_order(undisturbed(rows, EARLIER))
    assert in_order(undisturbed(rows, STALLED))


def test_starts_in_slots_that_are_too_dense_are_not_excused():
    slots = [number / (2 * RATE) for number in range(100)]
    rows = [Start(slot, number, "", slot, 1, 0.0, 0.0) for number, slot in enumerate(slots)]
    assert most_in(undisturbed(rows, Stalls([Stall.of(0.0, 9.0, [9.0])])), 1.0) > 41
