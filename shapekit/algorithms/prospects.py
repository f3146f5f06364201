"""Prospects: when further calls of one cost would leave, without simulating each of them on the states.

A state keeps everything that may still be given back. A forecast gives nothing back: it only needs what makes
consecutive calls wait, which most limits can express in a few numbers. A call that they delay leaves

- once enough units before it have left a rolling window: if n calls fit into it, the n-th call before;
- once a meter has drained;
- when the next period of a fixed window or a quota begins, if this one is used up;

and not before its place on the grid. So it takes about a microsecond to simulate a call. Once departures
repeat themselves, shifted in time, the rest is a multiplication. The same goes for consecutive periods that
are used up alike, if nothing but the next period delays the calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple, TypeAlias

from shapekit.errors import ConfigError

MAX_EFFORT = 400_000
"""The most effort of one forecast, about a fifth of a second. A call that one window delays costs 1, with
each further limit 1 more; entering a period costs its `price`.
"""
LOOKED_AT = 8
"""The effort of computing a period of a time zone."""
PIECE = 2_048
"""How many calls are simulated between two checks of the effort."""
MOST_UNLIKE = 64
"""How often periods may turn out not to be used up alike before the forecast stops trying."""
SHORT = 256
"""A period that fewer calls use up is short. Also the fewest calls after which to look for a repetition."""
BEFORE_ALL = -(2**64)


class Rolling(NamedTuple):
    """A rolling window: exact, or in ticks, the oldest of which counts in full."""

    limit: int
    tick: int
    """Instants count from the beginning of their tick."""
    reach: int
    """How long a unit counts after that."""
    newest: int
    """No call leaves before this instant."""
    totals: Sequence[int]
    """How many units were charged before, up to and including each earlier instant."""
    leaves: Sequence[int]
    """When the units of each total no longer count."""


class Metered(NamedTuple):
    """A meter: its `tail`, the interval per call and the tolerance, all in 1/q µs."""

    tail: int
    width: int
    tau: int
    q: int


class Following(NamedTuple):
    """Consecutive periods, none of them too short, each a multiple of a unit."""

    number: int
    start: int
    """When the last of them begins."""
    looked_at: int = 0
    """How many periods had to be computed."""


def following_spans(span: int) -> Callable[[int, int, int, int], Following]:
    """The `following` function for periods of equal length."""

    def following(start: int, most: int, least: int, unit: int) -> Following:
        number = most if least <= span and span % unit == 0 else 0
        return Following(number, start + number * span)

    return following


class Periodic(NamedTuple):
    """A counter of periods."""

    limit: int
    bounds: Callable[[int], tuple[int, int]]
    """The period of an instant on the timeline of the periods."""
    span: int
    """The length of every period; 0 if they differ."""
    ahead: int
    """How far that timeline is ahead of the queue's."""
    known: Sequence[tuple[int, int, int]]
    """The beginning of each known period, the units used in it, and the instant that calls wait for if they
    come before it.
    """
    following: Callable[[int, int, int, int], Following]
    """The function `following(start, most, least, unit)`: see `Periods.following`."""
    price: int
    """The effort of entering a period."""

    def later(self, ahead: int) -> Periodic:
        """The same counter, seen from a timeline that it is `ahead` of."""
        known = [(start, used, opened - ahead) for start, used, opened in self.known]
        return self._replace(ahead=self.ahead + ahead, known=known)


Prospect: TypeAlias = Rolling | Metered | Periodic


class Pace(NamedTuple):
    """The state of a line, in 1/q µs of its grid, and how much of the grid a call of the forecast takes."""

    at: int
    """The present, in µs."""
    newest: int
    """No call leaves before this instant, in µs."""
    tail: int
    q: int
    width: int
    """The width of a call."""
    lead: int
    """How much earlier than its place a call may leave."""
    is_even: bool
    """Whether calls wait for their place; otherwise places only keep them in order."""


def departures(pace: Pace, prospects: Sequence[Prospect], cost: int, calls: int) -> tuple[int, int]:
    """When the first and the last of so many calls leave.

    Raises ConfigError if too many would have to be simulated one by one.
    """
    simulation = _Simulation(pace, prospects, cost, calls)
    block, span = simulation.cycle()
    first, left = None, calls
    while left:
        count = min(block, left, simulation.until_spent())
        before = simulation.standing(0) if count == block else None
        try:
            played = simulation.play(count)
        except (OverflowError, ValueError):
            bound = "is more than a time zone has dates for"
            raise ConfigError("calls", calls, bound, "ask for fewer calls") from None
        if played < count:
            raise unforeseeable(calls, calls - left + played)
        left -= count
        first = simulation.dues[-count] if first is None else first
        if before is not None and before == simulation.standing(span):
            left -= block * simulation.repeat(block, span, left // block)
        left -= simulation.skip(left)
    return first or 0, simulation.dues[-1]


def unforeseeable(calls: int, most: int) -> ConfigError:
    """The error for a forecast that would take too long."""
    bound = "is more than a forecast can simulate call by call under these limits"
    return ConfigError("calls", calls, bound, f"ask for up to {most} calls")


class _Period:
    """The period of a counter that the simulation has reached, and what is left of it."""

    __slots__ = ("_latest", "_used", "counter", "end", "entered", "is_short", "left", "start")

    def __init__(self, counter: Periodic, *, is_short: bool) -> None:
        self.counter = counter
        self._used = {start: used for start, used, _ in counter.known}
        self._latest = max(self._used, default=None)
        self.is_short = is_short
        self.start = self.end = BEFORE_ALL
        self.left = 0
        self.entered = 0
        """How many periods were entered so far."""

    def is_known_later(self, due: int) -> bool:
        """Whether there are known periods that begin later than this."""
        return self._latest is not None and self._latest > due + self.counter.ahead

    def after(self, due: int, cost: int) -> int:
        """The first instant from `due` on in a period with room for the cost; the next charge goes to that
        period.
        """
        counter = self.counter
        if self.is_known_later(due):
            due = max(due, *(opened for start, _, opened in counter.known if start > due + counter.ahead))
        while due >= self.end:
            start, end = counter.bounds(due + counter.ahead)
            self.start, self.end = start - counter.ahead, end - counter.ahead
            self.left = counter.limit - self._used.get(start, 0)
            self.entered += 1
        if self.left >= cost:
            return due
        return self.after(self.end, cost)

    def move(self, start: int) -> None:
        """Move on to the period that begins at `start`, with as much left as now."""
        ahead = self.counter.ahead
        self.start, self.end = (instant - ahead for instant in self.counter.bounds(start + ahead))


class _Simulation:
    """A forecast in progress: the departures so far, and what delays the next ones."""

    def __init__(self, pace: Pace, prospects: Sequence[Prospect], cost: int, calls: int) -> None:
        self.dues: list[int] = []
        self._pace, self._cost, self._tail = pace, cost, pace.tail
        windows = [each for each in prospects if isinstance(each, Rolling)]
        self._newest = max([pace.newest, *(window.newest for window in windows)])
        # A window that all calls fit into delays none.
        over = [(window, (0, *window.totals[-1:])[-1] - window.limit) for window in windows]
        self._windows = [
            (window, window.limit // cost, more, window.tick, window.reach)
            for window, more in over
            if calls * cost + more > 0
        ]
        self._meters = [each for each in prospects if isinstance(each, Metered)]
        self._drained = [meter.tail for meter in self._meters]
        counters = [each for each in prospects if isinstance(each, Periodic)]
        self._short = [each for each in counters if each.span and each.limit <= SHORT * cost]
        self._periods = [_Period(each, is_short=each in self._short) for each in counters]
        self._depth = max([1, *(fits for _, fits, *_ in self._windows)])
        self._is_pushed = False
        # The effort per call, and the effort so far.
        self._price = len(self._periods) + len(self._meters) + max(1, (1 + len(self._windows)) // 2)
        self._effort = 0
        # The counter of periods, if there is only one: its periods may be used up alike.
        self._main = self._periods[0] if len(self._periods) == 1 else None
        self._unlike = 0
        # When its last period ended, if that was used up and nothing else delays the next call.
        self._spent: int | None = None

    def play(self, calls: int) -> int:
        """Simulate this many calls, or fewer if they take too much effort; returns how many."""
        played = 0
        self._is_pushed = False
        while played < calls:
            fits = (MAX_EFFORT - self._effort) // self._price
            if fits < (1 if self._periods else calls - played):
                # Without periods the effort is known beforehand: stop instead of simulating in vain.
                return played + max(0, fits)
            piece = min(PIECE, calls - played, fits)
            entered = [period.entered for period in self._periods]
            self._play(piece)
            self._effort += piece * self._price
            for period, before in zip(self._periods, entered, strict=True):
                self._effort += (period.entered - before) * period.counter.price
            played += piece
        return played

    def until_spent(self) -> int:
        """How many calls use up the current period of the main counter, or the next one."""
        main = self._main
        if main is None or self._unlike == MOST_UNLIKE:
            return MAX_EFFORT
        if main.end == BEFORE_ALL:
            return 1
        return max(1, (main.left if main.left >= self._cost else main.counter.limit) // self._cost)

    def skip(self, calls: int) -> int:
        """Skip further periods that are used up as the last one was; returns how many calls they take.

        When such a period begins, nothing that came before delays its first call. So the calls of each period
        that is not too short leave in the same way.
        """
        main, cost = self._main, self._cost
        if main is None or main.left >= cost or self._unlike == MOST_UNLIKE:
            return 0
        self._unlike += 1
        began_idle, self._spent = main.start == self._spent, None
        idle = self._idle_from()
        if idle > main.end or main.is_known_later(main.end - 1):
            return 0
        self._spent = main.end
        fits = main.counter.limit // cost
        if not began_idle or calls < fits:
            return 0
        unit = lcm(*(tick for _, _, _, tick, _ in self._windows))
        ahead = main.counter.ahead
        number, start, looked_at = main.counter.following(
            main.start + ahead, calls // fits, idle - main.start, unit
        )
        self._effort += looked_at * LOOKED_AT
        if number:
            self._unlike = 0
            self._shift(start - ahead - main.start)
            main.move(start - ahead)
            self._spent = main.end
        return number * fits

    def _idle_from(self) -> int:
        """From when on only periods delay a call, and the state shows nothing of earlier calls."""
        last = self.dues[-1]
        tails = [(self._tail, self._pace.q)] if self._pace.is_even else []
        for (_, width, tau, q), tail in zip(self._meters, self._drained, strict=True):
            tails.append((max(tail, tail + width - tau), q))
        instants = [-(-tail // q) + 1 for tail, q in tails]
        for window, _, _, tick, reach in self._windows:
            instants += [last + reach - last % tick, *window.leaves[-1:]]
        return max([last + 1, *instants])

    def _play(self, calls: int) -> None:
        at, _, _, q, width, lead, is_even = self._pace
        cost, dues, windows, tail, newest = self._cost, self.dues, self._windows, self._tail, self._newest
        time = at * q
        is_plain = not self._meters and not self._periods
        for index in range(len(dues), len(dues) + calls):
            on_grid = -((lead - tail) // q) if is_even and tail - lead > time else at
            due = on_grid if on_grid > newest else newest
            for window, fits, over, tick, reach in windows:
                if index >= fits:
                    leaves = dues[index - fits]
                    leaves += reach if tick == 1 else reach - leaves % tick
                elif over + (index + 1) * cost > 0:
                    leaves = window.leaves[bisect_left(window.totals, over + (index + 1) * cost)]
                else:
                    continue
                if leaves > due:
                    due = leaves
            if not is_plain:
                due = self._delayed(due)
            start = due * q if due > on_grid else time
            tail = (start if start > tail else tail) + width
            dues.append(due)
            newest = due
        self._tail, self._newest = tail, newest

    def cycle(self) -> tuple[int, int]:
        """After how many calls the departures may repeat themselves, and how much later.

        The slowest limit in the long run decides. The ticks and short periods of the other limits have to
        repeat themselves as well; inside a long period, departures repeat themselves until it ends.
        """
        cycles = [(fits, window.reach) for window, fits, *_ in self._windows]
        cycles += [(counter.limit // self._cost, counter.span) for counter in self._short]
        grids = [(meter.width, meter.q) for meter in self._meters]
        if self._pace.is_even:
            grids.append((self._pace.width, self._pace.q))
        cycles += [(q // gcd(width, q), width // gcd(width, q)) for width, q in grids]
        calls, span = max(cycles, key=lambda cycle: Fraction(cycle[1], cycle[0]), default=(1, 0))
        ticks = [*(window.tick for window, *_ in self._windows), *(counter.span for counter in self._short)]
        times = lcm(*(tick // gcd(tick, span) for tick in ticks))
        times *= -(-max(self._depth, SHORT) // (calls * times))
        return calls * times, span * times

    def standing(self, shift: int) -> list[object] | None:
        """All that determines the next departures, moved back by `shift`.

        None if charges from before the forecast determine them, too, or if a long period has ended. The
        present does not: after any call, the grid and the meters are ahead of it.
        """
        recent = self.dues[-self._depth :]
        if (
            len(recent) < self._depth
            or any(period.is_known_later(recent[-1]) for period in self._periods)
            or (shift and self._is_pushed)
        ):
            return None
        meters = zip(self._meters, self._drained, strict=True)
        tails = [(self._tail - shift * self._pace.q) * self._pace.is_even]
        tails += [tail - shift * meter.q for meter, tail in meters]
        periods = [(period.end - shift, period.left) for period in self._periods if period.is_short]
        return [[due - shift for due in recent], tails, periods]

    def repeat(self, calls: int, span: int, times: int) -> int:
        """Repeat the last calls up to `times` times, each time `span` later; returns how many times."""
        for period in self._periods:
            if not period.is_short:
                times = min(times, period.left // (calls * self._cost))
                if span:
                    times = min(times, (period.end - 1 - self.dues[-1]) // span)
        later = span * times
        self._shift(later)
        for period in self._periods:
            if period.is_short:
                period.start += later
                period.end += later
            else:
                period.left -= calls * self._cost * times
        return times

    # inside

    def _shift(self, later: int) -> None:
        """Move everything that determines the next departures, except periods, by `later`."""
        self.dues[:] = [due + later for due in self.dues[-self._depth :]]
        self._newest += later
        self._tail += later * self._pace.q
        for place, meter in enumerate(self._meters):
            self._drained[place] += later * meter.q

    def _delayed(self, due: int) -> int:
        """When a call that may leave from `due` on leaves under the meters and the periods; charges them."""
        drained, cost, at = self._drained, self._cost, self._pace.at
        for meter, tail in zip(self._meters, drained, strict=True):
            due = max(due, -((meter.tau - tail - meter.width) // meter.q))
        before, free = None, due
        while due != before:
            before = due
            for period in self._periods:
                due = period.after(due, cost)
        for period in self._periods:
            period.left -= cost
            self._is_pushed |= due > free and not period.is_short
        for place, (_, width, tau, q) in enumerate(self._meters):
            # As in `Meter.charge`: a slot delayed by the meter alone is charged from its exact position.
            ready = drained[place] + width - tau
            is_exact = ready > at * q and due == -(-ready // q)
            drained[place] = max(drained[place], ready if is_exact else due * q) + width
        return due
