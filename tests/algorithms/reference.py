"""The contract of each limit in exact rationals: slow, obvious, written from the text and not the code.

A model knows what was charged and computes how many units are `used` at any later instant. Everything
else follows from that alone, for every limit: a call is admitted if `used + cost <= limit`, waits
until that holds, and the key is free again once nothing is used. Instants are whole microseconds.
"""

from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from math import ceil
from typing import NamedTuple
from zoneinfo import ZoneInfo

from shapekit import GCRA, FixedWindow, LeakyBucket, Quota, SlidingWindow, SlidingWindowLog, TokenBucket

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class Answer(NamedTuple):
    """The fields of a Decision that a rate has."""

    allowed: bool
    limit: int
    current: int
    remaining: int
    reset_at_us: int
    retry_after_us: int


def first_instant(start: int, holds: Callable[[int], bool]) -> int:
    """The first instant from `start` on at which a condition holds that never ceases to hold."""
    if holds(start):
        return start
    span = 1
    while not holds(start + span):
        span *= 2
    low, high = start + span // 2, start + span
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Model:
    """A limit as the list of what it admitted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def used(self, at: int) -> Fraction | int:
        """Units in use at an instant not before the last charge, if no call comes until then."""
        raise NotImplementedError

    def charge(self, at: int, cost: int) -> None:
        raise NotImplementedError

    def admits(self, at: int, cost: int) -> bool:
        return self.used(at) + cost <= self.limit

    def wait(self, now: int, cost: int) -> int:
        return first_instant(now, lambda at: self.admits(at, cost)) - now

    def look(self, now: int, cost: int) -> Answer:
        """The answer to a call that is not charged: a denial, or how the key stands."""
        current = ceil(self.used(now))
        free_at = first_instant(now, lambda at: self.used(at) == 0)
        wait = self.wait(now, cost)
        return Answer(wait == 0, self.limit, current, self.remaining(now), free_at, wait)

    def remaining(self, now: int) -> int:
        """How many units would be admitted now, one after another."""
        return max(0, self.limit - ceil(self.used(now)))

    def check(self, now: int, cost: int) -> Answer:
        if not self.admits(now, cost):
            return self.look(now, cost)
        self.charge(now, cost)
        return self.look(now, 0)._replace(allowed=True, retry_after_us=0)


class Fluid(Model):
    """GCRA, token bucket and leaky bucket are one: a level that drains at the rate."""

    def __init__(self, limit: int, period_us: int, burst: int) -> None:
        super().__init__(burst)
        self.per_us = Fraction(limit, period_us)
        self.level, self.since = Fraction(0), 0

    def used(self, at: int) -> Fraction:
        return max(Fraction(0), self.level - (at - self.since) * self.per_us)

    def charge(self, at: int, cost: int) -> None:
        self.level, self.since = self.used(at) + cost, at


class Counted(Model):
    """A limit on what was charged in some span of time before the instant."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.charges: list[tuple[int, int]] = []

    def charge(self, at: int, cost: int) -> None:
        self.charges.append((self.place(at), cost))

    def place(self, at: int) -> int:
        return at

    def used(self, at: int) -> Fraction | int:
        here = self.place(at)
        return sum(self.weight(place, here, at) * cost for place, cost in self.charges)

    def weight(self, place: int, here: int, at: int) -> Fraction | int:
        """How much a unit charged at `place` counts at an instant that lies at `here`."""
        return place == here


class Aligned(Counted):
    """FixedWindow, and a quota per equal span: windows cut from the epoch."""

    def __init__(self, limit: int, window_us: int, shift_us: int = 0) -> None:
        super().__init__(limit)
        self.window_us, self.shift_us = window_us, shift_us

    def place(self, at: int) -> int:
        return (at + self.shift_us) // self.window_us


class Rolling(Counted):
    """SlidingWindowLog: a unit counts for one window from its instant on."""

    def __init__(self, limit: int, window_us: int) -> None:
        super().__init__(limit)
        self.window_us = window_us

    def weight(self, place: int, here: int, at: int) -> int:
        return at - self.window_us < place <= at


class Estimated(Counted):
    """SlidingWindow: whole ticks, the one that leaves the window by the part it still covers."""

    def __init__(self, limit: int, window_us: int, buckets: int, conservative: bool) -> None:
        super().__init__(limit)
        self.buckets, self.conservative = buckets, conservative
        self.tick_us = ceil(Fraction(window_us, buckets))

    def place(self, at: int) -> int:
        return at // self.tick_us

    def weight(self, place: int, here: int, at: int) -> Fraction | int:
        age = here - place
        if age == self.buckets and not self.conservative:
            return 1 - Fraction(at % self.tick_us, self.tick_us)
        return age <= self.buckets


class Civil(Counted):
    """Quota per day, week or month: what was charged since the last boundary of the local calendar."""

    def __init__(self, quota: Quota, skew: int) -> None:
        super().__init__(quota.limit)
        self.quota, self.skew = quota, skew
        self.first_days: dict[date, int] = {}
        self.zone = ZoneInfo(quota.tz) if quota.tz else timezone(timedelta(minutes=quota.offset_minutes))

    def place(self, at: int) -> int:
        local = (EPOCH + timedelta(microseconds=at + self.skew)).astimezone(self.zone).date()
        if local not in self.first_days:
            self.first_days[local] = self.first_day(local).toordinal()
        return self.first_days[local]

    def first_day(self, day: date) -> date:
        if self.quota.per == "day":
            return day
        if self.quota.per == "week":
            while WEEKDAYS[day.weekday()] != self.quota.week_start:
                day -= timedelta(days=1)
            return day
        while day.day != min(self.quota.anchor_day, monthrange(day.year, day.month)[1]):
            day -= timedelta(days=1)
        return day


class Spread(Model):
    """A quota whose calls leave one by one: each takes its part of the time that its period has left.

    The part is that which its cost is of the units that are left. A debt queues up behind the others.
    """

    def __init__(self, counted: Aligned | Civil) -> None:
        super().__init__(counted.limit)
        self.counted = counted
        self.ready: dict[object, int] = {}
        """When the next call may leave, in each period."""

    def used(self, at: int) -> Fraction | int:
        return self.counted.used(at)

    def admits(self, at: int, cost: int) -> bool:
        return self.counted.admits(at, cost) and at >= self.ready.get(self.counted.place(at), 0)

    def remaining(self, now: int) -> int:
        return int(self.admits(now, 1))

    def charge(self, at: int, cost: int) -> None:
        period = self.counted.place(at)
        left = self.limit - self.used(at)
        end = first_instant(at, lambda later: self.counted.place(later) != period)
        since = max(at, self.ready.get(period, 0))
        share = Fraction(cost, left) if left > cost else 1
        self.ready[period] = since + ceil((end - since) * share)
        self.counted.charge(at, cost)


def model_of(limit: object, skew: int = 0) -> Model:
    """The model of a limit, from its public arguments."""
    if isinstance(limit, Quota) and limit.spread:
        return Spread(counted_by(limit, skew))
    return counted_by(limit, skew)


def counted_by(limit: object, skew: int) -> Model:
    match limit:
        case GCRA() | TokenBucket() | LeakyBucket():
            return Fluid(limit.rate.limit, limit.rate.period_us, limit.burst)
        case FixedWindow():
            return Aligned(limit.limit, limit.window_us)
        case SlidingWindow():
            return Estimated(limit.limit, limit.window_us, limit.buckets, limit.conservative)
        case SlidingWindowLog():
            return Rolling(limit.limit, limit.window_us)
        case Quota(per=str(per)) if per.startswith("fixed:"):
            return Aligned(limit.limit, _microseconds(per), skew + limit.offset_minutes * 60_000_000)
        case Quota(per=str(per)) if per.startswith("rolling:"):
            return Rolling(limit.limit, _microseconds(per))
        case Quota():
            return Civil(limit, skew)
    raise AssertionError(f"no model of {limit!r}")


def _microseconds(per: str) -> int:
    number, unit = per.partition(":")[2][:-2], per[-2:]
    assert unit == "us", "the tests write spans in whole microseconds"
    return int(number)
