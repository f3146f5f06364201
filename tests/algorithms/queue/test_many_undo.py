"""All slots of a caller that did not stay for the answer go back."""

from shapekit import ManualClock, MemoryStore
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL_MANY, LOOK, RESERVE, RESERVE_MANY, SETTLE
from shapekit.testing.timelines import queue

CALLS = ((1, None, 5), (2, 0, 6))
FURTHER = (3, 1_000_000, 7)


def test_all_that_was_granted_goes_back_in_one_trip():
    store = MemoryStore(ManualClock(1_000.0))
    program = queue("10/s")
    bound = {name: store.bind("name", program, name) for name in (RESERVE_MANY, CANCEL_MANY, LOOK)}
    bound[RESERVE_MANY]("key", ((1, None, 5),), (0, 0, 0))
    before = bound[LOOK]("key")[0][:2]
    answer = bound[RESERVE_MANY]("key", CALLS, FURTHER)
    [(operation, args)] = RESERVE_MANY.undone((CALLS, FURTHER), answer)
    assert (operation, args) == (CANCEL_MANY, (tuple(Grant(*one) for one in answer[1] if one[0]),))
    assert len(args[0]) == 4
    assert bound[operation]("key", *args) == 4
    assert bound[LOOK]("key")[0][:2] == (before[0], bound[LOOK]("key")[0][1])


def test_where_all_were_refused_there_is_nothing_to_give_back():
    refused = Grant(False, 5, 5, False, None, 1, 0, 0, 0, 0, 0, (0, 0), ())
    assert RESERVE_MANY.undone((CALLS, FURTHER), ((0, 0, 0, 0), (refused,))) == ()


def test_a_settlement_that_comes_again_after_a_later_one_changes_nothing():
    """The process of the first settlement has used many nonces since."""
    store = MemoryStore(ManualClock(1_000.0))
    program = queue("10/s")
    reserve, settle, look = (store.bind("name", program, name) for name in (RESERVE, SETTLE, LOOK))
    grant = Grant(*reserve("key", (1, None, 1)))
    for actual, nonce in ((5, 100), (7, 1_100)):
        assert settle("key", (grant, actual, nonce)) > 0
    before = look("key")[0]
    assert settle("key", (grant, 5, 100)) == 0
    assert look("key")[0] == before
