"""Single decisions of a stock: what it hands out, until when, and what it wants done."""

import pytest

from shapekit import Quota, SlidingWindowLog
from shapekit._queue.prefetch import Ask, GiveBack, Refill, Rest, SlotBuffer, Wait
from shapekit._queue.waiter import KeyState
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL_MANY, RESERVE_MANY

from .simulation import SECOND, Server, World

START = 1_000 * SECOND


class Bench:
    """A stock with slots of an idle queue, fetched without any delay."""

    def __init__(self, rate="10/s", *, further=5, calls=1, **options):
        world = World()
        world.now = START
        self.server = Server(world, rate, **options)
        self.buffer = SlotBuffer(SECOND, self.server.queue, clock_decides=False)
        for _ in range(calls):
            self.buffer.come(START)
        answer = self.server.call(RESERVE_MANY, [(1, None, 7)] * calls, (further, SECOND, 7))
        standing, self.granted = answer
        self.buffer.hear(KeyState(*standing[:3], 0, mark_us=standing[4]), START, START, self.buffer.doubts)
        self.answers = self.buffer.fill(self.granted[:calls], self.granted[calls:], START)


def test_slots_are_handed_out_in_their_order():
    buffer = Bench().buffer
    taken = [buffer.take(START + 1, 1, None) for _ in range(5)]
    assert [granted.departs_at_us - START for granted in taken] == [
        100_000,
        200_000,
        300_000,
        400_000,
        500_000,
    ]
    assert [granted.wait_us for granted in taken] == [99_999, 199_999, 299_999, 399_999, 499_999]
    assert buffer.take(START + 1, 1, None) is None


def test_a_slot_is_good_up_to_its_instant_and_gone_a_microsecond_later():
    assert Bench().buffer.take(START + 100_000, 1, None)[1:3] == (0, START + 100_000)
    assert Bench().buffer.take(START + 100_001, 1, None)[1:3] == (99_999, START + 200_000)


def test_slots_that_new_limits_have_moved_go_back_at_once():
    bench = Bench()
    buffer, generation = bench.buffer, bench.granted[0].generation
    assert isinstance(buffer.next(START, 0), Wait)
    buffer.hear(KeyState(generation + 1, 0, 0, 0), START, START, buffer.doubts)
    todo = buffer.next(START, 0)
    assert todo == GiveBack(bench.granted[1:])
    assert isinstance(buffer.next(START, 0), Rest)


def test_with_a_burst_a_slot_is_good_until_its_place_on_the_grid_begins():
    """The third of a burst of three leaves at once, or up to two slots later."""
    bench = Bench("10/s burst 3", further=4)
    assert [granted.departs_at_us - START for granted in bench.granted] == [0, 0, 0, 100_000, 200_000]
    late = bench.buffer.take(START + 100_000, 1, None)
    assert late[1:3] == (0, START + 100_000)
    assert late[8] == bench.granted[1][8]
    assert bench.buffer.take(START + 200_001, 1, None)[8] == bench.granted[3][8]


def test_a_call_with_a_low_max_wait_or_a_higher_cost_goes_to_the_store():
    buffer = Bench().buffer
    assert buffer.take(START, 1, 99_999) is None
    assert buffer.take(START, 2, None) is None
    assert buffer.take(START, 1, 100_000)


def test_a_slot_that_has_been_owned_for_longer_than_a_span_is_confirmed_first():
    """A call that has to wait asks before leaving; so no call leaves on the spot by old knowledge."""
    buffer = Bench("10/min", further=1).buffer
    assert buffer.take(START + 6 * SECOND, 1, None)[1] == 1


def test_after_a_change_of_its_own_the_key_is_looked_up_before_a_slot_is_handed_out():
    buffer = Bench().buffer
    buffer.doubt()
    assert buffer.take(START, 1, None) is None
    assert buffer.known(START) is None
    assert buffer.next(START, 1) == Ask()
    buffer.hear(
        KeyState(buffer._standing.generation, 3 * SECOND, START + 3 * SECOND, 0), START, START, buffer.doubts
    )
    assert buffer.take(START, 1, None)[2] == START + 3 * SECOND + 100_000


def test_an_answer_to_a_question_before_a_change_of_its_own_is_not_believed():
    """The answer of a trip that was under way when the key was reset here is that of another life."""
    bench = Bench()
    buffer, before = bench.buffer, bench.buffer.doubts
    buffer.doubt()
    buffer.hear(KeyState(99, 0, 0, 0), START, START, buffer.doubts)
    of_old = bench.server.call(RESERVE_MANY, [], (3, SECOND, 7))[1]
    buffer.hear(KeyState(of_old[0][6], 0, 0, 0), START, START, before)
    assert buffer.fill((), of_old, START) == []
    assert len(buffer) == 0
    assert buffer.known(START)[0] == 99
    assert len(buffer.surrender().grants) == 5 + 3


def test_a_change_of_its_own_is_not_forgotten_by_an_answer_from_before():
    buffer = Bench().buffer
    before = buffer.doubts
    buffer.doubt()
    buffer.hear(KeyState(buffer._standing.generation, 0, 0, 0), START, START, before)
    assert buffer.take(START, 1, None) is None
    assert buffer.known(START) is None


def test_in_another_life_of_the_key_nothing_is_owned():
    bench = Bench()
    bench.buffer.hear(KeyState(99, 0, 0, 0), START, START, bench.buffer.doubts)
    assert len(bench.buffer) == 0
    todo = bench.buffer.next(START + SECOND, 0)
    assert isinstance(todo, GiveBack)
    assert len(todo.grants) == 5


def test_while_the_key_is_held_nothing_is_taken_ahead():
    bench = Bench(calls=3)
    generation = bench.buffer._standing.generation
    bench.buffer.hear(KeyState(generation, SECOND, START + SECOND, 0), START, START, bench.buffer.doubts)
    assert bench.buffer.next(START, 3) == Refill(0, 0)


def test_a_slot_that_had_passed_before_a_hold_does_not_come_after_it():
    """All of them would leave together at its end."""
    bench = Bench()
    held_at = START + 250_000
    until = held_at + 3 * SECOND
    bench.buffer.hear(
        KeyState(bench.granted[0].generation, 3 * SECOND, until, 0), held_at, held_at, bench.buffer.doubts
    )
    taken = [bench.buffer.take(at, 1, None).departs_at_us for at in (held_at, until, until)]
    assert taken == [START + 3 * SECOND + slot for slot in (300_000, 400_000, 500_000)]


def test_no_slot_passes_while_the_key_may_be_held():
    """A hold that this process has placed is not known here until the key is asked about."""
    bench = Bench()
    bench.buffer.doubt()
    assert isinstance(bench.buffer.next(START + 240_000, 0), Wait)
    until = START + 50_000 + 3 * SECOND
    standing = KeyState(bench.granted[0].generation, 3 * SECOND, until, 0)
    bench.buffer.hear(standing, START + 240_000, START + 240_000, bench.buffer.doubts)
    assert bench.buffer.take(START + 240_000, 1, None).departs_at_us == START + 3 * SECOND + 100_000


def test_slots_that_no_call_takes_go_back_after_a_quarter_of_a_span():
    bench = Bench()
    assert bench.buffer.next(START, 0) == Wait(START + 250_000)
    todo = bench.buffer.next(START + 250_000, 0)
    assert isinstance(todo, GiveBack)
    assert [grant.departs_at_us - START for grant in todo.grants] == [300_000, 400_000, 500_000]
    assert bench.buffer.next(START + 250_000, 0) == Rest()


def test_a_trip_that_failed_is_not_repeated_without_a_waiting_call():
    bench = Bench(calls=4, further=8)
    low = START + 1_100_000
    for _ in range(8):
        bench.buffer.come(low)
        bench.buffer.take(low, 1, None)
    assert isinstance(bench.buffer.next(low, 0), Refill)
    bench.buffer.failed()
    assert not isinstance(bench.buffer.next(low, 0), Refill)
    assert isinstance(bench.buffer.next(low, 1), Refill)


def test_while_slots_are_taken_the_key_is_looked_up_before_a_span_is_over():
    """Otherwise each call that leaves would ask, on a trip of its own, while slots pass."""
    bench = Bench(calls=4, further=20)
    buffer = bench.buffer
    for _ in range(8):
        buffer.come(START)
        buffer.take(START, 1, None)
    assert buffer.next(START, 0) == Wait(START + SECOND)
    sent_us = START + SECOND
    assert buffer.next(sent_us, 0) == Ask()
    buffer.hear(KeyState(buffer._standing.generation, 0, 0, 0), sent_us, sent_us + 50_000, buffer.doubts)
    assert buffer.known(sent_us + SECOND) is not None
    assert isinstance(buffer.next(sent_us + 50_000, 0), Wait)


def test_a_question_is_not_sent_when_its_answer_would_come_too_late():
    """Of a trip of half a span the answer is as old as that, and of a longer one of no use."""
    for trip_us, is_sent in ((SECOND // 2 - 1, True), (SECOND // 2, False)):
        # A queue of a minute, of which the callers have the end.
        bench = Bench("1/s", calls=60, further=0)
        bench.buffer.hear(
            KeyState(bench.buffer._standing.generation, 0, 0, 0), START, START + trip_us, bench.buffer.doubts
        )
        todo = [bench.buffer.next(START + passed * SECOND // 10, 0) for passed in range(5, 40)]
        assert (Ask() in todo) == is_sent


def test_a_store_that_does_not_answer_gets_no_question_without_a_waiting_call():
    buffer = Bench(calls=4, further=20).buffer
    for _ in range(8):
        buffer.take(START, 1, None)
    buffer.failed()
    assert isinstance(buffer.next(START + SECOND, 0), Wait)


@pytest.mark.parametrize("back_us", [0, 30_000])
def test_no_call_leaves_before_its_slot_by_the_servers_clock(back_us):
    """An unknown part of the trip was the way back, so the whole trip counts as that."""
    bench = Bench()
    generation = bench.buffer._standing.generation
    buffer = SlotBuffer(SECOND, bench.server.queue, clock_decides=False)
    buffer.hear(KeyState(generation, 0, 0, back_us), START - 50_000, START, buffer.doubts)
    buffer.fill((), bench.granted[1:], START)
    granted = buffer.take(START, 1, None)
    assert START + granted.wait_us - back_us >= granted.departs_at_us


def test_a_clock_that_was_set_is_followed_at_once():
    """The server's: an hour forward, and back again. A trip of 10 ms shows it, whatever was known before."""
    bench = Bench()
    generation = bench.buffer._standing.generation
    hour = 3_600 * SECOND
    for number, ahead_us in enumerate((-hour, 0, hour, 5), 1):
        now = START + number * 1_000
        bench.buffer.hear(KeyState(generation, 0, 0, ahead_us), now - 10_000, now, bench.buffer.doubts)
        known = bench.buffer.known(now)
        assert abs(known[3] - ahead_us) <= 20_000


def test_an_answer_that_was_under_way_for_longer_than_a_span_does_not_set_the_clock():
    """A process was stopped for two seconds with a trip under way: what that brought is over."""
    bench = Bench(calls=1, further=0)
    later = START + 2 * SECOND
    standing, fetched = bench.server.call(RESERVE_MANY, ((1, None, 7),), (9, SECOND, 7))
    bench.buffer.hear(
        KeyState(*standing[:3], 2 * SECOND, mark_us=standing[4]), START, later, bench.buffer.doubts
    )
    [awaited] = bench.buffer.fill(fetched[:1], fetched[1:], later)
    assert awaited[1] == 1, "it waits, and so learns that it is late"
    assert bench.buffer.take(later, 1, None) is None
    assert bench.buffer.known(later + 1) is None or bench.buffer.known(later + 1)[3] <= 10_000


def test_a_clock_that_was_set_while_an_answer_was_under_way_is_followed_as_far_as_that_says():
    """The server's went back by an hour, and the answer took two seconds: it may be two seconds less."""
    bench = Bench()
    hour, later = 3_600 * SECOND, START + 2 * SECOND
    bench.buffer.hear(
        KeyState(bench.buffer._standing.generation, 0, 0, hour), START, later, bench.buffer.doubts
    )
    bench.buffer.hear(
        KeyState(bench.buffer._standing.generation, 0, 0, hour), later, later, bench.buffer.doubts
    )
    assert hour - 3 * SECOND <= bench.buffer.known(later)[3] <= hour


def test_all_that_is_owned_lies_within_a_span_of_the_line():
    """What is left of the last trip is taken off what the next one may bring."""
    bench = Bench(calls=4, further=8)
    generation = bench.buffer._standing.generation
    bench.buffer.hear(KeyState(generation, 0, 0, 0), START - SECOND, START, bench.buffer.doubts)
    assert bench.buffer.next(START, 0) == Refill(5, SECOND - 700_000)


def test_how_a_key_stands_is_known_for_a_span():
    buffer = Bench().buffer
    assert buffer.known(START + SECOND) is not None
    assert buffer.known(START + SECOND + 1) is None


def test_a_place_that_another_call_left_is_handed_out_in_its_order():
    """It lies before what is owned already, and is over before that."""
    bench = Bench(further=0, calls=1)
    other = bench.server.call(RESERVE_MANY, (), (3, SECOND, 7))[1]
    later = bench.server.call(RESERVE_MANY, (), (3, SECOND, 7))[1]
    bench.buffer.fill((), later, START)
    bench.server.call(CANCEL_MANY, [Grant(*granted) for granted in other[:2]])
    bench.buffer.fill((), bench.server.call(RESERVE_MANY, (), (2, SECOND, 7))[1], START)
    taken = [bench.buffer.take(START, 1, None)[2] - START for _ in range(5)]
    assert taken == [100_000, 200_000, 400_000, 500_000, 600_000]


def test_calls_whose_answer_came_late_do_not_leave_together():
    """The one before came at once; this one took 40 ms on its way back, in which four slots have passed."""
    bench = Bench("100/s", further=0)
    now = START + SECOND
    bench.server.world.now = now
    standing, granted = bench.server.call(RESERVE_MANY, [(1, None, 7)] * 6, (0, 0, 7))
    bench.buffer.hear(
        KeyState(*standing[:3], 40_000, mark_us=standing[4]), now, now + 40_000, bench.buffer.doubts
    )
    answers = bench.buffer.fill(granted, (), now + 40_000)
    assert [one[1] for one in answers] == [0, 10_000, 20_000, 30_000, 40_000, 50_000]


def test_where_nothing_is_owned_the_latest_answer_counts():
    bench = Bench(further=0)
    generation = bench.buffer._standing.generation
    bench.buffer.hear(
        KeyState(generation, 0, 0, 40_000), START + SECOND - 80_000, START + SECOND, bench.buffer.doubts
    )
    bench.buffer.hear(
        KeyState(generation, 0, 0, 3), START + SECOND, START + SECOND + 80_000, bench.buffer.doubts
    )
    assert bench.buffer.known(START + SECOND + 80_000)[3] == 3


def test_an_answer_that_a_later_one_has_overtaken_hides_no_hold():
    """A call asked before it left, and the trip of the fetcher was quicker."""
    bench = Bench(further=2)
    buffer, generation = bench.buffer, bench.granted[0].generation
    held_us = START + 5 * SECOND
    buffer.hear(
        KeyState(generation, 5 * SECOND - 2_000, held_us, 0), START + 2_000, START + 3_000, buffer.doubts
    )
    buffer.hear(KeyState(generation, 0, 0, 0), START + 1_000, START + 4_000, buffer.doubts)
    assert buffer.known(START + 4_000).until_us == held_us
    assert buffer.take(START + 4_000, 1, None).departs_at_us >= held_us
    buffer.hear(KeyState(generation, 4 * SECOND, 0, 0), START + 5_000, START + 6_000, buffer.doubts)
    assert buffer.known(START + 6_000).until_us == 0


def test_a_slot_that_is_handed_out_a_little_late_is_used():
    bench = Bench(calls=1, further=0)
    for late_us, wait_us in ((10_000, 0), (10_001, 1)):
        now = START + late_us
        [granted] = bench.buffer.fill(bench.granted, (), now)
        assert granted[1:3] == (wait_us, START)


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_slot_that_a_call_has_missed_goes_back_first_where_it_is_counted(is_counted):
    bench = Bench(gates=(SlidingWindowLog("100/h"),) if is_counted else ())
    bench.buffer.miss(bench.granted[0])
    done = bench.buffer.next(START + 1, 1)
    if is_counted:
        assert done == GiveBack((bench.granted[0],))
        done = bench.buffer.next(START + 1, 1)
    assert isinstance(done, Refill)


@pytest.mark.parametrize("is_counted", [False, True])
def test_slots_that_could_not_be_given_back_are_given_back_a_span_later(is_counted):
    """Those that have passed meanwhile, only if a further limit counts them."""
    bench = Bench(gates=(SlidingWindowLog("100/h"),) if is_counted else ())
    buffer, now = bench.buffer, START + SECOND // 4
    done = buffer.next(now, 0)
    assert done == GiveBack(bench.granted[1 if is_counted else 3 :])
    buffer.keep(done.grants, now)
    assert buffer.next(now, 0) == buffer.next(now + SECOND - 1, 0) == Wait(now + SECOND)
    assert isinstance(buffer.next(now, 1), Refill)
    again = buffer.next(now + SECOND, 0)
    assert again == done
    buffer.keep(again.grants, now + SECOND)
    assert buffer.next(now + 2 * SECOND, 0) == (done if is_counted else Rest())
    assert isinstance(buffer.next(now + 2 * SECOND, 0), Rest)


def test_a_busy_process_keeps_no_slot_from_a_limit_for_longer_than_a_span():
    """Calls that a spent quota refuses ask again and again."""
    bench = Bench(further=2, gates=(Quota("3/day"),))
    buffer, kept = bench.buffer, []
    for now in range(START + 210_000, START + 2 * SECOND, 50_000):  # the slots have passed by then
        buffer.come(now)
        assert buffer.take(now, 1, None) is None
        done = buffer.next(now, 1)
        if isinstance(done, GiveBack):
            kept.append((now, done.grants))
    [(given_at, grants)] = kept
    assert given_at <= START + 210_000 + SECOND
    assert bench.server.call(CANCEL_MANY, grants) == 2
