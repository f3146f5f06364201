"""What becomes of waiting calls when an operator changes the numbers: the law of the moment of change.

Up to the pivot, 350 ms ahead, everything leaves as promised. From there on, calls that were n intervals apart
are n new intervals apart, in the same order, and newcomers come behind them.
"""

import itertools
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import GCRA, Quota, Rate
from shapekit.algorithms.overrides import overridden
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import MOST_MOVES, NOTICE_US, Grant, Move, followed

from ..algorithms.queue.histories import check_spacing

START = 10**15
RATES = ("1/s", "2/s", "3/s", "5/s", "20/s", "7 per 3 seconds", "1/min", "1000/s")


def queue(rate, burst=1, gates=()):
    return LeakyQueue((Rate.parse(rate),), burst, "smooth", gates)


def changed(to, burst=1, gates=()):
    return overridden(queue(to, burst, gates))


class Line:
    """One key, by the program itself; and the same in exact numbers, by the law."""

    def __init__(self, rate, burst=1, gates=()):
        self.queue = queue(rate, burst, gates)
        self.burst, self.gates = burst, gates
        self.now, self.state = START, None
        self.waiting = []
        """Each grant as it was made, and its exact beginning and departure now."""
        self.changes = []
        self.room = Fraction(1)
        """How much later than exactly they may be, in µs: each change rounds up to the grid, all calls alike,
        and a later one that slows down stretches that, too.
        """

    @property
    def slot(self):
        return Fraction(self.queue.p, self.queue.q)

    def reserve(self, cost=1):
        after, granted, _, is_taken = self.queue.reserve(self.state, self.now, (cost, None, 1))
        assert is_taken
        self.state, grant = after, Grant(*granted)
        start = Fraction(grant.start, self.queue.q)
        leaves = max(Fraction(self.now), start - self.slot * max(0, self.queue.burst - cost))
        self.waiting.append([grant, start, leaves])
        return grant

    def cancel(self, index):
        grant = self.present(index)
        after, is_back, _, _ = self.queue.cancel(self.state, self.now, grant)
        if is_back:
            self.state = after
            del self.waiting[index]
        return is_back

    def present(self, index):
        """The grant of a waiting call, as it is now."""
        given = self.waiting[index][0]
        _, standing, _, _ = self.queue.follow(self.state, self.now)
        return (
            given
            if given.generation == standing[0]
            else followed(given, standing[-2], self.queue.constraints)
        )

    def change(self, to):
        before, self.queue = self.queue, to
        if self.state is None:
            return
        is_idle = self.state[0] <= self.now * before.q and self.state[1] < self.now
        self.state = to.adopt(self.state, before, self.now)
        if is_idle:
            self.waiting = []
            return
        pivot = self.now + NOTICE_US
        ratio = Fraction(to.p, to.q) / Fraction(before.p, before.q)
        lead = Fraction(before.p, before.q) * (before.burst - 1)
        more = self.slot * max(0, to.burst - before.burst)
        self.changes.append(pivot)
        self.room = self.room * max(1, ratio) + 1

        def moved(at):
            return at if at <= pivot else pivot + (at - pivot) * ratio

        def placed(at):
            if at - lead > self.now:
                return moved(at - lead) + lead * ratio + more
            return at if at <= self.now else self.now + (at - self.now) * ratio

        for one in self.waiting:
            one[1:] = placed(one[1]), moved(one[2])

    def departures(self):
        return [self.present(index).due_us for index in range(len(self.waiting))]


STEPS = st.one_of(
    st.tuples(st.just("reserve"), st.integers(1, 3)),
    st.tuples(st.just("pass"), st.sampled_from([1, 1_000, 50_000, 349_999, 350_000, 350_001, 2_000_000])),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("change"), st.sampled_from(RATES)),
)


@given(st.sampled_from(RATES), st.sampled_from([1, 1, 4]), st.lists(STEPS, max_size=60))
@example("5/s", 1, [("reserve", 1)] * 10 + [("change", "20/s")] + [("reserve", 1)] * 3)
@example(
    "5/s", 1, [("reserve", 1)] * 5 + [("change", "20/s"), ("cancel", 2), ("change", "1/min"), ("reserve", 1)]
)
def test_all_calls_move_by_the_law(rate, burst, steps):
    line = Line(rate, burst)
    for step, value in steps:
        if step == "reserve":
            line.reserve(value)
        elif step == "pass":
            line.now += value
            line.waiting = [one for one in line.waiting if one[2] > line.now]
        elif step == "cancel" and line.waiting:
            assert line.cancel(value % len(line.waiting))
        elif step == "change":
            if len(line.changes) == MOST_MOVES:
                break
            line.change(changed(value, burst))
        for index, (_, start, due) in enumerate(line.waiting):
            now = line.present(index)
            assert 0 <= Fraction(now.start, line.queue.q) - start <= line.room
            assert 0 <= now.due_us - due <= line.room


def closest(line, first, interval, burst=1):
    """How much too close any two departures from `first` on are, by this interval."""
    dues = sorted(due for due in line.departures() if due >= first)
    return max(
        (
            (after - before + 1 - burst) * interval - (dues[after] - dues[before])
            for before, after in itertools.combinations(range(len(dues)), 2)
        ),
        default=0,
    )


@pytest.mark.parametrize("before", RATES)
@pytest.mark.parametrize("after", RATES)
@pytest.mark.parametrize("waited", [0, 1, 349_999, 350_000, 1_000_000])
@pytest.mark.parametrize("burst", [1, 3])
def test_no_window_of_either_rate_is_exceeded(before, after, waited, burst):
    """After the pivot the new interval holds, and over the pivot the shorter of both."""
    line = Line(before, burst)
    for _ in range(12):
        line.reserve()
    line.now += waited
    slots = line.slot, Fraction(Rate.parse(after).period_us, Rate.parse(after).limit)
    line.change(changed(after, burst))
    for _ in range(12):
        line.reserve()
    assert line.departures() == sorted(line.departures())
    if line.changes:
        assert closest(line, line.changes[0], slots[1], burst) <= 1
    assert closest(line, START, min(slots), burst) <= 1
    back = Line(after, burst)
    back.queue, back.state, back.now, back.waiting = line.queue, line.state, line.now, line.waiting
    back.changes = line.changes
    back.change(queue(before, burst))
    back.reserve()
    assert back.departures() == sorted(back.departures())
    assert closest(back, START, min(slots), burst) <= 2


@pytest.mark.parametrize("rates", [*itertools.permutations(["10/s", "2/s", "20/s"], 2)])
@pytest.mark.parametrize("bursts", [(1, 1), (3, 3), (1, 4), (4, 1), (2, 4)])
@pytest.mark.parametrize("calls", range(1, 9))
def test_newcomers_come_behind_all_waiting_calls(rates, bursts, calls):
    line = Line(rates[0], bursts[0])
    for _ in range(calls):
        line.reserve()
    line.change(changed(rates[1], bursts[1]))
    for _ in range(5):
        line.reserve()
    assert line.departures() == sorted(line.departures())
    shortest = min(Fraction(queue(rate).p, queue(rate).q) for rate in rates)
    assert closest(line, START, shortest, max(bursts)) <= 1


def test_as_many_calls_of_a_burst_are_left_as_before():
    line = Line("10/s", 3)
    line.reserve()
    line.change(changed("2/s", 3))
    promised = [0, 0, 500_000, 1_000_000]
    assert [line.reserve().due_us - START for _ in range(4)] == promised


@pytest.mark.parametrize("early_us", [1, 100_000, 500_000])
def test_the_rest_of_a_free_slot_is_no_wider_after_a_higher_burst(early_us):
    """The slot lies before a call of three units, which leaves at its end, whatever leaves in it."""
    line = Line("2/s")
    for cost in (1, 1, 3):
        line.reserve(cost)
    assert line.cancel(1)
    line.now = START + 1_000_000 - early_us
    departures = [(START, 1), (START + 1_000_000, 3)]
    line.change(changed("2/s", 5))
    for _ in range(6):
        grant = line.reserve()
        departures.append((grant.due_us, 1))
    check_spacing(sorted(departures), 2, 1_000_000, 5)
    soon = [due for due, _ in departures[2:] if due < START + 1_000_000]
    assert len(soon) == (early_us == 500_000)


def test_a_call_of_many_units_gives_back_as_many_after_a_higher_burst():
    """Of its three slots, one lies in the burst that is in use."""
    line = Line("2/s", 3)
    for cost in (3, 3, 1):
        line.reserve(cost)
    line.now = START + 600_000
    line.change(changed("2/s", 5))
    assert line.cancel(1)
    assert [line.reserve().due_us - START for _ in range(4)] == [600_000, 1_000_000, 1_500_000, 2_500_000]


def test_ten_calls_at_five_a_second_move_to_twenty_a_second():
    line = Line("5/s")
    for _ in range(10):
        line.reserve()
    line.change(changed("20/s"))
    promised = [0, 200_000, 362_500, 412_500, 462_500, 512_500, 562_500, 612_500, 662_500, 712_500]
    assert [due - START for due in line.departures()] == promised
    assert line.reserve().due_us - START == 762_500


def test_a_slot_is_given_back_and_settled_after_any_number_of_changes():
    line = Line("5/s")
    for _ in range(6):
        line.reserve()
    for to in ("20/s", "3/s", "7 per 3 seconds"):
        line.change(changed(to))
    assert line.cancel(3)
    given = line.waiting[4][0]
    fifth = line.present(4)
    after, follows, _, _ = line.queue.settle(line.state, line.now, (fifth, 0, 7))
    assert follows
    line.state = after
    again = followed(given, line.queue.follow(line.state, line.now)[1][-2], line.queue.constraints)
    assert not line.queue.cancel(line.state, line.now, again)[1]
    assert line.queue.settle(line.state, line.now, (again, 0, 7))[1] in (0, follows)
    # A slot given back in the middle goes to the next newcomer.
    assert line.reserve().due_us < line.departures()[3]


def test_a_call_that_has_waited_through_too_many_changes_keeps_its_slot():
    line = Line("1/s")
    first = line.reserve()
    waiting = line.reserve()
    for number in range(MOST_MOVES + 1):
        line.change(changed(("2/s", "1/s")[number % 2]))
    changes = line.queue.follow(line.state, line.now)[1][-2]
    assert len(changes) == MOST_MOVES
    line.queue.inspect(line.state)
    assert followed(waiting, changes, line.queue.constraints) is None
    assert first.due_us == START


def test_no_call_moves_where_only_the_code_differs():
    """Two versions of a program side by side would move each other's calls to and fro."""
    line = Line("5/s")
    for _ in range(3):
        line.reserve()
    other = queue("20/s")
    state = other.adopt(line.state, line.queue, line.now)
    assert other.follow(state, line.now)[1][-2] == ()


@pytest.mark.parametrize(
    ("gates", "moved"),
    [
        ((Quota("1000/month"),), True),
        ((GCRA("2/s"),), False),
        ((Quota("1000/day", spread=True),), False),
        ((Quota("1000/rolling:30d"),), False),
        ((Quota("2000/rolling:30d"),), False),
    ],
)
def test_under_further_limits_no_calls_come_closer_together(gates, moved):
    line = Line("1/s", gates=gates)
    for _ in range(5):
        line.reserve()
    before = line.departures()
    line.change(changed("10/s", gates=gates))
    assert (line.departures() < before) is moved
    if not moved:
        assert line.departures() == before


@pytest.mark.parametrize("gates", [(Quota("1000/month"),), (GCRA("2/s"),)])
def test_under_further_limits_calls_may_move_to_later(gates):
    line = Line("2/s", gates=gates)
    for _ in range(4):
        line.reserve()
    line.change(changed("1/s", gates=gates))
    assert [due - START for due in line.departures()] == [0, 650_000, 1_650_000, 2_650_000]


def test_while_the_key_is_held_all_calls_move():
    """No call leaves before the hold ends, so all learn of the change in time."""
    line = Line("5/s")
    for _ in range(4):
        line.reserve()
    line.state = line.queue.hold(line.state, line.now, 2_000_000, 1)[0]
    line.change(changed("20/s"))
    assert [due - START for due in line.departures()] == [0, 50_000, 100_000, 150_000]


@given(
    st.integers(0, 2**40),
    st.integers(1, 2**40),
    st.integers(1, 2**26),
    st.integers(1, 2**40),
    st.integers(1, 2**26),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 2**20),
)
def test_a_move_keeps_the_order_and_whole_intervals(
    pivot, interval, q, since, q_since, burst, burst_since, notice
):
    move = Move(1, pivot, interval, q, since, q_since, burst, burst_since, max(0, pivot - notice))
    around = sorted(
        (at + number * interval) // 2
        for at in (2 * move.changed_us * q, 2 * pivot * q)
        for number in range(40)
    )
    assert [move.place(at) for at in around] == sorted([move.place(at) for at in around])
    at = (pivot + 5) * q + interval * (burst - 1)
    places = [move.place(at + number * interval) for number in range(5)]
    assert places == sorted(places)
    if places[-1] < 2**52 * q_since:
        assert {after - before for before, after in itertools.pairwise(places)} == {since}
    assert move.instant(pivot) == pivot


def test_a_settlement_repeated_after_a_change_counts_once():
    line = Line("5/s")
    for _ in range(3):
        line.reserve()
    line.state, follows, _, _ = line.queue.settle(line.state, line.now, (line.present(1), 3, 7))
    assert follows
    line.change(changed("3/s"))
    again = line.queue.settle(line.state, line.now, (line.present(1), 3, 8))
    assert again[1] == follows
    assert again[0] == line.state


def test_a_change_at_an_idle_key_moves_no_call():
    """The next call begins anew: no earlier grant is followed, and none is lost."""
    before, since = queue("3/s"), changed("2/s")
    state, granted, *_ = before.reserve(None, START, (1, None, 1))
    state, *_ = before.settle(state, START, (Grant(*granted), 2, 1))
    now = START + 2_000_000
    after = since.adopt(state, before, now)
    _, standing, *_ = since.follow(after, now)
    assert followed(Grant(*granted), standing[-2], before.constraints) is None
    assert after[3] == 0
    assert after[0] <= now * since.q
