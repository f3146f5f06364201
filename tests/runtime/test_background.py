"""The background thread of a process, which runs work that other threads hand to it."""

import logging
import subprocess
import sys

import pytest

from shapekit import Policy, SQLiteStore
from shapekit._runtime import process

from ..crew import PATIENCE_S


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_the_next_work_runs_after_any_error(afterwards, caplog, error):
    def fail():
        raise error("this")

    process.background_ready()
    with caplog.at_level(logging.ERROR, "shapekit"):
        process.in_background(fail)
        afterwards()
    (record,) = caplog.records
    assert record.exc_info[0] is error


def ended(script, *args):
    """The words that a process prints which runs this script to its end."""
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


LEFT = """
import threading
from shapekit._runtime import process

process.LAST_S = 3_600
process.background_ready()
process.in_background(threading.main_thread().join)
for number in range(100):
    process.in_background(print, number)
"""


def test_a_process_finishes_the_remaining_work_before_it_ends():
    assert ended(LEFT) == [str(number) for number in range(100)]


HANGING = """
import threading
from shapekit._runtime import process

process.LAST_S = 0.01
process.background_ready()
process.in_background(threading.Event().wait)
"""


def test_a_process_does_not_wait_for_its_last_work_for_ever():
    assert ended(HANGING) == []


FORKED = """
import os, sys, threading, warnings
from shapekit._runtime import process

warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
process.LAST_S = 3_600
end = threading.Event()
process.background_ready()
process.in_background(end.wait)
thread = threading.Thread(target=end.wait, daemon=True)
thread.start()
process.UNDER_WAY.add(thread)
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
    end.set()
elif sys.argv[1] == "too":
    process.background_ready()
    process.in_background(threading.main_thread().join)
    process.in_background(print, "child")
"""


@pytest.mark.parametrize(("what", "printed"), [("nothing", ["0"]), ("too", ["child", "0"])])
def test_a_forked_child_waits_for_its_own_work_and_not_for_its_parents(what, printed):
    assert ended(FORKED, what) == printed


PERMIT = """
import sys
from shapekit import Policy, SQLiteStore, shaped

@shaped(policy=Policy("1000/s", name="api", concurrency=1, store=SQLiteStore(sys.argv[1])))
def rows():
    yield 1
    yield 2

for row in rows():
    break
"""


def test_a_generator_that_a_script_has_left_as_its_last_act_gives_its_permit_back(tmp_path):
    path = str(tmp_path / "limits.db")
    ended(PERMIT, path)
    store = SQLiteStore(path)
    with Policy("1000/s", name="api", concurrency=1, store=store).admit(max_wait=0):
        pass
    store.close()


CANCELLED = """
import asyncio, threading
from shapekit._runtime import process
from shapekit._runtime.drivers import ThreadCall, Workers

process.LAST_S = 3_600

def give_back(what):
    threading.main_thread().join()
    print(what)

async def main():
    thread_call = ThreadCall(lambda: "taken", give_back)
    task = asyncio.create_task(thread_call.run(Workers()))
    await asyncio.sleep(0)
    while not thread_call._done:
        pass
    task.cancel()

asyncio.run(main())
"""


def test_the_slot_of_a_cancelled_task_is_given_back_before_its_process_ends():
    assert ended(CANCELLED) == ["taken"]


PATCHED_SINCE = """
import queue
from shapekit._runtime import process

process.in_background(print, "before")

class Green(queue.SimpleQueue):
    def get(self):
        print("green")
        return super().get()

queue.SimpleQueue = Green
process.background_ready()
"""


def test_the_thread_waits_as_the_standard_library_does_when_it_starts():
    """gevent may have patched it since shapekit was imported: then the thread is one of its greenlets."""
    assert ended(PATCHED_SINCE)[:2] == ["green", "before"]
