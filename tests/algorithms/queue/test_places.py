"""Cancelling: a place in the middle is for the next newcomer, and no call frees the place of another."""

import pytest

from shapekit import GCRA, FixedWindow, ManualClock, Quota, Rate, Shaper, SlidingWindowLog
from shapekit.algorithms.queue import slots as slots_of_a_line
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.rows import paged

from .follower import confirmed

MINUTE = 60


@pytest.fixture
def clock():
    return ManualClock(1_000)


@pytest.fixture
def shaper(clock):
    return Shaper("10/s", clock=clock)


def take(shaper, count):
    return [shaper.reserve() for _ in range(count)]


def delays(slots):
    return [slot.delay for slot in slots]


def test_a_tail_that_is_given_back_is_the_next_slot_again(shaper):
    slots = take(shaper, 3)
    assert slots[2].cancel()
    assert delays(take(shaper, 2)) == [0.2, 0.3]


def test_a_place_in_the_middle_goes_to_the_next_newcomer_and_no_call_moves(shaper):
    slots = take(shaper, 4)
    assert slots[1].cancel()
    newcomers = take(shaper, 2)
    assert delays(newcomers) == [0.1, 0.4]
    for slot, due in zip([slots[2], slots[3]], [0.2, 0.3], strict=True):
        assert confirmed(shaper, slot) == (due * 1e6, False)


def test_several_places_are_filled_from_the_front_whatever_the_order_of_leaving(shaper):
    slots = take(shaper, 8)
    for index in (5, 1, 3):
        assert slots[index].cancel()
    assert delays(take(shaper, 5)) == [0.1, 0.3, 0.5, 0.8, 0.9]


@pytest.mark.parametrize("rate", ["10/s", "10/s; 500/min"])
@pytest.mark.parametrize("gates", [(), (Quota("1000/day"),), (SlidingWindowLog(500, "1m"),)])
def test_a_place_is_taken_only_by_a_cost_that_it_can_bear(rate, gates, clock):
    shaper = Shaper(rate, gates=gates, clock=clock)
    shaper.reserve()
    place, _ = shaper.reserve(cost=2), shaper.reserve()
    assert place.cancel()
    assert shaper.reserve(cost=3).delay == 0.4
    assert shaper.reserve(cost=2).delay == 0.1


def test_a_newcomer_that_may_not_wait_that_long_leaves_the_place_for_the_next(shaper):
    slots = take(shaper, 4)
    assert slots[2].cancel()
    assert not shaper.reserve(max_wait=0.15)
    assert shaper.reserve(max_wait=0.2).delay == 0.2


def test_a_free_place_that_no_call_took_is_lost(shaper, clock):
    slots = take(shaper, 4)
    assert slots[1].cancel()
    clock.advance(0.15)
    assert delays(take(shaper, 2)) == [0.25, 0.35]


def test_a_place_may_be_taken_up_to_its_very_instant(shaper, clock):
    slots = take(shaper, 4)
    assert slots[1].cancel()
    clock.advance(0.1)
    assert delays(take(shaper, 2)) == [0.0, 0.3]


def test_free_places_at_the_end_go_when_the_tail_goes(shaper):
    slots = take(shaper, 5)
    for index in (2, 3, 4):
        assert slots[index].cancel()
    assert delays(take(shaper, 2)) == [0.2, 0.3]


def test_a_second_cancel_does_nothing(shaper):
    slots = take(shaper, 4)
    assert [slots[1].cancel(), slots[1].cancel()] == [True, False]
    assert [slots[3].cancel(), slots[3].cancel()] == [True, False]
    assert delays(take(shaper, 3)) == [0.1, 0.3, 0.4]


def test_a_late_cancel_does_nothing(shaper, clock):
    slots = take(shaper, 3)
    clock.advance(0.100_001)
    assert [slot.cancel() for slot in slots] == [False, False, True]
    assert shaper.reserve().delay == pytest.approx(0.099_999, abs=1e-9)


def test_a_cancel_after_another_has_taken_the_place_does_nothing(shaper):
    slots = take(shaper, 3)
    assert slots[1].cancel()
    newcomer = shaper.reserve()
    assert not slots[1].cancel()
    assert shaper.reserve().delay == 0.3
    assert newcomer.cancel()
    assert not newcomer.cancel()
    assert not slots[1].cancel()
    assert shaper.reserve().delay == 0.1


def test_a_second_cancel_after_the_tail_was_given_back_twice_does_not_take_the_place_of_a_newcomer(shaper):
    slots = take(shaper, 3)
    assert slots[2].cancel()
    assert slots[1].cancel()
    newcomers = take(shaper, 2)
    assert not slots[2].cancel()
    assert not slots[1].cancel()
    assert delays(newcomers + take(shaper, 1)) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (2, 1, 3), (3, 1, 2), (1, 3, 2)])
def test_a_newcomer_in_a_retracted_place_keeps_it(shaper, order):
    slots = take(shaper, 4)
    for index in order:
        assert slots[index].cancel()
    newcomers = take(shaper, 3)
    assert not any(slot.cancel() for slot in slots[1:])
    assert delays(newcomers + take(shaper, 1)) == [0.1, 0.2, 0.3, 0.4]


def test_a_cancel_after_a_reset_does_nothing(shaper):
    slots = take(shaper, 3)
    shaper.reset()
    assert not slots[2].cancel()
    newcomers = take(shaper, 3)
    assert not slots[2].cancel()
    assert delays(newcomers + take(shaper, 1)) == [0.0, 0.1, 0.2, 0.3]


def test_a_cancel_after_the_key_was_idle_and_forgotten_does_nothing(shaper, clock):
    slots = take(shaper, 3)
    clock.advance(MINUTE)
    for other in range(50):
        shaper.reserve(f"other {other}")
    newcomers = take(shaper, 3)
    assert not slots[2].cancel()
    assert delays(newcomers + take(shaper, 1)) == [0.0, 0.1, 0.2, 0.3]


def test_a_cancel_by_a_shaper_of_the_same_name_is_as_good(clock):
    one = Shaper("10/s", clock=clock, name="api")
    other = Shaper("10/s", store=one.core.store, name="api")
    slots = take(one, 3)
    assert other.cancel(slots[1])
    assert other.reserve().delay == 0.1


def test_a_refused_slot_has_nothing_to_give_back(shaper):
    shaper.reserve()
    refused = shaper.reserve(max_wait=0)
    assert not refused
    assert not refused.cancel()
    assert shaper.reserve().delay == 0.1


def test_keys_do_not_mix(shaper):
    mine, yours = shaper.reserve("mine"), shaper.reserve("yours")
    assert (mine.delay, yours.delay) == (0.0, 0.0)
    assert mine.cancel()
    assert shaper.reserve("yours").delay == 0.1
    assert shaper.reserve("mine").delay == 0.0


@pytest.fixture
def windowed(clock):
    """With a second limit places stay as they are, and do not become one."""
    return Shaper("10/s; 500/min", clock=clock)


def test_every_place_that_is_given_back_is_used_again(windowed):
    slots = take(windowed, 200)
    given_back = slots[1:191:2]
    assert all(slot.cancel() for slot in given_back)
    assert delays(take(windowed, 97)) == [*delays(given_back), 20.0, 20.1]


@pytest.mark.parametrize("cost", [1, 2])
def test_a_place_that_was_taken_again_can_be_given_back_and_taken_again(windowed, cost):
    first, *_ = [windowed.reserve(cost=cost) for _ in range(4)][1:]
    for _ in range(3):
        assert first.cancel()
        again = windowed.reserve(cost=cost)
        assert (again.delay, again.grant.start, again.grant.end) == (
            first.delay,
            first.grant.start,
            first.grant.end,
        )
        first = again


def test_places_that_touch_are_one_row(windowed):
    slots = take(windowed, 400)
    for slot in slots[1:399]:
        assert slot.cancel()
    (state, _, _) = windowed.core.look.call("default")
    (rows, _), *_ = state[6]
    assert [row[1] for page in rows for row in page] == [398]


def test_a_settled_call_that_is_cancelled_frees_no_other_place(shaper):
    shaper.reserve()
    large = shaper.reserve(cost=5)
    shaper.settle(large, 1)
    behind = take(shaper, 2)
    large.cancel()
    newcomers = take(shaper, 4)
    due = [slot.grant.departs_at_us for slot in (*behind, *newcomers)]
    assert len(set(due)) == len(due)
    assert min(b - a for a, b in zip(sorted(due), sorted(due)[1:], strict=False)) == 100_000


def test_extra_cost_is_charged_also_when_the_key_was_idle_meanwhile(clock):
    for neighbours in (0, 50):
        shaper = Shaper("10/s", clock=clock)
        slot = shaper.reserve()
        clock.advance(MINUTE)
        for other in range(neighbours):
            shaper.reserve(f"other {other}")
        assert shaper.settle(slot, 101)
        assert shaper.reserve().delay == 10.0


def test_a_charge_after_a_reset_brings_back_no_place_of_the_queue_before(shaper):
    """A call that waited then has a slot, and no place that could be given back."""
    slots = take(shaper, 100)
    shaper.reset()
    assert shaper.settle(slots[0], 50)
    assert not slots[1].cancel()
    assert not slots[-1].cancel()
    assert delays(take(shaper, 2)) == [4.9, 5.0]


def test_more_places_than_are_kept_are_not_believed(monkeypatch):
    monkeypatch.setattr(slots_of_a_line, "MOST", 2)
    places = LeakyQueue((Rate.parse("10/s"),), 1, "smooth", (GCRA("5/s"),)).places
    single = [(start, start + 1, start, 1, (0, 0), ((1, 1, 1, 1),)) for start in range(4)]
    places.inspect(((), paged(single[:3])))
    with pytest.raises(ValueError, match="too many"):
        places.inspect(((), paged(single)))


def test_a_place_is_sent_and_received_whole():
    """In a queue whose slots are no whole number of microseconds apart, every number of it differs."""
    queue = Shaper("7/s", gates=[FixedWindow("5/min")]).core.queue
    place = (15, 22, 3, 1, (29, 4), (5_000_000,))
    assert queue._single_received(queue._single_sent(place)) == place
