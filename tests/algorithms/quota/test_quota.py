"""Quota: whole budgets at exact boundaries, in every cadence, and no budget for going back in time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import Gate, ManualClock, Quota, Shaper
from shapekit.testing import check_window

from ..limits import beginning

SECOND_US = 1_000_000
DAY_S = 86_400
CADENCES = ["month", "week", "day", "fixed:30d", "fixed:90s", "rolling:30d", "rolling:90s"]
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Beirut"]
STARTS = st.integers(0, 4_000_000_000)


def seconds(text, tz="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


def admitted(gate, calls=50):
    return sum(gate.check().allowed for _ in range(calls))


def opened_at(text, quota, tz="UTC"):
    clock = ManualClock(seconds(text, tz))
    return clock, Gate(quota, clock=clock)


def check_two_periods(quota, start):
    """From cold the limit, nothing until one microsecond before the promised instant, then again."""
    clock = ManualClock(start)
    gate = Gate(quota, clock=clock)
    assert admitted(gate) == quota.limit
    denied = gate.check()
    assert denied.remaining == 0
    assert denied.current == quota.limit
    clock.advance((denied.retry_after_us - 1) / SECOND_US)
    assert admitted(gate) == 0
    clock.advance(1 / SECOND_US)
    assert admitted(gate) == quota.limit
    return start + denied.retry_after


@given(STARTS, st.sampled_from(CADENCES), st.integers(1, 40))
def test_every_cadence_gives_its_limit_once_a_period(start, per, limit):
    check_two_periods(Quota(limit, per), start)


@given(STARTS, st.sampled_from(["month", "week", "day"]), st.sampled_from(ZONES), st.integers(1, 31))
def test_every_zone_opens_the_next_period_at_its_midnight(start, per, tz, anchor_day):
    end = check_two_periods(Quota(3, per, tz=tz, **beginning(per, "monday", anchor_day)), start)
    midnight = datetime.fromtimestamp(end, ZoneInfo(tz))
    # Where midnight is skipped the day begins at one o'clock.
    assert midnight.hour in (0, 1)
    assert (midnight.minute, midnight.second) == (0, 0)
    assert datetime.fromtimestamp(end - 1, ZoneInfo(tz)).date() < midnight.date()


@given(STARTS, st.integers(-840, 840), st.sampled_from(["month", "week", "day"]))
def test_every_offset_opens_the_next_period_at_its_midnight(start, offset, per):
    end = check_two_periods(Quota(3, per, offset_minutes=offset), start)
    assert (end + offset * 60) % DAY_S == 0


@pytest.mark.parametrize(
    ("quota", "now", "end"),
    [
        (Quota("3/month"), "2024-02-29T23:59:59", "2024-03-01T00:00:00"),
        (Quota("3/month"), "2023-12-31T23:59:59", "2024-01-01T00:00:00"),
        (Quota("3/month", anchor_day=31), "2023-02-28T00:00:00", "2023-03-31T00:00:00"),
        (Quota("3/month", anchor_day=30), "2024-02-28T00:00:00", "2024-02-29T00:00:00"),
        (Quota("3/month", anchor_day=29), "2023-03-28T00:00:00", "2023-03-29T00:00:00"),
        (Quota("3/week"), "2024-02-29T12:00:00", "2024-03-04T00:00:00"),
        (Quota("3/week", week_start="sunday"), "2024-02-29T12:00:00", "2024-03-03T00:00:00"),
        (Quota("3/week", week_start="friday"), "2024-02-29T12:00:00", "2024-03-01T00:00:00"),
        (Quota("3/day", offset_minutes=840), "2024-02-29T09:59:59", "2024-02-29T10:00:00"),
        (Quota("3/day", offset_minutes=-840), "2024-02-29T13:59:59", "2024-02-29T14:00:00"),
        (Quota("3/day", tz="Europe/Berlin"), "2024-03-30T23:00:00", "2024-03-31T22:00:00"),
        (Quota("3/day", tz="America/New_York"), "2024-11-03T04:00:00", "2024-11-04T05:00:00"),
        (Quota("3/day", tz="Australia/Lord_Howe"), "2024-04-06T13:00:00", "2024-04-07T13:30:00"),
        (Quota("3/day", tz="America/Sao_Paulo"), "2018-11-03T12:00:00", "2018-11-04T03:00:00"),
        (Quota("3/day", tz="America/Sao_Paulo"), "2018-11-04T03:00:00", "2018-11-05T02:00:00"),
        (Quota("3/fixed:1d"), "2024-02-29T12:00:00", "2024-03-01T00:00:00"),
        (Quota("3/rolling:1d"), "2024-02-29T12:00:00", "2024-03-01T12:00:00"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.per}-{value.tz}",
)
def test_periods_end_at_their_exact_boundaries(quota, now, end):
    assert check_two_periods(quota, seconds(now)) == seconds(end)


def test_a_minute_that_st_johns_shows_twice_belongs_to_the_day_that_has_begun():
    # 2010-11-07, 00:01 became 23:01 of the day before: 00:00:30 was shown, then 23:30, then 00:00 again.
    quota = Quota("3/day", tz="America/St_Johns")
    zone = ZoneInfo("America/St_Johns")
    first = int(datetime(2010, 11, 7, 0, 0, 30, tzinfo=zone).timestamp()) * SECOND_US
    state = quota.check(None, first, 3).state
    later = first + 1_800 * SECOND_US
    assert datetime.fromtimestamp(later // SECOND_US, zone).day == 6
    fresh = Quota("3/day", tz="America/St_Johns")
    denied = fresh.check(state, later, 1).decision
    assert not denied.allowed
    assert later + denied.retry_after_us == int(datetime(2010, 11, 8, tzinfo=zone).timestamp()) * SECOND_US


@pytest.mark.parametrize("now", ["2024-01-30T12:00:00", "2024-01-31T12:00:00"])
def test_calls_of_the_last_day_of_a_month_belong_to_that_month(now):
    day, month = (Quota(f"9/{per}") for per in ("day", "month"))
    now, last, first_of_next = (
        int(seconds(at)) * SECOND_US for at in (now, "2024-01-31T23:00:00", "2024-02-01T00:00:00")
    )
    state = month.adopt(day.charge(None, now, last, 4)[0], day, now)
    assert [month.peek(state, at).current for at in (last, first_of_next)] == [4, 0]


@given(st.lists(st.tuples(st.integers(0, 10 * DAY_S), st.integers(1, 3)), min_size=5, max_size=60))
def test_going_back_never_opens_an_old_period_again(calls):
    quota = Quota("4/day")
    state, spent, newest = None, {}, -1
    for now, cost in calls:
        outcome = quota.check(state, now * SECOND_US, cost)
        state = outcome.state
        day = now // DAY_S
        if outcome.decision.allowed:
            assert day >= newest
            newest = day
            spent[day] = spent.get(day, 0) + cost
    assert all(units <= 4 for units in spent.values())


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=30, max_size=80), st.integers(4, 8)
)
def test_a_rolling_quota_has_no_seam(steps, limit):
    clock = ManualClock()
    gate = Gate(Quota(limit, "rolling:1m"), clock=clock)
    departures = []
    for gap, cost in steps:
        clock.advance(gap)
        if gate.check(cost=cost):
            departures.append((clock.now(), cost))
    check_window(departures, limit, "1m")


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(100, 700)), min_size=30, max_size=60))
def test_a_large_rolling_quota_has_no_seam_either(steps):
    clock = ManualClock()
    gate = Gate(Quota("2000/rolling:1m"), clock=clock)
    departures = []
    for gap, cost in steps:
        clock.advance(gap)
        if gate.check(cost=cost):
            departures.append((clock.now(), cost))
    check_window(departures, 2_000, "1m")


@pytest.mark.parametrize(
    "per", ["Month", "monthly", "year", "hour", "", " ", "fixed", "fixed:", "fixed:0s", "rolling:x", "30d"]
)
def test_an_unknown_cadence_is_an_error(refused, per):
    refused(lambda: Quota(10, per), "per")


@pytest.mark.parametrize(
    ("text", "limit"), [("2M/day", 2_000_000), ("90k/month", 90_000), ("1.5k/week", 1_500), ("0.5K/day", 500)]
)
def test_a_budget_may_be_given_in_thousands_and_millions(text, limit):
    assert Quota(text).limit == limit


@pytest.mark.parametrize("text", ["2m/day", "1.2345k/day", "2.5/day", "2 M/day", "M/day", "1MM/day"])
def test_a_budget_that_is_not_whole_is_refused(refused, text):
    refused(lambda: Quota(text), "limit")


def test_the_error_for_an_unknown_cadence_names_the_known_ones(refused):
    fix = refused(lambda: Quota("10/fortnight"), "per").fix
    assert all(cadence in fix for cadence in ("month", "week", "day", "fixed:", "rolling:"))


def test_notations_are_the_same_value():
    assert Quota("1_000_000/month") == Quota(1_000_000, "month") == Quota(" 1000000 / month ")
    assert hash(Quota("5/day")) == hash(Quota(5, "day"))
    assert Quota("5/day") != Quota("5/day", tz="Europe/Berlin")
    assert Quota("5/fixed:30d").per == "fixed:30d"


class TestSetDate:
    """The system's date is set; the timeline of rates goes on undisturbed."""

    MONTH = 31 * DAY_S

    def gate(self, limit=10):
        return opened_at("2024-01-10T00:00:00", Quota(limit, "month"))

    def test_a_month_ahead_and_back_without_a_call_changes_nothing(self):
        clock, gate = self.gate()
        assert admitted(gate, 5) == 5
        before = gate.peek()
        clock.step_wall(self.MONTH)
        assert gate.peek().remaining == 10
        clock.step_wall(-self.MONTH)
        assert gate.peek() == before
        assert admitted(gate) == 5

    def test_a_month_ahead_and_back_mints_nothing(self):
        clock, gate = self.gate()
        assert admitted(gate, 5) == 5
        clock.step_wall(self.MONTH)
        assert admitted(gate) == 10
        clock.step_wall(-self.MONTH)
        assert admitted(gate) <= 5
        for _ in range(5):
            clock.step_wall(self.MONTH)
            assert admitted(gate) == 0
            clock.step_wall(-self.MONTH)
            assert admitted(gate) == 0

    def test_a_month_ahead_and_back_locks_no_call_out(self):
        clock, gate = self.gate()
        assert admitted(gate, 5) == 5
        clock.step_wall(self.MONTH)
        assert admitted(gate, 1) == 1
        clock.step_wall(-self.MONTH)
        assert admitted(gate) >= 4
        clock.advance(self.MONTH)
        assert admitted(gate) >= 9

    def test_a_denial_after_going_back_keeps_its_promise(self):
        clock, gate = self.gate()
        assert admitted(gate, 5) == 5
        clock.step_wall(self.MONTH)
        assert admitted(gate) == 10
        clock.step_wall(-self.MONTH)
        assert admitted(gate) <= 5
        denied = gate.check()
        assert gate.forecast().admits_at_us == clock.now_us() + denied.retry_after_us
        clock.advance(denied.retry_after)
        assert gate.check().allowed

    def test_a_wait_after_going_back_ends(self):
        clock = ManualClock(seconds("2024-01-10T00:00:00"), autojump=True)
        shaper = Shaper(gates=(Quota("10/month"),), clock=clock)

        def left(calls):
            return sum(shaper.reserve(max_wait=0).accepted for _ in range(calls))

        assert left(5) == 5
        clock.step_wall(self.MONTH)
        assert left(50) == 10
        clock.step_wall(-self.MONTH)
        for _ in range(6):
            slot = shaper.schedule(max_wait="90d")
        assert slot.delay > 0
        assert clock.now() <= seconds("2024-03-01T00:00:00")

    @given(st.lists(st.tuples(st.integers(-90, 90), st.integers(0, 12)), min_size=2, max_size=12))
    def test_no_sequence_of_dates_gives_more_than_the_budgets_of_the_months_it_showed(self, steps):
        clock, gate = opened_at("2024-06-15T00:00:00", Quota("10/month"))
        months, total = set(), 0
        for days, calls in steps:
            clock.step_wall(days * DAY_S)
            shown = datetime.fromtimestamp(clock.wall_us() // SECOND_US, UTC)
            months.add((shown.year, shown.month))
            total += admitted(gate, calls)
        assert total <= 10 * len(months)

    @given(st.lists(st.tuples(st.integers(-90, 90), st.integers(0, 12)), min_size=1, max_size=12))
    def test_no_sequence_of_dates_breaks_the_promise_of_a_denial(self, steps):
        clock, gate = opened_at("2024-06-15T00:00:00", Quota("10/month"))
        for days, calls in steps:
            clock.step_wall(days * DAY_S)
            admitted(gate, calls)
        denied = gate.peek()
        if not denied.allowed:
            clock.advance((denied.retry_after_us - 1) / SECOND_US)
            assert not gate.peek().allowed
            clock.advance(1 / SECOND_US)
        assert gate.check().allowed


@pytest.mark.parametrize("quota", [Quota("10/day"), Quota("10/rolling:1h"), Quota("10/day", spread=True)])
def test_a_share_is_of_what_may_be_spent_and_never_of_the_period(quota, refused):
    half = quota.scaled(0.59)
    assert (half.limit, half.per, half.spread) == (5, quota.per, quota.spread)
    refused(lambda: quota.scaled(0.09), "share")
    assert quota.scaled(0.1).limit == 1


def test_a_share_of_the_counter_of_a_quota_is_of_what_may_be_spent():
    assert Quota("10/day").counter.scaled(0.59).limit == 5
    assert Quota("10/day", spread=True).counter.scaled(0.59).limit == 5
