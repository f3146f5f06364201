"""A caller that reserves, waits without sleeping, and notes which calls would have left, and when."""

from dataclasses import dataclass

from shapekit import ManualClock, Reservation, Shaper
from shapekit.algorithms.queue.wire import CONFIRM, RESERVE

SECOND = 1_000_000


@dataclass(eq=False)
class Follow:
    """One accepted slot: `left_at` once its instant has passed on the clock."""

    slot: Reservation
    cost: int
    left_at: int | None = None
    cancelled: bool = False

    @property
    def due(self):
        """The departure on the queue's own time, which no hold moves."""
        return self.slot.grant.due_us


def confirmed(shaper, slot):
    """What a waiting call learns by confirming: the µs that it has to wait, and whether the key is held."""
    confirm = shaper.core.store.bind(shaper.name, shaper.core.queue, CONFIRM)
    generation, shift, until, now, _ = confirm(slot.key)
    if generation != slot.grant.generation:
        return 0, False
    return max(0, max(slot.grant.due_us + shift, until) - now), until > now


def undone(shaper, slot):
    """Gives back the slot of a caller that did not stay for the answer; returns the operation that did it."""
    did = [
        operation
        for operation, args in RESERVE.undone(((slot.cost, None, 7),), slot.grant)
        if shaper.core.store.bind(shaper.name, shaper.core.queue, operation)(slot.key, *args)
    ]
    assert len(did) <= 1
    return did[0] if did else None


class Follower:
    """Drives one key by hand; all spans are microseconds."""

    def __init__(self, *args, start_s=1_000_000_000, **options):
        self.clock = ManualClock(start_s)
        self.shaper = Shaper(*args, clock=self.clock, **options)
        self.calls = []

    @property
    def now(self):
        return self.clock.now_us()

    @property
    def waiting(self):
        return [call for call in self.calls if not call.cancelled and call.left_at is None]

    @property
    def departures(self):
        """`(instant, cost)`, in order; `finish` first."""
        gone = [(call.left_at, call.cost) for call in self.calls if call.left_at is not None]
        return sorted(gone, key=lambda departure: departure[0])

    def reserve(self, cost=1, max_wait=None):
        """The new call, or None if it was refused."""
        bound = None if max_wait is None else max_wait / SECOND
        slot = self.shaper.reserve(cost=cost, max_wait=bound)
        if not slot:
            return None
        call = Follow(slot, cost)
        if slot.delay == 0:
            call.left_at = self.now
        self.calls.append(call)
        return call

    def cancel(self, call):
        freed = call.slot.cancel()
        if freed:
            call.cancelled, call.left_at = True, None
        return freed

    def hold(self, length):
        # Which calls leave and which are held in one and the same microsecond is undefined.
        self.advance(1)
        self.shaper.hold(length / SECOND)

    def resume(self):
        self.shaper.resume()

    def advance(self, span):
        """Calls that are due before the end of it leave at their instants."""
        for call in self.waiting:
            wait = self.wait(call)
            if wait < span:
                call.left_at = self.now + wait
        self.clock.advance(span / SECOND)

    def wait(self, call):
        return confirmed(self.shaper, call.slot)[0]

    def finish(self):
        while self.waiting:
            self.advance(1 + max(map(self.wait, self.waiting)))
