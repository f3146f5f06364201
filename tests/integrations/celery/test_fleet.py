"""A fleet under one rate: real workers with pools of processes, on a real broker."""

import os
import statistics
import time
from pathlib import Path

import pytest

from shapekit.testing import check_pace

from ...witness import watched
from .fleet import eventually
from .records import CLOCKS_S
from .running import MODULE, RATES, make_app, most_in, parked, starts, undisturbed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("workers")]

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def workers(fleet):
    """Two workers with four processes each, which fetch no more tasks than those can run."""
    launched = [fleet.launch(MODULE, pool="prefork", concurrency=4) for _ in range(2)]
    return [worker.wait_ready() for worker in launched]


@pytest.fixture(scope="module")
def book(broker):
    with broker.client(decode_responses=True) as client:
        yield client


@pytest.fixture(scope="module")
def app(broker):
    return make_app(broker.url)


def resident(worker):
    """The memory of a worker, in bytes, without its pool."""
    return int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1]) * PAGE


def p95(latencies):
    return statistics.quantiles(latencies, n=20)[-1]


def test_four_hundred_tasks_run_once_in_order_at_forty_a_second(app, book, broker, workers):
    with watched(broker.pid, *[worker.process.pid for worker in workers]) as witness:
        for number in range(400):
            app.tasks["fast"].delay("fleet", number)
        eventually(lambda: book.llen("starts:fleet") == 400)
    rows = starts(book, "fleet")
    assert sorted(row.number for row in rows) == list(range(400))
    assert len({row.worker for row in rows}) == 2
    check_pace([row.due for row in rows], RATES["fast"], tolerance="1us")
    assert min(row.late for row in rows) >= -CLOCKS_S
    # How soon after its slot a task starts also depends on the machine.
    rows = undisturbed(rows, witness.stalls)
    # The law leaves out starts in the last 10 ms of a second.
    assert most_in(rows, 0.99) <= 41
    # Of two tasks whose slots are more than the grace apart, the first in line starts first.
    for one, next_one in zip(rows, rows[2:], strict=False):
        assert one.slot < next_one.slot
    # A task that a stall kept from running beyond the grace has taken another slot; its old one stayed
    # unused.
    lost = witness.stalls.within(rows[0].at, rows[-1].at)
    assert rows[-1].at - rows[0].at <= 399 / 40 * 1.03 + lost


def test_other_keys_stay_quick_and_memory_flat_behind_a_long_line(app, book, workers):
    for number in range(20):
        app.tasks["slow"].delay("warm", number)
    eventually(lambda: book.llen("starts:warm") > 0)
    before = [resident(worker) for worker in workers]
    for number in range(1500):
        app.tasks["steady"].delay("line", number)
    for number in range(60):
        app.tasks["slow"].delay("line2", number)
    eventually(lambda: book.llen("tasks") == 0)
    sent = []
    with watched(os.getpid()) as witness:
        for number in range(40):
            sent.append(time.monotonic())
            app.tasks["plain"].delay("line", sent[-1])
            eventually(lambda number=number: book.llen("plain:line") > number)
    # All but a few of the tasks that have not started are parked, and none of those is in a worker's memory.
    waiting = parked(book)
    assert waiting >= 1500 + 60 - book.llen("starts:line") - book.llen("starts:line2") - 20
    eventually(lambda: book.hlen("unacked") < 20)
    assert waiting > 500
    began = [at + float(latency) for at, latency in zip(sent, book.lrange("plain:line", 0, -1), strict=True)]
    assert p95([witness.stalls.undone(*times) - times[0] for times in zip(sent, began, strict=True)]) < 0.5
    for worker, was in zip(workers, before, strict=True):
        assert resident(worker) - was < 6 * 2**20
    book.delete("{shapekit:celery}:parked", "{shapekit:celery}:parked:messages")
