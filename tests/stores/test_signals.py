"""Real signals while stores are called, by the hundred. Where the handler raises, the call does too, every
next call works, and so does a fork; where it makes calls itself, each call counts once."""

import subprocess
import sys

import pytest

from ..redis_server import shared_server

SCRIPT = """
import os, random, signal, sys, threading
from shapekit import GCRA, Gate, ManualClock, MemoryStore, Shaper, off
from shapekit.stores.redis import RedisStore
from shapekit.stores.sqlite import SQLiteStore

kind, where, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
raised, unraisable = 0, []
sys.unraisablehook = unraisable.append  # what a signal interrupts in a finalizer is lost, and reported here

class Interrupted(BaseException):
    pass

class TimeUp(Exception):
    pass

def interrupt(number, frame):
    # Only inside of `called`: this script has nothing to guard itself with.
    global left, raised
    outer, kinds = frame, [Interrupted, TimeUp]
    while outer is not None and outer.f_code is not called.__code__:
        if outer.f_code.co_name == "__del__" and "redis" in outer.f_code.co_filename:
            kinds = [Interrupted]  # the client's finalizers drop every Exception silently
        outer = outer.f_back
    if outer is not None and left:
        left -= 1
        raised += 1
        if left:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(10, 200) / 1e6)
        raise random.choice(kinds)

def called(call):
    global left
    left = random.choice([1, 1, 2, 3])
    signal.setitimer(signal.ITIMER_REAL, random.uniform(10, most_us) / 1e6)
    call()

def witness():
    assert gate.check("witness")
    assert shaper.reserve("witness").accepted

def elsewhere(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "a call hangs"

def forked():
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        witness()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "a forked child hangs"

clock = ManualClock(1_000.0, autojump=True)
store = {
    "memory": lambda: MemoryStore(clock),
    "sqlite": lambda: SQLiteStore(where, clock=clock),
    "redis": lambda: RedisStore.from_url(where, clock=clock),
}[kind]()
gate = Gate(GCRA("1000000/s", burst=1_000_000), name="gate", store=store)
shaper = Shaper("1000000/s", burst=1_000_000, name="shaper", store=store)
slow = Shaper("10/s", name="slow", store=store)
loud = Shaper("1000000/s", burst=1_000_000, name="loud", store=store)
loud.listen(lambda event: len(repr(event)))

def shaped_off():
    with off():
        slow.reserve()

CALLS = [
    gate.check, lambda: gate.check_many(["a", "b"]), shaper.reserve, lambda: shaper.reserve().cancel(),
    lambda: shaper.settle(shaper.reserve(), 3), slow.schedule, lambda: shaper.hold("1s", key="b"),
    gate.reset, lambda: list(store.keys()), lambda: shaper.listen(lambda _: None).close(), shaped_off,
    loud.schedule,
]
for call in CALLS:
    call()
most_us = {"memory": 60, "sqlite": 600, "redis": 900}[kind]
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
while interrupted < times:
    raised = 0
    unraisable.clear()
    try:
        called(random.choice(CALLS))
        assert not raised or unraisable, "what the handler raised is lost"
    except (Interrupted, TimeUp):
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    slow.reset()
    if interrupted % 50 == 0:
        elsewhere(witness)
        witness()
signal.signal(signal.SIGALRM, signal.SIG_DFL)
elsewhere(witness)
witness()
forked()
if kind == "redis":
    free = []
    while not store._kept._permits.empty():
        free.append(store._kept._permits.get())
    assert len(free) == 64, f"{64 - len(free)} permits are lost"
print("whole")
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_nothing_is_lost(kind, times, tmp_path):
    where = shared_server().url if kind == "redis" else tmp_path / "limits.db"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, kind, str(where), str(times)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "whole\n", done.stderr


CALLING = """
import gc, signal, sys
from shapekit import FixedWindow, Gate, Policy, Shaper

gate = Gate(FixedWindow("100000000/day"))
policy = Policy("1000000/s", burst=1_000_000, concurrency=1_000)
shaper = Shaper("1000000/s", burst=1_000_000)
counted, signals = 0, 0

def call():
    global counted
    gate.check("a")
    shaper.schedule("a")
    with policy.admit("a"):
        counted += 1

class Session:
    def __init__(self):
        self.itself = self
    def __del__(self):
        call()

def handler(*_):
    global signals
    call()
    signals += 1
    signal.setitimer(signal.ITIMER_REAL, 0.0005)

times = int(sys.argv[1])
gc.set_threshold(7)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005)
while signals < times:
    Session()
    call()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
gc.collect()
assert gate.peek("a").current == counted, (gate.peek("a").current, counted)
print("whole")
"""


@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_handlers_and_finalizers_may_call(times):
    done = subprocess.run(
        [sys.executable, "-c", CALLING, str(times)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "whole\n", done.stderr
    assert not done.stderr
