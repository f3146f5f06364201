"""After a reset nothing is handed out that was owned before it, not even by a trip that was under way."""

import threading

from ...crew import in_threads
from ..slow_store import FarStore
from .conftest import PATIENCE_S


def test_after_a_reset_nothing_of_the_old_is_handed_out(store, shaper_on):
    shaper = shaper_on(store)
    in_threads([lambda: [shaper.schedule() for _ in range(20)]] * 4)
    before = shaper.core.prefetch._entries["default"].buffer._standing.generation
    shaper.reset()
    reservations = [shaper.reserve() for _ in range(3)]
    assert {reservation.grant.generation for reservation in reservations} != {before}
    assert len({reservation.grant.generation for reservation in reservations}) == 1


def test_after_a_reset_beside_a_trip_nothing_of_the_old_is_handed_out(store, shaper_on, monkeypatch):
    """A trip for further slots is answered before the reset, and comes home after it."""
    is_on_its_way, is_reset = threading.Event(), threading.Event()
    answered = FarStore._answered
    seen = []

    def late(self, apply, key, args):
        result = answered(self, apply, key, args)
        if len(args) == 2 and not is_on_its_way.is_set():
            if args[1][0]:
                is_on_its_way.set()
                assert is_reset.wait(PATIENCE_S)
            else:
                # The first trip, for one call. The next one is for the three others, and asks for more.
                while len(shaper.core.prefetch._entries["default"].calls) < 3:
                    pass
        return result

    def work():
        for _ in range(100):
            is_after = is_reset.is_set()
            seen.append((is_after, shaper.reserve().grant.generation))

    def reset():
        assert is_on_its_way.wait(PATIENCE_S)
        shaper.reset()
        is_reset.set()

    monkeypatch.setattr(FarStore, "_answered", late)
    shaper = shaper_on(store)
    in_threads([reset, *[work] * 4])
    of_old = {generation for is_after, generation in seen if not is_after}
    of_new = {generation for is_after, generation in seen if is_after}
    assert of_new
    assert not {min(of_old)} & of_new
