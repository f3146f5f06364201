"""Workers are killed or stopped, and Redis goes away: no task is lost, and the rate holds."""

import json
import threading
import time

import pytest

from shapekit.integrations.celery import SLOT_HEADER
from shapekit.testing import check_pace

from ...redis_server import RedisServer
from ...witness import watched
from .fleet import PATIENCE_S, Fleet, eventually
from .running import (
    LOCAL_SHARE,
    MODULE,
    RATES,
    Start,
    make_app,
    most_in,
    parked,
    settings,
    shared_slots,
    starts,
    undisturbed,
)

pytestmark = pytest.mark.long

GONE_S = 5.0
UNACKED = {"visibility_timeout": 2, "unacked_restore_interval": 0.5, "unacked_restore_throttle": 1}
LATE = {
    "broker_transport_options": UNACKED,
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "shapekit_max_eta": 1.0,
    "worker_cancel_long_running_tasks_on_connection_loss": True,
}
"""The broker keeps a message until its task has ended, and soon delivers it again if that never happens."""
STOPS = "tests.integrations.celery.stopping"
AT_EASE_S = 2.0
"""A grace so long that a busy machine makes no task miss its slot, so no message goes through the broker's
list again: a process that is killed while kombu fetches from that list loses a message, shaped or not. Nor
does a task wait in the pool for another slot: missing that one, too, it would move the line away from the
slots that other workers know.
"""


@pytest.fixture
def server():
    """A Redis of one's own, which keeps its data."""
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always")
    try:
        yield server.start()
    finally:
        server.thaw()
        server.close()


@pytest.fixture
def fleet(server):
    fleet = Fleet(server.url)
    try:
        yield fleet
    finally:
        server.thaw()
        fleet.close()


@pytest.fixture
def book(server):
    with server.client(decode_responses=True) as client:
        yield client


@pytest.fixture
def app(server):
    return make_app(server.url)


def all_have_run(book, where, count):
    """The starts, once every number has started."""
    return eventually(
        lambda: (rows := starts(book, where)) and len({row.number for row in rows}) == count and rows
    )


def all_are_in_hand(book, where, count):
    """Wait until each has started, is parked, or is on the broker's books.

    A message that kombu fetches out of a list for the first time is nowhere on its way, shaped or not.
    """
    eventually(lambda: len(in_hand(book, where)) == count)


def in_hand(book, where):
    with book.pipeline() as pipe:
        pipe.zrange("{shapekit:celery}:parked", 0, -1).hvals("unacked").lrange(f"starts:{where}", 0, -1)
        names, texts, rows = pipe.execute()
    return {
        *(name.split("\n")[1].split(":")[0] for name in names),
        *(json.loads(text)[0]["headers"]["id"] for text in texts),
        *(Start(*json.loads(row)).id for row in rows),
    }


def two_workers(fleet, modules=(MODULE, MODULE), **options):
    """Launch both at once, and wait until they are ready."""
    workers = [fleet.launch(module, pool="prefork", concurrency=2, **options) for module in modules]
    return [worker.wait_ready() for worker in workers]


def send(app, where, count):
    for number in range(count):
        app.tasks["brisk"].delay(where, number)


def test_a_worker_is_killed_while_tasks_wait(fleet, book, app):
    workers = two_workers(fleet, env=settings(conf=LATE, grace=AT_EASE_S))
    send(app, "kill", 100)
    all_are_in_hand(book, "kill", 100)
    # The worker holds some tasks: they wait in it, or run.
    eventually(lambda: book.llen("starts:kill") >= 20 and book.hlen("unacked") > 0)
    workers[0].kill()
    rows = all_have_run(book, "kill", 100)
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")
    eventually(lambda: not book.hlen("unacked"))
    assert not parked(book)


def test_a_process_of_the_pool_is_killed_again_and_again_and_no_slot_is_used_twice(fleet, book, app):
    fleet.start(MODULE, pool="prefork", concurrency=1, env=settings(conf=LATE))
    app.tasks["slow"].delay("deadly", 0)
    for number in range(1, 4):
        app.tasks["slow"].delay("deadly", number, -1.0)
    rows = eventually(lambda: (rows := starts(book, "deadly")) and len(rows) >= 5 and rows)
    check_pace([row.due for row in rows], RATES["slow"], tolerance="1us")


def test_a_worker_that_stops_leaves_its_tasks_to_other_workers(server, fleet, book, app):
    workers = two_workers(fleet, (STOPS, MODULE), env=settings(grace=AT_EASE_S))
    with watched(server.pid, *[worker.process.pid for worker in workers]) as witness:
        send(app, "stop", 80)
        all_have_run(book, "stop", 80)
    assert workers[0].process.wait(PATIENCE_S) == 0
    eventually(lambda: not (book.hlen("unacked") or book.llen("tasks") or parked(book)))
    rows = starts(book, "stop")
    assert len(rows) == 80
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")
    # Other tasks used the slots that were given back.
    slots = sorted(row.slot for row in rows)
    lost = witness.stalls.within(rows[0].at, rows[-1].at)
    assert slots[-1] - slots[0] <= 79 / 20 + 0.6 + lost


def test_tasks_keep_their_slots_and_pace_after_redis_was_frozen(server, fleet, book, app):
    workers = two_workers(fleet, env=settings(conf=LATE))
    send(app, "freeze", 120)
    all_are_in_hand(book, "freeze", 120)
    eventually(lambda: book.llen("starts:freeze") >= 20)
    server.freeze()
    time.sleep(GONE_S)
    server.thaw()
    rows = all_have_run(book, "freeze", 120)
    assert all(worker.is_alive for worker in workers)
    assert not shared_slots(rows)
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")


@pytest.mark.parametrize("store", [None, "local"])
def test_tasks_run_after_redis_was_killed_and_restarted_with_its_data(server, fleet, book, app, store):
    workers = two_workers(fleet, env=settings(conf=LATE, store=store, grace=AT_EASE_S))
    send(app, "crash", 120)
    all_are_in_hand(book, "crash", 120)
    eventually(lambda: book.llen("starts:crash") >= 20)
    server.kill()
    time.sleep(GONE_S)
    server.launch()
    server.wait()
    back = time.monotonic()
    rows = all_have_run(book, "crash", 120)
    assert all(worker.is_alive for worker in workers)
    if store is None:
        check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")
    else:
        # Each of six processes goes on by itself until it reaches the store again.
        assert not shared_slots(rows)
        alone = 6 * (1 + LOCAL_SHARE * 20)
        assert most_in([row for row in rows if row.at > back], 1.0) <= 21 + alone


def test_a_message_that_is_delivered_again_while_it_runs_takes_another_slot(fleet, book, app):
    fleet.start(MODULE, pool="threads", concurrency=4, env=settings(conf=LATE))
    for number in range(4):
        app.tasks["slow"].delay("again", number, 5.0)
    rows = eventually(lambda: len(rows := starts(book, "again")) >= 6 and rows)
    assert len({row.id for row in rows}) < len(rows)
    check_pace([row.due for row in rows], RATES["slow"], tolerance="1us")


def test_a_message_that_is_delivered_again_while_it_waits_takes_another_slot(fleet, book, app):
    conf = {"shapekit_max_eta": 1.0, "shapekit_block_below": 1.0}
    fleet.start(MODULE, pool="threads", concurrency=4, env=settings(conf=conf))
    for number in range(8):
        app.tasks["slow"].delay("copied", number)
    with app.connection_for_write() as connection:
        restore = connection.default_channel.qos.restore_by_tag
        # It was parked and came back with its slot, which is still to come.
        tag = eventually(
            lambda: [tag for tag, text in book.hgetall("unacked").items() if SLOT_HEADER in text]
        )[0]
        restore(tag)
    rows = eventually(lambda: len(rows := starts(book, "copied")) >= 9 and rows)
    assert len({row.id for row in rows}) == 8
    assert not shared_slots(rows)
    check_pace([row.due for row in rows], RATES["slow"], tolerance="1us")


def test_one_message_delivered_twice_is_parked_once_and_runs_once(fleet, book, app):
    fleet.start(MODULE)
    call = app.tasks["slow"]
    call.delay("twice", 0)
    eventually(lambda: starts(book, "twice"))
    # All are parked before the first of them may leave, however slow the machine is.
    call.shaped.policy.shaper.hold(60.0, key="twice")
    for number in (1, 2):
        call.delay("twice", number)
    for _ in range(5):
        call.apply_async(("twice", 3), task_id="the-same")
    eventually(lambda: book.llen("tasks") == 0)
    eventually(lambda: not book.hlen("unacked"))
    assert parked(book) == 3
    call.delay("twice", 4)
    eventually(lambda: parked(book) == 4)
    call.shaped.policy.shaper.resume(key="twice")
    rows = all_have_run(book, "twice", 5)
    assert [row.number for row in rows] == [0, 1, 2, 3, 4]
    assert not shared_slots(rows)
    # The workers gave the slots of the four copies back.
    assert rows[-1].slot - rows[1].slot == pytest.approx(3 / 2, abs=1e-3)


def test_a_hold_moves_waiting_tasks_and_parked_ones(server, fleet, book, app):
    worker = fleet.start(MODULE, pool="threads", concurrency=4)
    call = app.tasks["brisk"]
    with watched(server.pid, worker.process.pid) as witness:
        for number in range(60):
            call.delay("hold", number)
        all_are_in_hand(book, "hold", 60)
        eventually(lambda: book.llen("starts:hold") >= 5)
        assert parked(book)
        call.shaped.policy.shaper.hold(2.0, key="hold")
        held = time.monotonic()
        rows = all_have_run(book, "hold", 60)
    assert len(rows) == 60
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")
    stalls = witness.stalls
    assert not [row for row in rows if row.at < held + 1.99 and stalls.undone(held, row.at) > held + 0.1]
    # No task had to take another slot, except those that a stall kept from running beyond the grace.
    lost = stalls.within(rows[0].at, rows[-1].at)
    assert lost > 1 / 20 or [row.number for row in rows] == sorted(row.number for row in rows)
    assert rows[-1].at - rows[0].at <= 59 / 20 + 2.0 + 0.3 + lost


def test_the_end_of_a_hold_lets_waiting_and_parked_tasks_go(server, fleet, book, app):
    worker = fleet.start(MODULE, pool="threads", concurrency=4)
    call = app.tasks["brisk"]
    call.delay("resume", 0)
    eventually(lambda: book.llen("starts:resume") >= 1)
    call.shaped.policy.shaper.hold(20.0, key="resume")
    for number in range(1, 41):
        call.delay("resume", number)
    eventually(lambda: parked(book) == 40)
    with watched(server.pid, worker.process.pid) as witness:
        call.shaped.policy.shaper.resume(key="resume")
        resumed = time.monotonic()
        rows = all_have_run(book, "resume", 41)
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")
    # A shared hold ends after a twelfth of the rest: until then every worker has learned of it.
    assert witness.stalls.undone(resumed, rows[-1].at) - resumed <= 20 / 12 + 40 / 20 + 1.0


def test_tasks_that_would_expire_during_a_hold_run_if_it_ends_early(fleet, book, app):
    fleet.start(MODULE, pool="threads", concurrency=4)
    call = app.tasks["brisk"]
    shaper = call.shaped.policy.shaper
    shaper.hold(120.0, key="expiring")
    for number in range(10):
        call.apply_async(("expiring", number), expires=100.0)
    eventually(lambda: parked(book) == 10)
    # Meanwhile none of them has a place in the line.
    assert shaper.forecast(key="expiring").first_in <= 120
    shaper.resume(key="expiring")
    rows = all_have_run(book, "expiring", 10)
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")


@pytest.mark.parametrize("restarts", ["never", "before", "after"])
def test_parked_tasks_follow_a_rate_that_an_operator_changes(server, fleet, book, app, restarts):
    """Sixty at 2/s would take half a minute, also where a new worker finds them parked."""
    name = f"changed-{restarts}"
    worker = fleet.start(MODULE, pool="threads", concurrency=4)
    call = app.tasks["brisk"]
    policy = call.shaped.policy
    policy.configure("2/s", key=name)
    for number in range(60):
        call.delay(name, number)
    all_are_in_hand(book, name, 60)
    eventually(lambda: parked(book) >= 40)
    if restarts != "never":
        worker.stop()
    if restarts == "after":
        # The new worker first learns of the key by the new rate, with the slot of another task.
        policy.configure("20/s", key=name)
    if restarts != "never":
        worker = fleet.start(MODULE, pool="threads", concurrency=4)
    with watched(server.pid, worker.process.pid) as witness:
        if restarts != "after":
            policy.configure("20/s", key=name)
        changed = time.monotonic()
        rows = all_have_run(book, name, 60)
    policy.unconfigure(name)
    assert sorted(row.number for row in rows) == list(range(60))
    assert witness.stalls.undone(changed, rows[-1].at) - changed <= 5.0
    # A task that starts later than three quarters of a slot, which is 37 ms, has taken another one.
    assert most_in(undisturbed([row for row in rows if row.at >= changed], witness.stalls), 0.95) <= 21


def test_lost_parked_messages_keep_no_other_from_running(server, fleet, book, app):
    worker = fleet.start(MODULE, pool="threads", concurrency=4)
    call = app.tasks["brisk"]
    call.delay("lost", 0)
    eventually(lambda: book.llen("starts:lost") >= 1)
    call.shaped.policy.shaper.hold(60.0, key="lost")
    for number in range(1, 11):
        call.delay("lost", number)
    eventually(lambda: parked(book) == 10)
    key = "{shapekit:celery}:parked"
    gone, broken, foreign, *whole = book.zrange(key, 0, -1)
    book.hdel(f"{key}:messages", gone)
    book.hset(f"{key}:messages", broken, "not what was parked")
    record = json.loads(book.hget(f"{key}:messages", foreign))
    book.hset(f"{key}:messages", foreign, json.dumps([*record[:3], '{"of": "another form"}', record[4]]))
    call.shaped.policy.shaper.resume(key="lost")
    eventually(lambda: book.llen("starts:lost") >= 1 + len(whole))
    eventually(lambda: book.hlen(f"{key}:unreadable") == 2 and not parked(book))
    # A later call runs, too.
    call.delay("lost", 11)
    rows = eventually(lambda: len(rows := starts(book, "lost")) >= 2 + len(whole) and rows)
    assert len({row.number for row in rows}) == len(rows) == 2 + len(whole)
    lines = [line for line in worker.log.splitlines() if "parked message" in line]
    assert len(lines) == 3
    assert sum("is lost" in line for line in lines) == 1


def test_no_more_than_shapekit_most_waiting_wait_in_a_worker(fleet, book, app):
    conf = {"shapekit_most_waiting": 5, "worker_prefetch_multiplier": 2}
    fleet.start(MODULE, pool="threads", concurrency=2, env=settings(conf=conf))
    seen, over = [], threading.Event()

    def look():
        while not over.wait(0.005):
            seen.append(book.hlen("unacked"))

    looker = threading.Thread(target=look)
    looker.start()
    for number in range(80):
        app.tasks["fast"].delay("few", number)
    rows = all_have_run(book, "few", 80)
    over.set()
    looker.join()
    assert len(rows) == 80
    assert not shared_slots(rows)
    # The tasks that wait, and those that the worker would fetch without them.
    assert 4 <= max(seen) <= 5 + 4
