"""The queue as the contract tells it: a plain list of places, exact fractions, no cleverness.

A hold moves everything in the list, one by one. A call that is cancelled at the end of the list
disappears, and with it the free places that now end the list. One cancelled elsewhere leaves its place
free, and the next newcomer whom it suits takes just that departure. All instants are microseconds.
"""

from fractions import Fraction
from math import ceil

RESUME_NOTICE = 250_000


class Call:
    """Somebody who was given a departure, and what became of them."""

    def __init__(self, cost, place, life):
        self.cost = cost
        self.place = place
        self.life = life
        self.left_at = None
        self.cancelled = False
        self.settled = None


class Place:
    """A stretch of the list, with the departure of whoever has it; nobody ever has a wall."""

    def __init__(self, start, end, due=None, offers=0):
        self.start = start
        self.end = end
        self.due = due
        self.offers = offers
        self.owner = None
        self.inherited = False

    @property
    def is_free(self):
        return self.due is not None and self.owner is None

    def move(self, by):
        self.start += by
        self.end += by
        if self.due is not None:
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
        """The instant from which on somebody may leave."""
        return max(self.now, self.until)

    @property
    def tail(self):
        return self.places[-1].end if self.places else Fraction(0)

    def free_places(self):
        return [place for place in self.places if place.is_free and place.due >= self.at]

    def reserve(self, cost, max_wait):
        """The call, or None if refused, and the wait."""
        suits = next((place for place in self.free_places() if place.offers >= cost), None)
        if suits is None:
            start = max(self.tail, Fraction(self.at))
            saved = max(0, self.burst - cost) * self.interval
            place = Place(start, start + cost * self.interval, ceil(max(self.at, self.tail - saved)), cost)
        else:
            place = suits
        wait = place.due - self.now
        if max_wait is not None and wait > max_wait:
            return None, wait
        if suits is None:
            self.places.append(place)
        else:
            place.inherited, place.offers = True, cost
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
        place.owner, call.cancelled, call.left_at = None, True, None
        if place is self.places[-1]:
            free = self.free_places()
            while self.places and self.places[-1] in free:
                self.places.pop()
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
        elif not place.inherited:
            place.offers = actual
            if place is self.places[-1]:
                place.end = place.start + actual * self.interval
        return True

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
            self.places.append(Place(self.tail, end))

    def move_all(self, by):
        for place in self.places:
            place.move(by)

    def advance(self, by):
        """Whoever is due on the way leaves at their instant."""
        self.now += by
        for call in self.calls:
            if call.left_at is None and self.has_place(call) and call.place.due < self.at:
                call.left_at = call.place.due

    def reset(self):
        self.places, self.until = [], 0
        self.life += 1

    def departures(self, life):
        """`(instant, cost)` of those who left, in the order of their places."""
        gone = [call for call in self.calls if call.life == life and call.left_at is not None]
        gone.sort(key=lambda call: (call.left_at, call.place.start))
        counted = [(call, call.cost if call.settled is None else call.settled) for call in gone]
        return [(call.left_at, min(call.cost, cost)) for call, cost in counted if cost]
