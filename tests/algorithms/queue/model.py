"""The queue by its contract: a plain list of places, exact fractions, no cleverness.

A hold moves everything in the list, one by one. A call that is cancelled at the end of the list
disappears, and with it the free place that now ends the list. One cancelled elsewhere leaves its place
free; free places that touch are one; and a newcomer stands at the beginning of the first that is wide
enough, from now on. All instants are microseconds.
"""

from fractions import Fraction
from math import ceil

from shapekit.algorithms.queue.wire import CANCEL, SETTLE

RESUME_NOTICE = 250_000


class Call:
    """A call that got a slot, and what became of it."""

    def __init__(self, cost, place, life):
        self.cost = cost
        self.place = place
        self.life = life
        self.left_at = None
        self.cancelled = False
        self.settled = None


WALL = object()
"""The owner of a place that no call may have."""


class Place:
    """A stretch of the list, with the departure of the call that has it; free where no call has it."""

    def __init__(self, start, end, owner=None, due=0):
        self.start = start
        self.end = end
        self.owner = owner
        self.due = due

    def move(self, by):
        self.start += by
        self.end += by
        self.due += by


class Model:
    """One key of a smooth shaper without further limits."""

    def __init__(self, limit, period, burst, now):
        self.interval = Fraction(period, limit)
        self.burst = burst
        self.now = now
        self.until = 0
        self.places = []
        self.calls = []
        self.life = 0

    @property
    def at(self):
        """The instant from which on a call may leave."""
        return max(self.now, self.until)

    @property
    def tail(self):
        return self.places[-1].end if self.places else Fraction(0)

    def is_free(self, place):
        return place.owner is None and place.end > self.at

    def reserve(self, cost, max_wait):
        """The call, or None if refused, and the wait."""
        # An instant that is rounded up to this microsecond has not passed.
        soonest = self.at - 1 + Fraction(1, self.interval.denominator)
        width = cost * self.interval
        saved = max(0, self.burst - cost) * self.interval
        for free in self.places:
            start = max(free.start, soonest)
            if self.is_free(free) and start + width <= free.end:
                due = max(self.at, ceil(start - saved))
                passed = [Place(free.start, start, WALL)] if free.start < start else []
                kept = [*passed, Place(start, start + width, WALL, due)]
                break
        else:
            free = None
            start = max(self.tail, Fraction(self.at))
            kept = [Place(start, start + width, WALL, ceil(max(self.at, self.tail - saved)))]
        place = kept[-1]
        wait = place.due - self.now
        if max_wait is not None and wait > max_wait:
            return None, wait
        if free is not None and place.end < free.end:
            kept.append(Place(place.end, free.end))
        self.places = sorted(
            [*(old for old in self.places if old is not free), *kept], key=lambda place: place.start
        )
        call = Call(cost, place, self.life)
        place.owner = call
        self.calls.append(call)
        if wait == 0:
            call.left_at = self.now
        return call, wait

    def has_place(self, call):
        return call.life == self.life and call.place.owner is call

    def wait(self, call):
        return max(0, call.place.due - self.now, self.until - self.now)

    def cancel(self, call):
        place = call.place
        if not self.has_place(call) or place.due < self.at:
            return False
        place.owner, call.cancelled, call.left_at = WALL, True, None
        free = Place(place.start, place.end)
        for other in filter(self.is_free, self.places):
            if other.end == place.start:
                free.start = other.start
            elif other.start == place.end:
                free.end = other.end
        kept = [old for old in self.places if not free.start <= old.start < free.end]
        if free.end != self.tail:
            kept.append(free)
        self.places = sorted(kept, key=lambda place: place.start)
        return True

    def settle(self, call, actual):
        if not self.has_place(call):
            # What a call cost more is charged to whatever life the key has now.
            if actual > call.cost:
                call.settled = actual
                self.wall(max(self.tail, Fraction(self.at)) + (actual - call.cost) * self.interval)
            return actual > call.cost
        place, extra = call.place, actual - call.cost
        call.settled = actual
        if extra > 0:
            self.wall(max(self.tail, Fraction(self.at)) + extra * self.interval)
        elif place is self.places[-1]:
            place.end = place.start + actual * self.interval
            if not actual:
                # It is as if no call had come: then the call before it is the last.
                self.places.pop()
        return True

    def undo(self, call):
        """The slot of the call goes to no caller; returns the operation that gave it back."""
        call.left_at = None
        if self.cancel(call):
            return CANCEL
        return SETTLE if self.settle(call, 0) else None

    def hold(self, length):
        end = self.now + length
        if end > self.until:
            # Nothing that was saved up survives a hold.
            self.wall(self.at + (self.burst - 1) * self.interval)
            self.move_all(end - self.at)
            self.until = end
        return self.until - self.now

    def resume(self):
        end = self.now + RESUME_NOTICE
        if self.until > end:
            self.move_all(end - self.until)
            self.until = end
        return max(0, self.until - self.now)

    def wall(self, end):
        if end > self.tail:
            self.places.append(Place(self.tail, end, WALL))

    def move_all(self, by):
        for place in self.places:
            place.move(by)

    def advance(self, by):
        """Calls that are due on the way leave at their instants."""
        self.now += by
        for call in self.calls:
            if call.left_at is None and self.has_place(call) and call.place.due < self.at:
                call.left_at = call.place.due

    def reset(self):
        self.places, self.until = [], 0
        self.life += 1

    def departures(self, life):
        """`(instant, cost)` of the calls that left, in the order of their places."""
        gone = [call for call in self.calls if call.life == life and call.left_at is not None]
        gone.sort(key=lambda call: (call.left_at, call.place.start))
        counted = [(call, call.cost if call.settled is None else call.settled) for call in gone]
        return [(call.left_at, min(call.cost, cost)) for call, cost in counted if cost]
