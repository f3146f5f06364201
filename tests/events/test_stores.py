"""Every store reports the same events, which are made by comparing its answers."""

from shapekit import Policy
from shapekit.events import Cancelled, Departed, Held, Refused, Reserved, Resumed, Settled


def test_every_store_reports_the_same_events_of_a_whole_story(store, clock, recorded):
    policy = Policy("10/s", name="stripe", max_wait=5, store=store)
    shaper = policy.shaper
    with policy.admit("alice", cost=2) as admission:
        pass
    with policy.admit("alice"):
        pass
    assert admission.settle(3)
    reservation = shaper.reserve("alice")
    assert reservation.cancel()
    assert not reservation.cancel()
    assert not shaper.reserve("alice", max_wait=0)
    assert shaper.hold("30s", key="alice") == 30.0
    assert shaper.hold("1s", key="alice") == 30.0
    notice = 2.5 if store.shared else 0.25
    assert shaper.resume(key="alice") == notice
    assert shaper.resume(key="bob") == 0.0
    assert recorded == [
        Reserved("stripe", "alice", 2, 0.0),
        Departed("stripe", "alice", 2, 0.0, 0.0),
        Reserved("stripe", "alice", 1, 0.2),
        Departed("stripe", "alice", 1, 0.2, 0.0),
        Settled("stripe", "alice", 2, 3),
        Reserved("stripe", "alice", 1, 0.2),
        Cancelled("stripe", "alice", 1, True),
        Refused("stripe", "alice", 1, "queue_full", 0.2, False),
        Held("stripe", "alice", 30.0, 30.0),
        Resumed("stripe", "alice", notice),
    ]
