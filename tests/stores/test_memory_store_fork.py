"""MemoryStore and fork: the child is warned once, goes on by itself, and never inherits a held lock."""

import subprocess
import sys

import pytest

PRELUDE = """
import os, signal, sys, threading, time, warnings
from shapekit import GCRA, Gate, ManualClock, MemoryStore

def in_child(work):
    "Runs `work` in a forked child; its texts come back, with those of the warnings about the fork."
    reader, writer = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            texts = [str(w.message) for w in caught if "MemoryStore" in str(w.message)]
            lines = [f"warned: {text}" for text in texts] + [str(line) for line in work()]
            os.write(writer, chr(10).join(lines).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child died: {status}"
    assert not [w for w in caught if "MemoryStore" in str(w.message)], "the parent was warned"
    return lines.splitlines()
"""


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_child_with_live_keys_is_warned_once_and_its_store_works():
    lines = run("""
gates = [Gate(GCRA("1/day", burst=2), clock=ManualClock()) for _ in range(3)]
for gate in gates:
    gate.check("key")
def work():
    yield from ([bool(gate.check("key")) for _ in range(2)] for gate in gates)
    yield bool(gates[0].check("new"))
print(*in_child(work), sep=chr(10))
print([bool(gate.check("key")) for gate in gates])
""")
    warning, *rest = lines
    assert warning.startswith("warned: forked with live rate-limit keys in a MemoryStore")
    assert "RedisStore or SQLiteStore" in warning
    assert rest == [*["[True, False]"] * 3, "True", "[True, True, True]"]


@pytest.mark.parametrize(
    "script",
    [
        "gate = Gate(GCRA('1/s'), clock=ManualClock())",
        "clock = ManualClock(); gate = Gate(GCRA('1/s'), clock=clock); gate.check('key'); clock.advance(9)",
        "gate = Gate(GCRA('1/s'), clock=ManualClock()); gate.check('key'); gate.reset('key')",
        "gate = Gate(GCRA('1/s'), clock=ManualClock()); gate.check('key'); gate.close()",
    ],
    ids=["empty", "idle", "reset", "closed"],
)
def test_a_child_without_live_keys_is_not_warned(script):
    assert run(f"{script}\nprint(*in_child(lambda: ['fine']))") == ["fine"]


def test_a_child_whose_store_is_gone_is_not_warned():
    assert run("""
gate = Gate(GCRA("1/day"), clock=ManualClock())
gate.check("key")
del gate
import gc; gc.collect()
print(*in_child(lambda: ["fine"]))
""") == ["fine"]


def test_a_child_may_fork_again_and_make_a_new_store():
    lines = run("""
gate = Gate(GCRA("1/day"), clock=ManualClock())
gate.check("key")
def grandchild():
    yield bool(Gate(GCRA("1/s"), clock=ManualClock()).check("key"))
print(*in_child(lambda: in_child(grandchild)), sep=chr(10))
""")
    assert [line.split(":")[0] for line in lines] == ["warned", "warned", "True"]


def test_a_fork_while_another_thread_holds_the_lock_does_not_deadlock():
    # The clock is read under the lock. A thread stays there until the main thread has begun to fork,
    # so a child that took the lock along as it was would wait for ever (and die by its alarm).
    lines = run("""
class Held(ManualClock):
    holding, forking = threading.Event(), threading.Event()
    def now_us(self):
        if threading.current_thread().name == "holder":
            self.holding.set()
            assert self.forking.wait(20)
        return super().now_us()

clock = Held()
gate = Gate(GCRA("9/s"), clock=clock)
os.register_at_fork(before=clock.forking.set)   # the last one registered is the first to be called
holder = threading.Thread(target=gate.check, name="holder")
holder.start()
assert clock.holding.wait(20)
print(*in_child(lambda: [bool(gate.check("key")), bool(gate.check("default"))]), sep=chr(10))
holder.join(20)
print(bool(gate.check("key")))
""")
    assert [line for line in lines if not line.startswith("warned")] == ["True", "True", "True"]
    assert lines[0].startswith("warned"), "the holder's key is live: its call was finished before the fork"


def test_a_permit_of_the_parent_is_not_in_flight_in_the_child():
    lines = run("""
from shapekit import Policy

policy = Policy(concurrency=1, name="api")
inside, done = threading.Event(), threading.Event()
def hold():
    with policy.admit():
        inside.set()
        assert done.wait(20)
holder = threading.Thread(target=hold)
holder.start()
assert inside.wait(20)
def work():
    for _ in range(2):
        with policy.admit(max_wait=0):
            yield "in"
lines = in_child(work)
done.set()
holder.join(20)
with policy.admit(max_wait=0):
    print(*lines, "in", sep=chr(10))
""")
    assert [line for line in lines if not line.startswith("warned")] == ["in"] * 3
