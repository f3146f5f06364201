"""What real workers do with slots that they have taken for tasks that do not come."""

from contextlib import closing

import pytest

from .batching import make_app
from .fleet import Fleet, eventually

MODULE = "tests.integrations.celery.batching"
BURST = 50
BATCH = 8


@pytest.fixture
def fleet(broker):
    with closing(Fleet(broker.url)) as fleet:
        yield fleet


@pytest.fixture
def app(broker):
    return make_app(broker.url)


@pytest.fixture
def book(broker):
    with broker.client(decode_responses=True) as book:
        yield book


def run(app, book, name, where, count):
    """Run tasks one after the other; each has a slot of its own."""
    for number in range(1, count + 1):
        app.tasks[name].delay(where)
        eventually(lambda number=number: book.llen(f"ran:{where}") == number)
    assert len(set(book.lrange(f"ran:{where}", 0, -1))) == count


def free(shaper, where):
    """The number of calls that may leave at once."""
    return max(
        calls for calls in range(BURST + 1) if not calls or shaper.forecast(calls, key=where).last_in == 0
    )


def test_a_worker_that_stops_gives_back_its_unused_slots(fleet, app, book, account):
    worker = fleet.start(MODULE, pool="prefork", concurrency=2)
    shaper = app.tasks["rarely"].shaped.policy.shaper
    run(app, book, "rarely", account, 1)
    assert free(shaper, account) == BURST - 1
    run(app, book, "rarely", account + "2", 2)
    assert free(shaper, account + "2") <= BURST - BATCH
    worker.stop()
    assert BURST - 2 <= free(shaper, account + "2") <= BURST - 1
    assert not book.hlen("unacked")


def test_a_killed_worker_loses_the_rest_of_one_batch(fleet, app, book, account):
    worker = fleet.start(MODULE, pool="prefork", concurrency=2)
    shaper = app.tasks["rarely"].shaped.policy.shaper
    run(app, book, "rarely", account, 5)
    worker.kill()
    assert BURST - 1 - BATCH <= free(shaper, account) <= BURST - BATCH


def test_an_idle_worker_gives_back_its_unused_slots(fleet, app, book, account):
    fleet.start(MODULE, pool="prefork", concurrency=2)
    shaper = app.tasks["often"].shaped.policy.shaper
    # The key stays in use for as long as the test takes.
    shaper.reserve(account, cost=BURST - 5)
    run(app, book, "often", account, 2)
    assert settled(shaper, account) == 0
    eventually(lambda: settled(shaper, account) == 2)


def settled(shaper, where):
    """The number of slots that were taken and given back."""
    (*_, beside, _), _, _ = shaper.core.look.call(where)
    return sum(word[3] == 0 for word in beside[1][2]) if beside else 0
